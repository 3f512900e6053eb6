package tensor

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
)

// Range bounds generated values, both ends included. Bounds are kept as text so
// that 64-bit integers are exact; empty bounds mean the default of the type.
type Range struct{ Low, High string }

// Generate returns a tensor whose values depend on nothing but its type, shape,
// range and seed words (say, the seed of the run, the input's name, the point
// and the sample). Without a range, floating-point values are normal with mean
// 0 and deviation 1, and integers and bools are 0 or 1.
func Generate(d DType, shape []int64, r Range, words ...string) (Tensor, error) {
	if _, err := CheckedElements(shape); err != nil {
		return Tensor{}, fmt.Errorf("generate input: %w", err)
	}
	src := rand.New(rand.NewChaCha8(seedOf(words)))
	t := Zeros(d, shape...)
	switch {
	case d == String:
		for i := range t.Strings {
			t.Strings[i] = "s" + strconv.Itoa(src.IntN(1000))
		}
		return t, nil
	case d.Floating():
		return t, t.fillFloats(src, r)
	}
	return t, t.fillInts(src, r)
}

// seedOf hashes the words, each with its length in front.
func seedOf(words []string) [32]byte {
	var b []byte
	for _, w := range words {
		b = binary.LittleEndian.AppendUint64(b, uint64(len(w)))
		b = append(b, w...)
	}
	return sha256.Sum256(b)
}

func (t Tensor) fillFloats(src *rand.Rand, r Range) error {
	n := int(t.Elements())
	if r == (Range{}) {
		for i := range n {
			t.SetFloat64(i, src.NormFloat64())
		}
		return nil
	}
	low, err1 := strconv.ParseFloat(r.Low, 64)
	high, err2 := strconv.ParseFloat(r.High, 64)
	if err1 != nil || err2 != nil || !(low <= high) || math.IsInf(low, 0) || math.IsInf(high, 0) {
		return fmt.Errorf("generate input: range [%s, %s] is no interval of numbers", r.Low, r.High)
	}
	for i := range n {
		u := src.Float64()
		t.SetFloat64(i, low*(1-u)+high*u)
	}
	return nil
}

// intLimits are the smallest and largest values of the signed types.
var intLimits = map[DType][2]int64{
	Int64: {math.MinInt64, math.MaxInt64}, Int32: {math.MinInt32, math.MaxInt32},
	Int16: {math.MinInt16, math.MaxInt16}, Int8: {math.MinInt8, math.MaxInt8}, Int4: {-8, 7},
	UInt64: {0, math.MaxInt64}, UInt32: {0, math.MaxUint32}, UInt16: {0, math.MaxUint16},
	UInt8: {0, math.MaxUint8}, UInt4: {0, 15}, Bool: {0, 1},
}

func (t Tensor) fillInts(src *rand.Rand, r Range) error {
	low, high := int64(0), int64(1)
	if r != (Range{}) {
		var err1, err2 error
		low, err1 = strconv.ParseInt(r.Low, 10, 64)
		high, err2 = strconv.ParseInt(r.High, 10, 64)
		if err1 != nil || err2 != nil || low > high {
			return fmt.Errorf("generate input: range [%s, %s] is no interval of integers", r.Low, r.High)
		}
		if l := intLimits[t.DType]; low < l[0] || high > l[1] {
			return fmt.Errorf("generate input: range [%d, %d] does not fit %s", low, high, t.DType)
		}
	}
	width := uint64(high-low) + 1 // 0 stands for 2^64
	for i := range int(t.Elements()) {
		var x uint64
		if width == 0 {
			x = src.Uint64()
		} else {
			x = src.Uint64N(width)
		}
		t.setInt(i, int64(uint64(low)+x))
	}
	return nil
}
