package graph

import (
	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
	"google.golang.org/protobuf/proto"
)

// Model writes the module back into a new message over the same data files.
// The source is not changed.
func (m *Module) Model() *onnx.Model {
	m.Sweep()
	src := m.Source.Proto
	p := &onnxpb.ModelProto{
		IrVersion: src.IrVersion, OpsetImport: m.imports, ProducerName: src.ProducerName, ProducerVersion: src.ProducerVersion,
		Domain: src.Domain, ModelVersion: src.ModelVersion, DocString: src.DocString, MetadataProps: src.MetadataProps,
		TrainingInfo: src.TrainingInfo, Configuration: src.Configuration,
	}
	p.ProtoReflect().SetUnknown(src.ProtoReflect().GetUnknown())
	for _, f := range src.GetFunctions() {
		if !m.dropped[onnx.KeyOf(f)] {
			p.Functions = append(p.Functions, f)
		}
	}
	if src.GetIrVersion() < int64(onnxpb.Version_IR_VERSION_2019_1_22) {
		p.IrVersion = proto.Int64(int64(onnxpb.Version_IR_VERSION_2019_1_22))
	}
	p.Graph = m.Main.message()
	return m.Source.With(p)
}

func (g *Graph) message() *onnxpb.GraphProto {
	src := g.proto
	p := &onnxpb.GraphProto{
		Name: src.Name, DocString: src.DocString, MetadataProps: src.MetadataProps, SparseInitializer: src.SparseInitializer,
		Node: make([]*onnxpb.NodeProto, 0, len(g.Nodes)), Initializer: make([]*onnxpb.TensorProto, 0, len(g.Inits)),
	}
	p.ProtoReflect().SetUnknown(src.ProtoReflect().GetUnknown())
	listed := map[*Value]bool{}
	for _, v := range g.Inputs {
		listed[v] = true
		p.Input = append(p.Input, named(g.infos[v], v.Name))
	}
	for i, v := range g.Outputs {
		listed[v] = true
		p.Output = append(p.Output, named(g.ends[i], v.Name))
	}
	for _, v := range g.Inits {
		p.Initializer = append(p.Initializer, namedTensor(v.Init, v.Name))
		g.keepInfo(p, listed, v)
	}
	for _, n := range g.Nodes {
		p.Node = append(p.Node, n.message())
		for _, o := range n.Out {
			if o != nil {
				g.keepInfo(p, listed, o)
			}
		}
	}
	for _, a := range g.annots {
		name := a.tensor.Name
		out := &onnxpb.TensorAnnotation{TensorName: &name}
		for _, q := range a.params {
			key, value := q.key, q.value.Name
			out.QuantParameterTensorNames = append(out.QuantParameterTensorNames, &onnxpb.StringStringEntryProto{Key: &key, Value: &value})
		}
		p.QuantizationAnnotation = append(p.QuantizationAnnotation, out)
	}
	return p
}

// keepInfo writes the declared type of an inner value.
func (g *Graph) keepInfo(p *onnxpb.GraphProto, listed map[*Value]bool, v *Value) {
	if info := g.infos[v]; info != nil && !listed[v] {
		listed[v] = true
		p.ValueInfo = append(p.ValueInfo, named(info, v.Name))
	}
}

func named(info *onnxpb.ValueInfoProto, name string) *onnxpb.ValueInfoProto {
	if info.GetName() == name {
		return info
	}
	c := &onnxpb.ValueInfoProto{Name: &name, Type: info.GetType(), DocString: info.DocString, MetadataProps: info.MetadataProps}
	c.ProtoReflect().SetUnknown(info.ProtoReflect().GetUnknown())
	return c
}

func namedTensor(t *onnxpb.TensorProto, name string) *onnxpb.TensorProto {
	if t.GetName() == name {
		return t
	}
	c := &onnxpb.TensorProto{
		Dims: t.Dims, DataType: t.DataType, Segment: t.Segment, FloatData: t.FloatData, Int32Data: t.Int32Data, StringData: t.StringData,
		Int64Data: t.Int64Data, Name: &name, DocString: t.DocString, RawData: t.RawData, ExternalData: t.ExternalData,
		DataLocation: t.DataLocation, DoubleData: t.DoubleData, Uint64Data: t.Uint64Data, MetadataProps: t.MetadataProps,
	}
	c.ProtoReflect().SetUnknown(t.ProtoReflect().GetUnknown())
	return c
}

func (n *Node) message() *onnxpb.NodeProto {
	p := &onnxpb.NodeProto{Input: make([]string, len(n.In)), Output: make([]string, len(n.Out)), OpType: &n.Op}
	if n.proto != nil {
		p.DocString, p.MetadataProps, p.DeviceConfigurations = n.proto.DocString, n.proto.MetadataProps, n.proto.DeviceConfigurations
		p.ProtoReflect().SetUnknown(n.proto.ProtoReflect().GetUnknown())
	}
	if n.Name != "" {
		p.Name = &n.Name
	}
	if n.Domain != "" {
		p.Domain = &n.Domain
	}
	if n.Overload != "" {
		p.Overload = &n.Overload
	}
	for i, v := range n.In {
		if v != nil {
			p.Input[i] = v.Name
		}
	}
	for i, v := range n.Out {
		if v != nil {
			p.Output[i] = v.Name
		}
	}
	p.Attribute = append(p.Attribute, n.Attrs...)
	for _, s := range n.Subs {
		g := s.Graph.message()
		if s.Index <= 0 {
			p.Attribute = append(p.Attribute, subAttribute(n, s))
		}
		a := p.Attribute[len(p.Attribute)-1]
		if s.Index < 0 {
			a.G = g
		} else {
			a.Graphs = append(a.Graphs, g)
		}
	}
	return p
}

// subAttribute returns a copy of the attribute that held s, without its graphs.
func subAttribute(n *Node, s Sub) *onnxpb.AttributeProto {
	old := onnx.Attribute(n.proto, s.Attr)
	a := &onnxpb.AttributeProto{Name: old.Name, DocString: old.DocString, Type: old.Type}
	a.ProtoReflect().SetUnknown(old.ProtoReflect().GetUnknown())
	return a
}
