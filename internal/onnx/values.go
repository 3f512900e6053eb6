package onnx

import (
	"fmt"
	"strconv"

	"github.com/trtship/trtship/internal/onnx/onnxpb"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/report"
)

// Dim is one dimension of a declared shape.
type Dim struct {
	Size   int64  // 1 and up if the size is fixed, else 0
	Symbol string // name of a symbolic size; empty if fixed or unnamed
	Odd    string // a declared size that is no size, "0" or "-1": treated as unknown
}

// Fixed reports whether the size is known.
func (d Dim) Fixed() bool { return d.Size > 0 }

func (d Dim) String() string {
	switch {
	case d.Fixed():
		return strconv.FormatInt(d.Size, 10)
	case d.Symbol != "":
		return d.Symbol
	}
	return "?"
}

// Value is a declared input or output.
type Value struct {
	Name     string
	Type     string       // tensor, sequence, map, optional, sparse tensor, opaque; "" if none is declared
	DType    tensor.DType // of a tensor; "" if unknown
	HasShape bool         // false: not even the rank is known
	Dims     []Dim
}

// Report returns v as it is written into reports. Dimensions without size and
// name are "?".
func (v Value) Report() report.Tensor {
	t := report.Tensor{Name: v.Name, DType: string(v.DType), Dims: make([]string, len(v.Dims))}
	if v.DType == "" {
		t.DType = v.Type
	}
	for i, d := range v.Dims {
		t.Dims[i] = d.String()
	}
	return t
}

// String returns e.g. "x float32[batch,3,224,224]", or "x float32 of unknown rank".
func (v Value) String() string {
	s := v.Name + " " + string(v.DType)
	if v.DType == "" {
		s = v.Name + " " + v.Type
	}
	if !v.HasShape {
		return s + " of unknown rank"
	}
	for i, d := range v.Dims {
		if i == 0 {
			s += "["
		} else {
			s += ","
		}
		s += d.String()
	}
	if len(v.Dims) == 0 {
		return s + "[]"
	}
	return s + "]"
}

// Notes returns what is odd about the declaration, for people.
func (v Value) Notes() []string {
	var notes []string
	if v.Type == "tensor" && !v.HasShape {
		notes = append(notes, fmt.Sprintf("%s has no shape: not even its rank is known", v.Name))
	}
	for i, d := range v.Dims {
		if d.Odd != "" {
			notes = append(notes, fmt.Sprintf("dimension %d of %s is declared as %s: taken as unknown", i, v.Name, d.Odd))
		}
	}
	return notes
}

// ValueOf reads a declaration.
func ValueOf(info *onnxpb.ValueInfoProto) Value {
	v := Value{Name: info.GetName()}
	var shape *onnxpb.TensorShapeProto
	switch t := info.GetType().GetValue().(type) {
	case *onnxpb.TypeProto_TensorType:
		v.Type = "tensor"
		v.DType, _ = DType(t.TensorType.GetElemType())
		shape = t.TensorType.GetShape()
	case *onnxpb.TypeProto_SparseTensorType:
		v.Type = "sparse tensor"
		v.DType, _ = DType(t.SparseTensorType.GetElemType())
		shape = t.SparseTensorType.GetShape()
	case *onnxpb.TypeProto_SequenceType:
		v.Type = "sequence"
	case *onnxpb.TypeProto_MapType:
		v.Type = "map"
	case *onnxpb.TypeProto_OptionalType:
		v.Type = "optional"
	case *onnxpb.TypeProto_OpaqueType:
		v.Type = "opaque"
	}
	if shape == nil {
		return v
	}
	v.HasShape = true
	v.Dims = make([]Dim, len(shape.GetDim()))
	for i, d := range shape.GetDim() {
		switch x := d.GetValue().(type) {
		case *onnxpb.TensorShapeProto_Dimension_DimValue:
			if x.DimValue > 0 {
				v.Dims[i].Size = x.DimValue
			} else {
				v.Dims[i].Odd = strconv.FormatInt(x.DimValue, 10)
			}
		case *onnxpb.TensorShapeProto_Dimension_DimParam:
			v.Dims[i].Symbol = x.DimParam
		}
	}
	return v
}

// Inputs returns what a caller must feed: the graph's inputs without those that
// have an initializer, in the file's order.
func (m *Model) Inputs() []Value {
	initial := m.initialNames()
	out := []Value{}
	for _, in := range m.Graph().GetInput() {
		if !initial[in.GetName()] {
			out = append(out, ValueOf(in))
		}
	}
	return out
}

// Outputs returns the graph's outputs in the file's order.
func (m *Model) Outputs() []Value {
	out := []Value{}
	for _, o := range m.Graph().GetOutput() {
		out = append(out, ValueOf(o))
	}
	return out
}

// Overridable returns the inputs that have a default which a caller may
// override: inputs with an initializer from IR version 4 on. Before it they are
// ordinary weights.
func (m *Model) Overridable() []Value {
	if m.Proto.GetIrVersion() < int64(onnxpb.Version_IR_VERSION_2019_1_22) {
		return nil
	}
	initial := m.initialNames()
	var out []Value
	for _, in := range m.Graph().GetInput() {
		if initial[in.GetName()] {
			out = append(out, ValueOf(in))
		}
	}
	return out
}

func (m *Model) initialNames() map[string]bool {
	initial := map[string]bool{}
	for _, t := range m.Graph().GetInitializer() {
		initial[t.GetName()] = true
	}
	for _, t := range m.Graph().GetSparseInitializer() {
		initial[t.GetValues().GetName()] = true
	}
	return initial
}

// Opset returns the imported version of a domain; 0 if it is not imported.
func (m *Model) Opset(domain string) int64 {
	for _, o := range m.Proto.GetOpsetImport() {
		if Domain(o.GetDomain()) == Domain(domain) {
			return o.GetVersion()
		}
	}
	return 0
}

// NodeCount returns the number of nodes in the main graph, the graphs nested in
// it and the functions.
func (m *Model) NodeCount() int {
	n := 0
	m.Walk(func(Place, *onnxpb.NodeProto) bool { n++; return true })
	return n
}

// Bytes returns the size of all tensors' data.
func (m *Model) Bytes() int64 {
	var n int64
	m.walkTensors(func(_ string, t *onnxpb.TensorProto) error {
		n += TensorBytes(t)
		return nil
	})
	return n
}

// OperatorCount is one operator with the nodes that use it.
type OperatorCount struct {
	Domain string // "" is ai.onnx
	Op     string
	Count  int
	Nodes  []string // Place.Name of each node, in the order of Walk
}

// Name returns "Conv" or "domain::Op".
func (o OperatorCount) Name() string {
	if o.Domain == "" {
		return o.Op
	}
	return o.Domain + "::" + o.Op
}

// Operators counts the operators of the main graph, nested graphs and
// functions, sorted by domain and name. Calls of the model's own functions are
// counted under the function's name.
func (m *Model) Operators() []OperatorCount {
	type key struct{ domain, op string }
	counts := map[key]*OperatorCount{}
	m.Walk(func(p Place, n *onnxpb.NodeProto) bool {
		k := key{Domain(n.GetDomain()), n.GetOpType()}
		c := counts[k]
		if c == nil {
			c = &OperatorCount{Domain: k.domain, Op: k.op}
			counts[k] = c
		}
		c.Count++
		c.Nodes = append(c.Nodes, p.Name(n))
		return true
	})
	out := []OperatorCount{}
	for _, c := range counts {
		out = append(out, *c)
	}
	sortOperators(out)
	return out
}

// Unsupported returns the operators that supported refuses, leaving out calls
// of the model's own functions (their bodies are looked at instead).
func (m *Model) Unsupported(supported func(domain, op string) bool) []OperatorCount {
	functions := map[[2]string]bool{}
	for k := range m.Functions() {
		functions[[2]string{k.Domain, k.Name}] = true
	}
	var out []OperatorCount
	for _, c := range m.Operators() {
		if !functions[[2]string{c.Domain, c.Op}] && !supported(c.Domain, c.Op) {
			out = append(out, c)
		}
	}
	return out
}
