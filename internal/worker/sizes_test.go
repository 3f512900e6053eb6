package worker_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/worker"
)

func sym(s string) config.Dim  { return config.Dim{Symbol: s} }
func size(n int64) config.Dim  { return config.Dim{Size: n} }
func shape(n ...int64) []int64 { return n }

func settings(dims []config.Dim, ranges ...config.ShapeRange) *config.Config {
	cfg := &config.Config{}
	cfg.Model.Inputs = []config.Input{{Name: "x", Shape: dims}}
	for _, r := range ranges {
		cfg.TensorRT.Profiles = append(cfg.TensorRT.Profiles, config.Profile{Inputs: map[string]config.ShapeRange{"x": r}})
	}
	return cfg
}

func TestTracesAvoidTheSizesThatAreValidated(t *testing.T) {
	batch := []config.Dim{sym("batch"), size(3)}
	for name, c := range map[string]struct {
		cfg  *config.Config
		want []worker.Sizes
	}{
		"no symbol": {settings([]config.Dim{size(1), size(3)}), []worker.Sizes{{}}},
		"not 1, 2, min, opt, max, nor a fixed size": {
			settings(batch, config.ShapeRange{Min: shape(1, 3), Opt: shape(4, 3), Max: shape(8, 3)}),
			[]worker.Sizes{{"batch": 5}, {"batch": 6}, {"batch": 4}, {"batch": 8}, {"batch": 1}},
		},
		"2 where nothing else is left": {
			settings(batch, config.ShapeRange{Min: shape(1, 3), Opt: shape(3, 3), Max: shape(4, 3)}),
			[]worker.Sizes{{"batch": 2}, {"batch": 3}, {"batch": 4}, {"batch": 1}},
		},
		"two symbols differ, and multiples of the profile's step come first": {
			settings([]config.Dim{sym("batch"), sym("seq")}, config.ShapeRange{Min: shape(1, 8), Opt: shape(4, 32), Max: shape(8, 128)}),
			[]worker.Sizes{{"batch": 3, "seq": 16}, {"batch": 5, "seq": 24}, {"batch": 3, "seq": 9}, {"batch": 5, "seq": 10}, {"batch": 4, "seq": 32}, {"batch": 8, "seq": 128}, {"batch": 1, "seq": 8}},
		},
		"a range of one size": {
			settings(batch, config.ShapeRange{Min: shape(8, 3), Opt: shape(8, 3), Max: shape(8, 3)}),
			[]worker.Sizes{{"batch": 8}},
		},
		"several profiles": {
			settings(batch, config.ShapeRange{Min: shape(1, 3), Opt: shape(1, 3), Max: shape(1, 3)}, config.ShapeRange{Min: shape(4, 3), Opt: shape(5, 3), Max: shape(7, 3)}),
			[]worker.Sizes{{"batch": 6}, {"batch": 2}, {"batch": 1}, {"batch": 7}},
		},
		"no profile": {settings(batch), []worker.Sizes{{"batch": 4}, {"batch": 5}, {"batch": 3}, {"batch": 16}, {"batch": 2}}},
	} {
		t.Run(name, func(t *testing.T) {
			if d := cmp.Diff(c.want, worker.TraceSizes(c.cfg)); d != "" {
				t.Errorf("sizes (-want +got):\n%s", d)
			}
		})
	}
}
