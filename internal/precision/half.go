package precision

import (
	"fmt"
	"math"

	"google.golang.org/protobuf/proto"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
	"github.com/trtship/trtship/internal/tensor"
)

// HalfOptions says how a graph becomes a float16 or bfloat16 one.
type HalfOptions struct {
	DType  tensor.DType // Float16 or BFloat16
	KeepIO bool         // inputs and outputs stay float32
	Keep   *Selection   // nodes that stay float32; may be nil
	Only   *Selection   // if set, all other nodes stay float32
	// Observed returns the largest magnitude seen of a value of the main graph;
	// ok is false if it was not observed. It may be nil.
	Observed func(name string) (largest float64, ok bool)
	// Emulate keeps every value float32 but rounds it to DType wherever the
	// real graph would: a graph for runtimes without kernels of that type.
	Emulate bool
}

// Kept is a node that stays float32.
type Kept struct {
	Node   string `json:"node"`
	Reason string `json:"reason"`
}

// Half is a converted graph and what happened on the way.
type Half struct {
	Model  *onnx.Model
	Low    int    // nodes that compute in the low precision
	Kept   []Kept // nodes with floating-point values that stay float32
	Casts  int
	Ranges []OutOfRange
	Notes  []string
}

// ToHalf returns a copy of m in which floating-point nodes compute in float16
// or bfloat16, with casts where they meet the others. m is not changed; the copy
// has a later opset where operators take bfloat16 from that on only. Values
// that leave the range of the low precision are in Ranges; none of them is
// clamped.
func ToHalf(m *onnx.Model, o HalfOptions) (*Half, error) {
	if o.DType != tensor.Float16 && o.DType != tensor.BFloat16 {
		return nil, fmt.Errorf("convert to %s: not a 16-bit floating-point type", o.DType)
	}
	if err := o.Keep.Check(m); err != nil {
		return nil, err
	}
	opset, note := m.Opset(""), ""
	if o.DType == tensor.BFloat16 {
		raised, n, err := raiseForBFloat16(m)
		if err != nil {
			return nil, err
		}
		opset = raised.Opset("")
		if !o.Emulate { // that has the opset it came with: runtimes lack kernels of newer ones
			m, note = raised, n
		}
	}
	clone, _ := proto.Clone(m.Proto).(*onnxpb.ModelProto)
	c := &converter{
		HalfOptions: o, model: m.With(clone), code: onnx.DataType(o.DType), opset: opset,
		ranges: map[string]*OutOfRange{},
	}
	if c.opset < 7 {
		return nil, failure.New(failure.Model, "convert to %s: opset %d is too old, 7 is needed", o.DType, c.opset).
			WithHint("export with export.opset 13 or later")
	}
	c.names, c.typer = c.model.NewNames(), newTyper(c.model)
	c.result = &Half{Model: c.model}
	if note != "" {
		c.result.Notes = append(c.result.Notes, note)
	}
	c.typer.graph(clone.GetGraph(), nil, nil)
	if err := c.graph(onnx.Place{Graph: clone.GetGraph()}, nil); err != nil {
		return nil, err
	}
	dropUnused(clone.GetGraph())
	c.result.Ranges = sortedRanges(c.ranges)
	return c.result, nil
}

// converter converts one model.
type converter struct {
	HalfOptions
	model  *onnx.Model
	names  *onnx.Names
	typer  *typer
	code   int32
	opset  int64
	result *Half
	ranges map[string]*OutOfRange
}

// half is one graph during the conversion.
type half struct {
	*converter
	place     onnx.Place
	outer     *half
	types     *types
	actual    map[string]map[tensor.DType]string // original value, type: its name in the new graph
	constants map[string]*onnxpb.TensorProto     // float32 initializers and Constant nodes
	source    map[string]valueOrigin             // origin of values for shape arithmetic
	wide      map[string]string                  // values made by nodes kept for their range: node
	outputs   map[string]bool
	index     *onnx.Index // of the graph as it was
	nodes     []*onnxpb.NodeProto
	added     []*onnxpb.TensorProto
}

// valueOrigin tells values that follow from shapes alone from data.
type valueOrigin int

const (
	fromData valueOrigin = iota
	fromConstant
	fromShape
)

func (c *converter) graph(p onnx.Place, outer *half) error {
	h := &half{
		converter: c, place: p, outer: outer, types: c.typer.bodies[p.Graph],
		actual: map[string]map[tensor.DType]string{}, constants: map[string]*onnxpb.TensorProto{},
		source: map[string]valueOrigin{}, wide: map[string]string{}, outputs: map[string]bool{}, index: onnx.NewIndex(p.Graph),
	}
	if h.types == nil {
		h.types = c.typer.graph(p.Graph, outer.scopeTypes(), nil)
	}
	overridable := map[string]bool{}
	for _, v := range p.Graph.GetInput() {
		overridable[v.GetName()] = true
	}
	for _, t := range p.Graph.GetInitializer() {
		h.source[t.GetName()] = fromConstant
		if t.GetDataType() == int32(onnxpb.TensorProto_FLOAT) && !overridable[t.GetName()] {
			h.constants[t.GetName()] = t
		}
	}
	for _, v := range p.Graph.GetOutput() {
		h.outputs[v.GetName()] = true
	}
	h.openInputs()
	for _, n := range p.Graph.GetNode() {
		if err := h.node(n); err != nil {
			return err
		}
	}
	if err := h.closeOutputs(); err != nil {
		return err
	}
	p.Graph.Node = h.nodes
	p.Graph.Initializer = append(p.Graph.Initializer, h.added...)
	h.retype()
	return nil
}

func (h *half) scopeTypes() *types {
	if h == nil {
		return nil
	}
	return h.types
}

// openInputs gives the main graph's inputs the low type where that is asked for.
func (h *half) openInputs() {
	for _, v := range h.place.Graph.GetInput() {
		name := v.GetName()
		h.source[name] = fromData
		if h.types.of(name) != tensor.Float32 {
			continue
		}
		_, initial := h.index.Initializers[name] // a default that may be overridden keeps its type
		if h.outer == nil && !h.KeepIO && !h.Emulate && !initial {
			setElementType(v, h.code)
			h.define(name, h.DType, name)
			continue
		}
		h.define(name, tensor.Float32, name)
	}
}

func setElementType(v *onnxpb.ValueInfoProto, code int32) {
	if t := v.GetType().GetTensorType(); t != nil {
		t.ElemType = &code
	}
}

// define records that value has a version of type d called name.
func (h *half) define(value string, d tensor.DType, name string) {
	if h.actual[value] == nil {
		h.actual[value] = map[tensor.DType]string{}
	}
	h.actual[value][d] = name
}

// find returns the scope that has versions of value, and them; nil if the value
// is not a float32 one.
func (h *half) find(value string) (*half, map[tensor.DType]string) {
	for s := h; s != nil; s = s.outer {
		if v, ok := s.actual[value]; ok {
			return s, v
		}
		if _, ok := s.constants[value]; ok {
			return s, map[tensor.DType]string{tensor.Float32: value}
		}
		if _, shadowed := s.types.known[value]; shadowed {
			return nil, nil
		}
	}
	return nil, nil
}

// as returns the name of value with type d, adding a cast or a converted
// constant if there is none yet. reader is the node that asks, for messages.
func (h *half) as(value string, d tensor.DType, reader *onnxpb.NodeProto) (string, error) {
	for s := h; s != nil; s = s.outer { // a cast in any enclosing graph will do
		if name, ok := s.actual[value][d]; ok {
			return name, nil
		}
		if _, here := s.types.known[value]; here {
			break
		}
	}
	home, versions := h.find(value)
	if home == nil {
		return value, nil
	}
	if t, ok := home.constants[value]; ok {
		if d == tensor.Float32 {
			return value, nil
		}
		return home.convertConstant(value, t, h.place.Name(reader))
	}
	for from, name := range versions {
		if from == d {
			return name, nil
		}
	}
	if d == tensor.Float32 {
		return h.widen(value, versions[h.DType]), nil
	}
	return h.narrow(value, versions[tensor.Float32]), nil
}

// widen casts to float32. In an emulated graph the value is float32 already.
func (h *half) widen(value, from string) string {
	to := from
	if !h.Emulate {
		to = h.names.Fresh(value + "_float32")
		h.cast(from, to, onnx.DataType(tensor.Float32))
	}
	h.define(value, tensor.Float32, to)
	return to
}

// narrow casts to the low type.
func (h *half) narrow(value, from string) string {
	to := h.names.Fresh(value + "_" + string(h.DType))
	if h.Emulate {
		h.round(from, to)
	} else {
		h.cast(from, to, h.code)
	}
	h.define(value, h.DType, to)
	h.observe(value)
	return to
}

func (h *half) cast(from, to string, code int32) {
	h.result.Casts++
	h.nodes = append(h.nodes, newNode("Cast", h.names.Fresh("cast_"+to), []string{from}, []string{to}, intAttribute("to", int64(code))))
}

// round casts to the low type and back.
func (h *half) round(from, to string) {
	inner := h.names.Fresh(to + "_rounded")
	h.cast(from, inner, h.code)
	h.cast(inner, to, onnx.DataType(tensor.Float32))
}

// node converts one node.
func (h *half) node(n *onnxpb.NodeProto) error {
	if isConstant(n) {
		h.constant(n)
		h.nodes = append(h.nodes, n)
		return nil
	}
	h.trace(n)
	want, reason := h.decide(n)
	if reason != "" {
		h.result.Kept = append(h.result.Kept, Kept{Node: h.place.Name(n), Reason: reason})
	}
	for attr, g := range onnx.Subgraphs(n) {
		path := onnx.NodeName(n) + "/" + attr
		if h.place.Path != "" {
			path = h.place.Path + "/" + path
		}
		inner := onnx.Place{Graph: g, Path: path, Depth: h.place.Depth + 1}
		if inner.Depth > onnx.MaxDepth {
			return failure.New(failure.Model, "convert %s: graphs are nested too deep", path)
		}
		if err := h.graph(inner, h); err != nil {
			return err
		}
	}
	for i, in := range n.GetInput() {
		if in == "" || h.types.of(in) != tensor.Float32 {
			continue
		}
		d := want
		if pinnedInput(n, i) {
			d = tensor.Float32
		}
		name, err := h.as(in, d, n)
		if err != nil {
			return err
		}
		n.Input[i] = name
	}
	if want == h.DType {
		h.retargetAttributes(n)
	}
	h.place1(n, want)
	return nil
}

// place1 adds the node and records its outputs.
func (h *half) place1(n *onnxpb.NodeProto, want tensor.DType) {
	low := false
	type rename struct{ value, raw string }
	var rounded []rename
	for i, o := range n.GetOutput() {
		if o == "" || h.types.of(o) != tensor.Float32 {
			continue
		}
		d := want
		if fixedOutput(n, i) || len(n.Output) > 0 && hasGraphs(n) {
			d = tensor.Float32
		}
		if d == tensor.Float32 {
			h.define(o, d, o)
			continue
		}
		low = true
		h.observe(o)
		switch {
		case h.Emulate:
			raw := h.names.Fresh(o + "_exact")
			n.Output[i] = raw
			rounded = append(rounded, rename{o, raw})
			h.define(o, h.DType, o)
		case h.outputs[o] && (h.outer != nil || h.KeepIO):
			n.Output[i] = h.names.Fresh(o + "_" + string(h.DType))
			h.define(o, h.DType, n.Output[i])
		default:
			h.define(o, h.DType, o)
		}
	}
	h.nodes = append(h.nodes, n)
	for _, r := range rounded {
		h.round(r.raw, r.value)
	}
	if low {
		h.result.Low++
	}
}

// closeOutputs gives outputs their final type.
func (h *half) closeOutputs() error {
	for _, v := range h.place.Graph.GetOutput() {
		name := v.GetName()
		versions, own := h.actual[name]
		if h.types.of(name) != tensor.Float32 || h.Emulate {
			continue
		}
		if _, outer := h.find(name); !own && outer != nil && outer[tensor.Float32] != name {
			return failure.New(failure.Model, "convert to %s: output %s of %s is a value of the graph around it", h.DType, name, h.place.Path).
				WithHint("keep the node that makes it in float32 (quantize.keep_fp32)")
		}
		switch low := versions[h.DType]; {
		case h.outer == nil && !h.KeepIO:
			if low == name {
				setElementType(v, h.code)
			}
		case low != "" && low != name && versions[tensor.Float32] != name:
			h.cast(low, name, onnx.DataType(tensor.Float32))
		}
	}
	return nil
}

// retype corrects the declared types of inner values.
func (h *half) retype() {
	infos := h.place.Graph.GetValueInfo()[:0]
	for _, v := range h.place.Graph.GetValueInfo() {
		if h.actual[v.GetName()][h.DType] == v.GetName() && !h.Emulate {
			setElementType(v, h.code)
		}
		infos = append(infos, v)
	}
	h.place.Graph.ValueInfo = infos
}

func hasGraphs(n *onnxpb.NodeProto) bool {
	for range onnx.Subgraphs(n) {
		return true
	}
	return false
}

func isConstant(n *onnxpb.NodeProto) bool {
	return n.GetOpType() == "Constant" && onnx.Domain(n.GetDomain()) == ""
}

// observe records a value that exists in the low type and was seen beyond its
// range, with the node that makes it and those that read it.
func (h *half) observe(value string) {
	if h.Observed == nil || h.outer != nil {
		return
	}
	largest, ok := h.Observed(value)
	r := OutOfRange{Kind: Overflow, Tensor: value, Value: largest, Count: 1, Of: 1}
	switch {
	case !ok || largest == 0:
		return
	case largest > largestOf(h.DType):
	case largest <= smallestOf(h.DType)/2: // rounds to zero, and so does everything smaller
		r.Kind = Vanish
	default:
		return
	}
	if n := h.index.Producers[value]; n != nil {
		r.Node = h.place.Name(n)
	}
	for _, n := range h.index.Readers[value] {
		r.Readers = append(r.Readers, h.place.Name(n))
	}
	h.addRange(r)
}

// largestOf returns the largest finite value.
func largestOf(d tensor.DType) float64 {
	if d == tensor.Float16 {
		return 65504
	}
	return math.Ldexp(2-math.Ldexp(1, -7), 127)
}

// smallestOf returns the smallest positive value.
func smallestOf(d tensor.DType) float64 {
	if d == tensor.Float16 {
		return math.Ldexp(1, -24)
	}
	return math.Ldexp(1, -133)
}
