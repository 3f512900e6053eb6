package onnx

import (
	"fmt"
	"slices"
	"strings"

	"github.com/trtship/trtship/internal/onnx/onnxpb"
)

func sortOperators(o []OperatorCount) {
	slices.SortFunc(o, func(a, b OperatorCount) int {
		if c := strings.Compare(a.Domain, b.Domain); c != 0 {
			return c
		}
		return strings.Compare(a.Op, b.Op)
	})
}

// Index answers who makes and who reads the values of one graph. It is a
// snapshot: make a new one after an edit. The empty name is never in it.
type Index struct {
	Initializers map[string]*onnxpb.TensorProto
	Producers    map[string]*onnxpb.NodeProto
	// Readers lists the nodes of this graph that read a value, themselves or in a
	// graph nested in them, each once.
	Readers map[string][]*onnxpb.NodeProto
	// Uses counts every mention: inputs here and in nested graphs, and outputs.
	Uses    map[string]int
	Inputs  map[string]*onnxpb.ValueInfoProto
	Outputs map[string]*onnxpb.ValueInfoProto
	Infos   map[string]*onnxpb.ValueInfoProto // declared types of inputs, outputs and inner values
}

// NewIndex indexes g.
func NewIndex(g *onnxpb.GraphProto) *Index {
	x := &Index{
		Initializers: map[string]*onnxpb.TensorProto{}, Producers: map[string]*onnxpb.NodeProto{},
		Readers: map[string][]*onnxpb.NodeProto{}, Uses: map[string]int{}, Inputs: map[string]*onnxpb.ValueInfoProto{},
		Outputs: map[string]*onnxpb.ValueInfoProto{}, Infos: map[string]*onnxpb.ValueInfoProto{},
	}
	for _, t := range g.GetInitializer() {
		x.Initializers[t.GetName()] = t
	}
	for _, v := range g.GetValueInfo() {
		x.Infos[v.GetName()] = v
	}
	for _, v := range g.GetOutput() {
		x.Outputs[v.GetName()], x.Infos[v.GetName()] = v, v
		x.Uses[v.GetName()]++
	}
	for _, v := range g.GetInput() {
		x.Inputs[v.GetName()], x.Infos[v.GetName()] = v, v
	}
	for _, n := range g.GetNode() {
		for _, o := range n.GetOutput() {
			if o != "" {
				x.Producers[o] = n
			}
		}
	}
	for _, n := range g.GetNode() {
		reads(n, nil, func(name string) {
			x.Uses[name]++
			if r := x.Readers[name]; len(r) == 0 || r[len(r)-1] != n {
				x.Readers[name] = append(r, n)
			}
		}, 0)
	}
	return x
}

// reads calls visit for every name that n reads from the graph it is in, with
// those read in nested graphs and not defined there.
func reads(n *onnxpb.NodeProto, hidden []map[string]bool, visit func(string), depth int) {
	see := func(name string) {
		if name == "" {
			return
		}
		for _, h := range hidden {
			if h[name] {
				return
			}
		}
		visit(name)
	}
	for _, in := range n.GetInput() {
		see(in)
	}
	if depth > MaxDepth {
		return
	}
	for _, g := range Subgraphs(n) {
		own := definedIn(g)
		inner := append(slices.Clone(hidden), own)
		for _, sub := range g.GetNode() {
			reads(sub, inner, visit, depth+1)
		}
		for _, o := range g.GetOutput() {
			if !own[o.GetName()] {
				see(o.GetName())
			}
		}
	}
}

// definedIn returns the names that g itself defines.
func definedIn(g *onnxpb.GraphProto) map[string]bool {
	own := map[string]bool{}
	for _, v := range g.GetInput() {
		own[v.GetName()] = true
	}
	for _, t := range g.GetInitializer() {
		own[t.GetName()] = true
	}
	for _, t := range g.GetSparseInitializer() {
		own[t.GetValues().GetName()] = true
	}
	for _, n := range g.GetNode() {
		for _, o := range n.GetOutput() {
			own[o] = true
		}
	}
	return own
}

// Rename replaces every mention of the value from in g's nodes and their nested
// graphs by to, except where a nested graph defines from itself. Outputs of g
// are not touched.
func Rename(g *onnxpb.GraphProto, from, to string) {
	renameIn(g.GetNode(), from, to, 0)
}

func renameIn(nodes []*onnxpb.NodeProto, from, to string, depth int) {
	for _, n := range nodes {
		for i, in := range n.Input {
			if in == from {
				n.Input[i] = to
			}
		}
		for i, o := range n.Output {
			if o == from {
				n.Output[i] = to
			}
		}
		if depth > MaxDepth {
			continue
		}
		for _, g := range Subgraphs(n) {
			if !definedIn(g)[from] {
				renameIn(g.GetNode(), from, to, depth+1)
			}
		}
	}
}

// Names hands out names that no value and no node of a model has.
type Names struct{ used map[string]bool }

// NewNames collects the names of m.
func (m *Model) NewNames() *Names {
	used := map[string]bool{}
	collect := func(g *onnxpb.GraphProto) {
		for name := range definedIn(g) {
			used[name] = true
		}
		for _, v := range g.GetOutput() {
			used[v.GetName()] = true
		}
	}
	collect(m.Graph())
	m.Walk(func(_ Place, n *onnxpb.NodeProto) bool {
		used[n.GetName()] = true
		for _, o := range n.GetOutput() {
			used[o] = true
		}
		for _, g := range Subgraphs(n) {
			collect(g)
		}
		return true
	})
	return &Names{used}
}

// Fresh returns base if it is free, else base_1, base_2, ..., and takes it.
func (s *Names) Fresh(base string) string {
	if base == "" {
		base = "value"
	}
	name := base
	for i := 1; s.used[name]; i++ {
		name = fmt.Sprintf("%s_%d", base, i)
	}
	s.used[name] = true
	return name
}

// Attribute returns the attribute of that name, or nil.
func Attribute(n *onnxpb.NodeProto, name string) *onnxpb.AttributeProto {
	for _, a := range n.GetAttribute() {
		if a.GetName() == name {
			return a
		}
	}
	return nil
}

// IntAttribute returns an integer attribute, or def if the node lacks it.
func IntAttribute(n *onnxpb.NodeProto, name string, def int64) int64 {
	if a := Attribute(n, name); a != nil {
		return a.GetI()
	}
	return def
}

// FloatAttribute returns a float attribute, or def if the node lacks it.
func FloatAttribute(n *onnxpb.NodeProto, name string, def float32) float32 {
	if a := Attribute(n, name); a != nil {
		return a.GetF()
	}
	return def
}

// StringAttribute returns a string attribute, or def if the node lacks it.
func StringAttribute(n *onnxpb.NodeProto, name, def string) string {
	if a := Attribute(n, name); a != nil {
		return string(a.GetS())
	}
	return def
}

// IntsAttribute returns a list of integers, or nil if the node lacks it.
func IntsAttribute(n *onnxpb.NodeProto, name string) []int64 {
	return Attribute(n, name).GetInts()
}
