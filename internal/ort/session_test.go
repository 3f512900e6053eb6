package ort

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/internal/testkit"
)

// identity writes a model whose outputs are its inputs, one of each type.
func identity(t testing.TB, dims []int64, types ...tensor.DType) string {
	t.Helper()
	var shape onnxpb.TensorShapeProto
	for _, d := range dims {
		dim := &onnxpb.TensorShapeProto_Dimension{Value: &onnxpb.TensorShapeProto_Dimension_DimValue{DimValue: d}}
		if d < 0 {
			dim.Value = &onnxpb.TensorShapeProto_Dimension_DimParam{DimParam: "n"}
		}
		shape.Dim = append(shape.Dim, dim)
	}
	g := &onnxpb.GraphProto{Name: proto.String("g")}
	info := func(name string, d tensor.DType) *onnxpb.ValueInfoProto {
		return &onnxpb.ValueInfoProto{Name: proto.String(name), Type: &onnxpb.TypeProto{Value: &onnxpb.TypeProto_TensorType{
			TensorType: &onnxpb.TypeProto_Tensor{ElemType: proto.Int32(elementCode(d)), Shape: &shape},
		}}}
	}
	for _, d := range types {
		in, out := "in_"+string(d), "out_"+string(d)
		g.Input, g.Output = append(g.Input, info(in, d)), append(g.Output, info(out, d))
		g.Node = append(g.Node, &onnxpb.NodeProto{OpType: proto.String("Identity"), Name: proto.String("/id/" + string(d)), Input: []string{in}, Output: []string{out}})
	}
	return writeModel(t, &onnxpb.ModelProto{IrVersion: proto.Int64(10), Graph: g, OpsetImport: []*onnxpb.OperatorSetIdProto{{Domain: proto.String(""), Version: proto.Int64(21)}}})
}

func writeModel(t testing.TB, m *onnxpb.ModelProto) string {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "model.onnx")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

var allTypes = []tensor.DType{
	tensor.Float64, tensor.Float32, tensor.Float16, tensor.BFloat16, tensor.Float8E4, tensor.Float8E5,
	tensor.Int64, tensor.Int32, tensor.Int16, tensor.Int8, tensor.UInt64, tensor.UInt32, tensor.UInt16, tensor.UInt8,
	tensor.Bool, tensor.String,
}

func TestEveryTypeAndShapePassesThroughBitForBit(t *testing.T) {
	for _, dims := range [][]int64{{}, {3}, {-1, 2}, {-1, 0}, {1, 1, 1, 1}} {
		s := open(t, identity(t, dims, allTypes...), Options{})
		shape := slices.Clone(dims)
		for i := range shape {
			if shape[i] < 0 {
				shape[i] = 4
			}
		}
		var feed []tensor.Named
		for _, d := range allTypes {
			x, err := tensor.Generate(d, shape, tensor.Range{}, "seed", string(d))
			if err != nil {
				t.Fatal(err)
			}
			feed = append(feed, tensor.Named{Name: "in_" + string(d), Tensor: x})
		}
		out := infer(t, s, feed)
		for i, o := range out {
			if o.Name != "out_"+string(allTypes[i]) {
				t.Errorf("output %d is %s", i, o.Name)
			}
			if !o.Tensor.Equal(feed[i].Tensor) {
				t.Errorf("%s%v: got %v, want %v", allTypes[i], dims, o.Tensor, feed[i].Tensor)
			}
		}
	}
}

func TestExtremeValuesAndOddStringsSurvive(t *testing.T) {
	s := open(t, identity(t, []int64{2}, tensor.Int64, tensor.UInt64, tensor.Float32, tensor.String), Options{})
	feed := []tensor.Named{
		{Name: "in_int64", Tensor: tensor.FromInt64s(tensor.Int64, []int64{2}, []int64{math.MaxInt64, math.MinInt64})},
		{Name: "in_uint64", Tensor: tensor.FromInt64s(tensor.UInt64, []int64{2}, []int64{-1, 1<<53 + 1})},
		{Name: "in_float32", Tensor: tensor.FromFloat64s(tensor.Float32, []int64{2}, []float64{math.NaN(), math.Inf(-1)})},
		{Name: "in_string", Tensor: tensor.FromStrings([]int64{2}, []string{"a\x00b\x00", "größe"})},
	}
	for i, o := range infer(t, s, feed) {
		if !o.Tensor.Equal(feed[i].Tensor) {
			t.Errorf("%s: got %v, want %v", o.Name, o.Tensor, feed[i].Tensor)
		}
	}
}

func TestAModelWithoutInputsRuns(t *testing.T) {
	s := open(t, caseFile(t, "r07-random-ops", "unseeded.onnx"), Options{})
	feed := []tensor.Named{}
	for _, in := range s.Inputs() {
		x, err := tensor.Generate(in.DType, []int64{2, in.Dims[1]}, tensor.Range{}, "seed")
		if err != nil {
			t.Fatal(err)
		}
		feed = append(feed, tensor.Named{Name: in.Name, Tensor: x})
	}
	if out := infer(t, s, feed); len(out) == 0 {
		t.Error("no output")
	}
	g := &onnxpb.GraphProto{
		Name: proto.String("g"),
		Node: []*onnxpb.NodeProto{{OpType: proto.String("Constant"), Output: []string{"y"}, Attribute: []*onnxpb.AttributeProto{{
			Name: proto.String("value_float"), Type: onnxpb.AttributeProto_FLOAT.Enum(), F: proto.Float32(2.5),
		}}}},
		Output: []*onnxpb.ValueInfoProto{{Name: proto.String("y")}},
	}
	s = open(t, writeModel(t, &onnxpb.ModelProto{
		IrVersion: proto.Int64(10), Graph: g,
		OpsetImport: []*onnxpb.OperatorSetIdProto{{Version: proto.Int64(21)}},
	}), Options{})
	if out := infer(t, s, nil); len(out) != 1 || out[0].Float64At(0) != 2.5 || len(out[0].Shape) != 0 {
		t.Errorf("outputs = %v", out)
	}
}

func TestWhatASessionSaysAboutItsModel(t *testing.T) {
	s := open(t, caseFile(t, "o01-initializers-as-inputs", "ir4_overridable.onnx"), Options{Threads: 2})
	if got := len(s.Inputs()); got != 1 {
		t.Errorf("%d inputs to feed, want 1: %v", got, s.Inputs())
	}
	if len(s.Overridable()) == 0 {
		t.Error("the initializer that may be overridden is not listed")
	}
	if !strings.HasPrefix(s.Describe(), "ONNX Runtime "+s.Library().Version+", graph optimisation off, 2 threads") {
		t.Errorf("description = %q", s.Describe())
	}
	if s.LoadMs() <= 0 {
		t.Errorf("loaded in %v ms", s.LoadMs())
	}
	two := infer(t, s, caseFeed(t, "o01-initializers-as-inputs", "feed_two.npz"))
	other := infer(t, s, caseFeed(t, "o01-initializers-as-inputs", "feed_override.npz"))
	if d := other[0].Float64At(0) - two[0].Float64At(0); math.Abs(d-100) > 1e-3 {
		t.Errorf("overriding the initializer shifts by %v, want 100", d)
	}
	x := ValueInfo{Name: "x", DType: tensor.Float32, Dims: []int64{-1, 3, -1}, Symbols: []string{"batch", "", ""}}
	if x.String() != "x float32[batch,3,?]" {
		t.Errorf("String = %q", x.String())
	}
}

func TestACrashOfONNXRuntimeIsAnError(t *testing.T) {
	testkit.HoldsCase(t, "o09-empty-optional-names")
	dir := t.TempDir()
	t.Chdir(dir)
	var log bytes.Buffer
	s := open(t, caseFile(t, "o09-empty-optional-names", "split_empty_output.onnx"), Options{Log: &log})
	_, err := s.Infer(t.Context(), caseFeed(t, "o09-empty-optional-names", "feed_split.npz"))
	crash, ok := errors.AsType[*CrashError](err)
	if !ok {
		t.Fatalf("err = %v, want a CrashError", err)
	}
	if crash.Signal != syscall.SIGSEGV || crash.Feed == "" || crash.Model == "" {
		t.Errorf("crash = %+v", crash)
	}
	if want := "ONNX Runtime crashed (SIGSEGV) while running split_empty_output.onnx"; err.Error() != want {
		t.Errorf("err = %q, want %q", err, want)
	}
	if failure.CodeOf(err) != failure.Tolerance {
		t.Errorf("code %v", failure.CodeOf(err))
	}
	// Later calls say the same, and the session closes.
	if _, err := s.Infer(t.Context(), caseFeed(t, "o09-empty-optional-names", "feed_split.npz")); err == nil {
		t.Error("a dead session answers")
	}
	for _, d := range []string{dir, os.TempDir()} {
		found, _ := filepath.Glob(filepath.Join(d, "core*"))
		if len(found) > 0 {
			t.Errorf("left a core file: %v", found)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	testkit.NoChildren(t)
}

func TestRefusalsSayWhatToDo(t *testing.T) {
	cases := map[string]struct {
		model []string
		feed  []string
		code  failure.Code
		want  []string
		hint  string
	}{
		"a token beyond the vocabulary": {
			[]string{"r05-token-ids", "model.onnx"},
			[]string{"r05-token-ids", "feed_vocab_hit.npz"},
			failure.Usage,
			[]string{"index 10", "table of 10 rows", "Gather node"},
			"inputs[].range: [0, 9]",
		},
		"a type id beyond its table": {
			[]string{"r05-token-ids", "model.onnx"},
			[]string{"r05-token-ids", "feed_type_hit.npz"},
			failure.Usage,
			[]string{"index 7", "table of 2 rows"},
			"inputs[].range: [0, 1]",
		},
		"an IR version to come": {
			[]string{"o14-not-a-model", "newest_onnx_defaults.onnx"}, nil, failure.Model, []string{"IR 14, onnxruntime "}, "IR version",
		},
		"an opset to come": {
			[]string{"o14-not-a-model", "opset_200.onnx"}, nil, failure.Model, []string{"opset 200, onnxruntime "}, "export.opset",
		},
		"an operator nobody knows": {
			[]string{"e07-unknown-ops", "model.onnx"}, nil, failure.Model, []string{"acme.ops", "Foo", "is not known to onnxruntime"}, "operator",
		},
		"no model": {
			[]string{"o14-not-a-model", "html.onnx"}, nil, failure.Model, []string{"Protobuf parsing failed"}, "no ONNX model",
		},
		"no file": {
			[]string{"none.onnx"}, nil, failure.Artifact, []string{"no such file"}, "",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s, err := Open(t.Context(), library(t), caseFile(t, c.model...), Options{})
			if c.feed != nil {
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				_, err = s.Infer(t.Context(), caseFeed(t, c.feed...))
				if !BadFeed(err) {
					t.Errorf("BadFeed is false for %v", err)
				}
			}
			f, ok := errors.AsType[*failure.Error](err)
			if !ok {
				t.Fatalf("err = %v, want a failure", err)
			}
			if f.Code != c.code || !strings.Contains(f.Hint, c.hint) {
				t.Errorf("code %v, hint %q; want %v, %q", f.Code, f.Hint, c.code, c.hint)
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q lacks %q", err, w)
				}
			}
		})
	}
}

func TestANegativeTokenIsLegalAndWraps(t *testing.T) {
	testkit.HoldsCase(t, "r05-token-ids")
	s := open(t, caseFile(t, "r05-token-ids", "model.onnx"), Options{})
	infer(t, s, caseFeed(t, "r05-token-ids", "feed_negative_wraps.npz"))
	infer(t, s, caseFeed(t, "r05-token-ids", "feed_good.npz"))
}

func TestFeedsAreCheckedByNameAndType(t *testing.T) {
	s := open(t, identity(t, []int64{2}, tensor.Float32, tensor.Int64), Options{})
	f := tensor.Named{Name: "in_float32", Tensor: tensor.Zeros(tensor.Float32, 2)}
	i := tensor.Named{Name: "in_int64", Tensor: tensor.Zeros(tensor.Int64, 2)}
	infer(t, s, []tensor.Named{i, f}) // the order does not matter
	cases := map[string]struct {
		feed []tensor.Named
		want string
	}{
		"an input is missing":    {[]tensor.Named{f}, `input "in_int64" is not fed`},
		"another type":           {[]tensor.Named{f, {Name: "in_int64", Tensor: tensor.Zeros(tensor.Int32, 2)}}, `input "in_int64" is int64, fed int32`},
		"an unknown input":       {[]tensor.Named{f, i, {Name: "x", Tensor: f.Tensor}}, `the model has no input "x"`},
		"another size":           {[]tensor.Named{{Name: "in_float32", Tensor: tensor.Zeros(tensor.Float32, 3)}, i}, "invalid dimensions"},
		"a tensor that is short": {[]tensor.Named{{Name: "in_float32", Tensor: tensor.Tensor{DType: tensor.Float32, Shape: []int64{2}}}, i}, "has 0 bytes"},
	}
	for name, c := range cases {
		_, err := s.Infer(t.Context(), c.feed)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: err = %v, want %q in it", name, err, c.want)
		}
	}
	infer(t, s, []tensor.Named{f, i}) // and the session goes on
}

func TestOptimisationLevelsAreWhatTheySay(t *testing.T) {
	model := caseFile(t, "r01-ort-optimiser-breaks", "cast.onnx")
	feed := caseFeed(t, "r01-ort-optimiser-breaks", "feed_two.npz")
	s := open(t, model, Options{GraphOptimization: OptimizeOff})
	infer(t, s, feed)
	if _, err := Open(t.Context(), library(t), model, Options{GraphOptimization: OptimizeAll}); err == nil {
		t.Error("the optimizer of ONNX Runtime no longer refuses this model: choose another one for this test")
	}
	for l, want := range map[Level]string{OptimizeOff: "off", OptimizeBasic: "basic", OptimizeExtended: "extended", OptimizeAll: "all", 7: "level 7"} {
		if l.String() != want {
			t.Errorf("level %d is %q", int(l), l)
		}
	}
}

func TestExtraOutputsShowInnerValues(t *testing.T) {
	model := caseFile(t, "o02-identity-at-outputs", "chain_with_side_use.onnx")
	plain := open(t, model, Options{})
	b, err := os.ReadFile(model)
	if err != nil {
		t.Fatal(err)
	}
	var m onnxpb.ModelProto
	if err := proto.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	var inner []string
	for _, n := range m.GetGraph().GetNode() {
		for _, o := range n.GetOutput() {
			if !slices.ContainsFunc(plain.Outputs(), func(v ValueInfo) bool { return v.Name == o }) {
				inner = append(inner, o)
			}
		}
	}
	if len(inner) == 0 {
		t.Fatal("the model has no inner value")
	}
	s := open(t, model, Options{ExtraOutputs: inner})
	feed := caseFeed(t, "o02-identity-at-outputs", "feed_two.npz")
	want, got := infer(t, plain, feed), infer(t, s, feed)
	if diff := cmp.Diff(append(tensor.Names(want), inner...), tensor.Names(got)); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	for i := range want {
		if !want[i].Tensor.Equal(got[i].Tensor) {
			t.Errorf("output %s changed", want[i].Name)
		}
	}
	if got[len(got)-1].Elements() == 0 {
		t.Error("the inner value is empty")
	}
	// With external data too: those are found beside the model.
	e := caseFile(t, "e04-external-data", "model.onnx")
	outer := open(t, e, Options{})
	with := open(t, e, Options{ExtraOutputs: []string{outer.Inputs()[0].Name}})
	feed = caseFeed(t, "e04-external-data", "feed_two.npz")
	if a, b := infer(t, outer, feed), infer(t, with, feed); !a[0].Tensor.Equal(b[0].Tensor) || !b[1].Tensor.Equal(feed[0].Tensor) {
		t.Error("a model with external data gives something else")
	}
}

func TestSeveralCallersShareASession(t *testing.T) {
	s := open(t, identity(t, []int64{-1}, tensor.Int64), Options{})
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for k := range 50 {
				x := tensor.FromInt64s(tensor.Int64, []int64{3}, []int64{int64(w), int64(k), 7})
				out, err := s.Infer(t.Context(), []tensor.Named{{Name: "in_int64", Tensor: x}})
				if err != nil || !out[0].Tensor.Equal(x) {
					t.Errorf("worker %d: %v, %v", w, out, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestLargeTensorsCrossThePipe(t *testing.T) {
	s := open(t, identity(t, []int64{-1}, tensor.Float32), Options{})
	x, err := tensor.Generate(tensor.Float32, []int64{5 << 20}, tensor.Range{}, "large")
	if err != nil {
		t.Fatal(err)
	}
	if out := infer(t, s, []tensor.Named{{Name: "in_float32", Tensor: x}}); !out[0].Tensor.Equal(x) {
		t.Error("20 MB came back changed")
	}
}

// endless is a model that counts to a number far away.
func endless(t testing.TB) string {
	t.Helper()
	scalar := func(name string, d tensor.DType) *onnxpb.ValueInfoProto {
		return &onnxpb.ValueInfoProto{Name: proto.String(name), Type: &onnxpb.TypeProto{Value: &onnxpb.TypeProto_TensorType{
			TensorType: &onnxpb.TypeProto_Tensor{ElemType: proto.Int32(elementCode(d)), Shape: &onnxpb.TensorShapeProto{}},
		}}}
	}
	node := func(op string, in, out []string, attributes ...*onnxpb.AttributeProto) *onnxpb.NodeProto {
		return &onnxpb.NodeProto{OpType: proto.String(op), Input: in, Output: out, Attribute: attributes}
	}
	body := &onnxpb.GraphProto{
		Name:   proto.String("body"),
		Input:  []*onnxpb.ValueInfoProto{scalar("i", tensor.Int64), scalar("c", tensor.Bool), scalar("s", tensor.Float32)},
		Output: []*onnxpb.ValueInfoProto{scalar("c2", tensor.Bool), scalar("s2", tensor.Float32)},
		Node:   []*onnxpb.NodeProto{node("Identity", []string{"c"}, []string{"c2"}), node("Add", []string{"s", "s"}, []string{"s2"})},
	}
	g := &onnxpb.GraphProto{
		Name:   proto.String("g"),
		Input:  []*onnxpb.ValueInfoProto{scalar("trips", tensor.Int64), scalar("x", tensor.Float32)},
		Output: []*onnxpb.ValueInfoProto{scalar("y", tensor.Float32)},
		Node: []*onnxpb.NodeProto{node("Loop", []string{"trips", "", "x"}, []string{"y"},
			&onnxpb.AttributeProto{Name: proto.String("body"), Type: onnxpb.AttributeProto_GRAPH.Enum(), G: body})},
	}
	return writeModel(t, &onnxpb.ModelProto{IrVersion: proto.Int64(10), Graph: g, OpsetImport: []*onnxpb.OperatorSetIdProto{{Version: proto.Int64(21)}}})
}

func trips(n int64) []tensor.Named {
	return []tensor.Named{
		{Name: "trips", Tensor: tensor.FromInt64s(tensor.Int64, []int64{}, []int64{n})},
		{Name: "x", Tensor: tensor.Zeros(tensor.Float32)},
	}
}

func TestADeadlineEndsTheChild(t *testing.T) {
	s := open(t, endless(t), Options{})
	infer(t, s, trips(3))
	s.options.Timeout = 200 * time.Millisecond
	_, err := s.Infer(t.Context(), trips(math.MaxInt64))
	if err == nil || !strings.Contains(err.Error(), "no answer within 200ms") || !strings.Contains(err.Error(), "trips int64[]") {
		t.Errorf("err = %v", err)
	}
	_ = s.Close()
	testkit.NoChildren(t)
}

func TestACancelledCallEndsTheChild(t *testing.T) {
	s := open(t, endless(t), Options{})
	infer(t, s, trips(3))
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		time.Sleep(100 * time.Millisecond)
		cancel()
	}()
	if _, err := s.Infer(ctx, trips(math.MaxInt64)); !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v", err)
	}
}

func TestTheEndOfAContextEndsTheChild(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	s, err := Open(ctx, library(t), identity(t, []int64{-1}, tensor.Float32), Options{})
	if err != nil {
		t.Fatal(err)
	}
	cancel(errors.New("enough"))
	<-s.child.Done()
	if _, err := s.Infer(t.Context(), []tensor.Named{{Name: "in_float32", Tensor: tensor.Zeros(tensor.Float32, 1)}}); err == nil || !strings.Contains(err.Error(), "enough") {
		t.Errorf("err = %v, want the reason of the end", err)
	}
	_ = s.Close()
	testkit.NoChildren(t)
}

func TestAMemoryLimitIsNamed(t *testing.T) {
	s := open(t, identity(t, []int64{-1}, tensor.Float32), Options{MemoryMB: 300})
	small := []tensor.Named{{Name: "in_float32", Tensor: tensor.Zeros(tensor.Float32, 1000)}}
	infer(t, s, small)
	_, err := s.Infer(t.Context(), []tensor.Named{{Name: "in_float32", Tensor: tensor.Zeros(tensor.Float32, 100<<20)}})
	f, ok := errors.AsType[*failure.Error](err)
	if !ok || !strings.Contains(f.Hint, "validation.memory_mb") || !strings.Contains(err.Error(), "300 MiB") {
		t.Errorf("err = %v", err)
	}
}

func TestAProfileNamesTheOperators(t *testing.T) {
	dir := t.TempDir()
	s := open(t, identity(t, []int64{2}, tensor.Float32), Options{ProfileDir: dir})
	infer(t, s, []tensor.Named{{Name: "in_float32", Tensor: tensor.Zeros(tensor.Float32, 2)}})
	path, err := s.EndProfile(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var events []struct{ Name string }
	if err := json.Unmarshal(b, &events); err != nil || !bytes.Contains(b, []byte("/id/float32")) {
		t.Errorf("profile of %d events: %v", len(events), err)
	}
	if _, err := s.EndProfile(t.Context()); err == nil {
		t.Error("profiling ended twice")
	}
}

func TestBenchmarkInsideTheChild(t *testing.T) {
	s := open(t, identity(t, []int64{-1, 8}, tensor.Float32), Options{Threads: DefaultThreads, GraphOptimization: OptimizeAll})
	feed := []tensor.Named{{Name: "in_float32", Tensor: tensor.Zeros(tensor.Float32, 2, 8)}}
	r, err := s.Benchmark(t.Context(), feed, BenchmarkRequest{Workers: 3, Warmup: 4, Iters: 40})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Samples) != 120 || r.Errors != 0 || r.PeakRSS < 1<<20 || r.ColdMs <= 0 || r.Warmup < 1+3*4 || r.WallMs <= 0 {
		t.Errorf("result: %d samples, %+v", len(r.Samples), r.PeakRSS)
	}
	seen := map[int]int{}
	for i, x := range r.Samples {
		seen[x.Worker]++
		if len(x.Phases) != 3 || x.Total < x.Phases[0]+x.Phases[1] || (i > 0 && x.End < r.Samples[i-1].End) {
			t.Fatalf("sample %d: %+v", i, x)
		}
	}
	if diff := cmp.Diff(map[int]int{0: 40, 1: 40, 2: 40}, seen); diff != "" {
		t.Errorf("requests by worker: %s", diff)
	}
	if _, err := s.Benchmark(t.Context(), nil, BenchmarkRequest{}); err == nil {
		t.Error("measured without inputs")
	}
}

func TestARefusedRequestIsNoMeasurement(t *testing.T) {
	s := open(t, caseFile(t, "r05-token-ids", "model.onnx"), Options{})
	_, err := s.Benchmark(t.Context(), caseFeed(t, "r05-token-ids", "feed_vocab_hit.npz"), BenchmarkRequest{Iters: 5})
	if !BadFeed(err) {
		t.Errorf("err = %v, want a bad feed", err)
	}
}

func TestOpenNeedsALibrary(t *testing.T) {
	if _, err := Open(t.Context(), Library{}, identity(t, nil, tensor.Float32), Options{}); failure.CodeOf(err) != failure.Missing {
		t.Errorf("err = %v", err)
	}
	bad := filepath.Join(t.TempDir(), "libonnxruntime.so.1.2.3")
	if err := os.WriteFile(bad, []byte("no library"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), Library{Path: bad}, identity(t, nil, tensor.Float32), Options{}); failure.CodeOf(err) != failure.Missing {
		t.Errorf("err = %v", err)
	}
}

func TestWithoutRunChildIfAskedNothingStarts(t *testing.T) {
	canRunChild.Store(false)
	defer canRunChild.Store(true)
	if _, err := Open(t.Context(), library(t), identity(t, nil, tensor.Float32), Options{}); err == nil || !strings.Contains(err.Error(), "RunChildIfAsked") {
		t.Errorf("err = %v", err)
	}
}
