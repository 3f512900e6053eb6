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

// Observer gathers the values of one tensor.
type Observer struct {
	Count int64   // values seen, NaN and infinities included
	NaN   int64   // values that are not a number
	Inf   int64   // infinite values
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

// AddRange takes further values but counts them in no bin: enough where only
// the ends are asked for, in a third of the time.
func (o *Observer) AddRange(values []float32) {
	for len(values) > 0 {
		part := values[:min(chunk, len(values))]
		values = values[len(part):]
		if signed, unsigned := extremes(part); max(uint32(signed), above(unsigned)) < infBits {
			o.Count += int64(len(part))
			o.ends(part, uint32(signed), above(unsigned))
			continue
		}
		o.Count += int64(len(part))
		o.finite(part)
	}
}

// above returns the magnitude of the most negative value; 0 if there is none.
func above(unsigned uint32) uint32 {
	if unsigned > absMask {
		return unsigned & absMask
	}
	return 0
}

// chunk is the number of values whose extremes are found before they are
// counted; they stay in the first-level cache between the two loops.
const chunk = 4096

// Add takes further values.
func (o *Observer) Add(values []float32) {
	var odd table
	for len(values) > 0 {
		part := values[:min(chunk, len(values))]
		values = values[len(part):]
		o.addChunk(part, &odd)
	}
	o.join(&odd)
}

const (
	absMask = 0x7fffffff
	infBits = 0x7f800000
)

// addChunk compares bit patterns instead of values: as a signed integer the
// largest pattern is that of the largest value if one is positive, as an
// unsigned one that of the most negative value if there is one.
func (o *Observer) addChunk(part []float32, odd *table) {
	signed, unsigned := extremes(part)
	positive, negative := uint32(signed), above(unsigned)
	if max(positive, negative) >= infBits {
		o.Count += int64(len(part))
		o.join(odd)
		o.addSpecial(part)
		return
	}
	o.ends(part, positive, negative)
	o.Count += int64(len(part))
	if top := math.Float32frombits(max(positive, negative)); o.needs(top) > o.Exponent {
		o.join(odd)
		o.fit(top)
	}
	o.count(part, odd)
}

// ends extends the range by a chunk of finite values.
func (o *Observer) ends(part []float32, positive, negative uint32) {
	if positive > 0 && negative > 0 {
		o.extend(-math.Float32frombits(negative), math.Float32frombits(positive))
		return
	}
	for _, v := range part { // the smaller end lies among values of one sign
		o.extend(v, v)
	}
}

// extremes returns the largest bit patterns. Four running maxima do not wait
// for each other.
func extremes(part []float32) (signed int32, unsigned uint32) {
	var s [4]int32
	var u [4]uint32
	i := 0
	for ; i+4 <= len(part); i += 4 {
		p := part[i : i+4 : i+4]
		a, b, c, d := math.Float32bits(p[0]), math.Float32bits(p[1]), math.Float32bits(p[2]), math.Float32bits(p[3])
		s[0], u[0] = max(s[0], int32(a)), max(u[0], a)
		s[1], u[1] = max(s[1], int32(b)), max(u[1], b)
		s[2], u[2] = max(s[2], int32(c)), max(u[2], c)
		s[3], u[3] = max(s[3], int32(d)), max(u[3], d)
	}
	for _, v := range part[i:] {
		b := math.Float32bits(v)
		s[0], u[0] = max(s[0], int32(b)), max(u[0], b)
	}
	return max(s[0], s[1], s[2], s[3]), max(u[0], u[1], u[2], u[3])
}

func (o *Observer) extend(low, high float32) {
	if low < o.Min {
		o.Min = low
	}
	if high > o.Max {
		o.Max = high
	}
}

// table counts every second value until it is added to the observer's counts.
// Neighbours often are equal (a ReLU's zeros), and a counter cannot be raised
// again before it was stored: with two tables that take turns it need not be.
type table [Bins]uint32

func (o *Observer) count(part []float32, odd *table) {
	inv := float32(math.Ldexp(1, -o.Exponent))
	even := (*[Bins]int64)(o.Counts)
	k := 0
	for ; k+2 <= len(part); k += 2 {
		p := part[k : k+2 : k+2]
		// fit has made the bins smaller than Bins; the mask tells the compiler.
		i := uint32(int32(math.Float32frombits(math.Float32bits(p[0])&absMask)*inv)) & (Bins - 1)
		j := uint32(int32(math.Float32frombits(math.Float32bits(p[1])&absMask)*inv)) & (Bins - 1)
		even[i]++
		odd[j]++
	}
	for _, v := range part[k:] {
		even[uint32(int32(math.Float32frombits(math.Float32bits(v)&absMask)*inv))&(Bins-1)]++
	}
}

// join adds a table to the counts and empties it.
func (o *Observer) join(t *table) {
	for i, c := range t {
		if c != 0 {
			o.Counts[i] += int64(c)
			t[i] = 0
		}
	}
}

// addSpecial counts a chunk that holds NaN or infinities.
func (o *Observer) addSpecial(part []float32) {
	finite := o.finite(part)
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

// finite counts NaN and infinities and returns the other values, by which it
// extends the range.
func (o *Observer) finite(part []float32) []float32 {
	out := make([]float32, 0, len(part))
	for _, v := range part {
		switch b := math.Float32bits(v) & absMask; {
		case b > infBits:
			o.NaN++
		case b == infBits:
			o.Inf++
		default:
			out = append(out, v)
			o.extend(v, v)
		}
	}
	return out
}

// needs returns the exponent of bins of which the last one at most holds v.
func (o *Observer) needs(v float32) int {
	if v == 0 {
		return o.Exponent
	}
	_, e := math.Frexp(float64(v)) // v < 2^e
	return e - 12                  // Bins bins of 2^(e-12) reach 2^e
}

// fit widens the bins until v falls into the last one at most. Two bins of the
// old width make exactly one of the new.
func (o *Observer) fit(v float32) {
	if need := o.needs(v); need > o.Exponent {
		o.widen(need)
	}
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
	for _, v := range []int64{o.Count, o.NaN, o.Inf, int64(o.Exponent), int64(len(used))} {
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
	var head [5]int64
	for i := range head {
		v, n := binary.Varint(b)
		if n <= 0 {
			return nil, nil, fmt.Errorf("read observer: truncated head")
		}
		head[i], b = v, b[n:]
	}
	o := NewObserver()
	o.Count, o.NaN, o.Inf, o.Exponent = head[0], head[1], head[2], int(head[3])
	if head[4] < 0 || head[4] > Bins || len(b) < 8 {
		return nil, nil, fmt.Errorf("read observer: %d bins", head[4])
	}
	o.Min = math.Float32frombits(binary.LittleEndian.Uint32(b))
	o.Max = math.Float32frombits(binary.LittleEndian.Uint32(b[4:]))
	b = b[8:]
	for i := range int(head[4]) {
		v, n := binary.Varint(b)
		if n <= 0 {
			return nil, nil, fmt.Errorf("read observer: truncated bins")
		}
		o.Counts[i], b = v, b[n:]
	}
	return o, b, nil
}
