package onnx

import (
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/trtship/trtship/internal/onnx/onnxpb"
	"github.com/trtship/trtship/internal/tensor"
	"google.golang.org/protobuf/proto"
)

// caseFile returns the path of a file of the cases.
func caseFile(parts ...string) string {
	return filepath.Join(append([]string{"..", "..", "testdata", "cases"}, parts...)...)
}

// info declares a tensor; a negative size is left out, a string is a symbol.
func info(name string, dtype onnxpb.TensorProto_DataType, dims ...any) *onnxpb.ValueInfoProto {
	shape := &onnxpb.TensorShapeProto{}
	for _, d := range dims {
		dim := &onnxpb.TensorShapeProto_Dimension{}
		switch x := d.(type) {
		case int:
			dim.Value = &onnxpb.TensorShapeProto_Dimension_DimValue{DimValue: int64(x)}
		case string:
			dim.Value = &onnxpb.TensorShapeProto_Dimension_DimParam{DimParam: x}
		}
		shape.Dim = append(shape.Dim, dim)
	}
	elem := int32(dtype)
	return &onnxpb.ValueInfoProto{Name: &name, Type: &onnxpb.TypeProto{Value: &onnxpb.TypeProto_TensorType{
		TensorType: &onnxpb.TypeProto_Tensor{ElemType: &elem, Shape: shape},
	}}}
}

func node(op string, in, out []string, attrs ...*onnxpb.AttributeProto) *onnxpb.NodeProto {
	return &onnxpb.NodeProto{OpType: &op, Input: in, Output: out, Attribute: attrs}
}

func graphAttr(name string, g *onnxpb.GraphProto) *onnxpb.AttributeProto {
	return &onnxpb.AttributeProto{Name: &name, Type: onnxpb.AttributeProto_GRAPH.Enum(), G: g}
}

// model wraps a graph; opset 17, IR version 9.
func model(g *onnxpb.GraphProto) *onnxpb.ModelProto {
	if g.Name == nil {
		g.Name = proto.String("g")
	}
	return &onnxpb.ModelProto{
		IrVersion: proto.Int64(9), OpsetImport: []*onnxpb.OperatorSetIdProto{{Version: proto.Int64(17)}}, Graph: g,
	}
}

// relu is a graph of one node with an initializer of n floats that nothing
// reads.
func relu(n int) *onnxpb.ModelProto {
	g := &onnxpb.GraphProto{
		Node:  []*onnxpb.NodeProto{node("Relu", []string{"x"}, []string{"y"})},
		Input: []*onnxpb.ValueInfoProto{info("x", onnxpb.TensorProto_FLOAT, "n")}, Output: []*onnxpb.ValueInfoProto{info("y", onnxpb.TensorProto_FLOAT, "n")},
	}
	if n > 0 {
		v := make([]float32, n)
		for i := range v {
			v[i] = float32(i)
		}
		g.Initializer = append(g.Initializer, NewTensor("w", tensor.FromFloat32s([]int64{int64(n)}, v)))
	}
	return model(g)
}

func marshal(t testing.TB, p *onnxpb.ModelProto) []byte {
	t.Helper()
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// write puts bytes into a file of the test.
func write(t testing.TB, name string, b []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func openModel(t testing.TB, path string) *Model {
	t.Helper()
	m, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

func float32FromBits(b uint32) float32 { return math.Float32frombits(b) }
func float64FromBits(b uint64) float64 { return math.Float64frombits(b) }
