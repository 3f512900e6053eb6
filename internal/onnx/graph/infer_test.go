package graph

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/onnx/onnxtest"
	"github.com/trtship/trtship/internal/ort"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/internal/testkit"
)

func TestMain(m *testing.M) {
	ort.RunChildIfAsked()
	testkit.Main(m)
}

// runAll returns every value of the main graph that ONNX Runtime computes on a
// feed.
func runAll(t *testing.T, m *onnx.Model, names []string, feeds ...[]tensor.Named) []map[string]tensor.Tensor {
	t.Helper()
	path := filepath.Join(t.TempDir(), "m.onnx")
	if err := m.Save(path, onnx.SaveOptions{}); err != nil {
		t.Fatal(err)
	}
	lib, err := ort.Find(t.Context(), ort.Places{File: testkit.ORTLibrary(t)})
	if err != nil {
		t.Fatal(err)
	}
	s, err := ort.Open(t.Context(), lib, path, ort.Options{ExtraOutputs: names})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var out []map[string]tensor.Tensor
	for _, feed := range feeds {
		got, err := s.Infer(t.Context(), feed)
		if err != nil {
			t.Fatal(err)
		}
		values := map[string]tensor.Tensor{}
		for _, g := range got {
			values[g.Name] = g.Tensor
		}
		out = append(out, values)
	}
	return out
}

func zooFeed(batch, seq int64, flag byte) []tensor.Named {
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
		{Name: "flag", Tensor: tensor.Tensor{DType: tensor.Bool, Shape: []int64{}, Data: []byte{flag}}},
	}
}

// checkFacts compares what is claimed about values with what they are. Equal
// symbols must be equal sizes.
func checkFacts(t *testing.T, values map[string]tensor.Tensor, facts map[string]Fact) {
	t.Helper()
	sizes := map[int32]int64{}
	same := func(name string, d Dim, size int64) {
		want := d.N
		if !d.Known() {
			if _, ok := sizes[d.S]; !ok {
				sizes[d.S] = size
			}
			want = sizes[d.S]
		}
		if size != want {
			t.Errorf("%s: claimed %+v (%d elsewhere), is %d", name, d, want, size)
		}
	}
	for name, f := range facts {
		v, ok := values[name]
		if !ok {
			continue
		}
		if d, _ := onnx.DType(int32(f.Type)); d != v.DType {
			t.Errorf("%s: claimed to be %s, is %s", name, d, v.DType)
		}
		if f.Ranked && len(f.Shape) != len(v.Shape) {
			t.Errorf("%s: claimed %s, is %v", name, f, v.Shape)
			continue
		}
		for i, d := range f.Shape {
			same(fmt.Sprintf("%s, dimension %d", name, i), d, v.Shape[i])
		}
		for i, d := range f.Elems {
			same(fmt.Sprintf("%s, element %d", name, i), d, v.Int64At(i))
		}
	}
}

func TestWhatIsInferredIsWhatONNXRuntimeComputes(t *testing.T) {
	b := onnxtest.Zoo().Output("uRelu", tensor.Float32, "batch", 3, 8, 8)
	m := b.Model(t)
	mod := Load(m)
	if err := mod.Infer(nil); err != nil {
		t.Fatal(err)
	}
	facts := map[string]Fact{}
	var names []string
	unranked := 0
	for _, n := range mod.Main.Nodes {
		for _, o := range n.Out {
			facts[o.Name] = o.Fact
			if !o.IsOutput() {
				names = append(names, o.Name)
			}
			if !o.Fact.Ranked {
				unranked++
				t.Logf("nothing is known about the shape of %s", o.Name)
			}
		}
	}
	if unranked > 0 {
		t.Errorf("%d values have no rank", unranked)
	}
	got := runAll(t, m, names, zooFeed(2, 5, 1), zooFeed(2, 7, 0))
	for _, values := range got {
		if len(values) < 100 {
			t.Fatalf("only %d values", len(values))
		}
		checkFacts(t, values, facts)
	}
}

// The point of inference: what exporters write about shapes must come out as
// known although the batch is not.
func TestShapeArithmeticIsKnownDespiteADynamicBatch(t *testing.T) {
	mod := Load(onnxtest.Zoo().Output("uRelu", tensor.Float32, "batch", 3, 8, 8).Model(t))
	if err := mod.Infer(nil); err != nil {
		t.Fatal(err)
	}
	facts := map[string]Fact{}
	for _, n := range mod.Main.Nodes {
		for _, o := range n.Out {
			facts[o.Name] = o.Fact
		}
	}
	batch := facts["uRelu"].Shape[0]
	elems := map[string][]int64{
		"chan": {3}, "sh12": {3, 8}, "hw": {8, 8}, "last": {8}, "mid": {3, 8}, "tail": {8, 8}, "tail1": {8}, "chan2": {6}, "chanp": {4}, "chanm": {2}, "chand": {1}, "chanmod": {1},
		"cmax": {3}, "cmin": {2}, "cneg": {-3}, "ceq": {0}, "cgt": {1}, "clt": {0}, "cge": {1}, "cle": {0}, "cand": {0}, "cor": {1}, "cxor": {1}, "cnot": {1}, "same": {1},
		"cwhere": {3}, "cint": {3}, "clong": {3}, "cbool": {1}, "hwprod": {64}, "hwp": {64}, "range": {0, 1, 2}, "exp": {1, 1, 1}, "size": {40}, "idc": {3},
	}
	for name, want := range elems {
		if got, ok := facts[name].KnownElems(); !ok || !slices.Equal(got, want) {
			t.Errorf("%s is %v, want %v", name, facts[name].Elems, want)
		}
	}
	shapes := map[string][]Dim{
		"flat": {batch, Size(3), Size(64)}, "flat2": {batch, Size(192)}, "flat3": {batch, Size(192)}, "conv": {batch, Size(6), Size(8), Size(8)}, "conv2": {batch, Size(6), Size(3), Size(3)},
		"conv3": {batch, Size(6), Size(4), Size(4)}, "conv4": {batch, Size(6), Size(4), Size(4)}, "pool": {batch, Size(3), Size(4), Size(4)}, "mm": {batch, Size(3), Size(8), Size(5)},
		"gemm": {batch, Size(5)}, "fl": {batch, Size(192)}, "rmk": {batch, Size(3)}, "am": {batch, Size(1), Size(8), Size(8)}, "if1": {batch, Size(3), Size(8), Size(8)}, "rangeb": {batch},
		"cos": {Size(3)}, "cosb": {batch}, "sl": {batch, Size(3), Size(2), Size(8)}, "sl2": {batch, Size(3), Size(7), Size(8)}, "rev": {batch, Size(3), Size(8), Size(8)}, "tile": {batch, Size(6), Size(8), Size(8)},
		"pad": {batch, Size(3), Size(11), Size(11)}, "expx": {Size(2), Size(3), Size(4), Size(1)}, "expb": {batch, Size(1)},
	}
	for name, want := range shapes {
		if got := facts[name]; !slices.Equal(got.Shape, want) {
			t.Errorf("%s is %s, want %v", name, got, want)
		}
	}
}

func TestSymbolsThatMayBeZeroAreNotTrustedAsShapes(t *testing.T) {
	// batch-1 may be 0, which a Reshape takes for "copy", and -1 for "work out".
	b := onnxtest.New(18).Input("x", tensor.Float32, "batch", 4).Int("i0", 0).Int("i1", 1).Ints("l0", 0).Ints("l4", 4).
		Node("Shape", "x", "sh").Node("Gather", "sh i0", "n").Node("Sub", "n i1", "m").Node("Unsqueeze", "m l0", "m1").Node("Concat", "m1 l4", "t", onnxtest.Int("axis", 0)).
		Node("Reshape", "x t", "y").Output("y", tensor.Float32, nil, nil)
	mod := Load(b.Model(t))
	if err := mod.Infer(nil); err != nil {
		t.Fatal(err)
	}
	nodes := mod.Main.Nodes
	m, y := nodes[2].Out[0].Fact.Elems[0], nodes[5].Out[0].Fact
	if mod.Positive(m) || y.Shape[0] == m {
		t.Errorf("batch-1 is taken for a size: %v in %s", m, y)
	}
}

func TestContradictionsLeaveNothingKnown(t *testing.T) {
	tests := map[string]*onnxtest.Builder{
		"sizes that do not broadcast": onnxtest.New(18).Input("x", tensor.Float32, 3).Input("z", tensor.Float32, 4).Node("Add", "x z", "y"),
		"an axis that is not there":   onnxtest.New(18).Input("x", tensor.Float32, 3).Int("i", 0).Node("Gather", "x i", "y", onnxtest.Int("axis", 5)),
		"unsqueezed twice":            onnxtest.New(18).Input("x", tensor.Float32, 3).Ints("a", 0, 0).Node("Unsqueeze", "x a", "y"),
		"squeezed outside":            onnxtest.New(18).Input("x", tensor.Float32, 3).Ints("a", 4).Node("Squeeze", "x a", "y"),
		"a permutation of other rank": onnxtest.New(18).Input("x", tensor.Float32, 3).Node("Transpose", "x", "y", onnxtest.Ints("perm", 1, 0)),
		"a permutation outside":       onnxtest.New(18).Input("x", tensor.Float32, 3).Node("Transpose", "x", "y", onnxtest.Ints("perm", 7)),
		"flattened outside":           onnxtest.New(18).Input("x", tensor.Float32, 3).Node("Flatten", "x", "y", onnxtest.Int("axis", 9)),
		"ranks that do not join":      onnxtest.New(18).Input("x", tensor.Float32, 3).Input("z", tensor.Float32, 3, 1).Node("Concat", "x z", "y", onnxtest.Int("axis", 0)),
		"reduced outside":             onnxtest.New(18).Input("x", tensor.Float32, 3).Ints("a", 4).Node("ReduceSum", "x a", "y"),
		"split outside":               onnxtest.New(18).Input("x", tensor.Float32, 3).Node("Split", "x", "y", onnxtest.Int("axis", 4), onnxtest.Int("num_outputs", 1)),
	}
	for name, b := range tests {
		mod := Load(b.Output("y", tensor.Float32).Model(t))
		if err := mod.Infer(nil); err != nil {
			t.Fatal(err)
		}
		if f := mod.Main.Nodes[0].Out[0].Fact; f.Ranked || f.Elems != nil {
			t.Errorf("%s: %s", name, f)
		}
	}
}

func TestShapesThatAreNotConstantGiveOnlyTheRank(t *testing.T) {
	b := onnxtest.New(18).Input("x", tensor.Float32, "n", 4).Input("s", tensor.Int64, 3).Input("z", tensor.Float32).
		Node("Reshape", "x s", "r").Node("Expand", "x s", "e").Node("Reshape", "z s", "rz").Node("ConstantOfShape", "s", "c").Node("Tile", "x s2", "t").Input("s2", tensor.Int64, 2).
		Node("Slice", "x s1 s1", "sl").Input("s1", tensor.Int64, 1).Node("Slice", "x s1 s1 ax", "sl1").Ints("ax", 0).Output("r", tensor.Float32)
	b.Graph.Input[2].Type.GetTensorType().Shape = nil // z has no rank
	mod := Load(b.Model(t))
	if err := mod.Infer(nil); err != nil {
		t.Fatal(err)
	}
	rank := map[string]int{"r": 3, "e": 3, "rz": 3, "c": -1, "t": -1, "sl": 2, "sl1": 2}
	for _, n := range mod.Main.Nodes {
		f := n.Out[0].Fact
		got := -1
		if f.Ranked {
			got = len(f.Shape)
		}
		if want, ok := rank[n.Out[0].Name]; ok && got != want {
			t.Errorf("%s: %s, want rank %d", n, f, want)
		}
	}
	if f := mod.Main.Nodes[6].Out[0].Fact; f.Shape[1] != Size(4) || f.Shape[0].Known() {
		t.Errorf("a cut along axis 0 gives %s", f)
	}
}

func TestQuotientCancelsAndRefuses(t *testing.T) {
	m := Load(onnxtest.New(17).Input("x", tensor.Float32, "n").Node("Relu", "x", "y").Output("y", tensor.Float32, "n").Model(t))
	a, b := m.symbols.named("a"), m.symbols.named("b")
	tests := []struct {
		num, den []Dim
		want     Dim
		ok       bool
	}{
		{[]Dim{a, Size(12)}, []Dim{a, Size(4)}, Size(3), true},
		{[]Dim{a, b}, []Dim{b}, a, true},
		{[]Dim{Size(6)}, nil, Size(6), true},
		{[]Dim{Size(6)}, []Dim{Size(4)}, Dim{}, false},
		{[]Dim{a}, []Dim{b}, Dim{}, false},
		{[]Dim{a}, []Dim{Size(0)}, Dim{}, false},
	}
	for _, tt := range tests {
		got, ok := m.quotient(tt.num, tt.den)
		if ok != tt.ok || got != tt.want {
			t.Errorf("%v / %v = %v, %v", tt.num, tt.den, got, ok)
		}
	}
	if q, ok := m.quotient([]Dim{a, Size(3)}, []Dim{Size(2)}); !ok || q.Known() {
		t.Errorf("3a/2 is %v, %v", q, ok)
	}
	for _, tt := range []struct {
		op   string
		a, b Dim
		want Dim
	}{
		{"+", a, Size(0), a},
		{"+", Size(0), a, a},
		{"-", a, Size(0), a},
		{"-", a, a, Size(0)},
		{"*", Size(1), a, a},
		{"*", a, Size(1), a},
		{"/", a, Size(1), a},
		{"min", a, a, a},
		{"mod", Size(-7), Size(3), Size(2)},
		{"/", Size(-7), Size(2), Size(-3)},
		{"max", Size(2), Size(5), Size(5)},
	} {
		if got := m.arith(tt.op, tt.a, tt.b); got != tt.want {
			t.Errorf("%v %s %v = %v, want %v", tt.a, tt.op, tt.b, got, tt.want)
		}
	}
	if m.arith("+", a, b) != m.arith("+", b, a) || m.arith("-", a, b) == m.arith("-", b, a) {
		t.Error("only sums and products may be turned round")
	}
	if m.arith("/", Size(1), Size(0)).Known() || m.arith("mod", Size(1), Size(0)).Known() {
		t.Error("a division by zero has a result")
	}
}

func TestIntegersAreReadFromConstantsOnly(t *testing.T) {
	b := onnxtest.New(17).Input("x", tensor.Float32, "n").Floats("f", []int64{1}, 1).Init("b", tensor.Tensor{DType: tensor.Bool, Shape: []int64{2}, Data: []byte{1, 0}}).
		Init("i", tensor.FromInt64s(tensor.Int32, []int64{2}, []int64{-5, 7})).Node("Relu", "x", "y").Output("y", tensor.Float32, "n")
	mod := Load(b.Model(t))
	if _, err := mod.Integers(mod.Main.Inputs[0]); err == nil {
		t.Error("an input has integers")
	}
	if _, err := mod.Integers(mod.Main.Inits[0]); err == nil {
		t.Error("floats are integers")
	}
	if got, err := mod.Integers(mod.Main.Inits[1]); err != nil || !slices.Equal(got, []int64{1, 0}) {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := mod.Integers(mod.Main.Inits[2]); err != nil || !slices.Equal(got, []int64{-5, 7}) {
		t.Errorf("%v, %v", got, err)
	}
}
