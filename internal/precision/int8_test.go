package precision

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
	"github.com/trtship/trtship/internal/onnx/onnxtest"
	"github.com/trtship/trtship/internal/tensor"
)

// calibrated returns the scales of a run.
func calibrated(t *testing.T, m *onnx.Model, x tensor.Named) map[string]float32 {
	t.Helper()
	clone, _ := proto.Clone(m.Proto).(*onnxpb.ModelProto)
	for _, a := range Activations(m) {
		if a.Node != "" && a.Name != "y" && a.Name != "up" {
			clone.Graph.Output = append(clone.Graph.Output, value(a.Name))
			clone.Graph.Output[len(clone.Graph.Output)-1].Type = nil
		}
	}
	scales := map[string]float32{}
	for _, o := range append(run(t, m.With(clone), x), x) {
		var top float64
		for _, v := range o.Float64s() {
			top = math.Max(top, math.Abs(v))
		}
		scales[o.Name] = float32(top / 127)
	}
	return scales
}

// placement lists the quantized inputs of each node, as "node: input".
func placement(m *onnx.Model) map[string]bool {
	x := onnx.NewIndex(m.Graph())
	out := map[string]bool{}
	for _, n := range m.Graph().GetNode() {
		if strings.HasSuffix(n.GetOpType(), "izeLinear") {
			continue
		}
		for _, in := range n.GetInput() {
			p := x.Producers[in]
			if p.GetOpType() != "DequantizeLinear" {
				continue
			}
			from := p.GetInput()[0]
			if q := x.Producers[from]; q.GetOpType() == "QuantizeLinear" {
				from = q.GetInput()[0]
			}
			out[n.GetName()+": "+from] = true
		}
	}
	return out
}

func TestPairsLieWhereTensorRTWantsThem(t *testing.T) {
	m := residual(17)
	q, err := ToInt8(m, Int8Options{Scales: calibrated(t, m, picture(4)), PerChannel: true})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{
		"/conv1: x": true, "/conv1: w1_int8": true, "/conv2: r1": true, "/conv2: w2_int8": true, "/conv3: r2": true, "/conv3: w3_int8": true,
		"/add: r1": true, // the shortcut, not the convolution's side
		"/up: k":   true, "/up: wt_int8": true, "/mean: k": true, "/fc: f": true, "/fc: wg_int8": true, "/mm: g": true, "/mm: wm_int8": true,
	}
	if d := cmp.Diff(want, placement(q.Model)); d != "" {
		t.Error(d)
	}
	if len(q.Skipped) != 0 || q.Weights != 6 || len(q.Nodes) != 8 {
		t.Errorf("skipped %v, %d weights, nodes %v", q.Skipped, q.Weights, q.Nodes)
	}
	x := onnx.NewIndex(q.Model.Graph())
	axes := map[string]int64{}
	for _, n := range q.Model.Graph().GetNode() {
		if n.GetOpType() == "DequantizeLinear" && x.Initializers[n.GetInput()[0]] != nil {
			axes[n.GetInput()[0]] = onnx.IntAttribute(n, "axis", -1)
		}
		if strings.HasSuffix(n.GetOpType(), "izeLinear") {
			z, err := q.Model.TensorData(x.Initializers[n.GetInput()[2]])
			if err != nil || z.DType != tensor.Int8 || strings.Trim(string(z.Data), "\x00") != "" {
				t.Errorf("%s: zero point %v, %v", n.GetName(), z, err)
			}
		}
	}
	if d := cmp.Diff(map[string]int64{"w1_int8": 0, "w2_int8": 0, "w3_int8": 0, "wt_int8": 1, "wg_int8": 0, "wm_int8": 1}, axes); d != "" {
		t.Error(d)
	}
	for _, name := range []string{"w1", "w2", "w3", "wt", "wg", "wm"} {
		if x.Initializers[name] != nil {
			t.Errorf("float32 weight %s is still there", name)
		}
	}
	for _, name := range []string{"b1", "b3", "bg"} {
		if b := x.Initializers[name]; b == nil || b.GetDataType() != int32(onnxpb.TensorProto_FLOAT) {
			t.Errorf("bias %s is not float32 any more", name)
		}
	}
}

func TestInt8AnswersLikeFloat32(t *testing.T) {
	for name, o := range map[string]Int8Options{
		"one scale a channel": {PerChannel: true},
		"one scale a tensor":  {},
		"float16 scales":      {PerChannel: true, HalfScales: true},
	} {
		m := residual(13)
		x := picture(4)
		o.Scales = calibrated(t, m, x)
		before := proto.Clone(m.Proto)
		q, err := ToInt8(m, o)
		if err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(before, m.Proto) {
			t.Error("the source was modified")
		}
		graph := q.Model
		if o.HalfScales {
			raised, err := RaiseOpset(graph, halfQuantizers)
			if err != nil {
				t.Fatal(err)
			}
			h := toHalf(t, raised, HalfOptions{KeepIO: true})
			if len(h.Kept) != 0 {
				t.Errorf("kept %v", h.Kept)
			}
			graph = h.Model
		}
		want, got := run(t, m, x), run(t, graph, x)
		for i := range want {
			var top float64
			for _, v := range want[i].Float64s() {
				top = math.Max(top, math.Abs(v))
			}
			if d := farthest(want[i].Tensor, got[i].Tensor); !(d < 0.06*top) || d == 0 {
				t.Errorf("%s: %s differs by %g of %g", name, want[i].Name, d, top)
			}
		}
	}
}

func TestWhatIsNotQuantizedIsNamed(t *testing.T) {
	m := residual(17)
	scales := calibrated(t, m, picture(2))
	delete(scales, "r2")
	q, err := ToInt8(m, Int8Options{
		Scales: scales, PerChannel: true, Exclude: NewSelection("quantize.int8_exclude", []string{"/conv1"}),
		Keep: NewSelection("quantize.keep_fp32", []string{"op:Gemm"}),
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []Skipped{{"/conv1", "listed in int8_exclude", false}, {"/conv3", "no range of r2", true}, {"/fc", "listed in keep_fp32", false}}
	if d := cmp.Diff(want, q.Skipped); d != "" {
		t.Error(d)
	}
	if p := placement(q.Model); p["/add: r1"] || p["/add: c3"] {
		t.Error("an addition behind a node that is not quantized got a pair")
	}
	run(t, q.Model, picture(2))
}

func TestProductsThatCannotBeQuantizedAreNamed(t *testing.T) {
	n := newNode
	m := build(17, []*onnxpb.ValueInfoProto{value("x", 4, 4), value("v", 4, 4)}, []*onnxpb.ValueInfoProto{value("y", 4, 4), value("z", 4, 4), value("u", 4, 4), value("s", 4, 4)},
		[]*onnxpb.TensorProto{weights("w", 1, 4, 4)},
		n("Gemm", "/a", []string{"x", "w"}, []string{"y"}, intAttribute("transA", 1)),
		n("Gemm", "/b", []string{"x", "v"}, []string{"z"}),
		n("MatMul", "/c", []string{"w", "x"}, []string{"u"}),
		n("MatMul", "/d", []string{"x", "v"}, []string{"s"}),
	)
	q, err := ToInt8(m, Int8Options{Scales: map[string]float32{"x": 0.1, "v": 0.1}, PerChannel: true})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, s := range q.Skipped {
		got[s.Node] = s.Reason
	}
	want := map[string]string{"/a": "Gemm with transA has no int8 form", "/b": "its weight v is no constant", "/c": "its first operand w is a constant"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if p := placement(q.Model); !p["/d: x"] || !p["/d: v"] {
		t.Errorf("a product of activations: %v", p)
	}
}

func TestNothingToQuantizeIsRefused(t *testing.T) {
	m := residual(17)
	_, err := ToInt8(m, Int8Options{Scales: map[string]float32{}})
	if failure.CodeOf(err) != failure.Calibration || !strings.Contains(err.Error(), "no node can be quantized") {
		t.Errorf("error %v", err)
	}
	if _, err := ToInt8(residual(12), Int8Options{}); failure.CodeOf(err) != failure.Model {
		t.Errorf("opset 12: %v", err)
	}
	if _, err := ToInt8(m, Int8Options{Exclude: NewSelection("quantize.int8_exclude", []string{"nobody"})}); failure.CodeOf(err) != failure.Usage {
		t.Errorf("an entry that matches nothing: %v", err)
	}
}

func TestGraphsThatAreNotFloat32AreRefusedWithTheReason(t *testing.T) {
	b := onnxtest.New(17).Input("x", tensor.Float32, "n", 8).Output("y", tensor.Float32, "n", 8)
	b.Floats("s", []int64{}, 0.1).Init("z", tensor.FromInt64s(tensor.Int8, []int64{}, []int64{0})).Init("w", noise(8, 8))
	b.Node("QuantizeLinear", "x s z", "q").Node("DequantizeLinear", "q s z", "d").Node("MatMul", "d w", "y")
	_, err := ToInt8(b.Model(t), Int8Options{Scales: map[string]float32{"x": 0.1, "y": 0.1}})
	if failure.CodeOf(err) != failure.Model || !strings.Contains(fmt.Sprint(err), "the graph is quantized already: 2 quantizing nodes, the first is /q (QuantizeLinear)") {
		t.Errorf("quantized: %v", err)
	}
	b = onnxtest.New(17).Input("x", tensor.Float16, "n", 8).Output("y", tensor.Float16, "n", 8)
	b.Init("w", tensor.FromFloat64s(tensor.Float16, []int64{8, 8}, make([]float64, 64))).Node("MatMul", "x w", "y")
	_, err = ToInt8(b.Model(t), Int8Options{Scales: map[string]float32{"x": 0.1, "y": 0.1}})
	if failure.CodeOf(err) != failure.Model || !strings.Contains(fmt.Sprint(err), "the graph computes in 16 bits already (2 activations)") {
		t.Errorf("float16: %v", err)
	}
}

func TestInnerProductsAreNamed(t *testing.T) {
	m := open(t, "testdata", "cases", "o03-subgraph-captures-outer", "if_captures.onnx")
	if ops(m)["MatMul"]+ops(m)["Conv"]+ops(m)["Gemm"] != 0 {
		t.Fatal("the case has changed")
	}
	n := newNode
	then := &onnxpb.GraphProto{
		Name: proto.String("then"), Output: []*onnxpb.ValueInfoProto{value("t")},
		Node: []*onnxpb.NodeProto{n("MatMul", "/inner", []string{"x", "w"}, []string{"t"})},
	}
	other := &onnxpb.GraphProto{
		Name: proto.String("else"), Output: []*onnxpb.ValueInfoProto{value("e")},
		Node: []*onnxpb.NodeProto{n("Relu", "/relu", []string{"x"}, []string{"e"})},
	}
	branch := func(name string, g *onnxpb.GraphProto) *onnxpb.AttributeProto {
		return &onnxpb.AttributeProto{Name: &name, Type: onnxpb.AttributeProto_GRAPH.Enum(), G: g}
	}
	m = build(17, []*onnxpb.ValueInfoProto{value("x", 4, 4), typed("c", int32(onnxpb.TensorProto_BOOL))}, []*onnxpb.ValueInfoProto{value("y", 4, 4)},
		[]*onnxpb.TensorProto{weights("w", 1, 4, 4)},
		n("If", "/if", []string{"c"}, []string{"b"}, branch("then_branch", then), branch("else_branch", other)),
		n("MatMul", "/outer", []string{"b", "w"}, []string{"y"}),
	)
	q, err := ToInt8(m, Int8Options{Scales: map[string]float32{"b": 0.1, "x": 0.1}, PerChannel: true})
	if err != nil {
		t.Fatal(err)
	}
	if len(q.Skipped) != 1 || q.Skipped[0].Node != "/if/then_branch: /inner" {
		t.Errorf("skipped %v", q.Skipped)
	}
	if d := cmp.Diff([]string{"/outer"}, q.Nodes); d != "" {
		t.Error(d)
	}
}

func TestQuantizeWeight(t *testing.T) {
	v := []float32{1, -2, 0, 0, 127, 63.5, 0.5, -127}
	codes, scales := QuantizeWeight(v, []int64{4, 2}, 0, false)
	if d := cmp.Diff([]float32{2.0 / 127, 1, 1, 1}, scales); d != "" {
		t.Error(d)
	}
	want := []int8{64, -127, 0, 0, 127, 64, 0, -127} // halves round to even
	got := make([]int8, len(codes))
	for i, c := range codes {
		got[i] = int8(c)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	_, one := QuantizeWeight(v, []int64{4, 2}, -1, false)
	_, columns := QuantizeWeight(v, []int64{4, 2}, 1, false)
	if len(one) != 1 || one[0] != 1 || len(columns) != 2 {
		t.Errorf("scales %v, %v", one, columns)
	}
}

func TestHalfScalesNeverSaturate(t *testing.T) {
	for _, top := range []float32{1e-9, 1e-3, 0.1, 1.2345, 777, 60000} {
		s := weightScale(top, true)
		if s*127 < top || s < smallestNormalHalf {
			t.Errorf("scale %g for %g", s, top)
		}
		if h := tensor.FromFloat64s(tensor.Float16, []int64{1}, []float64{float64(s)}).Float64At(0); h != float64(s) {
			t.Errorf("%g is no float16", s)
		}
	}
}

func TestTinyScalesStayFloat32(t *testing.T) {
	m := residual(19)
	scales := calibrated(t, m, picture(2))
	scales["g"] = 1e-6
	q, err := ToInt8(m, Int8Options{Scales: scales, PerChannel: true, HalfScales: true})
	if err != nil {
		t.Fatal(err)
	}
	h := toHalf(t, q.Model, HalfOptions{KeepIO: true})
	kept := map[string]bool{}
	for _, k := range h.Kept {
		kept[k.Node] = strings.Contains(k.Reason, "too small for float16")
	}
	if d := cmp.Diff(map[string]bool{"g_QuantizeLinear": true, "g_DequantizeLinear": true}, kept); d != "" {
		t.Error(d)
	}
	run(t, h.Model, picture(2))
}

func TestRaiseOpsetKeepsTheAnswers(t *testing.T) {
	n := newNode
	m := build(13, []*onnxpb.ValueInfoProto{value("x", 0, 4, 3)}, []*onnxpb.ValueInfoProto{value("y", 0, 3), value("a"), value("b"), value("all")}, nil,
		n("ReduceMean", "/mean", []string{"x"}, []string{"y"}, ints("axes", 1), intAttribute("keepdims", 0)),
		n("Split", "/split", []string{"x"}, []string{"a", "b"}, intAttribute("axis", 1)),
		n("ReduceMax", "/max", []string{"x"}, []string{"all"}, intAttribute("keepdims", 0)),
	)
	x := picture(1)
	x.Tensor = tensor.FromFloat32s([]int64{2, 4, 3}, x.Float32s()[:24])
	want := run(t, m, x)
	r, err := RaiseOpset(m, 19)
	if err != nil {
		t.Fatal(err)
	}
	if r.Opset("") != 19 || m.Opset("") != 13 {
		t.Errorf("opsets %d and %d", r.Opset(""), m.Opset(""))
	}
	got := run(t, r, x)
	for i := range want {
		if d := farthest(want[i].Tensor, got[i].Tensor); d != 0 {
			t.Errorf("%s differs by %g", want[i].Name, d)
		}
	}
	if same, err := RaiseOpset(r, 19); err != nil || same != r {
		t.Errorf("opset 19 was raised: %v", err)
	}
	if _, err := RaiseOpset(residual(12), 22); failure.CodeOf(err) != failure.Model {
		t.Errorf("opset 12: %v", err)
	}
}
