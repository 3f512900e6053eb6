package calibration

import (
	"context"
	"io"
	"iter"
	"time"

	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/dataset"
	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/ort"
	"github.com/trtship/trtship/internal/precision"
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

var _ Feeds = referenceFeeds{}

// ObserveOptions says which graph is observed over which reference.
type ObserveOptions struct {
	Library    ort.Library
	Path       string // of the float graph
	Model      *onnx.Model
	Reference  *validation.Reference
	Validation config.Validation
	Log        io.Writer
	Progress   func(done, total int64, label string) // may be nil
}

// Observe runs a float graph over the feeds of a reference and returns the
// largest finite magnitude of every activation.
func Observe(ctx context.Context, o ObserveOptions) (map[string]float64, error) {
	var names, ends []string
	for _, a := range precision.Activations(o.Model) {
		if a.DType == tensor.Float32 {
			names = append(names, a.Name)
		}
	}
	feeds := referenceFeeds{ref: o.Reference, inputs: map[string]bool{}}
	for _, in := range o.Model.Inputs() {
		ends, feeds.inputs[in.Name] = append(ends, in.Name), true
	}
	for _, out := range o.Model.Outputs() {
		ends = append(ends, out.Name)
	}
	if len(names) == 0 || feeds.count() == 0 {
		return nil, nil
	}
	progress := func(done, total int64, _ string) {
		if o.Progress != nil {
			o.Progress(done, total, "observe values")
		}
	}
	got, err := Collect(ctx, CollectOptions{
		Library: o.Library, Model: o.Path, Tensors: names, Interface: ends, Feeds: feeds, Samples: feeds.count(), Threads: max(o.Validation.Threads, 1),
		Timeout: time.Duration(o.Validation.TimeoutS) * time.Second, LimitMB: o.Validation.MemoryMB, Log: o.Log, Progress: progress, RangeOnly: true,
	})
	if err != nil {
		return nil, err
	}
	largest := make(map[string]float64, len(got.Observers))
	for name, v := range got.Observers {
		largest[name] = float64(v.AbsMax())
	}
	return largest, nil
}
