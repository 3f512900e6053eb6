package graph

import (
	"slices"

	"github.com/trtship/trtship/internal/onnx/onnxpb"
)

// Infer works out types, shapes and small integer contents of every value of
// the module, as far as they are certain. visit is called for each node after
// its outputs have facts and may rewrite the node; it may be nil.
func (m *Module) Infer(visit func(n *Node) error) error {
	return m.inferGraph(m.Main, visit)
}

func (m *Module) inferGraph(g *Graph, visit func(n *Node) error) error {
	for _, v := range g.Inputs {
		v.Fact = m.factOfInfo(g.infos[v], g.Parent == nil)
	}
	for _, v := range g.Inits {
		if !v.Input {
			m.factOfInit(v)
		}
	}
	for _, n := range g.Nodes {
		if n.Removed {
			continue
		}
		for _, s := range n.Subs {
			if err := m.inferGraph(s.Graph, visit); err != nil {
				return err
			}
		}
		m.inferNode(n)
		if visit != nil {
			if err := visit(n); err != nil {
				return err
			}
		}
	}
	return nil
}

// inferNode sets the facts of n's outputs.
func (m *Module) inferNode(n *Node) {
	facts := make([]Fact, len(n.Out))
	if rule := rules[n.Op]; rule != nil && n.Domain == "" {
		c := &inference{m: m, n: n, out: facts}
		rule(c)
		if c.failed {
			clear(facts)
		}
	}
	for i, o := range n.Out {
		if o == nil {
			continue
		}
		if facts[i].Type == onnxpb.TensorProto_UNDEFINED {
			facts[i].Type = m.factOfInfo(n.Graph.infos[o], false).Type
		}
		if slices.ContainsFunc(facts[i].Shape, func(d Dim) bool { return d.Known() && d.N < 0 }) {
			facts[i] = Fact{Type: facts[i].Type} // no tensor can be like that
		}
		if len(facts[i].Elems) > maxElems {
			facts[i].Elems = nil
		}
		o.Fact = facts[i]
	}
}

// inference is the work on one node.
type inference struct {
	m      *Module
	n      *Node
	out    []Fact
	failed bool // the node contradicts itself: nothing is known
}

func (c *inference) in(i int) Fact {
	if v := c.n.Input(i); v != nil {
		return v.Fact
	}
	return Fact{}
}

func (c *inference) has(i int) bool { return c.n.Input(i) != nil }

func (c *inference) set(i int, f Fact) {
	if i < len(c.out) {
		c.out[i] = f
	}
}

// fresh returns an unknown dimension of the first output.
func (c *inference) fresh(at int) Dim { return c.m.unknown(c.n, 0, at) }

// ints returns the known elements of input i, or of the attribute that older
// operator sets have instead.
func (c *inference) ints(i int, attr string) ([]int64, bool) {
	if a := c.n.Attr(attr); a != nil {
		return a.GetInts(), true
	}
	if !c.has(i) {
		return nil, false
	}
	if e, ok := c.in(i).KnownElems(); ok {
		return e, true
	}
	return nil, false
}

// axis makes an axis non-negative.
func axis(a int64, rank int) (int, bool) {
	if a < 0 {
		a += int64(rank)
	}
	return int(a), a >= 0 && a < int64(rank)
}

type rule func(*inference)

var rules map[string]rule

func register(r rule, ops ...string) {
	for _, op := range ops {
		rules[op] = r
	}
}

func init() {
	rules = map[string]rule{}
	register(same, "Relu", "Sigmoid", "Tanh", "Erf", "Exp", "Log", "Sqrt", "Abs", "Floor", "Ceil", "Round", "Sign", "Sin", "Cos",
		"Softmax", "LogSoftmax", "Hardmax", "LeakyRelu", "Elu", "Selu", "Celu", "Gelu", "HardSigmoid", "HardSwish", "Mish", "Swish", "Softplus",
		"Softsign", "Clip", "LayerNormalization", "InstanceNormalization", "GroupNormalization", "RMSNormalization", "LRN",
		"CumSum", "Trilu", "Reciprocal", "LpNormalization", "MeanVarianceNormalization", "ThresholdedRelu", "PRelu", "Shrink",
		"BitwiseNot", "ScatterND", "ScatterElements", "Scatter", "BatchNormalization", "Dropout")
	register(identity, "Identity")
	register(negate, "Neg")
	register(logicalNot, "Not", "IsNaN", "IsInf")
	register(arithmetic, "Add", "Sub", "Mul", "Div", "Mod", "Min", "Max", "Pow", "Sum", "Mean", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor")
	register(compare, "Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual", "And", "Or", "Xor")
	register(where, "Where")
	register(cast, "Cast", "CastLike")
	register(quantize, "QuantizeLinear")
	register(dequantize, "DequantizeLinear")
	register(constant, "Constant")
	register(shapeOf, "Shape")
	register(sizeOf, "Size")
	register(gather, "Gather")
	register(concat, "Concat")
	register(unsqueeze, "Unsqueeze")
	register(squeeze, "Squeeze")
	register(reshape, "Reshape")
	register(flatten, "Flatten")
	register(transpose, "Transpose")
	register(slice, "Slice")
	register(expand, "Expand")
	register(tile, "Tile")
	register(constantOfShape, "ConstantOfShape")
	register(rangeOf, "Range")
	register(split, "Split")
	register(pad, "Pad")
	register(matmul, "MatMul")
	register(gemm, "Gemm")
	register(conv, "Conv", "MaxPool", "AveragePool", "LpPool")
	register(convTranspose, "ConvTranspose")
	register(globalPool, "GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
	register(reduce, "ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum",
		"ReduceLogSumExp", "ReduceSumSquare", "ArgMax", "ArgMin")
	register(gatherElements, "GatherElements")
	register(branches, "If")
	register(resize, "Resize")
}

// same gives the first output type and shape of the first input.
func same(c *inference) {
	f := c.in(0)
	f.Elems = nil
	c.set(0, f)
}

func identity(c *inference) { c.set(0, c.in(0)) }

func negate(c *inference) {
	f := c.in(0)
	f.Elems = c.zip("-", Fact{Elems: []Dim{Size(0)}}, f)
	c.set(0, f)
}

func logicalNot(c *inference) {
	f := c.in(0)
	elems := f.Elems
	f.Type, f.Elems = onnxpb.TensorProto_BOOL, nil
	if c.n.Op == "Not" && elems != nil {
		if e, ok := known(elems); ok {
			for _, x := range e {
				f.Elems = append(f.Elems, Size(b2i(x == 0)))
			}
			f.Elems = nonNil(f.Elems)
		}
	}
	c.set(0, f)
}

func b2i(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

func nonNil(d []Dim) []Dim {
	if d == nil {
		return []Dim{}
	}
	return d
}

// zip combines the elements of two tensors, of which one may be a single value.
func (c *inference) zip(op string, a, b Fact) []Dim {
	if a.Elems == nil || b.Elems == nil {
		return nil
	}
	n := max(len(a.Elems), len(b.Elems))
	if len(a.Elems) == 0 || len(b.Elems) == 0 {
		n = 0
	}
	if len(a.Elems) != n && len(a.Elems) != 1 || len(b.Elems) != n && len(b.Elems) != 1 {
		return nil
	}
	pick := func(e []Dim, i int) Dim {
		if len(e) == 1 {
			return e[0]
		}
		return e[i]
	}
	out := make([]Dim, n)
	for i := range out {
		out[i] = c.m.arith(op, pick(a.Elems, i), pick(b.Elems, i))
	}
	return out
}

var arithOps = map[string]string{"Add": "+", "Sub": "-", "Mul": "*", "Div": "/", "Mod": "mod", "Min": "min", "Max": "max"}

func arithmetic(c *inference) {
	f := c.broadcastAll()
	f.Type = c.in(0).Type
	op, ok := arithOps[c.n.Op]
	if ok && len(c.n.In) == 2 && f.Type == onnxpb.TensorProto_INT64 && c.n.Int("fmod", 0) == 0 {
		f.Elems = c.zip(op, c.in(0), c.in(1))
	}
	c.set(0, f)
}

func compare(c *inference) {
	f := c.broadcastAll()
	f.Type = onnxpb.TensorProto_BOOL
	a, b := c.in(0), c.in(1)
	x, okx := a.KnownElems()
	y, oky := b.KnownElems()
	if okx && oky && f.Ranked {
		f.Elems = compareElems(c.n.Op, x, y)
	} else if c.n.Op == "Equal" && len(a.Elems) == 1 && len(b.Elems) == 1 && a.Elems[0] == b.Elems[0] {
		f.Elems = []Dim{Size(1)}
	}
	c.set(0, f)
}

func compareElems(op string, x, y []int64) []Dim {
	n := max(len(x), len(y))
	if len(x) == 0 || len(y) == 0 {
		return []Dim{}
	}
	if len(x) != n && len(x) != 1 || len(y) != n && len(y) != 1 {
		return nil
	}
	out := make([]Dim, n)
	for i := range out {
		a, b := x[i%len(x)], y[i%len(y)]
		var r bool
		switch op {
		case "Equal":
			r = a == b
		case "Greater":
			r = a > b
		case "Less":
			r = a < b
		case "GreaterOrEqual":
			r = a >= b
		case "LessOrEqual":
			r = a <= b
		case "And":
			r = a != 0 && b != 0
		case "Or":
			r = a != 0 || b != 0
		case "Xor":
			r = (a != 0) != (b != 0)
		}
		out[i] = Size(b2i(r))
	}
	return out
}

func where(c *inference) {
	f := c.broadcastAll()
	f.Type = c.in(1).Type
	if cond, ok := c.in(0).KnownElems(); ok && integral(f.Type) {
		f.Elems = selectElems(cond, c.in(1).Elems, c.in(2).Elems)
	}
	c.set(0, f)
}

func selectElems(cond []int64, x, y []Dim) []Dim {
	if x == nil || y == nil || len(cond) == 0 || len(x) == 0 || len(y) == 0 {
		return nil
	}
	n := max(len(cond), len(x), len(y))
	for _, l := range []int{len(cond), len(x), len(y)} {
		if l != n && l != 1 {
			return nil
		}
	}
	out := make([]Dim, n)
	for i := range out {
		out[i] = y[i%len(y)]
		if cond[i%len(cond)] != 0 {
			out[i] = x[i%len(x)]
		}
	}
	return out
}

// broadcastAll returns the common shape of all inputs.
func (c *inference) broadcastAll() Fact {
	f := c.in(0)
	f.Elems = nil
	for i := 1; i < len(c.n.In) && f.Ranked; i++ {
		f = c.broadcast(f, c.in(i), i)
	}
	return f
}

func (c *inference) broadcast(a, b Fact, step int) Fact {
	if !a.Ranked || !b.Ranked {
		return Fact{Type: a.Type}
	}
	rank := max(len(a.Shape), len(b.Shape))
	shape := make([]Dim, rank)
	for i := range shape {
		x, y := Size(1), Size(1)
		if j := i - rank + len(a.Shape); j >= 0 {
			x = a.Shape[j]
		}
		if j := i - rank + len(b.Shape); j >= 0 {
			y = b.Shape[j]
		}
		switch {
		case x == y || y == Size(1):
			shape[i] = x
		case x == Size(1):
			shape[i] = y
		case x.Known() && y.Known():
			c.failed = true
		case x.Known():
			shape[i] = x
		case y.Known():
			shape[i] = y
		default:
			shape[i] = c.m.unknown(c.n, step, i)
		}
	}
	return Fact{Type: a.Type, Ranked: true, Shape: shape}
}

func cast(c *inference) {
	f := c.in(0)
	if c.n.Op == "CastLike" {
		f.Type = c.in(1).Type
	} else {
		f.Type = c.n.TypeAttr("to")
	}
	f.Elems = castElems(f.Elems, c.in(0).Type, f.Type)
	c.set(0, f)
}

// castElems keeps elements through a cast that loses nothing.
func castElems(elems []Dim, from, to onnxpb.TensorProto_DataType) []Dim {
	if elems == nil || !integral(to) || from == to {
		if integral(to) {
			return elems
		}
		return nil
	}
	if to == onnxpb.TensorProto_INT64 {
		return elems
	}
	e, ok := known(elems)
	if !ok {
		return nil
	}
	out := make([]Dim, len(e))
	for i, x := range e {
		switch {
		case to == onnxpb.TensorProto_BOOL:
			out[i] = Size(b2i(x != 0))
		case x == int64(int32(x)):
			out[i] = Size(x)
		default:
			return nil
		}
	}
	return out
}

func quantize(c *inference) {
	f := c.in(0)
	f.Elems = nil
	f.Type = onnxpb.TensorProto_UINT8
	if c.has(2) {
		f.Type = c.in(2).Type
	} else if t := c.n.TypeAttr("output_dtype"); t != onnxpb.TensorProto_UNDEFINED {
		f.Type = t
	}
	c.set(0, f)
}

func dequantize(c *inference) {
	f := c.in(0)
	f.Elems = nil
	f.Type = c.in(1).Type
	c.set(0, f)
}

func constant(c *inference) {
	if t := c.n.Attr("value").GetT(); t != nil {
		v := &Value{Init: t}
		c.m.factOfInit(v)
		c.set(0, v.Fact)
	}
}

// branches gives an If what both its branches agree on.
func branches(c *inference) {
	if len(c.n.Subs) != 2 {
		return
	}
	a, b := c.n.Subs[0].Graph.Outputs, c.n.Subs[1].Graph.Outputs
	for i := range c.out {
		if i >= len(a) || i >= len(b) {
			return
		}
		x, y := a[i].Fact, b[i].Fact
		if x.Type != y.Type {
			continue
		}
		f := Fact{Type: x.Type}
		if x.Ranked && y.Ranked && len(x.Shape) == len(y.Shape) {
			f.Ranked = true
			f.Shape = slices.Clone(x.Shape)
			for d := range f.Shape {
				if x.Shape[d] != y.Shape[d] {
					f.Shape[d] = c.m.unknown(c.n, i, d)
				}
			}
		}
		c.out[i] = f
	}
}
