// Package measure times requests and says what the times are worth: a cold call,
// a warm-up that ends when the times have settled, then a fixed number of
// requests by every worker. It knows nothing of what a request is, so that ONNX
// Runtime, engines and servers are measured by one method.
//
// The samples of all workers are pooled before anything is computed from them;
// percentiles are never averaged.
package measure

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Request makes one request and returns the milliseconds of each phase, in the
// order of Loop.Phases. The loop measures the whole request itself.
type Request func(ctx context.Context) ([]float64, error)

// Loop is a measurement to be made.
type Loop struct {
	Phases  []string      // names of what a Request returns
	Workers int           // requests at a time
	Warmup  int           // requests before timing, of each worker, at least
	Iters   int           // timed requests of each worker
	MaxTime time.Duration // of warm-up and timing each; 0 is no limit
	// Start makes the request of one worker; it is called once a worker, before
	// the cold call.
	Start func(worker int) (Request, error)
	// Progress hears how many requests are done, of the timed ones; may be nil.
	Progress func(done, total int)
}

// Sample is one request.
type Sample struct {
	Worker int       `json:"w"`
	End    float64   `json:"end"` // ms since the first timed request began
	Total  float64   `json:"ms"`  // end to end
	Phases []float64 `json:"phases"`
}

// Result is what a loop found. It travels as JSON.
type Result struct {
	Phases  []string `json:"phases"`
	Workers int      `json:"workers"`
	ColdMs  float64  `json:"cold_ms"`
	Warmup  int      `json:"warmup"`  // requests made before timing, the cold one too
	Settled bool     `json:"settled"` // three windows of the warm-up agreed
	Samples []Sample `json:"samples"` // in the order in which they ended
	WallMs  float64  `json:"wall_ms"` // of all timed requests together
	Errors  int      `json:"errors"`  // timed requests that failed
	Error   string   `json:"error,omitempty"`
	Cut     bool     `json:"cut,omitempty"` // MaxTime ended it early
}

const (
	// agree is how far the medians of three windows may lie apart.
	agree = 0.05
	// maxWindows ends a warm-up that does not settle.
	maxWindows = 60
	// maxErrors ends a measurement in which nothing works.
	maxErrors = 20
)

// Run measures. An error means that nothing was measured: a worker that could
// not start, a cold call that failed, or the end of ctx.
func (l Loop) Run(ctx context.Context) (Result, error) {
	r := Result{Phases: l.Phases, Workers: max(l.Workers, 1)}
	requests := make([]Request, r.Workers)
	for i := range requests {
		var err error
		if requests[i], err = l.Start(i); err != nil {
			return r, fmt.Errorf("start worker %d: %w", i, err)
		}
	}
	start := time.Now()
	if _, err := requests[0](ctx); err != nil {
		return r, fmt.Errorf("first request: %w", err)
	}
	r.ColdMs, r.Warmup = since(start), 1
	if err := l.warmUp(ctx, requests, &r); err != nil {
		return r, err
	}
	l.measure(ctx, requests, &r)
	return r, ctx.Err()
}

// warmUp runs windows of requests until the medians of the last three agree.
func (l Loop) warmUp(ctx context.Context, requests []Request, r *Result) error {
	size := max((l.Warmup+2)/3, 5)
	var medians []float64
	start := time.Now()
	for range maxWindows {
		samples, errs := l.round(ctx, requests, size, time.Time{}, nil)
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		if len(samples) == 0 {
			return fmt.Errorf("warm-up: every request failed: %w", errs.first)
		}
		r.Warmup += len(samples) + errs.count
		medians = append(medians, Median(totals(samples)))
		if n := len(medians); n >= 3 && (n-1)*size >= l.Warmup-size {
			last := medians[n-3:]
			if slices.Max(last)-slices.Min(last) <= agree*slices.Min(last) {
				r.Settled = true
				return nil
			}
		}
		if l.MaxTime > 0 && time.Since(start) > l.MaxTime {
			return nil
		}
	}
	return nil
}

func (l Loop) measure(ctx context.Context, requests []Request, r *Result) {
	var deadline time.Time
	start := time.Now()
	if l.MaxTime > 0 {
		deadline = start.Add(l.MaxTime)
	}
	samples, errs := l.round(ctx, requests, max(l.Iters, 1), deadline, l.Progress)
	r.WallMs = since(start)
	slices.SortStableFunc(samples, func(a, b Sample) int {
		if a.End < b.End {
			return -1
		} else if a.End > b.End {
			return 1
		}
		return a.Worker - b.Worker
	})
	r.Samples, r.Errors = samples, errs.count
	if errs.first != nil {
		r.Error = errs.first.Error()
	}
	r.Cut = len(samples)+errs.count < len(requests)*max(l.Iters, 1) && errs.count < maxErrors
}

type failures struct {
	count int
	first error
}

// round lets every worker make n requests and pools the samples.
func (l Loop) round(ctx context.Context, requests []Request, n int, deadline time.Time, progress func(done, total int)) ([]Sample, failures) {
	var (
		mu   sync.Mutex
		errs failures
		wg   sync.WaitGroup
		own  = make([][]Sample, len(requests))
		done int
	)
	start := time.Now()
	for w, request := range requests {
		own[w] = make([]Sample, 0, min(n, 1<<14)) // n may be as good as endless
		wg.Go(func() {
			for range n {
				if ctx.Err() != nil || (!deadline.IsZero() && time.Now().After(deadline)) {
					return
				}
				at := time.Now()
				phases, err := request(ctx)
				total := since(at)
				if err == nil {
					own[w] = append(own[w], Sample{Worker: w, End: since(start), Total: total, Phases: phases})
				}
				if err == nil && progress == nil {
					continue
				}
				mu.Lock()
				if done++; progress != nil {
					progress(done, n*len(requests))
				}
				if err != nil {
					if errs.count++; errs.first == nil {
						errs.first = err
					}
				}
				stop := errs.count >= maxErrors
				mu.Unlock()
				if stop {
					return
				}
			}
		})
	}
	wg.Wait()
	return slices.Concat(own...), errs
}

func totals(samples []Sample) []float64 {
	v := make([]float64, len(samples))
	for i, s := range samples {
		v[i] = s.Total
	}
	return v
}

func since(start time.Time) float64 { return float64(time.Since(start)) / float64(time.Millisecond) }
