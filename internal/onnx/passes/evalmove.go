package passes

import (
	"math"
	"slices"

	"github.com/trtship/trtship/internal/onnx/graph"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
)

func evalShape(c *call) ([]array, bool) {
	s := c.in[0].shape
	clamp := func(x int64) int64 {
		if x < 0 {
			x += int64(len(s))
		}
		return min(max(x, 0), int64(len(s)))
	}
	from := clamp(c.node.Int("start", 0))
	to := max(from, clamp(c.node.Int("end", math.MaxInt64)))
	return one(fromInts(onnxpb.TensorProto_INT64, []int64{to - from}, s[from:to]), true)
}

func evalSize(c *call) ([]array, bool) {
	return one(fromInts(onnxpb.TensorProto_INT64, []int64{}, []int64{c.in[0].count()}), true)
}

func (c *call) axis(def int64, rank int) (int, bool) {
	a := c.node.Int("axis", def)
	if a < 0 {
		a += int64(rank)
	}
	return int(a), a >= 0 && a < int64(rank)
}

func evalGather(c *call) ([]array, bool) {
	x := c.in[0]
	index, ok := c.in[1].ints()
	at, ok2 := c.axis(0, len(x.shape))
	if !ok || !ok2 {
		return nil, false
	}
	outer, inner := product(x.shape[:at]), product(x.shape[at+1:])*x.width()
	n := x.shape[at]
	shape := slices.Concat(x.shape[:at], c.in[1].shape, x.shape[at+1:])
	if outer*int64(len(index))*inner > c.limit {
		return nil, false
	}
	out := array{typ: x.typ, shape: shape, data: make([]byte, 0, outer*int64(len(index))*inner)}
	for o := range outer {
		for _, i := range index {
			if i < 0 {
				i += n
			}
			if i < 0 || i >= n {
				return nil, false
			}
			from := (o*n + i) * inner
			out.data = append(out.data, x.data[from:from+inner]...)
		}
	}
	return one(out, true)
}

func evalGatherElements(c *call) ([]array, bool) {
	x, idx := c.in[0], c.in[1]
	index, ok := idx.ints()
	at, ok2 := c.axis(0, len(x.shape))
	if !ok || !ok2 || len(idx.shape) != len(x.shape) {
		return nil, false
	}
	w, own, theirs := x.width(), strides(x.shape), strides(idx.shape)
	out := array{typ: x.typ, shape: idx.shape, data: make([]byte, int64(len(index))*w)}
	for i, to := range index {
		if to < 0 {
			to += x.shape[at]
		}
		if to < 0 || to >= x.shape[at] {
			return nil, false
		}
		from := int64(0)
		for d := range idx.shape {
			k := int64(i) / theirs[d] % idx.shape[d]
			if d == at {
				k = to
			}
			if k >= x.shape[d] {
				return nil, false
			}
			from += k * own[d]
		}
		copy(out.data[int64(i)*w:], x.data[from*w:(from+1)*w])
	}
	return one(out, true)
}

func evalGatherND(c *call) ([]array, bool) {
	x, idx := c.in[0], c.in[1]
	index, ok := idx.ints()
	if !ok || c.node.Int("batch_dims", 0) != 0 || len(idx.shape) == 0 {
		return nil, false
	}
	k := int(idx.shape[len(idx.shape)-1])
	if k < 1 || k > len(x.shape) {
		return nil, false
	}
	inner := product(x.shape[k:]) * x.width()
	rows := product(idx.shape[:len(idx.shape)-1])
	if rows*inner > c.limit {
		return nil, false
	}
	out := array{typ: x.typ, shape: slices.Concat(idx.shape[:len(idx.shape)-1], x.shape[k:]), data: make([]byte, 0, rows*inner)}
	for r := range rows {
		from, ok := offset(index[r*int64(k):(r+1)*int64(k)], x.shape)
		if !ok {
			return nil, false
		}
		out.data = append(out.data, x.data[from*inner:(from+1)*inner]...)
	}
	return one(out, true)
}

// offset returns the position of a partial index, counted in blocks of what
// lies behind it.
func offset(index, shape []int64) (int64, bool) {
	at := int64(0)
	for d, i := range index {
		if i < 0 {
			i += shape[d]
		}
		if i < 0 || i >= shape[d] {
			return 0, false
		}
		at = at*shape[d] + i
	}
	return at, true
}

func evalScatterND(c *call) ([]array, bool) {
	x, idx, updates := c.in[0], c.in[1], c.in[2]
	index, ok := idx.ints()
	if a := c.node.Attr("reduction"); !ok || updates.typ != x.typ || len(idx.shape) == 0 || a != nil && string(a.GetS()) != "none" {
		return nil, false
	}
	k := int(idx.shape[len(idx.shape)-1])
	if k < 1 || k > len(x.shape) {
		return nil, false
	}
	inner := product(x.shape[k:]) * x.width()
	rows := product(idx.shape[:len(idx.shape)-1])
	if rows*inner != int64(len(updates.data)) {
		return nil, false
	}
	out := array{typ: x.typ, shape: x.shape, data: slices.Clone(x.data)}
	for r := range rows {
		to, ok := offset(index[r*int64(k):(r+1)*int64(k)], x.shape)
		if !ok {
			return nil, false
		}
		copy(out.data[to*inner:(to+1)*inner], updates.data[r*inner:])
	}
	return one(out, true)
}

func evalConcat(c *call) ([]array, bool) {
	x := c.in[0]
	at, ok := c.axis(0, len(x.shape))
	if !ok {
		return nil, false
	}
	shape := slices.Clone(x.shape)
	shape[at] = 0
	for _, a := range c.in {
		if a.typ != x.typ || len(a.shape) != len(x.shape) {
			return nil, false
		}
		for d := range shape {
			if d != at && a.shape[d] != shape[d] {
				return nil, false
			}
		}
		shape[at] += a.shape[at]
	}
	outer := product(shape[:at])
	out := array{typ: x.typ, shape: shape, data: make([]byte, 0, product(shape)*x.width())}
	for o := range outer {
		for _, a := range c.in {
			n := int64(len(a.data)) / max(outer, 1)
			out.data = append(out.data, a.data[o*n:(o+1)*n]...)
		}
	}
	return one(out, true)
}

// shaped gives a the shape that inference found for the first output.
func (c *call) shaped(a array) ([]array, bool) {
	shape, ok := c.node.Out[0].Fact.KnownShape()
	if !ok || product(shape) != a.count() {
		return nil, false
	}
	return one(array{typ: a.typ, shape: shape, data: a.data}, true)
}

func evalUnsqueeze(c *call) ([]array, bool) { return c.shaped(c.in[0]) }
func evalSqueeze(c *call) ([]array, bool)   { return c.shaped(c.in[0]) }
func evalReshape(c *call) ([]array, bool)   { return c.shaped(c.in[0]) }
func evalFlatten(c *call) ([]array, bool)   { return c.shaped(c.in[0]) }

func evalTranspose(c *call) ([]array, bool) {
	x := c.in[0]
	perm := graph.Perm(c.node, len(x.shape))
	if len(perm) != len(x.shape) {
		return nil, false
	}
	own := strides(x.shape)
	shape, step := make([]int64, len(perm)), make([]int64, len(perm))
	for i, p := range perm {
		if p < 0 || p >= int64(len(perm)) {
			return nil, false
		}
		shape[i], step[i] = x.shape[p], own[p]
	}
	return one(x.view(shape, 0, step), true)
}

func evalSlice(c *call) ([]array, bool) {
	x := c.in[0]
	p, ok := graph.SliceOf(c.node, len(x.shape))
	if !ok {
		return nil, false
	}
	shape, step := slices.Clone(x.shape), strides(x.shape)
	start := int64(0)
	seen := make([]bool, len(shape))
	for i, a := range p.Axes {
		if seen[a] {
			return nil, false
		}
		seen[a] = true
		s, e := graph.SliceBounds(x.shape[a], p.Starts[i], p.Ends[i], p.Steps[i])
		shape[a] = graph.SliceLen(s, e, p.Steps[i])
		if shape[a] > 0 {
			start += s * step[a]
		}
		step[a] *= p.Steps[i]
	}
	return one(x.view(shape, start, step), true)
}

func evalExpand(c *call) ([]array, bool) {
	want, ok := c.in[1].ints()
	if !ok || slices.ContainsFunc(want, func(x int64) bool { return x < 0 }) {
		return nil, false
	}
	shape, ok := commonShape([]array{c.in[0], {shape: want}})
	if !ok || !small(shape, c.in[0].width(), c.limit) {
		return nil, false
	}
	return one(c.in[0].broadcastTo(shape))
}

func evalTile(c *call) ([]array, bool) {
	x := c.in[0]
	repeats, ok := c.in[1].ints()
	if !ok || len(repeats) != len(x.shape) {
		return nil, false
	}
	// A tile is a broadcast over one more axis in front of each.
	var wide, step []int64
	shape := make([]int64, len(x.shape))
	own := strides(x.shape)
	total := x.width()
	for i, r := range repeats {
		if r < 0 || r > c.limit || total > c.limit {
			return nil, false
		}
		shape[i] = x.shape[i] * r
		total *= max(shape[i], 1)
		wide, step = append(wide, r, x.shape[i]), append(step, 0, own[i])
	}
	if total > c.limit {
		return nil, false
	}
	out := x.view(wide, 0, step)
	out.shape = shape
	return one(out, true)
}

func evalConstantOfShape(c *call) ([]array, bool) {
	shape, ok := c.in[0].ints()
	if !ok {
		return nil, false
	}
	value := fromFloats(onnxpb.TensorProto_FLOAT, []int64{}, []float64{0})
	if t := c.node.Attr("value").GetT(); t != nil {
		var err error
		if value, err = decode(c.model, t); err != nil || value.count() != 1 {
			return nil, false
		}
	}
	n := value.width()
	for _, d := range shape {
		if d < 0 || d > c.limit {
			return nil, false
		}
		if n *= d; n > c.limit {
			return nil, false
		}
	}
	value.shape = []int64{}
	return one(value.broadcastTo(shape))
}

func evalRange(c *call) ([]array, bool) {
	t := c.in[0].typ
	var v [3]float64
	for i := range v {
		x, ok := c.in[i].floats()
		if !ok || len(x) != 1 || c.in[i].typ != t {
			return nil, false
		}
		v[i] = x[0]
	}
	if v[2] == 0 || t == onnxpb.TensorProto_FLOAT16 || t == onnxpb.TensorProto_BFLOAT16 {
		return nil, false
	}
	n := math.Max(0, math.Ceil((v[1]-v[0])/v[2]))
	if !(n*8 <= float64(c.limit)) {
		return nil, false
	}
	shape := []int64{int64(n)}
	if floating(t) {
		out := make([]float64, int(n))
		at := v[0]
		for i := range out { // added up in the type's own precision, as runtimes do
			out[i] = at
			if at += v[2]; t == onnxpb.TensorProto_FLOAT {
				at = float64(float32(at))
			}
		}
		return one(fromFloats(t, shape, out), true)
	}
	start, _ := c.in[0].ints()
	step, _ := c.in[2].ints()
	if math.Abs(v[0]) > 1<<52 || math.Abs(v[1]) > 1<<52 || math.Abs(v[2]) > 1<<52 {
		return nil, false
	}
	out := make([]int64, int(n))
	for i := range out {
		out[i] = start[0] + int64(i)*step[0]
	}
	return one(fromInts(t, shape, out), true)
}

func evalSplit(c *call) ([]array, bool) {
	x := c.in[0]
	at, ok := c.axis(0, len(x.shape))
	if !ok {
		return nil, false
	}
	var out []array
	start := int64(0)
	step := strides(x.shape)
	for _, o := range c.node.Out {
		if o == nil {
			return nil, false
		}
		shape, ok := o.Fact.KnownShape()
		if !ok || len(shape) != len(x.shape) || shape[at] < 0 || start+shape[at] > x.shape[at] {
			return nil, false
		}
		out = append(out, x.view(shape, start*step[at], step))
		start += shape[at]
	}
	return out, start == x.shape[at]
}

func evalTrilu(c *call) ([]array, bool) {
	x := c.in[0]
	if len(x.shape) < 2 {
		return nil, false
	}
	k := int64(0)
	if c.has(1) {
		v, ok := c.in[1].ints()
		if !ok || len(v) != 1 {
			return nil, false
		}
		k = v[0]
	}
	rows, cols, w := x.shape[len(x.shape)-2], x.shape[len(x.shape)-1], x.width()
	out := array{typ: x.typ, shape: x.shape, data: slices.Clone(x.data)}
	upper := c.node.Int("upper", 1) != 0
	for i := range x.count() {
		r, col := i/cols%rows, i%cols
		if upper && col < r+k || !upper && col > r+k {
			clear(out.data[i*w : (i+1)*w])
		}
	}
	return one(out, true)
}

func evalNonZero(c *call) ([]array, bool) {
	x := c.in[0]
	v, ok := x.floats()
	if !ok || len(x.shape) == 0 {
		return nil, false
	}
	own := strides(x.shape)
	rows := make([][]int64, len(x.shape))
	for i, f := range v {
		if f == 0 {
			continue
		}
		for d := range x.shape {
			rows[d] = append(rows[d], int64(i)/own[d]%x.shape[d])
		}
	}
	return one(fromInts(onnxpb.TensorProto_INT64, []int64{int64(len(x.shape)), int64(len(rows[0]))}, slices.Concat(rows...)), true)
}

func evalCumSum(c *call) ([]array, bool) {
	x := c.in[0]
	axes, ok := c.in[1].ints()
	if !ok || len(axes) != 1 || c.node.Int("exclusive", 0) != 0 || c.node.Int("reverse", 0) != 0 || !integer(x.typ) {
		return nil, false
	}
	a := axes[0]
	if a < 0 {
		a += int64(len(x.shape))
	}
	if a < 0 || a >= int64(len(x.shape)) {
		return nil, false
	}
	v, _ := x.ints()
	step := strides(x.shape)[a]
	for i := range v {
		if int64(i)/step%x.shape[a] > 0 {
			v[i] += v[int64(i)-step]
		}
	}
	return one(fromInts(x.typ, x.shape, v), true)
}
