package precision

import (
	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
)

func newNode(op, name string, inputs, outputs []string, attributes ...*onnxpb.AttributeProto) *onnxpb.NodeProto {
	return &onnxpb.NodeProto{OpType: &op, Name: &name, Input: inputs, Output: outputs, Attribute: attributes}
}

func intAttribute(name string, v int64) *onnxpb.AttributeProto {
	return &onnxpb.AttributeProto{Name: &name, Type: onnxpb.AttributeProto_INT.Enum(), I: &v}
}

// dropUnused removes initializers and Constant nodes that nothing reads any
// more, in g and the graphs nested in it. Initializers that are inputs stay.
func dropUnused(g *onnxpb.GraphProto) {
	for _, n := range g.GetNode() {
		for _, sub := range onnx.Subgraphs(n) {
			dropUnused(sub)
		}
	}
	x := onnx.NewIndex(g)
	initializers := g.Initializer[:0]
	for _, t := range g.GetInitializer() {
		if _, input := x.Inputs[t.GetName()]; input || x.Uses[t.GetName()] > 0 {
			initializers = append(initializers, t)
		}
	}
	g.Initializer = initializers
	nodes := g.Node[:0]
	for _, n := range g.GetNode() {
		if !isConstant(n) || x.Uses[n.GetOutput()[0]] > 0 {
			nodes = append(nodes, n)
		}
	}
	g.Node = nodes
	infos := g.ValueInfo[:0]
	y := onnx.NewIndex(g)
	for _, v := range g.GetValueInfo() {
		_, made := y.Producers[v.GetName()]
		if made || y.Initializers[v.GetName()] != nil {
			infos = append(infos, v)
		}
	}
	g.ValueInfo = infos
}
