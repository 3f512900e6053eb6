// Package onnxtest builds small ONNX models in Go for tests.
package onnxtest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
	"github.com/trtship/trtship/internal/tensor"
)

// Builder collects a graph. Its methods return it, to be chained.
type Builder struct {
	Graph  *onnxpb.GraphProto
	Opset  int64
	IR     int64
	Extra  []*onnxpb.OperatorSetIdProto
	Called []*onnxpb.FunctionProto
}

// New starts a graph for a version of ai.onnx.
func New(opset int64) *Builder {
	name := "g"
	return &Builder{Graph: &onnxpb.GraphProto{Name: &name}, Opset: opset, IR: 9}
}

// Info declares a tensor. Dims are ints and symbols; nil is a dimension without
// either.
func Info(name string, d tensor.DType, dims ...any) *onnxpb.ValueInfoProto {
	shape := &onnxpb.TensorShapeProto{}
	for _, x := range dims {
		dim := &onnxpb.TensorShapeProto_Dimension{}
		switch x := x.(type) {
		case int:
			dim.Value = &onnxpb.TensorShapeProto_Dimension_DimValue{DimValue: int64(x)}
		case string:
			dim.Value = &onnxpb.TensorShapeProto_Dimension_DimParam{DimParam: x}
		}
		shape.Dim = append(shape.Dim, dim)
	}
	elem := onnx.DataType(d)
	return &onnxpb.ValueInfoProto{Name: &name, Type: &onnxpb.TypeProto{Value: &onnxpb.TypeProto_TensorType{
		TensorType: &onnxpb.TypeProto_Tensor{ElemType: &elem, Shape: shape},
	}}}
}

// Input adds an input.
func (b *Builder) Input(name string, d tensor.DType, dims ...any) *Builder {
	b.Graph.Input = append(b.Graph.Input, Info(name, d, dims...))
	return b
}

// Output adds an output.
func (b *Builder) Output(name string, d tensor.DType, dims ...any) *Builder {
	b.Graph.Output = append(b.Graph.Output, Info(name, d, dims...))
	return b
}

// Init adds an initializer.
func (b *Builder) Init(name string, t tensor.Tensor) *Builder {
	b.Graph.Initializer = append(b.Graph.Initializer, onnx.NewTensor(name, t))
	return b
}

// Ints adds an int64 initializer of rank 1.
func (b *Builder) Ints(name string, values ...int64) *Builder {
	return b.Init(name, tensor.FromInt64s(tensor.Int64, []int64{int64(len(values))}, values))
}

// Int adds an int64 scalar.
func (b *Builder) Int(name string, value int64) *Builder {
	return b.Init(name, tensor.FromInt64s(tensor.Int64, []int64{}, []int64{value}))
}

// Floats adds a float32 initializer of a shape.
func (b *Builder) Floats(name string, shape []int64, values ...float32) *Builder {
	return b.Init(name, tensor.FromFloat32s(shape, values))
}

// Node adds a node named after its first output. In and out are lists of names
// with spaces between them; "-" is one that is left out. op may have a domain
// in front, as in com.microsoft::Gelu.
func (b *Builder) Node(op, in, out string, attrs ...*onnxpb.AttributeProto) *Builder {
	n := &onnxpb.NodeProto{OpType: &op, Input: list(in), Output: list(out), Attribute: attrs}
	if d, o, ok := strings.Cut(op, "::"); ok {
		n.Domain, n.OpType = &d, &o
	}
	name := "/" + strings.TrimPrefix(list(out)[0], "/")
	n.Name = &name
	b.Graph.Node = append(b.Graph.Node, n)
	return b
}

func list(s string) []string {
	names := strings.Fields(s)
	for i, n := range names {
		if n == "-" {
			names[i] = ""
		}
	}
	return names
}

// Import adds an operator set.
func (b *Builder) Import(domain string, version int64) *Builder {
	b.Extra = append(b.Extra, &onnxpb.OperatorSetIdProto{Domain: &domain, Version: &version})
	return b
}

// Function adds a function of the model.
func (b *Builder) Function(f *onnxpb.FunctionProto) *Builder {
	b.Called = append(b.Called, f)
	return b
}

// Proto returns the model without checking it.
func (b *Builder) Proto() *onnxpb.ModelProto {
	domain := ""
	sets := append([]*onnxpb.OperatorSetIdProto{{Domain: &domain, Version: &b.Opset}}, b.Extra...)
	return &onnxpb.ModelProto{IrVersion: &b.IR, OpsetImport: sets, Graph: b.Graph, Functions: b.Called}
}

// Model returns the model; the test fails if it does not hold together.
func (b *Builder) Model(t testing.TB) *onnx.Model {
	t.Helper()
	m := onnx.New(b.Proto(), "")
	if err := m.Check(); err != nil {
		t.Fatal(err)
	}
	return m
}

// Products is a chain of n matrix products, from input to y, both float32
// [batch, 64]: what takes longer the longer it is.
func Products(n int, input string) *Builder {
	b := New(17).Input(input, tensor.Float32, "batch", 64).Output("y", tensor.Float32, "batch", 64)
	b.Floats("w", []int64{64, 64}, slices.Repeat([]float32{1.0 / 64}, 64*64)...)
	from := input
	for i := range n {
		to := fmt.Sprintf("p%d", i)
		if i == n-1 {
			to = "y"
		}
		b.Node("MatMul", from+" w", to)
		from = to
	}
	return b
}

// Int makes an integer attribute.
func Int(name string, v int64) *onnxpb.AttributeProto {
	return &onnxpb.AttributeProto{Name: &name, Type: onnxpb.AttributeProto_INT.Enum(), I: &v}
}

// Ints makes an attribute that is a list of integers.
func Ints(name string, v ...int64) *onnxpb.AttributeProto {
	return &onnxpb.AttributeProto{Name: &name, Type: onnxpb.AttributeProto_INTS.Enum(), Ints: v}
}

// Float makes a float attribute.
func Float(name string, v float32) *onnxpb.AttributeProto {
	return &onnxpb.AttributeProto{Name: &name, Type: onnxpb.AttributeProto_FLOAT.Enum(), F: &v}
}

// String makes a string attribute.
func String(name, v string) *onnxpb.AttributeProto {
	return &onnxpb.AttributeProto{Name: &name, Type: onnxpb.AttributeProto_STRING.Enum(), S: []byte(v)}
}

// Tensor makes a tensor attribute.
func Tensor(name string, v tensor.Tensor) *onnxpb.AttributeProto {
	return &onnxpb.AttributeProto{Name: &name, Type: onnxpb.AttributeProto_TENSOR.Enum(), T: onnx.NewTensor("", v)}
}

// Body makes an attribute that is a graph.
func Body(name string, b *Builder) *onnxpb.AttributeProto {
	return &onnxpb.AttributeProto{Name: &name, Type: onnxpb.AttributeProto_GRAPH.Enum(), G: b.Graph}
}
