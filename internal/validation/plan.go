package validation

import (
	"fmt"

	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/ort"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/report"
)

// PlanOf plans the feeds of a configuration. found are the graph's inputs, for
// inputs and fixed shapes that the configuration does not declare, and ranges
// what was found out about its integer inputs.
func PlanOf(c *config.Config, found []ort.ValueInfo, ranges []report.IntegerRange) (Plan, error) {
	p := Plan{Samples: max(c.Validation.NumSamples, 1), Seed: c.Validation.Seed, User: c.Validation.Inputs}
	var err error
	if p.Inputs, err = planInputs(c, found, ranges); err != nil {
		return Plan{}, err
	}
	for _, point := range c.Points() {
		shapes, err := completeShapes(point, p.Inputs, found)
		if err != nil {
			return Plan{}, err
		}
		p.Points = append(p.Points, Point{Name: point.Name, Profile: point.Profile, Shapes: shapes})
	}
	for i := range c.TensorRT.Profiles {
		if lo, _, _, ok := c.BatchRange(i); ok && (i == 0 || lo < p.MinBatch) {
			p.MinBatch = lo
		}
	}
	if t := c.Validation.Task; t != nil {
		p.Task = &TaskPlan{Metric: t.Metric, Data: t.Data, Labels: t.Labels, Output: t.Output, MaxDegradation: t.MaxDegradation, Batch: taskBatch(c, p)}
	}
	return p, nil
}

// taskBatch is the batch of labelled data: as configured, else the profile's
// opt, else the fixed first size.
func taskBatch(c *config.Config, p Plan) int64 {
	if b := int64(c.Validation.Task.Batch); b > 0 {
		return b
	}
	if _, opt, _, ok := c.BatchRange(0); ok {
		return opt
	}
	if len(p.Points) > 0 && len(p.Inputs) > 0 {
		if s := p.Points[0].Shapes[p.Inputs[0].Name]; len(s) > 0 {
			return s[0]
		}
	}
	return 1
}

func planInputs(c *config.Config, found []ort.ValueInfo, ranges []report.IntegerRange) ([]Input, error) {
	var out []Input
	symbol := c.BatchSymbol()
	for _, in := range c.Model.Inputs {
		d, err := tensor.ParseDType(in.DType)
		if err != nil {
			return nil, failure.New(failure.Usage, "plan feeds: input %q: %w", in.Name, err)
		}
		x := Input{Name: in.Name, DType: d, Rank: len(in.Shape)}
		x.Batch = symbol != "" && len(in.Shape) > 0 && in.Shape[0].Symbol == symbol
		if len(in.Range) == 2 {
			x.Range = tensor.Range{Low: string(in.Range[0]), High: string(in.Range[1])}
		} else {
			x.Range = rangeOf(in.Name, ranges)
		}
		out = append(out, x)
	}
	if len(out) > 0 {
		return out, nil
	}
	for _, in := range found {
		if in.DType == "" {
			return nil, failure.New(failure.Model, "plan feeds: input %q is no tensor: only tensors can be fed", in.Name)
		}
		x := Input{Name: in.Name, DType: in.DType, Rank: len(in.Dims), Range: rangeOf(in.Name, ranges)}
		// Undeclared inputs: a dynamic first axis is taken for the batch if a
		// profile says that it varies.
		_, _, _, dynamic := c.BatchRange(0)
		x.Batch = dynamic && len(in.Dims) > 0 && in.Dims[0] < 0
		out = append(out, x)
	}
	return out, nil
}

func rangeOf(input string, ranges []report.IntegerRange) tensor.Range {
	for _, r := range ranges {
		if r.Input == input {
			return tensor.Range{Low: fmt.Sprint(r.Low), High: fmt.Sprint(r.High)}
		}
	}
	return tensor.Range{}
}

// completeShapes adds the shapes of inputs that the point does not name, from
// the graph.
func completeShapes(point config.Point, inputs []Input, found []ort.ValueInfo) (map[string][]int64, error) {
	shapes := map[string][]int64{}
	for name, s := range point.Shapes {
		shapes[name] = s
	}
	for _, in := range inputs {
		if _, ok := shapes[in.Name]; ok {
			continue
		}
		for _, f := range found {
			if f.Name != in.Name {
				continue
			}
			for axis, d := range f.Dims {
				if d < 0 {
					return nil, failure.New(failure.Usage, "plan feeds: input %s is dynamic in axis %d and has no shape at point %s", f, axis, point.Name).
						WithHint("give it min, opt and max in tensorrt.profiles")
				}
			}
			shapes[in.Name] = f.Dims
		}
	}
	return shapes, nil
}
