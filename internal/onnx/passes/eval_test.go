package passes

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/onnx/graph"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
	"github.com/trtship/trtship/internal/onnx/onnxtest"
	"github.com/trtship/trtship/internal/ort"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/internal/testkit"
)

// constantZoo is the zoo with constants in the place of its inputs, so that all
// that can be computed is.
func constantZoo() *onnxtest.Builder {
	b := onnxtest.Zoo()
	b.Graph.Input = nil
	for _, in := range zooFeed(2, 5) {
		b.Init(in.Name, in.Tensor)
	}
	return b
}

func zooFeed(batch, seq int64) []tensor.Named {
	x := make([]float32, batch*3*8*8)
	for i := range x {
		x[i] = float32(i%11)*0.3 - 1
	}
	ids := make([]int64, batch*seq)
	for i := range ids {
		ids[i] = int64(i) % 10
	}
	return []tensor.Named{
		{Name: "x", Tensor: tensor.FromFloat32s([]int64{batch, 3, 8, 8}, x)},
		{Name: "ids", Tensor: tensor.FromInt64s(tensor.Int64, []int64{batch, seq}, ids)},
		{Name: "flag", Tensor: tensor.Tensor{DType: tensor.Bool, Shape: []int64{}, Data: []byte{1}}},
	}
}

// more are constants and calls that the zoo lacks: other types, edge values.
func more(b *onnxtest.Builder) {
	b.Init("d", tensor.FromFloat64s(tensor.Float64, []int64{4}, []float64{-1.5, 0, 2.5, 1e300})).Init("h", tensor.FromFloat64s(tensor.Float16, []int64{4}, []float64{-1.5, 0, 2.5, 65504})).
		Init("i32", tensor.FromInt64s(tensor.Int32, []int64{4}, []int64{-7, 0, 3, 1 << 30})).Init("j32", tensor.FromInt64s(tensor.Int32, []int64{4}, []int64{3, 5, -2, 3})).
		Init("u8", tensor.FromInt64s(tensor.UInt8, []int64{4}, []int64{0, 1, 128, 255})).Init("i8", tensor.FromInt64s(tensor.Int8, []int64{4}, []int64{-128, -1, 0, 127})).
		Init("bo", tensor.Tensor{DType: tensor.Bool, Shape: []int64{4}, Data: []byte{0, 1, 1, 0}}).Floats("f", []int64{4}, -2.5, 0.5, 1.5, 3).Floats("g", []int64{1}, 2).
		Init("l", tensor.FromInt64s(tensor.Int64, []int64{2, 2}, []int64{-7, 3, 9, -4})).Init("k", tensor.FromInt64s(tensor.Int64, []int64{2, 1}, []int64{4, -3})).
		Floats("nan", []int64{2}, float32(math.NaN()), float32(math.Inf(1))).Floats("empty", []int64{0, 3}).Floats("f0", []int64{}, 0).Floats("f1", []int64{}, 1).Floats("f01", []int64{}, 0.1)
	for i, c := range []struct {
		op, in string
		attrs  []*onnxpb.AttributeProto
	}{
		{"Add", "d d", nil},
		{"Mul", "h h", nil},
		{"Add", "i32 j32", nil},
		{"Div", "i32 j32", nil},
		{"Mod", "i32 j32", nil},
		{"Div", "l k", nil},
		{"Mod", "l k", nil},
		{"Mul", "l k", nil},
		{"Min", "l k", nil},
		{"Max", "l k", nil},
		{"Sub", "f g", nil},
		{"Div", "f g", nil},
		{"Pow", "f g", nil},
		{"Min", "f g", nil},
		{"Max", "f g", nil},
		{"Add", "nan g", nil},
		{"Equal", "nan nan", nil},
		{"Less", "nan g", nil},
		{"Greater", "l k", nil},
		{"Equal", "bo bo", nil},
		{"And", "bo bo", nil},
		{"Xor", "bo bo", nil},
		{"Neg", "i32", nil},
		{"Abs", "i32", nil},
		{"Sign", "l", nil},
		{"Sqrt", "g", nil},
		{"Reciprocal", "f", nil},
		{"Log", "g", nil},
		{"Exp", "f", nil},
		{"Round", "f", nil},
		{"Sign", "nan", nil},
		{"Relu", "nan", nil},
		{"Not", "bo", nil},
		{"Cast", "f", []*onnxpb.AttributeProto{onnxtest.Int("to", 7)}},
		{"Cast", "f", []*onnxpb.AttributeProto{onnxtest.Int("to", 10)}},
		{"Cast", "f", []*onnxpb.AttributeProto{onnxtest.Int("to", 16)}},
		{"Cast", "f", []*onnxpb.AttributeProto{onnxtest.Int("to", 9)}},
		{"Cast", "i32", []*onnxpb.AttributeProto{onnxtest.Int("to", 2)}},
		{"Cast", "i8", []*onnxpb.AttributeProto{onnxtest.Int("to", 1)}},
		{"Cast", "u8", []*onnxpb.AttributeProto{onnxtest.Int("to", 3)}},
		{"Cast", "l", []*onnxpb.AttributeProto{onnxtest.Int("to", 6)}},
		{"Cast", "bo", []*onnxpb.AttributeProto{onnxtest.Int("to", 1)}},
		{"Cast", "l", []*onnxpb.AttributeProto{onnxtest.Int("to", 9)}},
		{"Cast", "d", []*onnxpb.AttributeProto{onnxtest.Int("to", 1)}},
		{"ReduceSum", "l", nil},
		{"ReduceSum", "l l0", []*onnxpb.AttributeProto{onnxtest.Int("keepdims", 0)}},
		{"ReduceProd", "l lm1", nil},
		{"ReduceMax", "f", nil},
		{"ReduceMin", "f", nil},
		{"ReduceMean", "f", nil},
		{"Range", "f0 f1 f01", nil},
		{"Range", "i2 i0 im1", nil},
		{"NonZero", "bo", nil},
		{"NonZero", "l", nil},
		{"CumSum", "l i1", nil},
		{"Trilu", "l", []*onnxpb.AttributeProto{onnxtest.Int("upper", 0)}},
		{"Trilu", "l i1", nil},
		{"GatherND", "l ind", nil},
		{"GatherND", "l ind2", nil},
		{"ScatterND", "l ind upd", nil},
		{"GatherElements", "l k2", []*onnxpb.AttributeProto{onnxtest.Int("axis", 1)}},
		{"Concat", "empty empty", []*onnxpb.AttributeProto{onnxtest.Int("axis", 0)}},
		{"Transpose", "h2", []*onnxpb.AttributeProto{onnxtest.Ints("perm", 1, 0)}},
		{"Slice", "l lm1 minbig l1 lm1", nil},
		{"Slice", "empty l0 l1", nil},
		{"Tile", "l l23", nil},
		{"Expand", "k sh3l", nil},
		{"Where", "bo f g", nil},
		{"Clip", "f f0 f1", nil},
		{"Clip", "f", nil},
		{"Shape", "empty", nil},
		{"Size", "l", nil},
		{"Split", "f", []*onnxpb.AttributeProto{onnxtest.Int("num_outputs", 1)}},
	} {
		b.Node(c.op, c.in, fmt.Sprintf("more%d", i), c.attrs...)
	}
	b.Int("im1", -1).Init("ind", tensor.FromInt64s(tensor.Int64, []int64{2, 2}, []int64{0, 1, -1, 0})).Init("ind2", tensor.FromInt64s(tensor.Int64, []int64{1, 1}, []int64{1})).Ints("upd", 100, 200).
		Init("k2", tensor.FromInt64s(tensor.Int64, []int64{2, 1}, []int64{1, -1})).Init("h2", tensor.FromFloat64s(tensor.Float16, []int64{2, 40}, make([]float64, 80))).Ints("sh3l", 2, 2, 3)
}

// TestFoldedValuesAreThoseOfONNXRuntime computes everything in the zoo both
// ways.
func TestFoldedValuesAreThoseOfONNXRuntime(t *testing.T) {
	b := constantZoo()
	more(b)
	b.Node("Identity", "x", "out").Output("out", tensor.Float32, 2, 3, 8, 8)
	m := b.Model(t)
	var names []string
	for _, n := range m.Graph().Node {
		for _, o := range n.Output {
			if o != "out" {
				names = append(names, o)
			}
		}
	}
	want := compute(t, m, names)
	folded := fold(t, m)
	if len(folded) < 150 {
		t.Errorf("only %d values were folded", len(folded))
	}
	for name, got := range folded {
		w, ok := tensor.Find(want, name)
		if !ok {
			t.Errorf("ONNX Runtime has no %s", name)
			continue
		}
		if why := differ(tensor.Named{Name: name, Tensor: w}, tensor.Named{Name: name, Tensor: got}); why != "" {
			t.Errorf("%s: %s\nONNX Runtime: %v\nfolded: %v", name, why, short(w), short(got))
		}
	}
	var left []string
	for _, n := range names {
		if _, ok := folded[n]; !ok {
			left = append(left, n)
		}
	}
	t.Logf("not folded: %s", strings.Join(left, " "))
}

func short(x tensor.Tensor) string { return fmt.Sprintf("%.200s", fmt.Sprint(x.Float64s())) }

// fold returns the constants that Fold makes of m's values.
func fold(t *testing.T, m *onnx.Model) map[string]tensor.Tensor {
	t.Helper()
	mod := graph.Load(m)
	values := map[string]*graph.Value{}
	for _, n := range mod.Main.Nodes {
		for _, o := range n.Out {
			values[o.Name] = o
		}
	}
	if _, err := (Fold{Limit: 16 << 20}).Apply(mod); err != nil {
		t.Fatal(err)
	}
	folded := map[string]tensor.Tensor{}
	for name, v := range values {
		if v.Constant() {
			d, err := m.TensorData(v.Init)
			if err != nil {
				t.Fatal(err)
			}
			folded[name] = d
		}
	}
	return folded
}

func compute(t *testing.T, m *onnx.Model, names []string) []tensor.Named {
	t.Helper()
	path := t.TempDir() + "/m.onnx"
	if err := m.Save(path, onnx.SaveOptions{}); err != nil {
		t.Fatal(err)
	}
	lib, err := ort.Find(t.Context(), ort.Places{File: testkit.ORTLibrary(t)})
	if err != nil {
		t.Fatal(err)
	}
	s, err := ort.Open(context.Background(), lib, path, ort.Options{ExtraOutputs: names})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	got, err := s.Infer(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// What is not defined, or differs between machines, must be left to the runtime.
func TestUndefinedResultsAreNotFolded(t *testing.T) {
	tests := map[string]*onnxtest.Builder{
		"integer division by zero":   onnxtest.New(18).Ints("a", 1).Ints("b", 0).Node("Div", "a b", "y"),
		"remainder of zero":          onnxtest.New(18).Init("a", tensor.FromInt64s(tensor.Int32, []int64{1}, []int64{1})).Init("b", tensor.FromInt64s(tensor.Int32, []int64{1}, []int64{0})).Node("Mod", "a b", "y"),
		"the smallest by minus one":  onnxtest.New(18).Init("a", tensor.FromInt64s(tensor.Int64, []int64{1, 1}, []int64{math.MinInt64})).Ints("b", -1).Node("Div", "a b", "y"),
		"a negative integer power":   onnxtest.New(18).Init("a", tensor.FromInt64s(tensor.Int32, []int64{1}, []int64{2})).Init("b", tensor.FromInt64s(tensor.Int32, []int64{1}, []int64{-2})).Node("Pow", "a b", "y"),
		"a cast out of range":        onnxtest.New(18).Floats("a", []int64{1}, 1e20).Node("Cast", "a", "y", onnxtest.Int("to", 7)),
		"a cast of NaN":              onnxtest.New(18).Floats("a", []int64{1}, float32(math.NaN())).Node("Cast", "a", "y", onnxtest.Int("to", 6)),
		"an index outside":           onnxtest.New(18).Floats("a", []int64{2}, 1, 2).Ints("b", 2).Node("Gather", "a b", "y"),
		"an index outside of a row":  onnxtest.New(18).Floats("a", []int64{1, 2}, 1, 2).Init("b", tensor.FromInt64s(tensor.Int64, []int64{1, 1}, []int64{-3})).Node("GatherElements", "a b", "y", onnxtest.Int("axis", 1)),
		"a point outside":            onnxtest.New(18).Floats("a", []int64{2}, 1, 2).Init("b", tensor.FromInt64s(tensor.Int64, []int64{1, 1}, []int64{5})).Node("GatherND", "a b", "y"),
		"a write outside":            onnxtest.New(18).Floats("a", []int64{2}, 1, 2).Init("b", tensor.FromInt64s(tensor.Int64, []int64{1, 1}, []int64{5})).Floats("c", []int64{1}, 1).Node("ScatterND", "a b c", "y"),
		"a sum of writes":            onnxtest.New(18).Floats("a", []int64{2}, 1, 2).Init("b", tensor.FromInt64s(tensor.Int64, []int64{1, 1}, []int64{1})).Floats("c", []int64{1}, 1).Node("ScatterND", "a b c", "y", onnxtest.String("reduction", "add")),
		"shapes that do not fit":     onnxtest.New(18).Floats("a", []int64{2}, 1, 2).Floats("b", []int64{3}, 1, 2, 3).Node("Add", "a b", "y"),
		"other types":                onnxtest.New(18).Floats("a", []int64{2}, 1, 2).Ints("b", 1, 2).Node("Add", "a b", "y"),
		"a reshape that cannot be":   onnxtest.New(18).Floats("a", []int64{2}, 1, 2).Ints("b", 3).Node("Reshape", "a b", "y"),
		"a negative size":            onnxtest.New(18).Ints("b", -1).Node("ConstantOfShape", "b", "y"),
		"more than memory":           onnxtest.New(18).Ints("b", 1<<20, 1<<20, 1<<20).Node("ConstantOfShape", "b", "y"),
		"a range without a step":     onnxtest.New(18).Floats("a", []int64{}, 0).Floats("b", []int64{}, 1).Node("Range", "a b a", "y"),
		"an endless range":           onnxtest.New(18).Floats("a", []int64{}, 0).Floats("b", []int64{}, 1e30).Floats("c", []int64{}, 1).Node("Range", "a b c", "y"),
		"a huge tile":                onnxtest.New(18).Floats("a", []int64{1}, 1).Ints("b", 1<<40).Node("Tile", "a b", "y"),
		"a huge expansion":           onnxtest.New(18).Floats("a", []int64{1}, 1).Ints("b", 1<<40).Node("Expand", "a b", "y"),
		"a reduction of nothing":     onnxtest.New(18).Floats("a", []int64{0}).Node("ReduceMax", "a", "y"),
		"large integers summed":      onnxtest.New(18).Init("a", tensor.FromInt64s(tensor.Int64, []int64{1, 2}, []int64{1 << 60, 1})).Node("ReduceSum", "a", "y"),
		"unsigned of 64 bits":        onnxtest.New(18).Init("a", tensor.FromInt64s(tensor.UInt64, []int64{1}, []int64{-1})).Node("Greater", "a a", "y"),
		"random numbers":             onnxtest.New(18).Node("RandomNormal", "", "y", onnxtest.Ints("shape", 2)),
		"a training dropout":         onnxtest.New(18).Floats("a", []int64{2}, 1, 2).Floats("r", []int64{}, 0.5).Init("t", tensor.Tensor{DType: tensor.Bool, Shape: []int64{}, Data: []byte{1}}).Node("Dropout", "a r t", "y"),
		"an operator that is no one": onnxtest.New(18).Floats("a", []int64{2}, 1, 2).Node("Sinh", "a", "y"),
		"strings":                    onnxtest.New(18).Init("a", tensor.FromStrings([]int64{1}, []string{"a"})).Node("Identity", "a", "i").Node("Concat", "i i", "y", onnxtest.Int("axis", 0)),
		"a dequantized weight":       onnxtest.New(18).Init("a", tensor.FromInt64s(tensor.Int8, []int64{2}, []int64{1, 2})).Floats("s", []int64{}, 0.5).Node("DequantizeLinear", "a s", "y"),
	}
	for name, b := range tests {
		b.Node("Shape", "y", "s0").Output("s0", tensor.Int64, nil)
		if got, ok := fold(t, b.Model(t))["y"]; ok {
			t.Errorf("%s: folded to %v%v", name, got.Shape, got.Float64s())
		}
	}
}

func TestBFloatRoundsToEven(t *testing.T) {
	for in, want := range map[float32]uint16{1: 0x3f80, -2: 0xc000, 1.00390625: 0x3f80, 1.01171875: 0x3f82, 3.4e38: 0x7f80, float32(math.Inf(1)): 0x7f80} {
		if got := bfloat(in); got != want {
			t.Errorf("%g is %04x, want %04x", in, got, want)
		}
	}
	if got := bfloat(float32(math.NaN())); got&0x7f80 != 0x7f80 || got&0x7f == 0 {
		t.Errorf("NaN is %04x", got)
	}
}

func TestTransposedViewsOfEveryWidth(t *testing.T) {
	for _, typ := range []onnxpb.TensorProto_DataType{onnxpb.TensorProto_INT8, onnxpb.TensorProto_INT16, onnxpb.TensorProto_INT32, onnxpb.TensorProto_INT64} {
		const rows, cols = 70, 45 // more than a block each way
		values := make([]int64, rows*cols)
		want := make([]int64, rows*cols)
		for r := range rows {
			for c := range cols {
				v := int64((r*cols + c) % 100)
				values[r*cols+c], want[c*rows+r] = v, v
			}
		}
		a := fromInts(typ, []int64{rows, cols}, values)
		got, _ := a.view([]int64{cols, rows}, 0, []int64{1, cols}).ints()
		if !slices.Equal(got, want) {
			t.Errorf("%s was transposed wrongly", typ)
		}
	}
}
