package precision

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
	"github.com/trtship/trtship/internal/tensor"
)

// axesBecameInput are the reductions whose axes moved from an attribute to an
// input in opset 18; ReduceSum had moved in 13.
var axesBecameInput = map[string]bool{
	"ReduceMax": true, "ReduceMean": true, "ReduceMin": true, "ReduceProd": true, "ReduceL1": true, "ReduceL2": true,
	"ReduceLogSum": true, "ReduceLogSumExp": true, "ReduceSumSquare": true,
}

// RaiseOpset returns a copy of m in opset 19, in which QuantizeLinear and
// DequantizeLinear take float16, if m is in opset 13 to 18. Between these
// versions only reductions and Split have to be rewritten.
func RaiseOpset(m *onnx.Model) (*onnx.Model, error) {
	const want = 19
	have := m.Opset("")
	if have >= want {
		return m, nil
	}
	if have < 13 {
		return nil, failure.New(failure.Model, "raise the opset to %d: the model has opset %d, 13 is needed", want, have).
			WithHint("export with export.opset 13 or later")
	}
	clone, _ := proto.Clone(m.Proto).(*onnxpb.ModelProto)
	out := m.With(clone)
	names := out.NewNames()
	raiseGraph(clone.GetGraph(), have, names)
	for _, o := range clone.GetOpsetImport() {
		if onnx.Domain(o.GetDomain()) == "" {
			v := int64(want)
			o.Version = &v
		}
	}
	for _, f := range clone.GetFunctions() {
		for _, o := range f.GetOpsetImport() {
			if onnx.Domain(o.GetDomain()) == "" && o.GetVersion() != want {
				return nil, failure.New(failure.Model, "raise the opset to %d: function %s.%s is in opset %d", want, f.GetDomain(), f.GetName(), o.GetVersion()).
					WithHint("set tensorrt.int8_fp16_fallback: false, or inline the functions")
			}
		}
	}
	return out, nil
}

func raiseGraph(g *onnxpb.GraphProto, have int64, names *onnx.Names) {
	for _, n := range g.GetNode() {
		for _, sub := range onnx.Subgraphs(n) {
			raiseGraph(sub, have, names)
		}
		if onnx.Domain(n.GetDomain()) != "" || have >= 18 {
			continue
		}
		switch {
		case axesBecameInput[n.GetOpType()]:
			axes := onnx.IntsAttribute(n, "axes")
			if len(axes) == 0 {
				continue
			}
			name := names.Fresh(fmt.Sprintf("%s_axes", n.GetOutput()[0]))
			g.Initializer = append(g.Initializer, onnx.NewTensor(name, tensor.FromInt64s(tensor.Int64, []int64{int64(len(axes))}, axes)))
			n.Input = append(n.Input, name)
			dropAttribute(n, "axes")
		case n.GetOpType() == "Split" && len(n.GetInput()) < 2 && onnx.Attribute(n, "num_outputs") == nil:
			n.Attribute = append(n.Attribute, intAttribute("num_outputs", int64(len(n.GetOutput()))))
		}
	}
}

func dropAttribute(n *onnxpb.NodeProto, name string) {
	kept := n.Attribute[:0]
	for _, a := range n.GetAttribute() {
		if a.GetName() != name {
			kept = append(kept, a)
		}
	}
	n.Attribute = kept
}
