package precision

import (
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

// halfQuantizers is the opset from which on QuantizeLinear and DequantizeLinear
// take float16.
const halfQuantizers = 19

// RaiseOpset returns a copy of m in opset want, at most 22, if m is in opset 13
// or later. Nodes whose form changed on the way are rewritten: reductions, Split,
// RoiAlign, GridSample, DFT. Compared by their signatures in onnx 1.23, all other
// operators of opsets 13 to 22 gained types, and attributes and inputs whose
// default is what they did before; the two that did not, GroupNormalization 18
// and BatchNormalization in training, are refused.
func RaiseOpset(m *onnx.Model, want int64) (*onnx.Model, error) {
	have := m.Opset("")
	if have >= want {
		return m, nil
	}
	if have < 13 {
		return nil, failure.New(failure.Model, "raise the opset to %d: the model has opset %d, 13 is needed", want, have).
			WithHint("export with export.opset 13 or later")
	}
	for _, f := range m.Proto.GetFunctions() {
		for _, o := range f.GetOpsetImport() {
			if onnx.Domain(o.GetDomain()) == "" && o.GetVersion() != want {
				return nil, failure.New(failure.Model, "raise the opset to %d: function %s.%s is in opset %d", want, f.GetDomain(), f.GetName(), o.GetVersion()).
					WithHint("set tensorrt.int8_fp16_fallback: false, or inline the functions")
			}
		}
	}
	clone, _ := proto.Clone(m.Proto).(*onnxpb.ModelProto)
	out := m.With(clone)
	r := &raiser{have: have, want: want, names: out.NewNames()}
	if err := r.graph(onnx.Place{Graph: clone.GetGraph()}); err != nil {
		return nil, err
	}
	for _, o := range clone.GetOpsetImport() {
		if onnx.Domain(o.GetDomain()) == "" {
			o.Version = &want
		}
	}
	return out, nil
}

// raiser rewrites nodes for a later opset.
type raiser struct {
	have, want int64
	names      *onnx.Names
}

// crosses reports whether the step to a version lies on the way.
func (r *raiser) crosses(version int64) bool { return r.have < version && version <= r.want }

func (r *raiser) graph(p onnx.Place) error {
	for _, n := range p.Graph.GetNode() {
		for _, sub := range onnx.Subgraphs(n) {
			if err := r.graph(onnx.Place{Graph: sub}); err != nil {
				return err
			}
		}
		if onnx.Domain(n.GetDomain()) != "" {
			continue
		}
		if err := r.node(p, n); err != nil {
			return err
		}
	}
	return nil
}

func (r *raiser) node(p onnx.Place, n *onnxpb.NodeProto) error {
	switch op := n.GetOpType(); {
	case axesBecameInput[op] && r.crosses(18):
		if axes := onnx.IntsAttribute(n, "axes"); len(axes) > 0 {
			r.input(p.Graph, n, 1, "axes", tensor.FromInt64s(tensor.Int64, []int64{int64(len(axes))}, axes))
			dropAttribute(n, "axes")
		}
	case op == "Split" && r.crosses(18):
		if len(n.GetInput()) < 2 && onnx.Attribute(n, "num_outputs") == nil {
			n.Attribute = append(n.Attribute, intAttribute("num_outputs", int64(len(n.GetOutput()))))
		}
	case op == "RoiAlign" && r.crosses(16):
		n.Attribute = append(n.Attribute, textAttribute("coordinate_transformation_mode", "output_half_pixel")) // there was no other
	case op == "GridSample" && r.crosses(20):
		if a := onnx.Attribute(n, "mode"); a != nil {
			a.S = []byte(map[string]string{"bilinear": "linear", "bicubic": "cubic"}[string(a.GetS())])
			if len(a.S) == 0 {
				a.S = []byte("nearest")
			}
		}
	case op == "DFT" && r.crosses(20):
		axis := int64(1)
		if a := onnx.Attribute(n, "axis"); a != nil {
			axis = a.GetI()
		}
		r.input(p.Graph, n, 2, "axis", tensor.FromInt64s(tensor.Int64, []int64{}, []int64{axis}))
		dropAttribute(n, "axis")
	case op == "GroupNormalization" && r.crosses(21):
		return failure.New(failure.Model, "raise the opset to %d: %s: GroupNormalization had a scale for each group before opset 21", r.want, p.Name(n))
	case op == "BatchNormalization" && r.crosses(14) && len(n.GetOutput()) > 1:
		return failure.New(failure.Model, "raise the opset to %d: %s: BatchNormalization of a training graph", r.want, p.Name(n))
	}
	return nil
}

// input adds a constant as input at of n; those in front that are not there are
// left out.
func (r *raiser) input(g *onnxpb.GraphProto, n *onnxpb.NodeProto, at int, what string, value tensor.Tensor) {
	name := r.names.Fresh(n.GetOutput()[0] + "_" + what)
	g.Initializer = append(g.Initializer, onnx.NewTensor(name, value))
	for len(n.Input) < at {
		n.Input = append(n.Input, "")
	}
	n.Input = append(n.Input, name)
}

func textAttribute(name, v string) *onnxpb.AttributeProto {
	return &onnxpb.AttributeProto{Name: &name, Type: onnxpb.AttributeProto_STRING.Enum(), S: []byte(v)}
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
