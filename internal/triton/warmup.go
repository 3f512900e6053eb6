package triton

import (
	"fmt"

	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/internal/triton/kserve"
	"github.com/trtship/trtship/internal/triton/tritonpb"
)

// WarmUp adds a warm-up sample to a configuration and returns the files that
// go beside it. For a model with batching the sample is the first row of feed,
// repeated batch times.
func WarmUp(c *tritonpb.ModelConfig, feed []tensor.Named, batch int) (map[string][]byte, error) {
	w := &tritonpb.ModelWarmup{Name: "sample", BatchSize: uint32(max(batch, 1)), Inputs: map[string]*tritonpb.ModelWarmup_Input{}}
	files := map[string][]byte{}
	for i, in := range c.GetInput() {
		t, ok := byName(feed, in.GetName())
		if !ok {
			return nil, fmt.Errorf("warm up: the sample has no input %s", in.GetName())
		}
		if c.GetMaxBatchSize() > 0 && !in.GetIsShapeTensor() {
			var err error
			if t, err = firstRow(t); err != nil {
				return nil, fmt.Errorf("warm up: input %s: %w", in.GetName(), err)
			}
		}
		raw, err := kserve.Encode(t)
		if err != nil {
			return nil, fmt.Errorf("warm up: input %s: %w", in.GetName(), err)
		}
		dims := t.Shape
		if in.GetReshape() != nil {
			dims = in.GetDims()
		}
		// Triton looks for the file in the model's folder warmup/. The input's name may
		// be no file name.
		file := fmt.Sprintf("input-%d", i)
		files["warmup/"+file] = raw
		w.Inputs[in.GetName()] = &tritonpb.ModelWarmup_Input{
			DataType: in.GetDataType(), Dims: dims,
			InputDataType: &tritonpb.ModelWarmup_Input_InputDataFile{InputDataFile: file},
		}
	}
	c.ModelWarmup = append(c.ModelWarmup, w)
	return files, nil
}

func byName(list []tensor.Named, name string) (tensor.Tensor, bool) {
	for _, t := range list {
		if t.Name == name {
			return t.Tensor, true
		}
	}
	return tensor.Tensor{}, false
}

// firstRow returns the first element along the batch, without that dimension.
func firstRow(t tensor.Tensor) (tensor.Tensor, error) {
	if len(t.Shape) == 0 || t.Shape[0] < 1 {
		return t, fmt.Errorf("shape %v has no row", t.Shape)
	}
	row := tensor.Tensor{DType: t.DType, Shape: t.Shape[1:]}
	n := tensor.Elements(row.Shape)
	if t.DType == tensor.String {
		row.Strings = t.Strings[:n]
	} else {
		row.Data = t.Data[:n*int64(t.DType.Size())]
	}
	return row, nil
}
