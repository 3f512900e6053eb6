package quantize

import (
	"context"
	"iter"
	"time"

	"github.com/trtship/trtship/internal/calibration"
	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/dataset"
	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/ort"
	"github.com/trtship/trtship/internal/precision"
	"github.com/trtship/trtship/internal/stage"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/internal/validation"
)

// referenceFeeds yields the feeds of a reference, one run each.
type referenceFeeds struct {
	ref    *validation.Reference
	inputs map[string]bool // of the graph
}

func (f referenceFeeds) count() int {
	n := 0
	for _, p := range f.ref.Points {
		n += len(p.Samples)
	}
	return n
}

// Batches yields the runs from one on.
func (f referenceFeeds) Batches(ctx context.Context, from int) iter.Seq2[dataset.Batch, error] {
	return func(yield func(dataset.Batch, error) bool) {
		at := 0
		for _, p := range f.ref.Points {
			for _, s := range p.Samples {
				if at++; at <= from {
					continue
				}
				if err := ctx.Err(); err != nil {
					yield(dataset.Batch{}, err)
					return
				}
				b := dataset.Batch{First: at - 1, Samples: 1}
				feed, err := f.ref.In(s)
				for _, t := range feed {
					if f.inputs[t.Name] {
						b.Tensors = append(b.Tensors, t)
					}
				}
				if !yield(b, err) || err != nil {
					return
				}
			}
		}
	}
}

var _ calibration.Feeds = referenceFeeds{}

// Observe runs a float graph over the feeds of the reference and returns the
// largest magnitude of every activation; +Inf where one was infinite.
func Observe(ctx context.Context, lib ort.Library, path string, m *onnx.Model, ref *validation.Reference, v config.Validation, out stage.Outputs) (map[string]float64, error) {
	var names, ends []string
	for _, a := range precision.Activations(m) {
		if a.DType == tensor.Float32 {
			names = append(names, a.Name)
		}
	}
	feeds := referenceFeeds{ref: ref, inputs: map[string]bool{}}
	for _, in := range m.Inputs() {
		ends, feeds.inputs[in.Name] = append(ends, in.Name), true
	}
	for _, o := range m.Outputs() {
		ends = append(ends, o.Name)
	}
	if len(names) == 0 || feeds.count() == 0 {
		return nil, nil
	}
	got, err := calibration.Collect(ctx, calibration.CollectOptions{
		Library: lib, Model: path, Tensors: names, Interface: ends, Feeds: feeds, Samples: feeds.count(), Threads: max(v.Threads, 1),
		Timeout: time.Duration(v.TimeoutS) * time.Second, Log: out.Log(),
		Progress: func(done, total int64, _ string) { out.Progress(done, total, "observe values") },
	})
	if err != nil {
		return nil, err
	}
	largest := make(map[string]float64, len(got.Observers))
	for name, o := range got.Observers {
		largest[name] = float64(o.AbsMax())
	}
	return largest, nil
}
