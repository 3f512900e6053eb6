//go:build gpu

// Tests on a machine with an NVIDIA GPU and TensorRT: make test-gpu. TRTSHIP_PYTHON
// names a Python with TensorRT, python3 by default. Without a GPU they fail.
package engine_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/engine"
	"github.com/trtship/trtship/internal/gpu"
	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
	"github.com/trtship/trtship/internal/proc"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/internal/worker"
)

func start(t *testing.T, ctx context.Context, log io.Writer, progress func(done, total int64, label string)) *worker.Worker {
	t.Helper()
	python := os.Getenv("TRTSHIP_PYTHON")
	if python == "" {
		python = "python3"
	}
	path, err := proc.Look(python, os.Getenv("PATH"))
	if err != nil {
		t.Fatal(err)
	}
	w, err := worker.Start(ctx, worker.Options{
		Python: path, Subject: "gpu test", CUDA: true, Log: log, Progress: progress,
		Env: []string{"LD_LIBRARY_PATH=" + os.Getenv("LD_LIBRARY_PATH")},
	})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func value(name string, d tensor.DType, dims ...any) *onnxpb.ValueInfoProto {
	elem := onnx.DataType(d)
	shape := &onnxpb.TensorShapeProto{}
	for _, dim := range dims {
		switch v := dim.(type) {
		case int:
			shape.Dim = append(shape.Dim, &onnxpb.TensorShapeProto_Dimension{Value: &onnxpb.TensorShapeProto_Dimension_DimValue{DimValue: int64(v)}})
		case string:
			shape.Dim = append(shape.Dim, &onnxpb.TensorShapeProto_Dimension{Value: &onnxpb.TensorShapeProto_Dimension_DimParam{DimParam: v}})
		}
	}
	return &onnxpb.ValueInfoProto{Name: proto.String(name), Type: &onnxpb.TypeProto{
		Value: &onnxpb.TypeProto_TensorType{TensorType: &onnxpb.TypeProto_Tensor{ElemType: &elem, Shape: shape}},
	}}
}

func node(op, name string, in []string, out ...string) *onnxpb.NodeProto {
	return &onnxpb.NodeProto{OpType: proto.String(op), Name: proto.String(name), Input: in, Output: out}
}

func save(t *testing.T, g *onnxpb.GraphProto) string {
	t.Helper()
	g.Name = proto.String("test")
	m := onnx.New(&onnxpb.ModelProto{
		IrVersion: proto.Int64(8), Graph: g,
		OpsetImport: []*onnxpb.OperatorSetIdProto{{Domain: proto.String(""), Version: proto.Int64(17)}},
	}, ".")
	path := filepath.Join(t.TempDir(), "model.onnx")
	if err := m.Save(path, onnx.SaveOptions{}); err != nil {
		t.Fatal(err)
	}
	return path
}

func floats(values ...float32) []byte {
	var b []byte
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}

// dense is y = relu(x·W), x [batch, 64], W [64, 32].
func dense(t *testing.T) (path string, weights []float32) {
	t.Helper()
	for i := range 64 * 32 {
		weights = append(weights, float32(math.Sin(float64(i)))/8)
	}
	return save(t, &onnxpb.GraphProto{
		Input: []*onnxpb.ValueInfoProto{value("x", tensor.Float32, "batch", 64)}, Output: []*onnxpb.ValueInfoProto{value("y", tensor.Float32, "batch", 32)},
		Initializer: []*onnxpb.TensorProto{onnx.NewTensor("w", tensor.Tensor{DType: tensor.Float32, Shape: []int64{64, 32}, Data: floats(weights...)})},
		Node:        []*onnxpb.NodeProto{node("MatMul", "product", []string{"x", "w"}, "p"), node("Relu", "relu", []string{"p"}, "y")},
	}), weights
}

func settings(ranges map[string]config.ShapeRange) config.TensorRT {
	return config.TensorRT{
		Typing: "strong", Constraints: "none", WorkspaceMB: 256, OptimizationLevel: 1, HardwareCompat: "none", Device: "0",
		Profiles: []config.Profile{{Inputs: ranges}},
	}
}

func rows(low, high int64, rest ...int64) config.ShapeRange {
	dims := func(n int64) []int64 { return append([]int64{n}, rest...) }
	return config.ShapeRange{Min: dims(low), Opt: dims(max(low, high/2)), Max: dims(high)}
}

func open(t *testing.T, w *worker.Worker, c config.TensorRT, precision, path string) (*engine.Session, *engine.Description) {
	t.Helper()
	dir := t.TempDir()
	plan := filepath.Join(dir, engine.PlanFile)
	d, err := engine.Build(w, engine.RequestOf(c, precision, path, plan))
	if err != nil {
		t.Fatal(err)
	}
	s, err := engine.Open(w, plan, d, dir)
	if err != nil {
		t.Fatal(err)
	}
	return s, d
}

// One child serves all that do not end it: loading TensorRT takes seconds.
func TestGPU(t *testing.T) {
	w := start(t, context.Background(), t.Output(), nil)
	defer w.Close()
	for name, test := range map[string]func(*testing.T, *worker.Worker){
		"an engine answers as its graph at every size of the profile": answersAsItsGraph,
		"outputs whose size depends on data":                          sizeDependsOnData,
		"all refused operators are listed":                            refusedOperators,
		"the timing cache is used by second builds":                   timingCache,
		"precision constraints arrive":                                constraints,
		"a broken plan is an error and not a crash":                   brokenPlan,
		"the driver and NVML see the same devices":                    sameDevices,
		"calibration caches of every algorithm are taken":             takenCaches,
		"no request reads the input of the one before":                ownInput,
		"measuring loads an engine anew and leaves it in order":       measuring,
	} {
		t.Run(name, func(t *testing.T) { test(t, w) })
	}
}

func answersAsItsGraph(t *testing.T, w *worker.Worker) {
	path, weights := dense(t)
	s, d := open(t, w, settings(map[string]config.ShapeRange{"x": rows(0, 8, 64)}), "fp32", path)
	if d.LayersByPrecision()["fp32"] == 0 || d.PlanBytes == 0 {
		t.Errorf("the description says %+v", d)
	}
	for _, batch := range []int{0, 1, 4, 8} {
		x := make([]float32, batch*64)
		for i := range x {
			x[i] = float32(math.Cos(float64(i)))
		}
		out, err := s.Infer(context.Background(), []tensor.Named{{Name: "x", Tensor: tensor.Tensor{DType: tensor.Float32, Shape: []int64{int64(batch), 64}, Data: floats(x...)}}})
		if err != nil {
			t.Fatalf("batch %d: %v", batch, err)
		}
		if diff := cmp.Diff([]int64{int64(batch), 32}, out[0].Shape); diff != "" {
			t.Fatalf("batch %d: shape (-want +got):\n%s", batch, diff)
		}
		for r := range batch {
			for c := range 32 {
				want := 0.0
				for k := range 64 {
					want += float64(x[r*64+k]) * float64(weights[k*32+c])
				}
				want = max(0, want)
				got := float64(math.Float32frombits(binary.LittleEndian.Uint32(out[0].Data[4*(r*32+c):])))
				if math.Abs(got-want) > 1e-5 {
					t.Fatalf("batch %d: y[%d,%d] = %v, want %v", batch, r, c, got, want)
				}
			}
		}
	}
}

// takenCaches builds int8 from a cache of each algorithm, and from one of another release.
func takenCaches(t *testing.T, w *worker.Worker) {
	path := save(t, &onnxpb.GraphProto{
		Input: []*onnxpb.ValueInfoProto{value("x", tensor.Float32, "batch", 32, 16, 16)}, Output: []*onnxpb.ValueInfoProto{value("y", tensor.Float32, "batch", 32, 16, 16)},
		Initializer: []*onnxpb.TensorProto{onnx.NewTensor("w", tensor.Tensor{DType: tensor.Float32, Shape: []int64{32, 32, 1, 1}, Data: floats(make([]float32, 32*32)...)})},
		Node:        []*onnxpb.NodeProto{node("Conv", "conv", []string{"x", "w"}, "c"), node("Relu", "relu", []string{"c"}, "y")},
	})
	seen, err := engine.Ask(w)
	if err != nil {
		t.Fatal(err)
	}
	var major, minor, patch int
	if _, err := fmt.Sscanf(seen.TensorRT.Version, "%d.%d.%d", &major, &minor, &patch); err != nil {
		t.Fatal(err)
	}
	number := major*10000 + minor*100 + patch
	c := settings(map[string]config.ShapeRange{"x": rows(1, 8, 32, 16, 16)})
	c.Typing, c.Constraints = "weak", "prefer"
	for header, taken := range map[string]bool{
		fmt.Sprintf("TRT-%d-EntropyCalibration2", number): true,
		fmt.Sprintf("TRT-%d-MinMaxCalibration", number):   true,
		fmt.Sprintf("TRT-%d-EntropyCalibration", number):  true,
		"TRT-8203-EntropyCalibration2":                    false,
		"no cache at all":                                 false,
	} {
		dir := t.TempDir()
		r := engine.RequestOf(c, "int8", path, filepath.Join(dir, engine.PlanFile))
		r.CalibrationCache = filepath.Join(dir, "calibration.cache")
		if err := os.WriteFile(r.CalibrationCache, []byte(header+"\nx: 3c23d70a\nc: 3ca3d70a\ny: 3ca3d70a\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		d, err := engine.Build(w, r)
		switch {
		case taken && err != nil:
			t.Errorf("%s: %v", header, err)
		case taken && d.LayersByPrecision()["int8"] == 0:
			t.Errorf("%s: the layers are %v", header, d.LayersByPrecision())
		case !taken && (err == nil || !strings.Contains(err.Error(), strings.Fields(header)[0])):
			t.Errorf("%s: %v, want a refusal that names it", header, err)
		}
	}
}

// ownInput alternates two inputs: a kernel that starts before the copy of its
// input has ended reads the other one.
func ownInput(t *testing.T, w *worker.Worker) {
	path, _ := dense(t)
	s, _ := open(t, w, settings(map[string]config.ShapeRange{"x": rows(1, 1, 64)}), "fp32", path)
	var want [2][]byte
	for i := range 4000 {
		x := make([]float32, 64)
		for k := range x {
			x[k] = float32(1+i%2) * float32(k%3)
		}
		out, err := s.Infer(context.Background(), []tensor.Named{{Name: "x", Tensor: tensor.Tensor{DType: tensor.Float32, Shape: []int64{1, 64}, Data: floats(x...)}}})
		if err != nil {
			t.Fatal(err)
		}
		if i < 2 {
			want[i] = out[0].Data
		} else if !bytes.Equal(want[i%2], out[0].Data) {
			t.Fatalf("request %d got another answer than the first one with its input", i)
		}
	}
	if bytes.Equal(want[0], want[1]) {
		t.Error("both inputs have the same answer: the test shows nothing")
	}
}

func sizeDependsOnData(t *testing.T, w *worker.Worker) {
	path := save(t, &onnxpb.GraphProto{
		Input:  []*onnxpb.ValueInfoProto{value("ids", tensor.Int64, "n"), value("mask", tensor.Bool, "n")},
		Output: []*onnxpb.ValueInfoProto{value("picked", tensor.Int64, "k")},
		Node: []*onnxpb.NodeProto{
			node("NonZero", "where", []string{"mask"}, "at"), node("Transpose", "rows", []string{"at"}, "places"),
			node("GatherND", "pick", []string{"ids", "places"}, "picked"),
		},
	})
	s, _ := open(t, w, settings(map[string]config.ShapeRange{"ids": rows(1, 16), "mask": rows(1, 16)}), "fp32", path)
	const big = math.MaxInt64 - 7
	for name, tt := range map[string]struct {
		mask []byte
		want []int64
	}{
		"some": {[]byte{0, 1, 0, 1}, []int64{big, -1}},
		"none": {[]byte{0, 0, 0, 0}, []int64{}},
		"all":  {[]byte{1, 1, 1, 1}, []int64{5, big, 6, -1}},
	} {
		t.Run(name, func(t *testing.T) {
			var ids []byte
			for _, v := range []int64{5, big, 6, -1} {
				ids = binary.LittleEndian.AppendUint64(ids, uint64(v))
			}
			out, err := s.Infer(context.Background(), []tensor.Named{
				{Name: "ids", Tensor: tensor.Tensor{DType: tensor.Int64, Shape: []int64{4}, Data: ids}},
				{Name: "mask", Tensor: tensor.Tensor{DType: tensor.Bool, Shape: []int64{4}, Data: tt.mask}},
			})
			if err != nil {
				t.Fatal(err)
			}
			got := []int64{}
			for i := 0; i < len(out[0].Data); i += 8 {
				got = append(got, int64(binary.LittleEndian.Uint64(out[0].Data[i:])))
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func refusedOperators(t *testing.T, w *worker.Worker) {
	g := &onnxpb.GraphProto{
		Input: []*onnxpb.ValueInfoProto{value("x", tensor.Float32, 4)}, Output: []*onnxpb.ValueInfoProto{value("y", tensor.Float32, 4)},
		Node: []*onnxpb.NodeProto{
			node("Foo", "foo1", []string{"x"}, "a"), node("Relu", "relu", []string{"a"}, "b"), node("Bar", "bar1", []string{"b"}, "y"),
		},
	}
	plan := filepath.Join(t.TempDir(), engine.PlanFile)
	_, err := engine.Build(w, engine.RequestOf(settings(nil), "fp32", save(t, g), plan))
	var ops []string
	for _, r := range engine.Refused(err) {
		ops = append(ops, r.Operator)
	}
	if diff := cmp.Diff([]string{"Foo", "Bar"}, ops); diff != "" {
		t.Errorf("refused (-want +got):\n%s\n%v", diff, err)
	}
	if _, err := os.Stat(plan); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a plan is there: %v", err)
	}
}

func timingCache(t *testing.T, w *worker.Worker) {
	path, _ := dense(t)
	r := engine.RequestOf(settings(map[string]config.ShapeRange{"x": rows(1, 8, 64)}), "fp32", path, filepath.Join(t.TempDir(), engine.PlanFile))
	r.TimingOut = filepath.Join(t.TempDir(), engine.TimingFile)
	first, err := engine.Build(w, r)
	if err != nil {
		t.Fatal(err)
	}
	r.TimingIn = r.TimingOut
	second, err := engine.Build(w, r)
	if err != nil {
		t.Fatal(err)
	}
	if !first.TimingCache.Grew || second.TimingCache.Grew {
		t.Errorf("the cache grew in the first build: %v, in the second: %v; want true, false", first.TimingCache.Grew, second.TimingCache.Grew)
	}
}

func constraints(t *testing.T, w *worker.Worker) {
	path, _ := dense(t)
	c := settings(map[string]config.ShapeRange{"x": rows(1, 8, 64)})
	c.Typing, c.Constraints = "weak", "obey"
	_, d := open(t, w, c, "fp16", path)
	if d.ConstrainedLayers == nil || *d.ConstrainedLayers != 1 || d.LayersByPrecision()["fp16"] == 0 {
		t.Errorf("asked %v layers, got %v", d.ConstrainedLayers, d.LayersByPrecision())
	}
}

func brokenPlan(t *testing.T, w *worker.Worker) {
	path, _ := dense(t)
	dir := t.TempDir()
	plan := filepath.Join(dir, engine.PlanFile)
	d, err := engine.Build(w, engine.RequestOf(settings(map[string]config.ShapeRange{"x": rows(1, 8, 64)}), "fp32", path, plan))
	if err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(plan)
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{"empty": nil, "cut": whole[:len(whole)/2], "text": []byte("not a plan")} {
		broken := filepath.Join(dir, name)
		if err := os.WriteFile(broken, data, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := engine.Open(w, broken, d, dir)
		if _, crashed := errors.AsType[*worker.Crash](err); err == nil || crashed {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := engine.Open(w, plan, d, dir); err != nil {
		t.Errorf("the whole plan after broken ones: %v", err)
	}
}

func TestGPUCancelEndsABuildAndLeavesNoPlan(t *testing.T) {
	path, _ := dense(t)
	ctx, cancel := context.WithCancel(context.Background())
	w := start(t, ctx, t.Output(), func(int64, int64, string) { cancel() })
	defer w.Close()
	plan := filepath.Join(t.TempDir(), engine.PlanFile)
	began := time.Now()
	_, err := engine.Build(w, engine.RequestOf(settings(map[string]config.ShapeRange{"x": rows(1, 8, 64)}), "fp32", path, plan))
	if err == nil {
		t.Fatal("the build went on")
	}
	t.Logf("ended after %s: %v", time.Since(began).Round(time.Millisecond), err)
	if _, err := os.Stat(plan); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a plan is there: %v", err)
	}
}

func measuring(t *testing.T, w *worker.Worker) {
	path, _ := dense(t)
	c := settings(map[string]config.ShapeRange{"x": rows(1, 8, 64)})
	s, _ := open(t, w, c, "fp32", path)
	other, _ := open(t, w, c, "fp16", path)
	feed := []tensor.Named{{Name: "x", Tensor: tensor.Tensor{DType: tensor.Float32, Shape: []int64{4, 64}, Data: floats(slices.Repeat([]float32{0.5}, 4*64)...)}}}
	before, err := s.Infer(context.Background(), feed)
	if err != nil {
		t.Fatal(err)
	}
	for _, graph := range []bool{false, true} {
		got, err := s.Benchmark(engine.Load{Inputs: feed, Streams: 2, CUDAGraph: graph, WarmupIters: 10, Iters: 50, Loads: 3, MaxSeconds: 60})
		if err != nil {
			t.Fatal(err)
		}
		for phase, samples := range got.Phases {
			if len(samples) != 100 || slices.Min(samples) < 0 {
				t.Errorf("graph %v, %s: %d samples, the least %g ms", graph, phase, len(samples), slices.Min(samples))
			}
		}
		if len(got.Loads) != 3 || got.Loads[2].ComputeMs <= 0 || got.Loads[2].LoadMs <= 0 {
			t.Errorf("graph %v: loadings %+v", graph, got.Loads)
		}
	}
	base, head, err := engine.Alternate(s, other, feed, feed, engine.Alternation{Rounds: 6, Block: 5, Loads: 2, CUDAGraph: true, WarmupIters: 10})
	if err != nil || len(base) != 6 || len(head) != 6 || slices.Min(slices.Concat(base, head)) <= 0 {
		t.Errorf("%v against %v ms, %v", base, head, err)
	}
	after, err := s.Infer(context.Background(), feed)
	if diff := cmp.Diff(before, after); err != nil || diff != "" {
		t.Errorf("after measuring: %v %s", err, diff)
	}
	if err := errors.Join(s.Close(), other.Close()); err != nil {
		t.Error(err)
	}
}

func sameDevices(t *testing.T, w *worker.Worker) {
	seen, err := engine.Ask(w)
	if err != nil {
		t.Fatal(err)
	}
	devices, err := gpu.New().Devices()
	if err != nil {
		t.Fatal(err)
	}
	if len(devices) == 0 || len(devices) != len(seen.Devices) {
		t.Fatalf("NVML sees %d devices, CUDA %d", len(devices), len(seen.Devices))
	}
	for i, d := range seen.Devices {
		if devices[i].Name != d.Name || devices[i].ComputeCapability != d.ComputeCapability {
			t.Errorf("device %d: NVML says %s %s, CUDA %s %s", i, devices[i].Name, devices[i].ComputeCapability, d.Name, d.ComputeCapability)
		}
	}
	if seen.TensorRT.Version == "" || !strings.Contains(seen.CUDADriver, ".") {
		t.Errorf("TensorRT %q, CUDA %q, error %q", seen.TensorRT.Version, seen.CUDADriver, seen.TensorRT.Error)
	}
	r, err := gpu.New().Read(devices[0])
	if err != nil || r.PowerW <= 0 || r.TemperatureC <= 0 {
		t.Errorf("reading %+v, %v", r, err)
	}
}
