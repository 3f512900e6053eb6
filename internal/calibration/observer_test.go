package calibration

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func sample(seed uint64, n int) []float32 {
	r := rand.New(rand.NewPCG(seed, 1))
	out := make([]float32, n)
	for i := range out {
		out[i] = float32(r.NormFloat64() * math.Pow(10, float64(r.IntN(6)-3)))
	}
	return out
}

func TestObserverDoesNotDependOnOrderOrGrouping(t *testing.T) {
	v := sample(1, 50000)
	whole := NewObserver()
	whole.Add(v)
	reversed, parts, left, right := NewObserver(), NewObserver(), NewObserver(), NewObserver()
	for i := len(v) - 1; i >= 0; i-- {
		reversed.Add(v[i : i+1])
	}
	for i := 0; i < len(v); i += 777 {
		parts.Add(v[i:min(i+777, len(v))])
	}
	left.Add(v[:123])
	right.Add(v[123:])
	merged := NewObserver()
	merged.Merge(right)
	merged.Merge(left)
	merged.Merge(NewObserver())
	for name, o := range map[string]*Observer{"reversed": reversed, "parts": parts, "merged": merged} {
		if d := cmp.Diff(whole, o); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

func TestObserverCountsExactly(t *testing.T) {
	v := []float32{0, 1, -1, 2.5, -4, 1e-8, -1e-9, float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1)), 3}
	o := NewObserver()
	o.Add(v)
	if o.Count != 11 || o.NaN != 1 || o.Inf != 2 || o.Finite() != 8 {
		t.Errorf("count %d, NaN %d, Inf %d", o.Count, o.NaN, o.Inf)
	}
	if o.Min != -4 || o.Max != 3 || o.AbsMax() != 4 {
		t.Errorf("range [%g, %g]", o.Min, o.Max)
	}
	var sum int64
	for _, c := range o.Counts {
		sum += c
	}
	if sum != o.Finite() {
		t.Errorf("%d values in bins, %d finite ones", sum, o.Finite())
	}
}

func TestObserverBinsHoldTheirValues(t *testing.T) {
	for _, scale := range []float64{1e-30, 1e-20, 1, 1e10, 3e38} {
		o := NewObserver()
		v := float32(scale)
		o.Add([]float32{v, v / 3, -v / 2, 0})
		if n := len(o.bins()); n < Bins/2 || n > Bins {
			t.Errorf("scale %g: the largest value is in bin %d", scale, n-1)
		}
		i := int(float64(v) / 3 / o.Width())
		if o.Counts[i] != 1 && o.Counts[max(i-1, 0)] != 1 {
			t.Errorf("scale %g: a third is not in bin %d", scale, i)
		}
	}
}

func TestObserverFindsTheEndsOfEverySign(t *testing.T) {
	for _, v := range [][]float32{{1, 2, 3}, {-1, -2, -3}, {-1, 5, 0}, {0, 0}, {-7, 0}, {0, 7}, {5}, {-5}, {3, -1e-40}} {
		o := NewObserver()
		o.Add(v)
		if o.Min != slices.Min(v) || o.Max != slices.Max(v) {
			t.Errorf("%v: [%g, %g]", v, o.Min, o.Max)
		}
	}
}

func TestObserverOfNothingFinite(t *testing.T) {
	o := NewObserver()
	if o.AbsMax() != 0 || len(o.bins()) != 0 {
		t.Error("an empty observer has a range")
	}
	o.Add([]float32{float32(math.NaN())})
	if o.AbsMax() != 0 || o.Finite() != 0 {
		t.Error("NaN gives a range")
	}
}

func TestAddRangeSeesTheSameEnds(t *testing.T) {
	v := sample(9, 9000)
	v[10], v[20], v[8999] = float32(math.NaN()), float32(math.Inf(-1)), float32(math.Inf(1))
	a, b := NewObserver(), NewObserver()
	a.Add(v)
	b.AddRange(v)
	if a.Min != b.Min || a.Max != b.Max || a.Count != b.Count || a.NaN != b.NaN || a.Inf != b.Inf || len(b.bins()) != 0 {
		t.Errorf("%+v %+v", a.AbsMax(), b.AbsMax())
	}
}

func TestObserverSurvivesItsBinaryForm(t *testing.T) {
	o := NewObserver()
	o.Add(sample(2, 5000))
	b, err := o.AppendBinary([]byte{})
	if err != nil {
		t.Fatal(err)
	}
	got, rest, err := ReadObserver(append(b, 9))
	if err != nil || len(rest) != 1 {
		t.Fatalf("%v, %d bytes left", err, len(rest))
	}
	if d := cmp.Diff(o, got); d != "" {
		t.Error(d)
	}
	for n := range min(len(b), 400) {
		if _, _, err := ReadObserver(b[:n]); err == nil {
			t.Errorf("%d of %d bytes were accepted", n, len(b))
		}
	}
}

func BenchmarkObserver(b *testing.B) {
	v := sample(3, 1<<20)
	b.SetBytes(int64(4 * len(v)))
	o := NewObserver()
	for b.Loop() {
		o.Add(v)
	}
}
