package facts

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/onnx/graph"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
	"github.com/trtship/trtship/report"
	"github.com/x448/float16"
)

// The range of fp16: what is larger becomes infinite, what is smaller than
// about the smallest subnormal becomes 0 or loses all its digits.
const (
	maxFP16 = 65504
	minFP16 = 6e-8
)

// extent is what a constant holds outside the range of fp16.
type extent struct {
	largest  float64 // the finite element of largest magnitude, with its sign
	smallest float64 // the element of smallest magnitude below minFP16, with its sign
	tiny     int64   // elements below minFP16, without zeros
	beyond   int64   // finite elements above maxFP16
	infinite int64   // infinities and NaN that are there already
	all      int64
}

// constants returns the findings about floating-point constants: values outside
// fp16, with the constant's name and the worst value. Large tensors are read in
// pieces.
func constants(m *onnx.Model) ([]report.Finding, error) {
	var large, small, broken []string
	var failed error
	eachConstant(m, func(_ *onnxpb.FunctionProto, name string, t *onnxpb.TensorProto) {
		e, err := scan(m, t)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("read tensor %s: %w", name, err))
			return
		}
		if e.beyond > 0 {
			large = append(large, fmt.Sprintf("%s (%d of %d values, largest %.6g)", name, e.beyond, e.all, e.largest))
		}
		if e.tiny > 0 {
			small = append(small, fmt.Sprintf("%s (%d of %d values, smallest %.6g)", name, e.tiny, e.all, e.smallest))
		}
		if e.infinite > 0 {
			broken = append(broken, fmt.Sprintf("%s (%d of %d values)", name, e.infinite, e.all))
		}
	})
	var out []report.Finding
	add := func(kind, text string, nodes []string) {
		if len(nodes) > 0 {
			out = append(out, report.Finding{Kind: kind, Nodes: sorted(nodes), Text: text})
		}
	}
	add("fp16-range", "holds values beyond 65504, which become infinite in fp16", large)
	add("fp16-range", "holds values below 6e-8, which vanish in fp16", small)
	add("non-finite-constant", "holds infinities or NaN", broken)
	return out, failed
}

// scan reads a floating-point constant; others have no extent.
func scan(m *onnx.Model, t *onnxpb.TensorProto) (extent, error) {
	var e extent
	width := 0
	var value func(b []byte) float64
	le := binary.LittleEndian
	switch onnxpb.TensorProto_DataType(t.GetDataType()) {
	case onnxpb.TensorProto_FLOAT:
		width, value = 4, func(b []byte) float64 { return float64(math.Float32frombits(le.Uint32(b))) }
	case onnxpb.TensorProto_DOUBLE:
		width, value = 8, func(b []byte) float64 { return math.Float64frombits(le.Uint64(b)) }
	case onnxpb.TensorProto_FLOAT16:
		width, value = 2, func(b []byte) float64 { return float64(float16.Frombits(le.Uint16(b)).Float32()) }
	case onnxpb.TensorProto_BFLOAT16:
		width, value = 2, func(b []byte) float64 { return float64(math.Float32frombits(uint32(le.Uint16(b)) << 16)) }
	default:
		return e, nil
	}
	r, err := m.TensorReader(t)
	if err != nil {
		return e, err
	}
	buf := make([]byte, min(1<<20, r.Size()))
	for off := int64(0); off < r.Size(); {
		n := min(int64(len(buf)), r.Size()-off)
		if _, err := io.ReadFull(r, buf[:n]); err != nil {
			return e, err
		}
		for i := 0; i+width <= int(n); i += width {
			e.see(value(buf[i:]))
		}
		off += n
	}
	return e, nil
}

func (e *extent) see(v float64) {
	e.all++
	a := math.Abs(v)
	if a >= minFP16 && a <= maxFP16 || a == 0 {
		return
	}
	switch {
	case math.IsNaN(v) || math.IsInf(v, 0):
		e.infinite++
	case a < minFP16:
		if e.tiny++; e.tiny == 1 || a < math.Abs(e.smallest) {
			e.smallest = v
		}
	default:
		if e.beyond++; a > math.Abs(e.largest) {
			e.largest = v
		}
	}
}

// wideIntegers returns the findings about int64 constants that do not fit
// int32, which TensorRT before 10 clamps: harmless where they only say "to the
// end" of a Slice, wrong where they are calculated with.
func wideIntegers(m *onnx.Model) ([]report.Finding, error) {
	w := &wide{nodes: map[string][]string{}}
	mod := graph.Load(m)
	for _, g := range mod.Graphs() {
		for _, v := range g.Inits {
			if err := w.constant(m, v, v.Init); err != nil {
				return nil, err
			}
		}
		for _, n := range g.Nodes {
			if a := n.Attr("value"); n.Standard("Constant") && a != nil && n.Output(0) != nil {
				if err := w.constant(m, n.Out[0], a.GetT()); err != nil {
					return nil, err
				}
			}
		}
	}
	var out []report.Finding
	for _, text := range w.order {
		out = append(out, report.Finding{Kind: "int64-range", Nodes: sorted(w.nodes[text]), Text: text})
	}
	return out, nil
}

// wide gathers nodes by what is said about them.
type wide struct {
	nodes map[string][]string
	order []string
}

const sentinelText = "Slice end sentinel: fine"

func (w *wide) say(text string, n *graph.Node) {
	if w.nodes[text] == nil {
		w.order = append(w.order, text)
	}
	w.nodes[text] = append(w.nodes[text], n.String())
}

func (w *wide) constant(m *onnx.Model, v *graph.Value, t *onnxpb.TensorProto) error {
	if t.GetDataType() != int32(onnxpb.TensorProto_INT64) {
		return nil
	}
	worst, found, err := widest(m, t)
	if err != nil || !found {
		return err
	}
	seen := map[*graph.Value]bool{v: true}
	todo := []*graph.Value{v}
	for len(todo) > 0 {
		v := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		v.Users(func(n *graph.Node, input int) bool {
			switch {
			case n.Standard("Slice") && (input == 1 || input == 2):
				w.say(sentinelText, n)
			case n.Standard("Identity", "Unsqueeze", "Squeeze", "Reshape", "Concat", "Expand") && (input == 0 || n.Op == "Concat"):
				if o := n.Output(0); o != nil && !seen[o] {
					seen[o] = true
					todo = append(todo, o)
				}
			default:
				w.say(fmt.Sprintf("value %d used in %s: TensorRT < 10 would clamp it to int32", worst, n.Op), n)
			}
			return true
		})
	}
	return nil
}

// widest returns the integer that lies farthest outside int32.
func widest(m *onnx.Model, t *onnxpb.TensorProto) (worst int64, found bool, err error) {
	r, err := m.TensorReader(t)
	if err != nil {
		return 0, false, err
	}
	buf := make([]byte, min(1<<20, r.Size()))
	excess := func(v int64) uint64 {
		if v > math.MaxInt32 {
			return uint64(v - math.MaxInt32)
		}
		return uint64(math.MinInt32 - v)
	}
	for off := int64(0); off < r.Size(); off += int64(len(buf)) {
		n := min(int64(len(buf)), r.Size()-off)
		if _, err := io.ReadFull(r, buf[:n]); err != nil {
			return 0, false, err
		}
		for i := 0; i+8 <= int(n); i += 8 {
			v := int64(binary.LittleEndian.Uint64(buf[i:]))
			if v != int64(int32(v)) && (!found || excess(v) > excess(worst)) {
				worst, found = v, true
			}
		}
	}
	return worst, found, nil
}
