package passes

import (
	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/onnx/graph"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
)

// Fold computes nodes whose inputs are all constant, and shape arithmetic whose
// result is known although the shapes themselves are not, such as the fixed
// channel count out of a shape with a dynamic batch.
type Fold struct {
	Limit int64 // bytes of the largest constant to make
}

// Name returns "fold-constants".
func (Fold) Name() string { return "fold-constants" }

// Apply implements Pass.
func (f Fold) Apply(m *graph.Module) (int, error) {
	changed := 0
	err := m.Infer(func(n *graph.Node) error {
		done, err := f.node(m, n)
		if done {
			changed++
		}
		return err
	})
	return changed, err
}

func (f Fold) node(m *graph.Module, n *graph.Node) (bool, error) {
	if n.Domain != "" || len(n.Subs) > 0 || n.Standard("Constant", "Identity") || !n.Pure() {
		return false, nil
	}
	if len(n.Out) == 1 && n.Out[0] != nil {
		if t := knownContents(n.Out[0].Fact); t != nil {
			f.replace(n, n.Out[0], t)
			return true, nil
		}
	}
	operation := operations[n.Op]
	if operation == nil || len(n.Out) == 0 || n.Out[0] == nil || !enoughInputs(n) {
		return false, nil
	}
	in, ok, err := f.inputs(m, n)
	if !ok || err != nil {
		return false, err
	}
	out, ok := operation(&call{node: n, in: in, opset: m.Opset(), limit: f.Limit, model: m.Source})
	if !ok || len(out) < len(n.Out) {
		return false, nil
	}
	for _, a := range out {
		if int64(len(a.data)) > f.Limit {
			return false, nil
		}
		m.Made += int64(len(a.data))
	}
	for i, v := range append([]*graph.Value(nil), n.Out...) {
		if v != nil {
			f.replace(n, v, out[i].tensor())
		}
	}
	return true, nil
}

// leastInputs are the inputs that an operation looks at without asking, where
// that is more than the first.
var leastInputs = map[string]int{
	"Gather": 2, "GatherElements": 2, "GatherND": 2, "Expand": 2, "Tile": 2, "CumSum": 2, "Range": 3, "Where": 3, "ScatterND": 3,
}

// enoughInputs reports whether n, which a broken file may hold in any form, has
// the inputs that its operator needs.
func enoughInputs(n *graph.Node) bool {
	for i := range max(1, leastInputs[n.Op]) {
		if n.Input(i) == nil {
			return false
		}
	}
	return true
}

// replace makes v constant. What is an output of its graph keeps an Identity.
func (f Fold) replace(n *graph.Node, v *graph.Value, t *onnxpb.TensorProto) {
	if !v.IsOutput() {
		n.Fold(v, t)
		return
	}
	if len(n.Out) == 1 {
		n.Become("Identity", nil, n.Graph.AddInit(v.Name+"_value", t))
	}
}

// knownContents returns the constant that inference knows v to be.
func knownContents(f graph.Fact) *onnxpb.TensorProto {
	elems, ok := f.KnownElems()
	shape, ok2 := f.KnownShape()
	if !ok || !ok2 || product(shape) != int64(len(elems)) {
		return nil
	}
	return fromInts(f.Type, shape, elems).tensor()
}

// inputs decodes n's inputs if all are constant and small enough.
func (f Fold) inputs(m *graph.Module, n *graph.Node) ([]array, bool, error) {
	if m.Made > maxMade {
		return nil, false, nil
	}
	total := int64(0)
	for _, v := range n.In {
		if v == nil {
			continue
		}
		if !v.Constant() {
			return nil, false, nil
		}
		total += onnx.TensorBytes(v.Init)
		if total > 4*f.Limit || widthOf(dataType(v.Init.GetDataType())) == 0 {
			return nil, false, nil
		}
	}
	// The size of the result is often known before anything is read.
	for _, o := range n.Out {
		if o == nil {
			continue
		}
		if o.IsOutput() && len(n.Out) > 1 {
			return nil, false, nil
		}
		if shape, ok := o.Fact.KnownShape(); ok && product(shape)*max(1, widthOf(o.Fact.Type)) > f.Limit {
			return nil, false, nil
		}
	}
	in := make([]array, len(n.In))
	for i, v := range n.In {
		if v == nil {
			continue
		}
		var err error
		if in[i], err = read(m, v); err != nil {
			return nil, false, err
		}
	}
	return in, true, nil
}

// constantTensor returns the tensor of a Constant node; nil if it is sparse.
func constantTensor(n *graph.Node) *onnxpb.TensorProto {
	if a := n.Attr("value"); a != nil {
		return a.GetT()
	}
	if a := n.Attr("value_int"); a != nil {
		return fromInts(onnxpb.TensorProto_INT64, []int64{}, []int64{a.GetI()}).tensor()
	}
	if a := n.Attr("value_ints"); a != nil {
		return int64Tensor(a.GetInts())
	}
	float := func(shape []int64, values ...float32) *onnxpb.TensorProto {
		wide := make([]float64, len(values))
		for i, x := range values {
			wide[i] = float64(x)
		}
		return fromFloats(onnxpb.TensorProto_FLOAT, shape, wide).tensor()
	}
	if a := n.Attr("value_float"); a != nil {
		return float([]int64{}, a.GetF())
	}
	if a := n.Attr("value_floats"); a != nil {
		return float([]int64{int64(len(a.GetFloats()))}, a.GetFloats()...)
	}
	text := int32(onnxpb.TensorProto_STRING)
	if a := n.Attr("value_string"); a != nil {
		return &onnxpb.TensorProto{DataType: &text, StringData: [][]byte{a.GetS()}}
	}
	if a := n.Attr("value_strings"); a != nil {
		return &onnxpb.TensorProto{DataType: &text, Dims: []int64{int64(len(a.GetStrings()))}, StringData: a.GetStrings()}
	}
	return nil
}
