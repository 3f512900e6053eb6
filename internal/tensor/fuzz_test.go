package tensor

import (
	"encoding/binary"
	"math"
	"slices"
	"testing"
)

// FuzzCompare holds the fast comparison to the slow exact one, on any bits.
// Slow: five exact sums of up to 4096 products are made for each input.
func FuzzCompare(f *testing.F) {
	f.Add([]byte{0, 0, 128, 63, 0, 0, 128, 63, 0, 0, 128, 127, 0, 0, 192, 127}, []byte{0, 0, 128, 63, 1, 0, 128, 63, 0, 0, 128, 127, 0, 0, 192, 127}, uint8(0), uint8(2), true)
	f.Add([]byte{0, 60, 0, 0}, []byte{0, 124, 0, 128}, uint8(1), uint8(1), false)
	f.Add(make([]byte, 64), make([]byte, 64), uint8(3), uint8(4), false)
	types := []DType{Float32, Float16, BFloat16, Float64, Float8E4, Float8E5}
	f.Fuzz(func(t *testing.T, a, b []byte, kind, rows uint8, allow bool) {
		d := types[int(kind)%len(types)]
		n := min(len(a), len(b), 4096) / d.Size()
		shape := []int64{int64(n)}
		if rows > 1 && n%int(rows) == 0 {
			shape = []int64{int64(rows), int64(n / int(rows))}
		}
		x := Tensor{DType: d, Shape: shape, Data: a[:n*d.Size()]}
		y := Tensor{DType: d, Shape: shape, Data: b[:n*d.Size()]}
		if n == 0 {
			return
		}
		if d == Float64 {
			x.Data, y.Data = moderate(x.Data), moderate(y.Data)
		}
		checkAgainstSlow(t, x, y, Rule{Atol: 1e-4, Rtol: 1e-3, AllowNaN: allow})
	})
}

// moderate brings float64 values to 2^-200 to 2^200, NaN and infinities apart:
// squares of differences leave the range of float64 below 2^-537, and the root
// of their mean is 0 then.
func moderate(b []byte) []byte {
	b = slices.Clone(b)
	for at := 0; at+8 <= len(b); at += 8 {
		v := math.Float64frombits(binary.LittleEndian.Uint64(b[at:]))
		if v == 0 || math.IsNaN(v) || math.IsInf(v, 0) {
			continue
		}
		frac, exp := math.Frexp(v)
		binary.LittleEndian.PutUint64(b[at:], math.Float64bits(math.Ldexp(frac, exp%200)))
	}
	return b
}
