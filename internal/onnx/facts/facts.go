// Package facts finds what a reader of an ONNX graph should know before it is
// shipped: operators in training mode, random operators, constants outside the
// range of a narrower type, inputs with a default, and the integers that an
// input may hold. Main graph, nested graphs and functions are looked at.
package facts

import (
	"fmt"
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
// BatchNormalization that uses the statistics of the batch.
func Training(m *onnx.Model) []string {
	var nodes []string
	opset := m.Opset("")
	constants := constantBools(m)
	m.Walk(func(p onnx.Place, n *onnxpb.NodeProto) bool {
		if onnx.Domain(n.GetDomain()) != "" {
			return true
		}
		trains := false
		switch n.GetOpType() {
		case "Dropout":
			trains = dropoutTrains(n, opset, constants)
		case "BatchNormalization":
			trains = onnx.IntAttribute(n, "training_mode", 0) != 0 || opset < 7 && onnx.IntAttribute(n, "is_test", 0) == 0
		}
		if trains {
			nodes = append(nodes, p.Name(n))
		}
		return true
	})
	return nodes
}

// dropoutTrains: the mode is an attribute before operator set 7, gone until 12,
// and an input after that. An input that is no constant may be true.
func dropoutTrains(n *onnxpb.NodeProto, opset int64, constants map[string]bool) bool {
	switch {
	case opset < 7:
		return onnx.IntAttribute(n, "is_test", 0) == 0
	case opset < 12 || len(n.GetInput()) < 3 || n.GetInput()[2] == "":
		return false
	}
	value, known := constants[n.GetInput()[2]]
	return !known || value
}

// constantBools returns the boolean scalars of the model by name.
func constantBools(m *onnx.Model) map[string]bool {
	found := map[string]bool{}
	eachConstant(m, func(name string, t *onnxpb.TensorProto) {
		if t.GetDataType() != int32(onnxpb.TensorProto_BOOL) {
			return
		}
		if d, err := m.TensorData(t); err == nil && len(d.Data) == 1 {
			found[name] = d.Data[0] != 0
		}
	})
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
// name under which they are used.
func eachConstant(m *onnx.Model, visit func(name string, t *onnxpb.TensorProto)) {
	initializers := func(g *onnxpb.GraphProto) {
		for _, t := range g.GetInitializer() {
			visit(t.GetName(), t)
		}
	}
	initializers(m.Graph())
	m.Walk(func(_ onnx.Place, n *onnxpb.NodeProto) bool {
		if n.GetOpType() == "Constant" && len(n.GetOutput()) == 1 {
			if a := onnx.Attribute(n, "value"); a != nil && a.T != nil {
				visit(n.GetOutput()[0], a.T)
			}
		}
		for _, g := range onnx.Subgraphs(n) {
			initializers(g)
		}
		return true
	})
}

// passThrough are operators that hand on the elements of their first input.
var passThrough = []string{"Identity", "Cast", "Reshape", "Unsqueeze", "Squeeze", "Flatten", "Transpose", "Expand"}

// IntegerRanges returns, for every integer input that indexes constant tables
// through Gather, the indices that all of them have. Inputs that index nothing
// are left out.
func IntegerRanges(m *onnx.Model) []report.IntegerRange {
	var ranges []report.IntegerRange
	main := graph.Load(m).Main
	for _, v := range main.Inputs {
		var found *report.IntegerRange
		follow(v, map[*graph.Value]bool{}, func(n *graph.Node, rows int64) {
			if found == nil || rows-1 < found.High {
				found = &report.IntegerRange{Input: v.Name, High: rows - 1, Source: fmt.Sprintf("Gather %s (table of %d rows)", n, rows)}
			}
		})
		if found != nil {
			ranges = append(ranges, *found)
		}
	}
	return ranges
}

// follow visits every Gather of a constant table whose indices are v's elements.
func follow(v *graph.Value, seen map[*graph.Value]bool, gathers func(n *graph.Node, rows int64)) {
	if seen[v] {
		return
	}
	seen[v] = true
	v.Users(func(n *graph.Node, input int) bool {
		switch {
		case n.Standard("Gather") && input == 1:
			if table := n.Input(0); table.Constant() {
				dims := table.Init.GetDims()
				axis := n.Int("axis", 0)
				if axis < 0 {
					axis += int64(len(dims))
				}
				if axis >= 0 && axis < int64(len(dims)) {
					gathers(n, dims[axis])
				}
			}
		case n.Standard(passThrough...) && input == 0:
			follow(n.Output(0), seen, gathers)
		case n.Standard("Concat"):
			follow(n.Output(0), seen, gathers)
		}
		return true
	})
}

// Parameters counts the elements and bytes of initializers that are weights
// (floating point, or of one byte as in quantized models), and elements by type.
func Parameters(m *onnx.Model) (elements, bytes int64, types map[string]int64) {
	types = map[string]int64{}
	seen := map[*onnxpb.TensorProto]bool{}
	eachConstant(m, func(_ string, t *onnxpb.TensorProto) {
		d, ok := onnx.DType(t.GetDataType())
		if seen[t] || !ok || !d.Floating() && d.Size() != 1 {
			return
		}
		seen[t] = true
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
