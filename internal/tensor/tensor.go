// Package tensor holds typed arrays as they travel between stages: element
// types, .npy and .npz files, and the kernels that compare a candidate with a
// reference.
package tensor

import "fmt"

// DType is an element type, by its ONNX name in lower case.
type DType string

// The element types.
const (
	Float64  DType = "float64"
	Float32  DType = "float32"
	Float16  DType = "float16"
	BFloat16 DType = "bfloat16"
	Float8E4 DType = "float8e4m3fn"
	Float8E5 DType = "float8e5m2"
	Int64    DType = "int64"
	Int32    DType = "int32"
	Int16    DType = "int16"
	Int8     DType = "int8"
	Int4     DType = "int4"
	UInt64   DType = "uint64"
	UInt32   DType = "uint32"
	UInt16   DType = "uint16"
	UInt8    DType = "uint8"
	UInt4    DType = "uint4"
	Bool     DType = "bool"
	String   DType = "string"
)

// Size returns the bytes of one element; 0 for String, and for the packed
// 4-bit types, whose arrays take (n+1)/2 bytes.
func (d DType) Size() int {
	switch d {
	case Float64, Int64, UInt64:
		return 8
	case Float32, Int32, UInt32:
		return 4
	case Float16, BFloat16, Int16, UInt16:
		return 2
	case Int8, UInt8, Bool, Float8E4, Float8E5:
		return 1
	}
	return 0
}

// Floating reports whether tolerances apply to elements of this type.
func (d DType) Floating() bool {
	switch d {
	case Float64, Float32, Float16, BFloat16, Float8E4, Float8E5:
		return true
	}
	return false
}

// ParseDType accepts the ONNX names and the usual aliases (fp32, half, bf16, long, ...).
func ParseDType(s string) (DType, error) {
	if d, ok := aliases[s]; ok {
		return d, nil
	}
	return "", fmt.Errorf("unknown data type %q", s)
}

var aliases = map[string]DType{
	"float64": Float64, "double": Float64, "fp64": Float64,
	"float32": Float32, "float": Float32, "fp32": Float32,
	"float16": Float16, "half": Float16, "fp16": Float16,
	"bfloat16": BFloat16, "bf16": BFloat16,
	"float8e4m3fn": Float8E4, "fp8": Float8E4, "float8e5m2": Float8E5,
	"int64": Int64, "long": Int64, "int32": Int32, "int": Int32, "int16": Int16, "int8": Int8, "int4": Int4,
	"uint64": UInt64, "uint32": UInt32, "uint16": UInt16, "uint8": UInt8, "uint4": UInt4,
	"bool": Bool, "string": String,
}

// Tensor is one dense array in C order. Data holds the elements little-endian,
// Strings the elements of a String tensor.
type Tensor struct {
	DType   DType
	Shape   []int64
	Data    []byte
	Strings []string
}

// Elements returns the number of elements of a shape; a scalar has one.
func Elements(shape []int64) int64 {
	n := int64(1)
	for _, d := range shape {
		n *= d
	}
	return n
}

// Elements returns the number of elements of t.
func (t Tensor) Elements() int64 { return Elements(t.Shape) }

// Named is a tensor with the name of the input or output it belongs to.
type Named struct {
	Name string
	Tensor
}
