package dataset

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/tensor"
)

// synthetic draws samples from a seed: normal values for floating-point inputs
// without a range, uniform ones otherwise.
type synthetic struct {
	inputs []Input
	count  int
	seed   int64
}

func newSynthetic(c config.Calibration, inputs []Input) (*synthetic, error) {
	for _, in := range inputs {
		for _, d := range in.Shape[1:] {
			if d < 0 {
				return nil, refuse("input %s has the open shape %s: synthetic data need sizes", in.Name, describe(in.Shape)).
					WithHint("give tensorrt.profiles with an opt shape")
			}
		}
	}
	return &synthetic{inputs, c.NumSamples, c.Seed}, nil
}

func (s *synthetic) len() int { return s.count }

func (s *synthetic) shapes(int) ([][]int64, error) {
	out := make([][]int64, len(s.inputs))
	for k, in := range s.inputs {
		out[k] = in.Shape[1:]
	}
	return out, nil
}

func (s *synthetic) read(i int, dst [][]byte) error {
	for k, in := range s.inputs {
		r := rand.New(rand.NewPCG(uint64(s.seed), uint64(i)<<16|uint64(k))) //nolint:gosec // reproducible on purpose
		size := in.DType.Size()
		if size == 0 {
			return refuse("input %s of type %s cannot be drawn at random", in.Name, in.DType)
		}
		t := tensor.Tensor{DType: in.DType, Data: dst[k]}
		for e := range len(dst[k]) / size {
			t.SetFloat64(e, drawValue(r, in))
		}
	}
	return nil
}

func drawValue(r *rand.Rand, in Input) float64 {
	switch {
	case in.DType.Floating() && in.Range == nil:
		return r.NormFloat64()
	case in.DType.Floating():
		return in.Range[0] + r.Float64()*(in.Range[1]-in.Range[0])
	case in.Range == nil:
		return float64(r.IntN(2))
	}
	return math.Floor(in.Range[0] + r.Float64()*(in.Range[1]-in.Range[0]+1))
}

func (s *synthetic) place(i int) string { return fmt.Sprintf("synthetic sample %d", i) }

func (s *synthetic) digest(context.Context, func(done, total int64)) (string, error) {
	h := sha256.New()
	fmt.Fprintf(h, "synthetic %d %d", s.seed, s.count)
	for _, in := range s.inputs {
		fmt.Fprintf(h, " %q %s %v", in.Name, in.DType, in.Shape[1:])
		if in.Range != nil {
			fmt.Fprintf(h, " %v", *in.Range)
		}
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
}

func (s *synthetic) close() error { return nil }
