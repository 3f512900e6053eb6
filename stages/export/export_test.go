package export_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/testkit"
	"github.com/trtship/trtship/report"
	"github.com/trtship/trtship/stages/export"
)

const profile = `
tensorrt:
  profiles:
    - inputs:
        image: {min: [1, 3, 8, 8], opt: [4, 3, 8, 8], max: [8, 3, 8, 8]}
`

const plain = `
model:
  name: plain
  factory: zoo:plain
  inputs:
    - {name: image, dtype: float32, shape: [batch, 3, 8, 8]}
  output_names: [logits]
` + profile

// load writes a configuration beside a copy of the zoo and reads it.
func load(t *testing.T, text string, set ...string) *config.Config {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(filepath.Join("..", "..", "internal", "worker", "testdata", "models"))); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "trtship.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(path, config.Options{Set: set})
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func run(t *testing.T, cfg *config.Config) (map[string]report.Check, *testkit.Outputs) {
	t.Helper()
	out := testkit.NewOutputs(t)
	python := ""
	if cfg.Model.Kind != "onnx" {
		python = testkit.Python(t)
	}
	s := export.New(cfg, python)
	checks, err := s.Run(context.Background(), nil, out)
	if err != nil {
		t.Fatalf("%v\n%s", err, out.LogText())
	}
	known := map[string]bool{}
	for _, d := range s.Spec().Checks {
		known[d.ID] = true
	}
	byID := map[string]report.Check{}
	for _, c := range checks {
		if !known[c.ID] {
			t.Errorf("check %s is not in the Spec", c.ID)
		}
		byID[c.ID] = c
	}
	return byID, out
}

func allPass(t *testing.T, checks map[string]report.Check) {
	t.Helper()
	if len(checks) != 6 {
		t.Errorf("%d checks, want 6", len(checks))
	}
	for _, c := range checks {
		if c.Verdict != report.Pass {
			t.Errorf("%s is %s: got %s, %s", c.ID, c.Verdict, c.Got, c.Detail)
		}
	}
}

func files(t *testing.T, out *testkit.Outputs) map[string][]byte {
	t.Helper()
	if len(out.Published) != 1 {
		t.Fatalf("%d artifacts, want 1", len(out.Published))
	}
	found := map[string][]byte{}
	for _, f := range out.Published[0].Files {
		b, err := os.ReadFile(filepath.Join(out.Published[0].Dir, f.Path))
		if err != nil {
			t.Fatal(err)
		}
		found[f.Path] = b
	}
	return found
}

func open(t *testing.T, out *testkit.Outputs) *onnx.Model {
	t.Helper()
	m, err := onnx.Open(filepath.Join(out.Published[0].Dir, export.ModelFile))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

func exporters(t *testing.T, f func(t *testing.T, set ...string)) {
	t.Helper()
	t.Run("TorchScript", func(t *testing.T) { f(t, "export.dynamo=false") })
	t.Run("torch.export", func(t *testing.T) { f(t, "export.dynamo=true") })
}

func TestTwoExportsInTwoFoldersAreByteIdentical(t *testing.T) {
	exporters(t, func(t *testing.T, set ...string) {
		one := load(t, plain, set...)
		checks, first := run(t, one)
		allPass(t, checks)
		_, second := run(t, load(t, plain, set...))
		a, b := files(t, first), files(t, second)
		if d := cmp.Diff(a, b); d != "" {
			t.Errorf("files differ between two folders:\n%.2000s", d)
		}
		for name, text := range a {
			for _, leak := range []string{one.Dir, "zoo.py", "/tmp", "torch/nn"} {
				if bytes.Contains(text, []byte(leak)) {
					t.Errorf("%s holds %q", name, leak)
				}
			}
		}
		m := open(t, first)
		if got := fmt.Sprint(m.Inputs(), m.Outputs()); got != "[image float32[batch,3,8,8]] [logits float32[batch,5]]" {
			t.Errorf("signature %s", got)
		}
		if d := cmp.Diff([]string{filepath.Join(one.Dir, "helper_weights.py"), filepath.Join(one.Dir, "zoo.py")}, first.Depends); d != "" {
			t.Errorf("dependencies (-want +got):\n%s", d)
		}
	})
}

func TestNamesAreThoseOfTheUsersModules(t *testing.T) {
	_, out := run(t, load(t, plain))
	var nodes, weights []string
	for _, n := range open(t, out).Graph().GetNode() {
		nodes = append(nodes, n.GetName())
	}
	for _, w := range open(t, out).Graph().GetInitializer() {
		weights = append(weights, w.GetName())
	}
	for _, want := range []string{"/conv/Conv", "/head/Gemm"} {
		if !strings.Contains(" "+strings.Join(nodes, " ")+" ", " "+want+" ") {
			t.Errorf("nodes %v lack %s", nodes, want)
		}
	}
	if !strings.Contains(strings.Join(weights, " "), "head.weight") || strings.Contains(strings.Join(weights, " "), "model.") {
		t.Errorf("weights %v", weights)
	}
}

func TestExternalDataLiesBesideTheGraph(t *testing.T) {
	exporters(t, func(t *testing.T, set ...string) {
		checks, out := run(t, load(t, strings.Replace(plain, "factory: zoo:plain", "factory: zoo:plain\n  factory_args: {width: 2048}", 1),
			append(set, "export.external_data=true")...))
		allPass(t, checks)
		found := files(t, out)
		if len(found) != 2 || len(found["model.onnx.data"]) < 2048*3*9*4 {
			t.Errorf("files %v", len(found))
		}
		if got := open(t, out).DataFiles(); !cmp.Equal(got, []string{"model.onnx.data"}) {
			t.Errorf("data files %v", got)
		}
	})
}

const nested = `
model:
  name: nested
  factory: zoo:nested
  inputs:
    - {name: ids, dtype: int64, shape: [batch, seq], range: [0, 9], argument: batch.ids}
    - {name: mask, dtype: float32, shape: [batch, seq], argument: batch.mask}
    - {name: plus, dtype: float32, shape: [batch, 4], argument: pair.0}
    - {name: minus, dtype: float32, shape: [batch, 4], argument: pair.1}
    - {name: bias, dtype: float32, shape: [1], argument: bias, optional: true}
  output_names: [logits, hidden_0, pooled]
tensorrt:
  profiles:
    - inputs:
        ids: {min: [1, 4], opt: [2, 8], max: [8, 16]}
        mask: {min: [1, 4], opt: [2, 8], max: [8, 16]}
        plus: {min: [1, 4], opt: [2, 4], max: [8, 4]}
        minus: {min: [1, 4], opt: [2, 4], max: [8, 4]}
`

func TestNestedInputsAndOutputsExport(t *testing.T) {
	exporters(t, func(t *testing.T, set ...string) {
		checks, out := run(t, load(t, nested, set...))
		allPass(t, checks)
		m := open(t, out)
		var got []string
		for _, v := range append(m.Inputs(), m.Outputs()...) {
			if v.Name != "bias" { // an unused input: one exporter keeps it
				got = append(got, v.String())
			}
		}
		want := []string{
			"ids int64[batch,seq]", "mask float32[batch,seq]", "plus float32[batch,4]", "minus float32[batch,4]",
			"logits float32[batch,seq,3]", "hidden_0 float32[batch,seq,4]", "pooled float32[batch,4]",
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("signature (-want +got):\n%s", d)
		}
	})
}

// of returns the configuration for another factory whose input is [batch, 4].
func of(factory string) string {
	return strings.NewReplacer("zoo:plain", "zoo:"+factory, "name: plain", "name: "+factory, "image", "x", "[batch, 3, 8, 8]", "[batch, 4]",
		"[1, 3, 8, 8]", "[1, 4]", "[4, 3, 8, 8]", "[4, 4]", "[8, 3, 8, 8]", "[8, 4]").Replace(plain)
}

func TestABakedBatchIsCaughtWhereItCanBe(t *testing.T) {
	t.Run("TorchScript exports it, with a note: validation runs it at other sizes", func(t *testing.T) {
		checks, _ := run(t, load(t, of("baked")))
		allPass(t, checks)
		if d := checks["export/exported"].Detail; !strings.Contains(d, "zoo.py:") || !strings.Contains(d, "Python integer") {
			t.Errorf("detail %q does not name the place", d)
		}
	})
	t.Run("torch.export fixes the dimension that a loop runs over", func(t *testing.T) {
		checks, _ := run(t, load(t, of("unrolled"), "export.dynamo=true"))
		c := checks["export/dynamic-dimensions"]
		want := "input x axis 0 is 3 in the graph, config says batch\noutput logits axis 0 is 3 in the graph, and follows batch in forward"
		if c.Verdict != report.Fail || c.Detail != want {
			t.Errorf("check %+v", c)
		}
	})
}

func TestTheGraphIsHeldToTheDeclaration(t *testing.T) {
	unused := strings.Replace(of("unused"), "  output_names", "    - {name: ignored, dtype: float32, shape: [1]}\n  output_names", 1)
	forgotten := strings.Replace(of("forgotten"), "zoo:forgotten", "zoo:forgotten\n  allow_training_mode: [\"*bn*\"]", 1)
	for name, c := range map[string]struct {
		text, id, texts string
		set             []string
	}{
		"an input that forward does not use is missing": {
			unused, "export/input-set", "missing in ONNX: ignored (unused in forward?)|ignored float32[1]|x float32[batch,4]", nil,
		},
		"modules in training mode are named": {forgotten, "export/training-mode", "/drop/Dropout|allowed by model.allow_training_mode: /bn/BatchNormalization", nil},
		"two outputs and one name":           {of("pair"), "export/exported", "returned 2 outputs, model.output_names has 1", nil},
	} {
		t.Run(name, func(t *testing.T) {
			checks, out := run(t, load(t, c.text, c.set...))
			got := checks[c.id]
			if got.Verdict != report.Fail {
				t.Errorf("%s is %q, want fail: %+v\n%s", c.id, got.Verdict, checks, out.LogText())
			}
			for _, text := range strings.Split(c.texts, "|") {
				if !strings.Contains(got.Got+got.Detail, text) {
					t.Errorf("check lacks %q: %s\n%s", text, got.Got, got.Detail)
				}
			}
		})
	}
}

func TestAnOperatorSetThatTheExporterDidNotWriteIsNamed(t *testing.T) {
	cfg := load(t, plain, "export.dynamo=true", "export.opset=25")
	cfg.Export.Opset = 30 // a set to come: the exporter leaves the graph at its own, without an error
	checks, _ := run(t, cfg)
	if c := checks["export/opset"]; c.Verdict != report.Fail || c.Got != "opset 18" {
		t.Errorf("check %+v, want fail at opset 18", c)
	}
}

func TestAnOperatorSetOfTheCommandLineIsNoDefault(t *testing.T) {
	cfg := load(t, plain, "export.dynamo=true")
	checks, _ := run(t, cfg)
	if c := checks["export/opset"]; c.Verdict != report.Pass || c.Want != "opset 18" {
		t.Errorf("by default: %+v, want what the exporter writes", c)
	}
	checks, _ = run(t, load(t, plain, "export.dynamo=true", "export.opset=17"))
	if c := checks["export/opset"]; c.Want != "opset 17" {
		t.Errorf("with --set export.opset=17: %+v", c)
	}
}

func TestAnOptionalInputMayVanish(t *testing.T) {
	text := strings.Replace(of("unused"), "  output_names", "    - {name: ignored, dtype: float32, shape: [1], optional: true}\n  output_names", 1)
	checks, _ := run(t, load(t, text))
	allPass(t, checks)
}

// given is the configuration of a case of testdata/cases.
func given(t *testing.T, folder, file, text string) *config.Config {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(testkit.Root(t), "testdata", "cases", folder))); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "trtship.yaml")
	if err := os.WriteFile(path, []byte(strings.ReplaceAll(text, "FILE", file)), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(path, config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

const bert = `
model:
  name: bertish
  kind: onnx
  path: FILE
  inputs:
    - {name: input_ids, dtype: int64, shape: [batch, seq]}
    - {name: attention_mask, dtype: int64, shape: [batch, seq]}
  output_names: [logits]
tensorrt:
  profiles:
    - inputs:
        input_ids: {min: [1, 4], opt: [2, 8], max: [8, 16]}
        attention_mask: {min: [1, 4], opt: [2, 8], max: [8, 16]}
`

func TestAGivenFileIsComparedByName(t *testing.T) {
	testkit.HoldsCase(t, "e05-input-set-differs")
	three := strings.Replace(bert, "  output_names", "    - {name: token_type_ids, dtype: int64, shape: [1]}\n  output_names", 1)
	for name, c := range map[string]struct {
		text, file, id, want string
		verdict              report.Verdict
	}{
		"an input is missing":              {three, "dropped.onnx", "export/input-set", "missing in ONNX: token_type_ids (unused in forward?)", report.Fail},
		"an input is too many":             {bert, "extra.onnx", "export/input-set", "only in ONNX: onnx::Reshape_2", report.Fail},
		"an output is too many":            {bert, "extra.onnx", "export/output-set", "output 1 is loss, config has no name for it", report.Fail},
		"an output has another name":       {bert, "renamed_output.onnx", "export/output-set", "output 0 is linear_3, config says logits", report.Fail},
		"inputs in another order are fine": {bert, "swapped_order.onnx", "export/input-set", "", report.Pass},
	} {
		t.Run(name, func(t *testing.T) {
			checks, out := run(t, given(t, "e05-input-set-differs", c.file, c.text))
			got := checks[c.id]
			if got.Verdict != c.verdict || !strings.Contains(got.Detail, c.want) {
				t.Errorf("%s is %s, want %s with %q:\n%s", c.id, got.Verdict, c.verdict, c.want, got.Detail)
			}
			original, err := os.ReadFile(filepath.Join(filepath.Join(testkit.Root(t), "testdata", "cases", "e05-input-set-differs"), c.file))
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(files(t, out)["model.onnx"], original) {
				t.Error("the file was not copied byte for byte")
			}
		})
	}
}

func TestDataFilesTravelWithAGivenFile(t *testing.T) {
	testkit.HoldsCase(t, "e04-external-data")
	text := "model:\n  name: ext\n  kind: onnx\n  path: FILE\n"
	cfg := given(t, "e04-external-data", "model.onnx", text)
	_, out := run(t, cfg)
	if got := len(files(t, out)); got != 2 {
		t.Errorf("%d files, want 2", got)
	}
	if got := export.New(cfg, "").Sources(); len(got) != 2 || filepath.Base(got[1]) != "model.onnx.data" {
		t.Errorf("sources %v", got)
	}
	for _, bad := range []string{"moved/model.onnx", "escape_abs.onnx", "escape_dotdot.onnx", "escape_inner_dotdot.onnx", "past_end.onnx"} {
		s := export.New(given(t, "e04-external-data", bad, text), "")
		_, err := s.Run(context.Background(), nil, testkit.NewOutputs(t))
		if code := failure.CodeOf(err); code != failure.Artifact && code != failure.Model {
			t.Errorf("%s: error %v (code %d), want 4 or 11", bad, err, code)
		}
	}
}

func TestACrashIsABrokenCheck(t *testing.T) {
	checks, _ := run(t, load(t, of("dies")))
	c := checks["export/exported"]
	if c.Verdict != report.Broken || !strings.Contains(c.Got, "SIGSEGV") {
		t.Errorf("check %+v, want broken by SIGSEGV", c)
	}
}

func TestTheKeyHoldsWhatDecidesTheGraphAndNoPath(t *testing.T) {
	text := func(set ...string) string {
		cfg := load(t, plain, set...)
		s := export.New(cfg, testkit.Python(t))
		b, err := json.Marshal(s.Settings())
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(b), cfg.Dir) {
			t.Errorf("settings hold the folder: %s", b)
		}
		tools, err := s.Tools(context.Background())
		if err != nil || tools["torch"] == "" || tools["python sources"] == "" {
			t.Errorf("tools %v, %v", tools, err)
		}
		return string(b)
	}
	base := text()
	if base != text() {
		t.Error("settings of two folders differ")
	}
	for _, set := range []string{"export.opset=18", "export.dynamo=true", "export.external_data=true", "export.constant_folding=false", "model.output_names=[y]"} {
		if text(set) == base {
			t.Errorf("%s does not change the settings", set)
		}
	}
	if got := text("benchmark.iters=7"); got != base {
		t.Error("a setting of another stage changes the key")
	}
}

func TestAWrongTypeOrRankIsNamed(t *testing.T) {
	text := strings.Replace(bert, "{name: input_ids, dtype: int64, shape: [batch, seq]}", "{name: input_ids, dtype: int32, shape: [batch, seq, 1]}", 1)
	text = strings.Replace(text, "input_ids: {min: [1, 4], opt: [2, 8], max: [8, 16]}", "input_ids: {min: [1, 4, 1], opt: [2, 8, 1], max: [8, 16, 1]}", 1)
	checks, _ := run(t, given(t, "e05-input-set-differs", "swapped_order.onnx", text))
	c := checks["export/input-set"]
	for _, want := range []string{"input_ids: is int64 in ONNX, config says int32", "input_ids: has 2 dimensions in ONNX, config says 3"} {
		if c.Verdict != report.Fail || !strings.Contains(c.Detail, want) {
			t.Errorf("check %s lacks %q:\n%s", c.Verdict, want, c.Detail)
		}
	}
}
