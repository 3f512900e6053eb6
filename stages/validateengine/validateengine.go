// Package validateengine is the stage that runs every TensorRT engine at every
// point of every profile and compares it with the reference.
package validateengine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/engine"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/stage"
	"github.com/trtship/trtship/internal/validation"
	"github.com/trtship/trtship/internal/worker"
	"github.com/trtship/trtship/report"
)

const name = "validate_engine"

const checkLoads = name + "/loads"

// Child is a Python child that can be ended.
type Child interface {
	engine.Caller
	io.Closer
}

// Tools are what the stage needs from outside.
type Tools struct {
	// Start starts a Python child that sees the GPU.
	Start func(ctx context.Context, log io.Writer, progress func(done, total int64, label string)) (Child, error)
	// Versions of the tools that decide an engine's answers, by name.
	Versions func(ctx context.Context) (map[string]string, error)
	// Machine is where the plans are loaded.
	Machine func(ctx context.Context) (engine.Machine, error)
}

// Stage validates the engines.
type Stage struct {
	config *config.Config
	tools  Tools
}

// New returns the stage.
func New(c *config.Config, tools Tools) *Stage { return &Stage{config: c, tools: tools} }

// Spec describes the stage.
func (*Stage) Spec() stage.Spec {
	checks := append([]stage.CheckDoc{{
		ID: checkLoads, Title: "The plan loads on this GPU with this TensorRT.", Hardware: true,
		Remedy: "Build the engine again on this machine; a plan is bound to its TensorRT release and GPU.",
	}}, validation.Docs(name, true)...)
	return stage.Spec{
		Name: name, Version: 1, Title: "Validate TensorRT engines",
		In:    []stage.In{{Kind: artifact.Engine}, {Kind: artifact.Reference}},
		Out:   []artifact.Kind{artifact.EngineReport, artifact.Outputs},
		Needs: []stage.Need{stage.NeedGPU, stage.NeedTensorRT}, Checks: checks, Cacheable: true, Hardware: true,
	}
}

// Settings are the tolerances by precision and output.
func (s *Stage) Settings() any {
	return struct {
		Precisions []string
		Tolerances map[string]config.Tolerance
		Outputs    map[string]config.OutputLimits
	}{s.config.TensorRT.Precisions, s.config.Validation.Tolerances, s.config.Validation.Outputs}
}

// Sources are none: everything comes from artifacts.
func (*Stage) Sources() []string { return nil }

// Tools are TensorRT's version and the like.
func (s *Stage) Tools(ctx context.Context) (map[string]string, error) { return s.tools.Versions(ctx) }

// Run judges one engine after the other.
func (s *Stage) Run(ctx context.Context, in stage.Inputs, out stage.Outputs) ([]report.Check, error) {
	a, err := in.One(artifact.Reference)
	if err != nil {
		return nil, err
	}
	ref, err := validation.OpenReference(a.Dir)
	if err != nil {
		return nil, err
	}
	var checks []report.Check
	var validations []report.Validation
	for _, e := range in.All(artifact.Engine) {
		v, got, err := s.one(ctx, e, a, ref, out)
		if err != nil {
			return checks, err
		}
		checks = append(checks, got...)
		if v != nil {
			validations = append(validations, *v)
		}
	}
	if len(validations) > 0 {
		_, err = out.PublishDocument(artifact.EngineReport, validations)
	}
	return checks, err
}

func (s *Stage) one(ctx context.Context, e, reference artifact.Artifact, ref *validation.Reference, out stage.Outputs) (*report.Validation, []report.Check, error) {
	precision := e.Label
	subject := report.Subject{Precision: precision}
	d, err := engine.DescriptionOf(e)
	if err != nil {
		return nil, nil, err
	}
	machine, err := s.tools.Machine(ctx)
	if err != nil {
		return nil, nil, err
	}
	if err := d.LoadsOn(machine); err != nil {
		return nil, []report.Check{refused(err, subject)}, nil
	}
	child, err := s.tools.Start(ctx, out.Log(), nil)
	if err != nil {
		return nil, nil, err
	}
	defer child.Close()
	scratch, err := out.Scratch("tensors-" + precision)
	if err != nil {
		return nil, nil, err
	}
	session, err := engine.Open(child, filepath.Join(e.Dir, engine.PlanFile), d, scratch)
	if err != nil {
		return nil, []report.Check{refused(err, subject)}, onlyOurs(err)
	}
	loads := report.Check{
		ID: checkLoads, Subject: subject, Verdict: report.Pass, Hardware: true,
		Want: "TensorRT " + d.TensorRT + " on " + d.GPU, Got: fmt.Sprintf("loaded in %.1f ms", session.LoadMs), Detail: d.Unchecked(),
		Metrics: map[string]report.Number{"load_ms": report.Number(session.LoadMs)},
	}
	outputs, err := out.Scratch("outputs-" + precision)
	if err != nil {
		return nil, nil, err
	}
	v, checks, err := validation.Judge(ctx, session, ref, validation.Options{
		Stage: name, Candidate: fmt.Sprintf("TensorRT %s engine on %s, %s typing", d.TensorRT, d.GPU, d.Typing),
		Precision: precision, Hardware: true, Dir: outputs, LooseRepeat: true,
		AllowRandom: s.config.Validation.AllowRandom,
		Tolerance:   func(output string) report.Tolerance { return s.config.Tolerance(precision, output) },
		Skip:        func(p validation.Point) string { return outside(d, p) },
		Progress:    func(done, total int64, label string) { out.Progress(done, total, precision+": "+label) },
	})
	if err != nil {
		c, ok := worker.BrokenCheck(checkLoads, err)
		if !ok {
			return nil, nil, err
		}
		c.Subject, c.Hardware = subject, true
		return nil, []report.Check{c}, nil
	}
	v.Stored.Reference = reference.ID()
	kept, err := out.Publish(artifact.Outputs, name+"-"+precision, outputs, nil)
	if err != nil {
		return nil, nil, err
	}
	v.Stored.Candidate = kept.ID()
	return &v, append([]report.Check{loads}, checks...), nil
}

// outside says why an engine cannot be asked at a point.
func outside(d *engine.Description, p validation.Point) string {
	if _, err := d.ProfileFor(p.Shapes); err != nil {
		return err.Error()
	}
	return ""
}

// refused is the check of a plan that does not load.
func refused(err error, subject report.Subject) report.Check {
	c, ok := worker.BrokenCheck(checkLoads, err)
	if !ok {
		c = report.Check{ID: checkLoads, Verdict: report.Fail, Want: "a plan that loads here", Got: err.Error()}
		if f, ok := errors.AsType[*failure.Error](err); ok {
			c.Hint = f.Hint
		}
	}
	c.Subject, c.Hardware = subject, true
	return c
}

// onlyOurs returns err unless it is the plan's fault, which is a check.
func onlyOurs(err error) error {
	if _, ok := worker.BrokenCheck(checkLoads, err); ok || failure.CodeOf(err) == failure.Build {
		return nil
	}
	return err
}
