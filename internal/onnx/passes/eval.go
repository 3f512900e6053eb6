package passes

import (
	"math"
	"slices"

	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/onnx/graph"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
)

// call is one operator call on constants. Inputs that are left out have type
// UNDEFINED.
type call struct {
	node  *graph.Node
	in    []array
	opset int64
	limit int64
	model *onnx.Model
}

func (c *call) has(i int) bool { return i < len(c.in) && c.in[i].typ != onnxpb.TensorProto_UNDEFINED }

// list returns the elements of input i, or of the attribute that older operator
// sets have instead; given is false if neither is there.
func (c *call) list(i int, attr string) (values []int64, given bool) {
	if a := c.node.Attr(attr); a != nil {
		return a.GetInts(), true
	}
	if !c.has(i) {
		return nil, false
	}
	values, _ = c.in[i].ints()
	return values, true
}

// operation computes the outputs of a call; ok is false if it cannot.
type operation func(c *call) (out []array, ok bool)

func one(a array, ok bool) ([]array, bool) { return []array{a}, ok }

var operations map[string]operation

func init() {
	operations = map[string]operation{
		"Cast": evalCast, "Shape": evalShape, "Size": evalSize, "Gather": evalGather, "GatherElements": evalGatherElements,
		"GatherND": evalGatherND, "Concat": evalConcat, "Unsqueeze": evalUnsqueeze, "Squeeze": evalSqueeze, "Reshape": evalReshape, "Flatten": evalFlatten,
		"Transpose": evalTranspose, "Slice": evalSlice, "Expand": evalExpand, "Tile": evalTile, "ConstantOfShape": evalConstantOfShape,
		"Range": evalRange, "Split": evalSplit, "Where": evalWhere, "Not": evalNot, "ScatterND": evalScatterND, "Trilu": evalTrilu,
		"NonZero": evalNonZero, "CumSum": evalCumSum, "Clip": evalClip, "Dropout": evalDropout,
	}
	for op, f := range unaries {
		operations[op] = evalUnary(f)
	}
	for op, f := range binaries {
		operations[op] = evalBinary(f)
	}
	for op, f := range comparisons {
		operations[op] = evalCompare(f)
	}
	for op, f := range reductions {
		operations[op] = evalReduce(f)
	}
}

// unary is a function on one element, for floats and for integers.
type unary struct {
	f func(float64) float64
	i func(int64) int64
}

var unaries = map[string]unary{
	"Neg":        {func(x float64) float64 { return -x }, func(x int64) int64 { return -x }},
	"Abs":        {math.Abs, func(x int64) int64 { return max(x, -x) }},
	"Sign":       {sign, func(x int64) int64 { return int64(sign(float64(x))) }},
	"Sqrt":       {math.Sqrt, nil},
	"Reciprocal": {func(x float64) float64 { return 1 / x }, nil},
	"Floor":      {math.Floor, nil},
	"Ceil":       {math.Ceil, nil},
	"Round":      {math.RoundToEven, nil},
	"Exp":        {math.Exp, nil},
	"Log":        {math.Log, nil},
	"Sin":        {math.Sin, nil},
	"Cos":        {math.Cos, nil},
	"Tanh":       {math.Tanh, nil},
	"Sigmoid":    {func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }, nil},
	"Relu":       {func(x float64) float64 { return max(x, 0) }, nil},
}

func sign(x float64) float64 {
	switch {
	case x > 0:
		return 1
	case x < 0:
		return -1
	}
	return x // 0, -0 and NaN
}

func evalUnary(f unary) operation {
	return func(c *call) ([]array, bool) {
		a := c.in[0]
		if floating(a.typ) {
			v, ok := a.floats()
			for i := range v {
				v[i] = f.f(v[i])
			}
			return one(fromFloats(a.typ, a.shape, v), ok)
		}
		if f.i == nil || !integer(a.typ) || a.typ == onnxpb.TensorProto_BOOL {
			return nil, false
		}
		v, ok := a.ints()
		for i := range v {
			v[i] = f.i(v[i])
		}
		return one(fromInts(a.typ, a.shape, v), ok)
	}
}

// binaryOp is a function on two elements; i reports whether it is defined.
type binaryOp struct {
	f func(a, b float64) float64
	i func(a, b int64) (int64, bool)
}

func total(f func(a, b int64) int64) func(a, b int64) (int64, bool) {
	return func(a, b int64) (int64, bool) { return f(a, b), true }
}

var binaries = map[string]binaryOp{
	"Add": {func(a, b float64) float64 { return a + b }, total(func(a, b int64) int64 { return a + b })},
	"Sub": {func(a, b float64) float64 { return a - b }, total(func(a, b int64) int64 { return a - b })},
	"Mul": {func(a, b float64) float64 { return a * b }, total(func(a, b int64) int64 { return a * b })},
	"Div": {func(a, b float64) float64 { return a / b }, func(a, b int64) (int64, bool) {
		if b == 0 || (a == math.MinInt64 && b == -1) {
			return 0, false
		}
		return a / b, true
	}},
	"Min": {math.Min, total(func(a, b int64) int64 { return min(a, b) })},
	"Max": {math.Max, total(func(a, b int64) int64 { return max(a, b) })},
	"Pow": {math.Pow, func(a, b int64) (int64, bool) {
		r := int64(1)
		if b < 0 || b > 63 {
			return 0, false
		}
		for range b {
			r *= a
		}
		return r, true
	}},
	"Mod": {nil, func(a, b int64) (int64, bool) {
		if b == 0 || (a == math.MinInt64 && b == -1) {
			return 0, false
		}
		r := a % b
		if r != 0 && (r < 0) != (b < 0) {
			r += b
		}
		return r, true
	}},
}

func evalBinary(f binaryOp) operation {
	return func(c *call) ([]array, bool) {
		if len(c.in) != 2 || !c.has(0) || !c.has(1) || c.in[0].typ != c.in[1].typ || c.node.Int("fmod", 0) != 0 {
			return nil, false
		}
		a, b, shape, ok := c.pair(0, 1)
		if !ok {
			return nil, false
		}
		t := a.typ
		if floating(t) {
			if f.f == nil {
				return nil, false
			}
			x, _ := a.floats()
			y, _ := b.floats()
			for i := range x {
				x[i] = f.f(x[i], y[i])
			}
			return one(fromFloats(t, shape, x), true)
		}
		// uint64 above the middle of its range would compare and divide wrongly.
		if !integer(t) || t == onnxpb.TensorProto_BOOL || t == onnxpb.TensorProto_UINT64 {
			return nil, false
		}
		x, _ := a.ints()
		y, _ := b.ints()
		for i := range x {
			if x[i], ok = f.i(x[i], y[i]); !ok {
				return nil, false
			}
		}
		return one(fromInts(t, shape, x), true)
	}
}

// pair broadcasts two inputs to their common shape, if that is small enough.
func (c *call) pair(i, j int) (a, b array, shape []int64, ok bool) {
	shape, ok = commonShape([]array{c.in[i], c.in[j]})
	if !ok || !small(shape, 8, 4*c.limit) {
		return a, b, nil, false
	}
	a, _ = c.in[i].broadcastTo(shape)
	b, ok = c.in[j].broadcastTo(shape)
	return a, b, shape, ok
}

// comparison works on floats; integers are compared as such by their order.
type comparison struct {
	f func(a, b float64) bool
	i func(a, b int64) bool
}

var comparisons = map[string]comparison{
	"Equal":          {func(a, b float64) bool { return a == b }, func(a, b int64) bool { return a == b }},
	"Greater":        {func(a, b float64) bool { return a > b }, func(a, b int64) bool { return a > b }},
	"Less":           {func(a, b float64) bool { return a < b }, func(a, b int64) bool { return a < b }},
	"GreaterOrEqual": {func(a, b float64) bool { return a >= b }, func(a, b int64) bool { return a >= b }},
	"LessOrEqual":    {func(a, b float64) bool { return a <= b }, func(a, b int64) bool { return a <= b }},
	"And":            {nil, func(a, b int64) bool { return a != 0 && b != 0 }},
	"Or":             {nil, func(a, b int64) bool { return a != 0 || b != 0 }},
	"Xor":            {nil, func(a, b int64) bool { return (a != 0) != (b != 0) }},
}

func evalCompare(f comparison) operation {
	return func(c *call) ([]array, bool) {
		if len(c.in) != 2 || !c.has(0) || !c.has(1) || c.in[0].typ != c.in[1].typ || c.in[0].typ == onnxpb.TensorProto_UINT64 {
			return nil, false
		}
		a, b, shape, ok := c.pair(0, 1)
		if !ok {
			return nil, false
		}
		out := make([]int64, product(shape))
		if floating(a.typ) {
			if f.f == nil {
				return nil, false
			}
			x, _ := a.floats()
			y, _ := b.floats()
			for i := range out {
				out[i] = truth(f.f(x[i], y[i]))
			}
		} else {
			x, ok := a.ints()
			y, _ := b.ints()
			if !ok {
				return nil, false
			}
			for i := range out {
				out[i] = truth(f.i(x[i], y[i]))
			}
		}
		return one(fromInts(onnxpb.TensorProto_BOOL, shape, out), true)
	}
}

func truth(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

func evalNot(c *call) ([]array, bool) {
	v, ok := c.in[0].ints()
	for i := range v {
		v[i] ^= 1
	}
	return one(fromInts(onnxpb.TensorProto_BOOL, c.in[0].shape, v), ok && c.in[0].typ == onnxpb.TensorProto_BOOL)
}

func evalWhere(c *call) ([]array, bool) {
	if c.in[1].typ != c.in[2].typ {
		return nil, false
	}
	shape, ok := commonShape(c.in)
	if !ok || c.in[0].typ != onnxpb.TensorProto_BOOL || !small(shape, c.in[1].width(), c.limit) {
		return nil, false
	}
	cond, _ := c.in[0].broadcastTo(shape)
	x, _ := c.in[1].broadcastTo(shape)
	y, _ := c.in[2].broadcastTo(shape)
	out := array{typ: x.typ, shape: shape, data: slices.Clone(y.data)}
	w := x.width()
	for i, b := range cond.data {
		if b != 0 {
			copy(out.data[int64(i)*w:], x.data[int64(i)*w:int64(i+1)*w])
		}
	}
	return one(out, true)
}

func evalCast(c *call) ([]array, bool) {
	a, to := c.in[0], c.node.TypeAttr("to")
	if a.typ == to {
		return one(a, true)
	}
	switch {
	case floating(to) && (floating(a.typ) || integer(a.typ)):
		v, ok := a.floats()
		return one(fromFloats(to, a.shape, v), ok)
	case to == onnxpb.TensorProto_BOOL && floating(a.typ):
		v, ok := a.floats()
		out := make([]int64, len(v))
		for i, x := range v {
			out[i] = truth(x != 0)
		}
		return one(fromInts(to, a.shape, out), ok)
	case integer(to) && integer(a.typ):
		v, ok := a.ints()
		return one(fromInts(to, a.shape, v), ok)
	case integer(to) && floating(a.typ):
		v, ok := a.floats()
		out := make([]int64, len(v))
		for i, x := range v {
			// Out of range the result differs between machines.
			if math.IsNaN(x) || !fits(to, math.Trunc(x)) {
				return nil, false
			}
			out[i] = int64(x)
		}
		return one(fromInts(to, a.shape, out), ok)
	}
	return nil, false
}

// fits reports whether a whole number has a place in an integer type.
func fits(t dataType, x float64) bool {
	bits := float64(8 * widthOf(t))
	switch t {
	case onnxpb.TensorProto_UINT64, onnxpb.TensorProto_UINT32, onnxpb.TensorProto_UINT16, onnxpb.TensorProto_UINT8:
		return x >= 0 && x < math.Exp2(min(bits, 63))
	}
	return x >= -math.Exp2(bits-1) && x < math.Exp2(bits-1)
}

func evalClip(c *call) ([]array, bool) {
	a := c.in[0]
	v, ok := a.floats()
	if !ok || !floating(a.typ) {
		return nil, false
	}
	low, high := math.Inf(-1), math.Inf(1)
	for i, to := range []*float64{&low, &high} {
		if attr := c.node.Attr([]string{"min", "max"}[i]); attr != nil {
			*to = float64(attr.GetF())
		} else if c.has(i + 1) {
			x, ok := c.in[i+1].floats()
			if !ok || len(x) != 1 {
				return nil, false
			}
			*to = x[0]
		}
	}
	for i := range v {
		v[i] = min(max(v[i], low), high)
	}
	return one(fromFloats(a.typ, a.shape, v), true)
}

func evalDropout(c *call) ([]array, bool) {
	return one(c.in[0], c.node.DropoutOff() && len(c.node.Out) == 1)
}

// reductions combine the elements along axes; they get at least one.
var reductions = map[string]func([]float64) float64{
	"ReduceSum": sum, "ReduceMean": func(v []float64) float64 { return sum(v) / float64(len(v)) },
	"ReduceProd": func(v []float64) float64 {
		p := 1.0
		for _, x := range v {
			p *= x
		}
		return p
	},
	"ReduceMax": func(v []float64) float64 { return slices.Max(v) },
	"ReduceMin": func(v []float64) float64 { return slices.Min(v) },
}

func sum(v []float64) float64 {
	s := 0.0
	for _, x := range v {
		s += x
	}
	return s
}

func evalReduce(f func([]float64) float64) operation {
	return func(c *call) ([]array, bool) {
		a := c.in[0]
		axes, given := c.list(1, "axes")
		if given && len(axes) == 0 && c.node.Int("noop_with_empty_axes", 0) != 0 || a.count() == 0 {
			return nil, false
		}
		gone := make([]bool, len(a.shape))
		for _, x := range axes {
			if x < 0 {
				x += int64(len(a.shape))
			}
			if x < 0 || x >= int64(len(a.shape)) {
				return nil, false
			}
			gone[x] = true
		}
		if len(axes) == 0 {
			for i := range gone {
				gone[i] = true
			}
		}
		v, ok := a.floats()
		if !ok || a.typ == onnxpb.TensorProto_UINT64 || integer(a.typ) && slices.ContainsFunc(v, func(x float64) bool { return math.Abs(x) > 1<<31 }) {
			return nil, false // exact in float64 only while small
		}
		return one(reduceArray(c, a, v, gone, f))
	}
}

func reduceArray(c *call, a array, v []float64, gone []bool, f func([]float64) float64) (array, bool) {
	var shape, keptShape []int64
	for i, d := range a.shape {
		if !gone[i] {
			shape, keptShape = append(shape, d), append(keptShape, d)
		} else if c.node.Int("keepdims", 1) != 0 {
			shape = append(shape, 1)
		}
	}
	groups := make([][]float64, product(keptShape))
	own, kept := strides(a.shape), strides(keptShape)
	for i := range v {
		at, k := int64(0), 0
		for d := range a.shape {
			if !gone[d] {
				at += int64(i) / own[d] % a.shape[d] * kept[k]
				k++
			}
		}
		groups[at] = append(groups[at], v[i])
	}
	out := make([]float64, len(groups))
	for i, g := range groups {
		out[i] = f(g)
	}
	if shape == nil {
		shape = []int64{}
	}
	if floating(a.typ) {
		return fromFloats(a.typ, shape, out), true
	}
	ints := make([]int64, len(out))
	for i, x := range out {
		if x != math.Trunc(x) || math.Abs(x) > 1<<52 {
			return array{}, false
		}
		ints[i] = int64(x)
	}
	return fromInts(a.typ, shape, ints), true
}
