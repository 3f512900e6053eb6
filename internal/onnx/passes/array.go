package passes

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/onnx/graph"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/x448/float16"
)

type dataType = onnxpb.TensorProto_DataType

// array is a constant with its elements as raw_data holds them.
type array struct {
	typ   dataType
	shape []int64
	data  []byte
}

// read decodes a constant. Strings and types narrower than a byte have no array.
func read(m *graph.Module, v *graph.Value) (array, error) {
	return decode(m.Source, v.Init)
}

func decode(m *onnx.Model, t *onnxpb.TensorProto) (array, error) {
	d, err := m.TensorData(t)
	if err != nil {
		return array{}, err
	}
	a := array{typ: dataType(t.GetDataType()), shape: d.Shape, data: d.Data}
	if a.width() == 0 {
		return a, fmt.Errorf("no array of %s", d.DType)
	}
	return a, nil
}

// width returns the bytes of an element; 0 for types that arrays do not hold.
func (a array) width() int64 { return widthOf(a.typ) }

func widthOf(t dataType) int64 {
	d, _ := onnx.DType(int32(t))
	if d == tensor.Float8E4 || d == tensor.Float8E5 {
		return 0
	}
	return int64(d.Size())
}

func (a array) count() int64 { return product(a.shape) }

// tensor returns a without a name.
func (a array) tensor() *onnxpb.TensorProto {
	t := int32(a.typ)
	return &onnxpb.TensorProto{DataType: &t, Dims: a.shape, RawData: a.data}
}

func int64Tensor(values []int64) *onnxpb.TensorProto {
	return fromInts(onnxpb.TensorProto_INT64, []int64{int64(len(values))}, values).tensor()
}

func floating(t dataType) bool {
	switch t {
	case onnxpb.TensorProto_FLOAT, onnxpb.TensorProto_DOUBLE, onnxpb.TensorProto_FLOAT16, onnxpb.TensorProto_BFLOAT16:
		return true
	}
	return false
}

func integer(t dataType) bool {
	switch t {
	case onnxpb.TensorProto_INT64, onnxpb.TensorProto_INT32, onnxpb.TensorProto_INT16, onnxpb.TensorProto_INT8,
		onnxpb.TensorProto_UINT64, onnxpb.TensorProto_UINT32, onnxpb.TensorProto_UINT16, onnxpb.TensorProto_UINT8, onnxpb.TensorProto_BOOL:
		return true
	}
	return false
}

// floats returns the elements of a floating-point or integer array.
func (a array) floats() ([]float64, bool) {
	if integer(a.typ) {
		ints, ok := a.ints()
		out := make([]float64, len(ints))
		for i, x := range ints {
			out[i] = float64(x)
			if a.typ == onnxpb.TensorProto_UINT64 {
				out[i] = float64(uint64(x))
			}
		}
		return out, ok
	}
	out := make([]float64, a.count())
	le := binary.LittleEndian
	for i := range out {
		switch a.typ {
		case onnxpb.TensorProto_FLOAT:
			out[i] = float64(math.Float32frombits(le.Uint32(a.data[4*i:])))
		case onnxpb.TensorProto_DOUBLE:
			out[i] = math.Float64frombits(le.Uint64(a.data[8*i:]))
		case onnxpb.TensorProto_FLOAT16:
			out[i] = float64(float16.Frombits(le.Uint16(a.data[2*i:])).Float32())
		case onnxpb.TensorProto_BFLOAT16:
			out[i] = float64(math.Float32frombits(uint32(le.Uint16(a.data[2*i:])) << 16))
		default:
			return nil, false
		}
	}
	return out, true
}

// ints returns the elements of an integer or boolean array; uint64 keeps its
// bits.
func (a array) ints() ([]int64, bool) {
	out := make([]int64, a.count())
	le := binary.LittleEndian
	for i := range out {
		switch a.typ {
		case onnxpb.TensorProto_INT64, onnxpb.TensorProto_UINT64:
			out[i] = int64(le.Uint64(a.data[8*i:]))
		case onnxpb.TensorProto_INT32:
			out[i] = int64(int32(le.Uint32(a.data[4*i:])))
		case onnxpb.TensorProto_UINT32:
			out[i] = int64(le.Uint32(a.data[4*i:]))
		case onnxpb.TensorProto_INT16:
			out[i] = int64(int16(le.Uint16(a.data[2*i:])))
		case onnxpb.TensorProto_UINT16:
			out[i] = int64(le.Uint16(a.data[2*i:]))
		case onnxpb.TensorProto_INT8:
			out[i] = int64(int8(a.data[i]))
		case onnxpb.TensorProto_UINT8:
			out[i] = int64(a.data[i])
		case onnxpb.TensorProto_BOOL:
			if a.data[i] != 0 {
				out[i] = 1
			}
		default:
			return nil, false
		}
	}
	return out, true
}

// fromFloats rounds values to a floating-point type.
func fromFloats(t dataType, shape []int64, values []float64) array {
	a := array{typ: t, shape: shape, data: make([]byte, 0, int64(len(values))*widthOf(t))}
	le := binary.LittleEndian
	for _, x := range values {
		switch t {
		case onnxpb.TensorProto_FLOAT:
			a.data = le.AppendUint32(a.data, math.Float32bits(float32(x)))
		case onnxpb.TensorProto_DOUBLE:
			a.data = le.AppendUint64(a.data, math.Float64bits(x))
		case onnxpb.TensorProto_FLOAT16:
			a.data = le.AppendUint16(a.data, float16.Fromfloat32(float32(x)).Bits())
		case onnxpb.TensorProto_BFLOAT16:
			a.data = le.AppendUint16(a.data, bfloat(float32(x)))
		}
	}
	return a
}

// bfloat rounds to the nearest bfloat16, ties to even.
func bfloat(x float32) uint16 {
	b := math.Float32bits(x)
	if x != x {
		return uint16(b>>16) | 0x40
	}
	return uint16((b + 0x7fff + (b>>16)&1) >> 16)
}

// fromInts wraps values to an integer type.
func fromInts(t dataType, shape []int64, values []int64) array {
	a := array{typ: t, shape: shape, data: make([]byte, 0, int64(len(values))*widthOf(t))}
	le := binary.LittleEndian
	for _, x := range values {
		switch widthOf(t) {
		case 8:
			a.data = le.AppendUint64(a.data, uint64(x))
		case 4:
			a.data = le.AppendUint32(a.data, uint32(x))
		case 2:
			a.data = le.AppendUint16(a.data, uint16(x))
		default:
			if t == onnxpb.TensorProto_BOOL && x != 0 {
				x = 1
			}
			a.data = append(a.data, byte(x))
		}
	}
	return a
}

// small reports whether an array of a shape takes at most limit bytes.
func small(shape []int64, width, limit int64) bool {
	total := width
	for _, d := range shape {
		if d < 0 || d > limit || total > limit {
			return false
		}
		total *= max(d, 1)
	}
	return total <= limit
}

// strides returns how many elements lie between neighbours along each axis.
func strides(shape []int64) []int64 {
	s := make([]int64, len(shape))
	n := int64(1)
	for i := len(shape) - 1; i >= 0; i-- {
		s[i] = n
		n *= shape[i]
	}
	return s
}

// view copies elements into a new array: element at index i of the result comes
// from start + sum(i[d] * step[d]) of a.
func (a array) view(shape []int64, start int64, step []int64) array {
	w := a.width()
	n := product(shape)
	out := array{typ: a.typ, shape: shape, data: make([]byte, n*w)}
	if n == 0 {
		return out
	}
	// The last two axes are copied as a plane, the others counted through.
	plane := [2]int64{1, 1}
	planeStep := [2]int64{}
	outer := max(0, len(shape)-2)
	copy(plane[2-(len(shape)-outer):], shape[outer:])
	copy(planeStep[2-(len(shape)-outer):], step[outer:])
	size := plane[0] * plane[1]
	index := make([]int64, outer)
	from := start
	for to := int64(0); to < n; to += size {
		a.copyPlane(out.data[to*w:(to+size)*w], from, plane, planeStep)
		for d := outer - 1; d >= 0; d-- {
			index[d]++
			from += step[d]
			if index[d] < shape[d] {
				break
			}
			from -= step[d] * shape[d]
			index[d] = 0
		}
	}
	return out
}

// block is the edge of the squares that a plane is copied in, so that neither
// side of a transposition leaves the cache.
const block = 32

// copyPlane copies a plane of elements to dst, row by row.
func (a array) copyPlane(dst []byte, from int64, size, step [2]int64) {
	w := a.width()
	if step[1] == 1 {
		for r := range size[0] {
			copy(dst[r*size[1]*w:(r+1)*size[1]*w], a.data[(from+r*step[0])*w:])
		}
		return
	}
	for r0 := int64(0); r0 < size[0]; r0 += block {
		for c0 := int64(0); c0 < size[1]; c0 += block {
			for r := r0; r < min(r0+block, size[0]); r++ {
				src := (from + r*step[0] + c0*step[1]) * w
				to := (r*size[1] + c0) * w
				copyRun(dst[to:], a.data, run{src, min(block, size[1]-c0), step[1] * w, w})
			}
		}
	}
}

// run is n elements of width bytes that lie skip bytes apart from byte at on.
type run struct{ at, n, skip, width int64 }

// copyRun copies a run to dst, without gaps.
func copyRun(dst, src []byte, r run) {
	le := binary.LittleEndian
	switch r.width {
	case 4:
		for i := range r.n {
			le.PutUint32(dst[4*i:], le.Uint32(src[r.at:]))
			r.at += r.skip
		}
	case 8:
		for i := range r.n {
			le.PutUint64(dst[8*i:], le.Uint64(src[r.at:]))
			r.at += r.skip
		}
	default:
		for i := range r.n {
			copy(dst[r.width*i:r.width*(i+1)], src[r.at:])
			r.at += r.skip
		}
	}
}

// broadcastTo expands a to a shape that it broadcasts to.
func (a array) broadcastTo(shape []int64) (array, bool) {
	if len(a.shape) > len(shape) {
		return a, false
	}
	own := strides(a.shape)
	step := make([]int64, len(shape))
	same := len(a.shape) == len(shape)
	for i := range shape {
		j := i - len(shape) + len(a.shape)
		switch {
		case j < 0:
			same = false
		case a.shape[j] == shape[i]:
			step[i] = own[j]
		case a.shape[j] == 1:
			same = false
		default:
			return a, false
		}
	}
	if same {
		return a, true
	}
	return a.view(shape, 0, step), true
}

// commonShape returns the shape that all arrays broadcast to.
func commonShape(in []array) ([]int64, bool) {
	var out []int64
	for _, a := range in {
		if len(a.shape) > len(out) {
			out = append(make([]int64, 0, len(a.shape)), a.shape...)
		}
	}
	for i := range out {
		out[i] = 1
	}
	for _, a := range in {
		for j, d := range a.shape {
			i := j + len(out) - len(a.shape)
			switch {
			case d == out[i] || d == 1:
			case out[i] == 1:
				out[i] = d
			default:
				return nil, false
			}
		}
	}
	return out, true
}
