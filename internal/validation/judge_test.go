package validation

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/report"
)

// off returns a candidate that is the reference but for a change.
func off(model answer, change func(out []tensor.Named) []tensor.Named) answer {
	return func(feed []tensor.Named) ([]tensor.Named, error) {
		out, err := model(feed)
		if err != nil {
			return nil, err
		}
		return change(out), nil
	}
}

// scores is a linear model with three classes, and the label.
func scores(feed []tensor.Named) ([]tensor.Named, error) {
	x := feed[0].Tensor
	n := x.Shape[0]
	v := x.Float64s()
	s, label := tensor.Zeros(tensor.Float32, n, 3), tensor.Zeros(tensor.Int64, n)
	for i := range int(n) {
		best := 0
		for k := range 3 {
			s.SetFloat64(3*i+k, v[i*8+k]+0.5*v[i*8+k+1])
			if s.Float64At(3*i+k) > s.Float64At(3*i+best) {
				best = k
			}
		}
		label.SetFloat64(i, float64(best))
	}
	return []tensor.Named{{Name: "scores", Tensor: s}, {Name: "label", Tensor: label}}, nil
}

func change(name string, f func(t tensor.Tensor)) func([]tensor.Named) []tensor.Named {
	return func(out []tensor.Named) []tensor.Named {
		for i := range out {
			if out[i].Name == name {
				f(out[i].Tensor)
			}
		}
		return out
	}
}

func TestEachCheckPassesAndFails(t *testing.T) {
	ref := reference(t, batches(8, 1, 4, 8), scores)
	top := report.Number(0.999)
	cases := map[string]struct {
		candidate answer
		options   func(o *Options)
		want      []string
		detail    string // somewhere in the checks
	}{
		"the same": {scores, nil, nil, ""},
		"a value off": {off(scores, change("scores", func(x tensor.Tensor) { x.SetFloat64(0, 1e6) })), nil, []string{
			"within-tolerance scores@min fail", "cosine scores@min fail", "within-tolerance scores@opt fail", "cosine scores@opt fail",
			"within-tolerance scores@max fail", "cosine scores@max fail", "batch-independent fail",
		}, "first at [0,0,0]: 1e+06, expected"},
		"a NaN is never within a tolerance": {
			off(scores, change("scores", func(x tensor.Tensor) { x.SetFloat64(1, math.NaN()) })),
			func(o *Options) {
				o.Tolerance = func(string) report.Tolerance { return report.Tolerance{Atol: 1e30, MaxBreaches: 1} }
			},
			[]string{"within-tolerance scores@min fail", "within-tolerance scores@opt fail", "within-tolerance scores@max fail", "batch-independent fail"},
			"NaN: 0 in the reference, 2 in the candidate",
		},
		"a few breaches are allowed": {
			off(scores, change("scores", func(x tensor.Tensor) { x.SetFloat64(0, x.Float64At(0)+0.01) })),
			func(o *Options) {
				o.Tolerance = func(string) report.Tolerance { return report.Tolerance{Atol: 1e-5, MaxBreaches: 0.5} }
			},
			nil, "within max_breaches",
		},
		"labels have no tolerance": {
			off(scores, change("label", func(x tensor.Tensor) { x.SetFloat64(0, 7) })),
			func(o *Options) {
				o.Tolerance = func(string) report.Tolerance { return report.Tolerance{Atol: 100, MaxBreaches: 1} }
			},
			[]string{"within-tolerance label@min fail", "within-tolerance label@opt fail", "within-tolerance label@max fail", "batch-independent fail"},
			"the two largest of scores there",
		},
		"an output is gone": {
			off(scores, func(out []tensor.Named) []tensor.Named { return out[:1] }), nil,
			[]string{"within-tolerance label@min fail", "within-tolerance label@opt fail", "within-tolerance label@max fail", "evidence fail"},
			"label: the candidate has no such output; it gives scores",
		},
		"another type": {
			off(scores, func(out []tensor.Named) []tensor.Named {
				out[1].Tensor = tensor.Zeros(tensor.Float32, out[1].Shape...)
				return out
			}), nil,
			[]string{"within-tolerance label@min fail", "within-tolerance label@opt fail", "within-tolerance label@max fail", "evidence fail"},
			"label: type float32, expected int64",
		},
		"integers of another width are compared by value": {
			off(scores, func(out []tensor.Named) []tensor.Named {
				out[1].Tensor, _ = out[1].Convert(tensor.Int32)
				return out
			}), nil, nil, "the candidate gives int32",
		},
		"another shape": {
			off(scores, func(out []tensor.Named) []tensor.Named {
				out[0].Tensor.Shape = []int64{3, out[0].Shape[0]}
				return out
			}), nil,
			[]string{"within-tolerance scores@min fail", "within-tolerance scores@opt fail", "within-tolerance scores@max fail", "shapes scores@ fail"},
			"scores: batch 4 gives [3,4], expected [4,3]",
		},
		"the largest element flips": {
			off(scores, change("scores", func(x tensor.Tensor) {
				for i := range int(x.Elements()) {
					x.SetFloat64(i, -x.Float64At(i))
				}
			})),
			func(o *Options) {
				o.Tolerance = func(string) report.Tolerance { return report.Tolerance{Atol: 1e9, TopK: &top} }
			},
			[]string{"top1 scores@min fail", "top1 scores@opt fail", "top1 scores@max fail"},
			"",
		},
		"an error at one size": {
			answer(func(feed []tensor.Named) ([]tensor.Named, error) {
				if feed[0].Shape[0] == 8 {
					return nil, failure.New(failure.Model, "run: reshape does not fit").With("node", "%s", "/Reshape")
				}
				return scores(feed)
			}), nil,
			[]string{"within-tolerance scores@max fail", "within-tolerance label@max fail"},
			"label: batch 8 gives no answer, expected [8]: run: reshape does not fit\nnode: /Reshape",
		},
		"a runtime that dies is asked nothing more": {
			answer(func(feed []tensor.Named) ([]tensor.Named, error) {
				if feed[0].Shape[0] >= 4 {
					return nil, errors.New("the pipe broke")
				}
				return scores(feed)
			}), nil,
			[]string{"within-tolerance @opt broken", "within-tolerance @max broken"},
			"was not run: an earlier run ended the runtime",
		},
		"points out of reach are said, not asked": {
			scores, func(o *Options) {
				o.Skip = func(p Point) string { return map[string]string{"max": "outside every profile"}[p.Name] }
			}, nil, "",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			o := options(t)
			if c.options != nil {
				c.options(&o)
			}
			v, checks, err := Judge(t.Context(), c.candidate, ref, o)
			if err != nil {
				t.Fatal(err)
			}
			want := c.want
			if want == nil {
				want = []string{}
			}
			if diff := cmp.Diff(want, verdicts(checks)); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
			text := ""
			for _, x := range checks {
				text += x.Detail + "\n"
			}
			if !strings.Contains(text, c.detail) {
				t.Errorf("no check says %q:\n%s", c.detail, text)
			}
			again := rechecked(t, v, checks, ref, o)
			if diff := cmp.Diff(verdicts(checks), verdicts(again)); diff != "" {
				t.Errorf("judged again from what was stored: -first +again\n%s", diff)
			}
		})
	}
}

// rechecked judges again with the same tolerances.
func rechecked(t *testing.T, v report.Validation, checks []report.Check, ref *Reference, o Options) []report.Check {
	t.Helper()
	v.Stored = report.Stored{Reference: "reference-1", Candidate: "outputs-1"}
	_, again, err := Recheck(v, func(id string) (string, error) {
		return map[string]string{"reference-1": ref.Dir, "outputs-1": o.Dir}[id], nil
	}, func(_, output string, _ report.Tolerance) report.Tolerance { return o.Tolerance(output) })
	if err != nil {
		t.Fatal(err)
	}
	if len(again) != len(checks) {
		t.Errorf("%d checks, then %d", len(checks), len(again))
	}
	return again
}

func TestRecheckWithAnotherTolerance(t *testing.T) {
	ref := reference(t, batches(8, 2), scores)
	o := options(t)
	v, checks, err := Judge(t.Context(), off(scores, change("scores", func(x tensor.Tensor) { x.SetFloat64(0, x.Float64At(0)+0.01) })), ref, o)
	if err != nil {
		t.Fatal(err)
	}
	if find(t, checks, checkTolerance).Verdict != report.Fail {
		t.Fatalf("the candidate is off, but: %v", verdicts(checks))
	}
	v.Stored = report.Stored{Reference: "reference-1", Candidate: "outputs-1"}
	dirs := map[string]string{"reference-1": ref.Dir, "outputs-1": o.Dir}
	lookup := func(id string) (string, error) { return dirs[id], nil }
	loose := func(_, _ string, was report.Tolerance) report.Tolerance {
		was.Atol = 0.1
		was.CosineMin = nil
		return was
	}
	out, checks, err := Recheck(v, lookup, loose)
	if err != nil {
		t.Fatal(err)
	}
	if bad := verdicts(checks); len(bad) > 0 {
		t.Errorf("with a wide tolerance: %v", bad)
	}
	if out.Rows[0].Tolerance.Atol != 0.1 || out.Stored != v.Stored {
		t.Errorf("the report does not say with what it was judged: %+v", out.Rows[0].Tolerance)
	}
	if _, checks, _ = Recheck(v, lookup, nil); find(t, checks, checkTolerance).Verdict != report.Fail {
		t.Error("without an override the verdict must stay")
	}
	for name, c := range map[string]struct {
		v      report.Validation
		lookup Lookup
	}{
		"nothing was stored":  {report.Validation{Stage: "validate"}, lookup},
		"an artifact is gone": {v, func(string) (string, error) { return "", os.ErrNotExist }},
		"a folder is empty":   {v, func(string) (string, error) { return t.TempDir(), nil }},
		"no outputs":          {v, func(id string) (string, error) { return map[string]string{"reference-1": ref.Dir}[id], nil }},
	} {
		if _, _, err := Recheck(c.v, c.lookup, nil); failure.CodeOf(err) != failure.Artifact {
			t.Errorf("%s: %v, want exit %d", name, err, failure.Artifact)
		}
	}
}

func TestNoEvidenceIsNoPass(t *testing.T) {
	empty := single(func(tensor.Tensor) tensor.Tensor { return tensor.Zeros(tensor.Float32, 0, 4) })
	nan := single(func(tensor.Tensor) tensor.Tensor {
		return tensor.FromFloat64s(tensor.Float32, []int64{2}, []float64{math.NaN(), math.NaN()})
	})
	for name, c := range map[string]struct {
		model answer
		want  report.Verdict
	}{"zero elements": {empty, report.Inconclusive}, "only NaN": {nan, report.Fail}} {
		ref := reference(t, batches(8, 2), c.model)
		o := options(t)
		o.Tolerance = func(string) report.Tolerance { return report.Tolerance{AllowNaN: true, Atol: 1} }
		_, checks, err := Judge(t.Context(), c.model, ref, o)
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range []string{checkTolerance, checkEvidence} {
			if got := find(t, checks, id); got.Verdict != c.want {
				t.Errorf("%s: %s is %s, want %s", name, id, got.Verdict, c.want)
			}
		}
	}
}

func TestARepeatMayBeLoose(t *testing.T) {
	calls := 0
	noisy := off(scores, change("scores", func(x tensor.Tensor) {
		calls++
		x.SetFloat64(0, x.Float64At(0)+1e-7*float64(calls))
	}))
	ref := reference(t, batches(8, 2), scores)
	o := options(t)
	_, checks, err := Judge(t.Context(), noisy, ref, o)
	if err != nil {
		t.Fatal(err)
	}
	if c := find(t, checks, checkDeterministic); c.Verdict != report.Fail || !strings.Contains(c.Detail, "scores at min differs by up to") {
		t.Errorf("every bit counts: %+v", c)
	}
	o = options(t)
	o.LooseRepeat = true
	_, checks, err = Judge(t.Context(), noisy, ref, o)
	if err != nil {
		t.Fatal(err)
	}
	if bad := verdicts(checks); len(bad) > 0 {
		t.Errorf("within the tolerance: %v", bad)
	}
}

func TestARowMustNotDependOnItsNeighbours(t *testing.T) {
	// The largest of the batch is taken from every row.
	mixing := single(func(x tensor.Tensor) tensor.Tensor {
		y := x.Clone()
		most := math.Inf(-1)
		for _, v := range x.Float64s() {
			most = max(most, v)
		}
		for i := range int(x.Elements()) {
			y.SetFloat64(i, x.Float64At(i)-most)
		}
		return y
	})
	_, checks, err := Judge(t.Context(), mixing, reference(t, batches(8, 1, 4), mixing), options(t))
	if err != nil {
		t.Fatal(err)
	}
	if c := find(t, checks, checkNeighbours); c.Verdict != report.Fail || !strings.Contains(c.Detail, "within batch 4") {
		t.Errorf("check = %+v", c)
	}
	// A model that takes no batch below 2 gets its row twice.
	sizes := map[int64]bool{}
	picky := answer(func(feed []tensor.Named) ([]tensor.Named, error) {
		sizes[feed[0].Shape[0]] = true
		if feed[0].Shape[0] < 2 {
			return nil, failure.New(failure.Model, "batch below 2")
		}
		return rowMeans(feed)
	})
	_, checks, err = Judge(t.Context(), picky, reference(t, batches(8, 2, 4), rowMeans), options(t))
	if err != nil {
		t.Fatal(err)
	}
	if bad := verdicts(checks); len(bad) > 0 || sizes[1] {
		t.Errorf("%v, sizes %v", bad, sizes)
	}
	// Outputs without a batch in front do not count.
	total := single(func(x tensor.Tensor) tensor.Tensor {
		return tensor.FromFloat64s(tensor.Float32, []int64{1}, []float64{x.Float64At(0)})
	})
	_, checks, err = Judge(t.Context(), total, reference(t, batches(8, 1, 4), total), options(t))
	if err != nil {
		t.Fatal(err)
	}
	if c := find(t, checks, checkNeighbours); c.Verdict != report.Skip {
		t.Errorf("check = %+v", c)
	}
	// A candidate that refuses the lone row fails.
	failing := answer(func(feed []tensor.Named) ([]tensor.Named, error) {
		if feed[0].Shape[0] == 1 {
			return nil, failure.New(failure.Model, "no batch of 1")
		}
		return rowMeans(feed)
	})
	p := batches(8, 4)
	p.MinBatch = 1
	_, checks, err = Judge(t.Context(), failing, reference(t, p, rowMeans), options(t))
	if err != nil {
		t.Fatal(err)
	}
	if c := find(t, checks, checkNeighbours); c.Verdict != report.Fail || !strings.Contains(c.Detail, "no batch of 1") {
		t.Errorf("check = %+v", c)
	}
}

// labelled writes 10 rows with labels; the model is right about `right` of them.
func labelled(t *testing.T, right int) string {
	t.Helper()
	x, err := tensor.Generate(tensor.Float32, []int64{10, 8}, tensor.Range{}, "task")
	if err != nil {
		t.Fatal(err)
	}
	out, err := scores([]tensor.Named{{Name: "x", Tensor: x}})
	if err != nil {
		t.Fatal(err)
	}
	labels := out[1].Clone()
	for i := right; i < 10; i++ {
		labels.SetFloat64(i, float64((labels.Int64At(i)+1)%3))
	}
	path := filepath.Join(t.TempDir(), "data.npz")
	if err := tensor.WriteNPZ(path, []tensor.Named{{Name: "x", Tensor: x}, {Name: "labels", Tensor: labels}}); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestATaskMetricMayDropOnlySoFar(t *testing.T) {
	wrongTwice := off(scores, func(out []tensor.Named) []tensor.Named {
		// The answers to the first batch of 4 are turned round in its first two rows.
		for row := range min(out[0].Shape[0], 2) {
			r := out[0].Rows(row, row+1)
			for k := range 3 {
				r.SetFloat64(k, -r.Float64At(k))
			}
		}
		return out
	})
	loose := func(o *Options) {
		o.Tolerance = func(string) report.Tolerance { return report.Tolerance{Atol: 1e9} }
	}
	for name, c := range map[string]struct {
		candidate answer
		output    string
		limit     float64
		want      report.Verdict
		metric    string
	}{
		"the same":             {scores, "", 0, report.Pass, "0.9, reference 0.9, over 10 samples"},
		"by labels":            {scores, "label", 0, report.Pass, "0.9, reference 0.9, over 10 samples"},
		"worse":                {wrongTwice, "", 0.1, report.Fail, ""},
		"worse, but allowed":   {wrongTwice, "", 0.9, report.Pass, ""},
		"NaN is never a label": {off(scores, change("scores", func(x tensor.Tensor) { x.SetFloat64(0, math.NaN()) })), "", 0, report.Fail, "0.6, reference 0.9, over 10 samples"},
	} {
		t.Run(name, func(t *testing.T) {
			p := batches(8, 1, 4)
			p.Task = &TaskPlan{Metric: "accuracy", Data: labelled(t, 9), Labels: "labels", Output: c.output, Batch: 4, MaxDegradation: c.limit}
			ref := reference(t, p, scores)
			if n := len(ref.Task.Samples); n != 3 || ref.Task.Samples[2].Rows != 2 {
				t.Errorf("10 rows in batches of 4: %+v", ref.Task.Samples)
			}
			o := options(t)
			loose(&o)
			v, checks, err := Judge(t.Context(), c.candidate, ref, o)
			if err != nil {
				t.Fatal(err)
			}
			got := find(t, checks, checkTask)
			if got.Verdict != c.want || (c.metric != "" && got.Got != c.metric) {
				t.Errorf("check = %+v, want %s, %q", got, c.want, c.metric)
			}
			if v.Task == nil || v.Task.Samples != 10 {
				t.Errorf("task = %+v", v.Task)
			}
		})
	}
}

func TestATaskThatMeansNothingIsRefused(t *testing.T) {
	write := func(arrays ...tensor.Named) string {
		path := filepath.Join(t.TempDir(), "data.npz")
		if err := tensor.WriteNPZ(path, arrays); err != nil {
			t.Fatal(err)
		}
		return path
	}
	x := tensor.Named{Name: "x", Tensor: tensor.Zeros(tensor.Float32, 4, 8)}
	labels := tensor.Named{Name: "labels", Tensor: tensor.Zeros(tensor.Int64, 4)}
	for name, c := range map[string]struct {
		data string
		code failure.Code
		want string
	}{
		"no file":          {"/none.npz", failure.Artifact, "validation.task.data"},
		"no labels":        {write(x), failure.Usage, `array "labels" of integers`},
		"labels as floats": {write(x, tensor.Named{Name: "labels", Tensor: tensor.Zeros(tensor.Float32, 4)}), failure.Usage, "of integers"},
		"no rows":          {write(tensor.Named{Name: "x", Tensor: tensor.Zeros(tensor.Float32, 0, 8)}, tensor.Named{Name: "labels", Tensor: tensor.Zeros(tensor.Int64, 0)}), failure.Usage, "there is no sample"},
		"fewer rows":       {write(tensor.Named{Name: "x", Tensor: tensor.Zeros(tensor.Float32, 3, 8)}, labels), failure.Usage, "for 4 labels"},
		"no input":         {write(labels), failure.Usage, `there is no array "x"`},
		"another array":    {write(x, labels, tensor.Named{Name: "z", Tensor: x.Tensor}), failure.Usage, `no input "z"`},
	} {
		p := batches(8, 1)
		p.Task = &TaskPlan{Metric: "accuracy", Data: c.data, Labels: "labels", Batch: 2}
		_, err := WriteFeeds(t.TempDir(), p)
		if failure.CodeOf(err) != c.code || !strings.Contains(fmt.Sprint(err), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	p := batches(8, 1)
	p.Task = &TaskPlan{Metric: "accuracy", Data: write(x, labels), Labels: "labels", Batch: 2, Output: "nothing"}
	if _, _, err := Judge(t.Context(), answer(scores), reference(t, p, scores), options(t)); failure.CodeOf(err) != failure.Usage {
		t.Errorf("an output that is not there: %v", err)
	}
	p.Task.Output = ""
	if _, _, err := Judge(t.Context(), rowMeans, reference(t, p, rowMeans), options(t)); failure.CodeOf(err) != failure.Usage {
		t.Errorf("an output without classes: %v", err)
	}
}

func TestUserInputsBecomePointsOfTheirShapes(t *testing.T) {
	dir := t.TempDir()
	save := func(name string, rows int64) string {
		x, _ := tensor.Generate(tensor.Float32, []int64{rows, 8}, tensor.Range{}, name)
		path := filepath.Join(dir, name+".npz")
		if err := tensor.WriteNPZ(path, []tensor.Named{{Name: "x", Tensor: x}}); err != nil {
			t.Fatal(err)
		}
		return path
	}
	p := batches(8, 1)
	p.User = []string{save("a", 2), save("b", 5), save("c", 2)}
	ref := reference(t, p, rowMeans)
	var got []string
	for _, q := range ref.Points {
		got = append(got, fmt.Sprintf("%s batch %d: %d samples", q.Name, q.Batch, len(q.Samples)))
	}
	want := []string{"min batch 1: 2 samples", "inputs batch 2: 2 samples", "inputs 2 batch 5: 1 samples"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if s := ref.Points[1].Samples[1].Source; s != "validation.inputs[2] (c.npz)" {
		t.Errorf("source = %q", s)
	}
	bad := batches(8, 1)
	wrong := filepath.Join(dir, "wrong.npz")
	if err := tensor.WriteNPZ(wrong, []tensor.Named{{Name: "x", Tensor: tensor.Zeros(tensor.Float64, 1, 8)}}); err != nil {
		t.Fatal(err)
	}
	flat := filepath.Join(dir, "flat.npz")
	if err := tensor.WriteNPZ(flat, []tensor.Named{{Name: "x", Tensor: tensor.Zeros(tensor.Float32, 8)}}); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ file, want string }{
		"another type": {wrong, "is float64, expected float32"}, "another rank": {flat, "expected 2 axes"}, "no file": {"/none.npz", "no such file"},
	} {
		bad.User = []string{c.file}
		if _, err := WriteFeeds(t.TempDir(), bad); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := WriteFeeds(t.TempDir(), Plan{}); failure.CodeOf(err) != failure.Usage {
		t.Errorf("no feeds at all: %v", err)
	}
	none := batches(8, 1)
	none.Points[0].Shapes = nil
	if _, err := WriteFeeds(t.TempDir(), none); failure.CodeOf(err) != failure.Usage {
		t.Errorf("no shape: %v", err)
	}
	none = batches(8, 1)
	none.Inputs[0].Range = tensor.Range{Low: "2", High: "1"}
	if _, err := WriteFeeds(t.TempDir(), none); failure.CodeOf(err) != failure.Usage {
		t.Errorf("no range: %v", err)
	}
}

func TestBFloat16IsReadBackFromRawIntegers(t *testing.T) {
	p := batches(4, 2)
	p.Inputs[0].DType = tensor.BFloat16
	ref := reference(t, p, single(func(x tensor.Tensor) tensor.Tensor { return x }))
	// As a Python child writes it: raw, with the type in reference.json only.
	s := ref.Points[0].Samples[0]
	out, err := ref.Out(s)
	if err != nil {
		t.Fatal(err)
	}
	raw := out[0].Tensor
	raw.DType = tensor.UInt16
	if err := tensor.WriteNPZ(filepath.Join(ref.Dir, s.Out), []tensor.Named{{Name: "y", Tensor: raw}}); err != nil {
		t.Fatal(err)
	}
	again, err := ref.Out(s)
	if err != nil || again[0].DType != tensor.BFloat16 || !again[0].Tensor.Equal(out[0].Tensor) {
		t.Errorf("got %v, %v", again, err)
	}
}

func TestTheSameSeedGivesTheSameFolder(t *testing.T) {
	bytesOf := func() map[string]string {
		ref := reference(t, batches(8, 1, 2), rowMeans)
		files := map[string]string{}
		err := filepath.WalkDir(ref.Dir, func(p string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			b, err := os.ReadFile(p)
			rel, _ := filepath.Rel(ref.Dir, p)
			files[rel] = string(b)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return files
	}
	a, b := bytesOf(), bytesOf()
	if len(a) != 2*2*2+1 {
		t.Errorf("%d files", len(a))
	}
	if diff := cmp.Diff(a, b); diff != "" {
		t.Error("two references of one plan differ")
	}
}

func TestDamagedReferencesAreRefused(t *testing.T) {
	for name, text := range map[string]string{
		"no JSON":             "{",
		"another format":      `{"format":"x/1"}`,
		"a path that escapes": `{"format":"trtship-reference/1","points":[{"name":"a","samples":[{"in":"../../etc/passwd","out":"b"}]}]}`,
		"an absolute path":    `{"format":"trtship-reference/1","task":{"samples":[{"in":"/etc/passwd","out":"b"}]}}`,
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, referenceFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenReference(dir); failure.CodeOf(err) != failure.Artifact {
			t.Errorf("%s: %v", name, err)
		}
	}
	ref := reference(t, batches(8, 1), rowMeans)
	if err := os.Remove(filepath.Join(ref.Dir, ref.Points[0].Samples[0].Out)); err != nil {
		t.Fatal(err)
	}
	if err := ref.Save("x", nil); err == nil {
		t.Error("saved without its outputs")
	}
	if _, _, err := Judge(t.Context(), rowMeans, ref, options(t)); err == nil {
		t.Error("judged without the reference's outputs")
	}
}

func TestTheEndOfTheContextIsAnError(t *testing.T) {
	ref := reference(t, batches(8, 1), rowMeans)
	ctx, cancel := context.WithCancel(t.Context())
	stopped := answer(func([]tensor.Named) ([]tensor.Named, error) { cancel(); return nil, errors.New("x") })
	if _, _, err := Judge(ctx, stopped, ref, options(t)); !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v", err)
	}
	missing := answer(func([]tensor.Named) ([]tensor.Named, error) { return nil, failure.New(failure.Missing, "no GPU") })
	if _, _, err := Judge(t.Context(), missing, ref, options(t)); failure.CodeOf(err) != failure.Missing {
		t.Errorf("a missing capability: %v", err)
	}
}
