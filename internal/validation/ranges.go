package validation

import (
	"fmt"
	"slices"

	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/onnx/graph"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/report"
)

// IntegerRanges finds, for every integer input, the values that its tables take:
// the input is followed through nodes that only move values to the indices of a
// Gather, and the smallest table decides. Inputs that reach no table of known
// size are left out.
func IntegerRanges(m *onnx.Model) []report.IntegerRange {
	t := newTracer(m)
	var out []report.IntegerRange
	for _, in := range m.Inputs() {
		if in.DType != tensor.Int64 && in.DType != tensor.Int32 {
			continue
		}
		if rows, source := t.smallest(in.Name); rows > 0 {
			out = append(out, report.IntegerRange{Input: in.Name, Low: 0, High: rows - 1, Source: source})
		}
	}
	return out
}

// tracer knows who reads a value and which values are constant tables.
type tracer struct {
	readers map[string][]reader
	makers  map[string]*onnxpb.NodeProto
	initial map[string][]int64 // shapes of initializers and Constant nodes
}

type reader struct {
	node *onnxpb.NodeProto
	name string
	slot int
}

func newTracer(m *onnx.Model) *tracer {
	t := &tracer{readers: map[string][]reader{}, makers: map[string]*onnxpb.NodeProto{}, initial: map[string][]int64{}}
	for _, init := range m.Graph().GetInitializer() {
		t.initial[init.GetName()] = init.GetDims()
	}
	m.Walk(func(p onnx.Place, n *onnxpb.NodeProto) bool {
		if p.Function != nil {
			return true // names there are other names
		}
		for slot, in := range n.GetInput() {
			if in != "" {
				t.readers[in] = append(t.readers[in], reader{n, p.Name(n), slot})
			}
		}
		for _, o := range n.GetOutput() {
			if o != "" {
				t.makers[o] = n
			}
		}
		if n.GetOpType() == "Constant" && len(n.GetOutput()) > 0 {
			for _, a := range n.GetAttribute() {
				if a.GetName() == "value" {
					t.initial[n.GetOutput()[0]] = a.GetT().GetDims()
				}
			}
		}
		return true
	})
	return t
}

// moves are operators that hand values of their first input on unchanged.
var moves = []string{"Identity", "Cast", "Reshape", "Unsqueeze", "Squeeze", "Flatten", "Transpose", "Expand", "Slice", "Tile", "Split", "Gather", "Dropout"}

func (t *tracer) smallest(input string) (rows int64, source string) {
	seen := map[string]bool{input: true}
	for queue := []string{input}; len(queue) > 0; queue = queue[1:] {
		for _, r := range t.readers[queue[0]] {
			op := r.node.GetOpType()
			if n := t.table(r); n > 0 && (rows == 0 || n < rows) {
				rows, source = n, fmt.Sprintf("%s %s (table of %d rows)", op, r.name, n)
			}
			if (slices.Contains(moves, op) && r.slot == 0) || op == "Concat" {
				for _, o := range r.node.GetOutput() {
					if o != "" && !seen[o] {
						seen[o] = true
						queue = append(queue, o)
					}
				}
			}
		}
	}
	return rows, source
}

// table returns how many rows the table has that r indexes; 0 if it is no table.
func (t *tracer) table(r reader) int64 {
	op := r.node.GetOpType()
	if (op != "Gather" && op != "GatherElements") || r.slot != 1 {
		return 0
	}
	shape := t.shape(r.node.GetInput()[0], 4)
	axis := int64(0)
	for _, a := range r.node.GetAttribute() {
		if a.GetName() == "axis" {
			axis = a.GetI()
		}
	}
	if axis < 0 {
		axis += int64(len(shape))
	}
	if axis < 0 || axis >= int64(len(shape)) {
		return 0
	}
	return shape[axis]
}

// shape returns the shape of a constant, also behind a cast or a dequantization.
func (t *tracer) shape(name string, depth int) []int64 {
	if s, ok := t.initial[name]; ok {
		return s
	}
	maker := t.makers[name]
	if maker == nil || depth == 0 || len(maker.GetInput()) == 0 {
		return nil
	}
	switch maker.GetOpType() {
	case "Cast", "Identity", "DequantizeLinear", "QuantizeLinear":
		return t.shape(maker.GetInput()[0], depth-1)
	}
	return nil
}

// RandomNodes names the operators of a graph that draw random numbers, and the
// Dropouts that may.
func RandomNodes(m *onnx.Model) []string {
	var out []string
	m.Walk(func(p onnx.Place, n *onnxpb.NodeProto) bool {
		trains := n.GetOpType() == "Dropout" && onnx.Domain(n.GetDomain()) == "" && len(n.GetInput()) > 2 && n.GetInput()[2] != ""
		if graph.RandomOp(n.GetDomain(), n.GetOpType()) || trains {
			out = append(out, p.Name(n))
		}
		return true
	})
	return out
}
