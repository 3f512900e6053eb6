package onnx

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/trtship/trtship/internal/onnx/onnxpb"
)

// Place says where in a model a node was found.
type Place struct {
	Graph    *onnxpb.GraphProto    // innermost graph; nil directly in a function
	Function *onnxpb.FunctionProto // nil outside functions
	Path     string                // readable: "" for the main graph, e.g. `/If/then_branch` or `function acme.Up`
	Depth    int                   // 0 for the main graph and a function's body
}

// Name returns how people refer to n in this place: its name, or operator and
// first output if it has none, behind the place if that is not the main graph.
func (p Place) Name(n *onnxpb.NodeProto) string {
	if p.Path == "" {
		return NodeName(n)
	}
	return p.Path + ": " + NodeName(n)
}

// NodeName returns the node's name, or its operator and first output.
func NodeName(n *onnxpb.NodeProto) string {
	if n.GetName() != "" {
		return n.GetName()
	}
	for _, o := range n.GetOutput() {
		if o != "" {
			return fmt.Sprintf("%s -> %s", n.GetOpType(), o)
		}
	}
	return n.GetOpType()
}

// Domain returns the operator domain with ai.onnx as the empty string.
func Domain(d string) string {
	if d == "ai.onnx" {
		return ""
	}
	return d
}

// Operator returns "Conv" for operators of ai.onnx and "domain::Op" for others.
func Operator(n *onnxpb.NodeProto) string {
	if d := Domain(n.GetDomain()); d != "" {
		return d + "::" + n.GetOpType()
	}
	return n.GetOpType()
}

// Walk calls visit for every node of the main graph, of all graphs nested in it
// and of the functions, parents before children, until visit returns false.
func (m *Model) Walk(visit func(p Place, n *onnxpb.NodeProto) bool) {
	w := walker{visit: visit}
	if !w.nodes(Place{Graph: m.Graph()}, m.Graph().GetNode()) {
		return
	}
	for _, f := range m.Proto.GetFunctions() {
		if !w.nodes(Place{Function: f, Path: "function " + functionName(f)}, f.GetNode()) {
			return
		}
	}
}

type walker struct {
	visit func(p Place, n *onnxpb.NodeProto) bool
}

func (w walker) nodes(p Place, nodes []*onnxpb.NodeProto) bool {
	for _, n := range nodes {
		if !w.visit(p, n) {
			return false
		}
		if p.Depth >= MaxDepth {
			continue
		}
		for name, g := range Subgraphs(n) {
			path := p.Path
			if path != "" {
				path += "/"
			}
			in := Place{Graph: g, Function: p.Function, Path: path + NodeName(n) + "/" + name, Depth: p.Depth + 1}
			if !w.nodes(in, g.GetNode()) {
				return false
			}
		}
	}
	return true
}

// Subgraphs yields the graphs in a node's attributes with their attribute's
// name, in order. Lists of graphs get an index behind the name.
func Subgraphs(n *onnxpb.NodeProto) func(yield func(string, *onnxpb.GraphProto) bool) {
	return func(yield func(string, *onnxpb.GraphProto) bool) {
		for _, a := range n.GetAttribute() {
			if a.G != nil && !yield(a.GetName(), a.G) {
				return
			}
			for i, g := range a.GetGraphs() {
				if !yield(fmt.Sprintf("%s[%d]", a.GetName(), i), g) {
					return
				}
			}
		}
	}
}

// FunctionKey identifies a function and the nodes that call it.
type FunctionKey struct{ Domain, Name, Overload string }

// KeyOf returns the key of a function.
func KeyOf(f *onnxpb.FunctionProto) FunctionKey {
	return FunctionKey{Domain(f.GetDomain()), f.GetName(), f.GetOverload()}
}

// CallKey returns the key of the function that n would call.
func CallKey(n *onnxpb.NodeProto) FunctionKey {
	return FunctionKey{Domain(n.GetDomain()), n.GetOpType(), n.GetOverload()}
}

// Functions returns the model's functions by key.
func (m *Model) Functions() map[FunctionKey]*onnxpb.FunctionProto {
	out := map[FunctionKey]*onnxpb.FunctionProto{}
	for _, f := range m.Proto.GetFunctions() {
		out[KeyOf(f)] = f
	}
	return out
}

func functionName(f *onnxpb.FunctionProto) string {
	return f.GetDomain() + "." + f.GetName()
}

// walkTensors calls visit for every dense tensor of the model, with the place
// of tensors that have no name of their own.
func (m *Model) walkTensors(visit func(place string, t *onnxpb.TensorProto) error) error {
	if err := graphTensors("", m.Graph(), visit, 0); err != nil {
		return err
	}
	for _, f := range m.Proto.GetFunctions() {
		where := "function " + functionName(f)
		for _, a := range f.GetAttributeProto() {
			if err := attributeTensors(where+" attribute "+a.GetName(), a, visit, 0); err != nil {
				return err
			}
		}
		if err := nodeTensors(where+": ", f.GetNode(), visit, 0); err != nil {
			return err
		}
	}
	for _, t := range m.Proto.GetTrainingInfo() {
		for _, g := range []*onnxpb.GraphProto{t.GetInitialization(), t.GetAlgorithm()} {
			if err := graphTensors("training info: ", g, visit, 0); err != nil {
				return err
			}
		}
	}
	return nil
}

func graphTensors(where string, g *onnxpb.GraphProto, visit func(string, *onnxpb.TensorProto) error, depth int) error {
	if depth > MaxDepth {
		return errTooDeep()
	}
	for _, t := range g.GetInitializer() {
		if err := visit(where+"initializer", t); err != nil {
			return err
		}
	}
	for _, s := range g.GetSparseInitializer() {
		if err := sparseTensors(where+"sparse initializer", s, visit); err != nil {
			return err
		}
	}
	return nodeTensors(where, g.GetNode(), visit, depth)
}

func nodeTensors(where string, nodes []*onnxpb.NodeProto, visit func(string, *onnxpb.TensorProto) error, depth int) error {
	for _, n := range nodes {
		for _, a := range n.GetAttribute() {
			if a.T == nil && a.G == nil && a.SparseTensor == nil && len(a.Tensors)+len(a.Graphs)+len(a.SparseTensors) == 0 {
				continue
			}
			if err := attributeTensors(where+NodeName(n)+" attribute "+a.GetName(), a, visit, depth); err != nil {
				return err
			}
		}
	}
	return nil
}

func attributeTensors(where string, a *onnxpb.AttributeProto, visit func(string, *onnxpb.TensorProto) error, depth int) error {
	for _, t := range append(slices.Clone(a.GetTensors()), a.GetT()) {
		if t == nil {
			continue
		}
		if err := visit(where, t); err != nil {
			return err
		}
	}
	for _, s := range append(slices.Clone(a.GetSparseTensors()), a.GetSparseTensor()) {
		if err := sparseTensors(where, s, visit); err != nil {
			return err
		}
	}
	for _, g := range append(slices.Clone(a.GetGraphs()), a.GetG()) {
		if err := graphTensors(where+": ", g, visit, depth+1); err != nil {
			return err
		}
	}
	return nil
}

func sparseTensors(where string, s *onnxpb.SparseTensorProto, visit func(string, *onnxpb.TensorProto) error) error {
	for _, t := range []*onnxpb.TensorProto{s.GetValues(), s.GetIndices()} {
		if t == nil {
			continue
		}
		if err := visit(where, t); err != nil {
			return err
		}
	}
	return nil
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K {
	return slices.Sorted(maps.Keys(m))
}
