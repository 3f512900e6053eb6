package locate

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
	"github.com/trtship/trtship/internal/ort"
	"github.com/trtship/trtship/internal/precision"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/internal/testkit"
	"github.com/trtship/trtship/report"
)

func TestMain(m *testing.M) {
	ort.RunChildIfAsked()
	testkit.Main(m)
}

func floats(values ...float32) []byte {
	var b []byte
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}

// chain is a graph of Mul nodes n0, n1, ... whose factors are given; each node
// but the first reads the one before.
func chain(t *testing.T, factors ...float32) *onnx.Model {
	t.Helper()
	g := &onnxpb.GraphProto{Name: proto.String("chain")}
	in := "x"
	for i, f := range factors {
		w := onnx.NewTensor(fmt.Sprintf("w%d", i), tensor.Tensor{DType: tensor.Float32, Shape: []int64{1}, Data: floats(f)})
		g.Initializer = append(g.Initializer, w)
		out := fmt.Sprintf("v%d", i)
		if i == len(factors)-1 {
			out = "y"
		}
		g.Node = append(g.Node, &onnxpb.NodeProto{
			OpType: proto.String("Mul"), Name: proto.String(fmt.Sprintf("n%d", i)), Input: []string{in, w.GetName()}, Output: []string{out},
		})
		in = out
	}
	value := func(name string) *onnxpb.ValueInfoProto {
		elem := onnx.DataType(tensor.Float32)
		dim := &onnxpb.TensorShapeProto_Dimension{Value: &onnxpb.TensorShapeProto_Dimension_DimValue{DimValue: 4}}
		return &onnxpb.ValueInfoProto{Name: proto.String(name), Type: &onnxpb.TypeProto{Value: &onnxpb.TypeProto_TensorType{
			TensorType: &onnxpb.TypeProto_Tensor{ElemType: &elem, Shape: &onnxpb.TensorShapeProto{Dim: []*onnxpb.TensorShapeProto_Dimension{dim}}},
		}}}
	}
	g.Input, g.Output = []*onnxpb.ValueInfoProto{value("x")}, []*onnxpb.ValueInfoProto{value("y")}
	return onnx.New(&onnxpb.ModelProto{
		IrVersion: proto.Int64(8), Graph: g,
		OpsetImport: []*onnxpb.OperatorSetIdProto{{Domain: proto.String(""), Version: proto.Int64(17)}},
	}, t.TempDir())
}

func half(m *onnx.Model, keep []string) (*onnx.Model, error) {
	h, err := precision.ToHalf(m, precision.HalfOptions{
		DType: tensor.Float16, KeepIO: true, Keep: precision.NewSelection("quantize.keep_fp32", keep), Emulate: true,
	})
	if err != nil {
		return nil, err
	}
	return h.Model, nil
}

// options search with emulated float16, for this machine has no GPU. The
// rounding and the overflow are float16's; the kernels are not.
func options(t *testing.T) Options {
	t.Helper()
	runner := ORT{Library: ort.Library{Path: testkit.ORTLibrary(t)}, Scratch: t.TempDir()}
	feed := []tensor.Named{{Name: "x", Tensor: tensor.Tensor{DType: tensor.Float32, Shape: []int64{4}, Data: floats(1, -2, 3, 0.5)}}}
	return Options{
		Convert: half, Candidate: runner, Reference: runner, Feeds: [][]tensor.Named{feed},
		Tolerance: report.Tolerance{Atol: 1e-2, Rtol: 1e-2},
	}
}

func TestTheNodeThatOverflowsIsNamedWithinTheLimit(t *testing.T) {
	factors := []float32{1, 1, 2, 0.5, 1, 1, 1, 300, 300, 1.0 / 90000, 1, 1, 1, 1, 1, 1, 1}
	found, builds, err := First(context.Background(), chain(t, factors...), nil, options(t))
	if err != nil {
		t.Fatal(err)
	}
	if found == nil {
		t.Fatal("found nothing, want n8")
	}
	if found.Node != "n8" || found.Operator != "Mul" || found.Index != 8 || found.Nodes != len(factors) {
		t.Errorf("found %+v, want node n8, a Mul, at 8 of %d", found, len(factors))
	}
	if builds > Limit(len(factors)) || found.Limit != Limit(17) || Limit(17) != 14 {
		t.Errorf("%d builds, limit %d; want at most 14", builds, found.Limit)
	}
	if found.Row.Inf[1] == 0 || found.Row.Inf[0] != 0 {
		t.Errorf("infinities are %v, want them in the candidate only", found.Row.Inf)
	}
}

func TestAGraphThatHoldsHasNoSuchNode(t *testing.T) {
	found, builds, err := First(context.Background(), chain(t, 1, 2, 3), nil, options(t))
	if err != nil || found != nil || builds != 1 {
		t.Errorf("found %+v after %d builds (%v), want nothing after one", found, builds, err)
	}
}

func TestRepairKeepsNoMoreNodesThanNeeded(t *testing.T) {
	// n1 overflows, and n2 is handed a value that float16 cannot hold
	m := chain(t, 300, 300, 1.0/90000, 1, 300, 300, 1.0/90000)
	r, err := Repair(context.Background(), m, options(t), 8)
	if err != nil {
		t.Fatal(err)
	}
	o := options(t)
	if found, _, err := First(context.Background(), m, r.Keep, o); err != nil || found != nil {
		t.Errorf("with %v in float32 %+v still leaves (%v)", r.Keep, found, err)
	}
	for i := range r.Keep {
		fewer := append(append([]string(nil), r.Keep[:i]...), r.Keep[i+1:]...)
		found, _, err := First(context.Background(), m, fewer, o)
		if err != nil {
			t.Fatal(err)
		}
		if found == nil {
			t.Errorf("%s is kept in float32 without need (%v)", r.Keep[i], r.Keep)
		}
	}
}

func TestRepairGivesUpAtItsBound(t *testing.T) {
	m := chain(t, 300, 300, 1.0/90000, 1, 300, 300, 1.0/90000)
	_, err := Repair(context.Background(), m, options(t), 0)
	if failure.CodeOf(err) != failure.Tolerance || !strings.Contains(err.Error(), "n1") {
		t.Errorf("got %v, want exit code 6 naming n1", err)
	}
}

func TestASecondSampleCounts(t *testing.T) {
	o := options(t)
	big := tensor.Named{Name: "x", Tensor: tensor.Tensor{DType: tensor.Float32, Shape: []int64{4}, Data: floats(30000, 1, 1, 1)}}
	o.Feeds = append(o.Feeds, []tensor.Named{big})
	found, _, err := First(context.Background(), chain(t, 1, 1, 4, 0.25), nil, o)
	if err != nil {
		t.Fatal(err)
	}
	if found == nil || found.Node != "n2" || found.Sample != 1 {
		t.Errorf("found %+v, want n2 in sample 1", found)
	}
}
