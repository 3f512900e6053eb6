package graph

import (
	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
)

// Load makes a Module of a model that Check accepts. Weights that a file before
// IR version 4 lists among its inputs become plain constants.
func Load(m *onnx.Model) *Module {
	mod := &Module{
		Source: m, Functions: m.Functions(), names: m.NewNames(), dropped: map[onnx.FunctionKey]bool{},
		imports: m.Proto.GetOpsetImport(), symbols: newSymbols(),
	}
	mod.Opsets, _ = onnx.Opsets(m.Proto.GetOpsetImport())
	mod.findImpure()
	l := &loader{mod: mod, legacy: m.Proto.GetIrVersion() < int64(onnxpb.Version_IR_VERSION_2019_1_22)}
	mod.Main = l.graph(m.Graph(), nil, nil)
	return mod
}

type loader struct {
	mod    *Module
	legacy bool // IR below 4: inputs with an initializer are constants
}

// frame is the names that a graph defines.
type frame struct {
	outer  *frame
	byName map[string]*Value
}

func (f *frame) lookup(name string) *Value {
	for ; f != nil; f = f.outer {
		if v, ok := f.byName[name]; ok {
			return v
		}
	}
	return nil
}

func (l *loader) graph(p *onnxpb.GraphProto, parent *Node, outer *frame) *Graph {
	g := &Graph{Module: l.mod, Parent: parent, proto: p, infos: make(map[*Value]*onnxpb.ValueInfoProto, len(p.GetValueInfo()))}
	f := &frame{outer: outer, byName: make(map[string]*Value, len(p.GetNode())+len(p.GetInitializer()))}
	define := func(name string) *Value {
		v := &Value{Name: name, ID: l.mod.newID(), Graph: g}
		if outer.lookup(name) != nil { // shadows: give it a name of its own
			v.Name = l.mod.names.Fresh(name)
		}
		f.byName[name] = v
		return v
	}
	l.start(g, f, define)
	g.Nodes = make([]*Node, 0, len(p.GetNode()))
	for _, n := range p.GetNode() {
		g.Nodes = append(g.Nodes, l.node(n, g, f, define))
	}
	for _, o := range p.GetOutput() {
		v := f.byName[o.GetName()]
		v.slots++
		g.Outputs = append(g.Outputs, v)
		// An input that is an output as well is declared twice, and one of the
		// two may say less than the other.
		g.ends = append(g.ends, o)
		if !v.Input {
			g.infos[v] = o
		}
	}
	for _, info := range p.GetValueInfo() {
		if v := f.byName[info.GetName()]; v != nil && g.infos[v] == nil {
			g.infos[v] = info
		}
	}
	l.annotations(g, f)
	return g
}

// start defines inputs and initializers.
func (l *loader) start(g *Graph, f *frame, define func(string) *Value) {
	initial := map[string]bool{}
	for _, t := range g.proto.GetInitializer() {
		initial[t.GetName()] = true
	}
	for _, in := range g.proto.GetInput() {
		if l.legacy && g.Parent == nil && initial[in.GetName()] {
			continue
		}
		v := define(in.GetName())
		v.Input = true
		g.Inputs = append(g.Inputs, v)
		g.infos[v] = in
	}
	for _, t := range g.proto.GetInitializer() {
		v := f.byName[t.GetName()]
		if v == nil {
			v = define(t.GetName())
		}
		v.Init = t
		g.Inits = append(g.Inits, v)
	}
	for _, s := range g.proto.GetSparseInitializer() {
		if name := s.GetValues().GetName(); f.byName[name] == nil {
			v := define(name)
			v.Name = name // the sparse tensor is written as it is
			v.pins++
		}
	}
}

func (l *loader) node(p *onnxpb.NodeProto, g *Graph, f *frame, define func(string) *Value) *Node {
	n := &Node{
		Name: p.GetName(), Op: p.GetOpType(), Domain: onnx.Domain(p.GetDomain()), Overload: p.GetOverload(), Graph: g, proto: p,
		In: make([]*Value, len(p.GetInput())), Out: make([]*Value, len(p.GetOutput())),
		at: make([]int, len(p.GetInput())),
	}
	for i, name := range p.GetInput() {
		if name != "" {
			n.In[i] = f.lookup(name)
			n.In[i].addUse(n, i)
		}
	}
	for _, a := range p.GetAttribute() {
		if a.G == nil && len(a.GetGraphs()) == 0 {
			n.Attrs = append(n.Attrs, a)
			continue
		}
		if a.G != nil {
			n.Subs = append(n.Subs, Sub{a.GetName(), -1, l.graph(a.G, n, f)})
		}
		for i, sub := range a.GetGraphs() {
			n.Subs = append(n.Subs, Sub{a.GetName(), i, l.graph(sub, n, f)})
		}
	}
	for i, name := range p.GetOutput() {
		if name != "" {
			v := define(name)
			v.Def, v.Index = n, i
			n.Out[i] = v
		}
	}
	return n
}

// annotations resolves quantization annotations; their values stay.
func (l *loader) annotations(g *Graph, f *frame) {
	for _, a := range g.proto.GetQuantizationAnnotation() {
		t := f.byName[a.GetTensorName()]
		if t == nil {
			continue
		}
		t.pins++
		ann := annotation{tensor: t}
		for _, p := range a.GetQuantParameterTensorNames() {
			if v := f.lookup(p.GetValue()); v != nil {
				v.pins++
				ann.params = append(ann.params, annotationParam{p.GetKey(), v})
			}
		}
		g.annots = append(g.annots, ann)
	}
}
