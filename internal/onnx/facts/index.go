package facts

import (
	"fmt"

	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/onnx/graph"
	"github.com/trtship/trtship/report"
)

// passThrough are operators that hand on the elements of their first input.
var passThrough = []string{"Identity", "Cast", "Reshape", "Unsqueeze", "Squeeze", "Flatten", "Transpose", "Expand", "Tile", "Slice", "Split", "Dropout"}

// IntegerRanges returns, for every integer input whose elements are used as
// indices by Gather or GatherElements, the indices that all of those tables
// have. Shifts by a constant on the way are followed. Inputs that index nothing
// are left out.
func IntegerRanges(m *onnx.Model) []report.IntegerRange {
	var ranges []report.IntegerRange
	mod := graph.Load(m)
	if err := mod.Infer(nil); err != nil {
		return nil
	}
	for _, v := range mod.Main.Inputs {
		var found *report.IntegerRange
		t := tracer{seen: map[*graph.Value]int64{}, visit: func(n *graph.Node, rows, shift int64) {
			low, high := max(0, -shift), rows-1-shift
			if found == nil {
				found = &report.IntegerRange{Input: v.Name, Low: low, High: high + 1}
			}
			found.Low = max(found.Low, low)
			if high < found.High {
				found.High, found.Source = high, fmt.Sprintf("%s %s (table of %d rows)", n.Op, n, rows)
			}
		}}
		t.follow(v, 0)
		if found != nil && found.Low <= found.High {
			ranges = append(ranges, *found)
		}
	}
	return ranges
}

// tracer follows the elements of an input to where they are indices.
type tracer struct {
	seen  map[*graph.Value]int64 // shift with which a value was reached
	visit func(n *graph.Node, rows, shift int64)
}

// follow visits everything that indexes with v's elements, which are those of
// the input plus shift.
func (t tracer) follow(v *graph.Value, shift int64) {
	todo := []*graph.Value{v}
	t.seen[v] = shift
	next := func(o *graph.Value, shift int64) {
		if _, ok := t.seen[o]; o != nil && !ok {
			t.seen[o] = shift
			todo = append(todo, o)
		}
	}
	for len(todo) > 0 {
		v := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		shift := t.seen[v]
		v.Users(func(n *graph.Node, input int) bool {
			switch {
			case n.Standard("Gather", "GatherElements") && input == 1:
				if rows, ok := tableRows(n); ok {
					t.visit(n, rows, shift)
				}
			case n.Standard("Gather") && input == 0, n.Standard(passThrough...) && input == 0, n.Standard("Concat"):
				for _, o := range n.Out {
					next(o, shift)
				}
			case n.Standard("Add", "Sub") && len(n.In) == 2 && n.Input(1-input) != nil && n.Output(0) != nil:
				other, ok := n.Input(1 - input).Fact.KnownElems()
				if ok && len(other) == 1 && n.Op == "Add" {
					next(n.Out[0], shift+other[0])
				} else if ok && len(other) == 1 && input == 0 {
					next(n.Out[0], shift-other[0])
				}
			}
			return true
		})
	}
}

// tableRows returns how many entries the indices of n choose from.
func tableRows(n *graph.Node) (int64, bool) {
	table := n.Input(0)
	if table == nil || !table.Fact.Ranked {
		return 0, false
	}
	axis := n.Int("axis", 0)
	if axis < 0 {
		axis += int64(len(table.Fact.Shape))
	}
	if axis < 0 || axis >= int64(len(table.Fact.Shape)) || !table.Fact.Shape[axis].Known() {
		return 0, false
	}
	return table.Fact.Shape[axis].N, true
}
