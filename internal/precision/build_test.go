package precision

import (
	"math/rand/v2"

	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
	"github.com/trtship/trtship/internal/tensor"
)

// value declares a float32 value; a dimension of 0 is dynamic.
func value(name string, dims ...int64) *onnxpb.ValueInfoProto {
	return typed(name, int32(onnxpb.TensorProto_FLOAT), dims...)
}

func typed(name string, code int32, dims ...int64) *onnxpb.ValueInfoProto {
	shape := &onnxpb.TensorShapeProto{}
	for _, d := range dims {
		dim := &onnxpb.TensorShapeProto_Dimension{Value: &onnxpb.TensorShapeProto_Dimension_DimValue{DimValue: d}}
		if d == 0 {
			dim.Value = &onnxpb.TensorShapeProto_Dimension_DimParam{DimParam: "batch"}
		}
		shape.Dim = append(shape.Dim, dim)
	}
	return &onnxpb.ValueInfoProto{Name: &name, Type: &onnxpb.TypeProto{Value: &onnxpb.TypeProto_TensorType{
		TensorType: &onnxpb.TypeProto_Tensor{ElemType: &code, Shape: shape},
	}}}
}

// weights returns a seeded constant.
func weights(name string, scale float64, dims ...int64) *onnxpb.TensorProto {
	r := rand.New(rand.NewPCG(uint64(len(name)), uint64(name[0])))
	v := make([]float32, tensor.Elements(dims))
	for i := range v {
		v[i] = float32(r.NormFloat64() * scale)
	}
	return onnx.NewTensor(name, tensor.FromFloat32s(dims, v))
}

func constant(name string, dims []int64, v ...float32) *onnxpb.TensorProto {
	return onnx.NewTensor(name, tensor.FromFloat32s(dims, v))
}

func whole(name string, v ...int64) *onnxpb.TensorProto {
	return onnx.NewTensor(name, tensor.FromInt64s(tensor.Int64, []int64{int64(len(v))}, v))
}

// build returns a model of the given opset.
func build(opset int64, in, out []*onnxpb.ValueInfoProto, constants []*onnxpb.TensorProto, nodes ...*onnxpb.NodeProto) *onnx.Model {
	ir, domain, name := int64(8), "", "g"
	return onnx.New(&onnxpb.ModelProto{
		IrVersion: &ir, OpsetImport: []*onnxpb.OperatorSetIdProto{{Domain: &domain, Version: &opset}},
		Graph: &onnxpb.GraphProto{Name: &name, Input: in, Output: out, Initializer: constants, Node: nodes},
	}, "")
}

func ints(name string, v ...int64) *onnxpb.AttributeProto {
	return &onnxpb.AttributeProto{Name: &name, Type: onnxpb.AttributeProto_INTS.Enum(), Ints: v}
}

// residual is a network with everything that placement has rules for: a
// convolution with bias, a residual block, max and average pooling, a
// concatenation, a transposed convolution, a Gemm and a MatMul.
func residual(opset int64) *onnx.Model {
	n := newNode
	return build(opset, []*onnxpb.ValueInfoProto{value("x", 0, 3, 8, 8)}, []*onnxpb.ValueInfoProto{value("y", 0, 5), value("up", 0, 4, 8, 8)},
		[]*onnxpb.TensorProto{
			weights("w1", 0.3, 4, 3, 3, 3), weights("b1", 0.1, 4), weights("w2", 0.2, 4, 4, 3, 3), weights("w3", 0.2, 4, 4, 3, 3), weights("b3", 0.1, 4),
			weights("wt", 0.2, 8, 4, 2, 2), weights("wg", 0.3, 6, 8), weights("bg", 0.1, 6), weights("wm", 0.3, 6, 5),
		},
		n("Conv", "/conv1", []string{"x", "w1", "b1"}, []string{"c1"}, ints("pads", 1, 1, 1, 1)),
		n("Relu", "/relu1", []string{"c1"}, []string{"r1"}),
		n("Conv", "/conv2", []string{"r1", "w2"}, []string{"c2"}, ints("pads", 1, 1, 1, 1)),
		n("Relu", "/relu2", []string{"c2"}, []string{"r2"}),
		n("Conv", "/conv3", []string{"r2", "w3", "b3"}, []string{"c3"}, ints("pads", 1, 1, 1, 1)),
		n("Add", "/add", []string{"c3", "r1"}, []string{"a"}),
		n("Relu", "/relu3", []string{"a"}, []string{"r3"}),
		n("MaxPool", "/pool", []string{"r3"}, []string{"p"}, ints("kernel_shape", 2, 2), ints("strides", 2, 2)),
		n("Concat", "/cat", []string{"p", "p"}, []string{"k"}, intAttribute("axis", 1)),
		n("ConvTranspose", "/up", []string{"k", "wt"}, []string{"up"}, ints("strides", 2, 2)),
		n("GlobalAveragePool", "/mean", []string{"k"}, []string{"m"}),
		n("Flatten", "/flat", []string{"m"}, []string{"f"}),
		n("Gemm", "/fc", []string{"f", "wg", "bg"}, []string{"g"}, intAttribute("transB", 1)),
		n("MatMul", "/mm", []string{"g", "wm"}, []string{"y"}),
	)
}

// picture is a feed of residual.
func picture(batch int64) tensor.Named {
	r := rand.New(rand.NewPCG(5, 6))
	v := make([]float32, batch*3*8*8)
	for i := range v {
		v[i] = float32(r.NormFloat64())
	}
	return feed("x", []int64{batch, 3, 8, 8}, v...)
}
