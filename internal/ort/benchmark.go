package ort

import (
	"context"
	"fmt"
	"time"

	"github.com/trtship/trtship/internal/measure"
	"github.com/trtship/trtship/internal/tensor"
)

// The phases of a measured request: making ONNX Runtime's input values from a
// copy of the feed, the run itself, and copying the outputs out.
var benchmarkPhases = []string{"preprocess", "execute", "postprocess"}

// BenchmarkRequest is a measurement that is made inside the child, so that the
// pipe to it is no part of the numbers.
type BenchmarkRequest struct {
	Workers   int     `json:"workers"` // requests at a time, all on the one session
	Warmup    int     `json:"warmup"`
	Iters     int     `json:"iters"` // of each worker
	MaxTimeMs float64 `json:"max_time_ms,omitempty"`
}

// BenchmarkResult is what was measured.
type BenchmarkResult struct {
	measure.Result
	PeakRSS int64 `json:"peak_rss_bytes"` // of the child, since it started
}

// Benchmark measures requests with one feed. Nothing else may use the session
// meanwhile.
func (s *Session) Benchmark(ctx context.Context, feed []tensor.Named, q BenchmarkRequest) (BenchmarkResult, error) {
	if err := s.checkFeed(feed); err != nil {
		return BenchmarkResult{}, err
	}
	a, err := s.do(ctx, request{Op: opBenchmark, Benchmark: &q}, describeFeed(feed), feed...)
	if err != nil {
		return BenchmarkResult{}, err
	}
	if a.Benchmark == nil {
		return BenchmarkResult{}, fmt.Errorf("benchmark %s: the child gave no result", s.name())
	}
	return *a.Benchmark, nil
}

func (s *server) benchmark(feed []tensor.Named, q BenchmarkRequest) (*BenchmarkResult, error) {
	loop := measure.Loop{
		Phases: benchmarkPhases, Workers: q.Workers, Warmup: q.Warmup, Iters: q.Iters,
		MaxTime: time.Duration(q.MaxTimeMs * float64(time.Millisecond)),
		Start: func(int) (measure.Request, error) {
			return newBenchWorker(s, feed).request, nil
		},
	}
	result, err := loop.Run(context.Background())
	if err != nil {
		return nil, err
	}
	r := &BenchmarkResult{Result: result}
	if r.PeakRSS, err = statusBytes("VmHWM"); err != nil {
		return nil, err
	}
	return r, nil
}

// benchWorker has the buffers of one worker.
type benchWorker struct {
	server *server
	feed   []tensor.Named // as a caller has it
	inputs []tensor.Named // what ONNX Runtime reads
	out    []tensor.Named // what a caller gets
}

func newBenchWorker(s *server, feed []tensor.Named) *benchWorker {
	w := &benchWorker{server: s, feed: feed, out: make([]tensor.Named, len(s.session.outputs))}
	for _, f := range feed {
		w.inputs = append(w.inputs, tensor.Named{Name: f.Name, Tensor: f.Clone()})
	}
	return w
}

func (w *benchWorker) request(context.Context) ([]float64, error) {
	session := w.server.session
	start := time.Now()
	for i, f := range w.feed {
		copy(w.inputs[i].Data, f.Data)
	}
	names, inputs, err := w.server.values(w.inputs)
	defer func() { session.free(inputs) }()
	if err != nil {
		return nil, err
	}
	ready := time.Now()
	outputs, err := session.run(names, inputs)
	if err != nil {
		return nil, err
	}
	defer session.free(outputs)
	ran := time.Now()
	for i, v := range outputs {
		t, err := session.view(v)
		if err != nil {
			return nil, err
		}
		w.out[i].DType, w.out[i].Shape, w.out[i].Strings = t.DType, t.Shape, t.Strings
		w.out[i].Data = append(w.out[i].Data[:0], t.Data...)
	}
	return []float64{milliseconds(ready.Sub(start)), milliseconds(ran.Sub(ready)), milliseconds(time.Since(ran))}, nil
}
