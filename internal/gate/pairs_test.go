package gate

import (
	"math/rand/v2"
	"testing"

	"github.com/trtship/trtship/report"
)

// rounds makes blocks of two engines on a GPU whose clock changes half-way
// through: both get slower by a fifth. head is slower than base by `slower`.
func rounds(n int, slower float64, seed uint64) (base, head []float64) {
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range n {
		level := 1.0
		if i > n/2 {
			level = 1.2
		}
		base = append(base, level*(1+0.003*r.NormFloat64()))
		head = append(head, level*(1+slower)*(1+0.003*r.NormFloat64()))
	}
	return base, head
}

func TestPairsCancelWhatMovesBoth(t *testing.T) {
	tests := map[string]struct {
		slower float64
		want   report.Change
	}{
		"the same engine":          {0, report.Same},
		"five percent slower":      {0.05, report.Regressed},
		"five percent faster":      {-0.05, report.Improved},
		"one percent, at the edge": {0.01, report.Unclear},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			base, head := rounds(60, tt.slower, 7)
			d := ComparePairs(base, head, 0.01, 0.99)
			if d.Change != tt.want {
				t.Errorf("got %s (%v to %v), want %s", d.Change, *d.Low, *d.High, tt.want)
			}
		})
	}
}

func TestManyComparisonsOfOneEngineAreTheSame(t *testing.T) {
	other := 0
	for seed := range uint64(100) {
		base, head := rounds(40, 0, seed)
		if ComparePairs(base, head, 0.01, 0.99).Change != report.Same {
			other++
		}
	}
	if other > 3 {
		t.Errorf("%d of 100 comparisons of one engine are not the same, want at most 3", other)
	}
}

func TestPairsNeedEnoughBlocksThatPair(t *testing.T) {
	base, head := rounds(40, 0, 1)
	for name, got := range map[string]report.Delta{
		"too few":            ComparePairs(base[:5], head[:5], 0.01, 0.99),
		"of unequal length":  ComparePairs(base, head[:39], 0.01, 0.99),
		"a block of nothing": ComparePairs(append([]float64{0}, base[1:]...), head, 0.01, 0.99),
	} {
		if got.Change != report.Unclear || got.Detail == "" {
			t.Errorf("%s: got %s %q, want unclear with a reason", name, got.Change, got.Detail)
		}
	}
}
