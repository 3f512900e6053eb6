package precision

import (
	"fmt"
	"slices"

	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
	"github.com/trtship/trtship/internal/tensor"
)

// float32Operators have no 16-bit form in the published operator sets, or none
// that runtimes implement.
var float32Operators = map[string]string{
	"Range": "Range counts in float32", "NonMaxSuppression": "NonMaxSuppression takes float32 only",
	"RandomNormal": "draws float32", "RandomUniform": "draws float32", "RandomNormalLike": "draws float32",
	"RandomUniformLike": "draws float32", "Multinomial": "draws from float32", "Bernoulli": "draws from float32",
	"HannWindow": "window of float32", "HammingWindow": "window of float32", "BlackmanWindow": "window of float32",
	"MelWeightMatrix": "matrix of float32", "DFT": "transform in float32", "STFT": "transform in float32",
	"SequenceConstruct": "sequence of float32", "SequenceEmpty": "sequence of float32", "SequenceInsert": "sequence of float32",
	"SequenceAt": "sequence of float32", "SequenceMap": "sequence of float32", "SplitToSequence": "sequence of float32",
	"ConcatFromSequence": "sequence of float32", "SequenceErase": "sequence of float32",
	"Optional": "optional of float32", "OptionalGetElement": "optional of float32",
	"DynamicQuantizeLinear": "quantizes float32", "QLinearConv": "has float32 scales", "QLinearMatMul": "has float32 scales",
	"ConvInteger": "integer operator", "MatMulInteger": "integer operator", "TfIdfVectorizer": "makes float32",
	"EyeLike": "makes float32", "ConstantOfShape": "makes float32", "Unique": "compares float32",
}

// either lists operators that take 16-bit and 32-bit values alike and give no
// floating-point value: they follow their input.
var either = []string{"Shape", "Size", "NonZero", "IsNaN", "ArgMax", "ArgMin", "Cast"}

// decide returns the type that n computes in, and why if a node that could be
// low stays float32.
func (h *half) decide(n *onnxpb.NodeProto) (want tensor.DType, reason string) {
	ins, outs := h.floats(n.GetInput()), h.floats(n.GetOutput())
	if len(ins)+len(outs) == 0 {
		return tensor.Float32, ""
	}
	if hasGraphs(n) {
		return tensor.Float32, "" // its bodies are converted by themselves
	}
	if len(outs) == 0 && slices.Contains(either, n.GetOpType()) {
		return h.follow(ins[0]), ""
	}
	if reason := h.mustKeep(n); reason != "" {
		return tensor.Float32, reason
	}
	if h.Only != nil && !h.Only.Has(h.place, n) {
		return tensor.Float32, "not asked for"
	}
	if h.Keep.Has(h.place, n) {
		h.markWide(n)
		return tensor.Float32, "listed in keep_fp32"
	}
	for _, in := range ins {
		if maker, ok := h.wideMaker(in); ok {
			h.markWide(n)
			largest, _ := h.Observed(in)
			return tensor.Float32, fmt.Sprintf("reads %s of %s, which stays float32 and reaches %g", in, maker, largest)
		}
	}
	return h.DType, ""
}

// mustKeep returns why n cannot be 16-bit; empty if it can.
func (h *half) mustKeep(n *onnxpb.NodeProto) string {
	if d := onnx.Domain(n.GetDomain()); d != "" {
		if _, ok := h.typer.functions[onnx.CallKey(n)]; ok {
			return fmt.Sprintf("function %s.%s: its body stays float32", n.GetDomain(), n.GetOpType())
		}
		return "operator of domain " + d
	}
	if r, ok := float32Operators[n.GetOpType()]; ok {
		return r
	}
	if h.DType == tensor.BFloat16 {
		if r := refusesBFloat16(n.GetOpType(), h.opset); r != "" {
			return r
		}
	}
	switch n.GetOpType() {
	case "CumSum":
		if h.opset < 14 {
			return "CumSum takes float32 before opset 14"
		}
	case "QuantizeLinear", "DequantizeLinear":
		return h.keepQuantizer(n)
	}
	for _, o := range n.GetOutput() {
		if o != "" && h.originOf(o) == fromShape {
			return "computes with shapes"
		}
	}
	return ""
}

// keepQuantizer lets Q and DQ be low from opset 19 on, where their scales have
// a float16 form that is exact enough.
func (h *half) keepQuantizer(n *onnxpb.NodeProto) string {
	if h.opset < 19 {
		return "quantizes float32 before opset 19"
	}
	if len(n.GetInput()) < 2 {
		return "has no scale"
	}
	for s := h; s != nil; s = s.outer {
		t, ok := s.constants[n.GetInput()[1]]
		if !ok {
			continue
		}
		data, err := h.model.TensorData(t)
		if err != nil {
			return "its scale cannot be read"
		}
		for _, v := range data.Float32s() {
			if low := lowestScale(h.DType); float64(v) < low {
				return fmt.Sprintf("its scale %g is too small for %s", v, h.DType)
			}
		}
		return ""
	}
	return "its scale is no constant"
}

// lowestScale is the smallest scale that a 16-bit type holds as precisely as
// larger ones.
func lowestScale(d tensor.DType) float64 {
	if d == tensor.Float16 {
		return smallestNormalHalf
	}
	return 0
}

const smallestNormalHalf = 6.103515625e-05

// floats returns those of the names that are float32 values.
func (h *half) floats(names []string) []string {
	var out []string
	for _, n := range names {
		if n != "" && h.types.of(n) == tensor.Float32 {
			out = append(out, n)
		}
	}
	return out
}

// follow returns the type that a value has already.
func (h *half) follow(value string) tensor.DType {
	_, versions := h.find(value)
	if _, ok := versions[tensor.Float32]; ok || versions == nil {
		return tensor.Float32
	}
	return h.DType
}

// markWide remembers outputs of a node that stays float32 and whose values do
// not fit into the low type: casting them for a reader would overflow, so the
// reader has to stay float32 too.
func (h *half) markWide(n *onnxpb.NodeProto) {
	if h.Observed == nil || h.outer != nil {
		return
	}
	for _, o := range h.floats(n.GetOutput()) {
		if largest, ok := h.Observed(o); ok && largest > largestOf(h.DType) {
			h.wide[o] = h.place.Name(n)
		}
	}
}

func (h *half) wideMaker(value string) (node string, ok bool) {
	for s := h; s != nil; s = s.outer {
		if node, ok = s.wide[value]; ok {
			return node, true
		}
	}
	return "", false
}

// pinnedInput reports whether input i stays float32 whatever the node computes in.
func pinnedInput(n *onnxpb.NodeProto, i int) bool {
	switch n.GetOpType() {
	case "Resize":
		return i == 1 || i == 2 // roi, scales
	case "Upsample":
		return i == 1 // scales
	case "Dropout":
		return i == 1 // ratio
	}
	return false
}

// fixedOutput reports whether output i is float32 whatever the node computes in.
func fixedOutput(n *onnxpb.NodeProto, i int) bool {
	return n.GetOpType() == "LayerNormalization" && i > 0 // stash_type
}

// retargetAttributes gives the low type to nodes whose output type is an attribute.
func (h *half) retargetAttributes(n *onnxpb.NodeProto) {
	if h.Emulate {
		return
	}
	if n.GetOpType() != "Cast" {
		return
	}
	if a := onnx.Attribute(n, "to"); a != nil && a.GetI() == int64(onnxpb.TensorProto_FLOAT) {
		code := int64(h.code)
		a.I = &code
	}
}
