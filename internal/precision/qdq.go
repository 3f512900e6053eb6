package precision

import (
	"fmt"
	"math"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
	"github.com/trtship/trtship/internal/tensor"
)

// Int8Options says how a graph is quantized.
type Int8Options struct {
	// Scales are the steps of activations by name, from a calibration.
	Scales     map[string]float32
	PerChannel bool       // weights have one scale a channel
	Exclude    *Selection // nodes that are not quantized; may be nil
	Keep       *Selection // nodes that stay float32, and so are not quantized either; may be nil
	Only       *Selection // if set, no other node is quantized
	// HalfScales makes every scale one that float16 holds exactly, for a graph
	// whose floating-point part becomes float16.
	HalfScales bool
}

// Skipped is a node that could have been quantized and was not.
type Skipped struct {
	Node     string `json:"node"`
	Reason   string `json:"reason"`
	Unwanted bool   `json:"unwanted,omitempty"` // a range is missing; neither the settings nor the graph forbid it
}

// Int8 is a quantized graph and what happened on the way.
type Int8 struct {
	Model       *onnx.Model
	Nodes       []string // that compute on int8 inputs
	Activations []string // that are quantized
	Weights     int      // tensors that became int8
	Skipped     []Skipped
}

// ToInt8 returns a copy of m with QuantizeLinear/DequantizeLinear pairs, placed
// for TensorRT's explicit quantization:
//
//   - at the inputs of Conv, ConvTranspose, Gemm and MatMul; their constant
//     weights become int8 initializers with a DequantizeLinear, one scale a
//     channel; biases stay floating-point;
//   - at the residual input of an Add whose other input comes from one of them,
//     so that the addition joins that kernel;
//   - at the input of average pooling;
//   - never between such a node and the activation function that follows it,
//     nor at MaxPool, Concat, Reshape and the like, through which TensorRT moves
//     the pairs of their readers by itself.
//
// All zero points are 0. m is not changed.
func ToInt8(m *onnx.Model, o Int8Options) (*Int8, error) {
	if v := m.Opset(""); v < 13 {
		return nil, failure.New(failure.Model, "quantize to int8: opset %d is too old: scales of channels need 13", v).
			WithHint("export with export.opset 13 or later")
	}
	for _, s := range []*Selection{o.Exclude, o.Keep} {
		if err := s.Check(m); err != nil {
			return nil, err
		}
	}
	if err := quantizedAlready(m); err != nil {
		return nil, err
	}
	clone, _ := proto.Clone(m.Proto).(*onnxpb.ModelProto)
	q := &quantizer{
		Int8Options: o, model: m.With(clone), graph: clone.GetGraph(), result: &Int8{},
		marked: map[string]bool{}, weights: map[weightKey]string{}, constants: map[string]*onnxpb.TensorProto{},
	}
	q.result.Model, q.names = q.model, q.model.NewNames()
	q.types = newTyper(q.model).graph(q.graph, nil, nil)
	q.index = onnx.NewIndex(q.graph)
	q.findConstants()
	if err := q.plan(); err != nil {
		return nil, err
	}
	q.rewrite()
	dropUnused(q.graph)
	q.listInner()
	if len(q.result.Nodes) == 0 {
		return nil, q.nothing()
	}
	return q.result, nil
}

// quantizedAlready refuses a graph that rounds to integers itself: scales of a
// float graph mean nothing in it, and values would be rounded twice.
func quantizedAlready(m *onnx.Model) error {
	var first string
	count := 0
	m.Walk(func(p onnx.Place, n *onnxpb.NodeProto) bool {
		switch n.GetOpType() {
		case "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger":
			if onnx.Domain(n.GetDomain()) == "" {
				if count++; count == 1 {
					first = fmt.Sprintf("%s (%s)", p.Name(n), n.GetOpType())
				}
			}
		}
		return true
	})
	if count == 0 {
		return nil
	}
	return failure.New(failure.Model, "quantize to int8: the graph is quantized already: %d quantizing nodes, the first is %s", count, first).
		WithHint("give the float model, or take int8 out of tensorrt.precisions")
}

func (q *quantizer) nothing() error {
	half := 0
	for _, a := range Activations(q.model) {
		if a.DType != tensor.Float32 {
			half++
		}
	}
	if half > 0 && len(q.result.Skipped) == 0 {
		return failure.New(failure.Model, "quantize to int8: no node can be quantized: the graph computes in 16 bits already (%d activations), and only float32 nodes are quantized", half).
			WithHint("export the model in float32")
	}
	e := failure.New(failure.Calibration, "quantize to int8: no node can be quantized")
	for _, s := range q.result.Skipped[:min(len(q.result.Skipped), 10)] {
		e = e.With(s.Node, "%s", s.Reason)
	}
	return e.WithHint("look at quantize.int8_exclude and at the coverage of the calibration")
}

type quantizer struct {
	Int8Options
	model     *onnx.Model
	graph     *onnxpb.GraphProto
	index     *onnx.Index
	types     *types
	names     *onnx.Names
	result    *Int8
	constants map[string]*onnxpb.TensorProto

	marked  map[string]bool // activations to quantize
	edges   []edge
	weights map[weightKey]string
	head    []*onnxpb.NodeProto // DequantizeLinear of weights
	zero    string              // int8 scalar 0
}

// edge is an input of a node that reads a quantized activation.
type edge struct {
	node  *onnxpb.NodeProto
	input int
}

type weightKey struct {
	name string
	axis int
}

func (q *quantizer) findConstants() {
	for _, t := range q.graph.GetInitializer() {
		if _, overridable := q.index.Inputs[t.GetName()]; !overridable {
			q.constants[t.GetName()] = t
		}
	}
	for _, n := range q.graph.GetNode() {
		if isConstant(n) {
			if t := constantTensor(n); t != nil {
				q.constants[n.GetOutput()[0]] = t
			}
		}
	}
}

func (q *quantizer) skip(n *onnxpb.NodeProto, format string, args ...any) {
	q.result.Skipped = append(q.result.Skipped, Skipped{Node: onnx.NodeName(n), Reason: fmt.Sprintf(format, args...)})
}

// plan decides what is quantized.
func (q *quantizer) plan() error {
	place := onnx.Place{Graph: q.graph}
	quantized := map[*onnxpb.NodeProto]bool{}
	for _, n := range q.graph.GetNode() {
		if onnx.Domain(n.GetDomain()) != "" {
			continue
		}
		switch n.GetOpType() {
		case "Conv", "ConvTranspose", "Gemm", "MatMul":
			if q.excluded(place, n) {
				continue
			}
			done, err := q.linear(n)
			if err != nil {
				return err
			}
			if done {
				quantized[n] = true
				q.result.Nodes = append(q.result.Nodes, onnx.NodeName(n))
			}
		case "AveragePool", "GlobalAveragePool":
			if !q.excluded(place, n) && q.quantizable(n.GetInput()[0]) && q.feedsQuantized(n) {
				q.mark(n, 0)
				q.result.Nodes = append(q.result.Nodes, onnx.NodeName(n))
			}
		}
	}
	for _, n := range q.graph.GetNode() {
		if n.GetOpType() == "Add" && onnx.Domain(n.GetDomain()) == "" && !q.Exclude.Has(place, n) && !q.Keep.Has(place, n) && (q.Only == nil || q.Only.Has(place, n)) {
			q.residual(n, quantized)
		}
	}
	return nil
}

// excluded reports, and records, whether the settings forbid int8 for n.
func (q *quantizer) excluded(p onnx.Place, n *onnxpb.NodeProto) bool {
	switch {
	case q.Only != nil && !q.Only.Has(p, n):
		q.skip(n, "not asked for")
	case q.Exclude.Has(p, n):
		q.skip(n, "listed in int8_exclude")
	case q.Keep.Has(p, n):
		q.skip(n, "listed in keep_fp32")
	default:
		return false
	}
	return true
}

// quantizable reports whether an activation has a range.
func (q *quantizer) quantizable(name string) bool {
	_, constant := q.constants[name]
	s, ok := q.Scales[name]
	return ok && !constant && s > 0 && !math.IsInf(float64(s), 0) && q.types.of(name) == tensor.Float32
}

func (q *quantizer) mark(n *onnxpb.NodeProto, input int) {
	q.marked[n.GetInput()[input]] = true
	q.edges = append(q.edges, edge{n, input})
}

// linear quantizes the operands of a product; false if it cannot.
func (q *quantizer) linear(n *onnxpb.NodeProto) (bool, error) {
	if len(n.GetInput()) < 2 {
		return false, nil
	}
	data, weight := n.GetInput()[0], n.GetInput()[1]
	if q.types.of(data) != tensor.Float32 {
		return false, nil
	}
	if n.GetOpType() == "Gemm" && onnx.IntAttribute(n, "transA", 0) != 0 {
		q.skip(n, "Gemm with transA has no int8 form")
		return false, nil
	}
	operands := []int{0}
	w, constant := q.constants[weight]
	if !constant {
		if n.GetOpType() != "MatMul" {
			q.skip(n, "its weight %s is no constant", weight)
			return false, nil
		}
		operands = append(operands, 1)
		if _, c := q.constants[data]; c {
			q.skip(n, "its first operand %s is a constant", data)
			return false, nil
		}
	}
	for _, i := range operands {
		if !q.quantizable(n.GetInput()[i]) {
			q.skip(n, "no range of %s", n.GetInput()[i])
			q.result.Skipped[len(q.result.Skipped)-1].Unwanted = true
			return false, nil
		}
	}
	if constant {
		if w.GetDataType() != int32(onnxpb.TensorProto_FLOAT) {
			q.skip(n, "its weight %s is not float32", weight)
			return false, nil
		}
		name, err := q.weight(weight, w, q.axis(n, w))
		if err != nil {
			return false, err
		}
		n.Input[1] = name
	}
	for _, i := range operands {
		q.mark(n, i)
	}
	return true, nil
}

// axis returns the axis of the output channels, -1 for one scale.
func (q *quantizer) axis(n *onnxpb.NodeProto, w *onnxpb.TensorProto) int {
	if !q.PerChannel {
		return -1
	}
	switch n.GetOpType() {
	case "Conv":
		return 0
	case "ConvTranspose": // [in, out/group, ...]: groups would share scales
		if onnx.IntAttribute(n, "group", 1) == 1 {
			return 1
		}
		return -1
	case "Gemm":
		if onnx.IntAttribute(n, "transB", 0) != 0 {
			return 0
		}
		return 1
	case "MatMul":
		if len(w.GetDims()) == 2 {
			return 1
		}
	}
	return -1
}

// residual quantizes the shortcut of an addition that joins a quantized node.
func (q *quantizer) residual(n *onnxpb.NodeProto, quantized map[*onnxpb.NodeProto]bool) {
	if len(n.GetInput()) != 2 || n.GetInput()[0] == n.GetInput()[1] {
		return
	}
	joins := func(i int) bool {
		name := n.GetInput()[i]
		return quantized[q.index.Producers[name]] && q.index.Uses[name] == 1
	}
	shortcut := -1
	switch a, b := joins(0), joins(1); {
	case a: // also where both do: exporters put the shortcut second
		shortcut = 1
	case b:
		shortcut = 0
	default:
		return
	}
	if q.quantizable(n.GetInput()[shortcut]) {
		q.mark(n, shortcut)
		q.result.Nodes = append(q.result.Nodes, onnx.NodeName(n))
	}
}

// feedsQuantized reports whether a pooled value goes on to quantizable nodes,
// directly or through reshaping; pooling in int8 for a floating-point reader
// gains nothing.
func (q *quantizer) feedsQuantized(n *onnxpb.NodeProto) bool {
	next := slices.Clone(n.GetOutput())
	for range 8 {
		var further []string
		for _, name := range next {
			for _, r := range q.index.Readers[name] {
				switch r.GetOpType() {
				case "Conv", "ConvTranspose", "Gemm", "MatMul", "Concat", "Add":
					return true
				case "Flatten", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Dropout", "Identity", "Relu":
					further = append(further, r.GetOutput()...)
				}
			}
		}
		if next = further; len(next) == 0 {
			return false
		}
	}
	return false
}

// weight returns the name of the dequantized form of a constant.
func (q *quantizer) weight(name string, t *onnxpb.TensorProto, axis int) (string, error) {
	key := weightKey{name, axis}
	if out, ok := q.weights[key]; ok {
		return out, nil
	}
	data, err := q.model.TensorData(t)
	if err != nil {
		return "", err
	}
	values := data.Float32s()
	for _, v := range values {
		if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
			return "", failure.New(failure.Model, "quantize weight %s: it holds %g", name, v)
		}
	}
	codes, scales := QuantizeWeight(values, data.Shape, axis, q.HalfScales)
	shape := []int64{}
	if axis >= 0 {
		shape = []int64{int64(len(scales))}
	}
	quantized, scale, zero, out := q.names.Fresh(name+"_int8"), q.names.Fresh(name+"_scale"), q.names.Fresh(name+"_zero_point"), q.names.Fresh(name+"_dequantized")
	q.graph.Initializer = append(q.graph.Initializer,
		onnx.NewTensor(quantized, tensor.Tensor{DType: tensor.Int8, Shape: data.Shape, Data: codes}),
		onnx.NewTensor(scale, tensor.FromFloat32s(shape, scales)),
		onnx.NewTensor(zero, tensor.Zeros(tensor.Int8, shape...)))
	node := newNode("DequantizeLinear", q.names.Fresh(name+"_DequantizeLinear"), []string{quantized, scale, zero}, []string{out})
	if axis >= 0 {
		node.Attribute = append(node.Attribute, intAttribute("axis", int64(axis)))
	}
	q.head = append(q.head, node)
	q.result.Weights++
	q.weights[key] = out
	return out, nil
}

// rewrite inserts the pairs behind the values that they quantize.
func (q *quantizer) rewrite() {
	pairs := map[string]string{}
	insert := func(nodes []*onnxpb.NodeProto, name string) []*onnxpb.NodeProto {
		if name == "" || !q.marked[name] {
			return nodes
		}
		scale, zero := q.names.Fresh(name+"_scale"), q.zeroPoint()
		code, out := q.names.Fresh(name+"_quantized"), q.names.Fresh(name+"_dequantized")
		q.graph.Initializer = append(q.graph.Initializer,
			onnx.NewTensor(scale, tensor.FromFloat32s([]int64{}, []float32{q.activationScale(name)})))
		pairs[name] = out
		q.result.Activations = append(q.result.Activations, name)
		return append(nodes,
			newNode("QuantizeLinear", q.names.Fresh(name+"_QuantizeLinear"), []string{name, scale, zero}, []string{code}),
			newNode("DequantizeLinear", q.names.Fresh(name+"_DequantizeLinear"), []string{code, scale, zero}, []string{out}))
	}
	nodes := q.head
	for _, v := range q.graph.GetInput() {
		nodes = insert(nodes, v.GetName())
	}
	for _, n := range q.graph.GetNode() {
		nodes = append(nodes, n)
		for _, o := range n.GetOutput() {
			nodes = insert(nodes, o)
		}
	}
	for _, e := range q.edges {
		e.node.Input[e.input] = pairs[e.node.GetInput()[e.input]]
	}
	q.graph.Node = nodes
}

func (q *quantizer) activationScale(name string) float32 {
	s := q.Scales[name]
	if q.HalfScales && s >= smallestNormalHalf {
		return float32(tensor.FromFloat64s(tensor.Float16, []int64{1}, []float64{float64(s)}).Float64At(0))
	}
	return s
}

func (q *quantizer) zeroPoint() string {
	if q.zero == "" {
		q.zero = q.names.Fresh("zero_point_int8")
		q.graph.Initializer = append(q.graph.Initializer, onnx.NewTensor(q.zero, tensor.Zeros(tensor.Int8)))
	}
	return q.zero
}

// listInner names the products inside of nested graphs and functions, which are
// not quantized: no range of their inputs can be observed.
func (q *quantizer) listInner() {
	q.model.Walk(func(p onnx.Place, n *onnxpb.NodeProto) bool {
		if p.Path == "" || onnx.Domain(n.GetDomain()) != "" {
			return true
		}
		switch n.GetOpType() {
		case "Conv", "ConvTranspose", "Gemm", "MatMul":
			q.result.Skipped = append(q.result.Skipped, Skipped{Node: p.Name(n), Reason: "inside of " + p.Path + ", whose values are not calibrated"})
		}
		return true
	})
}

// QuantizeWeight quantizes values symmetrically to int8 codes in [-127, 127],
// with one scale for each index of axis, or one for all if axis is negative.
// Codes are two's complement bytes. With half the scales are float16 values,
// rounded up so that nothing saturates.
func QuantizeWeight(values []float32, shape []int64, axis int, half bool) (codes []byte, scales []float32) {
	channels, inner := 1, len(values)
	if axis >= 0 {
		channels, inner = int(shape[axis]), 1
		for _, d := range shape[axis+1:] {
			inner *= int(d)
		}
	}
	largest := make([]float32, channels)
	channel := func(i int) int { return i / max(inner, 1) % max(channels, 1) }
	for i, v := range values {
		c := channel(i)
		largest[c] = max(largest[c], float32(math.Abs(float64(v))))
	}
	scales = make([]float32, channels)
	for c, m := range largest {
		scales[c] = weightScale(m, half)
	}
	codes = make([]byte, len(values))
	for i, v := range values {
		r := math.RoundToEven(float64(v) / float64(scales[channel(i)]))
		codes[i] = byte(int8(max(-127, min(127, r))))
	}
	return codes, scales
}

func weightScale(largest float32, half bool) float32 {
	s := float64(largest) / 127
	if s < 1.1754943508222875e-38 {
		return 1
	}
	if !half {
		return float32(s)
	}
	s = max(s, smallestNormalHalf)
	h := tensor.FromFloat64s(tensor.Float16, []int64{1}, []float64{s})
	if r := h.Float64At(0); r < s { // the next larger one
		h.Data[0]++
		if h.Data[0] == 0 {
			h.Data[1]++
		}
	}
	return float32(h.Float64At(0))
}
