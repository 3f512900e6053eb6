package ort

import "github.com/trtship/trtship/internal/tensor"

// onnxTypeTensor is ONNX_TYPE_TENSOR.
const onnxTypeTensor = 1

// elementTypes maps ONNXTensorElementDataType, which equals
// onnx.TensorProto.DataType, to our names.
var elementTypes = map[int32]tensor.DType{
	1: tensor.Float32, 2: tensor.UInt8, 3: tensor.Int8, 4: tensor.UInt16, 5: tensor.Int16,
	6: tensor.Int32, 7: tensor.Int64, 8: tensor.String, 9: tensor.Bool, 10: tensor.Float16,
	11: tensor.Float64, 12: tensor.UInt32, 13: tensor.UInt64, 16: tensor.BFloat16,
	17: tensor.Float8E4, 19: tensor.Float8E5, 21: tensor.UInt4, 22: tensor.Int4,
}

func elementCode(d tensor.DType) int32 {
	for code, o := range elementTypes {
		if o == d {
			return code
		}
	}
	return 0
}
