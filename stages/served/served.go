// Package served is the stage that starts the real tritonserver on the packaged
// repository and compares what it answers with the reference: over HTTP and
// gRPC, alone and under concurrent requests of mixed sizes.
package served

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/regular"
	"github.com/trtship/trtship/internal/stage"
	"github.com/trtship/trtship/internal/triton"
	"github.com/trtship/trtship/internal/triton/compare"
	"github.com/trtship/trtship/internal/triton/kserve"
	"github.com/trtship/trtship/internal/triton/server"
	"github.com/trtship/trtship/internal/triton/tritonpb"
	"github.com/trtship/trtship/internal/validation"
	"github.com/trtship/trtship/report"
)

// The checks of this stage, besides those of every comparison.
const (
	checkLoads  = "served/loads"
	checkDevice = "served/device"
	checkEnds   = "served/ends"
)

// Tools are what the stage needs from outside.
type Tools struct {
	// Find locates the tritonserver.
	Find func(ctx context.Context) (server.Installation, error)
	// Env is added to the server's environment, NAME=value.
	Env []string
}

// Stage serves and compares.
type Stage struct {
	config *config.Config
	tools  Tools
}

// New returns the stage.
func New(c *config.Config, t Tools) *Stage { return &Stage{config: c, tools: t} }

// Spec describes the stage.
func (*Stage) Spec() stage.Spec {
	return stage.Spec{
		Name: "served", Version: 1, Title: "Serve the repository with Triton and compare",
		In:    []stage.In{{Kind: artifact.Repository}, {Kind: artifact.Reference}},
		Out:   []artifact.Kind{artifact.ServedReport, artifact.Outputs},
		Needs: []stage.Need{stage.NeedTriton},
		Checks: append([]stage.CheckDoc{
			{ID: checkLoads, Title: "A real tritonserver loads the repository and the version is ready.", Remedy: "Read the server's own words in the check; trtship lint on the repository names the line."},
			{ID: checkDevice, Title: "The loaded model sits on the kind of device that was meant.", Remedy: "Give the server a GPU, or set triton.instance_groups to cpu."},
			{ID: checkEnds, Title: "The server and all its processes end when they are told to.", Remedy: "Look for processes of the server's group in the log."},
		}, compare.Docs()...),
	}
}

// Settings decide the comparison.
func (s *Stage) Settings() any {
	return struct {
		Triton     config.Triton
		Validation config.Validation
	}{s.config.Triton, s.config.Validation}
}

// Sources is empty.
func (*Stage) Sources() []string { return nil }

// Tools is the server's version.
func (s *Stage) Tools(ctx context.Context) (map[string]string, error) {
	in, err := s.tools.Find(ctx)
	if err != nil {
		return nil, err
	}
	return map[string]string{"tritonserver": in.String()}, nil
}

// session is one served model.
type session struct {
	stage   *Stage
	server  *server.Server
	install server.Installation
	name    string
	version string
	written *tritonpb.ModelConfig
	loaded  *tritonpb.ModelConfig
	ref     *validation.Reference
	checks  []report.Check
	out     stage.Outputs
}

// Run serves, compares and ends the server.
func (s *Stage) Run(ctx context.Context, in stage.Inputs, out stage.Outputs) ([]report.Check, error) {
	repository, err := in.One(artifact.Repository)
	if err != nil {
		return nil, err
	}
	art, err := in.One(artifact.Reference)
	if err != nil {
		return nil, err
	}
	ref, err := validation.OpenReference(art.Dir)
	if err != nil {
		return nil, err
	}
	model, err := triton.OnlyModel(repository.Dir)
	if err != nil {
		return nil, err
	}
	install, err := s.tools.Find(ctx)
	if err != nil {
		return nil, err
	}
	run := &session{stage: s, install: install, name: model.Name, version: model.Newest(), written: model.Config, ref: ref, out: out}
	began := time.Now()
	if err := run.start(ctx, repository.Dir); err != nil {
		if failure.CodeOf(err) != failure.Triton {
			return nil, err
		}
		run.checks = append(run.checks, loadFailed(err, began))
		return run.checks, nil
	}
	defer run.server.Stop()
	run.checks = append(run.checks, report.Check{
		ID: checkLoads, Verdict: report.Pass, Want: "ready", Seconds: time.Since(began).Seconds(),
		Got: fmt.Sprintf("%s version %s ready in %s", run.name, run.version, install),
	})
	if err := run.compare(ctx, art.ID()); err != nil {
		return run.checks, run.explain(err)
	}
	run.end()
	return run.checks, nil
}

// loadFailed turns the server's refusal into a failed check: it was measured.
func loadFailed(err error, began time.Time) report.Check {
	c := report.Check{ID: checkLoads, Verdict: report.Fail, Want: "ready", Got: err.Error(), Seconds: time.Since(began).Seconds()}
	if e, ok := failureOf(err); ok {
		c.Got, c.Hint = e.Message, e.Hint
		for _, d := range e.Details {
			c.Detail += d.Label + ": " + d.Value + "\n"
		}
	}
	return c
}

func (r *session) start(ctx context.Context, repository string) error {
	scratch, err := r.out.Scratch("server")
	if err != nil {
		return err
	}
	t := r.stage.config.Triton
	o := server.Options{
		Installation: r.install, Repositories: []string{repository}, Wait: []server.Want{{Model: r.name, Version: r.version}},
		HTTPPort: t.HTTPPort, GRPCPort: t.GRPCPort, MetricsPort: t.MetricsPort,
		Scratch: scratch, Verbose: t.Verbose, ReadyTimeout: time.Duration(t.ReadyTimeoutS) * time.Second,
		CallTimeout: time.Duration(r.stage.config.Validation.TimeoutS) * time.Second, MemoryMB: t.MemoryMB,
		CacheBytes: cacheBytes(r.written), Env: r.stage.tools.Env, Address: t.BindAddress,
	}
	r.server, err = server.Start(ctx, o)
	keepLog(filepath.Join(scratch, "tritonserver.log"), r.out.Log())
	return err
}

// cacheBytes is the size of the response cache that a model asks for.
func cacheBytes(c *tritonpb.ModelConfig) int64 {
	if c.GetResponseCache().GetEnable() {
		return 64 << 20
	}
	return 0
}

// keepLog copies the server's log into the stage's.
func keepLog(path string, to io.Writer) {
	if b, err := regular.ReadFile(path); err == nil {
		_, _ = to.Write(b)
	}
}

// explain adds the end of a server that died to an error that it caused.
func (r *session) explain(err error) error {
	select {
	case <-r.server.Done():
		if dead := r.server.Err(); dead != nil {
			return dead
		}
	case <-time.After(200 * time.Millisecond):
	}
	return err
}

// compare runs all comparisons.
func (r *session) compare(ctx context.Context, reference string) error {
	control, err := r.server.Client(kserve.HTTP)
	if err != nil {
		return err
	}
	defer func() { _ = control.Close() }()
	if r.loaded, err = control.ModelConfig(ctx, r.name, r.version); err != nil {
		return err
	}
	r.checks = append(r.checks, deviceCheck(r.written, r.loaded))
	cfg := r.stage.config
	precision := r.precision()
	var protocols []kserve.Protocol
	for _, p := range cfg.Triton.Protocols {
		protocols = append(protocols, kserve.Protocol(p))
	}
	if len(protocols) == 0 {
		protocols = []kserve.Protocol{kserve.HTTP, kserve.GRPC}
	}
	checks, err := compare.Run(ctx, r.ref, compare.Options{
		Server: r.install.String(), Model: r.name, Version: r.version, Loaded: r.loaded, Precision: precision,
		Tolerance:   func(output string) report.Tolerance { return cfg.Tolerance(precision, output) },
		AllowRandom: cfg.Validation.AllowRandom, Seed: cfg.Validation.Seed, Protocols: protocols, Dial: r.server.Client,
		Scratch: r.out.Scratch, Progress: r.out.Progress,
		Done: func(label, dir string, v report.Validation) error { return r.publish(reference, label, dir, v) },
	})
	r.checks = append(r.checks, checks...)
	return err
}

// publish keeps the outputs of a comparison and its document.
func (r *session) publish(reference, label, dir string, v report.Validation) error {
	stored, err := r.out.Publish(artifact.Outputs, "served-"+label, dir, nil)
	if err != nil {
		return err
	}
	v.Stored = report.Stored{Reference: reference, Candidate: stored.ID()}
	_, err = r.out.PublishDocument(artifact.ServedReport, v)
	return err
}

// precision is that of the tolerances: an ONNX graph is judged as one.
func (r *session) precision() string {
	if p := r.stage.config.Triton.Precision; p != "" {
		return p
	}
	if r.stage.config.Target == "onnxruntime" {
		return "onnx"
	}
	p := r.stage.config.TensorRT.Precisions
	if len(p) == 0 {
		return "fp32"
	}
	return p[len(p)-1]
}

// deviceCheck compares the instances that were written with those that the
// server made: the rule that nothing falls back to a CPU holds there too.
func deviceCheck(written, loaded *tritonpb.ModelConfig) report.Check {
	kinds := func(c *tritonpb.ModelConfig) []string {
		var out []string
		for _, g := range c.GetInstanceGroup() {
			k := g.GetKind().String()
			if !slices.Contains(out, k) {
				out = append(out, k)
			}
		}
		slices.Sort(out)
		return out
	}
	want, got := kinds(written), kinds(loaded)
	c := report.Check{ID: checkDevice, Want: strings.Join(want, " "), Got: strings.Join(got, " "), Verdict: report.Pass}
	count := 0
	for _, g := range loaded.GetInstanceGroup() {
		count += int(g.GetCount()) * max(len(g.GetGpus()), 1)
	}
	c.Detail = fmt.Sprintf("%d instances", count)
	if !slices.Equal(want, got) {
		c.Verdict = report.Fail
		c.Hint = "the server did not see the device; check the GPUs that it may use"
	}
	return c
}

// end stops the server and looks whether its group is gone.
func (r *session) end() {
	began := time.Now()
	left := r.server.StopAndCount()
	c := report.Check{ID: checkEnds, Verdict: report.Pass, Want: "no process left", Got: "no process left", Seconds: time.Since(began).Seconds()}
	if left {
		c.Verdict, c.Got = report.Fail, "a process of the server's group still runs"
	}
	r.checks = append(r.checks, c)
}

func failureOf(err error) (*failure.Error, bool) { return errors.AsType[*failure.Error](err) }
