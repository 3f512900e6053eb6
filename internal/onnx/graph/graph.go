// Package graph is a model in the form that passes work on: nodes and values
// that point at each other, so that a value's readers are known at every
// moment, also those in nested graphs, and no pass looks anything up by name.
//
// Load turns a checked onnx.Model into a Module, Model turns it back. Loading
// copies no tensor and changes nothing of the model it came from; a pass that
// needs another attribute replaces it instead of writing into it.
package graph

import (
	"fmt"
	"slices"

	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
)

// Module is a model: its main graph with all nested ones, and its functions.
type Module struct {
	Source *onnx.Model
	Main   *Graph
	// Opsets are the imported versions by domain; ai.onnx is "".
	Opsets map[string]int64
	// Functions are the bodies of the model's functions. Passes read them and
	// leave them as they are; DropFunction takes one out.
	Functions map[onnx.FunctionKey]*onnxpb.FunctionProto

	// Made counts the bytes of constants that passes have made.
	Made int64

	names   *onnx.Names
	dropped map[onnx.FunctionKey]bool
	imports []*onnxpb.OperatorSetIdProto
	impure  map[onnx.FunctionKey]bool
	symbols symbols
	nextID  int
}

// Graph is the main graph, or one nested in a node.
type Graph struct {
	Module  *Module
	Parent  *Node // nil for the main graph
	Inputs  []*Value
	Outputs []*Value // one for each output slot; never nil
	Nodes   []*Node  // in topological order; Sweep drops removed ones
	Inits   []*Value // in order; Sweep drops removed ones

	proto  *onnxpb.GraphProto
	infos  map[*Value]*onnxpb.ValueInfoProto
	ends   []*onnxpb.ValueInfoProto // of each output slot: what it was declared as
	annots []annotation
}

// annotation is a quantization annotation: it follows its values' names.
type annotation struct {
	tensor *Value
	params []annotationParam
}

type annotationParam struct {
	key   string
	value *Value
}

// Node is one operator call.
type Node struct {
	Name, Op, Domain, Overload string
	Attrs                      []*onnxpb.AttributeProto // without graphs; replaced, never written into
	In, Out                    []*Value                 // nil where left out
	Subs                       []Sub                    // nested graphs
	Graph                      *Graph
	Removed                    bool

	proto *onnxpb.NodeProto // for what passes do not look at
	at    []int             // of each input: its entry in the value's uses
}

// Sub is a graph in an attribute.
type Sub struct {
	Attr  string
	Index int // in a list of graphs; -1 for a single one
	Graph *Graph
}

// Value is an input, an initializer or an output of a node.
type Value struct {
	Name  string
	ID    int    // unlike that of any other value of the module
	Graph *Graph // that defines it
	Def   *Node  // node that makes it; nil for inputs and initializers
	Index int    // of the output of Def
	// Init is the constant, or the default of an input. Nil otherwise.
	Init *onnxpb.TensorProto
	// Input tells that callers (or the node that holds the graph) may give it.
	Input bool
	// Fact is what Infer found out.
	Fact Fact

	uses    []use
	slots   int // output slots of Graph that it fills
	pins    int // other reasons to keep it, e.g. annotations
	dropped bool
}

// use is one input of one node. The node knows where its entry is.
type use struct {
	node *Node
	in   int
}

// Constant reports whether the value is the same for every caller.
func (v *Value) Constant() bool { return v != nil && v.Init != nil && !v.Input }

// Readers returns how many node inputs read v, in its graph and in nested ones.
func (v *Value) Readers() int { return len(v.uses) }

// IsOutput reports whether v is an output of its graph.
func (v *Value) IsOutput() bool { return v.slots > 0 }

// Used reports whether anything reads v.
func (v *Value) Used() bool { return len(v.uses)+v.slots+v.pins > 0 }

// Users calls visit for every node that reads v, once for each input, until it
// returns false. visit must not change who reads v.
func (v *Value) Users(visit func(n *Node, input int) bool) {
	for _, u := range v.uses {
		if !visit(u.node, u.in) {
			return
		}
	}
}

// OnlyUser returns the node that reads v if there is one reading input and v is
// no output, else nil.
func (v *Value) OnlyUser() *Node {
	if len(v.uses) != 1 || v.slots+v.pins > 0 {
		return nil
	}
	return v.uses[0].node
}

// addUse enters input in of n, which reads v from now on.
func (v *Value) addUse(n *Node, in int) {
	n.at[in] = len(v.uses)
	v.uses = append(v.uses, use{n, in})
}

// dropUse takes the entry at position at out; the last one moves into its place.
func (v *Value) dropUse(at int) {
	last := len(v.uses) - 1
	v.uses[at] = v.uses[last]
	v.uses[at].node.at[v.uses[at].in] = at
	v.uses = v.uses[:last]
}

// SetInput makes input in of n read v; nil leaves it out.
func (n *Node) SetInput(in int, v *Value) {
	for len(n.In) <= in {
		n.In, n.at = append(n.In, nil), append(n.at, 0)
	}
	if old := n.In[in]; old == v {
		return
	} else if old != nil {
		old.dropUse(n.at[in])
	}
	n.In[in] = v
	if v != nil {
		v.addUse(n, in)
	}
}

// SetInputs replaces all inputs.
func (n *Node) SetInputs(values ...*Value) {
	for i := range n.In {
		n.SetInput(i, nil)
	}
	n.In, n.at = nil, nil
	for i, v := range values {
		n.SetInput(i, v)
	}
}

// Input returns input i, or nil if it is left out.
func (n *Node) Input(i int) *Value {
	if i < len(n.In) {
		return n.In[i]
	}
	return nil
}

// Output returns output i, or nil if it is left out.
func (n *Node) Output(i int) *Value {
	if i < len(n.Out) {
		return n.Out[i]
	}
	return nil
}

// Standard reports whether n is an operator of ai.onnx of one of these names.
func (n *Node) Standard(ops ...string) bool {
	return n.Domain == "" && slices.Contains(ops, n.Op)
}

// String returns the node's name, or operator and first output.
func (n *Node) String() string {
	if n.Name != "" {
		return n.Name
	}
	for _, o := range n.Out {
		if o != nil {
			return fmt.Sprintf("%s -> %s", n.Op, o.Name)
		}
	}
	return n.Op
}

// ReplaceReaders makes every node that reads v read w instead. Output slots
// stay with v.
func (v *Value) ReplaceReaders(w *Value) {
	if v == w {
		return
	}
	for _, u := range v.uses {
		u.node.In[u.in] = w
		w.addUse(u.node, u.in)
	}
	v.uses = nil
}

// Remove takes n, whose outputs nobody may use, out of its graph, with all that
// is nested in it. The entry in Graph.Nodes goes at the next Sweep.
func (n *Node) Remove() {
	n.release()
}

func (n *Node) release() {
	if n.Removed {
		return
	}
	n.Removed = true
	for i, v := range n.In {
		if v != nil {
			v.dropUse(n.at[i])
		}
	}
	n.In, n.at = nil, nil
	for _, s := range n.Subs {
		for _, inner := range s.Graph.Nodes {
			inner.release()
		}
		for _, o := range s.Graph.Outputs {
			o.slots--
		}
	}
}

// Bypass makes readers of n's first output read src instead and removes n if
// that leaves its outputs unused. If the first output is an output of the
// graph, n can only go when src is made by a node of the same graph that nobody
// else reads: it then takes the output's name. It reports whether anything
// changed.
func (n *Node) Bypass(src *Value) bool {
	out := n.Out[0]
	for _, o := range n.Out[1:] {
		if o != nil && o.Used() {
			return false
		}
	}
	changed := len(out.uses) > 0
	if !out.IsOutput() {
		out.ReplaceReaders(src)
		n.Remove()
		return true
	}
	if len(src.uses) == 1 && src.take(out) {
		n.Remove()
		return true
	}
	out.ReplaceReaders(src)
	return changed
}

// take moves name, readers and output slots of out to v.
func (v *Value) take(out *Value) bool {
	if v.Graph != out.Graph || v.Def == nil || v.slots+v.pins > 0 || out.pins > 0 {
		return false
	}
	out.ReplaceReaders(v)
	for i, o := range v.Graph.Outputs {
		if o == out {
			v.Graph.Outputs[i] = v
			v.slots++
			out.slots--
		}
	}
	if info := v.Graph.infos[out]; info != nil {
		v.Graph.infos[v] = info
	}
	v.Name, out.Name = out.Name, v.Name
	return true
}

// Merge makes a take over all readers and output slots of b, which another node
// of the same or a nested graph makes with the same result. It reports false
// and changes nothing if both are outputs, or b is an output of a nested graph.
func Merge(a, b *Value) bool {
	if b.IsOutput() {
		return a.Graph == b.Graph && a.take(b)
	}
	b.ReplaceReaders(a)
	return true
}

// CanMerge reports whether Merge(a, b) would succeed.
func CanMerge(a, b *Value) bool {
	if b.pins > 0 {
		return false
	}
	if !b.IsOutput() {
		return true
	}
	return a.Graph == b.Graph && a.Def != nil && a.slots+a.pins == 0
}

// AddInit adds a constant to g. The name is made unique.
func (g *Graph) AddInit(base string, t *onnxpb.TensorProto) *Value {
	name := g.Module.names.Fresh(base)
	if t.GetName() != name {
		t.Name = &name
	}
	v := &Value{Name: name, ID: g.Module.newID(), Graph: g, Init: t}
	g.Inits = append(g.Inits, v)
	g.Module.factOfInit(v)
	return v
}

// Fold turns output v of n, which is no output of the graph, into a constant
// of the same name. n goes when none of its outputs is left.
func (n *Node) Fold(v *Value, t *onnxpb.TensorProto) {
	n.Out[v.Index] = nil
	v.Def, v.Index, v.Init = nil, 0, namedTensor(t, v.Name)
	v.Graph.Inits = append(v.Graph.Inits, v)
	n.Graph.Module.factOfInit(v)
	for _, o := range n.Out {
		if o != nil && o.Used() {
			return
		}
	}
	n.Remove()
}

func (m *Module) newID() int {
	m.nextID++
	return m.nextID
}

// Positive reports whether a size is 1 or more whenever no input is empty.
func (m *Module) Positive(d Dim) bool { return m.symbols.isPositive(d) }

// Fresh returns a name that nothing in the module has.
func (m *Module) Fresh(base string) string { return m.names.Fresh(base) }

// DropInit removes an initializer that nobody uses.
func (v *Value) DropInit() { v.dropped = true }

// Become turns n into another operator of ai.onnx with these inputs and
// attributes; its outputs stay.
func (n *Node) Become(op string, attrs []*onnxpb.AttributeProto, inputs ...*Value) {
	n.Op, n.Domain, n.Overload, n.Attrs = op, "", "", attrs
	n.SetInputs(inputs...)
}

// Sweep drops removed nodes and initializers from the lists of all graphs.
func (m *Module) Sweep() {
	for _, g := range m.Graphs() {
		g.Nodes = slices.DeleteFunc(g.Nodes, func(n *Node) bool { return n.Removed })
		g.Inits = slices.DeleteFunc(g.Inits, func(v *Value) bool { return v.dropped })
	}
}

// Graphs returns the main graph and all nested ones, outer before inner.
func (m *Module) Graphs() []*Graph {
	all := []*Graph{m.Main}
	for i := 0; i < len(all); i++ {
		for _, n := range all[i].Nodes {
			if n.Removed {
				continue
			}
			for _, s := range n.Subs {
				all = append(all, s.Graph)
			}
		}
	}
	return all
}

// CountNodes returns the number of nodes in all graphs and functions.
func (m *Module) CountNodes() int {
	count := 0
	for _, g := range m.Graphs() {
		for _, n := range g.Nodes {
			if !n.Removed {
				count++
			}
		}
	}
	return count
}

// Opset returns the version of ai.onnx.
func (m *Module) Opset() int64 { return m.Opsets[""] }

// DropFunction takes a function that nobody calls out of the model.
func (m *Module) DropFunction(k onnx.FunctionKey) {
	delete(m.Functions, k)
	m.dropped[k] = true
}

// DropImport takes an operator set out of the model.
func (m *Module) DropImport(domain string) {
	delete(m.Opsets, domain)
	m.imports = slices.DeleteFunc(slices.Clone(m.imports), func(o *onnxpb.OperatorSetIdProto) bool { return onnx.Domain(o.GetDomain()) == domain })
}

// Inline makes the constants of the nested graph in attribute attr, which must
// have no inputs, part of n's graph and removes n. It returns the nodes that the
// caller must put into n's place in Graph.Nodes. Every output of the nested
// graph must be made by one of its nodes; ok is false, and nothing changes, if
// that is not so.
func (n *Node) Inline(attr string) (nodes []*Node, ok bool) {
	var sub *Graph
	for _, s := range n.Subs {
		if s.Attr == attr {
			sub = s.Graph
		}
	}
	if sub == nil || len(sub.Inputs) > 0 || len(sub.Outputs) != len(n.Out) || len(sub.annots) > 0 || len(sub.proto.GetSparseInitializer()) > 0 {
		return nil, false
	}
	made := map[*Value]bool{}
	for _, o := range sub.Outputs {
		if o.Def == nil || o.slots != 1 || made[o] {
			return nil, false
		}
		made[o] = true
	}
	sub.moveInto(n.Graph)
	// The branch goes first, so that releasing n does not take it along.
	n.Subs = slices.DeleteFunc(slices.Clone(n.Subs), func(s Sub) bool { return s.Graph == sub })
	for i, o := range sub.Outputs {
		o.slots--
		if n.Out[i] != nil {
			Merge(o, n.Out[i])
		}
	}
	n.Remove()
	return sub.Nodes, true
}

// moveInto makes g the home of everything in s. Names become new ones, since
// other nested graphs of g may use the old.
func (s *Graph) moveInto(g *Graph) {
	move := func(v *Value) {
		if info := s.infos[v]; info != nil {
			g.infos[v] = info
		}
		v.Graph = g
		v.Name = g.Module.names.Fresh(v.Name)
	}
	for _, v := range s.Inits {
		move(v)
	}
	g.Inits = append(g.Inits, s.Inits...)
	for _, n := range s.Nodes {
		n.Graph = g
		for _, o := range n.Out {
			if o != nil {
				move(o)
			}
		}
	}
}
