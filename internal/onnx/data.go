package onnx

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
	"github.com/trtship/trtship/internal/tensor"
)

// elementType is what the reader knows about one TensorProto.DataType.
type elementType struct {
	dtype tensor.DType
	bits  int // 0 for strings
	field dataField
	each  int // values of the typed field for an element: 2 for complex; -k means k elements a value
}

// dataField is the typed field that holds elements of a type.
type dataField int

const (
	floatField dataField = iota
	int32Field
	int64Field
	uint64Field
	doubleField
	stringField
)

var fieldNames = map[dataField]string{
	floatField: "float_data", int32Field: "int32_data", int64Field: "int64_data", uint64Field: "uint64_data",
	doubleField: "double_data", stringField: "string_data",
}

// elementTypes is the table of the format's element types. Those that
// package tensor has no constant for are named like the enum, in lower case.
var elementTypes = map[onnxpb.TensorProto_DataType]elementType{
	onnxpb.TensorProto_FLOAT:          {tensor.Float32, 32, floatField, 1},
	onnxpb.TensorProto_UINT8:          {tensor.UInt8, 8, int32Field, 1},
	onnxpb.TensorProto_INT8:           {tensor.Int8, 8, int32Field, 1},
	onnxpb.TensorProto_UINT16:         {tensor.UInt16, 16, int32Field, 1},
	onnxpb.TensorProto_INT16:          {tensor.Int16, 16, int32Field, 1},
	onnxpb.TensorProto_INT32:          {tensor.Int32, 32, int32Field, 1},
	onnxpb.TensorProto_INT64:          {tensor.Int64, 64, int64Field, 1},
	onnxpb.TensorProto_STRING:         {tensor.String, 0, stringField, 1},
	onnxpb.TensorProto_BOOL:           {tensor.Bool, 8, int32Field, 1},
	onnxpb.TensorProto_FLOAT16:        {tensor.Float16, 16, int32Field, 1},
	onnxpb.TensorProto_DOUBLE:         {tensor.Float64, 64, doubleField, 1},
	onnxpb.TensorProto_UINT32:         {tensor.UInt32, 32, uint64Field, 1},
	onnxpb.TensorProto_UINT64:         {tensor.UInt64, 64, uint64Field, 1},
	onnxpb.TensorProto_COMPLEX64:      {"complex64", 64, floatField, 2},
	onnxpb.TensorProto_COMPLEX128:     {"complex128", 128, doubleField, 2},
	onnxpb.TensorProto_BFLOAT16:       {tensor.BFloat16, 16, int32Field, 1},
	onnxpb.TensorProto_FLOAT8E4M3FN:   {tensor.Float8E4, 8, int32Field, 1},
	onnxpb.TensorProto_FLOAT8E4M3FNUZ: {"float8e4m3fnuz", 8, int32Field, 1},
	onnxpb.TensorProto_FLOAT8E5M2:     {tensor.Float8E5, 8, int32Field, 1},
	onnxpb.TensorProto_FLOAT8E5M2FNUZ: {"float8e5m2fnuz", 8, int32Field, 1},
	onnxpb.TensorProto_UINT4:          {tensor.UInt4, 4, int32Field, -2},
	onnxpb.TensorProto_INT4:           {tensor.Int4, 4, int32Field, -2},
	onnxpb.TensorProto_FLOAT4E2M1:     {"float4e2m1", 4, int32Field, -2},
	onnxpb.TensorProto_FLOAT8E8M0:     {"float8e8m0", 8, int32Field, 1},
	onnxpb.TensorProto_UINT2:          {"uint2", 2, int32Field, -4},
	onnxpb.TensorProto_INT2:           {"int2", 2, int32Field, -4},
	onnxpb.TensorProto_FLOAT6E2M3:     {"float6e2m3", 6, int32Field, 0},
	onnxpb.TensorProto_FLOAT6E3M2:     {"float6e3m2", 6, int32Field, 0},
}

// DType returns the element type of a TensorProto.DataType number. ok is false
// for a number that the format does not have.
func DType(number int32) (d tensor.DType, ok bool) {
	e, ok := elementTypes[onnxpb.TensorProto_DataType(number)]
	return e.dtype, ok
}

// DataType returns the format's number for d; 0 if it has none.
func DataType(d tensor.DType) int32 { return dataTypes[d] }

var dataTypes = func() map[tensor.DType]int32 {
	out := map[tensor.DType]int32{}
	for n, e := range elementTypes {
		out[e.dtype] = int32(n)
	}
	return out
}()

func elementOf(t *onnxpb.TensorProto) (elementType, error) {
	e, ok := elementTypes[onnxpb.TensorProto_DataType(t.GetDataType())]
	if !ok {
		return e, fmt.Errorf("unknown data type %d", t.GetDataType())
	}
	return e, nil
}

// elements returns the product of dims, checked.
func elements(dims []int64) (int64, error) {
	n := int64(1)
	for _, d := range dims {
		if d < 0 {
			return 0, fmt.Errorf("negative dimension %d", d)
		}
		if d == 0 {
			return 0, nil
		}
		if n > math.MaxInt64/16/d {
			return 0, fmt.Errorf("its shape %v has too many elements", dims)
		}
		n *= d
	}
	return n, nil
}

// dataSize returns the bytes of t as raw_data would hold them; -1 for strings.
func dataSize(t *onnxpb.TensorProto) (int64, error) {
	e, err := elementOf(t)
	if err != nil {
		return 0, err
	}
	for _, d := range t.GetDims() { // a zero must not hide a negative one
		if d < 0 {
			return 0, fmt.Errorf("negative dimension %d", d)
		}
	}
	n, err := elements(t.GetDims())
	if err != nil {
		return 0, err
	}
	if e.bits == 0 {
		return -1, nil
	}
	if e.bits < 8 {
		return (n*int64(e.bits) + 7) / 8, nil
	}
	return n * int64(e.bits/8), nil
}

// TensorBytes returns the size of t's data: that of raw_data, or the sum of the
// lengths for strings.
func TensorBytes(t *onnxpb.TensorProto) int64 {
	n, err := dataSize(t)
	if err != nil {
		return 0
	}
	if n < 0 {
		n = 0
		for _, s := range t.GetStringData() {
			n += int64(len(s))
		}
	}
	return n
}

func shapeText(t *onnxpb.TensorProto) string {
	parts := make([]string, len(t.GetDims()))
	for i, d := range t.GetDims() {
		parts[i] = strconv.FormatInt(d, 10)
	}
	e, err := elementOf(t)
	if err != nil {
		return "[" + strings.Join(parts, ",") + "]"
	}
	return string(e.dtype) + "[" + strings.Join(parts, ",") + "]"
}

// checkData checks that exactly the right field of t is filled with the right
// number of values, or that its external data is there in full.
func (m *Model) checkData(place string, t *onnxpb.TensorProto) error {
	need, err := dataSize(t)
	if err != nil {
		return failure.New(failure.Model, "read %s: %w", tensorName(place, t), err)
	}
	if err := oneField(t); err != nil {
		return failure.New(failure.Model, "read %s: %w", tensorName(place, t), err)
	}
	if t.GetDataLocation() == onnxpb.TensorProto_EXTERNAL {
		if m.lazyReader(t) != nil {
			return nil
		}
		s, err := m.spanOf(place, t)
		if err != nil {
			return err
		}
		_, err = m.openData(place, t, s)
		return err
	}
	e, _ := elementOf(t)
	if e.field != stringField && len(t.RawData) > 0 {
		if got := int64(len(t.RawData)); got != need {
			return failure.New(failure.Model, "read %s: raw_data has %d bytes, its shape %s needs %d", tensorName(place, t), got, shapeText(t), need)
		}
		return nil
	}
	want, got := typedCount(e, t.GetDims()), fieldLen(t, e.field)
	if got == 0 && want > 0 {
		return failure.New(failure.Model, "read %s: has no data, its shape %s needs %d values", tensorName(place, t), shapeText(t), want)
	}
	if got != want {
		return failure.New(failure.Model, "read %s: %s has %d values, its shape %s needs %d", tensorName(place, t), fieldNames[e.field], got, shapeText(t), want)
	}
	return nil
}

// typedCount is the number of values that the typed field must have.
func typedCount(e elementType, dims []int64) int64 {
	n, _ := elements(dims)
	switch {
	case e.each == 0: // float6: the packed bytes, one a value
		return (n*int64(e.bits) + 7) / 8
	case e.each < 0:
		return (n + int64(-e.each) - 1) / int64(-e.each)
	}
	return n * int64(e.each)
}

func fieldLen(t *onnxpb.TensorProto, f dataField) int64 {
	switch f {
	case floatField:
		return int64(len(t.FloatData))
	case int32Field:
		return int64(len(t.Int32Data))
	case int64Field:
		return int64(len(t.Int64Data))
	case uint64Field:
		return int64(len(t.Uint64Data))
	case doubleField:
		return int64(len(t.DoubleData))
	}
	return int64(len(t.StringData))
}

// oneField refuses data in two places, or in a field of another type.
func oneField(t *onnxpb.TensorProto) error {
	e, err := elementOf(t)
	if err != nil {
		return err
	}
	var used []string
	if len(t.RawData) > 0 {
		used = append(used, "raw_data")
	}
	wrong := ""
	for f := floatField; f <= stringField; f++ {
		if fieldLen(t, f) == 0 {
			continue
		}
		used = append(used, fieldNames[f])
		if f != e.field {
			wrong = fieldNames[f]
		}
	}
	if t.GetDataLocation() == onnxpb.TensorProto_EXTERNAL {
		used = append(used, "external_data")
	}
	switch {
	case len(used) > 1:
		return fmt.Errorf("data in two fields at once: %s", strings.Join(used, " and "))
	case wrong != "":
		return fmt.Errorf("data in %s, %s belongs into %s", wrong, e.dtype, fieldNames[e.field])
	case e.field == stringField && len(used) == 1 && used[0] == "raw_data":
		return fmt.Errorf("strings in raw_data, they belong into string_data")
	}
	return nil
}

// TensorData decodes t, wherever its data lies. Elements of 4 bits stay packed,
// two to a byte with the first in the low half.
func (m *Model) TensorData(t *onnxpb.TensorProto) (tensor.Tensor, error) {
	if err := m.checkData("", t); err != nil {
		return tensor.Tensor{}, located(err, m.Path)
	}
	e, _ := elementOf(t)
	out := tensor.Tensor{DType: e.dtype, Shape: append([]int64{}, t.GetDims()...)}
	if t.GetDataLocation() == onnxpb.TensorProto_EXTERNAL {
		r, err := m.TensorReader(t)
		if err != nil {
			return tensor.Tensor{}, err
		}
		out.Data = make([]byte, r.Size())
		if _, err := io.ReadFull(r, out.Data); err != nil {
			return tensor.Tensor{}, failure.New(failure.Artifact, "read %s: %w", tensorName("", t), err).At(m.Path)
		}
		return out, nil
	}
	if e.field == stringField {
		out.Strings = make([]string, len(t.StringData))
		for i, s := range t.StringData {
			out.Strings[i] = string(s)
		}
		return out, nil
	}
	if len(t.RawData) > 0 {
		out.Data = append(make([]byte, 0, len(t.RawData)), t.RawData...)
		return out, nil
	}
	out.Data = typedBytes(t, e)
	return out, nil
}

// typedBytes turns a typed field into raw bytes.
func typedBytes(t *onnxpb.TensorProto, e elementType) []byte {
	size, _ := dataSize(t)
	b := make([]byte, 0, size)
	switch e.field {
	case floatField:
		for _, v := range t.FloatData {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
		}
	case doubleField:
		for _, v := range t.DoubleData {
			b = binary.LittleEndian.AppendUint64(b, math.Float64bits(v))
		}
	case int64Field:
		for _, v := range t.Int64Data {
			b = binary.LittleEndian.AppendUint64(b, uint64(v))
		}
	case uint64Field:
		for _, v := range t.Uint64Data {
			if e.bits == 32 {
				b = binary.LittleEndian.AppendUint32(b, uint32(v))
			} else {
				b = binary.LittleEndian.AppendUint64(b, v)
			}
		}
	case int32Field:
		for _, v := range t.Int32Data {
			switch e.bits {
			case 32:
				b = binary.LittleEndian.AppendUint32(b, uint32(v))
			case 16:
				b = binary.LittleEndian.AppendUint16(b, uint16(v))
			default:
				b = append(b, byte(v))
			}
		}
	}
	return b
}

// NewTensor returns a TensorProto with the data of d.
func NewTensor(name string, d tensor.Tensor) *onnxpb.TensorProto {
	n := DataType(d.DType)
	t := &onnxpb.TensorProto{Name: &name, DataType: &n, Dims: append([]int64(nil), d.Shape...)}
	if d.DType == tensor.String {
		for _, s := range d.Strings {
			t.StringData = append(t.StringData, []byte(s))
		}
		return t
	}
	t.RawData = append([]byte{}, d.Data...)
	return t
}
