package calibrate

import (
	"strconv"

	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/dataset"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/validation"
)

// Inputs returns what a data set has to fill: the graph's inputs, open sizes
// taken from the first profile's opt where the data cannot say them, and the
// range of values that is declared or that the graph's tables allow.
func Inputs(c *config.Config, m *onnx.Model) ([]dataset.Input, error) {
	ranges := map[string]*[2]float64{}
	for _, r := range validation.IntegerRanges(m) {
		ranges[r.Input] = &[2]float64{float64(r.Low), float64(r.High)}
	}
	for _, in := range c.Model.Inputs {
		if len(in.Range) != 2 {
			continue
		}
		low, err := strconv.ParseFloat(string(in.Range[0]), 64)
		if err != nil {
			return nil, failure.New(failure.Usage, "range of input %s: %w", in.Name, err)
		}
		high, err := strconv.ParseFloat(string(in.Range[1]), 64)
		if err != nil {
			return nil, failure.New(failure.Usage, "range of input %s: %w", in.Name, err)
		}
		ranges[in.Name] = &[2]float64{low, high}
	}
	var out []dataset.Input
	for _, v := range m.Inputs() {
		if !v.HasShape {
			return nil, failure.New(failure.Calibration, "calibrate: input %s has no shape", v.Name)
		}
		in := dataset.Input{Name: v.Name, DType: v.DType, Range: ranges[v.Name]}
		opt := optOf(c, v.Name)
		for i, d := range v.Dims {
			size := int64(dataset.Any)
			switch {
			case d.Fixed():
				size = d.Size
			case i > 0 && i < len(opt) && c.Calibration.Dataset != "numpy":
				size = opt[i]
			}
			in.Shape = append(in.Shape, size)
		}
		out = append(out, in)
	}
	return out, nil
}

func optOf(c *config.Config, input string) []int64 {
	if len(c.TensorRT.Profiles) == 0 {
		return nil
	}
	return c.TensorRT.Profiles[0].Inputs[input].Opt
}
