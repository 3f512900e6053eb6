// Package validate is the stage that makes the reference, feeds and the model's
// own outputs at every point, and compares the exported graph with it. For
// model.kind onnx the reference is the given file itself.
package validate

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/ort"
	"github.com/trtship/trtship/internal/stage"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/internal/validation"
	"github.com/trtship/trtship/internal/worker"
	"github.com/trtship/trtship/report"
)

const (
	name           = "validate"
	checkReference = name + "/reference"
	modelFile      = "model.onnx"
)

// Stage validates the exported graph.
type Stage struct {
	cfg    *config.Config
	python string
	lib    ort.Library
}

// New returns the stage. python is the interpreter with torch; it is not used
// for model.kind onnx.
func New(cfg *config.Config, python string, lib ort.Library) *Stage {
	return &Stage{cfg: cfg, python: python, lib: lib}
}

func (s *Stage) given() bool { return s.cfg.Model.Kind == "onnx" }

// Spec describes the stage.
func (s *Stage) Spec() stage.Spec {
	spec := stage.Spec{
		Name: name, Version: 1, Title: "Validate the ONNX graph",
		In:    []stage.In{{Kind: artifact.ONNX}},
		Out:   []artifact.Kind{artifact.Reference, artifact.ValidateReport, artifact.Outputs},
		Needs: []stage.Need{stage.NeedORT},
		Checks: append([]stage.CheckDoc{{
			ID: checkReference, Title: "The reference model answers every feed.",
			Remedy: "Read the cause: the model's own forward failed at this point, before anything was compared.",
		}}, validation.GraphDocs(name)...),
		Cacheable: true,
	}
	if !s.given() {
		spec.Needs = []stage.Need{stage.NeedTorch, stage.NeedORT}
	}
	return spec
}

// settings decide the feeds, the reference and the verdicts.
type settings struct {
	Model      worker.Model
	Points     []config.Point
	Validation config.Validation
	Target     string
	Task       *config.Task
}

// Settings is the part of the configuration that decides the stage. Paths are
// left out: what they name enters the key by content.
func (s *Stage) Settings() any {
	m := worker.ModelOf(s.cfg)
	m.Path = ""
	v := s.cfg.Validation
	v.Inputs, v.TimeoutS, v.MemoryMB = nil, 0, 0
	out := settings{Model: m, Points: s.cfg.Points(), Validation: v, Target: s.cfg.Target}
	if v.Task != nil {
		task := *v.Task
		task.Data = ""
		out.Validation.Task, out.Task = nil, &task
	}
	return out
}

// Sources are the weights or the given ONNX file, the user's inputs and the labelled data.
func (s *Stage) Sources() []string {
	var out []string
	switch path := s.cfg.Model.Path; {
	case s.given():
		out = onnx.Files(path)
	case path != "":
		out = append(out, path)
	}
	out = append(out, s.cfg.Validation.Inputs...)
	if t := s.cfg.Validation.Task; t != nil && t.Data != "" {
		out = append(out, t.Data)
	}
	return out
}

// Tools are the versions of ONNX Runtime and, for PyTorch models, of torch.
func (s *Stage) Tools(ctx context.Context) (map[string]string, error) {
	tools := map[string]string{}
	if !s.given() {
		var err error
		if tools, err = worker.Versions(ctx, s.python); err != nil {
			return nil, err
		}
	}
	tools["onnxruntime"] = s.lib.Version
	return tools, nil
}

// Run makes the reference and compares.
func (s *Stage) Run(ctx context.Context, in stage.Inputs, out stage.Outputs) ([]report.Check, error) {
	a, err := in.One(artifact.ONNX)
	if err != nil {
		return nil, err
	}
	model := filepath.Join(a.Dir, modelFile)
	ref, answered, err := s.reference(ctx, s.described(model), out)
	if err != nil || answered.Verdict != report.Pass {
		return []report.Check{answered}, err
	}
	kept, err := out.Publish(artifact.Reference, "", ref.Dir, map[string]string{"source": ref.Source})
	if err != nil {
		return nil, err
	}
	ref.Dir = kept.Dir
	dir, err := out.Scratch("outputs")
	if err != nil {
		return nil, err
	}
	v, checks, err := validation.JudgeGraph(ctx, s.lib, model, ref, validation.SessionOptions(s.cfg.Validation, out.Log()), validation.Options{
		Stage: name, Precision: "onnx", Dir: dir, AllowRandom: s.cfg.Validation.AllowRandom, DeploysONNX: s.cfg.Target == "onnxruntime",
		Tolerance: func(output string) report.Tolerance { return s.cfg.Tolerance("onnx", output) },
		Progress:  out.Progress,
	})
	if err != nil {
		return nil, err
	}
	return append([]report.Check{answered}, checks...), publish(out, &v, kept, dir)
}

// publish stores what was compared and the document that names it.
func publish(out stage.Outputs, v *report.Validation, ref artifact.Artifact, dir string) error {
	v.Stored.Reference = ref.ID()
	if len(v.Rows) > 0 {
		kept, err := out.Publish(artifact.Outputs, name, dir, nil)
		if err != nil {
			return err
		}
		v.Stored.Candidate = kept.ID()
	}
	_, err := out.PublishDocument(artifact.ValidateReport, v)
	return err
}

// described is the graph that says which inputs there are: the model itself if
// that is one, which also answers, and otherwise what was exported from it.
func (s *Stage) described(exported string) string {
	if s.given() {
		return s.cfg.Model.Path
	}
	return exported
}

// reference writes feeds and answers. The check says whether the model answered;
// an error that nothing could be found out.
func (s *Stage) reference(ctx context.Context, model string, out stage.Outputs) (*validation.Reference, report.Check, error) {
	c := report.Check{ID: checkReference, Want: "an answer to every feed", Verdict: report.Pass}
	m, err := onnx.Open(model)
	if err != nil {
		return nil, c, err
	}
	found, ranges := graphInputs(m), validation.IntegerRanges(m)
	if err := m.Close(); err != nil {
		return nil, c, err
	}
	plan, err := validation.PlanOf(s.cfg, found, ranges)
	if err != nil {
		return nil, c, err
	}
	dir, err := out.Scratch("reference")
	if err != nil {
		return nil, c, err
	}
	ref, err := validation.WriteFeeds(dir, plan)
	if err != nil {
		return nil, c, err
	}
	for _, r := range ranges {
		if rangeless(s.cfg, r.Input) {
			ref.Notes = append(ref.Notes, fmt.Sprintf("input %s: generated values stay in [%d, %d], from %s", r.Input, r.Low, r.High, r.Source))
		}
	}
	if s.given() {
		err = s.answerONNX(ctx, model, ref, out)
	} else {
		err = s.answerTorch(ctx, ref, out)
	}
	if err != nil {
		return nil, failed(c, err), passOn(err)
	}
	c.Got = fmt.Sprintf("%d feeds answered by %s", len(ref.Feeds()), ref.Source)
	return ref, c, nil
}

// rangeless reports whether the configuration leaves the range of an input's
// generated values to what the graph says.
func rangeless(c *config.Config, input string) bool {
	for _, in := range c.Model.Inputs {
		if in.Name == input {
			return len(in.Range) == 0
		}
	}
	return len(c.Model.Inputs) == 0
}

// graphInputs are the graph's inputs as ONNX Runtime would list them.
func graphInputs(m *onnx.Model) []ort.ValueInfo {
	var out []ort.ValueInfo
	for _, v := range m.Inputs() {
		x := ort.ValueInfo{Name: v.Name, DType: v.DType, Dims: []int64{}, Symbols: []string{}}
		for _, d := range v.Dims {
			size := int64(-1)
			if d.Fixed() {
				size = d.Size
			}
			x.Dims, x.Symbols = append(x.Dims, size), append(x.Symbols, d.Symbol)
		}
		out = append(out, x)
	}
	return out
}

// answerONNX lets the given file answer, in ONNX Runtime without optimisation.
func (s *Stage) answerONNX(ctx context.Context, model string, ref *validation.Reference, out stage.Outputs) error {
	session, err := ort.Open(ctx, s.lib, model, validation.SessionOptions(s.cfg.Validation, out.Log()))
	if err != nil {
		return err
	}
	defer session.Close()
	feeds := ref.Feeds()
	var outputs []validation.Array
	for i, f := range feeds {
		out.Progress(int64(i), int64(len(feeds)), "reference")
		feed, err := tensor.ReadNPZ(f.In)
		if err != nil {
			return err
		}
		answer, err := session.Infer(ctx, feed)
		if err != nil {
			return err
		}
		if err := tensor.WriteNPZ(f.Out, answer); err != nil {
			return err
		}
		if i == 0 {
			for _, t := range answer {
				outputs = append(outputs, validation.Array{Name: t.Name, DType: t.DType})
			}
		}
	}
	return ref.Save(session.Describe()+", the given file", outputs)
}

// answerTorch lets the PyTorch model answer, in eval mode.
func (s *Stage) answerTorch(ctx context.Context, ref *validation.Reference, out stage.Outputs) error {
	opt := worker.OptionsFor(s.cfg, s.python)
	opt.Log, opt.Progress = out.Log(), out.Progress
	w, err := worker.Start(ctx, opt)
	if err != nil {
		return err
	}
	defer w.Close()
	q := worker.ForwardRequest{Model: worker.ModelOf(s.cfg), Twice: true}
	for _, f := range ref.Feeds() {
		q.Feeds = append(q.Feeds, worker.Feed{In: f.In, Out: f.Out})
	}
	got, err := w.Forward(q)
	for _, path := range got.Sources {
		out.DependOn(path)
	}
	if err != nil {
		return err
	}
	if len(got.Feeds) != len(q.Feeds) {
		return fmt.Errorf("run the model: %d answers to %d feeds", len(got.Feeds), len(q.Feeds))
	}
	var outputs []validation.Array
	for i, f := range got.Feeds {
		for _, d := range f.Different {
			if !slices.Contains(ref.Different, d) {
				ref.Different = append(ref.Different, d)
			}
		}
		if i > 0 {
			continue
		}
		for _, t := range f.Outputs {
			d, err := tensor.ParseDType(t.DType)
			if err != nil {
				return fmt.Errorf("output %q: %w", t.Name, err)
			}
			outputs = append(outputs, validation.Array{Name: t.Name, DType: d})
		}
	}
	ref.Random = got.RandomOperators
	return ref.Save("PyTorch "+got.Torch+", eval mode", outputs)
}

// failed turns the reference's own failure into the check.
func failed(c report.Check, err error) report.Check {
	if w, ok := worker.CheckOf(c.ID, err); ok {
		w.Want = c.Want
		return w
	}
	if f, ok := errors.AsType[*failure.Error](err); ok {
		c.Verdict, c.Detail, c.Hint = report.Fail, err.Error(), f.Hint
	}
	if _, ok := errors.AsType[*ort.CrashError](err); ok {
		c.Verdict = report.Broken
	}
	return c
}

// passOn returns the error unless the check says it all: the model's own
// failure to answer is a finding, bad values of inputs are the user's.
func passOn(err error) error {
	if _, ok := worker.CheckOf(checkReference, err); ok {
		return nil
	}
	if _, ok := errors.AsType[*ort.CrashError](err); ok {
		return nil
	}
	if f, ok := errors.AsType[*failure.Error](err); ok && f.Code == failure.Model && !ort.BadFeed(err) {
		return nil
	}
	return err
}
