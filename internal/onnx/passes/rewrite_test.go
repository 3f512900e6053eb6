package passes

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/onnx/graph"
	"github.com/trtship/trtship/internal/onnx/onnxtest"
	"github.com/trtship/trtship/internal/tensor"
)

func TestExportersShapeArithmeticBecomesAConstantReshape(t *testing.T) {
	// x.view(x.shape[0], x.shape[1], 4, 2), as the TorchScript exporter writes it.
	b := onnxtest.New(17).Input("x", tensor.Float32, "batch", "seq", 8).Int("i0", 0).Int("i1", 1).Ints("l0", 0).Ints("l4", 4).Ints("l2", 2).
		Node("Shape", "x", "s1").Node("Gather", "s1 i0", "b").Node("Shape", "x", "s2").Node("Gather", "s2 i1", "s").
		Node("Unsqueeze", "b l0", "bu").Node("Unsqueeze", "s l0", "su").Node("Concat", "bu su l4 l2", "shape", onnxtest.Int("axis", 0)).Node("Reshape", "x shape", "y").
		Output("y", tensor.Float32, "batch", "seq", 4, 2)
	got := optimize(t, b.Model(t))
	if d := cmp.Diff(map[string]int{"Reshape": 1}, counts(got)); d != "" {
		t.Fatalf("(-want +got):\n%s", d)
	}
	shape, err := got.TensorData(got.Graph().Initializer[0])
	if err != nil || !slices.Equal(shape.Int64s(), []int64{0, 0, 4, 2}) {
		t.Errorf("shape is %v, %v", shape.Int64s(), err)
	}
	feeds := [][]tensor.Named{}
	for _, dims := range [][]int64{{1, 1, 8}, {3, 5, 8}} {
		feeds = append(feeds, []tensor.Named{{Name: "x", Tensor: tensor.Zeros(tensor.Float32, dims...)}})
	}
	if !sameAnswers(t, b.Model(t), got, feeds...) {
		t.Error("nothing was run")
	}
}

func TestNoOpsGoAndLookAlikesStay(t *testing.T) {
	x := func(opset int64) *onnxtest.Builder {
		return onnxtest.New(opset).Input("x", tensor.Float32, "n", 4).Floats("one", []int64{}, 1).Floats("zero", []int64{}, 0).Floats("ones", []int64{1, 4}, 1, 1, 1, 1).
			Floats("wide", []int64{3, 1, 1}, 1, 1, 1).Ints("l0", 0).Ints("l1", 1).Ints("max", math.MaxInt64).Ints("lm1", -1).Ints("min", math.MinInt64).Ints("l00", 0, 0, 0, 0).Ints("l2", 2).Ints("l11", 1, 1)
	}
	tests := map[string]struct {
		b    *onnxtest.Builder
		want int // nodes between Relu and Neg
	}{
		"Identity":                         {x(17).Node("Identity", "r", "m"), 0},
		"Cast to the same type":            {x(17).Node("Cast", "r", "m", onnxtest.Int("to", 1)), 0},
		"Cast to another type":             {x(17).Node("Cast", "r", "m", onnxtest.Int("to", 11)), 1},
		"CastLike to the same type":        {x(17).Node("CastLike", "r one", "m"), 0},
		"Reshape to the same shape":        {x(17).Node("Shape", "r", "s").Node("Reshape", "r s", "m"), 0},
		"Reshape that copies all":          {x(17).Ints("copy", 0, 0).Node("Reshape", "r copy", "m"), 0},
		"Reshape to another shape":         {x(17).Ints("other", 2, -1).Node("Reshape", "r other", "m"), 1},
		"Transpose that moves nothing":     {x(17).Node("Transpose", "r", "m", onnxtest.Ints("perm", 0, 1)), 0},
		"Transpose and back":               {x(17).Node("Transpose", "r", "t").Node("Transpose", "t", "m"), 0},
		"Transpose":                        {x(17).Node("Transpose", "r", "m"), 1},
		"Dropout":                          {x(17).Node("Dropout", "r", "m"), 0},
		"Dropout whose mask is used":       {x(17).Node("Dropout", "r", "m mask").Node("Not", "mask", "q").Output("q", tensor.Bool, "n", 4), 2},
		"times one":                        {x(17).Node("Mul", "r one", "m"), 0},
		"one times":                        {x(17).Node("Mul", "one r", "m"), 0},
		"times ones of its own shape":      {x(17).Node("Mul", "r ones", "m"), 0},
		"times ones that widen it":         {x(17).Node("Mul", "r wide", "m"), 1},
		"by one":                           {x(17).Node("Div", "r one", "m"), 0},
		"one by":                           {x(17).Node("Div", "one r", "m"), 1},
		"plus zero":                        {x(17).Node("Add", "r zero", "m"), 1}, // -0 becomes 0
		"an integer plus zero":             {x(17).Int("iz", 0).Node("Cast", "r", "i", onnxtest.Int("to", 7)).Node("Add", "i iz", "s").Node("Cast", "s", "m", onnxtest.Int("to", 1)), 2},
		"minus zero":                       {x(17).Node("Sub", "r zero", "m"), 0},
		"zero minus":                       {x(17).Node("Sub", "zero r", "m"), 1},
		"plus one":                         {x(17).Node("Add", "r one", "m"), 1},
		"Slice of all":                     {x(17).Node("Slice", "r l0 max l1", "m"), 0},
		"Slice of less":                    {x(17).Node("Slice", "r l1 max l1", "m"), 1},
		"Slice backwards":                  {x(17).Node("Slice", "r lm1 min l1 lm1", "m"), 1},
		"Slice of all but the last":        {x(17).Node("Slice", "r l0 lm1 l0", "m"), 1},
		"Concat of one":                    {x(17).Node("Concat", "r", "m", onnxtest.Int("axis", 0)), 0},
		"Sum of one":                       {x(17).Node("Sum", "r", "m"), 0},
		"Pad by nothing":                   {x(17).Node("Pad", "r l00", "m"), 0},
		"Expand to the same":               {x(17).Node("Shape", "r", "s").Node("Expand", "r s", "m"), 0},
		"Tile once":                        {x(17).Node("Tile", "r l11", "m"), 0},
		"Flatten of two dimensions":        {x(17).Node("Flatten", "r", "m"), 0},
		"Unsqueeze and Squeeze":            {x(17).Node("Unsqueeze", "r l0", "u").Node("Squeeze", "u l0", "m"), 2},
		"Max of two":                       {x(17).Node("Max", "r one", "m"), 1},
		"an Identity of another domain":    {x(17).Import("acme", 1).Node("acme::Identity", "r", "m"), 1},
		"Slice steps":                      {x(17).Node("Slice", "r l0 max l1 l2", "m"), 1},
		"a Reshape whose zeros mean zeros": {x(17).Ints("z", 0, 4).Node("Reshape", "r z", "m", onnxtest.Int("allowzero", 1)), 1},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := tt.b
			b.Graph.Node = slices.Concat(onnxtest.New(17).Node("Relu", "x", "r").Graph.Node, b.Graph.Node)
			b.Node("Neg", "m", "y").Output("y", tensor.Float32)
			b.Graph.Output[len(b.Graph.Output)-1].Type.GetTensorType().Shape = nil
			if strings.Contains(name, "another type") {
				b.Graph.Output[0] = onnxtest.Info("y", tensor.Float64)
				b.Graph.Output[0].Type.GetTensorType().Shape = nil
			}
			m := b.Model(t)
			got := optimize(t, m)
			if n := len(got.Graph().Node) - 2; n != tt.want {
				t.Errorf("%d nodes are left, want %d: %v", n, tt.want, counts(got))
			}
			if strings.Contains(name, "another domain") || strings.Contains(name, "mean zeros") {
				return
			}
			feed := []tensor.Named{{Name: "x", Tensor: tensor.FromFloat32s([]int64{2, 4}, []float32{-1, 2, 3, -4, 5, 6, 7, 8})}}
			if !sameAnswers(t, m, got, feed) {
				t.Error("nothing was run")
			}
		})
	}
}

func TestViewsInFrontOfAReshapeAreSkipped(t *testing.T) {
	base := func() *onnxtest.Builder {
		return onnxtest.New(17).Input("x", tensor.Float32, 2, 12).Ints("a", 4, 6).Ints("b", 3, -1).Ints("copy", 0, 6).Ints("l0", 0)
	}
	for name, tt := range map[string]struct {
		b    *onnxtest.Builder
		want int
	}{
		"two reshapes":              {base().Node("Reshape", "x a", "m").Node("Reshape", "m b", "y"), 1},
		"unsqueeze and reshape":     {base().Node("Unsqueeze", "x l0", "m").Node("Reshape", "m b", "y"), 1},
		"a reshape that copies":     {base().Node("Reshape", "x a", "m").Node("Reshape", "m copy", "y"), 1}, // to [4,6] again: the same as m
		"a reshape of what is read": {base().Node("Reshape", "x a", "m").Node("Reshape", "m b", "y").Node("Neg", "m", "z").Output("z", tensor.Float32, 4, 6), 3},
	} {
		m := tt.b.Output("y", tensor.Float32, nil, nil).Model(t)
		got := optimize(t, m)
		if n := len(got.Graph().Node); n != tt.want {
			t.Errorf("%s: %v", name, counts(got))
		}
		if !sameAnswers(t, m, got, []tensor.Named{{Name: "x", Tensor: tensor.FromFloat32s([]int64{2, 12}, make([]float32, 24))}}) {
			t.Errorf("%s: nothing was run", name)
		}
	}
	// With allowzero the second reshape of case r01 may skip the first: its zeros are zeros.
	m, err := onnx.Open(caseFile("r01-ort-optimiser-breaks", "reshape_allowzero.onnx"))
	if err != nil {
		t.Fatal(err)
	}
	if got := optimize(t, m); len(got.Graph().Node) != 1 || graph.Load(got).Main.Nodes[0].Int("allowzero", 0) != 1 {
		t.Errorf("%v", got.Graph().Node)
	}
}

func TestEqualConstantsAreMergedAndOthersAreNot(t *testing.T) {
	half := func(last byte) tensor.Tensor {
		d := make([]byte, 20<<10)
		d[len(d)-1] = last
		return tensor.Tensor{DType: tensor.UInt8, Shape: []int64{int64(len(d))}, Data: d}
	}
	hidden := half(0)
	hidden.Data = slices.Clone(hidden.Data)
	hidden.Data[7<<10] = 9 // not among the bytes that are sampled
	b := onnxtest.New(17).Input("x", tensor.UInt8, "n").Init("a", half(1)).Init("b", half(1)).Init("c", half(2)).Init("d", half(0)).Init("e", hidden).
		Init("s1", tensor.FromStrings([]int64{1}, []string{"ab"})).Init("s2", tensor.FromStrings([]int64{1}, []string{"ab"})).Init("s3", tensor.FromStrings([]int64{2}, []string{"a", "b"})).
		Ints("i", 1).Init("f", tensor.FromFloat64s(tensor.Float64, []int64{1}, []float64{math.Float64frombits(1)})) // the same bytes as i
	for i, n := range strings.Fields("a b c d e") {
		b.Node("Concat", "x "+n, fmt.Sprintf("o%d", i), onnxtest.Int("axis", 0)).Output(fmt.Sprintf("o%d", i), tensor.UInt8, nil)
	}
	for i, n := range strings.Fields("s1 s2 s3 i f") {
		b.Node("Shape", n, fmt.Sprintf("p%d", i)).Output(fmt.Sprintf("p%d", i), tensor.Int64, 1)
	}
	got := optimize(t, b.Model(t), "duplicate-initializers")
	reads := func(i int) string { n := got.Graph().Node[i]; return n.Input[len(n.Input)-1] }
	if reads(0) != reads(1) || reads(5) != reads(6) {
		t.Error("equal constants are still apart")
	}
	seen := map[string]bool{}
	for _, i := range []int{0, 2, 3, 4, 5, 7, 8, 9} {
		if seen[reads(i)] {
			t.Errorf("node %d reads a constant that is not its own", i)
		}
		seen[reads(i)] = true
	}
}

func TestConstantsInBranchesAreMergedWithOuterOnes(t *testing.T) {
	branch := func(name string) *onnxtest.Builder {
		return onnxtest.New(17).Floats("k", []int64{2}, 1, 2).Node("Add", "x k", name).Output(name, tensor.Float32, 2)
	}
	b := onnxtest.New(17).Input("x", tensor.Float32, 2).Input("c", tensor.Bool).Floats("outer", []int64{2}, 1, 2).Node("Mul", "x outer", "h").
		Node("If", "c", "i", onnxtest.Body("then_branch", branch("t")), onnxtest.Body("else_branch", branch("e"))).Node("Add", "h i", "y").Output("y", tensor.Float32, 2)
	got := optimize(t, b.Model(t))
	for _, sub := range onnx.Subgraphs(got.Graph().Node[1]) {
		if len(sub.Initializer) != 0 || sub.Node[0].Input[1] != "outer" {
			t.Errorf("branch is %v", sub)
		}
	}
}

func TestCommonSubexpressions(t *testing.T) {
	tests := map[string]struct {
		b    *onnxtest.Builder
		want map[string]int
	}{
		"equal nodes": {onnxtest.New(17).Node("Relu", "x", "a").Node("Relu", "x", "b").Node("Add", "a b", "y"), map[string]int{"Relu": 1, "Add": 1}},
		"chains of equal nodes": {
			onnxtest.New(17).Node("Relu", "x", "a").Node("Relu", "x", "b").Node("Neg", "a", "c").Node("Neg", "b", "d").Node("Add", "c d", "y"),
			map[string]int{"Relu": 1, "Neg": 1, "Add": 1},
		},
		"operands turned round":    {onnxtest.New(17).Node("Add", "x z", "a").Node("Add", "z x", "b").Node("Sub", "a b", "y"), map[string]int{"Add": 1, "Sub": 1}},
		"operands that may not be": {onnxtest.New(17).Node("Sub", "x z", "a").Node("Sub", "z x", "b").Node("Add", "a b", "y"), map[string]int{"Sub": 2, "Add": 1}},
		"other attributes":         {onnxtest.New(17).Node("LeakyRelu", "x", "a", onnxtest.Float("alpha", 1)).Node("LeakyRelu", "x", "b", onnxtest.Float("alpha", 2)).Node("Add", "a b", "y"), map[string]int{"LeakyRelu": 2, "Add": 1}},
		"attributes in another order": {
			onnxtest.New(17).Node("Selu", "x", "a", onnxtest.Float("alpha", 1), onnxtest.Float("gamma", 2)).Node("Selu", "x", "b", onnxtest.Float("gamma", 2), onnxtest.Float("alpha", 1)).Node("Add", "a b", "y"),
			map[string]int{"Selu": 1, "Add": 1},
		},
		"unknown domains": {onnxtest.New(17).Import("acme", 1).Node("acme::Foo", "x", "a").Node("acme::Foo", "x", "b").Node("Add", "a b", "y"), map[string]int{"Foo": 2, "Add": 1}},
		"random numbers":  {onnxtest.New(17).Node("RandomNormalLike", "x", "a").Node("RandomNormalLike", "x", "b").Node("Sub", "a b", "y"), map[string]int{"RandomNormalLike": 2, "Sub": 1}},
	}
	for name, tt := range tests {
		m := tt.b.Input("x", tensor.Float32, "n").Input("z", tensor.Float32, "n").Output("y", tensor.Float32, "n").Model(t)
		if d := cmp.Diff(tt.want, counts(optimize(t, m))); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
	// Two outputs that are equal stay two.
	m := onnxtest.New(17).Input("x", tensor.Float32, "n").Node("Relu", "x", "a").Node("Relu", "x", "b").Output("a", tensor.Float32, "n").Output("b", tensor.Float32, "n").Model(t)
	if d := cmp.Diff(map[string]int{"Relu": 2}, counts(optimize(t, m))); d != "" {
		t.Errorf("two outputs (-want +got):\n%s", d)
	}
	// A branch uses what was computed before it, not the other way round.
	branch := onnxtest.New(17).Node("Relu", "x", "r").Node("Neg", "r", "t").Output("t", tensor.Float32, "n")
	other := onnxtest.New(17).Node("Abs", "x", "a").Node("Neg", "a", "e").Output("e", tensor.Float32, "n")
	m = onnxtest.New(17).Input("x", tensor.Float32, "n").Input("c", tensor.Bool).Node("Relu", "x", "before").
		Node("If", "c", "i", onnxtest.Body("then_branch", branch), onnxtest.Body("else_branch", other)).Node("Abs", "x", "after").Node("Sum", "before i after", "y").Output("y", tensor.Float32, "n").Model(t)
	got := optimize(t, m)
	inside := map[string]int{}
	for _, sub := range onnx.Subgraphs(got.Graph().Node[1]) {
		for _, n := range sub.Node {
			inside[n.GetOpType()]++
		}
	}
	if d := cmp.Diff(map[string]int{"Abs": 1, "Neg": 2}, inside); d != "" {
		t.Errorf("inside the branches (-want +got):\n%s", d)
	}
}
