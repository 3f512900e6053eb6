package kserve

import (
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/trtship/trtship/internal/tensor"
)

// asJSON reports whether the server takes t as JSON.
func asJSON(t tensor.Tensor) bool {
	switch t.DType {
	case tensor.Float16, tensor.BFloat16:
		return false
	case tensor.String:
		for _, s := range t.Strings {
			if !utf8.ValidString(s) {
				return false
			}
		}
	case tensor.Float32:
		for i := 0; i+4 <= len(t.Data); i += 4 {
			if !finite(float64(math.Float32frombits(binary.LittleEndian.Uint32(t.Data[i:])))) {
				return false // JSON has no NaN
			}
		}
	case tensor.Float64:
		for i := 0; i+8 <= len(t.Data); i += 8 {
			if !finite(math.Float64frombits(binary.LittleEndian.Uint64(t.Data[i:]))) {
				return false
			}
		}
	}
	return true
}

func finite(f float64) bool { return !math.IsNaN(f) && !math.IsInf(f, 0) }

// appendData writes the elements of t as one flat JSON array.
func appendData(b []byte, t tensor.Tensor) []byte {
	b = append(b, '[')
	if t.DType == tensor.String {
		for i, s := range t.Strings {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(b, quote(s)...)
		}
		return append(b, ']')
	}
	size := t.DType.Size()
	for i := 0; i+size <= len(t.Data); i += size {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendElement(b, t.DType, t.Data[i:i+size])
	}
	return append(b, ']')
}

func appendElement(b []byte, d tensor.DType, e []byte) []byte {
	le := binary.LittleEndian
	switch d {
	case tensor.Bool:
		return strconv.AppendBool(b, e[0] != 0)
	case tensor.UInt8:
		return strconv.AppendUint(b, uint64(e[0]), 10)
	case tensor.UInt16:
		return strconv.AppendUint(b, uint64(le.Uint16(e)), 10)
	case tensor.UInt32:
		return strconv.AppendUint(b, uint64(le.Uint32(e)), 10)
	case tensor.UInt64:
		return strconv.AppendUint(b, le.Uint64(e), 10)
	case tensor.Int8:
		return strconv.AppendInt(b, int64(int8(e[0])), 10)
	case tensor.Int16:
		return strconv.AppendInt(b, int64(int16(le.Uint16(e))), 10)
	case tensor.Int32:
		return strconv.AppendInt(b, int64(int32(le.Uint32(e))), 10)
	case tensor.Int64:
		return strconv.AppendInt(b, int64(le.Uint64(e)), 10)
	case tensor.Float32:
		return strconv.AppendFloat(b, float64(math.Float32frombits(le.Uint32(e))), 'g', -1, 32)
	default: // Float64: asJSON lets nothing else through
		return strconv.AppendFloat(b, math.Float64frombits(le.Uint64(e)), 'g', -1, 64)
	}
}

// fromJSON makes a tensor of a "data" array, nested or flat.
func fromJSON(d tensor.DType, shape []int64, data any) (tensor.Tensor, error) {
	n, err := elements(shape)
	if err != nil {
		return tensor.Tensor{}, err
	}
	t := tensor.Tensor{DType: d, Shape: shape}
	if t.Shape == nil {
		t.Shape = []int64{}
	}
	if err := flatten(&t, data); err != nil {
		return t, err
	}
	got := int64(len(t.Strings))
	if d != tensor.String {
		if d.Size() == 0 {
			return t, fmt.Errorf("data type %s has no JSON form", d)
		}
		got = int64(len(t.Data) / d.Size())
	}
	if got != n {
		return t, fmt.Errorf("shape %v has %d elements, the server sent %d", shape, n, got)
	}
	return t, nil
}

func flatten(t *tensor.Tensor, v any) error {
	list, ok := v.([]any)
	if !ok {
		return appendValue(t, v)
	}
	for _, e := range list {
		if err := flatten(t, e); err != nil {
			return err
		}
	}
	return nil
}

func appendValue(t *tensor.Tensor, v any) error {
	le := binary.LittleEndian
	switch v := v.(type) {
	case string:
		if t.DType == tensor.String {
			t.Strings = append(t.Strings, v)
			return nil
		}
	case bool:
		if t.DType == tensor.Bool {
			b := byte(0)
			if v {
				b = 1
			}
			t.Data = append(t.Data, b)
			return nil
		}
	case number:
		return appendNumber(t, le, string(v))
	}
	return fmt.Errorf("%v is no element of type %s", v, t.DType)
}

func appendNumber(t *tensor.Tensor, le binary.AppendByteOrder, s string) error {
	switch t.DType {
	case tensor.Float32:
		f, err := strconv.ParseFloat(s, 32)
		if err != nil && !math.IsInf(f, 0) {
			return fmt.Errorf("element %q: %w", s, err)
		}
		t.Data = le.AppendUint32(t.Data, math.Float32bits(float32(f)))
		return nil
	case tensor.Float64:
		f, err := strconv.ParseFloat(s, 64)
		if err != nil && !math.IsInf(f, 0) {
			return fmt.Errorf("element %q: %w", s, err)
		}
		t.Data = le.AppendUint64(t.Data, math.Float64bits(f))
		return nil
	case tensor.UInt8, tensor.UInt16, tensor.UInt32, tensor.UInt64:
		u, err := strconv.ParseUint(s, 10, 8*t.DType.Size())
		if err != nil {
			return fmt.Errorf("element %q: %w", s, err)
		}
		t.Data = appendSized(t.Data, le, u, t.DType.Size())
		return nil
	case tensor.Int8, tensor.Int16, tensor.Int32, tensor.Int64:
		i, err := strconv.ParseInt(s, 10, 8*t.DType.Size())
		if err != nil {
			return fmt.Errorf("element %q: %w", s, err)
		}
		t.Data = appendSized(t.Data, le, uint64(i), t.DType.Size())
		return nil
	}
	return fmt.Errorf("the number %s is no element of type %s", s, t.DType)
}

func appendSized(b []byte, le binary.AppendByteOrder, u uint64, size int) []byte {
	switch size {
	case 1:
		return append(b, byte(u))
	case 2:
		return le.AppendUint16(b, uint16(u))
	case 4:
		return le.AppendUint32(b, uint32(u))
	}
	return le.AppendUint64(b, u)
}
