package failure_test

import (
	"errors"
	"fmt"
	"io/fs"
	"testing"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/report"
)

func TestCodeOf(t *testing.T) {
	model := failure.New(failure.Model, "load weights: %w", fs.ErrNotExist).At("a.yaml:3").WithHint("look %s", "here").With("expected", "[%d]", 8)
	tests := map[string]struct {
		err  error
		want failure.Code
	}{
		"no error is good":                    {nil, failure.OK},
		"an error of another kind is a bug":   {errors.New("x"), failure.Bug},
		"a failure has its code":              {model, failure.Model},
		"a wrapped failure keeps it":          {fmt.Errorf("run: %w", model), failure.Model},
		"of joined errors the first decides":  {errors.Join(model, failure.New(failure.Build, "x")), failure.Model},
		"a failure in a failure: the outside": {failure.New(failure.Export, "export: %w", model), failure.Export},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := failure.CodeOf(tt.err); got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
		})
	}
	if !errors.Is(model, fs.ErrNotExist) || model.Error() != "a.yaml:3: load weights: file does not exist" {
		t.Errorf("text %q", model)
	}
	if e := failure.New(failure.Artifact, "write out.onnx: it is already there").At("out.onnx"); e.Error() != "write out.onnx: it is already there" {
		t.Errorf("a place that the message names is said twice: %q", e)
	}
	if model.Hint != "look here" || len(model.Details) != 1 || model.Details[0] != (failure.Detail{Label: "expected", Value: "[8]"}) {
		t.Errorf("hint %q, details %v", model.Hint, model.Details)
	}
}

func TestEveryCodeIsDocumentedOnce(t *testing.T) {
	seen := map[failure.Code]bool{}
	names := map[string]bool{}
	for _, d := range failure.Codes {
		if seen[d.Code] || names[d.Name] || d.Meaning == "" || d.Remedy == "" {
			t.Errorf("row %+v is there twice or not whole", d)
		}
		seen[d.Code], names[d.Name] = true, true
		if d.Code.String() != d.Name {
			t.Errorf("code %d is named %s and %s", d.Code, d.Code, d.Name)
		}
	}
	for c := failure.OK; c <= failure.Terminated; c++ {
		if _, ok := c.Doc(); ok != seen[c] {
			t.Errorf("code %d", c)
		}
	}
	if failure.Code(99).String() != "unknown" {
		t.Error("99 has a name")
	}
}

func TestTheTableOfStages(t *testing.T) {
	want := map[string]failure.Code{
		"inspect": 4, "export": 5, "validate": 6, "optimize": 6, "validate_optimized": 6, "calibrate": 8,
		"quantize": 6, "build": 7, "validate_engine": 6, "benchmark": 9, "package": 10, "served": 10, "unknown": 70,
	}
	for stage, code := range want {
		if got := failure.OfCheck(stage, stage+"/x", report.Broken, failure.InRun); got != code {
			t.Errorf("%s broken: %d, want %d", stage, got, code)
		}
		if got := failure.OfCheck(stage, stage+"/artifacts", report.Broken, failure.InGate); got != failure.Artifact {
			t.Errorf("artifacts of %s: %d", stage, got)
		}
	}
	if got := failure.OfCheck("served", "served/max-abs", report.Fail, failure.InRun); got != failure.Tolerance {
		t.Errorf("a tolerance on a server: %d", got)
	}
}

func TestTheFirstBadCheckDecides(t *testing.T) {
	st := func(name string, verdicts ...report.Verdict) report.Stage {
		s := report.Stage{Name: name, Verdict: report.Pass}
		for _, v := range verdicts {
			s.Checks = append(s.Checks, report.Check{ID: name + "/x", Verdict: v})
		}
		return s
	}
	off := report.Stage{Name: "optimize", Verdict: report.Skip}
	silent := report.Stage{Name: "build", Verdict: report.Missing}
	tests := map[string]struct {
		stages    []report.Stage
		run, gate failure.Code
	}{
		"all good":                             {[]report.Stage{st("export", report.Pass), off, st("build", report.NotAsked)}, 0, 0},
		"the first stage, not the worst check": {[]report.Stage{st("validate", report.Fail), st("build", report.Broken)}, 6, 6},
		"the first check of a stage":           {[]report.Stage{st("build", report.Pass, report.Inconclusive, report.Broken)}, 13, 13},
		"missing is 3 in run and 13 in gate":   {[]report.Stage{st("build", report.Missing)}, 3, 13},
		"a stage without checks counts itself": {[]report.Stage{silent}, 3, 13},
		"a verdict that is none is a failure":  {[]report.Stage{st("build", "great")}, 7, 7},
		"nothing":                              {nil, 0, 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := failure.OfStages(tt.stages, failure.InRun); got != tt.run {
				t.Errorf("run: %d, want %d", got, tt.run)
			}
			if got := failure.OfStages(tt.stages, failure.InGate); got != tt.gate {
				t.Errorf("gate: %d, want %d", got, tt.gate)
			}
		})
	}
}
