// Package calibration turns the values that a network's tensors take over a
// data set into the ranges of INT8 quantization, and reads, writes and judges
// TensorRT's calibration caches.
//
// Values are gathered in constant memory for each tensor: a histogram of
// magnitudes whose bin width is a power of two and doubles when a larger value
// arrives. Such a histogram does not depend on the order or the grouping of
// the values, so batches, threads and a resumed run all give the same bytes.
package calibration

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Bins is the number of bins of an Observer's histogram. The largest value
// lies in its upper half, so at least Bins/2 bins divide the observed range.
const Bins = 4096

// MaxFloat16 is the largest finite float16; TinyFloat16 is the smallest
// positive one, below half of which a value becomes zero.
const (
	MaxFloat16  = 65504
	TinyFloat16 = 5.9604644775390625e-08
)

// Observer gathers the values of one tensor.
type Observer struct {
	Count int64   // values seen, NaN and infinities included
	NaN   int64   // values that are not a number
	Inf   int64   // infinite values
	Tiny  int64   // values other than zero that are below TinyFloat16
	Min   float32 // smallest finite value; +Inf before the first
	Max   float32 // largest finite value; -Inf before the first

	// Exponent is the binary exponent of the bin width: bin i counts the finite
	// values with i <= |v|/2^Exponent < i+1.
	Exponent int
	Counts   []int64
}

// minExponent keeps the reciprocal of a bin width finite in float32.
const minExponent = -126

// NewObserver returns an empty observer.
func NewObserver() *Observer {
	return &Observer{
		Min:      float32(math.Inf(1)),
		Max:      float32(math.Inf(-1)),
		Exponent: minExponent,
		Counts:   make([]int64, Bins),
	}
}

// chunk is the number of values whose extremes are found before they are
// counted; they stay in the first-level cache between the two loops.
const chunk = 4096

// Add takes further values.
func (o *Observer) Add(values []float32) {
	for len(values) > 0 {
		part := values[:min(chunk, len(values))]
		values = values[len(part):]
		o.addChunk(part)
	}
}

const (
	absMask = 0x7fffffff
	infBits = 0x7f800000
)

var tinyBits = math.Float32bits(TinyFloat16)

func (o *Observer) addChunk(part []float32) {
	lo, hi := o.Min, o.Max
	var top uint32
	tiny := 0
	for _, v := range part {
		b := math.Float32bits(v) & absMask
		if b > top {
			top = b
		}
		if b-1 < tinyBits-1 { // not zero: zero wraps around
			tiny++
		}
		if v < lo {
			lo = v
		}
		if v > hi {
			hi = v
		}
	}
	o.Count += int64(len(part))
	o.Tiny += int64(tiny)
	if top >= infBits {
		o.addSpecial(part)
		return
	}
	o.Min, o.Max = lo, hi
	o.fit(math.Float32frombits(top))
	inv := float32(math.Ldexp(1, -o.Exponent))
	counts := (*[Bins]int64)(o.Counts)
	for _, v := range part {
		i := uint32(int32(math.Float32frombits(math.Float32bits(v)&absMask) * inv))
		counts[i&(Bins-1)]++ // fit has made i smaller than Bins
	}
}

// addSpecial counts a chunk that holds NaN or infinities.
func (o *Observer) addSpecial(part []float32) {
	finite := make([]float32, 0, len(part))
	for _, v := range part {
		switch b := math.Float32bits(v) & absMask; {
		case b > infBits:
			o.NaN++
		case b == infBits:
			o.Inf++
		default:
			finite = append(finite, v)
			o.Min, o.Max = min(o.Min, v), max(o.Max, v)
		}
	}
	var top float32
	for _, v := range finite {
		top = max(top, float32(math.Abs(float64(v))))
	}
	o.fit(top)
	scale := math.Ldexp(1, -o.Exponent)
	for _, v := range finite {
		o.Counts[int(math.Abs(float64(v))*scale)]++
	}
}

// fit widens the bins until v falls into the last one at most. Two bins of the
// old width make exactly one of the new.
func (o *Observer) fit(v float32) {
	if v == 0 {
		return
	}
	_, e := math.Frexp(float64(v)) // v < 2^e
	need := e - 12                 // Bins bins of 2^need reach 2^e
	if need <= o.Exponent {
		return
	}
	o.widen(need)
}

func (o *Observer) widen(exponent int) {
	shift := exponent - o.Exponent
	o.Exponent = exponent
	if shift > 12 {
		shift = 12
	}
	for i := 1; i < Bins; i++ {
		if c := o.Counts[i]; c != 0 {
			o.Counts[i] = 0
			o.Counts[i>>shift] += c
		}
	}
}

// Merge adds what another observer of the same tensor has seen.
func (o *Observer) Merge(p *Observer) {
	o.Count += p.Count
	o.NaN += p.NaN
	o.Inf += p.Inf
	o.Tiny += p.Tiny
	o.Min, o.Max = min(o.Min, p.Min), max(o.Max, p.Max)
	if p.Exponent > o.Exponent {
		o.widen(p.Exponent)
	}
	shift := min(o.Exponent-p.Exponent, 12)
	for i, c := range p.Counts {
		o.Counts[i>>shift] += c
	}
}

// AbsMax returns the largest finite magnitude; 0 if nothing finite was seen.
func (o *Observer) AbsMax() float32 {
	if o.Max < o.Min {
		return 0
	}
	return max(o.Max, -o.Min)
}

// Width returns the width of a bin.
func (o *Observer) Width() float64 { return math.Ldexp(1, o.Exponent) }

// Finite returns the number of finite values.
func (o *Observer) Finite() int64 { return o.Count - o.NaN - o.Inf }

// bins returns the counts up to the bin of the largest value.
func (o *Observer) bins() []int64 {
	for n := Bins; n > 0; n-- {
		if o.Counts[n-1] != 0 {
			return o.Counts[:n]
		}
	}
	return nil
}

// AppendBinary appends a portable form of the observer for a checkpoint.
func (o *Observer) AppendBinary(b []byte) ([]byte, error) {
	used := o.bins()
	for _, v := range []int64{o.Count, o.NaN, o.Inf, o.Tiny, int64(o.Exponent), int64(len(used))} {
		b = binary.AppendVarint(b, v)
	}
	b = binary.LittleEndian.AppendUint32(b, math.Float32bits(o.Min))
	b = binary.LittleEndian.AppendUint32(b, math.Float32bits(o.Max))
	for _, c := range used {
		b = binary.AppendVarint(b, c)
	}
	return b, nil
}

// ReadObserver reads what AppendBinary wrote and returns the bytes behind it.
func ReadObserver(b []byte) (*Observer, []byte, error) {
	var head [6]int64
	for i := range head {
		v, n := binary.Varint(b)
		if n <= 0 {
			return nil, nil, fmt.Errorf("read observer: truncated head")
		}
		head[i], b = v, b[n:]
	}
	o := NewObserver()
	o.Count, o.NaN, o.Inf, o.Tiny, o.Exponent = head[0], head[1], head[2], head[3], int(head[4])
	if head[5] < 0 || head[5] > Bins || len(b) < 8 {
		return nil, nil, fmt.Errorf("read observer: %d bins", head[5])
	}
	o.Min = math.Float32frombits(binary.LittleEndian.Uint32(b))
	o.Max = math.Float32frombits(binary.LittleEndian.Uint32(b[4:]))
	b = b[8:]
	for i := range int(head[5]) {
		v, n := binary.Varint(b)
		if n <= 0 {
			return nil, nil, fmt.Errorf("read observer: truncated bins")
		}
		o.Counts[i], b = v, b[n:]
	}
	return o, b, nil
}
