package cli

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/rollout"
	"github.com/trtship/trtship/internal/triton/compare"
	"github.com/trtship/trtship/internal/triton/kserve"
	"github.com/trtship/trtship/internal/triton/server"
	"github.com/trtship/trtship/internal/triton/tritonpb"
	"github.com/trtship/trtship/internal/validation"
	"github.com/trtship/trtship/report"
)

func newSwapCmd(a *app) *cobra.Command {
	var f servedFlags
	var version int64
	c := &cobra.Command{
		Use:   "swap CONFIG",
		Short: "Bring a new version into service: validated before, confirmed after, rolled back if it does not hold",
		Long: `swap loads the newest version of the repository (or --version) under a name of its own, where no
request reaches it, and compares it with the reference, alone and under load. If it holds, the
server takes it over in place of the old one without a gap; it is compared once more in its place,
and the old version comes back if it does not hold there. The server must have been started with
explicit model control. A version that does not hold is exit 10.`,
		GroupID: "serving",
		Args:    positional(1, 1),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.swap(cmd.Context(), args[0], f, version) },
	}
	f.add(c)
	c.Flags().Int64Var(&version, "version", 0, "`number` of the new version; the highest by default")
	return c
}

func (a *app) swap(ctx context.Context, path string, f servedFlags, version int64) error {
	s, err := a.step(ctx, path)
	if err != nil {
		return err
	}
	defer s.session.Close()
	repository, err := s.servedRepository(f)
	if err != nil {
		return err
	}
	model, err := s.session.findServed(ctx, f)
	if err != nil {
		return err
	}
	ref, err := s.reference(ctx)
	if err != nil {
		return err
	}
	protocols := model.protocols(s.session.cfg.Triton.Protocols)
	control, err := model.dial(protocols[0])
	if err != nil {
		return err
	}
	defer func() { _ = control.Close() }()
	judge := s.judge(model, ref, f.precision, protocols)
	res, err := rollout.Swap(ctx, rollout.SwapOptions{
		Client: control, Repository: repository, Model: model.name, Version: version, Validate: judge, Confirm: judge,
		Timeout: time.Duration(s.session.cfg.Triton.ReadyTimeoutS) * time.Second, Step: func(text string) { a.say("%s", text) },
	})
	if err != nil {
		return tritonError(err)
	}
	if a.json {
		if err := a.printJSON(res); err != nil {
			return err
		}
	}
	if !res.Swapped {
		return failure.New(failure.Triton, "version %s of %s does not hold: %s", res.To, res.Model, badChecks(res.Checks)).
			WithHint("version %s is served as before", strings.Join(res.From, ", "))
	}
	if !a.json {
		a.print("version %s of %s is served in place of %s: %s held\n", res.To, res.Model, strings.Join(res.From, ", "), report.Count(len(res.Checks), "check"))
	}
	return nil
}

// servedRepository is the folder that the running server reads.
func (s *step) servedRepository(f servedFlags) (string, error) {
	if f.repository == "" {
		st, err := server.Lookup(s.session.a.serversDir(), servedName(s.session.cfg))
		if err != nil {
			return "", err
		}
		f.repository = st.Repository
	}
	return s.session.a.findRepository(f.repository)
}

// judge compares a served model with the reference.
func (s *step) judge(model served, ref *validation.Reference, precision string, protocols []kserve.Protocol) rollout.Judge {
	cfg := s.session.cfg
	if precision == "" {
		precision = servedPrecision(cfg.Triton.Precision, cfg.Target, cfg.TensorRT.Precisions)
	}
	return func(ctx context.Context, name, version string, loaded *tritonpb.ModelConfig) ([]report.Check, error) {
		return compare.Run(ctx, ref, compare.Options{
			Server: model.server, Model: name, Version: version, Loaded: loaded, Precision: precision,
			Tolerance:   func(output string) report.Tolerance { return cfg.Tolerance(precision, output) },
			AllowRandom: cfg.Validation.AllowRandom, Seed: cfg.Validation.Seed, Protocols: protocols, Dial: model.dial,
			Scratch: s.session.store.Scratch, Progress: func(int64, int64, string) {},
		})
	}
}

// badChecks names the first check that does not hold.
func badChecks(checks []report.Check) string {
	for _, c := range checks {
		if !c.Verdict.Good() {
			return c.Summary()
		}
	}
	return "no check was made"
}
