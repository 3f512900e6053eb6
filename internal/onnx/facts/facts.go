// Package facts finds what a reader of an ONNX graph should know before it is
// shipped: operators in training mode, random operators, constants outside the
// range of a narrower type, inputs with a default, and the integers that an
// input may hold. Main graph, nested graphs and functions are looked at.
package facts

import (
	"slices"

	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/onnx/graph"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
	"github.com/trtship/trtship/report"
)

// Findings returns everything that this package knows to look for.
func Findings(m *onnx.Model) ([]report.Finding, error) {
	findings := []report.Finding{}
	if nodes := Training(m); len(nodes) > 0 {
		findings = append(findings, report.Finding{
			Kind: "training-mode", Nodes: nodes, Severe: true,
			Text: "runs in training mode: answers change from run to run or with the other samples of a batch",
		})
	}
	if nodes := Random(m); len(nodes) > 0 {
		findings = append(findings, report.Finding{Kind: "random-operator", Nodes: nodes, Text: "draws random numbers: no two runs agree"})
	}
	ranges, err := constants(m)
	if err != nil {
		return nil, err
	}
	findings = append(findings, ranges...)
	wide, err := wideIntegers(m)
	if err != nil {
		return nil, err
	}
	findings = append(findings, wide...)
	var overridable []string
	for _, v := range m.Overridable() {
		overridable = append(overridable, v.Name)
	}
	if len(overridable) > 0 {
		findings = append(findings, report.Finding{
			Kind: "overridable-initializer", Nodes: overridable, Text: "has a default and can be overridden by a caller; it is not folded",
		})
	}
	return findings, nil
}

// Training returns the nodes that run in training mode: Dropout that drops, and
// BatchNormalization that uses the statistics of the batch. A mode that is no
// constant counts, since a caller may turn it on.
func Training(m *onnx.Model) []string {
	var nodes []string
	scope := modes{model: m, functions: map[*onnxpb.FunctionProto]int64{}}
	for _, f := range m.Proto.GetFunctions() {
		sets, _ := onnx.Opsets(f.GetOpsetImport())
		scope.functions[f] = sets[""]
	}
	scope.constants = constantBools(m)
	m.Walk(func(p onnx.Place, n *onnxpb.NodeProto) bool {
		if onnx.Domain(n.GetDomain()) == "" && scope.trains(p, n) {
			nodes = append(nodes, p.Name(n))
		}
		return true
	})
	return nodes
}

// modes knows what decides about training.
type modes struct {
	model     *onnx.Model
	functions map[*onnxpb.FunctionProto]int64 // operator set of each body
	constants map[place]bool
}

// place tells values of one name in the main graph and in functions apart.
type place struct {
	function *onnxpb.FunctionProto
	name     string
}

func (s modes) trains(p onnx.Place, n *onnxpb.NodeProto) bool {
	opset := s.model.Opset("")
	if p.Function != nil {
		opset = s.functions[p.Function]
	}
	switch n.GetOpType() {
	case "Dropout":
		// The mode is an attribute before operator set 7, gone until 12, an input after.
		switch {
		case opset < 7:
			return onnx.IntAttribute(n, "is_test", 0) == 0
		case opset < 12 || len(n.GetInput()) < 3 || n.GetInput()[2] == "":
			return false
		}
		on, known := s.constants[place{p.Function, n.GetInput()[2]}]
		return !known || on
	case "BatchNormalization":
		switch {
		case opset < 7:
			return onnx.IntAttribute(n, "is_test", 0) == 0
		case opset < 14: // more than one output means training
			return slices.ContainsFunc(n.GetOutput()[min(1, len(n.GetOutput())):], func(o string) bool { return o != "" })
		}
		return onnx.IntAttribute(n, "training_mode", 0) != 0
	}
	return false
}

// constantBools returns the boolean scalars of the model.
func constantBools(m *onnx.Model) map[place]bool {
	found := map[place]bool{}
	eachConstant(m, func(f *onnxpb.FunctionProto, name string, t *onnxpb.TensorProto) {
		if t.GetDataType() != int32(onnxpb.TensorProto_BOOL) {
			return
		}
		if d, err := m.TensorData(t); err == nil && len(d.Data) == 1 {
			found[place{f, name}] = d.Data[0] != 0
		}
	})
	for _, v := range m.Overridable() { // a default is no constant
		delete(found, place{nil, v.Name})
	}
	return found
}

// Random returns the nodes that draw random numbers.
func Random(m *onnx.Model) []string {
	var nodes []string
	m.Walk(func(p onnx.Place, n *onnxpb.NodeProto) bool {
		if graph.RandomOp(n.GetDomain(), n.GetOpType()) {
			nodes = append(nodes, p.Name(n))
		}
		return true
	})
	return nodes
}

// eachConstant visits initializers and the tensors of Constant nodes, with the
// function they are in and the name under which they are used.
func eachConstant(m *onnx.Model, visit func(f *onnxpb.FunctionProto, name string, t *onnxpb.TensorProto)) {
	initializers := func(f *onnxpb.FunctionProto, g *onnxpb.GraphProto) {
		for _, t := range g.GetInitializer() {
			visit(f, t.GetName(), t)
		}
	}
	initializers(nil, m.Graph())
	m.Walk(func(p onnx.Place, n *onnxpb.NodeProto) bool {
		if n.GetOpType() == "Constant" && len(n.GetOutput()) == 1 {
			if a := onnx.Attribute(n, "value"); a != nil && a.T != nil {
				visit(p.Function, n.GetOutput()[0], a.T)
			}
		}
		for _, g := range onnx.Subgraphs(n) {
			initializers(p.Function, g)
		}
		return true
	})
}

// Parameters counts the elements and bytes of initializers that are weights
// (floating point, or of one byte as in quantized models), and elements by type.
func Parameters(m *onnx.Model) (elements, bytes int64, types map[string]int64) {
	types = map[string]int64{}
	eachConstant(m, func(_ *onnxpb.FunctionProto, _ string, t *onnxpb.TensorProto) {
		d, ok := onnx.DType(t.GetDataType())
		if !ok || !d.Floating() && d.Size() != 1 {
			return
		}
		n := int64(1)
		for _, x := range t.GetDims() {
			n *= x
		}
		elements += n
		bytes += onnx.TensorBytes(t)
		types[string(d)] += n
	})
	return elements, bytes, types
}

// Operators counts operators by name.
func Operators(m *onnx.Model) map[string]int {
	counts := map[string]int{}
	for _, o := range m.Operators() {
		counts[o.Name()] += o.Count
	}
	return counts
}

func sorted(names []string) []string {
	slices.Sort(names)
	return slices.Compact(names)
}
