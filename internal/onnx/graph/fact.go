package graph

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
)

// Dim is a size: known, or a symbol. Equal symbols are equal sizes at run time.
type Dim struct {
	N int64 // the size if S is 0
	S int32 // symbol; 0 if the size is known
}

// Known reports whether the size is a number.
func (d Dim) Known() bool { return d.S == 0 }

// Size makes a known dimension.
func Size(n int64) Dim { return Dim{N: n} }

// Fact is what is known about a value without running the model.
type Fact struct {
	Type   onnxpb.TensorProto_DataType // UNDEFINED if unknown
	Ranked bool                        // Shape holds the dimensions
	Shape  []Dim
	// Elems are the elements of an integer or boolean tensor of rank 0 or 1 with
	// few elements, where something is known about them.
	Elems []Dim
}

// maxElems bounds the tensors whose elements are followed.
const maxElems = 64

// KnownShape returns the sizes if all are known.
func (f Fact) KnownShape() ([]int64, bool) {
	if !f.Ranked {
		return nil, false
	}
	return known(f.Shape)
}

// KnownElems returns the elements if all are known.
func (f Fact) KnownElems() ([]int64, bool) {
	if f.Elems == nil {
		return nil, false
	}
	return known(f.Elems)
}

func known(dims []Dim) ([]int64, bool) {
	out := make([]int64, len(dims))
	for i, d := range dims {
		if !d.Known() {
			return nil, false
		}
		out[i] = d.N
	}
	return out, true
}

// SameShape reports whether two facts are certain to have the same shape.
func SameShape(a, b Fact) bool {
	if !a.Ranked || !b.Ranked || len(a.Shape) != len(b.Shape) {
		return false
	}
	for i := range a.Shape {
		if a.Shape[i] != b.Shape[i] {
			return false
		}
	}
	return true
}

// symbols hands out symbols. The same expression gives the same symbol.
type symbols struct {
	byName   map[string]int32
	byExpr   map[expr]int32
	positive map[int32]bool // sizes that are 1 or more in every sensible call
	next     int32
}

// expr is a symbol made from others, or a dimension nothing is known about.
type expr struct {
	op   string
	a, b Dim
	node *Node
	at   int
}

func newSymbols() symbols {
	return symbols{byName: map[string]int32{}, byExpr: map[expr]int32{}, positive: map[int32]bool{}}
}

// isPositive reports whether a size cannot be 0 or negative unless a caller
// feeds an empty tensor.
func (s *symbols) isPositive(d Dim) bool { return d.Known() && d.N > 0 || s.positive[d.S] }

func (s *symbols) named(name string) Dim {
	id, ok := s.byName[name]
	if !ok {
		s.next++
		id = s.next
		s.byName[name] = id
		s.positive[id] = true
	}
	return Dim{S: id}
}

func (s *symbols) of(e expr) Dim {
	id, ok := s.byExpr[e]
	if !ok {
		s.next++
		id = s.next
		s.byExpr[e] = id
		switch e.op {
		case "+", "*", "max", "min":
			s.positive[id] = s.isPositive(e.a) && s.isPositive(e.b)
		case "?":
			s.positive[id] = true
		}
	}
	return Dim{S: id}
}

// unknown returns the symbol of dimension at of an output of n.
func (m *Module) unknown(n *Node, output, at int) Dim {
	return m.symbols.of(expr{op: "?", node: n, at: output<<16 | at})
}

// arith combines two sizes.
func (m *Module) arith(op string, a, b Dim) Dim {
	if a.Known() && b.Known() {
		if n, ok := calculate(op, a.N, b.N); ok {
			return Size(n)
		}
		return m.symbols.of(expr{op: op, a: a, b: b})
	}
	zero, one := Size(0), Size(1)
	switch op {
	case "+":
		if a == zero {
			return b
		}
		if b == zero {
			return a
		}
	case "-":
		if b == zero {
			return a
		}
		if a == b {
			return zero
		}
	case "*":
		if a == one {
			return b
		}
		if b == one {
			return a
		}
	case "/":
		if b == one {
			return a
		}
	case "min", "max":
		if a == b {
			return a
		}
	}
	if (op == "+" || op == "*" || op == "min" || op == "max") && (a.S > b.S || a.S == b.S && a.N > b.N) {
		a, b = b, a
	}
	return m.symbols.of(expr{op: op, a: a, b: b})
}

// calculate is integer arithmetic as ONNX does it; ok is false where the result
// is not defined.
func calculate(op string, a, b int64) (int64, bool) {
	switch op {
	case "+":
		return a + b, true
	case "-":
		return a - b, true
	case "*":
		return a * b, true
	case "/":
		if b == 0 {
			return 0, false
		}
		return a / b, true
	case "mod":
		if b == 0 {
			return 0, false
		}
		r := a % b
		if r != 0 && (r < 0) != (b < 0) {
			r += b
		}
		return r, true
	case "min":
		return min(a, b), true
	case "max":
		return max(a, b), true
	}
	return 0, false
}

// quotient returns the product of num divided by the product of den, cancelling
// what is equal; ok is false if the sizes cannot divide.
func (m *Module) quotient(num, den []Dim) (Dim, bool) {
	left := append([]Dim(nil), num...)
	factor, divisor := int64(1), int64(1)
	var rest []Dim
	for _, d := range den {
		if d.Known() {
			divisor *= d.N
			continue
		}
		found := false
		for i, l := range left {
			if l == d {
				left = append(left[:i:i], left[i+1:]...)
				found = true
				break
			}
		}
		if !found {
			rest = append(rest, d)
		}
	}
	var symbolic []Dim
	for _, l := range left {
		if l.Known() {
			factor *= l.N
		} else {
			symbolic = append(symbolic, l)
		}
	}
	if divisor == 0 || len(rest) > 0 {
		return Dim{}, false
	}
	out := Size(factor)
	if factor%divisor == 0 {
		out = Size(factor / divisor)
		divisor = 1
	}
	for _, s := range symbolic {
		out = m.arith("*", out, s)
	}
	if divisor != 1 {
		if len(symbolic) == 0 {
			return Dim{}, false
		}
		out = m.arith("/", out, Size(divisor))
	}
	return out, true
}

// factOfInit sets the fact of a constant.
func (m *Module) factOfInit(v *Value) {
	t := v.Init
	f := Fact{Type: onnxpb.TensorProto_DataType(t.GetDataType()), Ranked: true, Shape: make([]Dim, len(t.GetDims()))}
	n := int64(1)
	for i, d := range t.GetDims() {
		f.Shape[i] = Size(d)
		n *= d
	}
	if n <= maxElems && len(f.Shape) <= 1 && integral(f.Type) {
		if elems, err := m.Integers(v); err == nil {
			f.Elems = make([]Dim, len(elems))
			for i, e := range elems {
				f.Elems[i] = Size(e)
			}
		}
	}
	v.Fact = f
}

func integral(t onnxpb.TensorProto_DataType) bool {
	return t == onnxpb.TensorProto_INT64 || t == onnxpb.TensorProto_INT32 || t == onnxpb.TensorProto_BOOL
}

// Integers returns the elements of a constant int64, int32 or bool tensor.
func (m *Module) Integers(v *Value) ([]int64, error) {
	if !v.Constant() {
		return nil, fmt.Errorf("%s is not constant", v.Name)
	}
	d, err := m.Source.TensorData(v.Init)
	if err != nil {
		return nil, err
	}
	out := []int64{}
	switch onnxpb.TensorProto_DataType(v.Init.GetDataType()) {
	case onnxpb.TensorProto_INT64:
		for i := 0; i+8 <= len(d.Data); i += 8 {
			out = append(out, int64(binary.LittleEndian.Uint64(d.Data[i:])))
		}
	case onnxpb.TensorProto_INT32:
		for i := 0; i+4 <= len(d.Data); i += 4 {
			out = append(out, int64(int32(binary.LittleEndian.Uint32(d.Data[i:]))))
		}
	case onnxpb.TensorProto_BOOL:
		for _, b := range d.Data {
			out = append(out, int64(b))
		}
	default:
		return nil, fmt.Errorf("%s holds no integers", v.Name)
	}
	return out, nil
}

// factOfInfo returns what a declaration says. Shapes are believed only where
// the caller must keep them (inputs of the main graph); inner declarations may
// be stale.
func (m *Module) factOfInfo(info *onnxpb.ValueInfoProto, shape bool) Fact {
	t := info.GetType().GetTensorType()
	if t == nil {
		return Fact{}
	}
	f := Fact{Type: onnxpb.TensorProto_DataType(t.GetElemType())}
	if !shape || t.GetShape() == nil {
		return f
	}
	f.Ranked = true
	for i, d := range onnx.ValueOf(info).Dims {
		switch {
		case d.Fixed():
			f.Shape = append(f.Shape, Size(d.Size))
		case d.Symbol != "":
			f.Shape = append(f.Shape, m.symbols.named(d.Symbol))
		default:
			f.Shape = append(f.Shape, m.symbols.named(fmt.Sprintf("%s\x00%d", info.GetName(), i)))
		}
	}
	return f
}

func (f Fact) String() string {
	if !f.Ranked {
		return strings.ToLower(f.Type.String()) + " of unknown rank"
	}
	parts := make([]string, len(f.Shape))
	for i, d := range f.Shape {
		parts[i] = fmt.Sprint(d.N)
		if !d.Known() {
			parts[i] = fmt.Sprintf("s%d", d.S)
		}
	}
	return strings.ToLower(f.Type.String()) + "[" + strings.Join(parts, ",") + "]"
}
