package passes

import (
	"slices"

	"github.com/trtship/trtship/internal/onnx/graph"
)

// Branches puts the chosen branch in the place of an If whose condition is
// constant.
type Branches struct{}

// Name returns "constant-branches".
func (Branches) Name() string { return "constant-branches" }

// Apply implements Pass.
func (Branches) Apply(m *graph.Module) (int, error) {
	changed := 0
	// Inner graphs first: their nodes move on with them.
	for _, g := range slices.Backward(m.Graphs()) {
		var nodes []*graph.Node // nil while nothing changed
		for i, n := range g.Nodes {
			inlined, ok := inlineBranch(n)
			if ok && nodes == nil {
				nodes = append(make([]*graph.Node, 0, len(g.Nodes)), g.Nodes[:i]...)
			}
			switch {
			case ok:
				nodes = append(nodes, inlined...)
				changed++
			case nodes != nil:
				nodes = append(nodes, n)
			}
		}
		if nodes != nil {
			g.Nodes = nodes
		}
	}
	return changed, nil
}

// inlineBranch removes n if it is an If with a constant condition and returns
// what comes into its place.
func inlineBranch(n *graph.Node) ([]*graph.Node, bool) {
	if n.Removed || !n.Standard("If") || !n.Input(0).Constant() || len(n.Subs) != 2 {
		return nil, false
	}
	cond, err := n.Graph.Module.Integers(n.In[0])
	if err != nil || len(cond) != 1 {
		return nil, false
	}
	if cond[0] != 0 {
		return n.Inline("then_branch")
	}
	return n.Inline("else_branch")
}
