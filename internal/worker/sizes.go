package worker

import (
	"slices"

	"github.com/trtship/trtship/internal/config"
)

// TraceSizes returns the sizes of the symbolic dimensions to run and trace a
// model with, best first. A size that is baked into the graph shows only at
// another one, and hides where it is 1 or a size that is validated anyway. So
// the first sets avoid 1, the profiles' min, opt and max, each other, and the
// fixed sizes of the inputs; multiples of the step that the profiles suggest
// come first, for models that accept no others. The profiles' own sizes are
// the last resort.
func TraceSizes(cfg *config.Config) []Sizes {
	ranges, order := symbolRanges(cfg)
	if len(order) == 0 {
		return []Sizes{{}}
	}
	var sets []Sizes
	for _, stepped := range []bool{true, false} {
		taken := fixedSizes(cfg)
		for range 2 {
			set := Sizes{}
			for _, s := range order {
				set[s] = ranges[s].choose(taken, stepped)
				taken[set[s]] = true
			}
			sets = appendNew(sets, set)
		}
	}
	for _, at := range []func(symbolRange) int64{
		func(r symbolRange) int64 { return r.opts[0] },
		func(r symbolRange) int64 { return r.max },
		func(r symbolRange) int64 { return r.min },
	} {
		set := Sizes{}
		for _, s := range order {
			set[s] = at(ranges[s])
		}
		sets = appendNew(sets, set)
	}
	return sets
}

func appendNew(sets []Sizes, set Sizes) []Sizes {
	for _, s := range sets {
		same := true
		for k, v := range set {
			same = same && s[k] == v
		}
		if same {
			return sets
		}
	}
	return append(sets, set)
}

// symbolRange is what the profiles say about one symbol.
type symbolRange struct {
	min, max int64
	opts     []int64
	named    map[int64]bool // min, opt and max of every profile
}

// choose returns a size inside the range that is not taken, if there is one.
func (r symbolRange) choose(taken map[int64]bool, stepped bool) int64 {
	step := int64(1)
	if stepped {
		step = r.step()
	}
	free := func(v int64) bool { return v > 1 && !r.named[v] && !taken[v] }
	for v := roundUp(r.min, step); v <= r.max; v += step {
		if free(v) && v != 2 { // 2 is as special as 1 to code that splits a batch
			return v
		}
	}
	if free(2) && r.min <= 2 && r.max >= 2 {
		return 2
	}
	return r.opts[0]
}

// step is the greatest common divisor of the profiles' sizes.
func (r symbolRange) step() int64 {
	var g int64
	for v := range r.named {
		for a, b := g, v; ; a, b = b, a%b {
			if b == 0 {
				g = a
				break
			}
		}
	}
	return max(g, 1)
}

func roundUp(v, step int64) int64 { return (v + step - 1) / step * step }

// symbolRanges collects the range of every symbol over all profiles. A symbol
// that no profile bounds may be anything small.
func symbolRanges(cfg *config.Config) (ranges map[string]symbolRange, order []string) {
	ranges = map[string]symbolRange{}
	for _, in := range cfg.Model.Inputs {
		for axis, d := range in.Shape {
			if d.Symbol == "" {
				continue
			}
			r, known := ranges[d.Symbol]
			if !known {
				r.named = map[int64]bool{}
				order = append(order, d.Symbol)
			}
			for _, p := range cfg.TensorRT.Profiles {
				if s, ok := p.Inputs[in.Name]; ok {
					r.add(s, axis)
				}
			}
			ranges[d.Symbol] = r
		}
	}
	for s, r := range ranges {
		if len(r.opts) == 0 {
			ranges[s] = symbolRange{min: 2, max: 16, opts: []int64{3}, named: map[int64]bool{}}
		}
	}
	return ranges, order
}

func (r *symbolRange) add(s config.ShapeRange, axis int) {
	if axis >= min(len(s.Min), len(s.Opt), len(s.Max)) {
		return // config.Load has said so
	}
	if lo := s.Min[axis]; len(r.opts) == 0 || lo < r.min {
		r.min = lo
	}
	r.max = max(r.max, s.Max[axis])
	r.opts = append(r.opts, s.Opt[axis])
	for _, v := range []int64{s.Min[axis], s.Opt[axis], s.Max[axis]} {
		r.named[v] = true
	}
	slices.Sort(r.opts)
}

func fixedSizes(cfg *config.Config) map[int64]bool {
	fixed := map[int64]bool{}
	for _, in := range cfg.Model.Inputs {
		for _, d := range in.Shape {
			if d.Symbol == "" {
				fixed[d.Size] = true
			}
		}
	}
	return fixed
}
