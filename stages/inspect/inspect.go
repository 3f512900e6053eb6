// Package inspect is the stage that looks at the model before anything is made
// of it: what it is made of, what goes in and out of a real forward, and what a
// reader should know, such as modules left in training mode. A model given as
// ONNX is read instead of run.
package inspect

import (
	"context"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/onnx/facts"
	"github.com/trtship/trtship/internal/stage"
	"github.com/trtship/trtship/internal/worker"
	"github.com/trtship/trtship/report"
)

// The checks of this stage.
const (
	checkLoads     = "inspect/loads"
	checkSignature = "inspect/signature"
	checkTraining  = "inspect/training-mode"
)

// Stage inspects the model.
type Stage struct {
	cfg    *config.Config
	python string
}

// New returns the stage. python is the interpreter with torch; it is not used
// for model.kind onnx.
func New(cfg *config.Config, python string) *Stage { return &Stage{cfg: cfg, python: python} }

func (s *Stage) given() bool { return s.cfg.Model.Kind == "onnx" }

// Spec describes the stage.
func (s *Stage) Spec() stage.Spec {
	spec := stage.Spec{
		Name: "inspect", Version: 1, Title: "Inspect the model",
		Out: []artifact.Kind{artifact.InspectReport},
		Checks: []stage.CheckDoc{
			{ID: checkLoads, Title: "The model loads.", Remedy: "Read the cause: factory, weights or trust; the stage's log has the Python traceback."},
			{ID: checkSignature, Title: "A forward with the declared inputs runs and returns the declared outputs.", Remedy: "Compare the declared inputs with forward's parameters in the check."},
			{ID: checkTraining, Title: "No module is left in training mode.", Remedy: "Call `eval()`; list what may stay in `model.allow_training_mode`."},
		},
		Cacheable: true,
	}
	if !s.given() {
		spec.Needs = []stage.Need{stage.NeedTorch}
	}
	return spec
}

// settings is what decides the report. Paths are left out: what they name
// enters the key by content.
type settings struct {
	Model   worker.Model
	Allowed []string
	Sizes   []worker.Sizes
	Threads int
}

// Settings is the part of the configuration that decides the report.
func (s *Stage) Settings() any {
	m := worker.ModelOf(s.cfg)
	m.Path = ""
	return settings{Model: m, Allowed: s.cfg.Model.AllowTrain, Sizes: worker.TraceSizes(s.cfg), Threads: s.cfg.Validation.Threads}
}

// Sources are the weights, or the given ONNX file with its data files.
func (s *Stage) Sources() []string {
	file := s.cfg.Model.Path
	if file == "" {
		return nil
	}
	sources := []string{file}
	if s.given() {
		if m, err := onnx.Open(file); err == nil { // Run says what is wrong with it
			defer m.Close()
			for _, f := range m.DataFiles() {
				sources = append(sources, filepath.Join(m.Dir(), filepath.FromSlash(f)))
			}
		}
	}
	return sources
}

// Tools are the versions of torch and what comes with it.
func (s *Stage) Tools(ctx context.Context) (map[string]string, error) {
	if s.given() {
		return map[string]string{}, nil
	}
	return worker.Versions(ctx, s.python)
}

// Run inspects the model and publishes the report.
func (s *Stage) Run(ctx context.Context, _ stage.Inputs, out stage.Outputs) ([]report.Check, error) {
	started := time.Now()
	look := s.run
	if s.given() {
		look = s.read
	}
	found, notes, err := look(ctx, out)
	seconds := time.Since(started).Seconds()
	if err != nil {
		return s.refused(err, seconds)
	}
	if _, err := out.PublishDocument(artifact.InspectReport, found); err != nil {
		return nil, err
	}
	return []report.Check{
		{ID: checkLoads, Verdict: report.Pass, Want: "the model loads", Got: fmt.Sprintf("%d parameters", found.Parameters), Seconds: seconds},
		{
			ID: checkSignature, Verdict: report.Pass, Want: "inputs " + rows(found.Inputs), Got: "outputs " + rows(found.Outputs),
			Detail: strings.Join(notes, "\n"), Line: s.line("model.inputs", "model"),
		},
		s.training(found.Findings),
	}, nil
}

// run loads the model in a Python child and runs a forward.
func (s *Stage) run(ctx context.Context, out stage.Outputs) (report.Inspection, []string, error) {
	opt := worker.OptionsFor(s.cfg, s.python)
	opt.Log, opt.Progress = out.Log(), out.Progress
	w, err := worker.Start(ctx, opt)
	if err != nil {
		return report.Inspection{}, nil, err
	}
	defer w.Close()
	got, err := w.Inspect(worker.InspectRequest{Model: worker.ModelOf(s.cfg), Sizes: worker.TraceSizes(s.cfg)})
	for _, file := range got.Sources {
		out.DependOn(file)
	}
	return got.Inspection, got.Notes, err
}

// read takes the facts from an ONNX file. Its activations are not known without
// running it.
func (s *Stage) read(context.Context, stage.Outputs) (report.Inspection, []string, error) {
	m, err := onnx.Open(s.cfg.Model.Path)
	if err != nil {
		return report.Inspection{}, nil, err
	}
	defer m.Close()
	findings, err := facts.Findings(m)
	if err != nil {
		return report.Inspection{}, nil, err
	}
	found := report.Inspection{Operators: facts.Operators(m), Findings: findings, Ranges: s.ranges(m)}
	found.Parameters, found.ParameterBytes, found.DTypes = facts.Parameters(m)
	notes := slices.Clone(m.Notes)
	for _, v := range m.Inputs() {
		found.Inputs = append(found.Inputs, v.Report())
		notes = append(notes, v.Notes()...)
	}
	for _, v := range m.Outputs() {
		found.Outputs = append(found.Outputs, v.Report())
		notes = append(notes, v.Notes()...)
	}
	return found, notes, nil
}

// ranges are those that the configuration declares, then those that tables
// imply.
func (s *Stage) ranges(m *onnx.Model) []report.IntegerRange {
	ranges := []report.IntegerRange{}
	implied := facts.IntegerRanges(m)
	for _, v := range m.Inputs() {
		if v.DType == "" || v.DType.Floating() || v.DType == "bool" || v.DType == "string" {
			continue
		}
		r := report.IntegerRange{Input: v.Name, High: 1, Source: "default"}
		if i := slices.IndexFunc(implied, func(x report.IntegerRange) bool { return x.Input == v.Name }); i >= 0 {
			r = implied[i]
		}
		if low, high, ok := s.declared(v.Name); ok {
			r.Low, r.High, r.Source = low, high, "configuration"
		}
		ranges = append(ranges, r)
	}
	return ranges
}

func (s *Stage) declared(input string) (low, high int64, ok bool) {
	for _, in := range s.cfg.Model.Inputs {
		if in.Name != input || len(in.Range) != 2 {
			continue
		}
		_, errLow := fmt.Sscan(string(in.Range[0]), &low)
		_, errHigh := fmt.Sscan(string(in.Range[1]), &high)
		return low, high, errLow == nil && errHigh == nil
	}
	return 0, 0, false
}

// refused turns what the model could not do into checks. A forward that does
// not run means that the model did load.
func (s *Stage) refused(err error, seconds float64) ([]report.Check, error) {
	kind := worker.KindOf(err)
	id, line := checkLoads, s.line("model.factory", "model.path", "model")
	if kind == "forward" || kind == "signature" {
		id, line = checkSignature, s.line("model.inputs", "model")
	}
	c, ok := worker.CheckOf(id, err)
	if !ok {
		return nil, err
	}
	c.Line, c.Seconds = line, seconds
	if c.Want == "" {
		c.Want = "the model loads"
	}
	if id == checkLoads {
		return []report.Check{c}, nil
	}
	c.Want = "a forward with the declared inputs runs and returns the declared outputs"
	loaded := report.Check{ID: checkLoads, Verdict: report.Pass, Want: "the model loads", Got: "loaded", Seconds: seconds}
	return []report.Check{loaded, c}, nil
}

// training judges the findings about training mode.
func (s *Stage) training(findings []report.Finding) report.Check {
	c := report.Check{
		ID: checkTraining, Verdict: report.Pass, Want: "no module in training mode", Got: "none", Line: s.line("model.allow_training_mode", "model"),
	}
	var wrong, allowed []string
	for _, f := range findings {
		if f.Kind != "training-mode" || !f.Severe {
			continue
		}
		for _, name := range f.Nodes {
			if s.allowed(name) {
				allowed = append(allowed, name)
			} else {
				wrong = append(wrong, name+": "+f.Text)
			}
		}
	}
	if len(allowed) > 0 {
		c.Detail = "allowed by model.allow_training_mode: " + strings.Join(allowed, ", ")
	}
	if len(wrong) > 0 {
		c.Verdict, c.Got = report.Fail, strings.Join(wrong, "; ")
		c.Hint = "call eval() on the module before it is returned, or list its name in model.allow_training_mode"
	}
	return c
}

// allowed matches a name against the patterns; * also stands for slashes and dots.
func (s *Stage) allowed(name string) bool {
	flat := func(text string) string { return strings.ReplaceAll(text, "/", "\x00") }
	return slices.ContainsFunc(s.cfg.Model.AllowTrain, func(p string) bool {
		ok, err := path.Match(flat(p), flat(name))
		return err == nil && ok
	})
}

func rows(tensors []report.Tensor) string {
	out := make([]string, len(tensors))
	for i, t := range tensors {
		out[i] = fmt.Sprintf("%s %s[%s]", t.Name, t.DType, strings.Join(t.Dims, ","))
	}
	return strings.Join(out, ", ")
}

// line returns the first line that the configuration has for one of the keys.
func (s *Stage) line(keys ...string) int {
	for _, k := range keys {
		if n := s.cfg.Lines[k]; n > 0 {
			return n
		}
	}
	return 0
}
