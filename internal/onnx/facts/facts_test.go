package facts_test

import (
	"encoding/binary"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/onnx/facts"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/internal/testkit"
)

func open(t *testing.T, path string) *onnx.Model {
	t.Helper()
	m, err := onnx.Open(filepath.Join(testkit.Root(t), "testdata", "cases", path))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

func TestTrainingModeIsFoundByNode(t *testing.T) {
	for file, want := range map[string]int{"dropout_train.onnx": 1, "bn_train.onnx": 1, "dropout_eval.onnx": 0} {
		if got := facts.Training(open(t, "e03-training-mode-ops/"+file)); len(got) != want {
			t.Errorf("%s: %v, want %d nodes", file, got, want)
		}
	}
}

func TestRandomOperatorsAreFoundEverywhere(t *testing.T) {
	for file, want := range map[string]int{
		"unseeded.onnx": 1, "seeded.onnx": 1, "like.onnx": 1, "two_draws_cse_trap.onnx": 2, "inside_if.onnx": 1,
	} {
		if got := facts.Random(open(t, "r07-random-ops/"+file)); len(got) != want {
			t.Errorf("%s: %v, want %d nodes", file, got, want)
		}
	}
}

func kinds(t *testing.T, m *onnx.Model) map[string][]string {
	t.Helper()
	found, err := facts.Findings(m)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]string{}
	for _, f := range found {
		out[f.Kind] = append(out[f.Kind], f.Nodes...)
	}
	return out
}

func TestValuesOutsideFP16AreNamedWithTheLargest(t *testing.T) {
	got := strings.Join(kinds(t, open(t, "r03-fp16-range/weights_out_of_range.onnx"))["fp16-range"], "\n")
	for _, text := range []string{"w (", "largest 100000", "smallest 6e-09"} {
		if !strings.Contains(got, text) {
			t.Errorf("finding lacks %q:\n%s", text, got)
		}
	}
}

// tensorOf makes an initializer from numbers of a fixed size.
func tensorOf(name string, d tensor.DType, n int64, values any) *onnxpb.TensorProto {
	data, err := binary.Append(nil, binary.LittleEndian, values)
	if err != nil {
		panic(err)
	}
	return onnx.NewTensor(name, tensor.Tensor{DType: d, Shape: []int64{n}, Data: data})
}

func TestDoublesAreJudgedToo(t *testing.T) {
	double := tensorOf("double", tensor.Float64, 3, []float64{0, 1e-9, 7e4})
	ir, version, domain := int64(8), int64(17), ""
	m := onnx.New(&onnxpb.ModelProto{
		IrVersion: &ir, OpsetImport: []*onnxpb.OperatorSetIdProto{{Domain: &domain, Version: &version}},
		Graph: &onnxpb.GraphProto{Initializer: []*onnxpb.TensorProto{double}},
	}, "")
	want := map[string][]string{"fp16-range": {"double (1 of 3 values, largest 70000)", "double (1 of 3 values, smallest 1e-09)"}}
	if d := cmp.Diff(want, kinds(t, m)); d != "" {
		t.Errorf("findings (-want +got):\n%s", d)
	}
}

func TestIndicesAreBoundByTheSmallestTable(t *testing.T) {
	got := facts.IntegerRanges(open(t, "r05-token-ids/model.onnx"))
	high := map[string]int64{}
	for _, r := range got {
		high[r.Input] = r.High
	}
	if d := cmp.Diff(map[string]int64{"input_ids": 9, "token_type_ids": 1}, high); d != "" {
		t.Errorf("largest index (-want +got):\n%s", d)
	}
}

func TestAParameterIsAWeightAndNotAShape(t *testing.T) {
	m := open(t, "e04-external-data/model.onnx")
	elements, bytes, types := facts.Parameters(m)
	if elements == 0 || bytes != 4*elements || types["float32"] != elements || types["int64"] != 0 {
		t.Errorf("%d elements, %d bytes, %v", elements, bytes, types)
	}
	if counts := facts.Operators(m); len(counts) == 0 {
		t.Error("no operators")
	}
}

func TestADefaultIsAFinding(t *testing.T) {
	if got := kinds(t, open(t, "o01-initializers-as-inputs/ir4_overridable.onnx"))["overridable-initializer"]; !slices.Contains(got, "b") {
		t.Errorf("overridable %v, want b among them", got)
	}
	if got := kinds(t, open(t, "o01-initializers-as-inputs/ir3.onnx")); got["overridable-initializer"] != nil {
		t.Errorf("findings %v: before IR 4 an initializer among the inputs is a weight", got)
	}
}
