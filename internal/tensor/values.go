package tensor

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"unsafe"
)

// ByteLen returns the bytes of n elements of type d; 0 for String.
func ByteLen(d DType, n int64) int64 {
	if d == Int4 || d == UInt4 {
		return (n + 1) / 2
	}
	return n * int64(d.Size())
}

// CheckedElements returns the number of elements of a shape that nobody has
// checked yet: it refuses negative sizes and products beyond 2^62.
func CheckedElements(shape []int64) (int64, error) {
	n, zero := int64(1), false
	for _, d := range shape {
		if d < 0 {
			return 0, fmt.Errorf("shape %v has a negative size", shape)
		}
		if d == 0 {
			zero = true
			continue
		}
		if n > math.MaxInt64/2/d {
			return 0, fmt.Errorf("shape %v has more elements than 2^62", shape)
		}
		n *= d
	}
	if zero {
		return 0, nil
	}
	return n, nil
}

// Zeros returns a tensor of zeros (false, empty strings).
func Zeros(d DType, shape ...int64) Tensor {
	t := Tensor{DType: d, Shape: slices.Clone(shape)}
	n := Elements(shape)
	if d == String {
		t.Strings = make([]string, n)
	} else {
		t.Data = make([]byte, ByteLen(d, n))
	}
	return t
}

// Check reports a tensor whose data are not as long as its shape says.
func (t Tensor) Check() error {
	n, err := CheckedElements(t.Shape)
	if err != nil {
		return err
	}
	if t.DType == String {
		if int64(len(t.Strings)) != n {
			return fmt.Errorf("string tensor of shape %v has %d elements, expected %d", t.Shape, len(t.Strings), n)
		}
		return nil
	}
	if ByteLen(t.DType, 1) == 0 {
		return fmt.Errorf("unknown data type %q", t.DType)
	}
	if want := ByteLen(t.DType, n); int64(len(t.Data)) != want {
		return fmt.Errorf("%s tensor of shape %v has %d bytes, expected %d", t.DType, t.Shape, len(t.Data), want)
	}
	return nil
}

// Clone returns a copy that shares nothing with t.
func (t Tensor) Clone() Tensor {
	t.Shape, t.Data, t.Strings = slices.Clone(t.Shape), slices.Clone(t.Data), slices.Clone(t.Strings)
	return t
}

// Equal reports whether two tensors have the same type, shape and bits.
func (t Tensor) Equal(o Tensor) bool {
	return t.DType == o.DType && slices.Equal(t.Shape, o.Shape) &&
		string(t.Data) == string(o.Data) && slices.Equal(t.Strings, o.Strings)
}

// FromFloat32s returns a float32 tensor.
func FromFloat32s(shape []int64, v []float32) Tensor {
	t := Tensor{DType: Float32, Shape: slices.Clone(shape), Data: make([]byte, 4*len(v))}
	for i, x := range v {
		binary.LittleEndian.PutUint32(t.Data[4*i:], math.Float32bits(x))
	}
	return t
}

// FromInt64s returns a tensor of an integer type or bool. Values that do not
// fit keep their low bits, as in C.
func FromInt64s(d DType, shape []int64, v []int64) Tensor {
	t := Zeros(d, shape...)
	for i, x := range v {
		t.setInt(i, x)
	}
	return t
}

// FromStrings returns a string tensor.
func FromStrings(shape []int64, v []string) Tensor {
	return Tensor{DType: String, Shape: slices.Clone(shape), Strings: slices.Clone(v)}
}

// FromFloat64s returns a tensor of any type but String. Floating-point types
// round to nearest even; integer types truncate towards zero.
func FromFloat64s(d DType, shape []int64, v []float64) Tensor {
	t := Zeros(d, shape...)
	for i, x := range v {
		t.SetFloat64(i, x)
	}
	return t
}

// SetFloat64 sets element i, counted in C order, rounding as FromFloat64s does.
func (t Tensor) SetFloat64(i int, x float64) {
	switch t.DType {
	case Float64:
		binary.LittleEndian.PutUint64(t.Data[8*i:], math.Float64bits(x))
	case Float32:
		binary.LittleEndian.PutUint32(t.Data[4*i:], math.Float32bits(float32(x)))
	case Float16:
		binary.LittleEndian.PutUint16(t.Data[2*i:], HalfBits(x))
	case BFloat16:
		binary.LittleEndian.PutUint16(t.Data[2*i:], BFloatBits(x))
	case Float8E4:
		t.Data[i] = float8Bits(x, &e4m3)
	case Float8E5:
		t.Data[i] = float8Bits(x, &e5m2)
	case UInt64:
		binary.LittleEndian.PutUint64(t.Data[8*i:], uint64(x))
	default:
		t.setInt(i, int64(x))
	}
}

func (t Tensor) setInt(i int, x int64) {
	switch t.DType {
	case Int64, UInt64:
		binary.LittleEndian.PutUint64(t.Data[8*i:], uint64(x))
	case Int32, UInt32:
		binary.LittleEndian.PutUint32(t.Data[4*i:], uint32(x))
	case Int16, UInt16:
		binary.LittleEndian.PutUint16(t.Data[2*i:], uint16(x))
	case Int8, UInt8:
		t.Data[i] = byte(x)
	case Bool:
		t.Data[i] = 0
		if x != 0 {
			t.Data[i] = 1
		}
	case Int4, UInt4:
		shift := uint(i%2) * 4
		t.Data[i/2] = t.Data[i/2]&^(0xf<<shift) | byte(x&0xf)<<shift
	}
}

// Float64At returns element i in C order as a float64; 64-bit integers beyond
// 2^53 are rounded. It is 0 for strings.
func (t Tensor) Float64At(i int) float64 {
	var one [1]float64
	if t.DType == String {
		return 0
	}
	t.loadFloat64(one[:], i)
	return one[0]
}

// Int64At returns element i in C order as an integer; the bits of uint64 are
// kept, floating-point elements are truncated.
func (t Tensor) Int64At(i int) int64 {
	switch t.DType {
	case Int64, UInt64:
		return int64(binary.LittleEndian.Uint64(t.Data[8*i:]))
	case Int32:
		return int64(int32(binary.LittleEndian.Uint32(t.Data[4*i:])))
	case UInt32:
		return int64(binary.LittleEndian.Uint32(t.Data[4*i:]))
	case Int16:
		return int64(int16(binary.LittleEndian.Uint16(t.Data[2*i:])))
	case UInt16:
		return int64(binary.LittleEndian.Uint16(t.Data[2*i:]))
	case Int8:
		return int64(int8(t.Data[i]))
	case UInt8:
		return int64(t.Data[i])
	case Bool:
		if t.Data[i] != 0 {
			return 1
		}
		return 0
	case Int4:
		return int64(int8(t.Data[i/2]>>(uint(i%2)*4)<<4) >> 4)
	case UInt4:
		return int64(t.Data[i/2] >> (uint(i%2) * 4) & 0xf)
	}
	return int64(t.Float64At(i))
}

// Float64s returns all elements as float64.
func (t Tensor) Float64s() []float64 {
	v := make([]float64, t.Elements())
	if t.DType != String {
		t.loadFloat64(v, 0)
	}
	return v
}

// Float32s returns all elements as float32.
func (t Tensor) Float32s() []float32 {
	v := make([]float32, t.Elements())
	var chunk [1024]float64
	for at := 0; at < len(v); at += len(chunk) {
		c := chunk[:min(len(chunk), len(v)-at)]
		t.loadFloat64(c, at)
		for i, x := range c {
			v[at+i] = float32(x)
		}
	}
	return v
}

// Int64s returns all elements as integers, as Int64At does.
func (t Tensor) Int64s() []int64 {
	v := make([]int64, t.Elements())
	for i := range v {
		v[i] = t.Int64At(i)
	}
	return v
}

// loadFloat64 fills dst with the elements from at on.
func (t Tensor) loadFloat64(dst []float64, at int) {
	n := len(dst)
	switch t.DType {
	case Float64:
		src := t.Data[8*at:][: 8*n : 8*n]
		for i := range dst {
			dst[i] = math.Float64frombits(binary.LittleEndian.Uint64(src[8*i:]))
		}
	case Float32:
		src := t.Data[4*at:][: 4*n : 4*n]
		if v, ok := inPlace(src); ok {
			v = v[:len(dst)]
			for i := range dst {
				dst[i] = float64(v[i])
			}
			return
		}
		for i := range dst {
			dst[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:])))
		}
	case Float16:
		table := halfTable()
		src := t.Data[2*at:][: 2*n : 2*n]
		for i := range dst {
			dst[i] = float64(table[binary.LittleEndian.Uint16(src[2*i:])])
		}
	case BFloat16:
		src := t.Data[2*at:][: 2*n : 2*n]
		for i := range dst {
			dst[i] = float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(src[2*i:])) << 16))
		}
	case Float8E4, Float8E5:
		table := float8Table(t.DType)
		for i, b := range t.Data[at : at+n] {
			dst[i] = table[b]
		}
	case UInt64:
		for i := range dst {
			dst[i] = float64(binary.LittleEndian.Uint64(t.Data[8*(at+i):]))
		}
	default:
		for i := range dst {
			dst[i] = float64(t.Int64At(at + i))
		}
	}
}

// littleEndian says that the machine stores numbers as Data does.
var littleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

// inPlace views bytes as float32 without copying; ok is false where the machine
// or the address does not allow it.
func inPlace(b []byte) (v []float32, ok bool) {
	if !littleEndian || len(b) == 0 || uintptr(unsafe.Pointer(&b[0]))%4 != 0 {
		return nil, false
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(&b[0])), len(b)/4), true
}

// Convert returns t with another element type. Between floating-point and
// integer types it rounds as FromFloat64s does; 64-bit integers stay exact.
// Strings convert to nothing else.
func (t Tensor) Convert(d DType) (Tensor, error) {
	if t.DType == d {
		return t, nil
	}
	if t.DType == String || d == String {
		return Tensor{}, fmt.Errorf("convert %s to %s: not possible", t.DType, d)
	}
	out := Zeros(d, t.Shape...)
	n := int(t.Elements())
	if !t.DType.Floating() && !d.Floating() {
		for i := range n {
			out.setInt(i, t.Int64At(i))
		}
		return out, nil
	}
	var chunk [1024]float64
	for at := 0; at < n; at += len(chunk) {
		c := chunk[:min(len(chunk), n-at)]
		t.loadFloat64(c, at)
		for i, x := range c {
			out.SetFloat64(at+i, x)
		}
	}
	return out, nil
}

// Rows returns the elements lo to hi of the first axis, sharing t's memory.
// t must have an axis, and elements of at least one byte.
func (t Tensor) Rows(lo, hi int64) Tensor {
	row := Elements(t.Shape[1:])
	shape := slices.Clone(t.Shape)
	shape[0] = hi - lo
	if t.DType == String {
		return Tensor{DType: String, Shape: shape, Strings: t.Strings[lo*row : hi*row]}
	}
	size := row * int64(t.DType.Size())
	return Tensor{DType: t.DType, Shape: shape, Data: t.Data[lo*size : hi*size]}
}

// Concat joins tensors of one type along the first axis; the other sizes must agree.
func Concat(ts ...Tensor) (Tensor, error) {
	if len(ts) == 0 {
		return Tensor{}, fmt.Errorf("join tensors: none given")
	}
	out := Tensor{DType: ts[0].DType, Shape: slices.Clone(ts[0].Shape)}
	if len(out.Shape) == 0 || (out.DType != String && out.DType.Size() == 0) {
		return Tensor{}, fmt.Errorf("join tensors: %s of shape %v has no axis to join along", out.DType, out.Shape)
	}
	out.Shape[0] = 0
	for _, t := range ts {
		if t.DType != out.DType || len(t.Shape) != len(out.Shape) || !slices.Equal(t.Shape[1:], out.Shape[1:]) {
			return Tensor{}, fmt.Errorf("join tensors: %s%v does not fit %s%v", t.DType, t.Shape, ts[0].DType, ts[0].Shape)
		}
		out.Shape[0] += t.Shape[0]
		out.Data = append(out.Data, t.Data...)
		out.Strings = append(out.Strings, t.Strings...)
	}
	return out, nil
}

// Find returns the tensor with a name.
func Find(ts []Named, name string) (Tensor, bool) {
	for _, t := range ts {
		if t.Name == name {
			return t.Tensor, true
		}
	}
	return Tensor{}, false
}

// Names returns the names in order.
func Names(ts []Named) []string {
	names := make([]string, len(ts))
	for i, t := range ts {
		names[i] = t.Name
	}
	return names
}
