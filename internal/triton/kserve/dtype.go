package kserve

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/internal/triton/tritonpb"
)

// types is the one table of element types: ours, the protocol's, the
// configuration's.
var types = []struct {
	tensor tensor.DType
	wire   string
	config tritonpb.DataType
}{
	{tensor.Bool, "BOOL", tritonpb.DataType_TYPE_BOOL},
	{tensor.UInt8, "UINT8", tritonpb.DataType_TYPE_UINT8},
	{tensor.UInt16, "UINT16", tritonpb.DataType_TYPE_UINT16},
	{tensor.UInt32, "UINT32", tritonpb.DataType_TYPE_UINT32},
	{tensor.UInt64, "UINT64", tritonpb.DataType_TYPE_UINT64},
	{tensor.Int8, "INT8", tritonpb.DataType_TYPE_INT8},
	{tensor.Int16, "INT16", tritonpb.DataType_TYPE_INT16},
	{tensor.Int32, "INT32", tritonpb.DataType_TYPE_INT32},
	{tensor.Int64, "INT64", tritonpb.DataType_TYPE_INT64},
	{tensor.Float16, "FP16", tritonpb.DataType_TYPE_FP16},
	{tensor.BFloat16, "BF16", tritonpb.DataType_TYPE_BF16},
	{tensor.Float32, "FP32", tritonpb.DataType_TYPE_FP32},
	{tensor.Float64, "FP64", tritonpb.DataType_TYPE_FP64},
	{tensor.String, "BYTES", tritonpb.DataType_TYPE_STRING},
}

// WireType returns the protocol's name of an element type, such as "FP32".
// Types that Triton does not know (FP8, INT4) are an error.
func WireType(d tensor.DType) (string, error) {
	for _, t := range types {
		if t.tensor == d {
			return t.wire, nil
		}
	}
	return "", fmt.Errorf("data type %s cannot travel to Triton", d)
}

// ConfigType returns the configuration's value of an element type, such as
// TYPE_FP32; ok is false for types that Triton does not know.
func ConfigType(d tensor.DType) (t tritonpb.DataType, ok bool) {
	for _, t := range types {
		if t.tensor == d {
			return t.config, true
		}
	}
	return tritonpb.DataType_TYPE_INVALID, false
}

// FromConfig returns the element type of a configuration's value.
func FromConfig(c tritonpb.DataType) (d tensor.DType, ok bool) {
	for _, t := range types {
		if t.config == c {
			return t.tensor, true
		}
	}
	return "", false
}

// FromWire returns the element type of a protocol name.
func FromWire(name string) (tensor.DType, error) {
	for _, t := range types {
		if t.wire == name {
			return t.tensor, nil
		}
	}
	return "", fmt.Errorf("unknown data type %q", name)
}

// elements counts a shape's elements and refuses negative sizes and counts
// beyond the address space, so that a reply cannot make us allocate at will.
func elements(shape []int64) (int64, error) {
	n := int64(1)
	for _, d := range shape {
		if d < 0 {
			return 0, fmt.Errorf("shape %v has a negative size", shape)
		}
		if d != 0 && n > math.MaxInt64/16/d {
			return 0, fmt.Errorf("shape %v is too large", shape)
		}
		n *= d
	}
	return n, nil
}

// Encode returns the binary form of t: elements little-endian, strings each
// behind a 4-byte little-endian length.
func Encode(t tensor.Tensor) ([]byte, error) {
	n, err := elements(t.Shape)
	if err != nil {
		return nil, err
	}
	if t.DType == tensor.String {
		if int64(len(t.Strings)) != n {
			return nil, fmt.Errorf("shape %v has %d elements, %d strings are there", t.Shape, n, len(t.Strings))
		}
		size := 0
		for _, s := range t.Strings {
			size += 4 + len(s)
		}
		out := make([]byte, 0, size)
		for _, s := range t.Strings {
			out = binary.LittleEndian.AppendUint32(out, uint32(len(s)))
			out = append(out, s...)
		}
		return out, nil
	}
	if want := n * int64(t.DType.Size()); int64(len(t.Data)) != want {
		return nil, fmt.Errorf("shape %v of %s takes %d bytes, %d are there", t.Shape, t.DType, want, len(t.Data))
	}
	return t.Data, nil
}

// Decode makes a tensor of its binary form. The bytes are not copied.
func Decode(d tensor.DType, shape []int64, raw []byte) (tensor.Tensor, error) {
	n, err := elements(shape)
	if err != nil {
		return tensor.Tensor{}, err
	}
	t := tensor.Tensor{DType: d, Shape: shape}
	if t.Shape == nil {
		t.Shape = []int64{}
	}
	if d == tensor.String {
		t.Strings, err = decodeStrings(raw, n)
		return t, err
	}
	if want := n * int64(d.Size()); int64(len(raw)) != want {
		return t, fmt.Errorf("shape %v of %s takes %d bytes, the server sent %d", shape, d, want, len(raw))
	}
	t.Data = raw
	return t, nil
}

func decodeStrings(raw []byte, n int64) ([]string, error) {
	if n > int64(len(raw)/4) {
		return nil, fmt.Errorf("%d strings need at least %d bytes, the server sent %d", n, 4*n, len(raw))
	}
	out := make([]string, 0, n)
	rest := raw
	for i := int64(0); i < n; i++ {
		if len(rest) < 4 {
			return nil, fmt.Errorf("string %d of %d has no length: the data ends after %d bytes", i, n, len(raw))
		}
		size := binary.LittleEndian.Uint32(rest)
		rest = rest[4:]
		if uint64(size) > uint64(len(rest)) {
			return nil, fmt.Errorf("string %d of %d is %d bytes long, %d are left", i, n, size, len(rest))
		}
		out = append(out, string(rest[:size]))
		rest = rest[size:]
	}
	if len(rest) != 0 {
		return nil, fmt.Errorf("%d bytes are left after %d strings", len(rest), n)
	}
	return out, nil
}
