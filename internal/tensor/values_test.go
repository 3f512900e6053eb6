package tensor

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The narrow types round as NumPy and ml_dtypes do, for values of every size,
// at every tie, and just beside one.
func TestNarrowTypesRoundAsNumPyDoes(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	var values []float64
	for range 20000 {
		values = append(values, math.Ldexp(r.NormFloat64(), r.IntN(60)-35))
	}
	for _, d := range []DType{Float16, BFloat16, Float8E4, Float8E5} {
		for bits := 0; bits < 1<<(8*d.Size()); bits += 1 + 15*(d.Size()-1) {
			a := Tensor{DType: d, Shape: []int64{2}, Data: make([]byte, 2*d.Size())}
			for k := range 2 {
				for b := range d.Size() {
					a.Data[k*d.Size()+b] = byte((bits + k) >> (8 * b))
				}
			}
			v := a.Float64s()
			tie := (v[0] + v[1]) / 2
			if math.IsNaN(tie) || math.IsInf(tie, 0) {
				continue
			}
			values = append(values, v[0], tie, math.Nextafter(tie, math.Inf(1)), math.Nextafter(tie, math.Inf(-1)))
		}
	}
	values = append(values, 0, math.Copysign(0, -1), math.Inf(1), math.Inf(-1), 65504, 65519.99, 65520, 1e300, 448, 463.9, 464, 465, 480, 57344, 61439.9, 61440, 3.4e38, 1e-320)
	dir := t.TempDir()
	in := filepath.Join(dir, "in.npz")
	if err := WriteNPZ(in, []Named{{"x", FromFloat64s(Float64, []int64{int64(len(values))}, values)}}); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "out.npz")
	// float64 to the 8-bit types and bfloat16 goes through float32 in ml_dtypes;
	// so that both round once, it gets exact float32 values where they exist.
	python(t, `import sys, numpy as np, ml_dtypes as ml
x = np.load(sys.argv[1])["x"]
with np.errstate(all="ignore"):
    f = x.astype(np.float32).astype(np.float64)
    np.savez(sys.argv[2], half=x.astype(np.float16).view(np.uint16), f=f,
        bfloat=f.astype(np.float32).astype(ml.bfloat16).view(np.uint16),
        e4=f.astype(np.float32).astype(ml.float8_e4m3fn).view(np.uint8), e5=f.astype(np.float32).astype(ml.float8_e5m2).view(np.uint8))`, in, out)
	want, err := ReadNPZ(out)
	if err != nil {
		t.Fatal(err)
	}
	singles, _ := Find(want, "f")
	for name, c := range map[string]struct {
		d      DType
		values []float64
	}{"half": {Float16, values}, "bfloat": {BFloat16, singles.Float64s()}, "e4": {Float8E4, singles.Float64s()}, "e5": {Float8E5, singles.Float64s()}} {
		raw, _ := Find(want, name)
		expect := Tensor{DType: c.d, Shape: raw.Shape, Data: raw.Data}.Float64s()
		got := FromFloat64s(c.d, raw.Shape, c.values).Float64s()
		bad := 0
		for i := range got {
			same := got[i] == expect[i] && math.Signbit(got[i]) == math.Signbit(expect[i])
			if !same && !(got[i] != got[i] && expect[i] != expect[i]) {
				if bad++; bad < 5 {
					t.Errorf("%s of %v = %v, NumPy says %v", c.d, c.values[i], got[i], expect[i])
				}
			}
		}
		if bad > 0 {
			t.Errorf("%s: %d of %d differ", c.d, bad, len(got))
		}
	}
}

func TestHalfAndBFloatBits(t *testing.T) {
	if HalfBits(1) != 0x3c00 || HalfValue(0x3c00) != 1 || BFloatBits(1) != 0x3f80 || BFloatValue(0x3f80) != 1 {
		t.Error("1 is not 1")
	}
	if v := BFloatValue(BFloatBits(math.NaN())); v == v {
		t.Errorf("NaN became %v", v)
	}
}

func TestConversionKeepsWhatItCan(t *testing.T) {
	cases := map[string]struct {
		from Tensor
		to   DType
		want Tensor
	}{
		"64-bit integers stay exact": {FromInt64s(Int64, []int64{1}, []int64{1<<53 + 1}), UInt64, FromInt64s(UInt64, []int64{1}, []int64{1<<53 + 1})},
		"integers to floats":         {FromInt64s(Int32, []int64{2}, []int64{-3, 4}), Float32, FromFloat64s(Float32, []int64{2}, []float64{-3, 4})},
		"floats truncate":            {FromFloat64s(Float32, []int64{2}, []float64{-1.9, 1.9}), Int8, FromInt64s(Int8, []int64{2}, []int64{-1, 1})},
		"any number is true":         {FromInt64s(Int8, []int64{2}, []int64{0, 4}), Bool, FromInt64s(Bool, []int64{2}, []int64{0, 1})},
		"to itself":                  {FromStrings([]int64{1}, []string{"a"}), String, FromStrings([]int64{1}, []string{"a"})},
		"large uint64":               {FromInt64s(UInt64, []int64{1}, []int64{-1}), Float64, FromFloat64s(Float64, []int64{1}, []float64{math.MaxUint64})},
		"back to uint64":             {FromFloat64s(Float64, []int64{1}, []float64{1 << 63}), UInt64, FromInt64s(UInt64, []int64{1}, []int64{math.MinInt64})},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := c.from.Convert(c.to)
			if err != nil || !got.Equal(c.want) {
				t.Errorf("got %v, %v, want %v", got, err, c.want)
			}
		})
	}
	if _, err := FromStrings([]int64{1}, []string{"1"}).Convert(Float32); err == nil {
		t.Error("a string became a number")
	}
}

func TestRowsAndConcatAreInverse(t *testing.T) {
	x := FromFloat32s([]int64{3, 2}, []float32{1, 2, 3, 4, 5, 6})
	got, err := Concat(x.Rows(0, 1), x.Rows(1, 3))
	if err != nil || !got.Equal(x) {
		t.Errorf("got %v, %v", got, err)
	}
	s := FromStrings([]int64{2}, []string{"a", "b"})
	if r := s.Rows(1, 2); r.Strings[0] != "b" || r.Check() != nil {
		t.Errorf("row of strings = %v", r)
	}
	for name, ts := range map[string][]Tensor{
		"nothing": {}, "scalars": {Zeros(Float32)}, "packed": {Zeros(Int4, 2)}, "other widths": {x, Zeros(Float32, 1, 3)}, "other types": {x, Zeros(Int32, 1, 2)},
	} {
		if _, err := Concat(ts...); err == nil {
			t.Errorf("%s were joined", name)
		}
	}
}

func TestCloneSharesNothing(t *testing.T) {
	x := FromFloat32s([]int64{1}, []float32{1})
	y := x.Clone()
	y.Data[0], y.Shape[0] = 9, 7
	if x.Data[0] == 9 || x.Shape[0] == 7 {
		t.Error("the clone shares memory")
	}
}

func TestDataTypeNames(t *testing.T) {
	for name, want := range map[string]DType{"half": Float16, "bf16": BFloat16, "long": Int64, "fp32": Float32, "bool": Bool} {
		if got, err := ParseDType(name); err != nil || got != want {
			t.Errorf("%s = %v, %v", name, got, err)
		}
	}
	if _, err := ParseDType("complex64"); err == nil {
		t.Error("complex64 is a type")
	}
	if String.Size() != 0 || Int4.Size() != 0 || Float8E5.Size() != 1 || ByteLen(UInt4, 3) != 2 || Bool.Floating() {
		t.Error("sizes are wrong")
	}
}

func TestGeneratedInputsDependOnTheirSeedOnly(t *testing.T) {
	shape := []int64{50, 20}
	a, err := Generate(Float32, shape, Range{}, "1", "x", "min", "0")
	if err != nil {
		t.Fatal(err)
	}
	if b, _ := Generate(Float32, shape, Range{}, "1", "x", "min", "0"); !a.Equal(b) {
		t.Error("the same seed gives other values")
	}
	for _, words := range [][]string{{"1", "x", "min", "1"}, {"2", "x", "min", "0"}, {"1", "xm", "in", "0"}, {"1", "x", "min0", ""}} {
		if b, _ := Generate(Float32, shape, Range{}, words...); a.Equal(b) {
			t.Errorf("seed %q gives the same values", words)
		}
	}
	v := a.Float64s()
	mean, square := 0.0, 0.0
	for _, x := range v {
		mean += x / float64(len(v))
		square += x * x / float64(len(v))
	}
	if math.Abs(mean) > 0.15 || math.Abs(square-1) > 0.2 {
		t.Errorf("mean %v, mean square %v: not about normal", mean, square)
	}
}

// A generator that changes makes every stored reference and every calibration
// new; so its first values are written down.
func TestTheGeneratorStaysAsItIs(t *testing.T) {
	f, _ := Generate(Float32, []int64{3}, Range{}, "0", "x")
	i, _ := Generate(Int64, []int64{6}, Range{Low: "0", High: "9"}, "0", "ids")
	got := fmt.Sprint(f.Float32s(), i.Int64s())
	path := filepath.Join("testdata", "generator.txt")
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.TrimSpace(string(want)), got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

func TestGeneratedValuesStayInTheirRange(t *testing.T) {
	cases := map[string]struct {
		d          DType
		r          Range
		low, high  int64
		everything bool
	}{
		"default integers are 0 and 1": {Int64, Range{}, 0, 1, true},
		"default bools":                {Bool, Range{}, 0, 1, true},
		"both ends are reached":        {Int32, Range{"3", "6"}, 3, 6, true},
		"negative":                     {Int8, Range{"-2", "-1"}, -2, -1, true},
		"one value":                    {UInt8, Range{"7", "7"}, 7, 7, true},
		"the whole of int64":           {Int64, Range{"-9223372036854775808", "9223372036854775807"}, math.MinInt64, math.MaxInt64, false},
		"packed":                       {Int4, Range{"-8", "7"}, -8, 7, true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			x, err := Generate(c.d, []int64{500}, c.r, "seed")
			if err != nil {
				t.Fatal(err)
			}
			v := x.Int64s()
			lo, hi := slices.Min(v), slices.Max(v)
			if lo < c.low || hi > c.high || (c.everything && (lo != c.low || hi != c.high)) {
				t.Errorf("values from %d to %d, want %d to %d", lo, hi, c.low, c.high)
			}
		})
	}
	f, err := Generate(Float16, []int64{500}, Range{"-0.5", "2"}, "seed")
	if err != nil {
		t.Fatal(err)
	}
	if v := f.Float64s(); slices.Min(v) < -0.5 || slices.Max(v) > 2 || slices.Max(v) < 1.5 {
		t.Errorf("floats from %v to %v", slices.Min(v), slices.Max(v))
	}
	if s, err := Generate(String, []int64{2}, Range{}, "seed"); err != nil || s.Strings[0] == "" {
		t.Errorf("strings = %v, %v", s, err)
	}
}

func TestRangesThatMeanNothingAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		d     DType
		shape []int64
		r     Range
	}{
		"low above high":           {Int64, []int64{1}, Range{"2", "1"}},
		"a fraction for integers":  {Int64, []int64{1}, Range{"0.5", "1"}},
		"too large for the type":   {UInt8, []int64{1}, Range{"0", "256"}},
		"negative for unsigned":    {UInt32, []int64{1}, Range{"-1", "1"}},
		"words for floats":         {Float32, []int64{1}, Range{"a", "1"}},
		"infinite":                 {Float32, []int64{1}, Range{"0", "inf"}},
		"NaN":                      {Float32, []int64{1}, Range{"nan", "1"}},
		"a shape that is none":     {Float32, []int64{-1}, Range{}},
		"a shape that is too much": {Float32, []int64{1 << 40, 1 << 40}, Range{}},
	} {
		if _, err := Generate(c.d, c.shape, c.r, "seed"); err == nil {
			t.Errorf("%s: generated", name)
		}
	}
}

func TestStringsTravelWithTheirLengths(t *testing.T) {
	want := []string{"", "a\x00b", "größe"}
	got, err := SplitStrings(AppendStrings(nil, want))
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v", got, err)
	}
	if !bytes.Equal(AppendStrings(nil, []string{"ab"}), []byte{2, 0, 0, 0, 'a', 'b'}) {
		t.Error("the length is not little-endian")
	}
}
