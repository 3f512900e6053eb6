package engine

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/tensor"
)

// fakeChild stands in for the Python child: there is no GPU where this runs. It
// keeps what was asked and answers as the real child was seen to.
type fakeChild struct {
	answers map[string]string
	asked   map[string]json.RawMessage
	err     error
}

func (f *fakeChild) Call(method string, params, result any) error {
	text, err := json.Marshal(params)
	if err != nil {
		return err
	}
	if f.asked == nil {
		f.asked = map[string]json.RawMessage{}
	}
	f.asked[method] = text
	if f.err != nil {
		return f.err
	}
	answer, ok := f.answers[method]
	if !ok {
		return errors.New("no answer to " + method)
	}
	return json.Unmarshal([]byte(answer), result)
}

func description() *Description {
	return &Description{
		TensorRT: "10.6.0", GPU: "NVIDIA H200", ComputeCapability: "9.0", CUDADriver: "13.0",
		Precision: "fp16", Typing: "strong", HardwareCompat: "none", PlanBytes: 4,
		Tensors: []Tensor{
			{Name: "x", IO: "input", DType: "float32", Dims: []int64{-1, 4}},
			{Name: "y", IO: "output", DType: "float32", Dims: []int64{-1, 2}},
		},
		Profiles: []Profile{
			{"x": {Min: []int64{1, 4}, Opt: []int64{2, 4}, Max: []int64{4, 4}}},
			{"x": {Min: []int64{5, 4}, Opt: []int64{8, 4}, Max: []int64{16, 4}}},
		},
		Layers: []Layer{{Name: "a", Precision: "fp16"}, {Name: "b", Precision: "fp16"}, {Name: "c", Precision: "fp32"}, {Name: "d"}},
	}
}

func TestTheFirstProfileThatTakesTheShapesIsUsed(t *testing.T) {
	d := description()
	for batch, want := range map[int64]int{1: 0, 4: 0, 5: 1, 16: 1} {
		if got, err := d.ProfileFor(map[string][]int64{"x": {batch, 4}}); err != nil || got != want {
			t.Errorf("batch %d: profile %d, %v; want %d", batch, got, err, want)
		}
	}
	for name, shape := range map[string][]int64{
		"dimension 0 is 17, expected 5 to 16": {17, 4}, "dimension 0 is 0, expected 1 to 4": {0, 4},
		"rank 1, expected 2": {4}, "dimension 1 is 5, expected 4 to 4": {2, 5},
	} {
		_, err := d.ProfileFor(map[string][]int64{"x": shape})
		if failure.CodeOf(err) != failure.Usage || !strings.Contains(err.Error(), name) {
			t.Errorf("shape %v: got %v, want exit code 2 with %q", shape, err, name)
		}
	}
}

func TestAPlanIsRefusedElsewhereInWordsOfReleasesAndGPUs(t *testing.T) {
	tests := map[string]struct {
		machine Machine
		change  func(*Description)
		want    string
	}{
		"the same machine":           {Machine{"10.6.0", "NVIDIA H200", "9.0"}, nil, ""},
		"the same release, repacked": {Machine{"10.6.0.26", "NVIDIA H200", "9.0"}, nil, ""},
		"another release":            {Machine{"10.15.1", "NVIDIA H200", "9.0"}, nil, "built by TensorRT 10.6.0 and this machine has 10.15.1"},
		"another GPU":                {Machine{"10.6.0", "NVIDIA L4", "8.9"}, nil, "built on NVIDIA H200 (compute capability 9.0) and this machine has NVIDIA L4 (8.9)"},
		"a version-compatible plan":  {Machine{"10.15.1", "", ""}, func(d *Description) { d.VersionCompatible = true }, ""},
		"a plan for Ampere and on":   {Machine{"10.6.0", "NVIDIA L4", "8.9"}, func(d *Description) { d.HardwareCompat = "ampere_plus" }, ""},
		"such a plan on Blackwell":   {Machine{"10.6.0", "NVIDIA B200", "10.0"}, func(d *Description) { d.HardwareCompat = "ampere_plus" }, ""},
		"such a plan on Turing":      {Machine{"10.6.0", "Tesla T4", "7.5"}, func(d *Description) { d.HardwareCompat = "ampere_plus" }, "Tesla T4 (7.5)"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			d := description()
			if tt.change != nil {
				tt.change(d)
			}
			err := d.LoadsOn(tt.machine)
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case tt.want != "" && (failure.CodeOf(err) != failure.Build || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("got %v, want exit code 7 with %q", err, tt.want)
			}
		})
	}
}

func TestLayersAreCountedByPrecision(t *testing.T) {
	if diff := cmp.Diff(map[string]int{"fp16": 2, "fp32": 1}, description().LayersByPrecision()); diff != "" {
		t.Error(diff)
	}
	if in, out := description().Inputs(), description().Outputs(); len(in) != 1 || in[0].Name != "x" || len(out) != 1 || out[0].Name != "y" {
		t.Errorf("inputs %v, outputs %v", in, out)
	}
}

func TestABuildAsksForWhatTheConfigurationSays(t *testing.T) {
	f := &fakeChild{answers: map[string]string{"trt.build": `{"tensorrt": "10.6.0", "tensors": [{"name": "x", "io": "input"}], "calibration_cache_reads": 1}`}}
	c := config.TensorRT{
		Typing: "weak", WorkspaceMB: 256, OptimizationLevel: 4, Int8FP16Fallback: true, TF32: true, HardwareCompat: "none", Device: "GPU-1",
		Profiles: []config.Profile{{Inputs: map[string]config.ShapeRange{"x": {Min: []int64{1}, Opt: []int64{2}, Max: []int64{3}}}}},
	}
	r := RequestOf(c, "int8", "/m.onnx", "/m.plan")
	r.CalibrationCache = "/c.cache"
	d, err := Build(f, r)
	if err != nil || d.CacheReads == nil || *d.CacheReads != 1 {
		t.Fatalf("got %+v, %v", d, err)
	}
	var asked map[string]any
	if err := json.Unmarshal(f.asked["trt.build"], &asked); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]any{
		"onnx": "/m.onnx", "plan": "/m.plan", "precision": "int8", "typing": "weak", "workspace_mb": 256.0, "optimization_level": 4.0,
		"int8_fp16_fallback": true, "tf32": true, "device": "0", "calibration_cache": "/c.cache",
	} {
		if asked[key] != want {
			t.Errorf("%s is %v, want %v", key, asked[key], want)
		}
	}
	if got, _ := json.Marshal(asked["profiles"]); string(got) != `[{"x":{"max":[3],"min":[1],"opt":[2]}}]` {
		t.Errorf("profiles are %s", got)
	}
}

func TestEveryRefusedNodeIsListed(t *testing.T) {
	err := failure.New(failure.Build, "the ONNX parser refused the graph").
		With("parser_errors", "%s", `[{"text": "no plugin", "code": "INVALID_NODE", "index": 0, "node_name": "foo1", "node_operator": "Foo"},
			{"text": "no plugin", "code": "INVALID_NODE", "index": 2, "node_name": "bar1", "node_operator": "Bar"}]`)
	got := Refused(err)
	if len(got) != 2 || got[0].Node != "foo1" || got[1].Operator != "Bar" || got[1].Index != 2 {
		t.Errorf("got %+v, want foo1 and bar1", got)
	}
	for name, err := range map[string]error{
		"no error": nil, "another error": errors.New("x"), "another failure": failure.New(failure.Build, "x").With("logged", "y"),
	} {
		if got := Refused(err); got != nil {
			t.Errorf("%s: got %v", name, got)
		}
	}
}

func session(t *testing.T, f *fakeChild) *Session {
	t.Helper()
	f.answers["trt.open"] = `{"engine": "1", "load_ms": 7.5, "memory_bytes": 1024}`
	s, err := Open(f, "/m.plan", description(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if s.LoadMs != 7.5 || s.Memory != 1024 {
		t.Errorf("load %v ms, %v bytes", s.LoadMs, s.Memory)
	}
	return s
}

func TestInferSendsRawTensorsAndReadsThemBack(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out.bin")
	if err := os.WriteFile(out, []byte{0, 0, 128, 63}, 0o644); err != nil {
		t.Fatal(err)
	}
	f := &fakeChild{answers: map[string]string{
		"trt.infer": `{"outputs": [{"name": "y", "dtype": "float32", "shape": [1, 1], "file": "` + out + `"}]}`, "trt.close": `{}`,
	}}
	s := session(t, f)
	in := tensor.Named{Name: "x", Tensor: tensor.Tensor{DType: tensor.Float32, Shape: []int64{5, 4}, Data: make([]byte, 80)}}
	got, err := s.Infer(context.Background(), []tensor.Named{in})
	if err != nil {
		t.Fatal(err)
	}
	want := []tensor.Named{{Name: "y", Tensor: tensor.Tensor{DType: tensor.Float32, Shape: []int64{1, 1}, Data: []byte{0, 0, 128, 63}}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	var asked struct {
		Profile int
		Inputs  []wireTensor
	}
	if err := json.Unmarshal(f.asked["trt.infer"], &asked); err != nil {
		t.Fatal(err)
	}
	if asked.Profile != 1 || len(asked.Inputs) != 1 || asked.Inputs[0].DType != "float32" {
		t.Errorf("asked for %+v, want profile 1", asked)
	}
	if data, err := os.ReadFile(asked.Inputs[0].File); err != nil || len(data) != 80 {
		t.Errorf("the feed has %d bytes (%v), want 80", len(data), err)
	}
	in.Shape = []int64{17, 4}
	if _, err := s.Infer(context.Background(), []tensor.Named{in}); failure.CodeOf(err) != failure.Usage {
		t.Errorf("a shape outside: got %v, want exit code 2", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestBenchmarkAndAlternatePassOnWhatTheChildMeasured(t *testing.T) {
	f := &fakeChild{answers: map[string]string{
		"trt.benchmark": `{"cold_ms": 3, "wall_seconds": 0.5, "phases": {"compute": [1, 2]}, "warmup": {"requests": 30, "steady": true},
			"loads": [{"load_ms": 7, "requests": 1, "compute_ms": 1, "enqueue_ms": 0.5}, {"load_ms": 8, "requests": 1, "compute_ms": 2, "enqueue_ms": 0.6}]}`,
		"trt.compare": `{"base": [1, 2], "head": [3, 4]}`,
		"trt.gpus":    `{"cuda_driver": "13.0", "devices": [{"index": 0, "name": "NVIDIA H200"}], "tensorrt": {"version": "10.6.0", "features": {"calibrator": true}}}`,
	}}
	s := session(t, f)
	in := []tensor.Named{{Name: "x", Tensor: tensor.Tensor{DType: tensor.Float32, Shape: []int64{1, 4}, Data: make([]byte, 16)}}}
	got, err := s.Benchmark(Load{Inputs: in, Streams: 2, CUDAGraph: true, WarmupIters: 5, Iters: 10, Loads: 2, MaxSeconds: 1})
	if want := (Loading{LoadMs: 8, Requests: 1, ComputeMs: 2, EnqueueMs: 0.6}); len(got.Loads) != 2 || got.Loads[1] != want {
		t.Errorf("loadings are %+v, want a second of %+v", got.Loads, want)
	}
	if err != nil || got.ColdMs != 3 || !got.Warmup.Steady || len(got.Phases["compute"]) != 2 {
		t.Errorf("got %+v, %v", got, err)
	}
	base, head, err := Alternate(s, s, in, in, Alternation{Rounds: 2, Block: 1, Loads: 2})
	if err != nil || base[1] != 2 || head[0] != 3 {
		t.Errorf("got %v, %v, %v", base, head, err)
	}
	g, err := Ask(f)
	if err != nil || g.TensorRT.Version != "10.6.0" || !g.TensorRT.Features["calibrator"] || g.Devices[0].Name != "NVIDIA H200" {
		t.Errorf("got %+v, %v", g, err)
	}
	f.err = failure.New(failure.Build, "gone")
	if _, err := s.Benchmark(Load{Inputs: in}); failure.CodeOf(err) != failure.Build {
		t.Errorf("got %v, want the child's error", err)
	}
}
