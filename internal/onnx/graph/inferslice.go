package graph

import (
	"math"
	"slices"
)

func slice(c *inference) {
	x := c.in(0)
	f := Fact{Type: x.Type}
	if !x.Ranked {
		c.set(0, f)
		return
	}
	f.Ranked, f.Shape = true, slices.Clone(x.Shape)
	p, ok := SliceOf(c.n, len(x.Shape))
	if !ok {
		// Which axes are cut may be known even if the ends are not.
		cut := make([]bool, len(x.Shape))
		axes, given := c.ints(3, "axes")
		if !given {
			for i := range cut {
				cut[i] = true
			}
		}
		for _, a := range axes {
			if i, ok := axis(a, len(x.Shape)); ok {
				cut[i] = true
			}
		}
		for i := range f.Shape {
			if cut[i] {
				f.Shape[i] = c.m.symbols.of(expr{op: "slice", a: f.Shape[i], node: c.n, at: i})
			}
		}
		c.set(0, f)
		return
	}
	for i, a := range p.Axes {
		f.Shape[a] = c.sliced(x.Shape[a], p.Starts[i], p.Ends[i], p.Steps[i], a)
	}
	if len(x.Shape) == 1 && x.Elems != nil && len(p.Axes) == 1 {
		f.Elems = cutElems(x.Elems, p.Starts[0], p.Ends[0], p.Steps[0])
	}
	c.set(0, f)
}

// Slicing is what a Slice does, with axes made non-negative.
type Slicing struct {
	Axes                []int
	Starts, Ends, Steps []int64
}

// SliceOf returns the parameters of a Slice whose data has rank dimensions, if
// all are known.
func SliceOf(n *Node, rank int) (Slicing, bool) {
	c := &inference{n: n}
	starts, ok1 := c.ints(1, "starts")
	ends, ok2 := c.ints(2, "ends")
	if !ok1 || !ok2 || len(starts) != len(ends) {
		return Slicing{}, false
	}
	p := Slicing{Starts: starts, Ends: ends}
	axes, given := c.ints(3, "axes")
	if !given {
		if c.has(3) {
			return p, false
		}
		for i := range starts {
			axes = append(axes, int64(i))
		}
	}
	steps, given := c.ints(4, "steps")
	if !given {
		if c.has(4) {
			return p, false
		}
		for range starts {
			steps = append(steps, 1)
		}
	}
	if len(axes) != len(starts) || len(steps) != len(starts) {
		return p, false
	}
	for i, a := range axes {
		x, ok := axis(a, rank)
		if !ok || steps[i] == 0 {
			return p, false
		}
		p.Axes = append(p.Axes, x)
	}
	p.Steps = steps
	return p, true
}

func (c *inference) sliced(d Dim, start, end, step int64, at int) Dim {
	if d.Known() {
		s, e := SliceBounds(d.N, start, end, step)
		return Size(SliceLen(s, e, step))
	}
	if start == 0 && step == 1 {
		if end >= math.MaxInt32 {
			return d
		}
		if end < 0 { // all but the last -end, if there are as many
			return c.m.symbols.of(expr{op: "cut", a: d, b: Size(end)})
		}
	}
	return c.m.symbols.of(expr{op: "slice", a: d, node: c.n, at: at})
}

// SliceBounds clamps start and end as Slice does for a dimension of n.
func SliceBounds(n, start, end, step int64) (int64, int64) {
	norm := func(x int64) int64 {
		if x < 0 {
			if x < -n {
				return -1 // before the start
			}
			x += n
		}
		return x
	}
	start, end = norm(start), norm(end)
	if step > 0 {
		return min(max(start, 0), n), min(max(end, 0), n)
	}
	return min(max(start, -1), n-1), min(max(end, -1), n-1)
}

// SliceLen returns how many steps lead from s to before e. Steps may be as large
// as int64 goes.
func SliceLen(s, e, step int64) int64 {
	switch {
	case step > 0 && s < e:
		return (e-s-1)/step + 1
	case step < 0 && s > e:
		return (s-e-1)/-max(step, -math.MaxInt64) + 1
	}
	return 0
}

func cutElems(elems []Dim, start, end, step int64) []Dim {
	s, e := SliceBounds(int64(len(elems)), start, end, step)
	out := []Dim{}
	for i, k := s, SliceLen(s, e, step); k > 0; i, k = i+step, k-1 {
		out = append(out, elems[i])
	}
	return out
}
