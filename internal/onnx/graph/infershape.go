package graph

import (
	"math"
	"slices"

	"github.com/trtship/trtship/internal/onnx/onnxpb"
)

func shapeOf(c *inference) {
	f := Fact{Type: onnxpb.TensorProto_INT64}
	if x := c.in(0); x.Ranked {
		start, end := clampRange(c.n.Int("start", 0), c.n.Int("end", math.MaxInt64), len(x.Shape))
		f.Elems = nonNil(slices.Clone(x.Shape[start:end]))
		f.Ranked, f.Shape = true, []Dim{Size(int64(end - start))}
	}
	c.set(0, f)
}

// exact reports whether sums of such numbers are exact in float64.
func exact(n int64) bool { return n > -1<<50 && n < 1<<50 }

func clampRange(start, end int64, rank int) (int, int) {
	clamp := func(x int64) int {
		if x < 0 {
			x += int64(rank)
		}
		return int(min(max(x, 0), int64(rank)))
	}
	s, e := clamp(start), clamp(end)
	return s, max(s, e)
}

func sizeOf(c *inference) {
	f := Fact{Type: onnxpb.TensorProto_INT64, Ranked: true}
	if n, ok := c.in(0).KnownShape(); ok {
		total := int64(1)
		for _, d := range n {
			total *= d
		}
		f.Elems = []Dim{Size(total)}
	}
	c.set(0, f)
}

func gather(c *inference) {
	x, idx := c.in(0), c.in(1)
	f := Fact{Type: x.Type}
	if x.Ranked && idx.Ranked {
		a, ok := axis(c.n.Int("axis", 0), len(x.Shape))
		if !ok {
			c.failed = true
			return
		}
		f.Ranked = true
		f.Shape = slices.Concat(x.Shape[:a], idx.Shape, x.Shape[a+1:])
		if i, ok := idx.KnownElems(); ok && x.Elems != nil && len(x.Shape) == 1 {
			f.Elems = pick(x.Elems, i)
		}
	}
	c.set(0, f)
}

func pick(elems []Dim, index []int64) []Dim {
	out := []Dim{}
	for _, i := range index {
		if i < 0 {
			i += int64(len(elems))
		}
		if i < 0 || i >= int64(len(elems)) {
			return nil
		}
		out = append(out, elems[i])
	}
	return out
}

func gatherElements(c *inference) {
	f := c.in(1)
	f.Type, f.Elems = c.in(0).Type, nil
	c.set(0, f)
}

func concat(c *inference) {
	f := c.in(0)
	elems := []Dim{}
	for i := range c.n.In {
		x := c.in(i)
		if !x.Ranked {
			c.set(0, Fact{Type: f.Type})
			return
		}
		if x.Elems == nil || len(x.Shape) != 1 {
			elems = nil
		} else if elems != nil {
			elems = append(elems, x.Elems...)
		}
	}
	a, ok := axis(c.n.Int("axis", 0), len(f.Shape))
	if !ok {
		c.failed = true
		return
	}
	shape := slices.Clone(f.Shape)
	for i := 1; i < len(c.n.In); i++ {
		x := c.in(i)
		if len(x.Shape) != len(shape) {
			c.failed = true
			return
		}
		for d := range shape {
			switch {
			case d == a:
				shape[d] = c.m.arith("+", shape[d], x.Shape[d])
			case !shape[d].Known() && x.Shape[d].Known():
				shape[d] = x.Shape[d]
			}
		}
	}
	c.set(0, Fact{Type: f.Type, Ranked: true, Shape: shape, Elems: elems})
}

func unsqueeze(c *inference) {
	x := c.in(0)
	axes, ok := c.ints(1, "axes")
	f := Fact{Type: x.Type}
	if !ok || !x.Ranked {
		c.set(0, f)
		return
	}
	rank := len(x.Shape) + len(axes)
	f.Ranked, f.Shape = true, make([]Dim, rank)
	mark := make([]bool, rank)
	for _, a := range axes {
		i, ok := axis(a, rank)
		if !ok || mark[i] {
			c.failed = true
			return
		}
		mark[i] = true
	}
	next := 0
	for i := range f.Shape {
		if mark[i] {
			f.Shape[i] = Size(1)
			continue
		}
		f.Shape[i] = x.Shape[next]
		next++
	}
	if rank <= 1 {
		f.Elems = x.Elems
	}
	c.set(0, f)
}

func squeeze(c *inference) {
	x := c.in(0)
	f := Fact{Type: x.Type}
	axes, given := c.ints(1, "axes")
	if !x.Ranked || (!given && c.has(1)) {
		c.set(0, f)
		return
	}
	drop := make([]bool, len(x.Shape))
	for _, a := range axes {
		i, ok := axis(a, len(x.Shape))
		if !ok {
			c.failed = true
			return
		}
		drop[i] = true
	}
	f.Ranked = true
	for i, d := range x.Shape {
		if !given && !d.Known() { // may be 1
			c.set(0, Fact{Type: x.Type})
			return
		}
		if !drop[i] && (given || d != Size(1)) {
			f.Shape = append(f.Shape, d)
		}
	}
	f.Elems = x.Elems
	c.set(0, f)
}

func reshape(c *inference) {
	x, s := c.in(0), c.in(1)
	f := Fact{Type: x.Type}
	elems := s.Elems
	if c.n.Attr("shape") != nil {
		elems = []Dim{}
		for _, d := range c.n.Ints("shape") {
			elems = append(elems, Size(d))
		}
	}
	if elems == nil {
		if n, ok := s.KnownShape(); ok && len(n) == 1 {
			f.Ranked = true
			for i := range n[0] {
				f.Shape = append(f.Shape, c.fresh(int(i)))
			}
		}
		c.set(0, f)
		return
	}
	f.Ranked = true
	f.Shape = make([]Dim, len(elems))
	open := -1
	for i, d := range elems {
		switch {
		case d == Size(-1):
			open = i
		case d == Size(0) && c.n.Int("allowzero", 0) == 0:
			if x.Ranked && i < len(x.Shape) {
				f.Shape[i] = x.Shape[i]
			} else {
				f.Shape[i] = c.fresh(i)
			}
		case d == Size(0):
			f.Shape[i] = d
		case !c.m.symbols.isPositive(d):
			f.Shape[i] = c.fresh(i) // may turn out as 0 or -1, which mean something else
		default:
			f.Shape[i] = d
		}
	}
	if open >= 0 {
		f.Shape[open] = c.fresh(open)
		if x.Ranked {
			if q, ok := c.m.quotient(x.Shape, slices.Delete(slices.Clone(f.Shape), open, open+1)); ok {
				f.Shape[open] = q
			}
		}
	}
	if len(f.Shape) <= 1 {
		f.Elems = x.Elems
	}
	c.set(0, f)
}

func flatten(c *inference) {
	x := c.in(0)
	f := Fact{Type: x.Type, Ranked: true, Shape: []Dim{c.fresh(0), c.fresh(1)}}
	if x.Ranked {
		a := c.n.Int("axis", 1)
		if a < 0 {
			a += int64(len(x.Shape))
		}
		if a < 0 || a > int64(len(x.Shape)) {
			c.failed = true
			return
		}
		for i, part := range [][]Dim{x.Shape[:a], x.Shape[a:]} {
			if q, ok := c.m.quotient(part, nil); ok {
				f.Shape[i] = q
			}
		}
	}
	c.set(0, f)
}

func transpose(c *inference) {
	x := c.in(0)
	f := Fact{Type: x.Type}
	if x.Ranked {
		f.Ranked, f.Shape = true, make([]Dim, len(x.Shape))
		perm := Perm(c.n, len(x.Shape))
		if len(perm) != len(x.Shape) {
			c.failed = true
			return
		}
		for i, p := range perm {
			if p < 0 || p >= int64(len(x.Shape)) {
				c.failed = true
				return
			}
			f.Shape[i] = x.Shape[p]
		}
	}
	c.set(0, f)
}

// Perm returns the permutation of a Transpose over rank dimensions.
func Perm(n *Node, rank int) []int64 {
	if a := n.Attr("perm"); a != nil {
		return a.GetInts()
	}
	out := make([]int64, rank)
	for i := range out {
		out[i] = int64(rank - 1 - i)
	}
	return out
}

func expand(c *inference) {
	x, s := c.in(0), c.in(1)
	f := Fact{Type: x.Type}
	if x.Ranked && s.Elems != nil && !slices.ContainsFunc(s.Elems, func(d Dim) bool { return d.Known() && d.N < 0 }) {
		f = c.broadcast(x, Fact{Ranked: true, Shape: s.Elems}, 1)
		if len(f.Shape) == 1 && len(x.Elems) == 1 && f.Shape[0].Known() && f.Shape[0].N <= maxElems {
			f.Elems = slices.Repeat(x.Elems, int(f.Shape[0].N))
		}
	} else if n, ok := s.KnownShape(); ok && len(n) == 1 && x.Ranked {
		f.Ranked = true
		for i := range max(int(n[0]), len(x.Shape)) {
			f.Shape = append(f.Shape, c.fresh(i))
		}
	}
	c.set(0, f)
}

func tile(c *inference) {
	x := c.in(0)
	f := Fact{Type: x.Type}
	if r := c.in(1).Elems; x.Ranked && len(r) == len(x.Shape) && r != nil {
		f.Ranked = true
		for i, d := range x.Shape {
			f.Shape = append(f.Shape, c.m.arith("*", d, r[i]))
		}
	}
	c.set(0, f)
}

func constantOfShape(c *inference) {
	f := Fact{Type: onnxpb.TensorProto_FLOAT}
	value := Fact{}
	if t := c.n.Attr("value").GetT(); t != nil {
		v := &Value{Init: t}
		c.m.factOfInit(v)
		value = v.Fact
		f.Type = value.Type
	}
	if s := c.in(0); s.Elems != nil {
		f.Ranked, f.Shape = true, s.Elems
		if n, ok := known(s.Elems); ok && len(value.Elems) == 1 {
			if len(n) == 0 {
				f.Elems = value.Elems
			} else if len(n) == 1 && n[0] >= 0 && n[0] <= maxElems {
				f.Elems = slices.Repeat(value.Elems, int(n[0]))
			}
		}
	}
	c.set(0, f)
}

func rangeOf(c *inference) {
	f := Fact{Type: c.in(0).Type, Ranked: true, Shape: []Dim{c.fresh(0)}}
	one := func(i int) (Dim, bool) {
		e := c.in(i).Elems
		if len(e) != 1 {
			return Dim{}, false
		}
		return e[0], true
	}
	start, ok1 := one(0)
	limit, ok2 := one(1)
	delta, ok3 := one(2)
	if ok1 && ok2 && ok3 && f.Type == onnxpb.TensorProto_INT64 {
		switch {
		case start.Known() && limit.Known() && delta.Known() && delta.N != 0 && exact(start.N) && exact(limit.N) && exact(delta.N):
			n := max(0, int64(math.Ceil(float64(limit.N-start.N)/float64(delta.N))))
			f.Shape[0] = Size(n)
			if n <= maxElems {
				f.Elems = []Dim{}
				for i := range n {
					f.Elems = append(f.Elems, Size(start.N+i*delta.N))
				}
			}
		case start == Size(0) && delta == Size(1):
			f.Shape[0] = limit // a size, so not negative
		}
	}
	c.set(0, f)
}
