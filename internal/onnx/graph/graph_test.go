package graph

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
	"github.com/trtship/trtship/internal/onnx/onnxtest"
	"github.com/trtship/trtship/internal/tensor"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
)

func TestLoadingAndWritingBackChangesNothing(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("..", "..", "..", "testdata", "cases", "*", "*.onnx"))
	if err != nil || len(files) < 60 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	tried := 0
	for _, f := range files {
		m, err := onnx.Open(f)
		if err != nil {
			continue
		}
		before := proto.Clone(m.Proto)
		got := Load(m).Model()
		if !proto.Equal(before, m.Proto) {
			t.Errorf("%s: the source was changed", f)
		}
		want := before.(*onnxpb.ModelProto)
		forgetEmptyDomains(want.Graph)
		if want.GetIrVersion() < 4 { // weights leave the inputs
			want.IrVersion = got.Proto.IrVersion
			want.Graph.Input = got.Graph().Input
		}
		if d := cmp.Diff(want, got.Proto, protocmp.Transform(), protocmp.SortRepeated(func(a, b *onnxpb.AttributeProto) bool { return a.GetName() < b.GetName() })); d != "" {
			t.Errorf("%s (-want +got):\n%s", f, d)
		}
		tried++
	}
	if tried < 50 {
		t.Errorf("only %d models were tried", tried)
	}
}

// What is declared at one place may say less than at the other.
func TestAnInputThatIsAnOutputKeepsBothDeclarations(t *testing.T) {
	m := onnxtest.New(17).Input("x", tensor.Float32, "batch", 4).Input("z", tensor.Float32, nil, nil).Node("Add", "x z", "y").
		Output("x", tensor.Float32, nil, nil).Output("z", tensor.Float32, 2, 4).Output("y", tensor.Float32, "batch", 4).Model(t)
	mod := Load(m)
	if d := cmp.Diff(m.Graph(), mod.Model().Graph(), protocmp.Transform()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if err := mod.Infer(nil); err != nil {
		t.Fatal(err)
	}
	if got := mod.Main.Inputs[0].Fact.Shape; len(got) != 2 || got[1].N != 4 {
		t.Errorf("the input x has shape %v, want [batch 4]", got)
	}
}

// forgetEmptyDomains makes a domain that is empty one that is not there.
func forgetEmptyDomains(g *onnxpb.GraphProto) {
	for _, n := range g.Node {
		if n.GetDomain() == "" {
			n.Domain = nil
		}
		for _, sub := range onnx.Subgraphs(n) {
			forgetEmptyDomains(sub)
		}
	}
}

func TestAnnotationsSparseWeightsAndTypesSurvive(t *testing.T) {
	b := onnxtest.New(17).Input("x", tensor.Float32, "n").Floats("scale", []int64{1}, 0.5).Node("Relu", "x", "h").Node("Neg", "h", "y").Output("y", tensor.Float32, "n")
	key, tname, sname := "SCALE_TENSOR", "h", "scale"
	b.Graph.QuantizationAnnotation = []*onnxpb.TensorAnnotation{{TensorName: &tname, QuantParameterTensorNames: []*onnxpb.StringStringEntryProto{{Key: &key, Value: &sname}}}}
	b.Graph.ValueInfo = []*onnxpb.ValueInfoProto{onnxtest.Info("h", tensor.Float32, "n")}
	b.Graph.SparseInitializer = []*onnxpb.SparseTensorProto{{
		Values: onnx.NewTensor("sp", tensor.FromFloat32s([]int64{1}, []float32{1})), Indices: onnx.NewTensor("", tensor.FromInt64s(tensor.Int64, []int64{1}, []int64{0})), Dims: []int64{3},
	}}
	m := b.Model(t)
	mod := Load(m)
	h := mod.Main.Nodes[0].Out[0]
	if !h.Used() || h.OnlyUser() != nil {
		t.Error("an annotated value must be kept and may not be merged away")
	}
	h.Name = "renamed"
	got := mod.Model()
	if name := got.Graph().QuantizationAnnotation[0].GetTensorName(); name != "renamed" {
		t.Errorf("the annotation is for %q", name)
	}
	if got.Graph().ValueInfo[0].GetName() != "renamed" || got.Graph().SparseInitializer[0].Values.GetName() != "sp" {
		t.Error("type or sparse tensor was lost")
	}
	if m.Graph().ValueInfo[0].GetName() != "h" {
		t.Error("the source was changed")
	}
}

// branchy is an If whose branches read h and k from outside; then defines its
// own k.
func branchy() *onnxtest.Builder {
	then := onnxtest.New(17).Floats("k", []int64{1}, 5).Node("Mul", "h k", "to").Output("to", tensor.Float32, "n")
	other := onnxtest.New(17).Node("Mul", "h k", "eo").Output("eo", tensor.Float32, "n")
	return onnxtest.New(17).Input("x", tensor.Float32, "n").Input("c", tensor.Bool).Floats("k", []int64{1}, 2).
		Node("Relu", "x", "h").Node("If", "c", "y", onnxtest.Body("then_branch", then), onnxtest.Body("else_branch", other)).Output("y", tensor.Float32, "n")
}

func TestNestedGraphsReadOuterValuesUnlessTheyDefineTheName(t *testing.T) {
	mod := Load(branchy().Model(t))
	h := mod.Main.Nodes[0].Out[0]
	k := mod.Main.Inits[0]
	if h.Readers() != 2 || k.Readers() != 1 {
		t.Errorf("h has %d readers, k %d", h.Readers(), k.Readers())
	}
	then := mod.Main.Nodes[1].Subs[0].Graph
	if own := then.Inits[0]; own.Readers() != 1 || own.Name == "k" {
		t.Errorf("the inner k is called %q and has %d readers", own.Name, own.Readers())
	}
	if got := mod.Graphs(); len(got) != 3 || got[0] != mod.Main {
		t.Errorf("%d graphs", len(got))
	}
	if mod.CountNodes() != 4 {
		t.Errorf("%d nodes", mod.CountNodes())
	}
	// Removing the If releases what its branches read.
	y := mod.Main.Outputs[0]
	n := mod.Main.Nodes[1]
	n.Out[0] = nil
	n.Remove()
	n.Remove() // twice does nothing
	if h.Readers() != 0 || k.Readers() != 0 || !y.IsOutput() {
		t.Errorf("h has %d readers, k %d", h.Readers(), k.Readers())
	}
}

func TestReadersMoveAndAreCounted(t *testing.T) {
	b := onnxtest.New(17).Input("x", tensor.Float32, "n").Node("Relu", "x", "a").Node("Neg", "x", "b")
	for i := range 50 {
		b.Node("Add", "a b", fmt.Sprintf("s%d", i))
	}
	b.Node("Sum", "a a b", "y").Output("y", tensor.Float32, "n")
	mod := Load(b.Model(t))
	va, vb := mod.Main.Nodes[0].Out[0], mod.Main.Nodes[1].Out[0]
	if va.Readers() != 52 || vb.Readers() != 51 {
		t.Fatalf("%d and %d readers", va.Readers(), vb.Readers())
	}
	va.ReplaceReaders(vb)
	va.ReplaceReaders(va)
	if va.Readers() != 0 || vb.Readers() != 103 || va.Used() {
		t.Errorf("%d and %d readers", va.Readers(), vb.Readers())
	}
	seen := 0
	vb.Users(func(n *Node, in int) bool {
		if n.In[in] != vb {
			t.Error("a reader does not read")
		}
		seen++
		return seen < 10
	})
	if seen != 10 {
		t.Errorf("visited %d readers", seen)
	}
	n := mod.Main.Nodes[2]
	for range 100 { // to and fro
		n.SetInput(0, va)
		n.SetInput(0, vb)
	}
	if va.Readers() != 0 || vb.Readers() != 103 {
		t.Errorf("%d and %d readers", va.Readers(), vb.Readers())
	}
	n.SetInputs(va)
	if len(n.In) != 1 || va.OnlyUser() != n {
		t.Errorf("inputs are %v", n.In)
	}
	n.SetInput(2, va)
	if len(n.In) != 3 || n.Input(1) != nil || n.Input(9) != nil || n.Output(9) != nil {
		t.Error("inputs in between must be left out")
	}
}

func TestBypassKeepsPublicNames(t *testing.T) {
	mod := Load(onnxtest.New(17).Input("x", tensor.Float32, "n").Node("Relu", "x", "h").Node("Identity", "h", "y").Output("y", tensor.Float32, "n").Model(t))
	id := mod.Main.Nodes[1]
	if !id.Bypass(id.In[0]) || !id.Removed {
		t.Fatal("the Identity stays")
	}
	g := mod.Model().Graph()
	if len(g.Node) != 1 || g.Node[0].Output[0] != "y" || g.Output[0].GetName() != "y" {
		t.Errorf("graph is %v", g)
	}
	mod = Load(onnxtest.New(17).Input("x", tensor.Float32, "n").Node("Identity", "x", "y").Output("y", tensor.Float32, "n").Model(t))
	id = mod.Main.Nodes[0]
	if id.Bypass(id.In[0]) || id.Removed {
		t.Error("an input cannot be an output by another name")
	}
}

func TestMergeOfTwoOutputsIsRefused(t *testing.T) {
	mod := Load(onnxtest.New(17).Input("x", tensor.Float32, "n").Node("Relu", "x", "a").Node("Relu", "x", "b").Node("Relu", "x", "c").
		Output("a", tensor.Float32, "n").Output("b", tensor.Float32, "n").Model(t))
	a, b, c := mod.Main.Nodes[0].Out[0], mod.Main.Nodes[1].Out[0], mod.Main.Nodes[2].Out[0]
	if CanMerge(a, b) || Merge(a, b) {
		t.Error("two outputs became one")
	}
	if !CanMerge(c, b) || !Merge(c, b) || c.Name != "b" || mod.Main.Outputs[1] != c {
		t.Error("an output could not move to an equal value")
	}
	if !CanMerge(a, b) || !Merge(a, b) {
		t.Error("a value that is no output any more could not be merged")
	}
}

func TestPurity(t *testing.T) {
	fn := func(name string, nodes ...*onnxpb.NodeProto) *onnxpb.FunctionProto {
		domain, v, empty, one := "acme", int64(17), "", int64(1)
		return &onnxpb.FunctionProto{
			Name: &name, Domain: &domain, Input: []string{"a"}, Output: []string{"b"}, Node: nodes,
			OpsetImport: []*onnxpb.OperatorSetIdProto{{Domain: &empty, Version: &v}, {Domain: &domain, Version: &one}},
		}
	}
	nodes := func(b *onnxtest.Builder) []*onnxpb.NodeProto { return b.Graph.Node }
	random := onnxtest.New(17).Node("RandomNormal", "", "r", onnxtest.Ints("shape", 4)).Output("r", tensor.Float32, 4)
	fixed := onnxtest.New(17).Node("Identity", "x", "r").Output("r", tensor.Float32, "n")
	b := onnxtest.New(17).Import("acme", 1).Import("com.microsoft", 1).Import("other", 1).
		Input("x", tensor.Float32, "n").Input("c", tensor.Bool).Init("off", tensor.Tensor{DType: tensor.Bool, Shape: []int64{}, Data: []byte{0}}).
		Init("on", tensor.Tensor{DType: tensor.Bool, Shape: []int64{}, Data: []byte{1}}).Floats("half", []int64{}, 0.5).
		Node("Relu", "x", "relu").Node("RandomUniformLike", "x", "like").Node("Dropout", "x", "eval").Node("Dropout", "x half off", "off_").
		Node("Dropout", "x half on", "on_").Node("Dropout", "x half c", "maybe").Node("Bernoulli", "x", "bern").
		Node("com.microsoft::Gelu", "x", "gelu").Node("com.microsoft::BitmaskDropout", "x", "bits").Node("other::Foo", "x", "foo").
		Node("acme::Draws", "x", "draws").Node("acme::Calls", "x", "calls").Node("acme::Adds", "x", "adds").Node("acme::Unknown", "x", "unknown").
		Node("If", "c", "ifr", onnxtest.Body("then_branch", random), onnxtest.Body("else_branch", fixed)).
		Node("If", "c", "iff", onnxtest.Body("then_branch", fixed), onnxtest.Body("else_branch", fixed)).
		Function(fn("Draws", nodes(onnxtest.New(17).Node("RandomNormalLike", "a", "b"))...)).
		Function(fn("Calls", nodes(onnxtest.New(17).Node("acme::Draws", "a", "b"))...)).
		Function(fn("Adds", nodes(onnxtest.New(17).Node("Add", "a a", "t").Node("Dropout", "t", "b"))...)).
		Output("relu", tensor.Float32, "n")
	want := map[string]bool{
		"relu": true, "like": false, "eval": true, "off_": true, "on_": false, "maybe": false, "bern": false, "gelu": true, "bits": false, "foo": false,
		"draws": false, "calls": false, "adds": true, "unknown": false, "ifr": false, "iff": true,
	}
	for _, n := range Load(b.Model(t)).Main.Nodes {
		if got := n.Pure(); got != want[n.Out[0].Name] {
			t.Errorf("%s: pure is %v", n, got)
		}
	}
}

func TestTrainingModeDependsOnTheOperatorSet(t *testing.T) {
	tests := map[string]struct {
		opset int64
		op    string
		in    string
		out   string
		attrs []*onnxpb.AttributeProto
		pure  bool
	}{
		"Dropout 6 trains unless told":     {6, "Dropout", "x", "y", nil, false},
		"Dropout 6 in a test":              {6, "Dropout", "x", "y", []*onnxpb.AttributeProto{onnxtest.Int("is_test", 1)}, true},
		"Dropout 10 never trains":          {10, "Dropout", "x", "y", nil, true},
		"BatchNormalization 6 trains":      {6, "BatchNormalization", "x s s s s", "y", nil, false},
		"BatchNormalization 6 in a test":   {6, "BatchNormalization", "x s s s s", "y", []*onnxpb.AttributeProto{onnxtest.Int("is_test", 1)}, true},
		"BatchNormalization 9, one output": {9, "BatchNormalization", "x s s s s", "y", nil, true},
		"BatchNormalization 9, statistics": {9, "BatchNormalization", "x s s s s", "y m v", nil, false},
		"BatchNormalization 9, left out":   {9, "BatchNormalization", "x s s s s", "y - -", nil, true},
		"BatchNormalization 15 trains":     {15, "BatchNormalization", "x s s s s", "y m v", []*onnxpb.AttributeProto{onnxtest.Int("training_mode", 1)}, false},
		"BatchNormalization 15":            {15, "BatchNormalization", "x s s s s", "y", nil, true},
	}
	for name, tt := range tests {
		b := onnxtest.New(tt.opset).Input("x", tensor.Float32, "n", 1).Floats("s", []int64{1}, 1).Node(tt.op, tt.in, tt.out, tt.attrs...).Output("y", tensor.Float32, "n", 1)
		if got := Load(b.Model(t)).Main.Nodes[0].Pure(); got != tt.pure {
			t.Errorf("%s: pure is %v", name, got)
		}
	}
}

func TestInlineTakesTheBranchAndReleasesTheOther(t *testing.T) {
	mod := Load(branchy().Model(t))
	k := mod.Main.Inits[0]
	n := mod.Main.Nodes[1]
	nodes, ok := n.Inline("then_branch")
	if !ok || len(nodes) != 1 || !n.Removed {
		t.Fatalf("got %d nodes, %v", len(nodes), ok)
	}
	mod.Main.Nodes = append(mod.Main.Nodes, nodes...)
	if k.Readers() != 0 {
		t.Errorf("the other branch still reads k %d times", k.Readers())
	}
	m := mod.Model()
	if err := m.Check(); err != nil {
		t.Fatal(err)
	}
	g := m.Graph()
	if len(g.Node) != 2 || g.Node[1].GetOpType() != "Mul" || g.Node[1].Output[0] != "y" || len(g.Initializer) != 2 {
		t.Errorf("graph is %v", g)
	}
	for name, bad := range map[string]*onnxtest.Builder{
		"a branch that returns a constant": onnxtest.New(17).Floats("o", []int64{1}, 1).Output("o", tensor.Float32, 1),
		"a branch with two equal outputs":  onnxtest.New(17).Node("Relu", "x", "o").Node("Neg", "x", "p").Output("o", tensor.Float32, 1).Output("p", tensor.Float32, 1),
	} {
		fixed := onnxtest.New(17).Node("Relu", "x", "r").Output("r", tensor.Float32, 1)
		mod := Load(onnxtest.New(17).Input("x", tensor.Float32, 1).Input("c", tensor.Bool).
			Node("If", "c", "y", onnxtest.Body("then_branch", bad), onnxtest.Body("else_branch", fixed)).Output("y", tensor.Float32, 1).Model(t))
		if _, ok := mod.Main.Nodes[0].Inline("then_branch"); ok {
			t.Errorf("%s was inlined", name)
		}
		if _, ok := mod.Main.Nodes[0].Inline("no_branch"); ok {
			t.Error("a branch that is not there was inlined")
		}
	}
}

func TestDropsReachTheFile(t *testing.T) {
	f := &onnxpb.FunctionProto{Name: proto.String("F"), Domain: proto.String("acme"), OpsetImport: []*onnxpb.OperatorSetIdProto{{Version: proto.Int64(17)}}}
	b := onnxtest.New(17).Import("acme", 1).Function(f).Input("x", tensor.Float32, 1).Floats("w", []int64{1}, 1).Node("Relu", "x", "y").Output("y", tensor.Float32, 1)
	mod := Load(b.Model(t))
	mod.DropFunction(onnx.KeyOf(f))
	mod.DropImport("acme")
	mod.Main.Inits[0].DropInit()
	m := mod.Model()
	if len(m.Proto.Functions) != 0 || len(m.Proto.OpsetImport) != 1 || len(m.Graph().Initializer) != 0 {
		t.Errorf("model is %v", m.Proto)
	}
}

func TestNodesAreDescribed(t *testing.T) {
	mod := Load(onnxtest.New(17).Input("x", tensor.Float32, 1).Node("Relu", "x", "y").Output("y", tensor.Float32, 1).Model(t))
	n := mod.Main.Nodes[0]
	if n.String() != "/y" {
		t.Errorf("got %q", n)
	}
	n.Name = ""
	if n.String() != "Relu -> y" {
		t.Errorf("got %q", n)
	}
	n.Out = nil
	if n.String() != "Relu" {
		t.Errorf("got %q", n)
	}
	n.Attrs = []*onnxpb.AttributeProto{IntAttr("i", 3), IntsAttr("l", []int64{1}), FloatAttr("f", 2)}
	if n.Int("i", 0) != 3 || n.Int("none", 4) != 4 || n.Float("f", 0) != 2 || n.Float("none", 5) != 5 || len(n.Ints("l")) != 1 || n.Ints("none") != nil {
		t.Error("attributes were read wrongly")
	}
	if s := (Fact{Ranked: true, Shape: []Dim{Size(3), {S: 7}}, Type: onnxpb.TensorProto_FLOAT}).String(); s != "float[3,s7]" {
		t.Errorf("fact is %q", s)
	}
	if s := (Fact{}).String(); !strings.Contains(s, "unknown rank") {
		t.Errorf("fact is %q", s)
	}
}

func TestATypeOutsideOfTheFormatIsUndefined(t *testing.T) {
	for v, want := range map[int64]onnxpb.TensorProto_DataType{1: onnxpb.TensorProto_FLOAT, 1<<32 + 1: 0, -1: 0, 1 << 40: 0, 999: 999} {
		n := &Node{Attrs: []*onnxpb.AttributeProto{IntAttr("to", v)}}
		if got := n.TypeAttr("to"); got != want {
			t.Errorf("%d is %v, want %v", v, got, want)
		}
	}
}
