package tensor

import (
	"math"
	"sync"

	"github.com/x448/float16"
)

// HalfBits rounds x to the nearest float16, ties to even, and returns its bits.
// Values from 65520 on become infinite.
func HalfBits(x float64) uint16 {
	f := float32(x)
	// Rounding twice can go wrong only where the first step lands on a tie of
	// the second; then the exact value says which way.
	if fix := tieBreak(x, f); fix != 0 {
		f = math.Float32frombits(uint32(int64(math.Float32bits(f)) + fix))
	}
	return float16.Fromfloat32(f).Bits()
}

// HalfValue returns the value of float16 bits.
func HalfValue(bits uint16) float64 { return float64(halfTable()[bits]) }

// BFloatBits rounds x to the nearest bfloat16, ties to even, and returns its bits.
func BFloatBits(x float64) uint16 {
	f := float32(x)
	b := math.Float32bits(f)
	if f != f {
		return uint16(b>>16) | 0x40 // stay a quiet NaN after the cut
	}
	if fix := tieBreak(x, f); fix != 0 {
		b = uint32(int64(b) + fix)
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// BFloatValue returns the value of bfloat16 bits.
func BFloatValue(bits uint16) float64 {
	return float64(math.Float32frombits(uint32(bits) << 16))
}

// tieBreak returns -1, 0 or 1 units in the last place of f, to be added before
// its low bits are rounded away: f is x rounded once, and lies exactly on a
// point where the second rounding would look at even and odd.
func tieBreak(x float64, f float32) int64 {
	back := float64(f)
	if back == x || x != x || math.IsInf(back, 0) {
		return 0
	}
	if math.Float32bits(f)&0xfff != 0 {
		return 0 // no tie of any narrower type lies here
	}
	if math.Abs(x) > math.Abs(back) {
		return 1
	}
	return -1
}

var halfTable = sync.OnceValue(func() *[1 << 16]float32 {
	table := new([1 << 16]float32)
	for i := range table {
		table[i] = float16.Frombits(uint16(i)).Float32()
	}
	return table
})

// float8 describes an 8-bit float: its mantissa bits, exponent bias, the bits
// of its largest finite value, and of infinity (0 if it has none).
type float8 struct {
	mantissa int
	bias     int
	max      byte
	inf      byte
	nan      byte
}

var (
	e4m3 = float8{mantissa: 3, bias: 7, max: 0x7e, nan: 0x7f}
	e5m2 = float8{mantissa: 2, bias: 15, max: 0x7b, inf: 0x7c, nan: 0x7e}

	e4m3Table = sync.OnceValue(func() *[256]float64 { return e4m3.table() })
	e5m2Table = sync.OnceValue(func() *[256]float64 { return e5m2.table() })
)

func float8Table(d DType) *[256]float64 {
	if d == Float8E4 {
		return e4m3Table()
	}
	return e5m2Table()
}

func (f *float8) table() *[256]float64 {
	var t [256]float64
	for i := range t {
		b := byte(i)
		var v float64
		switch mag := b & 0x7f; {
		case f.inf != 0 && mag == f.inf:
			v = math.Inf(1)
		case mag > f.max:
			v = math.NaN()
		default:
			exp, man := int(mag>>f.mantissa), int(mag)&(1<<f.mantissa-1)
			if exp == 0 {
				v = math.Ldexp(float64(man), 1-f.bias-f.mantissa)
			} else {
				v = math.Ldexp(float64(man|1<<f.mantissa), exp-f.bias-f.mantissa)
			}
		}
		if b&0x80 != 0 {
			v = -v
		}
		t[i] = v
	}
	return &t
}

// float8Bits rounds x to the nearest 8-bit float, ties to even. Beyond the
// largest value e5m2 becomes infinite and e4m3, which has no infinity, NaN.
func float8Bits(x float64, f *float8) byte {
	var sign byte
	if math.Signbit(x) {
		sign = 0x80
	}
	if x != x {
		return sign | f.nan
	}
	over := f.nan
	if f.inf != 0 {
		over = f.inf
	}
	mag := math.Abs(x)
	if math.IsInf(mag, 0) {
		return sign | over
	}
	if mag == 0 {
		return sign
	}
	// The unit in the last place at this magnitude; subnormals share the smallest.
	_, exp := math.Frexp(mag)
	ulp := max(exp-1-f.mantissa, 1-f.bias-f.mantissa)
	q := math.RoundToEven(math.Ldexp(mag, -ulp))
	// q counts ulps above zero within this binade; adding the binade's offset
	// carries into the exponent by itself when q rounds up to the next one.
	bits := int(q) + (ulp-(1-f.bias-f.mantissa))<<f.mantissa
	if bits > int(f.max) {
		return sign | over
	}
	return sign | byte(bits)
}
