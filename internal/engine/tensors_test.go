package engine_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/trtship/trtship/internal/engine"
)

func TestPlansOfOtherTensorsAreUnlike(t *testing.T) {
	x := engine.Tensor{Name: "x", IO: "input", DType: "float32", Dims: []int64{-1, 4}}
	y := engine.Tensor{Name: "y", IO: "output", DType: "float32", Dims: []int64{-1, 10}}
	with := func(t engine.Tensor, change func(*engine.Tensor)) engine.Tensor {
		change(&t)
		return t
	}
	for name, c := range map[string]struct {
		base, head []engine.Tensor
		want       []string
	}{
		"the same":              {[]engine.Tensor{x, y}, []engine.Tensor{x, y}, nil},
		"in another order":      {[]engine.Tensor{x, y}, []engine.Tensor{y, x}, nil},
		"a size fixed in one":   {[]engine.Tensor{x, y}, []engine.Tensor{with(x, func(t *engine.Tensor) { t.Dims = []int64{8, 4} }), y}, nil},
		"another size":          {[]engine.Tensor{x, y}, []engine.Tensor{with(x, func(t *engine.Tensor) { t.Dims = []int64{-1, 5} }), y}, []string{"input x is [-1 4] in a and [-1 5] in b"}},
		"another rank":          {[]engine.Tensor{x, y}, []engine.Tensor{x, with(y, func(t *engine.Tensor) { t.Dims = []int64{-1} })}, []string{"output y is [-1 10] in a and [-1] in b"}},
		"another type":          {[]engine.Tensor{x, y}, []engine.Tensor{with(x, func(t *engine.Tensor) { t.DType = "float16" }), y}, []string{"input x is float32 in a and float16 in b"}},
		"another name":          {[]engine.Tensor{x, y}, []engine.Tensor{with(x, func(t *engine.Tensor) { t.Name = "z" }), y}, []string{"input x is in a alone", "input z is in b alone"}},
		"an input, an output":   {[]engine.Tensor{x, y}, []engine.Tensor{with(x, func(t *engine.Tensor) { t.IO = "output" }), y}, []string{"input x is in a alone", "output x is in b alone"}},
		"one more of an output": {[]engine.Tensor{x, y}, []engine.Tensor{x, y, with(y, func(t *engine.Tensor) { t.Name = "z" })}, []string{"output z is in b alone"}},
	} {
		t.Run(name, func(t *testing.T) {
			base, head := &engine.Description{Tensors: c.base}, &engine.Description{Tensors: c.head}
			if diff := cmp.Diff(c.want, base.TensorsUnlike(head, "a", "b")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
