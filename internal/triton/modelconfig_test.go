package triton_test

import (
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/engine"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/internal/triton"
	"github.com/trtship/trtship/internal/triton/tritonpb"
)

func of(n int) *int { return &n }

// signature is x float32[batch,4] -> y float32[batch,4].
func signature() triton.Signature {
	io := func(name string) []triton.Tensor {
		return []triton.Tensor{{Name: name, DType: tensor.Float32, Type: "tensor", HasRank: true, Dims: []int64{-1, 4}, Symbols: []string{"batch", ""}}}
	}
	return triton.Signature{Format: triton.ONNX, Inputs: io("x"), Outputs: io("y")}
}

func TestSettingsThatContradictTheModelAreExit2(t *testing.T) {
	for name, c := range map[string]struct {
		t    config.Triton
		want []string
	}{
		"a batch above the model's limit":       {config.Triton{MaxBatchSize: of(9)}, []string{"max_batch_size is 9", "limit is 4"}},
		"a negative batch":                      {config.Triton{MaxBatchSize: of(-1)}, []string{"max_batch_size is -1"}},
		"GPUs for instances on the CPU":         {config.Triton{InstanceGroups: []config.InstanceGroup{{Kind: "cpu", GPUs: []int{0}}}}, []string{"GPUs [0]", "CPU"}},
		"a preferred size that 32 bits cut off": {config.Triton{DynamicBatching: &config.DynamicBatching{PreferredSizes: []int{1<<32 + 1}}}, []string{"has 4294967297", "max_batch_size is 4"}},
		"a preferred size above the limit":      {config.Triton{DynamicBatching: &config.DynamicBatching{PreferredSizes: []int{8}}}, []string{"has 8", "max_batch_size is 4"}},
		"dynamic batching without batches":      {config.Triton{MaxBatchSize: of(0), DynamicBatching: &config.DynamicBatching{}}, []string{"max_batch_size is 0"}},
		"a default priority out of range":       {config.Triton{DynamicBatching: &config.DynamicBatching{PriorityLevels: 2, DefaultLevel: 3}}, []string{"default_priority_level is 3", "1 to 2"}},
		"labels of no output":                   {config.Triton{Labels: map[string]string{"z": "l.txt"}}, []string{`the output "z"`}},
		"a policy that is none":                 {config.Triton{VersionPolicy: map[string]any{"newest": nil}}, []string{`no policy "newest"`}},
		"two policies":                          {config.Triton{VersionPolicy: map[string]any{"all": nil, "latest": nil}}, []string{"2 policies"}},
		"no version":                            {config.Triton{VersionPolicy: map[string]any{"specific": map[string]any{}}}, []string{"names no version"}},
		"a version that is none":                {config.Triton{VersionPolicy: map[string]any{"specific": map[string]any{"versions": []any{"x"}}}}, []string{"versions holds x"}},
		"no latest version":                     {config.Triton{VersionPolicy: map[string]any{"latest": map[string]any{"num_versions": 0}}}, []string{"num_versions is 0"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := triton.Configure(signature(), triton.Settings{Name: "m", MaxBatch: 4, Triton: c.t, Where: func(k string) string { return "f.yaml:1 " + k }})
			if failure.CodeOf(err) != failure.Usage {
				t.Fatalf("got %v", err)
			}
			for _, w := range append(c.want, "f.yaml:1 triton.") {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%v\ndoes not name %s", err, w)
				}
			}
		})
	}
	plan := signature()
	plan.Format = triton.Plan
	if _, _, err := triton.Configure(plan, triton.Settings{Name: "m", MaxBatch: 4, Triton: config.Triton{InstanceGroups: []config.InstanceGroup{{Kind: "cpu"}}}}); failure.CodeOf(err) != failure.Usage || !strings.Contains(err.Error(), "plan") {
		t.Errorf("a plan on a CPU: %v", err)
	}
}

func TestPolicies(t *testing.T) {
	for name, c := range map[string]struct {
		policy map[string]any
		want   string
	}{
		"nothing given is the latest": {nil, "latest:{num_versions:1}"},
		"latest alone is one":         {map[string]any{"latest": nil}, "latest:{num_versions:1}"},
		"two latest":                  {map[string]any{"latest": map[string]any{"num_versions": 2}}, "latest:{num_versions:2}"},
		"all":                         {map[string]any{"all": map[string]any{}}, "all:{}"},
		"numbers of any kind":         {map[string]any{"specific": map[string]any{"versions": []any{1, int64(2), uint64(3), 4.0, "5"}}}, "specific:{versions:1 versions:2 versions:3 versions:4 versions:5}"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, _, err := triton.Configure(signature(), triton.Settings{Name: "m", MaxBatch: 4, Triton: config.Triton{VersionPolicy: c.policy}})
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(strings.Fields(cfg.GetVersionPolicy().String()), " "); got != c.want {
				t.Errorf("got %s", got)
			}
		})
	}
}

func TestWhyAModelTakesNoBatches(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*triton.Signature)
		why    string
	}{
		"a fixed batch":        {func(s *triton.Signature) { s.Inputs[0].Dims[0] = 1 }, "fixed at 1"},
		"a scalar output":      {func(s *triton.Signature) { s.Outputs[0].Dims, s.Outputs[0].Symbols = nil, nil }, "y is a scalar"},
		"other symbols":        {func(s *triton.Signature) { s.Outputs[0].Symbols[0] = "rows" }, "first dimensions differ"},
		"the batch behind":     {func(s *triton.Signature) { s.Inputs[0].Dims[1], s.Inputs[0].Symbols = -1, []string{"seq", "batch"} }, "dimension 1, not the first"},
		"an unknown rank":      {func(s *triton.Signature) { s.Outputs[0].HasRank = false }, "y has no shape"},
		"nothing to feed":      {func(s *triton.Signature) { s.Inputs = nil }, "no inputs"},
		"it does":              {func(*triton.Signature) {}, ""},
		"symbols of exporters": {func(s *triton.Signature) { s.Outputs[0].Symbols[0] = "unk__7" }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := signature()
			c.change(&s)
			why, ok := s.Batched()
			if ok != (c.why == "") || !strings.Contains(why, c.why) {
				t.Errorf("%v %q", ok, why)
			}
		})
	}
}

func TestAPlansProfilesBoundTheBatch(t *testing.T) {
	s, err := triton.FromEngine(&engine.Description{
		Tensors: []engine.Tensor{{Name: "x", IO: "input", DType: "float32", Dims: []int64{-1, 4}}, {Name: "y", IO: "output", DType: "float32", Dims: []int64{-1}}},
		Profiles: []engine.Profile{
			{"x": {Min: []int64{2, 4}, Opt: []int64{2, 4}, Max: []int64{4, 4}}}, {"x": {Min: []int64{3, 4}, Opt: []int64{8, 4}, Max: []int64{16, 4}}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	cfg, notes, err := triton.Configure(s, triton.Settings{Name: "m", MaxBatch: 999})
	if err != nil || cfg.GetMaxBatchSize() != 16 || len(notes) != 1 || !strings.Contains(notes[0], "no batch below 2") {
		t.Errorf("%d %v %v", cfg.GetMaxBatchSize(), notes, err)
	}
	if out := cfg.GetOutput()[0]; out.GetReshape() == nil || len(out.GetDims()) != 1 || out.GetDims()[0] != 1 {
		t.Errorf("an output that has the batch alone is declared [ 1 ] and reshaped: %v", out)
	}
	if _, err := triton.FromEngine(&engine.Description{Tensors: []engine.Tensor{{Name: "x", DType: "complex"}}}); err == nil {
		t.Error("an unknown type is taken")
	}
}

// config.pbtxt has 32 bits where we have 64.
func TestNoNumberWraps(t *testing.T) {
	for name, s := range map[string]triton.Settings{
		"a batch of the profiles":   {MaxBatch: 1<<32 + 1},
		"a batch beyond everything": {MaxBatch: math.MaxInt64},
		"a batch below 0":           {MaxBatch: -1},
		"versions to keep":          {MaxBatch: 4, Triton: config.Triton{VersionPolicy: map[string]any{"latest": map[string]any{"num_versions": int64(1<<32 + 1)}}}},
		"a version of 65 bits":      {MaxBatch: 4, Triton: config.Triton{VersionPolicy: map[string]any{"specific": map[string]any{"versions": []any{uint64(1<<63 + 1)}}}}},
		"a version as 1e19":         {MaxBatch: 4, Triton: config.Triton{VersionPolicy: map[string]any{"specific": map[string]any{"versions": []any{1e19}}}}},
		"instances":                 {MaxBatch: 4, Triton: config.Triton{InstanceGroups: []config.InstanceGroup{{Count: 1<<32 + 1}}}},
		"a GPU":                     {MaxBatch: 4, Triton: config.Triton{InstanceGroups: []config.InstanceGroup{{Kind: "gpu", GPUs: []int{1 << 32}}}}},
		"a delay below 0":           {MaxBatch: 4, Triton: config.Triton{DynamicBatching: &config.DynamicBatching{MaxDelayUS: -1}}},
		"a queue":                   {MaxBatch: 4, Triton: config.Triton{DynamicBatching: &config.DynamicBatching{Queue: &config.QueuePolicy{MaxSize: 1 << 32}}}},
	} {
		s.Name = "m"
		cfg, _, err := triton.Configure(signature(), s)
		if failure.CodeOf(err) != failure.Usage {
			t.Errorf("%s: got %v, %v; want exit code 2", name, cfg, err)
		}
	}
}

func TestTypesThatTritonDoesNotHave(t *testing.T) {
	s := signature()
	s.Inputs[0].DType = tensor.Float8E4
	if _, _, err := triton.Configure(s, triton.Settings{Name: "m", MaxBatch: 4}); failure.CodeOf(err) != failure.Triton || !strings.Contains(err.Error(), "x float8e4m3fn") {
		t.Errorf("got %v", err)
	}
}

func TestInputsWithADefaultAreNotAskedFor(t *testing.T) {
	dir := filepath.Join("..", "..", "testdata", "cases", "o01-initializers-as-inputs")
	for _, f := range []string{"ir3.onnx", "ir4_overridable.onnx"} {
		s, err := triton.ReadONNX(filepath.Join(dir, f))
		if err != nil {
			t.Fatal(err)
		}
		if len(s.Inputs) != 1 || s.Inputs[0].Name != "data" {
			t.Errorf("%s: %v", f, s.Inputs)
		}
	}
}

func TestTwoLabelFilesOfOneName(t *testing.T) {
	s := signature()
	s.Outputs = append(s.Outputs, s.Outputs[0])
	s.Outputs[1].Name = "z"
	cfg, _, err := triton.Configure(s, triton.Settings{Name: "m", MaxBatch: 4, Triton: config.Triton{Labels: map[string]string{"y": "/a/l.txt", "z": "/b/l.txt"}}})
	if err != nil || cfg.GetOutput()[0].GetLabelFilename() == cfg.GetOutput()[1].GetLabelFilename() {
		t.Errorf("%v %v", cfg.GetOutput(), err)
	}
}

func TestShapesOnTheWire(t *testing.T) {
	s := triton.Served{Config: &tritonpb.ModelConfig{
		Input:  []*tritonpb.ModelInput{{Name: "x", Dims: []int64{1}, Reshape: &tritonpb.ModelTensorReshape{}}},
		Output: []*tritonpb.ModelOutput{{Name: "y", Dims: []int64{1}, Reshape: &tritonpb.ModelTensorReshape{}}},
	}}
	in := []tensor.Named{{Name: "x", Tensor: tensor.Tensor{Shape: []int64{3}}}, {Name: "other", Tensor: tensor.Tensor{Shape: []int64{3}}}}
	wire := s.ToWire(in)
	if len(wire[0].Shape) != 2 || len(in[0].Shape) != 1 || len(wire[1].Shape) != 1 {
		t.Errorf("%v %v", wire, in)
	}
	if out := s.FromWire([]tensor.Named{{Name: "y", Tensor: tensor.Tensor{Shape: []int64{3, 1}}}}); len(out[0].Shape) != 1 {
		t.Errorf("%v", out)
	}
}
