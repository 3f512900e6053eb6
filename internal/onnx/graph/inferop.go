package graph

import (
	"slices"

	"github.com/trtship/trtship/internal/onnx/onnxpb"
)

func split(c *inference) {
	x := c.in(0)
	if !x.Ranked {
		for i := range c.out {
			c.set(i, Fact{Type: x.Type})
		}
		return
	}
	a, ok := axis(c.n.Int("axis", 0), len(x.Shape))
	if !ok {
		c.failed = true
		return
	}
	sizes, given := c.ints(1, "split")
	for i := range c.out {
		shape := slices.Clone(x.Shape)
		switch d := shape[a]; {
		case given && i < len(sizes):
			shape[a] = Size(sizes[i])
		case !c.has(1) && d.Known():
			parts := int64(len(c.out))
			chunk := (d.N + parts - 1) / parts
			shape[a] = Size(min(chunk, max(0, d.N-int64(i)*chunk)))
		default:
			shape[a] = c.m.unknown(c.n, i, a)
		}
		c.set(i, Fact{Type: x.Type, Ranked: true, Shape: shape})
	}
}

func pad(c *inference) {
	x := c.in(0)
	f := Fact{Type: x.Type}
	if x.Ranked {
		f.Ranked, f.Shape = true, make([]Dim, len(x.Shape))
		pads, ok := c.ints(1, "pads")
		for i := range f.Shape {
			if ok && len(pads) == 2*len(x.Shape) && !c.has(3) {
				f.Shape[i] = c.m.arith("+", x.Shape[i], Size(pads[i]+pads[i+len(x.Shape)]))
			} else {
				f.Shape[i] = c.fresh(i)
			}
		}
	}
	c.set(0, f)
}

func matmul(c *inference) {
	a, b := c.in(0), c.in(1)
	f := Fact{Type: a.Type}
	if !a.Ranked || !b.Ranked || len(a.Shape) == 0 || len(b.Shape) == 0 {
		c.set(0, f)
		return
	}
	x, y := a.Shape, b.Shape
	if len(x) == 1 {
		x = []Dim{Size(1), x[0]}
	}
	if len(y) == 1 {
		y = []Dim{y[0], Size(1)}
	}
	batch := c.broadcast(Fact{Ranked: true, Shape: x[:len(x)-2]}, Fact{Ranked: true, Shape: y[:len(y)-2]}, 1)
	f.Ranked, f.Shape = true, batch.Shape
	if len(a.Shape) > 1 {
		f.Shape = append(f.Shape, x[len(x)-2])
	}
	if len(b.Shape) > 1 {
		f.Shape = append(f.Shape, y[len(y)-1])
	}
	c.set(0, f)
}

func gemm(c *inference) {
	a, b := c.in(0), c.in(1)
	f := Fact{Type: a.Type, Ranked: true, Shape: []Dim{c.fresh(0), c.fresh(1)}}
	if len(a.Shape) == 2 {
		f.Shape[0] = a.Shape[b2i(c.n.Int("transA", 0) != 0)]
	}
	if len(b.Shape) == 2 {
		f.Shape[1] = b.Shape[b2i(c.n.Int("transB", 0) == 0)]
	}
	c.set(0, f)
}

// window is the geometry of a convolution or a pooling.
type window struct {
	kernel, strides, dilations, pads []int64
	auto                             string
}

func (c *inference) window(spatial int) (window, bool) {
	w := window{c.n.Ints("kernel_shape"), c.n.Ints("strides"), c.n.Ints("dilations"), c.n.Ints("pads"), "NOTSET"}
	if a := c.n.Attr("auto_pad"); a != nil {
		w.auto = string(a.GetS())
	}
	if w.kernel == nil {
		if k, ok := c.in(1).KnownShape(); ok && len(k) == spatial+2 {
			w.kernel = k[2:]
		}
	}
	ones := func(s []int64, n int, v int64) []int64 {
		if s != nil {
			return s
		}
		return slices.Repeat([]int64{v}, n)
	}
	w.strides, w.dilations, w.pads = ones(w.strides, spatial, 1), ones(w.dilations, spatial, 1), ones(w.pads, 2*spatial, 0)
	ok := len(w.kernel) == spatial && len(w.strides) == spatial && len(w.dilations) == spatial && len(w.pads) == 2*spatial
	return w, ok
}

func conv(c *inference) {
	x := c.in(0)
	f := Fact{Type: x.Type}
	if !x.Ranked || len(x.Shape) < 3 {
		c.set(0, f)
		return
	}
	f.Ranked, f.Shape = true, slices.Clone(x.Shape)
	if c.n.Op == "Conv" {
		f.Shape[1] = c.fresh(1)
		if w := c.in(1); w.Ranked && len(w.Shape) == len(x.Shape) {
			f.Shape[1] = w.Shape[0]
		}
	}
	spatial := len(x.Shape) - 2
	w, ok := c.window(spatial)
	for i := range spatial {
		d := x.Shape[2+i]
		f.Shape[2+i] = c.fresh(2 + i)
		if ok && d.Known() {
			if n, ok := w.size(d.N, i, c.n.Int("ceil_mode", 0) != 0); ok {
				f.Shape[2+i] = Size(n)
			}
		}
	}
	c.set(0, f)
	if c.n.Op == "MaxPool" {
		g := f
		g.Type = onnxpb.TensorProto_INT64
		c.set(1, g)
	}
}

// size returns the output size along spatial axis i.
func (w window) size(d int64, i int, ceil bool) (int64, bool) {
	if w.strides[i] <= 0 {
		return 0, false
	}
	switch w.auto {
	case "SAME_UPPER", "SAME_LOWER":
		return (d + w.strides[i] - 1) / w.strides[i], true
	case "NOTSET", "VALID", "":
	default:
		return 0, false
	}
	span := d - ((w.kernel[i]-1)*w.dilations[i] + 1)
	if w.auto != "VALID" {
		span += w.pads[i] + w.pads[i+len(w.kernel)]
	}
	if span < 0 || ceil {
		return 0, span >= 0 && !ceil // rounding up differs between operator sets
	}
	return span/w.strides[i] + 1, true
}

func convTranspose(c *inference) {
	x, w := c.in(0), c.in(1)
	f := Fact{Type: x.Type}
	if x.Ranked && len(x.Shape) >= 3 {
		f.Ranked, f.Shape = true, slices.Clone(x.Shape)
		for i := 1; i < len(f.Shape); i++ {
			f.Shape[i] = c.fresh(i)
		}
		if w.Ranked && len(w.Shape) == len(x.Shape) {
			f.Shape[1] = c.m.arith("*", w.Shape[1], Size(c.n.Int("group", 1)))
		}
	}
	c.set(0, f)
}

func globalPool(c *inference) {
	f := c.in(0)
	f.Elems = nil
	if f.Ranked && len(f.Shape) > 2 {
		f.Shape = slices.Clone(f.Shape)
		for i := 2; i < len(f.Shape); i++ {
			f.Shape[i] = Size(1)
		}
	}
	c.set(0, f)
}

func reduce(c *inference) {
	x := c.in(0)
	f := Fact{Type: x.Type}
	var axes []int64
	given := true
	if c.n.Standard("ArgMax", "ArgMin") {
		f.Type = onnxpb.TensorProto_INT64
		axes = []int64{c.n.Int("axis", 0)}
	} else {
		axes, given = c.ints(1, "axes")
	}
	if !x.Ranked || (!given && c.has(1)) {
		c.set(0, f)
		return
	}
	if len(axes) == 0 {
		if c.n.Int("noop_with_empty_axes", 0) != 0 {
			c.set(0, x)
			return
		}
		for i := range x.Shape {
			axes = append(axes, int64(i))
		}
	}
	gone := make([]bool, len(x.Shape))
	for _, a := range axes {
		i, ok := axis(a, len(x.Shape))
		if !ok {
			c.failed = true
			return
		}
		gone[i] = true
	}
	f.Ranked = true
	for i, d := range x.Shape {
		switch {
		case !gone[i]:
			f.Shape = append(f.Shape, d)
		case c.n.Int("keepdims", 1) != 0:
			f.Shape = append(f.Shape, Size(1))
		}
	}
	if e := x.Elems; e != nil && len(x.Shape) == 1 && gone[0] && c.n.Op == "ReduceProd" && x.Type == onnxpb.TensorProto_INT64 {
		total := Size(1)
		for _, d := range e {
			total = c.m.arith("*", total, d)
		}
		f.Elems = []Dim{total}
	}
	c.set(0, f)
}

func resize(c *inference) {
	x := c.in(0)
	f := Fact{Type: x.Type}
	if x.Ranked {
		f.Ranked, f.Shape = true, make([]Dim, len(x.Shape))
		sizes := c.in(3).Elems
		for i := range f.Shape {
			f.Shape[i] = c.fresh(i)
			if len(sizes) == len(f.Shape) && c.n.Attr("axes") == nil && c.n.Attr("keep_aspect_ratio_policy") == nil {
				f.Shape[i] = sizes[i]
			}
		}
	}
	c.set(0, f)
}
