// Package rollout changes what a running server serves: a new version that is
// validated before it takes over, and a search for better settings.
package rollout

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/regular"
	"github.com/trtship/trtship/internal/triton"
	"github.com/trtship/trtship/internal/triton/kserve"
	"github.com/trtship/trtship/internal/triton/pbtxt"
	"github.com/trtship/trtship/internal/triton/tritonpb"
	"github.com/trtship/trtship/report"
)

// Judge validates a served model, by name and version, with its configuration
// as loaded. What does not hold is in the checks.
type Judge func(ctx context.Context, model, version string, loaded *tritonpb.ModelConfig) ([]report.Check, error)

// SwapOptions says what to swap.
type SwapOptions struct {
	Client     kserve.Client // of a server in explicit model control
	Repository string        // the folder that the server reads
	Model      string
	Version    int64 // folder of the new version, already there; 0 is the highest
	// Validate judges the new version before any request reaches it, under a
	// name of its own.
	Validate Judge
	// Confirm judges the model after it took over; what it finds bad is rolled
	// back. May be nil.
	Confirm Judge
	Step    func(text string) // hears each step; may be nil
	// Timeout bounds the wait for the server after each load; 0 is 2 minutes.
	Timeout time.Duration
}

// SwapResult is what came of a swap.
type SwapResult struct {
	Model      string         `json:"model"`
	From       []string       `json:"from"` // versions that were ready before
	To         string         `json:"to"`
	Swapped    bool           `json:"swapped"`
	RolledBack bool           `json:"rolled_back"`
	Checks     []report.Check `json:"checks"`
	Steps      []string       `json:"steps"`
}

// candidateSuffix names the model that a new version is validated as.
const candidateSuffix = "--candidate"

// Swap brings a new version into service: it is loaded beside the old one under
// a name of its own and validated there, where no request of a user can reach
// it; then the model is loaded with a policy that serves the new version, which
// the server takes over without a gap; then it is judged once more in its place,
// and the old version comes back if it does not hold. The old version is never
// unloaded before the new one is ready.
func Swap(ctx context.Context, o SwapOptions) (SwapResult, error) {
	if o.Timeout == 0 {
		o.Timeout = 2 * time.Minute
	}
	s := &swap{o: o}
	s.res.Model = o.Model
	if err := s.look(ctx); err != nil {
		return s.res, err
	}
	good, err := s.tryOut(ctx)
	if err != nil || !good {
		return s.res, err
	}
	if err := s.takeOver(ctx); err != nil {
		return s.res, err
	}
	return s.res, s.confirm(ctx)
}

type swap struct {
	o       SwapOptions
	res     SwapResult
	written *tritonpb.ModelConfig // config.pbtxt
	version int64
	old     []int64
}

func (s *swap) step(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	s.res.Steps = append(s.res.Steps, text)
	if s.o.Step != nil {
		s.o.Step(text)
	}
}

// look finds out what is served and what is there.
func (s *swap) look(ctx context.Context) error {
	dir := filepath.Join(s.o.Repository, s.o.Model)
	text, err := regular.ReadFile(filepath.Join(dir, "config.pbtxt"))
	if err != nil {
		return failure.New(failure.Artifact, "swap: %w", err).WithHint("name the repository that the server reads")
	}
	d := pbtxt.Parse(string(text))
	if d.Fatal() {
		return failure.New(failure.Triton, "swap: config.pbtxt is not readable: %s: %s", d.Problems[0].Pos, d.Problems[0].Text).At(filepath.Join(dir, "config.pbtxt"))
	}
	s.written = d.Config
	versions, err := triton.Versions(dir)
	if err != nil {
		return failure.New(failure.Artifact, "swap: %w", err)
	}
	if s.version = s.o.Version; s.version == 0 && len(versions) > 0 {
		s.version = versions[len(versions)-1]
	}
	s.res.To = strconv.FormatInt(s.version, 10)
	index, err := s.o.Client.Index(ctx, true)
	if err != nil {
		return err
	}
	for _, m := range index {
		if m.GetName() == s.o.Model && m.GetState() == "READY" {
			s.res.From = append(s.res.From, m.GetVersion())
			v, err := strconv.ParseInt(m.GetVersion(), 10, 64)
			if err != nil {
				return failure.New(failure.Triton, "swap: the server has version %q", m.GetVersion())
			}
			s.old = append(s.old, v)
		}
	}
	if len(s.old) == 0 {
		return failure.New(failure.Triton, "swap: %s is not ready on the server: there is nothing to swap", s.o.Model).WithHint("`trtship models load %s` loads it", s.o.Model)
	}
	for _, v := range s.old {
		if v == s.version {
			return failure.New(failure.Triton, "swap: version %d of %s is served already", v, s.o.Model).WithHint("package a new version first")
		}
	}
	if info, err := os.Stat(filepath.Join(dir, s.res.To)); err != nil || !info.IsDir() {
		return failure.New(failure.Artifact, "swap: version %d of %s is not in the repository", s.version, s.o.Model)
	}
	return nil
}

// tryOut loads the new version under a name of its own and validates it.
func (s *swap) tryOut(ctx context.Context) (good bool, err error) {
	name := s.o.Model + candidateSuffix
	dir := filepath.Join(s.o.Repository, name)
	if err := s.stage(dir, name); err != nil {
		return false, err
	}
	defer func() {
		quiet := context.WithoutCancel(ctx)
		if uerr := s.o.Client.Unload(quiet, name); uerr != nil && err == nil && !isAbsent(uerr) {
			err = uerr
		}
		if !s.gone(quiet, name) {
			s.step("%s is still being unloaded after %s: a request that was sent to it has not ended in the server", name, s.o.Timeout)
		}
		if rerr := os.RemoveAll(dir); rerr != nil && err == nil {
			err = failure.New(failure.Artifact, "swap: %w", rerr)
		}
	}()
	s.step("load version %d as %s", s.version, name)
	if err := s.o.Client.Load(ctx, name, nil); err != nil {
		s.res.Checks = append(s.res.Checks, report.Check{ID: "swap/loads", Verdict: report.Fail, Want: "version " + s.res.To + " loads", Got: words(err)})
		s.step("version %d does not load; version %s stays", s.version, strings.Join(s.res.From, ", "))
		return false, explicitOnly(err)
	}
	if err := s.ready(ctx, name, s.res.To); err != nil {
		return false, err
	}
	s.step("validate %s", name)
	return s.judged(ctx, s.o.Validate, name, s.res.To)
}

// stage makes a model folder that holds the new version alone. Files are
// linked: the server reads them through it.
func (s *swap) stage(dir, name string) error {
	if err := os.RemoveAll(dir); err != nil { // left by a swap that was cut off
		return failure.New(failure.Artifact, "swap: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return failure.New(failure.Artifact, "swap: %w", err)
	}
	c := proto.Clone(s.written).(*tritonpb.ModelConfig)
	c.Name, c.VersionPolicy = name, specific(s.version)
	if err := os.WriteFile(filepath.Join(dir, "config.pbtxt"), []byte(pbtxt.Write(c)), 0o644); err != nil {
		return failure.New(failure.Artifact, "swap: %w", err)
	}
	from := filepath.Join(s.o.Repository, s.o.Model)
	entries, err := os.ReadDir(from)
	if err != nil {
		return failure.New(failure.Artifact, "swap: %w", err)
	}
	for _, e := range entries { // labels, warm-up samples and the version
		v, err := strconv.ParseInt(e.Name(), 10, 64)
		if e.Name() == "config.pbtxt" || e.Name() == triton.ManifestFile || err == nil && v != s.version {
			continue
		}
		if err := os.Symlink(filepath.Join("..", s.o.Model, e.Name()), filepath.Join(dir, e.Name())); err != nil {
			return failure.New(failure.Artifact, "swap: %w", err)
		}
	}
	return nil
}

func specific(versions ...int64) *tritonpb.ModelVersionPolicy {
	return &tritonpb.ModelVersionPolicy{PolicyChoice: &tritonpb.ModelVersionPolicy_Specific_{Specific: &tritonpb.ModelVersionPolicy_Specific{Versions: versions}}}
}

// judged runs a judge and reports whether everything held.
func (s *swap) judged(ctx context.Context, judge Judge, model, version string) (bool, error) {
	if judge == nil {
		return true, nil
	}
	loaded, err := s.o.Client.ModelConfig(ctx, model, version)
	if err != nil {
		return false, err
	}
	checks, err := judge(ctx, model, version, loaded)
	s.res.Checks = append(s.res.Checks, checks...)
	if err != nil {
		return false, err
	}
	verdict := report.Of(checks)
	if !verdict.Good() {
		s.step("version %s does not hold: %s", version, verdict)
	}
	return verdict.Good(), nil
}

// serve loads the model with a policy of its own, whatever the file says.
func (s *swap) serve(ctx context.Context, versions ...int64) error {
	c := proto.Clone(s.written).(*tritonpb.ModelConfig)
	c.Name, c.VersionPolicy = s.o.Model, specific(versions...)
	if err := s.o.Client.Load(ctx, s.o.Model, c); err != nil {
		return explicitOnly(err)
	}
	for _, v := range versions {
		if err := s.ready(ctx, s.o.Model, strconv.FormatInt(v, 10)); err != nil {
			return err
		}
	}
	return nil
}

// takeOver loads the model with the new version as its only one. The server
// answers with the old one until the new one is ready, and ends what is under
// way there.
func (s *swap) takeOver(ctx context.Context) error {
	s.step("serve version %d in place of %s", s.version, strings.Join(s.res.From, ", "))
	if err := s.serve(ctx, s.version); err != nil {
		return errors.Join(err, s.back(context.WithoutCancel(ctx)))
	}
	s.res.Swapped = true
	return nil
}

func (s *swap) confirm(ctx context.Context) error {
	if s.o.Confirm == nil {
		return nil
	}
	s.step("confirm version %d in its place", s.version)
	good, err := s.judged(ctx, s.o.Confirm, s.o.Model, s.res.To)
	if good && err == nil {
		return nil
	}
	return errors.Join(err, s.back(context.WithoutCancel(ctx)))
}

// back serves the old versions again.
func (s *swap) back(ctx context.Context) error {
	s.step("roll back to version %s", strings.Join(s.res.From, ", "))
	if err := s.serve(ctx, s.old...); err != nil {
		return fmt.Errorf("roll back: %w", err)
	}
	s.res.Swapped, s.res.RolledBack = false, true
	return nil
}

// ready waits for a version.
func (s *swap) ready(ctx context.Context, model, version string) error {
	deadline := time.Now().Add(s.o.Timeout)
	for {
		ok, err := s.o.Client.ModelReady(ctx, model, version)
		if err != nil {
			return err
		}
		if ok {
			return nil
		}
		if time.Now().After(deadline) {
			return failure.New(failure.Triton, "%s version %s is not ready after %s", model, version, s.o.Timeout)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// gone waits until a model was unloaded, so that its files can go, and reports
// whether it was.
func (s *swap) gone(ctx context.Context, model string) bool {
	deadline := time.Now().Add(s.o.Timeout)
	for time.Now().Before(deadline) {
		index, err := s.o.Client.Index(ctx, false)
		if err != nil {
			return true // the server went away, and the model with it
		}
		busy := false
		for _, m := range index {
			busy = busy || m.GetName() == model && m.GetState() != "" && m.GetState() != "UNAVAILABLE"
		}
		if !busy {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(20 * time.Millisecond):
		}
	}
	return false
}

func isAbsent(err error) bool {
	e, ok := errors.AsType[*kserve.ServerError](err)
	return ok && (strings.Contains(e.Text, "not found") || strings.Contains(e.Text, "has no available versions"))
}

// words returns what the server said, without the Python traceback of the
// stand-in backends.
func words(err error) string {
	text := err.Error()
	if e, ok := errors.AsType[*kserve.ServerError](err); ok {
		text = e.Text
	}
	text, _, _ = strings.Cut(text, "\n\nAt:\n")
	return strings.TrimSpace(text)
}

// explicitOnly explains the refusal of a server in another control mode. A
// version that does not load is no error of the swap: nothing has changed.
func explicitOnly(err error) error {
	e, ok := errors.AsType[*kserve.ServerError](err)
	if !ok {
		return err
	}
	if strings.Contains(e.Text, "not allowed") {
		return failure.New(failure.Triton, "swap: %w", e).WithHint("start the server with explicit model control: `trtship serve` does")
	}
	if strings.HasSuffix(strings.TrimPrefix(e.Call, "load "), candidateSuffix) {
		return nil
	}
	return failure.New(failure.Triton, "swap: %s", words(err))
}
