package locate

import (
	"google.golang.org/protobuf/proto"

	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
	"github.com/trtship/trtship/internal/precision"
	"github.com/trtship/trtship/internal/tensor"
)

// cuts makes prefixes of a graph. Constant nodes count as part of the node
// that first reads them.
type cuts struct {
	model *onnx.Model
	nodes []*onnxpb.NodeProto // all of them, in the order of the graph
	steps []int               // step i is behind nodes[steps[i]]
	types map[string]tensor.DType
}

func newCuts(m *onnx.Model) *cuts {
	c := &cuts{model: m, nodes: m.Graph().GetNode(), types: map[string]tensor.DType{}}
	for _, a := range precision.Activations(m) {
		c.types[a.Name] = a.DType
	}
	for i, n := range c.nodes {
		if onnx.Operator(n) != "Constant" {
			c.steps = append(c.steps, i)
		}
	}
	return c
}

func (c *cuts) len() int { return len(c.steps) }

func (c *cuts) node(step int) *onnxpb.NodeProto { return c.nodes[c.steps[step]] }

// prefix returns the graph of the first k steps. Its outputs are the
// floating-point values that later nodes or the graph's outputs read; nil if
// there is none.
func (c *cuts) prefix(k int) *onnx.Model {
	if k == c.len() {
		return c.model
	}
	end := c.steps[k-1] + 1
	made := map[string]bool{}
	var order []string
	for _, n := range c.nodes[:end] {
		if onnx.Operator(n) == "Constant" {
			continue
		}
		for _, o := range n.GetOutput() {
			if o != "" && c.types[o] == tensor.Float32 {
				made[o] = true
				order = append(order, o)
			}
		}
	}
	read := c.readBehind(end)
	clone, _ := proto.Clone(c.model.Proto).(*onnxpb.ModelProto)
	g := clone.GetGraph()
	g.Node = g.Node[:end]
	g.Output = nil
	for _, name := range order {
		if made[name] && read[name] {
			g.Output = append(g.Output, float32Output(c.model.Graph(), name))
		}
	}
	if len(g.Output) == 0 {
		return nil
	}
	dropUnread(g)
	return c.model.With(clone)
}

// readBehind returns the names that nodes from `from` on, graphs nested in
// them, or the graph's outputs read.
func (c *cuts) readBehind(from int) map[string]bool {
	rest := &onnxpb.GraphProto{Node: c.nodes[from:], Output: c.model.Graph().GetOutput()}
	read := map[string]bool{}
	for name := range onnx.NewIndex(rest).Uses {
		read[name] = true
	}
	return read
}

// float32Output declares a value as an output, with its known dimensions.
func float32Output(g *onnxpb.GraphProto, name string) *onnxpb.ValueInfoProto {
	for _, list := range [][]*onnxpb.ValueInfoProto{g.GetValueInfo(), g.GetOutput()} {
		for _, v := range list {
			if v.GetName() == name {
				return v
			}
		}
	}
	elem := onnx.DataType(tensor.Float32)
	return &onnxpb.ValueInfoProto{Name: proto.String(name), Type: &onnxpb.TypeProto{
		Value: &onnxpb.TypeProto_TensorType{TensorType: &onnxpb.TypeProto_Tensor{ElemType: &elem}},
	}}
}

// dropUnread removes nodes and weights that no output of the prefix needs:
// they would only lengthen every build. Graph inputs stay.
func dropUnread(g *onnxpb.GraphProto) {
	for {
		x := onnx.NewIndex(g)
		nodes := g.Node[:0]
		for _, n := range g.GetNode() {
			for _, o := range n.GetOutput() {
				if x.Uses[o] > 0 {
					nodes = append(nodes, n)
					break
				}
			}
		}
		weights := g.Initializer[:0]
		for _, t := range g.GetInitializer() {
			if _, input := x.Inputs[t.GetName()]; input || x.Uses[t.GetName()] > 0 {
				weights = append(weights, t)
			}
		}
		same := len(nodes) == len(g.Node)
		g.Node, g.Initializer, g.ValueInfo = nodes, weights, nil
		if same {
			return
		}
	}
}

// present returns the names of keep that are in the first k steps: a name that
// matches no node is refused by the conversion.
func (c *cuts) present(keep []string, k int) []string {
	var out []string
	for _, name := range keep {
		for _, n := range c.nodes[:c.steps[k-1]+1] {
			if onnx.NodeName(n) == name {
				out = append(out, name)
				break
			}
		}
	}
	return out
}
