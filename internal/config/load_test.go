package config

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/trtship/trtship/internal/failure"
)

const small = `model:
  name: tiny
  factory: pkg.models:build
  inputs:
    - {name: x, shape: [batch, 16]}
tensorrt:
  profiles:
    - inputs:
        x: {min: [1, 16], opt: [4, 16], max: [8, 16]}
`

func parse(t *testing.T, text string, set ...string) *Config {
	t.Helper()
	c, err := Parse([]byte(text), "c.yaml", Options{Set: set})
	if err != nil {
		t.Fatalf("parse: %v\n%+v", err, problemsOf(err))
	}
	return c
}

func problemsOf(err error) []string {
	var out []string
	if p, ok := errors.AsType[Problems](err); ok {
		for _, one := range p {
			out = append(out, one.String())
		}
	}
	return out
}

// expectProblems demands exactly these problems, each as "where: text" with
// the text a substring.
func expectProblems(t *testing.T, err error, want ...string) {
	t.Helper()
	if failure.CodeOf(err) != failure.Usage {
		t.Errorf("exit code %d, want 2: %v", failure.CodeOf(err), err)
	}
	got := problemsOf(err)
	if len(got) != len(want) {
		t.Fatalf("got %d problems, want %d:\n%s", len(got), len(want), strings.Join(got, "\n"))
	}
	for i := range want {
		if !strings.Contains(got[i], want[i]) {
			t.Errorf("problem %d:\n got %s\nwant %s", i, got[i], want[i])
		}
	}
}

func TestSeedConfigurationsLoad(t *testing.T) {
	files, err := filepath.Glob("testdata/seed-*.yaml")
	if err != nil || len(files) != 3 {
		t.Fatalf("found %d seed configurations: %v", len(files), err)
	}
	for _, f := range files {
		c, err := Load(f, Options{})
		if err != nil {
			t.Errorf("%s: %v", f, problemsOf(err))
			continue
		}
		if !filepath.IsAbs(c.Dir) || c.Path != f {
			t.Errorf("%s: dir %q path %q", f, c.Dir, c.Path)
		}
	}
	c, err := Load("testdata/seed-keys.yaml", Options{})
	if err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(c.Dir, "data", "calibration"); c.Calibration.Path != want {
		t.Errorf("calibration.path is %s, want %s", c.Calibration.Path, want)
	}
	if got := c.Tolerance("int8", "logits"); *got.CosineMin != 0.97 || got.Atol != 0.2 {
		t.Errorf("int8 tolerance %+v", got)
	}
}

func TestDefaultsAreFilledIn(t *testing.T) {
	c := parse(t, small)
	if c.Model.Kind != "module" || c.Model.Inputs[0].DType != "float32" || c.Export.Opset != 17 || !c.Validation.OffProfile ||
		c.Triton.BindAddress != "127.0.0.1" || c.Calibration.Method != "entropy" {
		t.Errorf("defaults are missing: %+v", c)
	}
	if diff := cmp.Diff([]string{"http", "grpc"}, c.Triton.Protocols); diff != "" {
		t.Error(diff)
	}
	if c.Validation.Task != nil || c.Triton.DynamicBatching != nil {
		t.Error("absent sections are not absent")
	}
	c = parse(t, small, "triton.dynamic_batching.queue_policy.max_queue_size=4")
	if q := c.Triton.DynamicBatching.Queue; q.TimeoutAction != "reject" || q.MaxSize != 4 {
		t.Errorf("queue policy %+v", q)
	}
}

func TestAllMistakesAreListedWithTheirPlaces(t *testing.T) {
	_, err := Parse([]byte(`model:
  name: bad name
  factroy: pkg:build
  inputs:
    - name: x
      dtype: float23
      shape: [batch, 0]
tensorrt:
  precisions: [fp32, fp61]
  workspace_mb: lots
tensorrt:
  profiles: []
`), "c.yaml", Options{})
	expectProblems(t, err,
		`c.yaml:2:9: model.name: "bad name" is no name`,
		`c.yaml:3:3: model.factroy: unknown key; did you mean factory?`,
		`c.yaml:6:14: model.inputs.0.dtype: "float23" is not one of`,
		`c.yaml:7:22: model.inputs.0.shape.1: size 0 is below 1`,
		`c.yaml:9:22: tensorrt.precisions.1: "fp61" is not one of fp32, fp16, bf16, int8; did you mean fp16?`,
		`c.yaml:10:17: tensorrt.workspace_mb: want an integer, got text "lots"`,
		`c.yaml:11:1: tensorrt: given twice; first in line 8`,
	)
	e, _ := errors.AsType[*failure.Error](err)
	if len(e.Details) != 7 || !strings.Contains(e.Message, "7 mistakes") {
		t.Errorf("error: %q with %d details", e.Message, len(e.Details))
	}
}

func TestOneMistakeIsTheError(t *testing.T) {
	_, err := Parse([]byte(strings.Replace(small, "[1, 16]", "[1, 61]", 1)), "c.yaml", Options{})
	if want := "c.yaml:9:18: tensorrt.profiles.0.inputs.x.min: dimension 1 is 61, but x is fixed to 16 there"; err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

func TestFilesThatAreNoConfiguration(t *testing.T) {
	for name, tc := range map[string]struct{ text, want string }{
		"empty":               {"", "the file is empty"},
		"only a comment":      {"# nothing\n", "the file is empty"},
		"text":                {"hello", `want keys such as model and tensorrt, got text "hello"`},
		"a list":              {"- model", "got a list"},
		"not YAML":            {"model:\n  name: [a\n", "c.yaml:"},
		"a tab":               {"model:\n\tname: a\n", "not YAML"},
		"two documents":       {small + "---\nmodel: {}\n", "a second document starts here"},
		"broken second":       {small + "---\n[a\n", "not YAML"},
		"a merge key":         {"x: &a {name: b}\nmodel:\n  <<: *a\n", "merge keys"},
		"a key that is a map": {"? {a: b}\n: c\n", "a key must be plain text"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse([]byte(tc.text), "c.yaml", Options{})
			if got := strings.Join(problemsOf(err), "\n"); !strings.Contains(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestLoadSaysWhatIsWrongWithTheFile(t *testing.T) {
	dir := t.TempDir()
	big := filepath.Join(dir, "big.yaml")
	if err := os.WriteFile(big, make([]byte, maxFileBytes+1), 0o600); err != nil {
		t.Fatal(err)
	}
	pipe := filepath.Join(dir, "pipe.yaml") // opening it would wait for a writer
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct{ path, want string }{
		"absent": {filepath.Join(dir, "none.yaml"), "no configuration at"},
		"folder": {dir, "is a folder"},
		"huge":   {big, "has at most"},
		"pipe":   {pipe, "is no regular file"},
		"device": {"/dev/zero", "is no regular file"},
		"none":   {"", "is empty"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Load(tc.path, Options{})
			if err == nil || !strings.Contains(err.Error(), tc.want) || failure.CodeOf(err) != failure.Usage {
				t.Errorf("got %v (code %d)", err, failure.CodeOf(err))
			}
		})
	}
}

func TestAliasesAreReadAndBounded(t *testing.T) {
	c := parse(t, strings.Replace(small, "{min: [1, 16], opt: [4, 16], max: [8, 16]}", "{min: &s [4, 16], opt: *s, max: *s}", 1))
	if diff := cmp.Diff([]int64{4, 16}, c.TensorRT.Profiles[0].Inputs["x"].Max); diff != "" {
		t.Error(diff)
	}
	var b strings.Builder
	b.WriteString("model:\n  factory_args:\n    a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n")
	for i := 1; i < 12; i++ {
		p := string(rune('a' + i - 1))
		_ = p
		b.WriteString("    a" + itoa(i) + ": &a" + itoa(i) + " [" + strings.TrimSuffix(strings.Repeat("*a"+itoa(i-1)+",", 10), ",") + "]\n")
	}
	_, err := Parse([]byte(b.String()), "c.yaml", Options{})
	if got := strings.Join(problemsOf(err), "\n"); !strings.Contains(got, "expands to more than") {
		t.Errorf("got %q", got)
	}
	deep := "model: {factory_args: {a: " + strings.Repeat("[", 200) + strings.Repeat("]", 200) + "}}"
	_, err = Parse([]byte(deep), "c.yaml", Options{})
	if got := strings.Join(problemsOf(err), "\n"); !strings.Contains(got, "levels") {
		t.Errorf("got %q", got)
	}
}

func itoa(i int) string { return string([]rune("0123456789ab")[i]) }

func TestWrongTypes(t *testing.T) {
	for name, tc := range map[string]struct{ set, want string }{
		"text for a boolean":        {"export.dynamo=yes", `want true or false, got text "yes"`},
		"a number for a boolean":    {"export.dynamo=1", "want true or false, got 1"},
		"a float for an integer":    {"export.opset=17.5", "want an integer, got 17.5"},
		"an overflowing integer":    {"validation.seed=99999999999999999999", "want an integer"},
		"NaN":                       {"benchmark.margin=.nan", "want a finite number"},
		"infinity":                  {"validation.tolerances.fp32.atol=.inf", "want a finite number"},
		"a list for text":           {"model.name=[a]", "want text, got a list"},
		"a boolean for text":        {"model.name=true", "want text, got true; put it in quotes"},
		"text for a list":           {"model.output_names=y", `want a list, got text "y"`},
		"a list for a map":          {"model.factory_args=[a]", "want keys with values, got a list"},
		"text for a section":        {"export=x", "want a section with keys"},
		"nothing for text":          {"model.name=", "model.name"},
		"null for text":             {"model.name=null", "is empty; give a value or remove the key"},
		"below the bound":           {"export.opset=3", "3 is not between 9 and 25"},
		"above the bound":           {"tensorrt.optimization_level=6", "6 is not between 0 and 5"},
		"an enum":                   {"target=tensort", `"tensort" is not one of tensorrt, onnxruntime; did you mean tensorrt?`},
		"an enum listed twice":      {"tensorrt.precisions=[fp32, fp32]", "fp32 is listed twice"},
		"a dimension with a dash":   {"model.inputs.0.shape=[my-batch, 16]", `"my-batch" is no name for a dimension`},
		"a dimension that is a map": {"model.inputs.0.shape=[{a: b}, 16]", "want an integer or a name"},
		"a dimension that is true":  {"model.inputs.0.shape=[true, 16]", "want an integer or a name, got true"},
		"a negative dimension":      {"model.inputs.0.shape=[-1, 16]", "size -1 is below 1"},
		"an unknown precision":      {"validation.tolerances.fp64.atol=1", "unknown key; did you mean fp32?"},
		"a range of text":           {"model.inputs.0.range=[a, b]", "want a number"},
		"an index too far":          {"tensorrt.profiles.7.inputs.x.min=[1, 16]", "want an index from 0 to 1"},
		"a key below a value":       {"export.opset.x=1", "export.opset is a single value"},
		"no value":                  {"export.opset", "want key=value"},
		"a value that is not YAML":  {"export.opset=[", "value is not YAML"},
		"a free NaN":                {"model.factory_args.a=.nan", "want a finite number, text"},
		"a free timestamp":          {"model.factory_args.a=2001-01-01", "want a finite number, text"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse([]byte(small), "c.yaml", Options{Set: []string{tc.set}})
			got := strings.Join(problemsOf(err), "\n")
			if !strings.Contains(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
			if !strings.HasPrefix(got, "--set ") {
				t.Errorf("the flag is not named: %s", got)
			}
		})
	}
}

func TestTextIsTakenBySpelling(t *testing.T) {
	c := parse(t, small, "calibration.tensorrt_version=10.10", "tensorrt.device=0", "benchmark.cuda_graph=on")
	if c.Calibration.TensorRTVersion != "10.10" || c.TensorRT.Device != "0" || c.Benchmark.CUDAGraph != "on" {
		t.Errorf("got %q %q %q", c.Calibration.TensorRTVersion, c.TensorRT.Device, c.Benchmark.CUDAGraph)
	}
}

func TestPrecedence(t *testing.T) {
	env := []string{"TRTSHIP__EXPORT__OPSET=18", "TRTSHIP__TENSORRT__PRECISIONS=[fp16]", "TRTSHIP_PYTHON=x", "HOME=/"}
	c, err := Parse([]byte(small+"export: {opset: 16}\n"), "c.yaml", Options{Env: env})
	if err != nil || c.Export.Opset != 18 || !slices.Equal(c.TensorRT.Precisions, []string{"fp16"}) {
		t.Fatalf("environment over file: %v %v", err, c)
	}
	c, err = Parse([]byte(small), "c.yaml", Options{Env: env, Set: []string{"export.opset=19", "export.opset=20"}})
	if err != nil || c.Export.Opset != 20 {
		t.Errorf("the last --set does not win: %v", err)
	}
	_, err = Parse([]byte(small), "c.yaml", Options{Env: []string{"TRTSHIP__EXPORT__OPSTE=18"}})
	expectProblems(t, err, "TRTSHIP__EXPORT__OPSTE: export.opste: unknown key; did you mean opset?")
}

func TestOverridesReachEverything(t *testing.T) {
	upper := strings.NewReplacer("name: x,", "name: Image,", "        x:", "        Image:").Replace(small)
	c, err := Parse([]byte(upper), "c.yaml", Options{
		Env: []string{"TRTSHIP__TENSORRT__PROFILES__0__INPUTS__IMAGE__MAX=[16, 16]"},
		Set: []string{
			`validation.outputs."a.b".atol=0.5`, "model.factory_args.width=8", "model.factory_args.deep.er=[1, two]",
			"tensorrt.profiles.1.inputs.Image={min: [1, 16], opt: [1, 16], max: [1, 16]}", "model.output_names.0=a.b",
			"gate.budgets.0.metric=nodes", "gate.budgets.0.max=10",
		},
	})
	if err != nil {
		t.Fatal(problemsOf(err), err)
	}
	if got := c.TensorRT.Profiles[0].Inputs["Image"].Max[0]; got != 16 {
		t.Errorf("max is %d", got)
	}
	if len(c.TensorRT.Profiles) != 2 || *c.Validation.Outputs["a.b"].Atol != 0.5 || *c.Gate.Budgets[0].Max != 10 {
		t.Errorf("overrides are lost: %+v", c)
	}
	want := map[string]any{"width": 8, "deep": map[string]any{"er": []any{1, "two"}}}
	if diff := cmp.Diff(want, c.Model.FactoryArgs); diff != "" {
		t.Error(diff)
	}
}

func TestOverrideOfAnEmptySection(t *testing.T) {
	c := parse(t, small+"export:\n", "export.opset=18")
	if c.Export.Opset != 18 {
		t.Errorf("opset %d", c.Export.Opset)
	}
}

func TestWhereNamesTheNearestLine(t *testing.T) {
	c := parse(t, small)
	for path, want := range map[string]string{
		"model.name":                          "c.yaml:2",
		"tensorrt.profiles.0.inputs.x.max":    "c.yaml:9",
		"tensorrt.precisions":                 "c.yaml:6",
		"tensorrt.profiles.0.inputs.x.max.17": "c.yaml:9",
		"export.opset":                        "c.yaml",
	} {
		if got := c.Where(path); got != want {
			t.Errorf("%s is at %s, want %s", path, got, want)
		}
	}
}

func TestNearest(t *testing.T) {
	for got, want := range map[string]string{"factroy": "factory", "paht": "path", "zzzzzz": ""} {
		if n := nearest(got, []string{"factory", "path", "kind"}); n != want {
			t.Errorf("nearest(%s) = %q, want %q", got, n, want)
		}
	}
	_, err := Parse([]byte(small+"opset: 18\n"), "c.yaml", Options{})
	expectProblems(t, err, "opset: unknown key; it belongs to export.opset")
}

func FuzzParse(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.yaml")
	for _, name := range files {
		if b, err := os.ReadFile(name); err == nil {
			f.Add(b, "export.opset=18")
		}
	}
	f.Add([]byte("a: &a [*a]"), "tensorrt.profiles.0.inputs.x.min=[1]")
	f.Add([]byte("model: &m {inputs: *m}"), "=")
	f.Fuzz(func(t *testing.T, data []byte, set string) {
		c, err := Parse(data, "c.yaml", Options{Set: []string{set}})
		if err != nil {
			if failure.CodeOf(err) != failure.Usage {
				t.Fatalf("code %d: %v", failure.CodeOf(err), err)
			}
			return
		}
		c.Points()
		b, err := c.Snapshot("")
		if err != nil {
			t.Fatal(err)
		}
		again, err := Parse(b, "c.yaml", Options{})
		if err != nil {
			t.Fatalf("a snapshot does not load: %v\n%s", problemsOf(err), b)
		}
		if b2, _ := again.Snapshot(""); string(b2) != string(b) {
			t.Fatalf("snapshots differ:\n%s\n%s", b, b2)
		}
	})
}

func TestWhatIsGivenAndWhere(t *testing.T) {
	c, err := Parse([]byte(small), "c.yaml", Options{Set: []string{"export.opset=17"}, Env: []string{"TRTSHIP__EXPORT__DYNAMO=true"}})
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"model.name": "c.yaml:2", "export.opset": "--set export.opset", "export.dynamo": "TRTSHIP__EXPORT__DYNAMO", "benchmark.iters": "",
	} {
		if c.Given(path) != (want != "") {
			t.Errorf("%s: given %t", path, c.Given(path))
		}
		if want != "" && c.Where(path) != want {
			t.Errorf("%s is at %s, want %s", path, c.Where(path), want)
		}
	}
	// A kind onnx whose inputs come from the file says where a contradiction was set.
	c = parse(t, "model: {name: m, kind: onnx, path: m.onnx}\n", "benchmark.batch_sizes=[3]")
	_, err = c.WithInputs([]Input{{Name: "x", DType: "float32", Shape: []Dim{{Size: 4}}}})
	if err == nil || !strings.Contains(err.Error(), "--set benchmark.batch_sizes: ") {
		t.Errorf("got %v", err)
	}
}

func TestAPathOfAnInputIsAFileOrAFolder(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, "w.pt"), 0o600); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "c.yaml")
	text := strings.Replace(small, "  factory", "  kind: checkpoint\n  path: w.pt\n  factory", 1) + "validation:\n  inputs: [/dev/zero]\ntriton:\n  labels: {y: /dev/tty}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Load(file, Options{Set: []string{"calibration.path=w.pt"}})
	got := strings.Join(problemsOf(err), "\n")
	for _, want := range []string{"c.yaml:4: model.path: ", "is no regular file but a named pipe", "validation.inputs.0: ", "triton.labels.y: ", "--set calibration.path: calibration.path: "} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}
