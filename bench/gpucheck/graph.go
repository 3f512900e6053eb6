package main

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"

	"google.golang.org/protobuf/proto"

	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
	"github.com/trtship/trtship/internal/tensor"
)

// chain is a graph y = x·W0·W1·… with a Relu behind every product. Products do
// not fuse with each other, so that every value between them exists. scale
// gives the factor of a product, which is about 1 in size otherwise.
func chain(rows, width int64, products int, scale map[int]float32) *onnx.Model {
	g := &onnxpb.GraphProto{Name: proto.String("chain")}
	in := "x"
	for i := range products {
		w := fmt.Sprintf("w%d", i)
		g.Initializer = append(g.Initializer, onnx.NewTensor(w, weights(width, i, scale[i])))
		product, out := fmt.Sprintf("p%d", i), fmt.Sprintf("r%d", i)
		if i == products-1 {
			out = "y"
		}
		g.Node = append(g.Node,
			&onnxpb.NodeProto{OpType: proto.String("MatMul"), Name: proto.String(fmt.Sprintf("matmul_%d", i)), Input: []string{in, w}, Output: []string{product}},
			&onnxpb.NodeProto{OpType: proto.String("Relu"), Name: proto.String(fmt.Sprintf("relu_%d", i)), Input: []string{product}, Output: []string{out}})
		in = out
	}
	g.Input, g.Output = []*onnxpb.ValueInfoProto{value("x", rows, width)}, []*onnxpb.ValueInfoProto{value("y", rows, width)}
	return onnx.New(&onnxpb.ModelProto{
		IrVersion: proto.Int64(8), Graph: g,
		OpsetImport: []*onnxpb.OperatorSetIdProto{{Domain: proto.String(""), Version: proto.Int64(17)}},
	}, ".")
}

// weights keep the size of what they are multiplied with: positive, and each
// column sums to the scale.
func weights(width int64, seed int, scale float32) tensor.Tensor {
	if scale == 0 {
		scale = 1
	}
	r := rand.New(rand.NewPCG(uint64(seed), 1)) //nolint:gosec // test data, not a secret
	values := make([]float32, width*width)
	for i := range values {
		values[i] = scale * 2 * r.Float32() / float32(width)
	}
	return tensor.Tensor{DType: tensor.Float32, Shape: []int64{width, width}, Data: floats(values)}
}

func value(name string, dims ...int64) *onnxpb.ValueInfoProto {
	elem := onnx.DataType(tensor.Float32)
	shape := &onnxpb.TensorShapeProto{}
	for _, d := range dims {
		shape.Dim = append(shape.Dim, &onnxpb.TensorShapeProto_Dimension{Value: &onnxpb.TensorShapeProto_Dimension_DimValue{DimValue: d}})
	}
	return &onnxpb.ValueInfoProto{Name: proto.String(name), Type: &onnxpb.TypeProto{
		Value: &onnxpb.TypeProto_TensorType{TensorType: &onnxpb.TypeProto_Tensor{ElemType: &elem, Shape: shape}},
	}}
}

func floats(values []float32) []byte {
	b := make([]byte, 0, 4*len(values))
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}

// feedFor makes an input of positive values of about 1.
func feedFor(rows, width int64) []tensor.Named {
	r := rand.New(rand.NewPCG(42, 1)) //nolint:gosec // test data, not a secret
	values := make([]float32, rows*width)
	for i := range values {
		values[i] = 0.5 + r.Float32()
	}
	return []tensor.Named{{Name: "x", Tensor: tensor.Tensor{DType: tensor.Float32, Shape: []int64{rows, width}, Data: floats(values)}}}
}
