package validation

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/ort"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/internal/testkit"
	"github.com/trtship/trtship/report"
)

// judgeCase runs a graph of testdata/cases in the real ONNX Runtime.
func judgeCase(t *testing.T, ref *Reference, o Options, parts ...string) (report.Validation, []report.Check) {
	t.Helper()
	v, checks, err := JudgeGraph(t.Context(), library(t), caseFile(t, parts...), ref, ort.Options{}, o)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range checks {
		known := false
		for _, d := range GraphDocs("validate") {
			known = known || d.ID == c.ID
		}
		if !known {
			t.Errorf("check %s is not documented", c.ID)
		}
		if c.Want == "" || c.Verdict == "" {
			t.Errorf("check %s says nothing: %+v", c.ID, c)
		}
	}
	return v, checks
}

func TestABakedBatchIsCaughtAndNamed(t *testing.T) {
	testkit.HoldsCase(t, "e01-baked-batch")
	centred := single(func(x tensor.Tensor) tensor.Tensor {
		v, y := x.Float64s(), make([]float64, x.Elements())
		n := x.Shape[0]
		for i := range v {
			sum := 0.0
			for r := range n {
				sum += v[r*8+int64(i)%8]
			}
			y[i] = v[i] - sum/float64(n)
		}
		return tensor.FromFloat64s(tensor.Float32, x.Shape, y)
	})
	cases := map[string]struct {
		graph  string
		model  answer
		sizes  []int64
		want   []string
		detail string
	}{
		"four rows whatever comes in": {
			"reshape.onnx", rowMeans,
			[]int64{1, 4, 8},
			[]string{
				"within-tolerance y@min fail", "within-tolerance y@opt pass", "within-tolerance y@max fail", "shapes y@ fail",
			},
			"y: batch 8 gives [4,1], expected [8,1]",
		},
		"right only up to the traced size": {
			"firstfour.onnx", rowMeans,
			[]int64{1, 4, 8},
			[]string{"within-tolerance y@min pass", "within-tolerance y@opt pass", "within-tolerance y@max fail", "shapes y@ fail"},
			"y: batch 8 gives [4,1], expected [8,1]",
		},
		"right shapes, wrong values": {
			"divisor.onnx", centred,
			[]int64{1, 4, 8},
			[]string{"within-tolerance y@min fail", "within-tolerance y@opt pass", "within-tolerance y@max fail"},
			"",
		},
		"hidden where every size is the traced one": {
			"divisor.onnx", centred,
			[]int64{4, 4, 4, 6},
			[]string{"within-tolerance y@min pass", "within-tolerance y@off-profile fail"},
			"",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			v, checks := judgeCase(t, reference(t, batches(8, c.sizes...), c.model), options(t), "e01-baked-batch", c.graph)
			all := map[string]report.Verdict{}
			text := ""
			for _, x := range checks {
				all[strings.TrimPrefix(x.ID, "validate/")+" "+x.Subject.Output+"@"+x.Subject.Point] = x.Verdict
				text += x.Detail + "\n"
			}
			for _, w := range c.want {
				at := strings.LastIndex(w, " ")
				if got := all[w[:at]]; string(got) != w[at+1:] {
					t.Errorf("%s: %s, want %s", w[:at], got, w[at+1:])
				}
			}
			if !strings.Contains(text, c.detail) {
				t.Errorf("no check says %q:\n%s", c.detail, text)
			}
			if !strings.Contains(v.Candidate, "graph optimisation off, 1 thread") {
				t.Errorf("the report does not say how the session ran: %q", v.Candidate)
			}
		})
	}
}

// given makes the graph itself the reference, as for model.kind onnx.
func given(t *testing.T, p Plan, parts ...string) *Reference {
	t.Helper()
	s, err := ort.Open(t.Context(), library(t), caseFile(t, parts...), ort.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	return reference(t, p, func(feed []tensor.Named) ([]tensor.Named, error) { return s.Infer(t.Context(), feed) })
}

func TestRandomOperatorsAreFoundByRunningTwice(t *testing.T) {
	testkit.HoldsCase(t, "r07-random-ops")
	cases := map[string]struct {
		graph string
		node  string
		extra bool // has the input c
	}{
		"a draw":                {"unseeded.onnx", "/noise/RandomNormal", false},
		"a seed changes little": {"seeded.onnx", "/seeded", false},
		"like an input":         {"like.onnx", "/like", false},
		"inside a branch":       {"inside_if.onnx", "/if/rand", true},
		"a difference of draws": {"two_draws_cse_trap.onnx", "/r1", false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			p := batches(4, 2)
			if c.extra {
				p.Inputs = append(p.Inputs, Input{Name: "c", DType: tensor.Bool, Range: tensor.Range{Low: "1", High: "1"}})
				for i := range p.Points {
					p.Points[i].Shapes["c"] = []int64{}
				}
			}
			ref := given(t, p, "r07-random-ops", c.graph)
			_, checks := judgeCase(t, ref, options(t), "r07-random-ops", c.graph)
			got := find(t, checks, checkDeterministic)
			if got.Verdict != report.Fail || !strings.Contains(got.Detail, "non-deterministic: node") || !strings.Contains(got.Detail, c.node) {
				t.Errorf("check = %+v", got)
			}
			o := options(t)
			o.AllowRandom = true
			_, checks = judgeCase(t, ref, o, "r07-random-ops", c.graph)
			if w := report.Of(checks); !w.Good() {
				t.Errorf("allowed, but the verdict is %s: %v", w, verdicts(checks))
			}
		})
	}
}

func TestDropoutAndBatchNormInTrainingModeFail(t *testing.T) {
	testkit.HoldsCase(t, "e03-training-mode-ops")
	ref := given(t, batches(64, 2), "e03-training-mode-ops", "dropout_train.onnx")
	_, checks := judgeCase(t, ref, options(t), "e03-training-mode-ops", "dropout_train.onnx")
	if c := find(t, checks, checkDeterministic); c.Verdict != report.Fail || !strings.Contains(c.Detail, "/drop/Dropout") {
		t.Errorf("dropout_train: %+v", c)
	}
	ref = given(t, batches(64, 1, 2), "e03-training-mode-ops", "dropout_eval.onnx")
	_, checks = judgeCase(t, ref, options(t), "e03-training-mode-ops", "dropout_eval.onnx")
	if v := verdicts(checks); len(v) > 0 {
		t.Errorf("dropout_eval is harmless, but: %v", v)
	}
	p := batches(2, 1, 2, 4)
	p.Inputs[0].Name, p.Inputs[0].Rank = "x3", 3
	for i, point := range p.Points {
		p.Points[i].Shapes = map[string][]int64{"x3": {point.Shapes["x"][0], 2, 4}}
	}
	ref = given(t, p, "e03-training-mode-ops", "bn_train.onnx")
	o := options(t)
	o.DeploysONNX = false
	_, checks = judgeCase(t, ref, o, "e03-training-mode-ops", "bn_train.onnx")
	c := find(t, checks, checkNeighbours)
	if c.Verdict != report.Fail || !strings.Contains(c.Detail, "row 0 alone differs from the same row within batch 2") {
		t.Errorf("bn_train: %+v", c)
	}
}

func TestACrashIsABrokenCheckAndTheReportIsStillWritten(t *testing.T) {
	testkit.HoldsCase(t, "o09-empty-optional-names")
	p := Plan{Inputs: []Input{{Name: "x", DType: tensor.Float32, Rank: 2}}, Samples: 2}
	feed, err := tensor.ReadNPZ(caseFile(t, "o09-empty-optional-names", "feed_split.npz"))
	if err != nil {
		t.Fatal(err)
	}
	p.Points = []Point{{Name: "a", Shapes: map[string][]int64{"x": feed[0].Shape}}, {Name: "b", Shapes: map[string][]int64{"x": feed[0].Shape}}}
	ref := reference(t, p, single(func(x tensor.Tensor) tensor.Tensor { return x }))
	v, checks := judgeCase(t, ref, options(t), "o09-empty-optional-names", "split_empty_output.onnx")
	want := []string{"within-tolerance @a broken", "within-tolerance @b broken", "evidence broken"}
	if diff := cmp.Diff(want, verdicts(checks)); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	c := find(t, checks, checkTolerance)
	for _, w := range []string{"ONNX Runtime crashed (SIGSEGV)", "split_empty_output.onnx", "feed: x float32"} {
		if !strings.Contains(c.Detail, w) {
			t.Errorf("%q lacks %q", c.Detail, w)
		}
	}
	if len(v.Points) != 2 {
		t.Errorf("the report has %d points", len(v.Points))
	}
}

func TestNaNOfAHalfPrecisionGraphIsNotWithinATolerance(t *testing.T) {
	testkit.HoldsCase(t, "r03-fp16-range")
	feed, err := tensor.ReadNPZ(caseFile(t, "r03-fp16-range", "feed_f16_mask.npz"))
	if err != nil {
		t.Fatal(err)
	}
	user := t.TempDir() + "/user.npz"
	if err := tensor.WriteNPZ(user, feed); err != nil {
		t.Fatal(err)
	}
	p := Plan{Inputs: []Input{{Name: "scores", DType: tensor.Float16, Rank: 2}, {Name: "mask", DType: tensor.Float16, Rank: 2}}, User: []string{user}}
	full, err := ort.Open(t.Context(), library(t), caseFile(t, "r03-fp16-range", "fp32.onnx"), ort.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	ref := reference(t, p, func(feed []tensor.Named) ([]tensor.Named, error) {
		var wide []tensor.Named
		for _, f := range feed {
			x, err := f.Convert(tensor.Float32)
			if err != nil {
				return nil, err
			}
			wide = append(wide, tensor.Named{Name: f.Name, Tensor: x})
		}
		return full.Infer(t.Context(), wide)
	})
	o := options(t)
	o.Precision = "fp16"
	o.Tolerance = func(string) report.Tolerance { return report.Tolerance{Atol: 1e9, Rtol: 1e9, MaxBreaches: 1} }
	v, checks := judgeCase(t, ref, o, "r03-fp16-range", "fp16.onnx")
	row := v.Rows[0]
	if row.NaN[0] != 0 || row.NaN[1] == 0 || row.Verdict != report.Fail {
		t.Errorf("row = %+v", row)
	}
	c := find(t, checks, checkTolerance)
	if c.Verdict != report.Fail || c.Subject.Output != "probs" || !strings.Contains(c.Detail, "NaN: 0 in the reference, 8 in the candidate") {
		t.Errorf("check = %+v", c)
	}
	if !strings.Contains(row.Detail, "compared by value: the candidate gives float16") {
		t.Errorf("the other type is not said: %q", row.Detail)
	}
}

func TestAFaultOfTheRuntimesOptimizerIsNotTheGraphs(t *testing.T) {
	testkit.HoldsCase(t, "r01-ort-optimiser-breaks")
	p := batches(3, 2)
	feed, err := tensor.ReadNPZ(caseFile(t, "r01-ort-optimiser-breaks", "feed_two.npz"))
	if err != nil {
		t.Fatal(err)
	}
	p.Points[0].Shapes["x"] = feed[0].Shape
	p.Inputs[0].Rank = len(feed[0].Shape)
	ref := given(t, p, "r01-ort-optimiser-breaks", "cast.onnx")
	v, checks := judgeCase(t, ref, options(t), "r01-ort-optimiser-breaks", "cast.onnx")
	if bad := verdicts(checks); len(bad) > 0 {
		t.Errorf("the graph is right, but: %v", bad)
	}
	if notes := strings.Join(v.Notes, "\n"); !strings.Contains(notes, "a problem of ONNX Runtime") || !strings.Contains(notes, "not of the graph") {
		t.Errorf("notes = %q", notes)
	}
	o := options(t)
	o.DeploysONNX = true
	_, checks = judgeCase(t, ref, o, "r01-ort-optimiser-breaks", "cast.onnx")
	if c := find(t, checks, checkRuntime); c.Verdict != report.Fail {
		t.Errorf("where ONNX Runtime serves, it matters: %+v", c)
	}
	ref = given(t, batches(64, 1, 2), "e03-training-mode-ops", "dropout_eval.onnx")
	_, checks = judgeCase(t, ref, o2(t), "e03-training-mode-ops", "dropout_eval.onnx")
	if c := find(t, checks, checkRuntime); c.Verdict != report.Pass {
		t.Errorf("a graph that the optimizer leaves right: %+v", c)
	}
}

func o2(t *testing.T) Options {
	o := options(t)
	o.DeploysONNX = true
	return o
}

func TestLabelsBoolsAndStringsAreComparedExactly(t *testing.T) {
	testkit.HoldsCase(t, "r08-integer-bool-string-outputs")
	p := batches(3, 2)
	p.User = []string{caseFile(t, "r08-integer-bool-string-outputs", "feed_tie.npz")}
	ref := given(t, p, "r08-integer-bool-string-outputs", "model.onnx")
	v, checks := judgeCase(t, ref, options(t), "r08-integer-bool-string-outputs", "model.onnx")
	if bad := verdicts(checks); len(bad) > 0 {
		t.Errorf("the same graph: %v", bad)
	}
	for _, r := range v.Rows {
		if _, ok := r.Metrics["cosine_min"]; ok {
			t.Errorf("%s has a cosine", r.Output)
		}
	}
}

func TestIntegerInputsFollowTheirTables(t *testing.T) {
	testkit.HoldsCase(t, "r05-token-ids")
	m, err := onnx.Open(caseFile(t, "r05-token-ids", "model.onnx"))
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	got := IntegerRanges(m)
	highs := map[string]int64{}
	for _, r := range got {
		if r.Low != 0 || !strings.Contains(r.Source, "Gather ") || !strings.Contains(r.Source, "rows") {
			t.Errorf("range = %+v", r)
		}
		highs[r.Input] = r.High
	}
	feed, err := tensor.ReadNPZ(caseFile(t, "r05-token-ids", "feed_good.npz"))
	if err != nil {
		t.Fatal(err)
	}
	if len(highs) != 2 {
		t.Errorf("%d integer inputs, want 2: %v", len(highs), got)
	}
	for _, f := range feed {
		if h, ok := highs[f.Name]; !ok || (h != 9 && h != 1) {
			t.Errorf("input %s stays below %d", f.Name, h)
		}
	}
	if nodes := RandomNodes(m); len(nodes) != 0 {
		t.Errorf("random nodes %v", nodes)
	}
}

func TestATokenOutOfRangeIsTheUsersMistake(t *testing.T) {
	testkit.HoldsCase(t, "r05-token-ids")
	p := Plan{Samples: 1}
	good, err := tensor.ReadNPZ(caseFile(t, "r05-token-ids", "feed_good.npz"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range good {
		p.Inputs = append(p.Inputs, Input{Name: f.Name, DType: f.DType, Rank: len(f.Shape)})
	}
	p.Samples = 0
	p.User = []string{caseFile(t, "r05-token-ids", "feed_vocab_hit.npz")}
	ref := reference(t, p, single(func(x tensor.Tensor) tensor.Tensor { return x }))
	_, _, err = JudgeGraph(t.Context(), library(t), caseFile(t, "r05-token-ids", "model.onnx"), ref, ort.Options{}, options(t))
	if !ort.BadFeed(err) || !strings.Contains(err.Error(), "validation.inputs[0] (feed_vocab_hit.npz)") {
		t.Errorf("err = %v, want a bad feed that names the file", err)
	}
}
