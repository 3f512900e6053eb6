package packaging

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/engine"
	"github.com/trtship/trtship/internal/engine/enginetest"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
	"github.com/trtship/trtship/internal/stage"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/internal/testkit"
	"github.com/trtship/trtship/internal/triton"
	"github.com/trtship/trtship/internal/triton/pbtxt"
	"github.com/trtship/trtship/internal/triton/server"
	"github.com/trtship/trtship/internal/triton/tritonpb"
	"github.com/trtship/trtship/internal/triton/tritontest"
	"github.com/trtship/trtship/report"
)

var shapes = filepath.Join("..", "..", "testdata", "cases", "o13-shared-or-missing-dims")

func parse(t *testing.T, yaml string) *config.Config {
	t.Helper()
	cfg, err := config.Parse([]byte(yaml), "trtship.yaml", config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

const base = `
model: {name: small, kind: onnx, path: model.onnx, inputs: [{name: x, dtype: float32, shape: [batch, 4]}]}
target: onnxruntime
tensorrt: {profiles: [{inputs: {x: {min: [1, 4], opt: [2, 4], max: [4, 4]}}}]}
`

// pack runs the stage on a model file.
func pack(t *testing.T, yaml, model string, more ...artifact.Artifact) (*testkit.Outputs, []report.Check, error) {
	t.Helper()
	dir := t.TempDir()
	b, err := os.ReadFile(model)
	if err != nil {
		t.Fatal(err)
	}
	tritontest.Write(t, dir, "model.onnx", string(b))
	out := testkit.NewOutputs(t)
	in := append(tritontest.Inputs{tritontest.Artifact(artifact.OptimizedONNX, "", dir)}, more...)
	checks, err := New(parse(t, yaml)).Run(t.Context(), in, out)
	return out, checks, err
}

func written(t *testing.T, out *testkit.Outputs) (*tritonpb.ModelConfig, string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(out.Published[0].Dir, "small", "config.pbtxt"))
	if err != nil {
		t.Fatal(err)
	}
	d := pbtxt.Parse(string(b))
	if len(d.Problems) > 0 {
		t.Fatalf("%v\n%s", d.Problems, b)
	}
	return d.Config, string(b)
}

func relu(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "model.onnx")
	value := func(n string) []*onnxpb.ValueInfoProto {
		return []*onnxpb.ValueInfoProto{tritontest.Value(n, onnxpb.TensorProto_FLOAT, "batch", 4)}
	}
	tritontest.WriteModel(t, path, value("x"), value("y"), tritontest.Node("Relu", []string{"x"}, []string{"y"}, nil))
	return path
}

func TestShapesThatAreOdd(t *testing.T) {
	for file, c := range map[string]struct {
		batch  int32
		dims   string
		inputs []string
	}{
		"unnamed_dim":              {4, "[4]", []string{"x"}},
		"dim_value_0":              {4, "[4]", []string{"x"}},
		"dim_value_minus1":         {4, "[4]", []string{"x"}},
		"shared_symbol":            {4, "[4]", []string{"a", "b"}},
		"batch_not_first":          {0, "[-1 -1 4]", []string{"x"}},
		"symbol_looks_like_number": {4, "[-1]", []string{"x"}},
		"symbol_with_spaces":       {4, "[4]", []string{"x"}},
		"names_needing_escape":     {4, "[4]", []string{"in/put:0"}},
	} {
		t.Run(file, func(t *testing.T) {
			out, checks, err := pack(t, base, filepath.Join(shapes, file+".onnx"))
			if err != nil {
				t.Fatal(err)
			}
			if v := report.Of(checks); v != report.Pass {
				t.Errorf("%+v", checks)
			}
			cfg, _ := written(t, out)
			var names []string
			for _, in := range cfg.GetInput() {
				names = append(names, in.GetName())
				if got := strings.ReplaceAll(strings.Trim(toText(in.GetDims()), " "), ",", " "); got != c.dims {
					t.Errorf("dims %s, want %s", got, c.dims)
				}
			}
			if cfg.GetMaxBatchSize() != c.batch || cmp.Diff(c.inputs, names) != "" {
				t.Errorf("batch %d, inputs %v", cfg.GetMaxBatchSize(), names)
			}
			if len(cfg.GetInstanceGroup()) != 1 || cfg.GetInstanceGroup()[0].GetCount() != 1 || cfg.GetInstanceGroup()[0].GetKind() != tritonpb.ModelInstanceGroup_KIND_CPU {
				t.Errorf("kind and count are always written: %v", cfg.GetInstanceGroup())
			}
			if c.batch == 0 && !strings.Contains(checks[0].Detail, "dimension 1, not the first") {
				t.Errorf("it must say why there is no batching: %q", checks[0].Detail)
			}
		})
	}
	t.Run("no_rank", func(t *testing.T) {
		_, _, err := pack(t, base, filepath.Join(shapes, "no_rank.onnx"))
		if failure.CodeOf(err) != failure.Export || !strings.Contains(err.Error(), "x has no shape") {
			t.Errorf("got %v", err)
		}
	})
}

func toText(v any) string { b, _ := json.Marshal(v); return string(b) }

func TestNamesThatNeedQuotesAndAWarmUpSampleLoadInARealServer(t *testing.T) {
	reference := tritontest.WriteReference(t, 4, func(x []float32, batch int) []tensor.Named {
		return []tensor.Named{tritontest.Tensor("y", []int64{int64(batch), 4}, x...)}
	})
	odd, _, err := pack(t, strings.Replace(base, "name: small", "name: odd", 1), filepath.Join(shapes, "names_needing_escape.onnx"))
	if err != nil {
		t.Fatal(err)
	}
	warm, checks, err := pack(t, base+"triton: {warmup: true, dynamic_batching: {preferred_batch_size: [2, 4]}, response_cache: true}", relu(t), tritontest.Artifact(artifact.Reference, "", reference))
	if err != nil {
		t.Fatal(err)
	}
	if report.Of(checks) != report.Pass {
		t.Errorf("%+v", checks)
	}
	s := tritontest.Start(t, server.Options{
		Repositories: []string{odd.Published[0].Dir, warm.Published[0].Dir}, Wait: []server.Want{{Model: "odd", Version: "1"}, {Model: "small", Version: "1"}}, CacheBytes: 1 << 20, Verbose: true,
	})
	b, err := os.ReadFile(s.Log)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(b), "is running warmup sample 'sample'") {
		t.Error("the server ran no warm-up sample")
	}
}

func TestEveryFieldIsWritten(t *testing.T) {
	labels := t.TempDir()
	tritontest.Write(t, labels, "names.txt", "a\nb\nc\nd\n")
	yaml := base + `
triton:
  model_name: small
  max_batch_size: 3
  instance_groups: [{kind: cpu, count: 2}]
  dynamic_batching:
    preferred_batch_size: [2, 3]
    max_queue_delay_us: 100
    priority_levels: 2
    default_priority_level: 1
    queue_policy: {timeout_action: delay, default_timeout_us: 5, allow_timeout_override: true, max_queue_size: 9}
  version_policy: {specific: {versions: [2]}}
  version: 2
  parameters: {b: "2", a: "x\"y"}
  labels: {y: ` + filepath.Join(labels, "names.txt") + `}
  response_cache: true
  config_append: |
    metric_tags { key: "team" value: "vision" }
`
	out, checks, err := pack(t, yaml, relu(t))
	if err != nil {
		t.Fatal(err)
	}
	if report.Of(checks) != report.Pass {
		t.Errorf("%+v", checks)
	}
	_, text := written(t, out)
	want := `# Written by trtship from the model's own tensors.
name: "small"
platform: "onnxruntime_onnx"
backend: "onnxruntime"
version_policy {
  specific {
    versions: [ 2 ]
  }
}
max_batch_size: 3
input [
  {
    name: "x"
    data_type: TYPE_FP32
    dims: [ 4 ]
  }
]
output [
  {
    name: "y"
    data_type: TYPE_FP32
    dims: [ 4 ]
    label_filename: "names.txt"
  }
]
dynamic_batching {
  preferred_batch_size: [ 2, 3 ]
  max_queue_delay_microseconds: 100
  priority_levels: 2
  default_priority_level: 1
  default_queue_policy {
    timeout_action: DELAY
    default_timeout_microseconds: 5
    allow_timeout_override: true
    max_queue_size: 9
  }
}
instance_group [
  {
    kind: KIND_CPU
    count: 2
  }
]
default_model_filename: "model.onnx"
parameters {
  key: "a"
  value {
    string_value: "x\"y"
  }
}
parameters {
  key: "b"
  value {
    string_value: "2"
  }
}
response_cache {
  enable: true
}

# From triton.config_append.
metric_tags { key: "team" value: "vision" }
`
	if d := cmp.Diff(want, text); d != "" {
		t.Errorf("-want +got\n%s", d)
	}
	for _, f := range []string{"small/2/model.onnx", "small/names.txt", "small/trtship-manifest.json"} {
		if _, err := os.Stat(filepath.Join(out.Published[0].Dir, f)); err != nil {
			t.Error(err)
		}
	}
	if bad, err := triton.Verify(t.Context(), filepath.Join(out.Published[0].Dir, "small")); err != nil || len(bad.Problems) > 0 {
		t.Errorf("%v %v", bad, err)
	}
	again, _, err := pack(t, yaml, relu(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, second := written(t, again); second != text {
		t.Error("the same inputs gave other bytes")
	}
}

func TestWhatCannotBePackaged(t *testing.T) {
	for name, c := range map[string]struct {
		triton string
		code   failure.Code
		want   []string
	}{
		"a batch above the model's limit": {"{max_batch_size: 9}", failure.Usage, []string{"max_batch_size: 9", "4"}},
		"GPUs for instances on the CPU":   {"{instance_groups: [{kind: cpu, gpus: [0]}]}", failure.Usage, []string{"GPUs [0]"}},
		"labels of no output":             {"{labels: {z: labels.txt}}", failure.Usage, []string{`the output "z"`}},
		"a precision that is not there":   {"{precision: fp16}", failure.Usage, []string{"fp16"}},
		"a warm-up without a sample":      {"{warmup: true}", failure.Bug, []string{"triton.warmup needs a real sample"}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, err := config.Parse([]byte(base+"triton: "+c.triton), "trtship.yaml", config.Options{})
			if err == nil {
				dir := filepath.Dir(relu(t))
				_, err = New(cfg).Run(t.Context(), tritontest.Inputs{tritontest.Artifact(artifact.OptimizedONNX, "", dir)}, testkit.NewOutputs(t))
			}
			if failure.CodeOf(err) != c.code {
				t.Fatalf("got code %d: %v", failure.CodeOf(err), err)
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%v\ndoes not name %s", err, w)
				}
			}
		})
	}
}

func TestAppendedTextIsJudged(t *testing.T) {
	_, checks, err := pack(t, base+"triton: {config_append: 'batching_option { }'}", relu(t))
	if err != nil {
		t.Fatal(err)
	}
	if checks[1].ID != checkReadBack || checks[1].Verdict != report.Fail || !strings.Contains(checks[1].Detail, "batching_option") {
		t.Errorf("%+v", checks[1])
	}
	_, checks, err = pack(t, base+"triton: {config_append: 'model_warmup { name: \"w\" inputs { key: \"q\" value { data_type: TYPE_FP32 dims: [4] zero_data: true } } }'}", relu(t))
	if err != nil {
		t.Fatal(err)
	}
	if checks[2].ID != checkLint || checks[2].Verdict != report.Fail || !strings.Contains(checks[2].Detail, "warmup/input") {
		t.Errorf("%+v", checks[2])
	}
}

func TestAPlanIsPackagedFromItsDescription(t *testing.T) {
	dir := t.TempDir()
	enginetest.WriteEngine(t, dir, func(d *engine.Description) {
		d.TensorRT, d.Precision, d.Tensors[1].DType = "10.6.0.26", "fp16", "float16"
		d.Profiles[0]["x"] = engine.Range{Min: []int64{1, 4}, Opt: []int64{2, 4}, Max: []int64{8, 4}}
	})
	yaml := strings.Replace(strings.Replace(base, "target: onnxruntime", "target: tensorrt", 1), "{profiles", "{precisions: [fp32, fp16], profiles", 1) + "triton: {cuda_graphs: true, instance_groups: [{kind: gpu, count: 2, gpus: [0, 1]}]}"
	out := testkit.NewOutputs(t)
	checks, err := New(parse(t, yaml)).Run(t.Context(), tritontest.Inputs{tritontest.Artifact(artifact.Engine, "fp16", dir)}, out)
	if err != nil {
		t.Fatal(err)
	}
	if report.Of(checks) != report.Pass {
		t.Errorf("%+v", checks)
	}
	cfg, _ := written(t, out)
	if cfg.GetPlatform() != "tensorrt_plan" || cfg.GetMaxBatchSize() != 8 || cfg.GetOutput()[0].GetDataType() != tritonpb.DataType_TYPE_FP16 ||
		!cfg.GetOptimization().GetCuda().GetGraphs() || cfg.GetInstanceGroup()[0].GetKind() != tritonpb.ModelInstanceGroup_KIND_GPU || len(cfg.GetInstanceGroup()[0].GetGpus()) != 2 {
		t.Errorf("%v", cfg)
	}
	m, err := triton.ReadManifest(filepath.Join(out.Published[0].Dir, "small"))
	if err != nil || m.Versions["1"].TensorRT != "10.6.0.26" || m.Versions["1"].Precision != "fp16" {
		t.Errorf("%+v %v", m, err)
	}
}

func TestAnEngineThatIsNotThereIsSaidToBeNone(t *testing.T) {
	yaml := strings.Replace(base, "target: onnxruntime", "target: tensorrt", 1)
	fp32 := tritontest.Artifact(artifact.Engine, "fp32", t.TempDir())
	for name, c := range map[string]struct {
		yaml, want, hint string
		in               tritontest.Inputs
	}{
		"none at all":        {yaml, "build made none", "build the fp32 engine first", nil},
		"one that failed":    {strings.Replace(yaml, "{profiles", "{precisions: [fp32, fp16], profiles", 1), "no fp16 engine to package; there is fp32", "build made no fp16 engine", tritontest.Inputs{fp32}},
		"one of another set": {yaml, "no fp32 engine to package; there is int8", "set triton.precision to int8", tritontest.Inputs{tritontest.Artifact(artifact.Engine, "int8", t.TempDir())}},
	} {
		_, err := New(parse(t, c.yaml)).Run(t.Context(), c.in, testkit.NewOutputs(t))
		e, ok := errors.AsType[*failure.Error](err)
		if !ok || e.Code != failure.Artifact || !strings.Contains(e.Message, c.want) || !strings.Contains(e.Hint, c.hint) {
			t.Errorf("%s: got %v, %+v", name, err, e)
		}
	}
}

func TestAPlanOfAnotherModelFails(t *testing.T) {
	yaml := strings.Replace(strings.Replace(base, "target: onnxruntime", "target: tensorrt", 1), "model: {", "model: {output_names: [z], ", 1)
	dir := t.TempDir()
	enginetest.WriteEngine(t, dir, func(d *engine.Description) {
		d.Tensors[0].Name = "other"
		d.Profiles = []engine.Profile{{"other": d.Profiles[0]["x"]}}
	})
	checks, err := New(parse(t, yaml)).Run(t.Context(), tritontest.Inputs{tritontest.Artifact(artifact.Engine, "fp32", dir)}, testkit.NewOutputs(t))
	if err != nil || checks[0].ID != checkTensors || checks[0].Verdict != report.Fail ||
		checks[0].Detail != "the configuration's model has no inputs other\nthe configuration's model has no outputs y" {
		t.Errorf("%v %+v", err, checks)
	}
}

func TestAPlanThatIsNotTheDescribedOneIsNotPackaged(t *testing.T) {
	yaml := strings.Replace(base, "target: onnxruntime", "target: tensorrt", 1)
	dir := t.TempDir()
	enginetest.WriteEngine(t, dir, nil)
	path := filepath.Join(dir, engine.DescriptionFile)
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	run := func() (*testkit.Outputs, []report.Check, error) {
		out := testkit.NewOutputs(t)
		checks, err := New(parse(t, yaml)).Run(t.Context(), tritontest.Inputs{tritontest.Artifact(artifact.Engine, "fp32", dir)}, out)
		return out, checks, err
	}
	if _, checks, err := run(); err != nil || strings.Contains(checks[0].Detail, "plan_digest") {
		t.Fatalf("%v %+v", err, checks)
	}
	tritontest.Write(t, dir, engine.PlanFile, "nalp")
	if out, _, err := run(); failure.CodeOf(err) != failure.Artifact || len(out.Published) != 0 {
		t.Errorf("a swapped plan: %v, published %v", err, out.Published)
	}
	// The description of an older release has no digest: what is not checked is said.
	lines := strings.Split(string(good), "\n")
	lines = slices.DeleteFunc(lines, func(l string) bool { return strings.Contains(l, "plan_digest") })
	tritontest.Write(t, dir, engine.DescriptionFile, strings.Join(lines, "\n"))
	if _, checks, err := run(); err != nil || !strings.Contains(checks[0].Detail, "no plan_digest") {
		t.Errorf("%v %+v", err, checks)
	}
	tritontest.Write(t, dir, engine.DescriptionFile, strings.Replace(strings.Join(lines, "\n"), "-1", "-5", 1))
	if out, _, err := run(); failure.CodeOf(err) != failure.Artifact || !strings.Contains(err.Error(), "-5 is no size") || len(out.Published) != 0 {
		t.Errorf("a size of -5: %v, published %v", err, out.Published)
	}
}

func TestTheKeyHoldsWhatIsWrittenAndNothingOfTheServer(t *testing.T) {
	key := func(yaml string) string { b, _ := json.Marshal(New(parse(t, base+yaml)).Settings()); return string(b) }
	if key("triton: {http_port: 9000, image: 'a/b:c', log_verbose: true}") != key("") {
		t.Error("a server's setting changes the key")
	}
	if key("triton: {max_batch_size: 2}") == key("") {
		t.Error("max_batch_size does not change the key")
	}
}

func TestWhatTheStageNeeds(t *testing.T) {
	onnx, plan := New(parse(t, base)).Spec(), New(parse(t, strings.Replace(base, "onnxruntime", "tensorrt", 1))).Spec()
	kinds := func(in []stage.In) (out []artifact.Kind) {
		for _, i := range in {
			if !i.Optional {
				out = append(out, i.Kind)
			}
		}
		return out
	}
	if d := cmp.Diff([]artifact.Kind{artifact.OptimizedONNX}, kinds(onnx.In)); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]artifact.Kind{artifact.Engine}, kinds(plan.In)); d != "" {
		t.Error(d)
	}
	if len(onnx.Needs) != 0 {
		t.Errorf("packaging needs %v", onnx.Needs)
	}
	s := New(parse(t, base+"triton: {labels: {y: /a/l.txt}}"))
	if d := cmp.Diff([]string{"/a/l.txt"}, s.Sources()); d != "" {
		t.Error(d)
	}
	if tools, err := s.Tools(t.Context()); err != nil || len(tools) != 0 {
		t.Errorf("%v %v", tools, err)
	}
}

func TestAGraphOfAnotherPrecisionIsPackaged(t *testing.T) {
	fp16 := filepath.Dir(relu(t))
	yaml := strings.Replace(base, "{profiles", "{precisions: [fp32, fp16], profiles", 1) + "triton: {precision: fp16}"
	out := testkit.NewOutputs(t)
	checks, err := New(parse(t, yaml)).Run(t.Context(), tritontest.Inputs{
		tritontest.Artifact(artifact.PrecisionONNX, "fp16", fp16), tritontest.Artifact(artifact.OptimizedONNX, "", t.TempDir()),
	}, out)
	if err != nil || report.Of(checks) != report.Pass {
		t.Fatalf("%v %+v", err, checks)
	}
	m, err := triton.ReadManifest(filepath.Join(out.Published[0].Dir, "small"))
	if err != nil || m.Versions["1"].Precision != "fp16" {
		t.Errorf("%+v %v", m, err)
	}
}
