package onnx

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
	"github.com/trtship/trtship/report"
)

func TestIndexCountsWhatNestedGraphsRead(t *testing.T) {
	m := openModel(t, caseFile("o03-subgraph-captures-outer", "nested_two_levels.onnx"))
	x := NewIndex(m.Graph())
	readers := func(name string) []string {
		var names []string
		for _, n := range x.Readers[name] {
			names = append(names, NodeName(n))
		}
		return names
	}
	if d := cmp.Diff([]string{"/If"}, readers("alias")); d != "" {
		t.Errorf("readers of alias (-want +got):\n%s", d)
	}
	if x.Uses["alias"] != 3 || x.Uses["k"] != 1 || x.Uses["x"] != 2 || x.Uses["y"] != 1 {
		t.Errorf("uses are %v", x.Uses)
	}
	if x.Producers["alias"].GetName() != "/alias" || x.Initializers["k"] == nil || x.Inputs["x"] == nil || x.Outputs["y"] == nil {
		t.Error("the index lacks something")
	}
}

// shadowing is an If whose branch defines a value of the same name as one
// outside.
func shadowing() *onnxpb.ModelProto {
	branch := func(own bool) *onnxpb.GraphProto {
		g := &onnxpb.GraphProto{Name: ptr("b"), Output: []*onnxpb.ValueInfoProto{info("o", onnxpb.TensorProto_FLOAT, "n")}}
		if own {
			g.Node = append(g.Node, node("Neg", []string{"x"}, []string{"h"}))
		}
		g.Node = append(g.Node, node("Relu", []string{"h"}, []string{"o"}))
		return g
	}
	return model(&onnxpb.GraphProto{
		Node: []*onnxpb.NodeProto{
			node("Abs", []string{"x"}, []string{"h"}),
			node("If", []string{"c"}, []string{"y"}, graphAttr("then_branch", branch(true)), graphAttr("else_branch", branch(false))),
		},
		Input:  []*onnxpb.ValueInfoProto{info("x", onnxpb.TensorProto_FLOAT, "n"), info("c", onnxpb.TensorProto_BOOL)},
		Output: []*onnxpb.ValueInfoProto{info("y", onnxpb.TensorProto_FLOAT, "n")},
	})
}

func TestNamesDefinedAgainInsideAreOtherValues(t *testing.T) {
	p := shadowing()
	if err := New(p, "").Check(); err != nil {
		t.Fatal(err)
	}
	if got := NewIndex(p.Graph).Uses["h"]; got != 1 {
		t.Errorf("the outer h has %d uses, want the else branch's", got)
	}
	Rename(p.Graph, "h", "renamed")
	then, other := p.Graph.Node[1].Attribute[0].G, p.Graph.Node[1].Attribute[1].G
	if p.Graph.Node[0].Output[0] != "renamed" || other.Node[0].Input[0] != "renamed" {
		t.Error("the outer value was not renamed everywhere")
	}
	if then.Node[0].Output[0] != "h" || then.Node[1].Input[0] != "h" {
		t.Error("the inner value was renamed")
	}
}

func TestFreshNamesAreNobodyElses(t *testing.T) {
	m := New(shadowing(), "")
	m.Graph().Node[0].Name = ptr("relu")
	names := m.NewNames()
	for _, base := range []string{"h", "o", "x", "y", "relu", ""} {
		a, b := names.Fresh(base), names.Fresh(base)
		if a == b || a == base && base != "" {
			t.Errorf("Fresh(%q) gave %q and %q", base, a, b)
		}
	}
	if got := names.Fresh("new"); got != "new" {
		t.Errorf("a free name became %q", got)
	}
}

func TestWalkVisitsNestedGraphsAndFunctionsWithTheirPlace(t *testing.T) {
	m := openModel(t, caseFile("o03-subgraph-captures-outer", "nested_two_levels.onnx"))
	var got []string
	m.Walk(func(p Place, n *onnxpb.NodeProto) bool {
		if p.Depth > 0 {
			got = append(got, fmt.Sprintf("%d %s", p.Depth, p.Name(n)))
		}
		return true
	})
	want := []string{
		"1 /If/else_branch: /e/Neg", "1 /If/then_branch: /t/If", "2 /If/then_branch//t/If/else_branch: /t/e/Id", "2 /If/then_branch//t/If/then_branch: /t/t/Add",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	for stopAt := range 4 { // stops wherever it is told to
		seen := 0
		m.Walk(func(Place, *onnxpb.NodeProto) bool { seen++; return seen <= stopAt })
		if seen != stopAt+1 {
			t.Errorf("visited %d nodes after being stopped at %d", seen, stopAt+1)
		}
	}
	f := openModel(t, caseFile("o07-local-functions", "same_constant_name.onnx"))
	if n := f.NodeCount(); n != 6 {
		t.Errorf("%d nodes, want 2 calls and 4 in functions", n)
	}
	if len(f.Functions()) != 2 || f.Functions()[CallKey(f.Graph().Node[0])].GetName() != "S2" {
		t.Errorf("functions are %v", f.Functions())
	}
}

func TestNodesWithoutNameGoByOperatorAndOutput(t *testing.T) {
	for want, n := range map[string]*onnxpb.NodeProto{
		"named":     {Name: ptr("named"), OpType: ptr("Relu"), Output: []string{"y"}},
		"Relu -> y": {OpType: ptr("Relu"), Output: []string{"", "y"}},
		"Relu":      {OpType: ptr("Relu")},
	} {
		if got := NodeName(n); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if got := Operator(&onnxpb.NodeProto{OpType: ptr("Gelu"), Domain: ptr("com.microsoft")}); got != "com.microsoft::Gelu" {
		t.Errorf("operator is %q", got)
	}
	if got := Operator(&onnxpb.NodeProto{OpType: ptr("Relu"), Domain: ptr("ai.onnx")}); got != "Relu" {
		t.Errorf("operator is %q", got)
	}
}

func TestAttributesHaveDefaults(t *testing.T) {
	n := &onnxpb.NodeProto{Attribute: []*onnxpb.AttributeProto{
		{Name: ptr("i"), I: ptr(int64(3))}, {Name: ptr("f"), F: ptr(float32(0.5))}, {Name: ptr("s"), S: []byte("same")}, {Name: ptr("l"), Ints: []int64{1, 2}},
	}}
	if IntAttribute(n, "i", 7) != 3 || IntAttribute(n, "none", 7) != 7 || FloatAttribute(n, "f", 1) != 0.5 || FloatAttribute(n, "none", 1) != 1 ||
		StringAttribute(n, "s", "d") != "same" || StringAttribute(n, "none", "d") != "d" || len(IntsAttribute(n, "l")) != 2 || IntsAttribute(n, "none") != nil {
		t.Error("an attribute was read wrongly")
	}
}

func TestValuesAreReportedWithSizesAndSymbols(t *testing.T) {
	m := openModel(t, caseFile("r08-integer-bool-string-outputs", "model.onnx"))
	want := []report.Tensor{{Name: "label", DType: "int64", Dims: []string{"batch"}}, {Name: "flag", DType: "bool", Dims: []string{"batch", "3"}}, {Name: "text", DType: "string", Dims: []string{"batch"}}}
	var got []report.Tensor
	for _, v := range m.Outputs() {
		got = append(got, v.Report())
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	elem := &onnxpb.TypeProto{}
	for want, tp := range map[string]*onnxpb.TypeProto{
		"s sequence of unknown rank": {Value: &onnxpb.TypeProto_SequenceType{SequenceType: &onnxpb.TypeProto_Sequence{ElemType: elem}}},
		"s map of unknown rank":      {Value: &onnxpb.TypeProto_MapType{MapType: &onnxpb.TypeProto_Map{}}},
		"s optional of unknown rank": {Value: &onnxpb.TypeProto_OptionalType{OptionalType: &onnxpb.TypeProto_Optional{}}},
		"s opaque of unknown rank":   {Value: &onnxpb.TypeProto_OpaqueType{OpaqueType: &onnxpb.TypeProto_Opaque{}}},
		"s float32[]": {Value: &onnxpb.TypeProto_SparseTensorType{SparseTensorType: &onnxpb.TypeProto_SparseTensor{
			ElemType: ptr(int32(onnxpb.TensorProto_FLOAT)), Shape: &onnxpb.TensorShapeProto{},
		}}},
	} {
		v := ValueOf(&onnxpb.ValueInfoProto{Name: ptr("s"), Type: tp})
		if v.String() != want {
			t.Errorf("got %q, want %q", v, want)
		}
		if v.DType == "" && v.Report().DType != v.Type {
			t.Errorf("report of %q has type %q", v, v.Report().DType)
		}
	}
}

func TestSinceVersionFollowsTheOperatorSets(t *testing.T) {
	for _, tt := range []struct {
		domain, op     string
		version, since int64
		ok             bool
	}{
		{"", "Unsqueeze", 11, 11, true},
		{"", "Unsqueeze", 12, 11, true},
		{"", "Unsqueeze", 18, 13, true},
		{"ai.onnx", "Relu", 17, 14, true},
		{"", "Gelu", 19, 0, false},
		{"", "Gelu", 20, 20, true},
		{"", "NoSuchOperator", 20, 0, false},
		{"acme", "Relu", 20, 0, false},
	} {
		since, ok := SinceVersion(tt.domain, tt.op, tt.version)
		if since != tt.since || ok != tt.ok {
			t.Errorf("%s %s in %d: %d, %v", tt.domain, tt.op, tt.version, since, ok)
		}
	}
}
