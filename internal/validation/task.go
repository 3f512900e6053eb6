package validation

import (
	"fmt"
	"path"
	"path/filepath"
	"strconv"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/report"
)

const (
	taskFolder = "task"
	labelsFile = "task/labels.npz"
	labelsName = "labels"
)

// addTask cuts labelled data into batches.
func (r *Reference) addTask(plan Plan) error {
	t := plan.Task
	data, err := tensor.ReadNPZ(t.Data)
	if err != nil {
		return failure.New(failure.Artifact, "read validation.task.data: %w", err).At(t.Data)
	}
	labels, ok := tensor.Find(data, t.Labels)
	if !ok || len(labels.Shape) != 1 || labels.DType.Floating() || labels.DType == tensor.String {
		return failure.New(failure.Usage, "read validation.task.data: expected an array %q of integers with one axis", t.Labels).At(t.Data).
			With("arrays", "%v", tensor.Names(data))
	}
	var feed []tensor.Named
	for _, a := range data {
		if a.Name != t.Labels {
			feed = append(feed, a)
		}
	}
	if feed, err = fit(plan.Inputs, feed, t.Data); err != nil {
		return err
	}
	n := labels.Shape[0]
	if n == 0 {
		return failure.New(failure.Usage, "read validation.task.data: there is no sample").At(t.Data)
	}
	for _, a := range feed {
		if len(a.Shape) == 0 || a.Shape[0] != n {
			return failure.New(failure.Usage, "read validation.task.data: array %q has shape %v for %d labels", a.Name, a.Shape, n).At(t.Data)
		}
	}
	r.Task = &Task{Metric: t.Metric, Output: t.Output, MaxDegradation: t.MaxDegradation, Labels: labelsFile, Count: n}
	batch := max(t.Batch, 1)
	for lo := int64(0); lo < n; lo += batch {
		hi := min(lo+batch, n)
		s, err := r.write(path.Join(taskFolder, strconv.FormatInt(lo/batch, 10)), rows(feed, lo, hi, batch))
		if err != nil {
			return err
		}
		s.Rows = hi - lo
		r.Task.Samples = append(r.Task.Samples, s)
	}
	return tensor.WriteNPZ(filepath.Join(r.Dir, labelsFile), []tensor.Named{{Name: labelsName, Tensor: labels}})
}

// rows takes rows lo to hi of each tensor and repeats the last one up to fill,
// for a model may have a fixed batch.
func rows(feed []tensor.Named, lo, hi, fill int64) []tensor.Named {
	out := make([]tensor.Named, len(feed))
	for i, t := range feed {
		parts := []tensor.Tensor{t.Rows(lo, hi)}
		for range fill - (hi - lo) {
			parts = append(parts, t.Rows(hi-1, hi))
		}
		joined, err := tensor.Concat(parts...)
		if err != nil {
			joined = parts[0] // packed types have no rows; nothing to join
		}
		out[i] = tensor.Named{Name: t.Name, Tensor: joined}
	}
	return out
}

// accuracy returns how many rows of the answers have the label as their largest
// element, or as their value where the output is a label itself.
func (t *Task) accuracy(dir string, answers func(Sample) ([]tensor.Named, error), output string) (float64, error) {
	stored, err := tensor.ReadNPZ(filepath.Join(dir, t.Labels))
	if err != nil {
		return 0, failure.New(failure.Artifact, "read labels: %w", err)
	}
	labels, ok := tensor.Find(stored, labelsName)
	if !ok || labels.Elements() != t.Count {
		return 0, failure.New(failure.Artifact, "read labels: expected %d", t.Count)
	}
	right, at := int64(0), 0
	for _, s := range t.Samples {
		out, err := answers(s)
		if err != nil {
			return 0, err
		}
		got, ok := tensor.Find(out, output)
		if !ok {
			return 0, failure.New(failure.Usage, "measure accuracy: there is no output %q", output).With("outputs", "%v", tensor.Names(out))
		}
		classes, err := predictions(got, s.Rows)
		if err != nil {
			return 0, failure.New(failure.Usage, "measure accuracy: output %q: %w", output, err)
		}
		for _, c := range classes {
			if c == labels.Int64At(at) {
				right++
			}
			at++
		}
	}
	return float64(right) / float64(t.Count), nil
}

// predictions returns the class of each of the first n rows; -1 where a row has
// a NaN, which is never right.
func predictions(t tensor.Tensor, n int64) ([]int64, error) {
	if len(t.Shape) == 0 || t.Shape[0] < n {
		return nil, fmt.Errorf("shape %v has no %d rows", t.Shape, n)
	}
	classes := make([]int64, n)
	width := t.Elements() / t.Shape[0]
	if !t.DType.Floating() && width == 1 && t.DType != tensor.String {
		for i := range classes {
			classes[i] = t.Int64At(i)
		}
		return classes, nil
	}
	if width < 2 || t.DType == tensor.String {
		return nil, fmt.Errorf("%s of shape %v is no row of scores a sample", t.DType, t.Shape)
	}
	for i := range classes {
		row := t.Rows(int64(i), int64(i)+1).Float64s()
		for k, x := range row {
			if x != x {
				classes[i] = -1
				break
			}
			if x > row[classes[i]] {
				classes[i] = int64(k)
			}
		}
	}
	return classes, nil
}

// judgeTask compares the accuracy of reference and candidate.
func (j *judgement) judgeTask() error {
	t := j.ref.Task
	if t == nil {
		return nil
	}
	output := t.Output
	if output == "" && len(j.ref.Outputs) > 0 {
		output = j.ref.Outputs[0].Name
	}
	c := j.check(checkTask, report.Subject{Output: output})
	c.Want = fmt.Sprintf("%s at most %s below the reference", t.Metric, formatNumber(t.MaxDegradation))
	if why := j.runs.failed(taskFolder); why != nil {
		c.Verdict, c.Detail = why.verdict(), why.Error
		j.add(c)
		return nil
	}
	ref, err := t.accuracy(j.ref.Dir, j.ref.Out, output)
	if err != nil {
		return err
	}
	got, err := t.accuracy(j.ref.Dir, j.runs.out, output)
	if err != nil {
		return err
	}
	j.v.Task = &report.Task{
		Metric: t.Metric, Samples: int(t.Count), Reference: report.Number(ref),
		Candidate: report.Number(got), MaxDegradation: report.Number(t.MaxDegradation),
	}
	c.Got = fmt.Sprintf("%s, reference %s, over %d samples", formatNumber(got), formatNumber(ref), t.Count)
	c.Metrics = map[string]report.Number{t.Metric: report.Number(got), t.Metric + "_reference": report.Number(ref)}
	c.Verdict = report.Fail
	// One part in 10^9 is left for the rounding of the difference itself.
	if ref-got <= t.MaxDegradation+1e-9 {
		c.Verdict = report.Pass
	} else {
		c.Hint = "look at the rows of this output; for int8, calibrate on more representative data before loosening the limit"
	}
	j.add(c)
	return nil
}
