package locate

import (
	"errors"
	"fmt"

	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/report"
)

// compare sets one value of one sample against its float32 twin.
func compare(want, got tensor.Named, tol report.Tolerance) (report.Comparison, error) {
	row := report.Comparison{
		Output: want.Name, DType: string(want.DType), Shape: want.Shape, Tolerance: tol, Verdict: report.Pass,
	}
	rule := tensor.Rule{Atol: float64(tol.Atol), Rtol: float64(tol.Rtol), AllowNaN: tol.AllowNaN}
	c, err := tensor.Compare(tensor.Pair(want.Tensor, got.Tensor), rule)
	if shape, ok := errors.AsType[*tensor.ShapeError](err); ok {
		row.GotShape, row.Verdict = shape.Got, report.Fail
		row.Detail = fmt.Sprintf("shape %v, expected %v", shape.Got, shape.Ref)
		return row, nil
	}
	if err != nil {
		return row, fmt.Errorf("compare %s: %w", want.Name, err)
	}
	row.Elements, row.Breaches, row.NaN, row.Inf = c.Elements, c.Breaches, c.NaN, c.Inf
	row.Metrics = map[string]report.Number{}
	for name, v := range c.Metrics() {
		row.Metrics[name] = report.Number(v)
	}
	if float64(c.Breaches) > float64(tol.MaxBreaches)*float64(c.Elements) {
		row.Verdict = report.Fail
		if len(c.First) > 0 {
			row.First = c.First[1:] // the sample is said apart
		}
		row.Detail = fmt.Sprintf("%s became %s", c.FirstRef, c.FirstGot)
	}
	return row, nil
}
