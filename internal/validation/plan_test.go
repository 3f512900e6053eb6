package validation

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
	"github.com/trtship/trtship/internal/ort"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/report"
)

func load(t *testing.T, text string) *config.Config {
	t.Helper()
	path := filepath.Join(t.TempDir(), "trtship.yaml")
	text = strings.ReplaceAll(text, "FILE", caseFile(t, "e01-baked-batch", "reshape.onnx"))
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(path, config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

const declared = `
model:
  name: m
  kind: onnx
  path: FILE
  inputs:
    - {name: ids, dtype: int64, shape: [batch, seq], range: [0, 9]}
    - {name: types, dtype: int64, shape: [batch, seq]}
    - {name: bias, dtype: float32, shape: []}
target: onnxruntime
tensorrt:
  profiles:
    - inputs:
        ids: {min: [2, 4], opt: [4, 8], max: [8, 16]}
        types: {min: [2, 4], opt: [4, 8], max: [8, 16]}
validation: {num_samples: 3, seed: 5}
`

func TestAPlanFollowsTheConfiguration(t *testing.T) {
	cfg := load(t, declared)
	p, err := PlanOf(cfg, nil, []report.IntegerRange{{Input: "types", High: 1}, {Input: "ids", High: 99}})
	if err != nil {
		t.Fatal(err)
	}
	want := []Input{
		{Name: "ids", DType: tensor.Int64, Range: tensor.Range{Low: "0", High: "9"}, Batch: true, Rank: 2},
		{Name: "types", DType: tensor.Int64, Range: tensor.Range{Low: "0", High: "1"}, Batch: true, Rank: 2},
		{Name: "bias", DType: tensor.Float32},
	}
	if diff := cmp.Diff(want, p.Inputs); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if p.Samples != 3 || p.Seed != 5 || p.MinBatch != 2 {
		t.Errorf("plan %+v", p)
	}
	var points []string
	for _, q := range p.Points {
		points = append(points, fmt.Sprint(q.Name, q.Shapes["ids"], q.Shapes["bias"]))
	}
	if diff := cmp.Diff([]string{"min[2 4] []", "opt[4 8] []", "max[8 16] []"}, points[:3]); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	ref, err := WriteFeeds(t.TempDir(), p)
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range ref.Points {
		for _, s := range q.Samples {
			feed, err := ref.In(s)
			if err != nil {
				t.Fatal(err)
			}
			for i, high := range []int64{9, 1} {
				for _, v := range feed[i].Int64s() {
					if v < 0 || v > high {
						t.Fatalf("%s at %s is %d, outside [0, %d]", feed[i].Name, q.Name, v, high)
					}
				}
			}
		}
	}
}

func TestAPlanWithoutDeclaredInputsFollowsTheGraph(t *testing.T) {
	cfg := load(t, "model: {name: m, kind: onnx, path: FILE}\ntarget: onnxruntime\ntensorrt:\n  profiles:\n    - inputs:\n        x: {min: [1, 8], opt: [4, 8], max: [8, 8]}\n")
	found := []ort.ValueInfo{
		{Name: "x", DType: tensor.Float32, Dims: []int64{-1, 8}},
		{Name: "w", DType: tensor.Float16, Dims: []int64{2}},
	}
	p, err := PlanOf(cfg, found, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []Input{{Name: "x", DType: tensor.Float32, Rank: 2, Batch: true}, {Name: "w", DType: tensor.Float16, Rank: 1}}
	if diff := cmp.Diff(want, p.Inputs); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if diff := cmp.Diff([]int64{2}, p.Points[0].Shapes["w"]); diff != "" {
		t.Errorf("the graph's own fixed shape: %s", diff)
	}
	found[1].Dims[0] = -1
	if _, err := PlanOf(cfg, found, nil); failure.CodeOf(err) != failure.Usage || !strings.Contains(err.Error(), "dynamic in axis 0") {
		t.Errorf("a dynamic input without a profile: %v", err)
	}
	if _, err := PlanOf(cfg, []ort.ValueInfo{{Name: "s"}}, nil); failure.CodeOf(err) != failure.Model {
		t.Errorf("an input that is no tensor: %v", err)
	}
}

func TestTheBatchOfATask(t *testing.T) {
	data := filepath.Join(t.TempDir(), "d.npz")
	if err := tensor.WriteNPZ(data, []tensor.Named{{Name: "labels", Tensor: tensor.Zeros(tensor.Int64, 1)}}); err != nil {
		t.Fatal(err)
	}
	task := func(more string) string { return "validation: {task: {data: " + data + more + "}}\n" }
	fixed := "model:\n  name: m\n  kind: onnx\n  path: FILE\n  inputs: [{name: x, dtype: float32, shape: [6, 8]}]\ntarget: onnxruntime\n"
	dynamic := strings.Replace(declared, "validation: {num_samples: 3, seed: 5}\n", "", 1)
	for name, c := range map[string]struct {
		text string
		want int64
	}{
		"as configured":        {dynamic + task(", batch: 3"), 3},
		"the profile's opt":    {dynamic + task(""), 4},
		"the fixed first size": {fixed + task(""), 6},
	} {
		p, err := PlanOf(load(t, c.text), nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		if p.Task == nil || p.Task.Batch != c.want || p.Task.Labels != "labels" {
			t.Errorf("%s: %+v, want batch %d", name, p.Task, c.want)
		}
	}
}

func TestIntegerRangesLookThroughNodesThatMoveValues(t *testing.T) {
	node := func(op string, in, out string, more ...string) *onnxpb.NodeProto {
		return &onnxpb.NodeProto{OpType: proto.String(op), Name: proto.String("/" + op), Input: append([]string{in}, more...), Output: []string{out}}
	}
	table := func(name string, rows int64) *onnxpb.TensorProto {
		return &onnxpb.TensorProto{Name: proto.String(name), DataType: proto.Int32(1), Dims: []int64{rows, 1}, RawData: make([]byte, 4*rows)}
	}
	int64s := func(name string) *onnxpb.ValueInfoProto {
		return &onnxpb.ValueInfoProto{Name: proto.String(name), Type: &onnxpb.TypeProto{Value: &onnxpb.TypeProto_TensorType{TensorType: &onnxpb.TypeProto_Tensor{
			ElemType: proto.Int32(7), Shape: &onnxpb.TensorShapeProto{Dim: []*onnxpb.TensorShapeProto_Dimension{{Value: &onnxpb.TensorShapeProto_Dimension_DimParam{DimParam: "n"}}}},
		}}}}
	}
	float := &onnxpb.ValueInfoProto{Name: proto.String("f"), Type: &onnxpb.TypeProto{Value: &onnxpb.TypeProto_TensorType{TensorType: &onnxpb.TypeProto_Tensor{ElemType: proto.Int32(1)}}}}
	cast := node("Cast", "big", "wide")
	cast.Attribute = []*onnxpb.AttributeProto{{Name: proto.String("to"), Type: onnxpb.AttributeProto_INT.Enum(), I: proto.Int64(1)}}
	last := node("Gather", "side", "g3", "d")
	last.Attribute = []*onnxpb.AttributeProto{{Name: proto.String("axis"), Type: onnxpb.AttributeProto_INT.Enum(), I: proto.Int64(-2)}}
	g := &onnxpb.GraphProto{
		Name:  proto.String("g"),
		Input: []*onnxpb.ValueInfoProto{int64s("a"), int64s("b"), int64s("c"), int64s("d"), int64s("e"), float},
		Node: []*onnxpb.NodeProto{
			node("Identity", "a", "a2"), node("Gather", "big", "g0", "a2"), node("Gather", "small", "g1", "a2"), // the smaller one decides
			cast, node("Gather", "wide", "g2", "b"), // a table behind a cast
			node("Add", "c", "c2", "c"), node("Gather", "big", "g4", "c2"), // an Add changes values
			last,                           // an axis from the end
			node("Gather", "e", "g5", "a"), // indices of data, no table
		},
		Output:      []*onnxpb.ValueInfoProto{{Name: proto.String("g0"), Type: float.Type}},
		Initializer: []*onnxpb.TensorProto{table("big", 30), table("small", 7), table("side", 4)},
	}
	b, err := proto.Marshal(&onnxpb.ModelProto{IrVersion: proto.Int64(9), Graph: g, OpsetImport: []*onnxpb.OperatorSetIdProto{{Version: proto.Int64(17)}}})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "m.onnx")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := onnx.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	want := []report.IntegerRange{
		{Input: "a", High: 6, Source: "Gather /Gather (table of 7 rows)"},
		{Input: "b", High: 29, Source: "Gather /Gather (table of 30 rows)"},
		{Input: "d", High: 3, Source: "Gather /Gather (table of 4 rows)"},
	}
	if diff := cmp.Diff(want, IntegerRanges(m)); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

func TestAGraphThatDoesNotLoadIsACheck(t *testing.T) {
	// Two nodes of one name: the reader lets them pass, ONNX Runtime does not.
	ref := reference(t, batches(8, 1), rowMeans)
	v, checks := judgeCase(t, ref, options(t), "o06-order-and-names", "same_node_name.onnx")
	if len(checks) != 1 || checks[0].ID != "validate/loads" || checks[0].Verdict != report.Fail || !strings.Contains(checks[0].Detail, "same node name") {
		t.Errorf("checks %+v", checks)
	}
	if v.Reference == "" || len(v.Notes) == 0 {
		t.Errorf("report %+v", v)
	}
	if _, _, err := JudgeGraph(t.Context(), ort.Library{}, caseFile(t, "e01-baked-batch", "reshape.onnx"), ref, ort.Options{}, options(t)); failure.CodeOf(err) != failure.Missing {
		t.Errorf("without ONNX Runtime: %v", err)
	}
	if _, _, err := JudgeGraph(t.Context(), library(t), caseFile(t, "o14-not-a-model", "html.onnx"), ref, ort.Options{}, options(t)); failure.CodeOf(err) != failure.Model {
		t.Errorf("no model: %v", err)
	}
}

func TestSessionsOfValidationAreUnoptimisedWithFixedThreads(t *testing.T) {
	o := SessionOptions(config.Validation{Threads: 0, MemoryMB: 7, TimeoutS: 3}, nil)
	if o.Threads != 1 || o.GraphOptimization != ort.OptimizeOff || o.MemoryMB != 7 || o.Timeout.Seconds() != 3 {
		t.Errorf("options %+v", o)
	}
}
