// Package precision rewrites float32 ONNX graphs into graphs that carry their
// precision themselves: float16 and bfloat16 by casts, int8 by
// QuantizeLinear/DequantizeLinear pairs. Such a graph means the same to every
// TensorRT that builds strongly typed networks, and can be judged on a CPU.
package precision

import (
	"slices"

	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
	"github.com/trtship/trtship/internal/tensor"
)

// types maps the values of one scope to their element types. A value that is
// no tensor, or whose type could not be found, is absent.
type types struct {
	outer *types
	known map[string]tensor.DType
}

func (t *types) of(name string) tensor.DType {
	for s := t; s != nil; s = s.outer {
		if d, ok := s.known[name]; ok {
			return d
		}
	}
	return ""
}

// typer infers element types. Shapes are not needed, so neither are values.
type typer struct {
	functions map[onnx.FunctionKey]*onnxpb.FunctionProto
	bodies    map[*onnxpb.GraphProto]*types // of nested graphs
}

func newTyper(m *onnx.Model) *typer {
	return &typer{functions: m.Functions(), bodies: map[*onnxpb.GraphProto]*types{}}
}

// graph returns the types of g's values. Types in inputs replace those that g
// declares, for bodies whose inputs come without.
func (y *typer) graph(g *onnxpb.GraphProto, outer *types, inputs []tensor.DType) *types {
	t := &types{outer: outer, known: map[string]tensor.DType{}}
	y.bodies[g] = t
	for i, v := range g.GetInput() {
		d := onnx.ValueOf(v).DType
		if d == "" && i < len(inputs) {
			d = inputs[i]
		}
		t.set(v.GetName(), d)
	}
	for _, i := range g.GetInitializer() {
		d, _ := onnx.DType(i.GetDataType())
		t.set(i.GetName(), d)
	}
	for _, v := range append(slices.Clone(g.GetValueInfo()), g.GetOutput()...) {
		t.set(v.GetName(), onnx.ValueOf(v).DType)
	}
	y.nodes(g.GetNode(), t, 0)
	return t
}

func (t *types) set(name string, d tensor.DType) {
	if name != "" && d != "" {
		t.known[name] = d
	}
}

func (y *typer) nodes(nodes []*onnxpb.NodeProto, t *types, depth int) {
	for _, n := range nodes {
		for i, d := range y.outputs(n, t, depth) {
			if i < len(n.Output) && t.known[n.Output[i]] == "" {
				t.set(n.Output[i], d)
			}
		}
	}
}

// outputs returns the element types of n's outputs.
func (y *typer) outputs(n *onnxpb.NodeProto, t *types, depth int) []tensor.DType {
	in := make([]tensor.DType, len(n.GetInput()))
	for i, name := range n.GetInput() {
		in[i] = t.of(name)
	}
	if f, ok := y.functions[onnx.CallKey(n)]; ok {
		return y.call(f, in, depth)
	}
	if onnx.Domain(n.GetDomain()) != "" {
		return nil
	}
	if rule, ok := outputRules[n.GetOpType()]; ok {
		return rule(n, in)
	}
	switch n.GetOpType() {
	case "If":
		return y.body(n, "then_branch", t, nil, 0)
	case "Loop":
		inner := append([]tensor.DType{tensor.Int64, tensor.Bool}, at(in, 2, len(in))...)
		return y.body(n, "body", t, inner, 1)
	case "Scan":
		return y.body(n, "body", t, in, 0)
	}
	if len(in) == 0 {
		return nil
	}
	return repeat(in[0], len(n.GetOutput()))
}

// body infers a nested graph and returns the types of its outputs from skip on.
// All bodies of a node are visited, for their own nodes' sake.
func (y *typer) body(n *onnxpb.NodeProto, name string, t *types, inputs []tensor.DType, skip int) []tensor.DType {
	var out []tensor.DType
	for attr, g := range onnx.Subgraphs(n) {
		inner := y.graph(g, t, inputs)
		if attr != name {
			continue
		}
		for _, o := range g.GetOutput()[min(skip, len(g.GetOutput())):] {
			out = append(out, inner.of(o.GetName()))
		}
	}
	return out
}

// maxCalls bounds functions that call each other.
const maxCalls = 64

func (y *typer) call(f *onnxpb.FunctionProto, in []tensor.DType, depth int) []tensor.DType {
	if depth > maxCalls {
		return nil
	}
	t := &types{known: map[string]tensor.DType{}}
	for i, name := range f.GetInput() {
		if i < len(in) {
			t.set(name, in[i])
		}
	}
	y.nodes(f.GetNode(), t, depth+1)
	out := make([]tensor.DType, len(f.GetOutput()))
	for i, name := range f.GetOutput() {
		out[i] = t.of(name)
	}
	return out
}

func at(in []tensor.DType, from, to int) []tensor.DType {
	if from >= len(in) {
		return nil
	}
	return in[from:to]
}

func repeat(d tensor.DType, n int) []tensor.DType {
	return slices.Repeat([]tensor.DType{d}, n)
}

type outputRule func(n *onnxpb.NodeProto, in []tensor.DType) []tensor.DType

// always gives the listed types; the last one repeats.
func always(d ...tensor.DType) outputRule {
	return func(n *onnxpb.NodeProto, _ []tensor.DType) []tensor.DType {
		out := slices.Clone(d)
		for len(out) < len(n.GetOutput()) {
			out = append(out, d[len(d)-1])
		}
		return out
	}
}

// like gives the type of input i.
func like(i int) outputRule {
	return func(n *onnxpb.NodeProto, in []tensor.DType) []tensor.DType {
		if i >= len(in) {
			return nil
		}
		return repeat(in[i], len(n.GetOutput()))
	}
}

// first gives input 0's type to the first output and d to the others.
func first(d tensor.DType) outputRule {
	return func(n *onnxpb.NodeProto, in []tensor.DType) []tensor.DType {
		if len(in) == 0 {
			return nil
		}
		return append([]tensor.DType{in[0]}, repeat(d, max(len(n.GetOutput())-1, 0))...)
	}
}

// named gives the type that an integer attribute names, else that of input i,
// else def.
func named(attribute string, i int, def tensor.DType) outputRule {
	return func(n *onnxpb.NodeProto, in []tensor.DType) []tensor.DType {
		if a := onnx.Attribute(n, attribute); a != nil {
			if v := a.GetI(); v == int64(int32(v)) {
				d, _ := onnx.DType(int32(v))
				return []tensor.DType{d}
			}
			return []tensor.DType{""}
		}
		if i >= 0 && i < len(in) {
			return []tensor.DType{in[i]}
		}
		return []tensor.DType{def}
	}
}

func none(*onnxpb.NodeProto, []tensor.DType) []tensor.DType { return nil }

// outputRules are the operators whose outputs are not all of the type of their
// first input.
var outputRules = map[string]outputRule{
	"Shape": always(tensor.Int64), "Size": always(tensor.Int64), "NonZero": always(tensor.Int64),
	"ArgMax": always(tensor.Int64), "ArgMin": always(tensor.Int64), "NonMaxSuppression": always(tensor.Int64),
	"SequenceLength": always(tensor.Int64),
	"TopK":           first(tensor.Int64), "Unique": first(tensor.Int64), "MaxPool": first(tensor.Int64),
	"Dropout": first(tensor.Bool),

	"Equal": always(tensor.Bool), "Greater": always(tensor.Bool), "GreaterOrEqual": always(tensor.Bool),
	"Less": always(tensor.Bool), "LessOrEqual": always(tensor.Bool), "IsNaN": always(tensor.Bool), "IsInf": always(tensor.Bool),
	"And": always(tensor.Bool), "Or": always(tensor.Bool), "Not": always(tensor.Bool), "Xor": always(tensor.Bool),
	"OptionalHasElement": always(tensor.Bool), "RegexFullMatch": always(tensor.Bool),

	"Cast": named("to", -1, ""), "CastLike": like(1), "Where": like(1), "OneHot": like(2), "BitCast": named("to", -1, ""),
	"Constant": constantType, "ConstantOfShape": constantOfShapeType,
	"EyeLike": named("dtype", 0, tensor.Float32), "RandomNormalLike": named("dtype", 0, tensor.Float32),
	"RandomUniformLike": named("dtype", 0, tensor.Float32), "Bernoulli": named("dtype", 0, tensor.Float32),
	"RandomNormal": named("dtype", -1, tensor.Float32), "RandomUniform": named("dtype", -1, tensor.Float32),
	"Multinomial": named("dtype", -1, tensor.Int32), "MelWeightMatrix": named("output_datatype", -1, tensor.Float32),
	"HannWindow": named("output_datatype", -1, tensor.Float32), "HammingWindow": named("output_datatype", -1, tensor.Float32),
	"BlackmanWindow": named("output_datatype", -1, tensor.Float32),

	"QuantizeLinear": quantizeType, "DequantizeLinear": named("output_dtype", 1, tensor.Float32),
	"DynamicQuantizeLinear": always(tensor.UInt8, tensor.Float32, tensor.UInt8),
	"ConvInteger":           always(tensor.Int32), "MatMulInteger": always(tensor.Int32),
	"QLinearConv": like(7), "QLinearMatMul": like(7),
	"LayerNormalization": first(tensor.Float32),

	"SequenceConstruct": none, "SequenceEmpty": none, "SequenceInsert": none, "SequenceErase": none, "SequenceMap": none,
	"SplitToSequence": none, "SequenceAt": none, "ConcatFromSequence": none, "Optional": none, "OptionalGetElement": none,
	"TfIdfVectorizer": always(tensor.Float32), "StringSplit": always(tensor.String, tensor.Int64), "ImageDecoder": always(tensor.UInt8),
}

func constantType(n *onnxpb.NodeProto, _ []tensor.DType) []tensor.DType {
	for _, a := range n.GetAttribute() {
		switch a.GetName() {
		case "value":
			d, _ := onnx.DType(a.GetT().GetDataType())
			return []tensor.DType{d}
		case "value_float", "value_floats":
			return []tensor.DType{tensor.Float32}
		case "value_int", "value_ints":
			return []tensor.DType{tensor.Int64}
		case "value_string", "value_strings":
			return []tensor.DType{tensor.String}
		}
	}
	return nil
}

func constantOfShapeType(n *onnxpb.NodeProto, _ []tensor.DType) []tensor.DType {
	if a := onnx.Attribute(n, "value"); a != nil {
		d, _ := onnx.DType(a.GetT().GetDataType())
		return []tensor.DType{d}
	}
	return []tensor.DType{tensor.Float32}
}

func quantizeType(n *onnxpb.NodeProto, in []tensor.DType) []tensor.DType {
	if len(in) > 2 && in[2] != "" {
		return []tensor.DType{in[2]}
	}
	return named("output_dtype", -1, tensor.UInt8)(n, in)
}

// Activation is a floating-point value of the main graph that depends on the
// inputs.
type Activation struct {
	Name  string
	Node  string // that makes it; empty for an input
	DType tensor.DType
}

// Activations lists the floating-point inputs, intermediates and outputs of the
// main graph in the order in which they come about. Weights and constants are
// not among them, nor are values inside the graphs of If, Loop and Scan.
func Activations(m *onnx.Model) []Activation {
	g := m.Graph()
	t := newTyper(m).graph(g, nil, nil)
	var out []Activation
	add := func(name, node string) {
		if d := t.of(name); d == tensor.Float32 || d == tensor.Float16 || d == tensor.BFloat16 {
			out = append(out, Activation{Name: name, Node: node, DType: d})
		}
	}
	for _, v := range m.Inputs() {
		add(v.Name, "")
	}
	for _, n := range g.GetNode() {
		if n.GetOpType() == "Constant" && onnx.Domain(n.GetDomain()) == "" {
			continue
		}
		for _, o := range n.GetOutput() {
			if o != "" {
				add(o, onnx.NodeName(n))
			}
		}
	}
	return out
}
