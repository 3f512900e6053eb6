package validation

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/report"
)

// Judge runs a candidate over the reference's feeds, each sample twice in the
// same session, keeps its outputs in o.Dir, and compares. What does not hold is
// in the checks; the error means that nothing could be found out: feeds out of
// range, a missing capability, or the end of ctx.
func Judge(ctx context.Context, cand Candidate, ref *Reference, o Options) (report.Validation, []report.Check, error) {
	done, err := run(ctx, cand, ref, o)
	if err != nil {
		return report.Validation{}, nil, err
	}
	return judge(ref, done, o)
}

// judgement is one comparison of stored outputs with a reference.
type judgement struct {
	ref    *Reference
	runs   *runs
	o      Options
	v      report.Validation
	checks []report.Check
	random map[string]bool // outputs that differ from run to run
}

func judge(ref *Reference, done *runs, o Options) (report.Validation, []report.Check, error) {
	j := &judgement{ref: ref, runs: done, o: o, random: map[string]bool{}, v: report.Validation{
		Stage: o.Stage, Candidate: done.Candidate, Reference: ref.Source, Precision: o.Precision, Preview: o.Preview,
		Seed: ref.Seed, Points: []report.Point{}, Rows: []report.Comparison{}, Notes: slices.Clone(ref.Notes),
	}}
	for _, p := range ref.Points {
		j.v.Points = append(j.v.Points, report.Point{Name: p.Name, Shapes: p.Shapes, Samples: len(p.Samples)})
	}
	j.judgeRepeats()
	for _, p := range ref.Points {
		if err := j.judgePoint(p); err != nil {
			return report.Validation{}, nil, err
		}
	}
	j.judgeShapes()
	j.judgeEvidence()
	if err := j.judgeNeighbours(); err != nil {
		return report.Validation{}, nil, err
	}
	if err := j.judgeTask(); err != nil {
		return report.Validation{}, nil, err
	}
	return j.v, j.checks, nil
}

// check returns a check with all labels filled in.
func (j *judgement) check(name string, s report.Subject) report.Check {
	s.Precision, s.Protocol = j.o.Precision, j.o.Protocol
	if s.Precision == "onnx" {
		s.Precision = "" // the graph itself, not a precision of it
	}
	return report.Check{ID: j.o.id(name), Subject: s, Hardware: j.o.Hardware, Preview: j.o.Preview}
}

func (j *judgement) add(c report.Check) { j.checks = append(j.checks, c) }

func ruleOf(t report.Tolerance) tensor.Rule {
	return tensor.Rule{Atol: float64(t.Atol), Rtol: float64(t.Rtol), AllowNaN: t.AllowNaN}
}

// judgePoint compares every output at one point.
func (j *judgement) judgePoint(p Point) error {
	if why := j.runs.skipped(p.Name); why != "" {
		j.v.Notes = append(j.v.Notes, fmt.Sprintf("%s: not asked: %s", p.Name, why))
		return nil
	}
	if f := j.runs.failed(p.Name); f != nil {
		return j.judgeRefusal(p, *f)
	}
	files := &pairReader{ref: j.ref, runs: j.runs, samples: p.Samples}
	names, err := files.outputs()
	if err != nil {
		return err
	}
	for _, name := range names {
		row, err := j.compare(p, name, files)
		if err != nil {
			return err
		}
		j.v.Rows = append(j.v.Rows, row)
		j.checkRow(p, row)
	}
	return nil
}

// judgeRefusal makes the checks of a point that the candidate did not answer: one
// for each output, with the shape that it should have had; a runtime that died
// says nothing about single outputs.
func (j *judgement) judgeRefusal(p Point, f runFailure) error {
	if f.Broken {
		c := j.check(checkTolerance, report.Subject{Point: p.Name})
		c.Verdict, c.Want, c.Detail = f.verdict(), "an answer at "+at(p), f.Error
		j.add(c)
		return nil
	}
	expected, err := j.ref.Out(p.Samples[0])
	if err != nil {
		return err
	}
	for _, e := range expected {
		c := j.check(checkTolerance, report.Subject{Output: e.Name, Point: p.Name})
		c.Verdict, c.Want, c.Got, c.Hint = f.verdict(), "shape "+indexText(e.Shape), "no answer", f.Hint
		c.Detail = fmt.Sprintf("%s: %s gives no answer, expected %s: %s", e.Name, at(p), indexText(e.Shape), f.Error)
		j.add(c)
	}
	return nil
}

// at names a point by its batch, where it has one.
func at(p Point) string {
	if p.Batch > 0 {
		return fmt.Sprintf("batch %d", p.Batch)
	}
	return "point " + p.Name
}

// compare fills one row of the report.
func (j *judgement) compare(p Point, output string, files *pairReader) (report.Comparison, error) {
	t := j.o.Tolerance(output)
	row := report.Comparison{Output: output, Point: p.Name, Tolerance: t, Metrics: map[string]report.Number{}}
	ref, got, err := files.pair(output, 0)
	if err != nil {
		if missing, ok := errors.AsType[*missingOutput](err); ok {
			row.Verdict, row.Detail = report.Fail, missing.Error()
			row.DType, row.Shape = string(ref.DType), ref.Shape
			return row, nil
		}
		return row, err
	}
	row.DType, row.Shape = string(ref.DType), ref.Shape
	if j.random[output] && j.o.AllowRandom {
		return j.shapeOnly(p, row, files)
	}
	c, err := tensor.Compare(tensor.Pairs{Len: len(p.Samples), At: func(i int) (tensor.Tensor, tensor.Tensor, error) {
		return files.pair(output, i)
	}}, ruleOf(t))
	if s, ok := errors.AsType[*tensor.ShapeError](err); ok {
		row.Shape, row.GotShape = s.Ref, s.Got
		row.Verdict, row.Detail = report.Fail, shapeText(output, p, s.Got, s.Ref)
		return row, nil
	}
	if e, ok := errors.AsType[*tensor.TypeError](err); ok {
		row.Verdict, row.Detail = report.Fail, fmt.Sprintf("%s: type %s, expected %s", output, e.Got, e.Ref)
		return row, nil
	}
	if err != nil {
		return row, err
	}
	fill(&row, c)
	if got.DType != ref.DType {
		row.Detail = join(row.Detail, fmt.Sprintf("compared by value: the candidate gives %s", got.DType))
	}
	if row.Verdict == report.Fail && c.Exact() {
		row.Detail = join(row.Detail, files.margin(row))
	}
	return row, nil
}

// shapeOnly is for outputs whose values are random: nothing but the shape can be
// compared.
func (j *judgement) shapeOnly(p Point, row report.Comparison, files *pairReader) (report.Comparison, error) {
	for i := range p.Samples {
		ref, got, err := files.pair(row.Output, i)
		if err != nil {
			return row, err
		}
		if !slices.Equal(ref.Shape, got.Shape) {
			row.GotShape, row.Verdict = got.Shape, report.Fail
			row.Detail = shapeText(row.Output, p, got.Shape, ref.Shape)
			return row, nil
		}
	}
	row.Verdict, row.Detail = report.Skip, "values are random (allowed by validation.allow_random): only the shape was compared"
	return row, nil
}

// fill copies a comparison into a row and judges it.
func fill(row *report.Comparison, c tensor.Comparison) {
	row.Elements, row.Breaches, row.First = c.Elements, c.Breaches, c.First
	row.NaN, row.Inf = c.NaN, c.Inf
	for name, v := range c.Metrics() {
		row.Metrics[name] = report.Number(v)
	}
	if len(c.Counts) > 0 {
		row.Histogram = &report.Histogram{Counts: c.Counts}
		for _, e := range c.Edges {
			row.Histogram.Edges = append(row.Histogram.Edges, report.Number(e))
		}
	}
	row.Verdict, row.Detail = verdictOf(c, row.Tolerance)
}

// verdictOf applies a tolerance to a comparison of values.
func verdictOf(c tensor.Comparison, t report.Tolerance) (report.Verdict, string) {
	switch {
	case c.Elements == 0 && c.NaN[0] > 0:
		return report.Fail, fmt.Sprintf("no evidence: all %d elements are NaN on both sides", c.NaN[0])
	case c.Elements == 0:
		return report.Inconclusive, "no evidence: 0 elements were compared"
	case c.Breaches == 0:
		return report.Pass, nanNote(c)
	}
	where := fmt.Sprintf("first at %s: %s, expected %s", indexText(c.First), c.FirstGot, c.FirstRef)
	switch {
	case c.NonFinite > 0:
		return report.Fail, fmt.Sprintf("%s; %s", nonFiniteText(c), where)
	case c.Exact():
		return report.Fail, fmt.Sprintf("%d of %d elements differ; %s", c.Breaches, c.Elements, where)
	case float64(c.Breaches) <= float64(t.MaxBreaches)*float64(c.Elements):
		return report.Pass, fmt.Sprintf("%d of %d elements are outside atol and rtol, within max_breaches; %s", c.Breaches, c.Elements, where)
	}
	return report.Fail, fmt.Sprintf("%d of %d elements are outside the tolerance; %s", c.Breaches, c.Elements, where)
}

func nanNote(c tensor.Comparison) string {
	var notes []string
	if c.NaN[0] > 0 {
		notes = append(notes, fmt.Sprintf("%d NaN on both sides", c.NaN[0]))
	}
	if c.Inf[0] > 0 {
		notes = append(notes, fmt.Sprintf("%d infinite on both sides", c.Inf[0]))
	}
	return strings.Join(notes, ", ")
}

func nonFiniteText(c tensor.Comparison) string {
	return fmt.Sprintf("%d elements are NaN or infinite without an equal (NaN: %d in the reference, %d in the candidate; infinite: %d, %d)",
		c.NonFinite, c.NaN[0], c.NaN[1], c.Inf[0], c.Inf[1])
}

// shapeText says e.g. "y: batch 8 gives [4,1], expected [8,1]".
func shapeText(output string, p Point, got, want []int64) string {
	return fmt.Sprintf("%s: %s gives %s, expected %s", output, at(p), indexText(got), indexText(want))
}

// indexText writes [8,1].
func indexText(v []int64) string {
	parts := make([]string, len(v))
	for i, x := range v {
		parts[i] = strconv.FormatInt(x, 10)
	}
	return "[" + strings.Join(parts, ",") + "]"
}

func join(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "; " + b
}

func formatNumber(x float64) string { return strconv.FormatFloat(x, 'g', 6, 64) }

// missingOutput is an output that the candidate does not give.
type missingOutput struct {
	name string
	has  []string
}

func (e *missingOutput) Error() string {
	return fmt.Sprintf("%s: the candidate has no such output; it gives %s", e.name, strings.Join(e.has, ", "))
}

// cacheBytes is how many bytes of outputs stay in memory while one point is
// compared; where there are more, samples are read again when they are needed.
const cacheBytes = 256 << 20

// pairReader reads the outputs of one point.
type pairReader struct {
	ref     *Reference
	runs    *runs
	samples []Sample
	held    map[int]*held
	bytes   int64
}

// held is a sample in memory.
type held struct{ want, got []tensor.Named }

func (f *pairReader) load(i int) (*held, error) {
	if h, ok := f.held[i]; ok {
		return h, nil
	}
	h := &held{}
	var err error
	if h.want, err = f.ref.Out(f.samples[i]); err != nil {
		return nil, err
	}
	if h.got, err = f.runs.out(f.samples[i]); err != nil {
		return nil, err
	}
	size := int64(0)
	for _, t := range append(slices.Clone(h.want), h.got...) {
		size += int64(len(t.Data))
	}
	if f.held == nil || f.bytes+size > cacheBytes {
		f.held, f.bytes = map[int]*held{}, 0
	}
	f.held[i] = h
	f.bytes += size
	return h, nil
}

// outputs lists the reference's outputs.
func (f *pairReader) outputs() ([]string, error) {
	h, err := f.load(0)
	if err != nil {
		return nil, err
	}
	return tensor.Names(h.want), nil
}

func (f *pairReader) pair(output string, i int) (ref, got tensor.Tensor, err error) {
	h, err := f.load(i)
	if err != nil {
		return ref, got, err
	}
	ref, _ = tensor.Find(h.want, output)
	got, ok := tensor.Find(h.got, output)
	if !ok {
		return ref, got, &missingOutput{name: output, has: tensor.Names(h.got)}
	}
	return ref, got, nil
}

// margin explains a label that flipped: how far apart the reference's two
// largest scores were there, if scores are an output too.
func (f *pairReader) margin(row report.Comparison) string {
	if len(row.First) == 0 {
		return ""
	}
	h, err := f.load(int(row.First[0]))
	if err != nil {
		return ""
	}
	label := row.First[1:]
	for _, s := range h.want {
		if !s.DType.Floating() || len(s.Shape) == 0 {
			continue
		}
		classes := s.Shape[len(s.Shape)-1]
		if classes < 2 || s.Elements() != tensor.Elements(row.Shape)*classes {
			continue
		}
		at := int64(0)
		for axis, i := range label {
			at = at*row.Shape[axis] + i
		}
		best, second := -1, -1
		score := func(k int) float64 { return s.Float64At(int(at*classes) + k) }
		for k := range int(classes) {
			switch {
			case best < 0 || score(k) > score(best):
				best, second = k, best
			case second < 0 || score(k) > score(second):
				second = k
			}
		}
		return fmt.Sprintf("the two largest of %s there, %d and %d, are %s apart in the reference",
			s.Name, best, second, formatNumber(score(best)-score(second)))
	}
	return ""
}
