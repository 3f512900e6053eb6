package triton

import (
	"context"
	"slices"

	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/internal/triton/kserve"
	"github.com/trtship/trtship/internal/triton/tritonpb"
)

// Served is one model of a server that takes and gives tensors in the model's
// own shapes, whatever its configuration reshapes them to on the wire.
type Served struct {
	kserve.Model
	Config *tritonpb.ModelConfig
}

// Infer runs one request.
func (s Served) Infer(ctx context.Context, inputs []tensor.Named) ([]tensor.Named, error) {
	out, err := s.Model.Infer(ctx, s.ToWire(inputs))
	if err != nil {
		return nil, err
	}
	return s.FromWire(out), nil
}

// ToWire gives inputs the shapes that the configuration declares.
func (s Served) ToWire(inputs []tensor.Named) []tensor.Named {
	out := slices.Clone(inputs)
	for i := range out {
		for _, c := range s.Config.GetInput() {
			if c.GetName() == out[i].Name && flattened(c.GetReshape()) {
				out[i].Shape = append(slices.Clone(out[i].Shape), 1)
			}
		}
	}
	return out
}

// FromWire gives outputs the model's own shapes.
func (s Served) FromWire(outputs []tensor.Named) []tensor.Named {
	out := slices.Clone(outputs)
	for i := range out {
		for _, c := range s.Config.GetOutput() {
			n := len(out[i].Shape)
			if c.GetName() == out[i].Name && flattened(c.GetReshape()) && n > 0 && out[i].Shape[n-1] == 1 {
				out[i].Shape = out[i].Shape[:n-1]
			}
		}
	}
	return out
}

// flattened reports whether a reshape is the one that packaging writes for
// tensors without a dimension besides the batch.
func flattened(r *tritonpb.ModelTensorReshape) bool { return r != nil && len(r.GetShape()) == 0 }
