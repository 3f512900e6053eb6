package facts

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
	"github.com/trtship/trtship/internal/onnx/onnxtest"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/internal/testkit"
	"github.com/trtship/trtship/report"
	"google.golang.org/protobuf/proto"
)

func openCase(t *testing.T, parts ...string) *onnx.Model {
	t.Helper()
	m, err := onnx.Open(filepath.Join(append([]string{"..", "..", "..", "testdata", "cases"}, parts...)...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

func findings(t *testing.T, m *onnx.Model) []report.Finding {
	t.Helper()
	f, err := Findings(m)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestCasesAreFound(t *testing.T) {
	testkit.HoldsCase(t, "e03-training-mode-ops", "r03-fp16-range", "r07-random-ops", "t01-int64-range", "o01-initializers-as-inputs")
	training := func(nodes ...string) []report.Finding {
		return []report.Finding{{Kind: "training-mode", Nodes: nodes, Severe: true, Text: "runs in training mode: answers change from run to run or with the other samples of a batch"}}
	}
	random := func(nodes ...string) []report.Finding {
		return []report.Finding{{Kind: "random-operator", Nodes: nodes, Text: "draws random numbers: no two runs agree"}}
	}
	tests := map[string][]report.Finding{
		"e03-training-mode-ops/dropout_train.onnx": training("/drop/Dropout"),
		"e03-training-mode-ops/dropout_eval.onnx":  {},
		"e03-training-mode-ops/bn_train.onnx":      training("/bn"),
		"r07-random-ops/unseeded.onnx":             random("/noise/RandomNormal"),
		"r07-random-ops/seeded.onnx":               random("/seeded"),
		"r07-random-ops/like.onnx":                 random("/like"),
		"r07-random-ops/two_draws_cse_trap.onnx":   random("/r1", "/r2"),
		"r07-random-ops/inside_if.onnx":            random("/If/then_branch: /if/rand"),
		"r03-fp16-range/weights_out_of_range.onnx": {
			{Kind: "fp16-range", Nodes: []string{"w (2 of 4 values, largest 100000)"}, Text: "holds values beyond 65504, which become infinite in fp16"},
			{Kind: "fp16-range", Nodes: []string{"w (1 of 4 values, smallest 6e-09)"}, Text: "holds values below 6e-8, which vanish in fp16"},
		},
		"r03-fp16-range/fp32.onnx":          {{Kind: "fp16-range", Nodes: []string{"neg (1 of 1 values, largest -1e+09)"}, Text: "holds values beyond 65504, which become infinite in fp16"}},
		"r03-fp16-range/fp16.onnx":          {{Kind: "non-finite-constant", Nodes: []string{"neg (1 of 1 values)"}, Text: "holds infinities or NaN"}},
		"r03-fp16-range/ln_fp32.onnx":       {{Kind: "fp16-range", Nodes: []string{"eps (1 of 1 values, smallest 1e-12)"}, Text: "holds values below 6e-8, which vanish in fp16"}},
		"t01-int64-range/slice_to_end.onnx": {{Kind: "int64-range", Nodes: []string{"/Slice"}, Text: "Slice end sentinel: fine"}},
		"t01-int64-range/arith_big.onnx":    {{Kind: "int64-range", Nodes: []string{"/Add"}, Text: "value 1099511627776 used in Add: TensorRT < 10 would clamp it to int32"}},
		"o01-initializers-as-inputs/ir4_overridable.onnx": {{
			Kind: "overridable-initializer", Nodes: []string{"w", "sc", "b", "mean", "var"}, Text: "has a default and can be overridden by a caller; it is not folded",
		}},
		"o01-initializers-as-inputs/ir3.onnx": {},
	}
	for file, want := range tests {
		t.Run(file, func(t *testing.T) {
			if d := cmp.Diff(want, findings(t, openCase(t, filepath.FromSlash(file)))); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

func TestIndicesStayInsideTheirTables(t *testing.T) {
	want := []report.IntegerRange{
		{Input: "input_ids", High: 9, Source: "Gather /embeddings/Gather (table of 10 rows)"}, {Input: "token_type_ids", High: 1, Source: "Gather /embeddings/Gather_1 (table of 2 rows)"},
	}
	if d := cmp.Diff(want, IntegerRanges(openCase(t, "r05-token-ids", "model.onnx"))); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	table := func() *onnxtest.Builder {
		return onnxtest.New(17).Input("ids", tensor.Int64, "batch", "seq").Floats("t10", []int64{10, 1}, make([]float32, 10)...).Floats("t7", []int64{1, 7}, make([]float32, 7)...).Ints("two", 2).Ints("l0", 0).Ints("l3", 3)
	}
	tests := map[string]struct {
		b         *onnxtest.Builder
		low, high int64
	}{
		"the smallest of two tables":     {table().Node("Gather", "t10 ids", "a").Node("Gather", "t7 ids", "b", onnxtest.Int("axis", -1)).Output("a", tensor.Float32).Output("b", tensor.Float32), 0, 6},
		"through casts and reshapes":     {table().Node("Cast", "ids", "c", onnxtest.Int("to", 6)).Node("Unsqueeze", "c l0", "u").Node("Gather", "t10 u", "a").Output("a", tensor.Float32), 0, 9},
		"shifted up":                     {table().Node("Add", "ids two", "s").Node("Gather", "t10 s", "a").Output("a", tensor.Float32), 0, 7},
		"shifted up from the other side": {table().Node("Add", "two ids", "s").Node("Gather", "t10 s", "a").Output("a", tensor.Float32), 0, 7},
		"shifted down":                   {table().Node("Sub", "ids two", "s").Node("Gather", "t10 s", "a").Output("a", tensor.Float32), 2, 11},
		"a table that is worked out":     {table().Node("Transpose", "t7", "tt").Node("Gather", "tt ids", "a").Output("a", tensor.Float32), 0, 6},
		"a table under an Identity":      {table().Node("Identity", "t10", "tt").Node("Gather", "tt ids", "a").Output("a", tensor.Float32), 0, 9},
		"a part of the indices":          {table().Node("Slice", "ids l0 l3", "s").Node("Gather", "t10 s", "a").Output("a", tensor.Float32), 0, 9},
		"inside a branch":                {table().Input("c", tensor.Bool).Node("If", "c", "y", onnxtest.Body("then_branch", onnxtest.New(17).Node("Gather", "t10 ids", "a").Output("a", tensor.Float32)), onnxtest.Body("else_branch", onnxtest.New(17).Node("Gather", "t7 ids", "b", onnxtest.Int("axis", 1)).Output("b", tensor.Float32))).Output("y", tensor.Float32), 0, 6},
	}
	for name, tt := range tests {
		got := IntegerRanges(tt.b.Model(t))
		if len(got) != 1 || got[0].Low != tt.low || got[0].High != tt.high {
			t.Errorf("%s: %+v, want %d to %d", name, got, tt.low, tt.high)
		}
	}
	for name, b := range map[string]*onnxtest.Builder{
		"a table of unknown size":      table().Input("free", tensor.Float32, "rows", 1).Node("Gather", "free ids", "a").Output("a", tensor.Float32),
		"indices that index nothing":   table().Node("Neg", "ids", "a").Output("a", tensor.Int64),
		"elements that are the table":  table().Int("i", 0).Node("Gather", "ids i", "a").Output("a", tensor.Int64),
		"indices that were multiplied": table().Node("Mul", "ids two", "m").Node("Gather", "t10 m", "a").Output("a", tensor.Float32),
		"a shift that is no constant":  table().Input("s", tensor.Int64, 1).Node("Sub", "s ids", "m").Node("Gather", "t10 m", "a").Output("a", tensor.Float32),
	} {
		if got := IntegerRanges(b.Model(t)); len(got) != 0 && got[0].Input == "ids" {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestTrainingModeIsSeenInEveryOperatorSetAndPlace(t *testing.T) {
	on := tensor.Tensor{DType: tensor.Bool, Shape: []int64{}, Data: []byte{1}}
	off := tensor.Tensor{DType: tensor.Bool, Shape: []int64{}, Data: []byte{0}}
	bn := func(opset int64, outputs string, attrs ...*onnxpb.AttributeProto) *onnxtest.Builder {
		return onnxtest.New(opset).Input("x", tensor.Float32, "n", 1).Floats("s", []int64{1}, 1).Node("BatchNormalization", "x s s s s", outputs, attrs...).Output("y", tensor.Float32)
	}
	drop := func(opset int64) *onnxtest.Builder {
		return onnxtest.New(opset).Input("x", tensor.Float32, "n").Floats("r", []int64{}, 0.5).Init("on", on).Init("off", off).Output("y", tensor.Float32)
	}
	function := func(opset int64, nodes *onnxtest.Builder) *onnxtest.Builder {
		f := &onnxpb.FunctionProto{Name: proto.String("F"), Domain: proto.String("acme"), Input: []string{"x"}, Output: []string{"y"}, Node: nodes.Graph.Node, OpsetImport: []*onnxpb.OperatorSetIdProto{{Version: &opset}}}
		return onnxtest.New(opset).Import("acme", 1).Function(f).Input("x", tensor.Float32, "n").Node("acme::F", "x", "y").Output("y", tensor.Float32)
	}
	tests := map[string]struct {
		b    *onnxtest.Builder
		want []string
	}{
		"Dropout 6":                       {drop(6).Node("Dropout", "x", "y"), []string{"/y"}},
		"Dropout 10":                      {drop(10).Node("Dropout", "x", "y"), nil},
		"Dropout 13, off":                 {drop(13).Node("Dropout", "x r off", "y"), nil},
		"Dropout 13, on":                  {drop(13).Node("Dropout", "x r on", "y"), []string{"/y"}},
		"Dropout 13, a caller's choice":   {drop(13).Input("m", tensor.Bool).Node("Dropout", "x r m", "y"), []string{"/y"}},
		"Dropout 13, off unless told":     {drop(13).Input("off", tensor.Bool).Node("Dropout", "x r off", "y"), []string{"/y"}},
		"Dropout 13 with a Constant":      {drop(13).Node("Constant", "", "c", onnxtest.Tensor("value", on)).Node("Dropout", "x r c", "y"), []string{"/y"}},
		"BatchNormalization 6":            {bn(6, "y"), []string{"/y"}},
		"BatchNormalization 6 in a test":  {bn(6, "y", onnxtest.Int("is_test", 1)), nil},
		"BatchNormalization 9":            {bn(9, "y"), nil},
		"BatchNormalization 9 statistics": {bn(9, "y m v"), []string{"/y"}},
		"BatchNormalization 15":           {bn(15, "y"), nil},
		"in a function":                   {function(13, onnxtest.New(13).Node("Constant", "", "r", onnxtest.Float("value_float", 0.5)).Node("Constant", "", "on", onnxtest.Tensor("value", on)).Node("Dropout", "x r on", "y")), []string{"function acme.F: /y"}},
		"off in a function":               {function(13, onnxtest.New(13).Node("Constant", "", "r", onnxtest.Float("value_float", 0.5)).Node("Constant", "", "on", onnxtest.Tensor("value", off)).Node("Dropout", "x r on", "y")), nil},
	}
	for name, tt := range tests {
		if d := cmp.Diff(tt.want, Training(tt.b.Model(t))); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
}

func TestParametersAndOperatorsAreCounted(t *testing.T) {
	m := openCase(t, "r05-token-ids", "model.onnx")
	n, bytes, types := Parameters(m)
	if n != 48 || bytes != 192 || types["float32"] != 48 {
		t.Errorf("%d elements, %d bytes, %v", n, bytes, types)
	}
	if d := cmp.Diff(map[string]int{"Gather": 2, "Add": 1}, Operators(m)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if got := Operators(openCase(t, "e07-unknown-ops", "model.onnx")); got["acme.ops::Foo"] != 2 || got["com.microsoft::Gelu"] != 1 {
		t.Errorf("%v", got)
	}
}

func TestWideIntegersAreFollowedToTheirUse(t *testing.T) {
	wide := func() *onnxtest.Builder {
		return onnxtest.New(17).Input("ids", tensor.Int64, "n", "m").Ints("end", math.MaxInt64).Int("zero", 0).Ints("l0", 0).Ints("l1", 1).Output("y", tensor.Int64)
	}
	tests := map[string]struct {
		b    *onnxtest.Builder
		want []string
	}{
		"joined before the Slice": {wide().Node("Concat", "end end", "ends", onnxtest.Int("axis", 0)).Ints("starts", 0, 0).Node("Slice", "ids starts ends", "y"), []string{"Slice end sentinel: fine: /y"}},
		"from the end":            {wide().Ints("min", math.MinInt64).Ints("lm1", -1).Node("Slice", "ids lm1 min l0 lm1", "y"), []string{"Slice end sentinel: fine: /y"}},
		"both harmless and not":   {wide().Node("Slice", "ids l0 end", "s").Node("Mul", "s end", "y"), []string{"Slice end sentinel: fine: /s", "value 9223372036854775807 used in Mul: TensorRT < 10 would clamp it to int32: /y"}},
		"in a Constant":           {wide().Node("Constant", "", "c", onnxtest.Int("value_int", 1)).Node("Constant", "", "k", onnxtest.Tensor("value", tensor.FromInt64s(tensor.Int64, []int64{2}, []int64{5, -1 << 40}))).Node("Add", "ids k", "y"), []string{"value -1099511627776 used in Add: TensorRT < 10 would clamp it to int32: /y"}},
		"just inside int32":       {wide().Ints("in", math.MaxInt32, math.MinInt32).Node("Add", "ids in", "y"), nil},
		"just outside":            {wide().Ints("out", math.MaxInt32+1).Node("Add", "ids out", "y"), []string{"value 2147483648 used in Add: TensorRT < 10 would clamp it to int32: /y"}},
	}
	for name, tt := range tests {
		var got []string
		for _, f := range findings(t, tt.b.Model(t)) {
			if f.Kind == "int64-range" {
				got = append(got, f.Text+": "+strings.Join(f.Nodes, ", "))
			}
		}
		slices.Sort(got)
		if d := cmp.Diff(tt.want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
}

func TestConstantsOfEveryFloatTypeAreJudged(t *testing.T) {
	for _, d := range []tensor.DType{tensor.Float64, tensor.Float32, tensor.BFloat16} {
		m := onnxtest.New(17).Input("x", d, 2).Init("w", tensor.FromFloat64s(d, []int64{2}, []float64{1e6, 1e-9})).Node("Mul", "x w", "y").Output("y", d, 2).Model(t)
		if got := findings(t, m); len(got) != 2 || !strings.HasPrefix(got[0].Nodes[0], "w (1 of 2 values, largest ") {
			t.Errorf("%s: %+v", d, got)
		}
	}
}

// FuzzFindings looks for facts in whatever the reader accepts.
func FuzzFindings(f *testing.F) {
	files, err := filepath.Glob(filepath.Join("..", "..", "..", "testdata", "cases", "*", "*.onnx"))
	if err != nil || len(files) == 0 {
		f.Fatalf("no seeds: %v", err)
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := onnx.Parse(b, dir)
		if err != nil {
			return
		}
		found, err := Findings(m)
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range m.Graph().GetInitializer() {
			if beyond := beyondFP16(w); beyond != 0 && !strings.Contains(fmt.Sprint(found), "beyond 65504") {
				t.Errorf("%g of %s is not found: %v", beyond, w.GetName(), found)
			}
		}
		for _, r := range IntegerRanges(m) {
			if r.Low > r.High {
				t.Errorf("empty range %+v", r)
			}
		}
		Parameters(m)
		Operators(m)
	})
}

// beyondFP16 reads by its own means whether a tensor of raw float32 has a finite
// value that fp16 has not; it returns one, or 0.
func beyondFP16(w *onnxpb.TensorProto) float32 {
	if w.GetDataType() != int32(onnxpb.TensorProto_FLOAT) || len(w.GetExternalData()) > 0 {
		return 0
	}
	for raw := w.GetRawData(); len(raw) >= 4; raw = raw[4:] {
		v := math.Float32frombits(binary.LittleEndian.Uint32(raw))
		if (v > 65504 || v < -65504) && v >= -math.MaxFloat32 && v <= math.MaxFloat32 {
			return v
		}
	}
	return 0
}
