package cli

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/triton/compare"
	"github.com/trtship/trtship/internal/triton/kserve"
	"github.com/trtship/trtship/internal/triton/server"
	"github.com/trtship/trtship/internal/validation"
	"github.com/trtship/trtship/report"
)

// servedFlags are the flags of the commands on a running server.
type servedFlags struct {
	onnx, precision, repository string
	httpAddress, grpcAddress    string
}

// addServed adds the flags that say which server and model are meant.
func (f *servedFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&f.precision, "precision", "", "`precision` whose tolerances hold (that of triton.precision by default)")
	c.Flags().StringVarP(&f.repository, "repository", "r", "", "model repository that is served (`folder`; that of serve by default)")
	c.Flags().StringVar(&f.httpAddress, "http", "", "`host:port` of a server that serve did not start")
	c.Flags().StringVar(&f.grpcAddress, "grpc", "", "`host:port` of its gRPC endpoint")
}

func newValidateTritonCmd(a *app) *cobra.Command {
	var f servedFlags
	c := &cobra.Command{
		Use:   "triton CONFIG",
		Short: "Compare a served model with the reference, over HTTP and gRPC, alone and under load",
		Long: `validate triton asks the server that serve started (or the one at --http and --grpc) at every point,
alone and under concurrent requests of mixed sizes, and compares with the reference: the newest
version that is loaded, which is not always the newest of the repository. What does not hold is exit
10, outputs outside of their tolerance exit 6.`,
		Args: positional(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.validateTriton(cmd.Context(), args[0], f) },
	}
	f.add(c)
	c.Flags().StringVar(&f.onnx, "onnx", "", "ONNX model in place of the exported one (`file`)")
	return c
}

// served is a model on a running server.
type served struct {
	name, version string
	http, grpc    string
	server        string  // for people
	onDisk        []int64 // versions of the repository, if it is known
}

// findServed finds the server of the configuration's model, and what the
// repository has of it.
func (s *session) findServed(ctx context.Context, f servedFlags) (served, error) {
	out := served{name: servedName(s.cfg), http: f.httpAddress, grpc: f.grpcAddress, server: "Triton"}
	if out.http == "" && out.grpc == "" {
		st, err := server.Lookup(s.a.serversDir(), out.name)
		if err != nil {
			return out, err
		}
		out.http, out.grpc = st.HTTP, st.GRPC
		if f.repository == "" && !strings.ContainsRune(st.Repository, ':') {
			f.repository = st.Repository
		}
	}
	if f.repository != "" {
		repository, err := s.a.findRepository(f.repository)
		if err != nil {
			return out, err
		}
		model, err := wanted(s.cfg, repository)
		if err != nil {
			return out, err
		}
		out.onDisk = model.Versions
	}
	c, err := out.dial(out.protocols(s.cfg.Triton.Protocols)[0])
	if err != nil {
		return out, err
	}
	defer func() { _ = c.Close() }()
	if m, err := c.ServerMetadata(ctx); err == nil {
		out.server = "Triton " + m.GetVersion()
	}
	return out, nil
}

// ready is the newest version that the server answers with: one of the
// repository, if that is known. What lies there and is not loaded, as after
// package and before swap, is said.
func (o served) ready(ctx context.Context, c kserve.Client, say func(string, ...any)) (string, error) {
	index, err := c.Index(ctx, true)
	if err != nil {
		return "", tritonError(err)
	}
	var all []string
	newest := int64(0)
	for _, m := range index {
		v, err := strconv.ParseInt(m.GetVersion(), 10, 64)
		if m.GetName() != o.name || m.GetState() != "READY" || err != nil {
			continue
		}
		all = append(all, m.GetVersion())
		if v > newest && (o.onDisk == nil || slices.Contains(o.onDisk, v)) {
			newest = v
		}
	}
	switch {
	case len(all) == 0:
		return "", failure.New(failure.Triton, "%s is not ready on the server", o.name).WithHint("`trtship models ls` shows what is; `trtship models load %s` loads it", o.name)
	case newest == 0:
		return "", failure.New(failure.Triton, "the server has version %s of %s, the repository has not", strings.Join(all, ", "), o.name).
			WithHint("name the repository that the server reads with -r")
	}
	if n := len(o.onDisk); n > 0 && o.onDisk[n-1] > newest {
		say("version %d of %s is in the repository, but not loaded: version %d is meant", o.onDisk[n-1], o.name, newest)
	}
	return strconv.FormatInt(newest, 10), nil
}

// protocols are those of the configuration that there is an address for.
func (o served) protocols(asked []string) []kserve.Protocol {
	var out []kserve.Protocol
	for _, p := range asked {
		if p == string(kserve.HTTP) && o.http != "" || p == string(kserve.GRPC) && o.grpc != "" {
			out = append(out, kserve.Protocol(p))
		}
	}
	if len(out) == 0 && o.http != "" {
		out = append(out, kserve.HTTP)
	}
	if len(out) == 0 {
		out = append(out, kserve.GRPC)
	}
	return out
}

func (o served) dial(p kserve.Protocol) (kserve.Client, error) {
	address := o.http
	if p == kserve.GRPC {
		address = o.grpc
	}
	return kserve.Open(kserve.Options{Protocol: p, Address: address, Timeout: time.Minute})
}

func (a *app) validateTriton(ctx context.Context, path string, f servedFlags) error {
	if f.precision != "" && !slices.Contains(precisions, f.precision) {
		return failure.New(failure.Usage, "--precision %q is not one of %s", f.precision, strings.Join(precisions, ", "))
	}
	s, err := a.step(ctx, path)
	if err != nil {
		return err
	}
	defer s.session.Close()
	model, err := s.session.findServed(ctx, f)
	if err != nil {
		return err
	}
	if f.onnx != "" {
		if err := s.giveONNX(ctx, artifact.ONNX, "", f.onnx); err != nil {
			return err
		}
	}
	ref, err := s.reference(ctx)
	if err != nil {
		return err
	}
	rep, err := s.compareServed(ctx, model, ref, f.precision)
	if err != nil {
		return err
	}
	a.concludes(rep)
	if a.json {
		return a.printReport(rep)
	}
	a.printChecks(rep, "served")
	a.printValidations(rep)
	return nil
}

// reference returns the stored reference, made if it is not there.
func (s *step) reference(ctx context.Context) (*validation.Reference, error) {
	art, err := s.made(ctx, "validate", artifact.Reference)
	if err != nil {
		return nil, err
	}
	return validation.OpenReference(art.Dir)
}

// compareServed makes the comparisons and a report of them.
func (s *step) compareServed(ctx context.Context, model served, ref *validation.Reference, precision string) (*report.Report, error) {
	cfg := s.session.cfg
	if precision == "" {
		precision = servedPrecision(cfg.Triton.Precision, cfg.Target, cfg.TensorRT.Precisions)
	}
	protocols := model.protocols(cfg.Triton.Protocols)
	control, err := model.dial(protocols[0])
	if err != nil {
		return nil, err
	}
	defer func() { _ = control.Close() }()
	if model.version, err = model.ready(ctx, control, s.session.a.say); err != nil {
		return nil, err
	}
	loaded, err := control.ModelConfig(ctx, model.name, model.version)
	if err != nil {
		return nil, err
	}
	snapshot, err := cfg.Snapshot(cfg.Dir)
	if err != nil {
		return nil, err
	}
	rep := s.session.report(ctx, snapshot)
	began := time.Now()
	checks, err := compare.Run(ctx, ref, compare.Options{
		Server: model.server, Model: model.name, Version: model.version, Loaded: loaded, Precision: precision,
		Tolerance:   func(output string) report.Tolerance { return cfg.Tolerance(precision, output) },
		AllowRandom: cfg.Validation.AllowRandom, Seed: cfg.Validation.Seed, Protocols: protocols, Dial: model.dial,
		Scratch: s.session.store.Scratch,
		Done: func(_, _ string, v report.Validation) error {
			rep.Validations = append(rep.Validations, v)
			return nil
		},
		Progress: func(int64, int64, string) {},
	})
	if err != nil {
		return nil, err
	}
	rep.Format, rep.Run.ID, rep.Artifacts = report.Format, "by-hand", []report.ArtifactSummary{}
	rep.Stages = []report.Stage{{Name: "served", Verdict: report.Of(checks), Checks: checks, Seconds: time.Since(began).Seconds()}}
	conclude(&rep)
	return &rep, nil
}

// servedPrecision is whose tolerances hold: an ONNX graph is judged as one.
func servedPrecision(named, target string, precisions []string) string {
	switch {
	case named != "":
		return named
	case target == "onnxruntime" || len(precisions) == 0:
		return "onnx"
	}
	return precisions[len(precisions)-1]
}
