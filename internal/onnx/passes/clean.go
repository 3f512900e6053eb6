package passes

import (
	"maps"
	"slices"

	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/onnx/graph"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
)

// Dead removes nodes whose outputs nobody reads and constants that nobody
// reads. Graphs nested in a node are looked at before the nodes in front of it,
// so that one application removes whole chains.
type Dead struct{}

// Name returns "dead-nodes".
func (Dead) Name() string { return "dead-nodes" }

// Apply implements Pass.
func (Dead) Apply(m *graph.Module) (int, error) {
	changed := deadNodes(m.Main)
	for _, g := range m.Graphs() {
		for _, v := range g.Inits {
			if !v.Input && !v.Used() {
				v.DropInit()
				changed++
			}
		}
	}
	return changed, nil
}

func deadNodes(g *graph.Graph) int {
	changed := 0
	for i := len(g.Nodes) - 1; i >= 0; i-- {
		n := g.Nodes[i]
		if n.Removed {
			continue
		}
		used := false
		for _, o := range n.Out {
			used = used || o != nil && o.Used()
		}
		if !used {
			n.Remove()
			changed++
			continue
		}
		for _, s := range n.Subs {
			changed += deadNodes(s.Graph)
		}
	}
	return changed
}

// Cleanup removes functions that nothing calls and operator sets that nothing
// uses.
type Cleanup struct{}

// Name returns "unused-functions-and-opsets".
func (Cleanup) Name() string { return "unused-functions-and-opsets" }

// Apply implements Pass.
func (Cleanup) Apply(m *graph.Module) (int, error) {
	called := map[onnx.FunctionKey]bool{}
	domains := map[string]bool{"": true}
	var todo []onnx.FunctionKey
	call := func(k onnx.FunctionKey) {
		domains[k.Domain] = true
		if _, ok := m.Functions[k]; ok && !called[k] {
			called[k] = true
			todo = append(todo, k)
		}
	}
	for _, g := range m.Graphs() {
		for _, n := range g.Nodes {
			call(onnx.FunctionKey{Domain: n.Domain, Name: n.Op, Overload: n.Overload})
		}
	}
	for len(todo) > 0 {
		k := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, o := range m.Functions[k].GetOpsetImport() {
			domains[onnx.Domain(o.GetDomain())] = true
		}
		eachNode(m.Functions[k].GetNode(), func(n *onnxpb.NodeProto) { call(onnx.CallKey(n)) })
	}
	changed := 0
	for k := range m.Source.Functions() {
		if _, there := m.Functions[k]; there && !called[k] {
			m.DropFunction(k)
			changed++
		}
	}
	for _, d := range slices.Sorted(maps.Keys(m.Opsets)) {
		if !domains[d] && len(m.Opsets) > 1 { // a model without any is none
			m.DropImport(d)
			changed++
		}
	}
	return changed, nil
}

func eachNode(nodes []*onnxpb.NodeProto, visit func(*onnxpb.NodeProto)) {
	for _, n := range nodes {
		visit(n)
		for _, g := range onnx.Subgraphs(n) {
			eachNode(g.GetNode(), visit)
		}
	}
}

// UniqueNames renames nodes whose name another node has: ONNX Runtime refuses
// such a model. Nodes without a name stay without.
type UniqueNames struct{}

// Name returns "unique-node-names".
func (UniqueNames) Name() string { return "unique-node-names" }

// Apply implements Pass.
func (UniqueNames) Apply(m *graph.Module) (int, error) {
	changed := 0
	seen := map[string]bool{}
	for _, g := range m.Graphs() {
		for _, n := range g.Nodes {
			if n.Name == "" || n.Removed {
				continue
			}
			if seen[n.Name] {
				n.Name = m.Fresh(n.Name)
				changed++
			}
			seen[n.Name] = true
		}
	}
	return changed, nil
}

// Constants turns Constant nodes into initializers, except where one is an
// output of its graph or sparse.
type Constants struct{}

// Name returns "constants-to-initializers".
func (Constants) Name() string { return "constants-to-initializers" }

// Apply implements Pass.
func (Constants) Apply(m *graph.Module) (int, error) {
	changed := 0
	for _, g := range m.Graphs() {
		for _, n := range g.Nodes {
			if n.Removed || !n.Standard("Constant") || len(n.Out) != 1 || n.Out[0] == nil || n.Out[0].IsOutput() || !n.Out[0].Used() {
				continue
			}
			if t := constantTensor(n); t != nil {
				n.Fold(n.Out[0], t)
				changed++
			}
		}
	}
	return changed, nil
}
