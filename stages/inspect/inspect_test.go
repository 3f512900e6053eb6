package inspect_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/testkit"
	"github.com/trtship/trtship/report"
	"github.com/trtship/trtship/stages/inspect"
)

const module = `
model:
  name: zoo
  factory: zoo:FACTORY
  inputs:
    - {name: x, dtype: float32, shape: [batch, 4]}
tensorrt:
  profiles:
    - inputs:
        x: {min: [1, 4], opt: [4, 4], max: [8, 4]}
`

// load reads a configuration that lies beside a copy of a folder.
func load(t *testing.T, folder, text string) *config.Config {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(testkit.Root(t), folder))); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "trtship.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(path, config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func zoo(t *testing.T, factory string, more ...string) *config.Config {
	t.Helper()
	text := strings.Replace(module, "FACTORY", factory+"\n  "+strings.Join(append(more, ""), "\n  "), 1)
	return load(t, "internal/worker/testdata/models", text)
}

func verdicts(checks []report.Check) map[string]report.Verdict {
	out := map[string]report.Verdict{}
	for _, c := range checks {
		out[c.ID] = c.Verdict
	}
	return out
}

func TestVerdictsOfAModule(t *testing.T) {
	python := testkit.Python(t)
	const loads, signature, training = "inspect/loads", "inspect/signature", "inspect/training-mode"
	for name, c := range map[string]struct {
		cfg  *config.Config
		want map[string]report.Verdict
		text string // in a check that is not passed
	}{
		"a model that holds":                  {zoo(t, "baked"), map[string]report.Verdict{loads: report.Pass, signature: report.Pass, training: report.Pass}, ""},
		"a factory that raises":               {zoo(t, "broken"), map[string]report.Verdict{loads: report.Fail}, "at zoo.py:"},
		"a forward that raises":               {zoo(t, "raises"), map[string]report.Verdict{loads: report.Pass, signature: report.Fail}, "ValueError: no such luck"},
		"a number of outputs that differs":    {zoo(t, "pair", "output_names: [one]"), map[string]report.Verdict{loads: report.Pass, signature: report.Fail}, "output_names: one"},
		"modules in training mode":            {zoo(t, "forgotten"), map[string]report.Verdict{loads: report.Pass, signature: report.Pass, training: report.Fail}, "bn: stays in training mode"},
		"modules in training mode, allowed":   {zoo(t, "forgotten", `allow_training_mode: ["*"]`), map[string]report.Verdict{loads: report.Pass, signature: report.Pass, training: report.Pass}, ""},
		"a crash in forward":                  {zoo(t, "dies"), map[string]report.Verdict{loads: report.Broken}, "SIGSEGV"},
		"a model of another kind than it was": {zoo(t, "not_a_module"), map[string]report.Verdict{loads: report.Fail}, "returned dict"},
	} {
		t.Run(name, func(t *testing.T) {
			out := testkit.NewOutputs(t)
			s := inspect.New(c.cfg, python)
			checks, err := s.Run(context.Background(), nil, out)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(c.want, verdicts(checks)); d != "" {
				t.Errorf("verdicts (-want +got):\n%s\n%s", d, out.LogText())
			}
			for _, check := range checks {
				if check.Verdict != report.Pass && !strings.Contains(check.Got+check.Detail, c.text) {
					t.Errorf("%s lacks %q: %s\n%s", check.ID, c.text, check.Got, check.Detail)
				}
				if check.Verdict == report.Fail && check.Line == 0 {
					t.Errorf("%s has no line", check.ID)
				}
			}
			for _, path := range out.Depends {
				if !strings.HasPrefix(path, c.cfg.Dir) {
					t.Errorf("dependency %s", path)
				}
			}
		})
	}
}

func TestThePipelineLearnsOfAMissingTorch(t *testing.T) {
	s := inspect.New(zoo(t, "baked"), filepath.Join(t.TempDir(), "python"))
	if _, err := s.Run(context.Background(), nil, testkit.NewOutputs(t)); err == nil {
		t.Error("no error without an interpreter")
	}
	if _, err := s.Tools(context.Background()); failure.CodeOf(err) != failure.Missing {
		t.Errorf("tools: %v, want exit 3", err)
	}
}

func TestToolsAreVersionsFromMetadata(t *testing.T) {
	tools, err := inspect.New(zoo(t, "baked"), testkit.Python(t)).Tools(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"torch", "onnx", "numpy", "python sources"} {
		if tools[name] == "" {
			t.Errorf("tools %v lack %s", tools, name)
		}
	}
}

func given(file string) string {
	return "model:\n  name: given\n  kind: onnx\n  path: " + file + "\n"
}

func TestAGivenFileIsReadAndJudged(t *testing.T) {
	for name, c := range map[string]struct {
		folder, file string
		verdict      report.Verdict
		finding      string
	}{
		"BatchNormalization in training mode": {"e03-training-mode-ops", "bn_train.onnx", report.Fail, "training-mode"},
		"Dropout in training mode":            {"e03-training-mode-ops", "dropout_train.onnx", report.Fail, "training-mode"},
		"Dropout that passes through":         {"e03-training-mode-ops", "dropout_eval.onnx", report.Pass, ""},
		"weights out of the range of fp16":    {"r03-fp16-range", "weights_out_of_range.onnx", report.Pass, "fp16-range"},
		"a random operator":                   {"r07-random-ops", "inside_if.onnx", report.Pass, "random-operator"},
		"a default that may be overridden":    {"o01-initializers-as-inputs", "ir4_overridable.onnx", report.Pass, "overridable-initializer"},
	} {
		t.Run(name, func(t *testing.T) {
			out := testkit.NewOutputs(t)
			checks, err := inspect.New(load(t, "testdata/cases/"+c.folder, given(c.file)), "").Run(context.Background(), nil, out)
			if err != nil {
				t.Fatal(err)
			}
			if got := verdicts(checks)["inspect/training-mode"]; got != c.verdict {
				t.Errorf("training mode is %s, want %s", got, c.verdict)
			}
			var found report.Inspection
			out.Document(artifact.InspectReport, &found)
			var kinds []string
			for _, f := range found.Findings {
				kinds = append(kinds, f.Kind)
				if len(f.Nodes) == 0 {
					t.Errorf("finding %s names nothing", f.Kind)
				}
			}
			if c.finding != "" && !strings.Contains(strings.Join(kinds, " "), c.finding) || c.finding == "" && len(kinds) > 0 {
				t.Errorf("findings %v, want %q", kinds, c.finding)
			}
		})
	}
}

func TestTheRangeOfTokensComesFromTheTables(t *testing.T) {
	folder := filepath.Join("testdata", "cases", "r05-token-ids")
	out := testkit.NewOutputs(t)
	if _, err := inspect.New(load(t, folder, given("model.onnx")), "").Run(context.Background(), nil, out); err != nil {
		t.Fatal(err)
	}
	var found report.Inspection
	out.Document(artifact.InspectReport, &found)
	got := map[string]int64{}
	for _, r := range found.Ranges {
		got[r.Input] = r.High
		if !strings.Contains(r.Source, "Gather") {
			t.Errorf("%s: source %q", r.Input, r.Source)
		}
	}
	high := map[string]int64{"input_ids": 9, "token_type_ids": 1}
	if d := cmp.Diff(high, got); d != "" {
		t.Errorf("largest index (-want +got):\n%s", d)
	}
}

func TestWeightsInAnotherFileAreASource(t *testing.T) {
	s := inspect.New(load(t, "testdata/cases/e04-external-data", given("model.onnx")), "")
	var names []string
	for _, path := range s.Sources() {
		names = append(names, filepath.Base(path))
	}
	if d := cmp.Diff([]string{"model.onnx", "model.onnx.data"}, names); d != "" {
		t.Errorf("sources (-want +got):\n%s", d)
	}
	broken := inspect.New(load(t, "testdata/cases/e04-external-data", given("moved/model.onnx")), "")
	if _, err := broken.Run(context.Background(), nil, testkit.NewOutputs(t)); failure.CodeOf(err) != failure.Artifact {
		t.Errorf("a missing data file: %v, want exit 11", err)
	}
}

func TestSettingsHoldNoPath(t *testing.T) {
	text := "model:\n  name: given\n  kind: onnx\n  path: model.onnx\n"
	one := inspect.New(load(t, "testdata/cases/e04-external-data", text), "").Settings()
	two := inspect.New(load(t, "testdata/cases/e04-external-data", text), "").Settings()
	if d := cmp.Diff(one, two); d != "" {
		t.Errorf("settings of two folders differ:\n%s", d)
	}
}
