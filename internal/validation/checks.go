package validation

import (
	"fmt"
	"slices"
	"strings"

	"github.com/trtship/trtship/internal/stage"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/report"
)

// Docs describes the checks of a stage that calls Judge. hardware marks those
// of stages that run on a GPU.
func Docs(stageName string, hardware bool) []stage.CheckDoc {
	doc := func(name, title, remedy string) stage.CheckDoc {
		return stage.CheckDoc{ID: stageName + "/" + name, Title: title, Remedy: remedy, Hardware: hardware}
	}
	return []stage.CheckDoc{
		doc(checkTolerance, "Every output agrees with the reference at every point, element by element.",
			"Read output, point and first index; trtship locate finds the first node that differs. Loosen a tolerance only when you know why."),
		doc(checkShapes, "Every output has the reference's shape at every point.",
			"A size was baked in while tracing: replace int(x.shape[0]) and the like by tensor operations, or trace with another size."),
		doc(checkDeterministic, "Two runs of the same feed in one session agree.",
			"Turn off random operators and training mode, or set validation.allow_random."),
		doc(checkCosine, "The smallest cosine similarity of any sample is above its limit.",
			"Look at the sample that is worst; a whole row is off."),
		doc(checkTop1, "The largest element is the same in enough rows.",
			"Look at the margin of the rows that flipped."),
		doc(checkTask, "The metric on labelled data is not lower than the reference's by more than allowed.",
			"Compare the rows that are wrong now; for int8, calibrate on more representative data."),
		doc(checkEvidence, "At least one comparable element of every output was compared.",
			"Give inputs that make the model answer something: validation.inputs, or a range."),
		doc(checkNeighbours, "A row gets the same answer alone and within a batch.",
			"Look for BatchNormalization in training mode, or statistics over the batch."),
	}
}

// checkRow makes the checks of one output at one point.
func (j *judgement) checkRow(p Point, row report.Comparison) {
	subject := report.Subject{Output: row.Output, Point: p.Name}
	c := j.check(checkTolerance, subject)
	c.Verdict, c.Detail, c.Metrics = row.Verdict, row.Detail, row.Metrics
	exact := !tensor.DType(row.DType).Floating()
	if exact {
		c.Want, c.Got = "equal", fmt.Sprintf("%d of %d differ", row.Breaches, row.Elements)
	} else {
		c.Want = fmt.Sprintf("|got - ref| <= %s + %s*|ref|", formatNumber(float64(row.Tolerance.Atol)), formatNumber(float64(row.Tolerance.Rtol)))
		c.Got = fmt.Sprintf("max abs %s, %d of %d outside", formatNumber(float64(row.Metrics["max_abs"])), row.Breaches, row.Elements)
	}
	if row.GotShape != nil {
		c.Want, c.Got = "shape "+indexText(row.Shape), "shape "+indexText(row.GotShape)
	}
	j.add(c)
	if exact || row.Verdict == report.Skip || row.GotShape != nil || row.Elements == 0 {
		return
	}
	j.checkLimit(checkCosine, "cosine", subject, row.Tolerance.CosineMin, row.Metrics, "cosine_min")
	j.checkLimit(checkTop1, "top-1 agreement", subject, row.Tolerance.TopK, row.Metrics, "top1")
}

// checkLimit demands that a metric is not below its limit. A metric that is not
// defined (the cosine of zero vectors) is left out: the element rule speaks.
func (j *judgement) checkLimit(id, name string, s report.Subject, limit *report.Number, metrics map[string]report.Number, metric string) {
	value, ok := metrics[metric]
	if limit == nil || !ok {
		return
	}
	c := j.check(id, s)
	c.Want = fmt.Sprintf("%s >= %s", name, formatNumber(float64(*limit)))
	c.Got = fmt.Sprintf("%.9g", float64(value))
	c.Verdict = report.Fail
	if value >= *limit { // a NaN must not pass
		c.Verdict = report.Pass
	}
	j.add(c)
}

// judgeShapes sums up the shapes of each output over all points.
func (j *judgement) judgeShapes() {
	var outputs []string
	bad := map[string][]string{}
	for _, r := range j.v.Rows {
		if !slices.Contains(outputs, r.Output) {
			outputs = append(outputs, r.Output)
		}
		if r.GotShape != nil {
			bad[r.Output] = append(bad[r.Output], r.Detail)
		}
	}
	for _, o := range outputs {
		c := j.check(checkShapes, report.Subject{Output: o})
		c.Want, c.Verdict = "the reference's shape at every point", report.Pass
		if len(bad[o]) > 0 {
			c.Verdict, c.Detail = report.Fail, strings.Join(bad[o], "; ")
			c.Got = fmt.Sprintf("another shape at %d points", len(bad[o]))
			c.Hint = "a size was baked in while tracing: look for int(x.shape[0]), len(x) or a loop over the batch"
		}
		j.add(c)
	}
}

// judgeEvidence makes sure that something was compared at all.
func (j *judgement) judgeEvidence() {
	c := j.check(checkEvidence, report.Subject{})
	c.Want, c.Verdict = "comparable elements of every output at every point", report.Pass
	elements := int64(0)
	var empty []string
	for _, r := range j.v.Rows {
		elements += r.Elements
		if r.Elements == 0 && r.Verdict != report.Skip && r.GotShape == nil {
			empty = append(empty, fmt.Sprintf("%s at %s", r.Output, r.Point))
			c.Verdict = report.Worst(c.Verdict, r.Verdict)
		}
	}
	c.Got = fmt.Sprintf("%d elements of %d outputs and points", elements, len(j.v.Rows))
	if len(empty) > 0 {
		c.Detail = "nothing was compared: " + strings.Join(empty, ", ")
	}
	if len(j.v.Rows) == 0 {
		c.Verdict, c.Detail = report.Inconclusive, "no point was answered"
		for _, f := range j.runs.Failures {
			c.Verdict = report.Worst(c.Verdict, f.verdict())
		}
	}
	j.add(c)
}

// judgeRepeats says whether two runs of one feed agreed.
func (j *judgement) judgeRepeats() {
	c := j.check(checkDeterministic, report.Subject{})
	c.Want, c.Verdict = "two runs of each feed agree in every bit", report.Pass
	if j.o.LooseRepeat {
		c.Want = "two runs of each feed agree within the tolerance"
	}
	nodes := j.runs.Random
	for _, name := range j.ref.Different {
		j.random[name] = true
	}
	var worst difference
	for _, d := range j.runs.Different {
		if j.o.LooseRepeat && d.Within {
			continue
		}
		j.random[d.Output] = true
		if !(d.MaxAbs <= worst.MaxAbs) || worst.Output == "" {
			worst = d
		}
	}
	switch {
	case len(j.random) == 0:
	case j.o.AllowRandom:
		c.Verdict, c.Detail = report.Skip, "random outputs are allowed by validation.allow_random"
	default:
		c.Verdict = report.Fail
	}
	if len(j.random) > 0 {
		who := "two runs of the reference differ"
		if worst.Output != "" {
			who = fmt.Sprintf("%s at %s differs by up to %s between two runs of one feed", worst.Output, worst.Point, formatNumber(float64(worst.MaxAbs)))
		}
		c.Detail = join(c.Detail, "non-deterministic: "+join(nodeNames(append(slices.Clone(nodes), j.ref.Random...)), who))
		c.Got = fmt.Sprintf("%d outputs differ", len(j.random))
		c.Hint = "put the model into eval mode and take the noise out, or set validation.allow_random: true"
	}
	j.add(c)
}

func nodeNames(nodes []string) string {
	if len(nodes) == 0 {
		return ""
	}
	slices.Sort(nodes)
	nodes = slices.Compact(nodes)
	word := "node "
	if len(nodes) > 1 {
		word = "nodes "
	}
	return word + strings.Join(nodes, ", ")
}

// judgeNeighbours compares rows that ran alone with the same rows in a batch.
func (j *judgement) judgeNeighbours() error {
	f := j.runs.failed(neighbourFolder)
	if len(j.runs.Neighbours) == 0 && f == nil {
		return nil
	}
	c := j.check(checkNeighbours, report.Subject{})
	c.Want = "the same row alone and within a batch"
	if f != nil {
		c.Verdict, c.Detail = f.verdict(), f.Error
		j.add(c)
		return nil
	}
	follow := j.batchOutputs()
	compared, bad := 0, []string{}
	for _, n := range j.runs.Neighbours {
		if n.Point >= len(j.ref.Points) || len(j.ref.Points[n.Point].Samples) == 0 {
			continue
		}
		p := j.ref.Points[n.Point]
		together, err := j.runs.out(p.Samples[0])
		if err != nil {
			return err
		}
		alone, err := j.runs.out(Sample{Out: n.Out})
		if err != nil {
			return err
		}
		for _, name := range follow {
			text, ok := j.sameRow(name, p, n.Row, together, alone)
			if ok {
				compared++
			}
			if text != "" {
				bad = append(bad, text)
			}
		}
	}
	c.Verdict, c.Got = report.Pass, fmt.Sprintf("%d rows compared", compared)
	switch {
	case len(bad) > 0:
		c.Verdict, c.Detail = report.Fail, strings.Join(bad, "; ")
		c.Hint = "look for BatchNormalization or Dropout in training mode, or statistics over the batch"
	case compared == 0:
		c.Verdict, c.Detail = report.Skip, "no output follows the batch"
	}
	j.add(c)
	return nil
}

// batchOutputs are the outputs, not random, whose first axis is the batch at
// every point.
func (j *judgement) batchOutputs() []string {
	var names []string
	for _, o := range j.ref.Outputs {
		follows := !j.random[o.Name]
		for _, r := range j.v.Rows {
			if r.Output != o.Name {
				continue
			}
			for _, p := range j.ref.Points {
				if p.Name == r.Point && (len(r.Shape) == 0 || r.Shape[0] != p.Batch || r.GotShape != nil) {
					follows = false
				}
			}
		}
		if follows {
			names = append(names, o.Name)
		}
	}
	return names
}

func (j *judgement) sameRow(name string, p Point, row int64, together, alone []tensor.Named) (text string, compared bool) {
	a, ok1 := tensor.Find(alone, name)
	b, ok2 := tensor.Find(together, name)
	if !ok1 || !ok2 || len(a.Shape) == 0 || len(b.Shape) == 0 || a.Shape[0] < 1 || b.Shape[0] <= row {
		return "", false
	}
	if a.DType != tensor.String && a.DType.Size() == 0 {
		return "", false // packed types have no rows
	}
	t := j.o.Tolerance(name)
	c, err := tensor.Compare(tensor.Pair(b.Rows(row, row+1), a.Rows(0, 1)), ruleOf(t))
	if err != nil {
		return fmt.Sprintf("%s: row %d of batch %d: %v", name, row, p.Batch, err), true
	}
	if c.Elements == 0 {
		return "", false
	}
	if v, _ := verdictOf(c, t); v == report.Fail {
		return fmt.Sprintf("%s: row %d alone differs from the same row within batch %d by up to %s", name, row, p.Batch, formatNumber(c.MaxAbs)), true
	}
	return "", true
}
