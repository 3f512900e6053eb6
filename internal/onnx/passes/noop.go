package passes

import (
	"slices"

	"github.com/trtship/trtship/internal/onnx/graph"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
)

// NoOps removes nodes that pass their input through: Identity, casts to the
// same type, reshapes, expansions and slices to the same shape, transposes that
// move nothing, Dropout in inference mode, multiplication by one and the like.
type NoOps struct{}

// Name returns "no-ops".
func (NoOps) Name() string { return "no-ops" }

// Apply implements Pass.
func (NoOps) Apply(m *graph.Module) (int, error) {
	changed := 0
	err := m.Infer(func(n *graph.Node) error {
		if n.Domain != "" || len(n.Out) == 0 || n.Out[0] == nil || len(n.In) == 0 {
			return nil
		}
		src := passedThrough(n)
		if src == nil {
			return nil
		}
		if n.Bypass(src) {
			changed++
		}
		// What must stay to name an output is written in the simplest way.
		if !n.Removed && n.Op != "Identity" && len(n.Out) == 1 {
			n.Become("Identity", nil, src)
			changed++
		}
		return nil
	})
	return changed, err
}

// passedThrough returns the input that n's first output equals, or nil.
func passedThrough(n *graph.Node) *graph.Value {
	in := n.Input(0)
	if in == nil {
		return nil
	}
	out := n.Out[0]
	same := graph.SameShape(in.Fact, out.Fact)
	yes := false
	switch n.Op {
	case "Identity":
		yes = true
	case "Cast", "CastLike":
		yes = in.Fact.Type != onnxpb.TensorProto_UNDEFINED && in.Fact.Type == out.Fact.Type
	case "Dropout":
		yes = n.DropoutOff()
	case "Reshape", "Flatten", "Expand", "Tile":
		yes = same
	case "Squeeze", "Unsqueeze":
		yes = same
	case "Transpose":
		yes = in.Fact.Ranked && inOrder(graph.Perm(n, len(in.Fact.Shape)), len(in.Fact.Shape))
	case "Slice":
		if s, ok := graph.SliceOf(n, len(in.Fact.Shape)); ok && same {
			yes = !slices.ContainsFunc(s.Steps, func(x int64) bool { return x != 1 })
		}
	case "Pad":
		yes = same && zeroPads(n)
	case "Concat", "Sum", "Max", "Min", "Mean":
		yes = len(n.In) == 1
	case "Mul", "Div", "Add", "Sub":
		return neutral(n)
	}
	if yes {
		return in
	}
	return nil
}

func inOrder(perm []int64, rank int) bool {
	if len(perm) != rank {
		return false
	}
	for i, p := range perm {
		if p != int64(i) {
			return false
		}
	}
	return true
}

func zeroPads(n *graph.Node) bool {
	pads := n.Ints("pads")
	if pads == nil && n.Input(1) != nil {
		var ok bool
		if pads, ok = n.Input(1).Fact.KnownElems(); !ok {
			return false
		}
	}
	return pads != nil && !slices.ContainsFunc(pads, func(x int64) bool { return x != 0 })
}

// neutral returns the operand of x*1, 1*x, x/1, x-0 or, for integers, x+0 and
// 0+x, if the other one does not widen its shape. A floating-point sum with zero
// turns -0 into 0 and stays.
func neutral(n *graph.Node) *graph.Value {
	if len(n.In) != 2 || n.In[0] == nil || n.In[1] == nil {
		return nil
	}
	if n.Op == "Add" && !integer(n.In[0].Fact.Type) {
		return nil
	}
	want := 0.0
	if n.Op == "Mul" || n.Op == "Div" {
		want = 1
	}
	for i, other := range []int{1, 0} {
		if other == 0 && (n.Op == "Div" || n.Op == "Sub") {
			break
		}
		v, x := n.In[other], n.In[i]
		if v.Constant() && graph.SameShape(x.Fact, n.Out[0].Fact) && allEqual(n.Graph.Module, v, want) {
			return x
		}
	}
	return nil
}

// allEqual reports whether every element of a small constant is x.
func allEqual(m *graph.Module, v *graph.Value, x float64) bool {
	n, ok := v.Fact.KnownShape()
	if !ok || product(n) == 0 || product(n) > 4096 {
		return false
	}
	a, err := read(m, v)
	if err != nil {
		return false
	}
	values, ok := a.floats()
	return ok && !slices.ContainsFunc(values, func(f float64) bool { return f != x })
}

func product(dims []int64) int64 {
	n := int64(1)
	for _, d := range dims {
		n *= d
	}
	return n
}

// Transposes merges a Transpose of a Transpose into one.
type Transposes struct{}

// Name returns "merge-transposes".
func (Transposes) Name() string { return "merge-transposes" }

// Apply implements Pass.
func (Transposes) Apply(m *graph.Module) (int, error) {
	changed := 0
	err := m.Infer(func(n *graph.Node) error {
		if !n.Standard("Transpose") || n.Input(0) == nil {
			return nil
		}
		inner := n.In[0].Def
		if inner == nil || !inner.Standard("Transpose") || inner.Input(0) == nil || !inner.In[0].Fact.Ranked {
			return nil
		}
		rank := len(inner.In[0].Fact.Shape)
		first, second := graph.Perm(inner, rank), graph.Perm(n, rank)
		if !permutes(first, rank) || !permutes(second, rank) {
			return nil
		}
		perm := make([]int64, rank)
		for i, p := range second {
			perm[i] = first[p]
		}
		n.Attrs = []*onnxpb.AttributeProto{graph.IntsAttr("perm", perm)}
		n.SetInput(0, inner.In[0])
		changed++
		return nil
	})
	return changed, err
}

// permutes reports whether perm names each of rank axes once.
func permutes(perm []int64, rank int) bool {
	seen := make([]bool, rank)
	for _, p := range perm {
		if p < 0 || p >= int64(rank) || seen[p] {
			return false
		}
		seen[p] = true
	}
	return len(perm) == rank
}

// Reshapes gives a Reshape a constant shape where at most one size has to be
// left open, and skips other views in front of a Reshape.
type Reshapes struct{}

// Name returns "reshapes".
func (Reshapes) Name() string { return "reshapes" }

// Apply implements Pass.
func (Reshapes) Apply(m *graph.Module) (int, error) {
	changed := 0
	err := m.Infer(func(n *graph.Node) error {
		if !n.Standard("Reshape") || n.Input(0) == nil || n.Input(1) == nil || n.Output(0) == nil {
			return nil
		}
		if skipView(n) {
			changed++
		}
		if n.In[1].Constant() {
			return nil
		}
		if shape := openShape(n); shape != nil {
			n.SetInput(1, n.Graph.AddInit(n.Out[0].Name+"_shape", int64Tensor(shape)))
			changed++
		}
		return nil
	})
	return changed, err
}

// skipView makes n read what a view in front of it reads. The shape must not
// copy sizes from the view.
func skipView(n *graph.Node) bool {
	inner := n.In[0].Def
	if inner == nil || !inner.Standard("Reshape", "Flatten", "Squeeze", "Unsqueeze") || inner.Input(0) == nil {
		return false
	}
	elems, ok := n.In[1].Fact.KnownElems()
	if !ok || (slices.Contains(elems, 0) && n.Int("allowzero", 0) == 0) {
		return false
	}
	n.SetInput(0, inner.In[0])
	return true
}

// openShape returns a constant for the shape of n: known sizes, 0 where a size
// is that of the input, and -1 at most once. Nil if that cannot be said.
func openShape(n *graph.Node) []int64 {
	x, s := n.In[0].Fact, n.In[1].Fact
	if len(s.Elems) == 0 || n.Int("allowzero", 0) != 0 {
		return nil
	}
	out := make([]int64, len(s.Elems))
	open := 0
	for i, d := range s.Elems {
		switch {
		case d.Known():
			out[i] = d.N
			if d.N == -1 {
				open++
			}
		case !n.Graph.Module.Positive(d):
			return nil
		case x.Ranked && i < len(x.Shape) && x.Shape[i] == d:
			out[i] = 0
		default:
			out[i] = -1
			open++
		}
	}
	if open > 1 {
		return nil
	}
	return out
}
