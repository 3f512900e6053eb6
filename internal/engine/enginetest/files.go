package enginetest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/trtship/trtship/internal/engine"
)

// Plan is the text that stands for a plan in WriteEngine.
const Plan = "plan"

// Described is the description of Plan: y = f(x), float32 [1..4, 4], fp32.
func Described() *engine.Description {
	return &engine.Description{
		TensorRT: "10.6.0", GPU: "NVIDIA H200", ComputeCapability: "9.0", CUDADriver: "13.0", Precision: "fp32", Typing: "strong",
		HardwareCompat: "none", PlanBytes: int64(len(Plan)), BuildSeconds: 2.5,
		Tensors:  []engine.Tensor{{Name: "x", IO: "input", DType: "float32", Dims: []int64{-1, 4}}, {Name: "y", IO: "output", DType: "float32", Dims: []int64{-1, 4}}},
		Profiles: []engine.Profile{{"x": {Min: []int64{1, 4}, Opt: []int64{2, 4}, Max: []int64{4, 4}}}},
	}
}

// WriteEngine writes Plan and a description of it into dir, as build does. The
// description is Described with a change, which may be nil.
func WriteEngine(t testing.TB, dir string, change func(*engine.Description)) *engine.Description {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, engine.PlanFile), []byte(Plan), 0o600); err != nil {
		t.Fatal(err)
	}
	d := Described()
	if change != nil {
		change(d)
	}
	if err := d.Write(dir); err != nil {
		t.Fatalf("the engine of the test cannot be described: %v", err)
	}
	return d
}
