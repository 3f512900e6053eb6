package calibration

import (
	"maps"
	"math"
	"slices"

	"github.com/trtship/trtship/report"
)

// Ranges turns what was observed into ranges and scales, sorted by name.
// makers names the node of each tensor.
func Ranges(observed map[string]*Observer, rule Rule, makers map[string]string) ([]TensorRange, error) {
	out := make([]TensorRange, 0, len(observed))
	for _, name := range slices.Sorted(maps.Keys(observed)) {
		o := observed[name]
		r := TensorRange{Name: name, Node: makers[name], Count: o.Count, NaN: o.NaN, Inf: o.Inf}
		if o.Finite() > 0 {
			t, err := rule.Threshold(o)
			if err != nil {
				return nil, err
			}
			r.set(o, t)
		}
		out = append(out, r)
	}
	return out, nil
}

func (r *TensorRange) set(o *Observer, threshold float32) {
	r.Min, r.Max, r.AbsMax = number(o.Min), number(o.Max), number(o.AbsMax())
	r.Threshold, r.Scale = number(threshold), number(Scale(threshold))
	var beyond int64
	if threshold < o.AbsMax() {
		for _, c := range o.Counts[min(int(math.Ceil(float64(threshold)/o.Width())), Bins):] {
			beyond += c
		}
	}
	r.Clipped = number64(float64(beyond) / float64(o.Finite()))
	r.Used = r.NaN == 0 && r.Inf == 0
}

func number(v float32) report.Number { return report.Number(v) }

func number64(v float64) report.Number { return report.Number(v) }
