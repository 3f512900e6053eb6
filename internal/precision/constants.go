package precision

import (
	"fmt"

	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
	"github.com/trtship/trtship/internal/tensor"
)

// convertConstant adds a copy of a float32 constant in the low type.
func (h *half) convertConstant(value string, t *onnxpb.TensorProto, reader string) (string, error) {
	data, err := h.model.TensorData(t)
	if err != nil {
		return "", err
	}
	low, err := data.Convert(h.DType)
	if err != nil {
		return "", fmt.Errorf("convert %s: %w", value, err)
	}
	h.constantRange(value, reader, data, low)
	if h.Emulate {
		if low, err = low.Convert(tensor.Float32); err != nil {
			return "", fmt.Errorf("convert %s: %w", value, err)
		}
	}
	name := h.names.Fresh(value + "_" + string(h.DType))
	h.added = append(h.added, onnx.NewTensor(name, low))
	h.define(value, h.DType, name)
	h.define(value, tensor.Float32, value)
	return name, nil
}

// constant records a Constant node's value.
func (h *half) constant(n *onnxpb.NodeProto) {
	name := n.GetOutput()[0]
	h.source[name] = fromConstant
	if t := constantTensor(n); t != nil && t.GetDataType() == int32(onnxpb.TensorProto_FLOAT) {
		h.constants[name] = t
	}
}

// constantTensor returns a Constant node's value if it is floating-point.
func constantTensor(n *onnxpb.NodeProto) *onnxpb.TensorProto {
	for _, a := range n.GetAttribute() {
		switch a.GetName() {
		case "value":
			return a.GetT()
		case "value_float":
			return onnx.NewTensor("", tensor.FromFloat32s([]int64{}, []float32{a.GetF()}))
		case "value_floats":
			return onnx.NewTensor("", tensor.FromFloat32s([]int64{int64(len(a.GetFloats()))}, a.GetFloats()))
		}
	}
	return nil
}

// trace records whether n's outputs follow from shapes alone.
func (h *half) trace(n *onnxpb.NodeProto) {
	origin := fromConstant
	switch n.GetOpType() {
	case "Shape", "Size":
		origin = fromShape
	case "Gather", "GatherND", "GatherElements": // rows of a table are data, whatever chose them
		if origin = h.originOf(n.GetInput()[0]); origin == fromConstant && h.types.of(n.GetInput()[0]) == tensor.Float32 {
			origin = fromData
		}
	default:
		if len(n.GetInput()) == 0 || hasGraphs(n) {
			origin = fromData
		}
		for _, in := range n.GetInput() {
			if in == "" {
				continue
			}
			switch h.originOf(in) {
			case fromData:
				origin = fromData
			case fromShape:
				if origin == fromConstant {
					origin = fromShape
				}
			}
			if origin == fromData {
				break
			}
		}
	}
	for _, o := range n.GetOutput() {
		h.source[o] = origin
	}
}

func (h *half) originOf(name string) valueOrigin {
	for s := h; s != nil; s = s.outer {
		if o, ok := s.source[name]; ok {
			return o
		}
	}
	return fromData
}
