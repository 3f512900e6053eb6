package precision

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
	"github.com/trtship/trtship/internal/ort"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/internal/testkit"
)

func toHalf(t *testing.T, m *onnx.Model, o HalfOptions) *Half {
	t.Helper()
	before := proto.Clone(m.Proto)
	if o.DType == "" {
		o.DType = tensor.Float16
	}
	h, err := ToHalf(m, o)
	if err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(before, m.Proto) {
		t.Fatal("the source was modified")
	}
	return h
}

// farthest returns the largest difference of two outputs, NaN if one of them is NaN.
func farthest(a, b tensor.Tensor) float64 {
	x, y := a.Float64s(), b.Float64s()
	if len(x) != len(y) {
		return math.Inf(1)
	}
	var d float64
	for i := range x {
		if e := math.Abs(x[i] - y[i]); !(e <= d) {
			d = e
		}
	}
	return d
}

func ops(m *onnx.Model) map[string]int {
	count := map[string]int{}
	m.Walk(func(_ onnx.Place, n *onnxpb.NodeProto) bool { count[n.GetOpType()]++; return true })
	return count
}

func TestHalfAnswersLikeFloat32(t *testing.T) {
	for name, c := range map[string]struct {
		o      HalfOptions
		within float64
		casts  int
	}{
		"float16, interface kept":  {HalfOptions{DType: tensor.Float16, KeepIO: true}, 0.02, 3},
		"float16, interface too":   {HalfOptions{DType: tensor.Float16}, 0.02, 0},
		"float16, emulated":        {HalfOptions{DType: tensor.Float16, KeepIO: true, Emulate: true}, 0.02, -1},
		"bfloat16, emulated":       {HalfOptions{DType: tensor.BFloat16, KeepIO: true, Emulate: true}, 0.2, -1},
		"float16, a node kept":     {HalfOptions{DType: tensor.Float16, KeepIO: true, Keep: NewSelection("keep", []string{"/conv2"})}, 0.02, 5},
		"float16, a type kept":     {HalfOptions{DType: tensor.Float16, KeepIO: true, Keep: NewSelection("keep", []string{"op:Conv"})}, 0.02, -1},
		"float16, everything kept": {HalfOptions{DType: tensor.Float16, KeepIO: true, Keep: NewSelection("keep", []string{"*"})}, 0, 0},
	} {
		m := residual(17)
		want := run(t, m, picture(3))
		h := toHalf(t, m, c.o)
		x := picture(3)
		if !c.o.KeepIO {
			low, err := x.Convert(tensor.Float16)
			if err != nil {
				t.Fatal(err)
			}
			x.Tensor = low
		}
		got := run(t, h.Model, x)
		for i := range want {
			if got[i].Name != want[i].Name {
				t.Errorf("%s: output %s became %s", name, want[i].Name, got[i].Name)
			}
			if (got[i].DType == tensor.Float32) != c.o.KeepIO {
				t.Errorf("%s: output %s is %s", name, got[i].Name, got[i].DType)
			}
			d := farthest(want[i].Tensor, got[i].Tensor)
			if !(d <= c.within) || d == 0 && c.within > 0 {
				t.Errorf("%s: output %s differs by %g, want more than 0 and at most %g", name, want[i].Name, d, c.within)
			}
		}
		if c.casts >= 0 && h.Casts != c.casts {
			t.Errorf("%s: %d casts, want %d", name, h.Casts, c.casts)
		}
	}
}

func TestEmulationRoundsAsTheRealGraphDoes(t *testing.T) {
	m := residual(17)
	a := run(t, toHalf(t, m, HalfOptions{KeepIO: true}).Model, picture(2))
	b := run(t, toHalf(t, m, HalfOptions{KeepIO: true, Emulate: true}).Model, picture(2))
	if d := farthest(a[0].Tensor, b[0].Tensor); d > 0.01 {
		t.Errorf("emulated and real float16 differ by %g", d)
	}
	if n := ops(toHalf(t, m, HalfOptions{KeepIO: true, Emulate: true}).Model)["Cast"]; n < 20 {
		t.Errorf("only %d casts round", n)
	}
}

// observer returns magnitudes as calibration would.
func observer(values map[string]float64) func(string) (float64, bool) {
	return func(name string) (float64, bool) { v, ok := values[name]; return v, ok }
}

func TestMaskOfTheFieldIsNamedAndRepaired(t *testing.T) {
	testkit.HoldsCase(t, "r03-fp16-range")
	m := open(t, "testdata", "cases", "r03-fp16-range", "fp32.onnx")
	observed := observer(map[string]float64{"scores": 4, "mask": 1, "inv": 1, "bias": 1e9, "s": 1e9, "probs": 1})
	feeds := []tensor.Named{
		feed("scores", []int64{2, 4}, 1, 2, 3, 4, 1, 2, 3, 4), feed("mask", []int64{2, 4}, 1, 1, 0, 0, 1, 1, 1, 1),
	}
	h := toHalf(t, m, HalfOptions{KeepIO: true, Observed: observed})
	var all []string
	nodes := map[string]bool{}
	for _, r := range h.Ranges {
		all = append(all, r.String())
		if !r.Serious() {
			t.Errorf("%s is not serious", r)
		}
		for _, n := range r.Nodes() {
			nodes[n] = true
		}
	}
	for _, want := range []string{"/Mul: constant neg is -1e+09, which becomes infinite", "/Mul: bias reaches 1e+09", "/Add: s reaches 1e+09"} {
		if !strings.Contains(strings.Join(all, "\n"), want) {
			t.Errorf("%q is not in\n%s", want, strings.Join(all, "\n"))
		}
	}
	if d := cmp.Diff(map[string]bool{"/Mul": true, "/Add": true, "/Softmax": true}, nodes); d != "" {
		t.Error(d)
	}
	broken := run(t, h.Model, feeds...)[0]
	if !math.IsNaN(broken.Float64At(0)) {
		t.Errorf("the graph that overflows answers %g, not NaN: the case shows nothing", broken.Float64At(0))
	}
	// Keeping the node that is named first keeps what reads its large values too.
	k := toHalf(t, m, HalfOptions{KeepIO: true, Observed: observed, Keep: NewSelection("quantize.keep_fp32", []string{"/Mul"})})
	if len(k.Ranges) != 0 {
		t.Errorf("after keep_fp32: %v", k.Ranges)
	}
	if d := farthest(run(t, m, feeds...)[0].Tensor, run(t, k.Model, feeds...)[0].Tensor); !(d < 1e-3) {
		t.Errorf("the repaired graph differs by %g", d)
	}
	kept := map[string]string{}
	for _, n := range k.Kept {
		kept[n.Node] = n.Reason
	}
	if kept["/Mul"] != "listed in keep_fp32" || !strings.Contains(kept["/Add"], "reads bias of /Mul, which stays float32 and reaches 1e+09") || kept["/Softmax"] == "" {
		t.Errorf("kept %v", kept)
	}
}

func TestLayerNormOfTheFieldIsNamed(t *testing.T) {
	testkit.HoldsCase(t, "r03-fp16-range")
	m := open(t, "testdata", "cases", "r03-fp16-range", "ln_fp32.onnx")
	h := toHalf(t, m, HalfOptions{KeepIO: true, Observed: observer(map[string]float64{"x": 600, "c": 600, "sq": 360000, "var": 225000, "ve": 225000, "sd": 475})})
	got := map[string]RangeKind{}
	for _, r := range h.Ranges {
		got[r.Tensor] = r.Kind
	}
	if d := cmp.Diff(map[string]RangeKind{"sq": Overflow, "var": Overflow, "ve": Overflow, "eps": Vanish}, got); d != "" {
		t.Error(d)
	}
}

func TestValuesThatAllVanishAreNamed(t *testing.T) {
	m := open(t, "testdata", "cases", "r03-fp16-range", "ln_fp32.onnx")
	h := toHalf(t, m, HalfOptions{KeepIO: true, Observed: observer(map[string]float64{"x": 1e-4, "c": 1e-4, "sq": 1e-8, "var": 1e-7})})
	var got []string
	for _, r := range h.Ranges {
		if !r.Constant {
			got = append(got, r.String())
		}
	}
	if d := cmp.Diff([]string{"/sq: sq reaches 1e-08, which becomes zero"}, got); d != "" {
		t.Error(d)
	}
}

func TestWeightsOutOfRangeAreNamedWithTheirValues(t *testing.T) {
	testkit.HoldsCase(t, "r03-fp16-range")
	m := open(t, "testdata", "cases", "r03-fp16-range", "weights_out_of_range.onnx")
	h := toHalf(t, m, HalfOptions{KeepIO: true})
	var got []string
	for _, r := range h.Ranges {
		got = append(got, r.String())
	}
	want := []string{
		"/Mul: 2 of 4 values of constant w become infinite, 100000 among them",
		"/Mul: 1 of 4 values of constant w become zero, 6.000000052353016e-09 among them",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if !h.Ranges[0].Serious() || h.Ranges[1].Serious() {
		t.Error("infinite weights must be serious, a vanishing one among others not")
	}
	if b := toHalf(t, m, HalfOptions{DType: tensor.BFloat16}); len(b.Ranges) != 0 {
		t.Errorf("bfloat16 has the range of float32: %v", b.Ranges)
	}
}

func TestNothingIsHalvedThatMustNotBe(t *testing.T) {
	n := newNode
	to := func(code onnxpb.TensorProto_DataType) *onnxpb.AttributeProto { return intAttribute("to", int64(code)) }
	// Twice the size of the input, computed in float32 from its shape, and a Resize by constant scales.
	m := build(17, []*onnxpb.ValueInfoProto{value("x", 1, 1, 0, 4)}, []*onnxpb.ValueInfoProto{value("y", 1, 1, 0, 0), value("z", 0), value("l", 0)},
		[]*onnxpb.TensorProto{whole("axis", 2), whole("zero", 0), constant("half", []int64{}, 0.5), constant("scales", []int64{4}, 1, 1, 2, 2), constant("start", []int64{}, 0), constant("one", []int64{}, 1)},
		n("Shape", "/shape", []string{"x"}, []string{"s"}),
		n("Gather", "/dim", []string{"s", "axis"}, []string{"d"}, intAttribute("axis", 0)),
		n("Cast", "/float", []string{"d"}, []string{"df"}, to(onnxpb.TensorProto_FLOAT)),
		n("Div", "/twice", []string{"df", "half"}, []string{"d2"}),
		n("Squeeze", "/scalar", []string{"d2", "zero"}, []string{"limit"}),
		n("Range", "/range", []string{"start", "limit", "one"}, []string{"z"}),
		n("Resize", "/resize", []string{"x", "", "scales"}, []string{"y"}),
		n("Sigmoid", "/sigmoid", []string{"z"}, []string{"l"}),
	)
	x := feed("x", []int64{1, 1, 3, 4}, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)
	want := run(t, m, x)
	h := toHalf(t, m, HalfOptions{KeepIO: true})
	got := run(t, h.Model, x)
	for i := range want {
		if d := farthest(want[i].Tensor, got[i].Tensor); !(d < 1e-3) {
			t.Errorf("%s differs by %g", want[i].Name, d)
		}
	}
	reasons := map[string]string{}
	for _, k := range h.Kept {
		reasons[k.Node] = k.Reason
	}
	want2 := map[string]string{"/float": "computes with shapes", "/twice": "computes with shapes", "/scalar": "computes with shapes", "/sigmoid": "computes with shapes", "/range": "Range counts in float32"}
	if d := cmp.Diff(want2, reasons); d != "" {
		t.Error(d)
	}
}

func TestNestedGraphsAreConvertedAndAnswerAlike(t *testing.T) {
	for _, file := range []string{"if_captures", "loop_no_carried", "loop_const_inputs", "nested_two_levels"} {
		m := open(t, "testdata", "cases", "o03-subgraph-captures-outer", file+".onnx")
		for _, name := range []string{"feed_neg.npz", "feed_pos.npz"} {
			arrays, err := tensor.ReadNPZ(filepath.Join("..", "..", "testdata", "cases", "o03-subgraph-captures-outer", name))
			if err != nil {
				t.Fatal(err)
			}
			var feeds []tensor.Named
			for _, in := range m.Inputs() {
				a, ok := tensor.Find(arrays, in.Name)
				if !ok {
					t.Fatalf("%s has no %s", name, in.Name)
				}
				feeds = append(feeds, tensor.Named{Name: in.Name, Tensor: a})
			}
			want := run(t, m, feeds...)
			for _, emulate := range []bool{false, true} {
				got := run(t, toHalf(t, m, HalfOptions{KeepIO: true, Emulate: emulate}).Model, feeds...)
				for i := range want {
					if d := farthest(want[i].Tensor, got[i].Tensor); !(d < 0.05) {
						t.Errorf("%s, %s, emulate %t: %s differs by %g", file, name, emulate, want[i].Name, d)
					}
				}
			}
		}
	}
}

// TestEveryModelOfTheFieldLoadsAsHalf converts every model that ONNX Runtime
// takes, whatever is in it.
func TestEveryModelOfTheFieldLoadsAsHalf(t *testing.T) {
	files, err := filepath.Glob("../../testdata/cases/*/*.onnx")
	if err != nil {
		t.Fatal(err)
	}
	lib := ort.Library{Path: testkit.ORTLibrary(t)}
	loads := func(path string) error {
		s, err := ort.Open(context.Background(), lib, path, ort.Options{})
		if err == nil {
			s.Close()
		}
		return err
	}
	tried := 0
	for _, path := range files {
		m, err := onnx.Open(path)
		if err != nil {
			continue // another package's case
		}
		t.Cleanup(func() { m.Close() })
		if loads(path) != nil {
			continue
		}
		tried++
		for _, o := range []HalfOptions{{KeepIO: true}, {}, {KeepIO: true, Emulate: true}} {
			o.DType = tensor.Float16
			h, err := ToHalf(m, o)
			if err != nil {
				if failure.CodeOf(err) != failure.Model || !strings.Contains(err.Error(), "convert to float16") {
					t.Errorf("%s: %v", path, err)
				}
				continue
			}
			if err := h.Model.Check(); err != nil {
				t.Errorf("%s, %+v: %v", path, o, err)
				continue
			}
			out := filepath.Join(t.TempDir(), "m.onnx")
			if err := h.Model.Save(out, onnx.SaveOptions{}); err != nil {
				t.Fatal(err)
			}
			if err := loads(out); err != nil {
				t.Errorf("%s, keep interface %t, emulate %t: %v", filepath.Base(path), o.KeepIO, o.Emulate, err)
			}
		}
	}
	if tried < 40 {
		t.Errorf("only %d models were tried", tried)
	}
}

func TestConstantsOfNodesAreConverted(t *testing.T) {
	n := newNode
	f := func(name string, v ...float32) *onnxpb.AttributeProto {
		return &onnxpb.AttributeProto{Name: &name, Type: onnxpb.AttributeProto_FLOATS.Enum(), Floats: v}
	}
	one, kind := float32(70000), onnxpb.AttributeProto_FLOAT
	single := "value_float"
	m := build(17, []*onnxpb.ValueInfoProto{value("x", 0, 2)}, []*onnxpb.ValueInfoProto{value("y", 0, 2)}, nil,
		n("Constant", "/c", nil, []string{"c"}, f("value_floats", 1.5, 2.5)),
		n("Constant", "/big", nil, []string{"big"}, &onnxpb.AttributeProto{Name: &single, Type: &kind, F: &one}),
		n("Mul", "/mul", []string{"x", "c"}, []string{"p"}),
		n("Min", "/min", []string{"p", "big"}, []string{"y"}),
	)
	h := toHalf(t, m, HalfOptions{KeepIO: true})
	if n := ops(h.Model)["Constant"]; n != 0 {
		t.Errorf("%d Constant nodes are left", n)
	}
	if len(h.Ranges) != 1 || h.Ranges[0].Tensor != "big" || h.Ranges[0].Value != 70000 {
		t.Errorf("ranges %v", h.Ranges)
	}
	got := run(t, h.Model, feed("x", []int64{1, 2}, 2, 4))[0]
	if got.Float64At(0) != 3 || got.Float64At(1) != 10 {
		t.Errorf("answer %v", got.Float64s())
	}
}

func TestEntriesThatMatchNothingAreRefused(t *testing.T) {
	_, err := ToHalf(residual(17), HalfOptions{DType: tensor.Float16, Keep: NewSelection("quantize.keep_fp32", []string{"/conv1", "/conv9", "op:LSTM"})})
	if failure.CodeOf(err) != failure.Usage || !strings.Contains(err.Error(), "quantize.keep_fp32 matches no node: /conv9, op:LSTM") {
		t.Errorf("error %v", err)
	}
	if _, err := ToHalf(residual(17), HalfOptions{DType: tensor.Int8}); err == nil {
		t.Error("int8 is no half")
	}
	if _, err := ToHalf(residual(6), HalfOptions{DType: tensor.Float16}); failure.CodeOf(err) != failure.Model {
		t.Errorf("opset 6: %v", err)
	}
}

func TestGlob(t *testing.T) {
	for _, c := range []struct {
		pattern, text string
		want          bool
	}{
		{"/a/b", "/a/b", true},
		{"/a*", "/a/b/c", true},
		{"*", "", true},
		{"*/Add", "/x/y/Add", true},
		{"/x*y*z", "/x1y2z", true},
		{"/x*y*z", "/xz", false},
		{"a*a", "a", false},
		{"/a", "/a/b", false},
		{"*b*", "abc", true},
	} {
		if got := glob(c.pattern, c.text); got != c.want {
			t.Errorf("%q matches %q: %t", c.pattern, c.text, got)
		}
	}
}

func TestActivations(t *testing.T) {
	var got []string
	for _, a := range Activations(residual(17)) {
		got = append(got, a.Name+" "+a.Node)
	}
	want := []string{"x ", "c1 /conv1", "r1 /relu1", "c2 /conv2", "r2 /relu2", "c3 /conv3", "a /add", "r3 /relu3", "p /pool", "k /cat", "up /up", "m /mean", "f /flat", "g /fc", "y /mm"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	m := open(t, "testdata", "cases", "t03-calibration-cache", "model.onnx")
	got = nil
	for _, a := range Activations(m) {
		got = append(got, a.Name)
	}
	if !slices.Equal(got, []string{"data:0", "/mul/Mul_output_0", "y"}) {
		t.Errorf("%q", got)
	}
}

// TestTypesAreThoseOfONNXRuntime compares inferred element types with what ONNX
// Runtime computes, for every node output of every model of the field.
func TestTypesAreThoseOfONNXRuntime(t *testing.T) {
	files, err := filepath.Glob("../../testdata/cases/*/*.onnx")
	if err != nil {
		t.Fatal(err)
	}
	lib := ort.Library{Path: testkit.ORTLibrary(t)}
	compared := 0
	for _, path := range files {
		m, err := onnx.Open(path)
		if err != nil {
			continue
		}
		m.Close()
		if _, err := os.Stat(path + ".data"); err == nil {
			continue
		}
		known := newTyper(m).graph(m.Graph(), nil, nil)
		outputs := map[string]bool{}
		for _, o := range m.Outputs() {
			outputs[o.Name] = true
		}
		var extra []string
		for _, n := range m.Graph().GetNode() {
			for _, o := range n.GetOutput() {
				if o != "" && !outputs[o] {
					extra = append(extra, o)
				}
			}
		}
		s, err := ort.Open(context.Background(), lib, path, ort.Options{ExtraOutputs: extra})
		if err != nil {
			continue
		}
		for _, o := range s.Outputs() {
			if d := known.of(o.Name); d != o.DType {
				t.Errorf("%s: %s is %q, ONNX Runtime says %q", filepath.Base(path), o.Name, d, o.DType)
			}
			compared++
		}
		s.Close()
	}
	if compared < 150 {
		t.Errorf("only %d values were compared", compared)
	}
}
