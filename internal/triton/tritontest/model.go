package tritontest

import (
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/trtship/trtship/internal/onnx/onnxpb"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/internal/validation"
)

// Value declares an input or output of a small ONNX model. Dims are int sizes
// or string symbols.
func Value(name string, elem onnxpb.TensorProto_DataType, dims ...any) *onnxpb.ValueInfoProto {
	shape := &onnxpb.TensorShapeProto{}
	for _, d := range dims {
		dim := &onnxpb.TensorShapeProto_Dimension{}
		switch d := d.(type) {
		case int:
			dim.Value = &onnxpb.TensorShapeProto_Dimension_DimValue{DimValue: int64(d)}
		case string:
			dim.Value = &onnxpb.TensorShapeProto_Dimension_DimParam{DimParam: d}
		}
		shape.Dim = append(shape.Dim, dim)
	}
	return &onnxpb.ValueInfoProto{Name: proto.String(name), Type: &onnxpb.TypeProto{Value: &onnxpb.TypeProto_TensorType{
		TensorType: &onnxpb.TypeProto_Tensor{ElemType: proto.Int32(int32(elem)), Shape: shape},
	}}}
}

// Node is one operator; ints become attributes.
func Node(op string, inputs, outputs []string, ints map[string][]int64) *onnxpb.NodeProto {
	n := &onnxpb.NodeProto{OpType: proto.String(op), Name: proto.String("/" + op + "_" + outputs[0]), Input: inputs, Output: outputs}
	for name, v := range ints {
		a := &onnxpb.AttributeProto{Name: proto.String(name)}
		if len(v) == 1 && name != "axes" {
			a.Type, a.I = onnxpb.AttributeProto_INT.Enum(), proto.Int64(v[0])
		} else {
			a.Type, a.Ints = onnxpb.AttributeProto_INTS.Enum(), v
		}
		n.Attribute = append(n.Attribute, a)
	}
	return n
}

// WriteModel writes an ONNX file of operator set 13.
func WriteModel(t testing.TB, path string, inputs, outputs []*onnxpb.ValueInfoProto, nodes ...*onnxpb.NodeProto) {
	t.Helper()
	m := &onnxpb.ModelProto{
		IrVersion:   proto.Int64(8),
		OpsetImport: []*onnxpb.OperatorSetIdProto{{Domain: proto.String(""), Version: proto.Int64(13)}},
		Graph:       &onnxpb.GraphProto{Name: proto.String("g"), Input: inputs, Output: outputs, Node: nodes},
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
}

// WriteReference writes a reference artifact for the one input x of shape
// [batch, width]: feeds at batches 1, 2 and 4, and what answer makes of them.
func WriteReference(t testing.TB, width int64, answer func(x []float32, batch int) []tensor.Named) string {
	t.Helper()
	dir := t.TempDir()
	plan := validation.Plan{
		Inputs:  []validation.Input{{Name: "x", DType: tensor.Float32, Range: tensor.Range{}, Batch: true, Rank: 2}},
		Samples: 2, Seed: 1, MinBatch: 1,
	}
	for _, p := range []struct {
		name  string
		batch int64
	}{{"min", 1}, {"opt", 2}, {"max", 4}} {
		plan.Points = append(plan.Points, validation.Point{Name: p.name, Shapes: map[string][]int64{"x": {p.batch, width}}})
	}
	ref, err := validation.WriteFeeds(dir, plan)
	if err != nil {
		t.Fatal(err)
	}
	var names []validation.Array
	for _, f := range ref.Feeds() {
		feed, err := tensor.ReadNPZ(f.In)
		if err != nil {
			t.Fatal(err)
		}
		out := answer(Floats(feed[0].Tensor), int(feed[0].Shape[0]))
		names = names[:0]
		for _, o := range out {
			names = append(names, validation.Array{Name: o.Name, DType: o.DType})
		}
		if err := tensor.WriteNPZ(f.Out, out); err != nil {
			t.Fatal(err)
		}
	}
	if err := ref.Save("the test's own arithmetic", names); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Floats returns the elements of a float32 tensor.
func Floats(t tensor.Tensor) []float32 {
	out := make([]float32, len(t.Data)/4)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(t.Data[4*i:]))
	}
	return out
}

// Tensor makes a float32 tensor.
func Tensor(name string, shape []int64, values ...float32) tensor.Named {
	t := tensor.Tensor{DType: tensor.Float32, Shape: shape}
	for _, v := range values {
		t.Data = binary.LittleEndian.AppendUint32(t.Data, math.Float32bits(v))
	}
	return tensor.Named{Name: name, Tensor: t}
}
