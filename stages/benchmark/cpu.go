package benchmark

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/ort"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/internal/validation"
	"github.com/trtship/trtship/report"
)

const (
	cpu     = "cpu"
	backend = "onnxruntime"
)

// Graph is an ONNX file to be measured.
type Graph struct {
	Path      string
	Precision string
	Rival     *Rival // what the baseline had in its place; nil without a baseline
}

// ONNX measures a graph in ONNX Runtime on the CPU, for every pair of batch
// size and concurrency of the configuration. Every pair has a process of its
// own, so that its cold call is cold and its peak memory its own. Rows that
// could not be measured are skipped rows; an error means that nothing could be
// found out.
func ONNX(ctx context.Context, cfg *config.Config, lib ort.Library, g Graph, out Output) ([]report.Measurement, []report.SkippedRow, error) {
	m, err := onnx.Open(g.Path)
	if err != nil {
		return nil, nil, err
	}
	found, ranges := inputs(m), validation.IntegerRanges(m)
	if err := m.Close(); err != nil {
		return nil, nil, err
	}
	var rows []report.Measurement
	var skipped []report.SkippedRow
	total := int64(len(cfg.Benchmark.BatchSizes) * len(cfg.Benchmark.Concurrency))
	done := int64(0)
	seen := map[int64]bool{}
	for _, asked := range cfg.Benchmark.BatchSizes {
		feed, batch, err := feedOf(cfg, found, ranges, int64(asked))
		if err != nil {
			return nil, nil, err
		}
		for _, workers := range cfg.Benchmark.Concurrency {
			row := fmt.Sprintf("%s %s batch %d concurrency %d", backend, g.Precision, asked, workers)
			if out.Progress != nil {
				out.Progress(done, total, row)
			}
			done++
			if batch != int64(asked) && seen[batch] {
				skipped = append(skipped, report.SkippedRow{
					Name: row, Verdict: report.Skip,
					Reason: fmt.Sprintf("the batch of the model is fixed at %d, which is measured", batch),
				})
				continue
			}
			r, err := measureRow(ctx, cfg, lib, g, feed, int(batch), workers, out)
			if err != nil {
				if ctx.Err() != nil || ort.BadFeed(err) || failure.CodeOf(err) == failure.Missing {
					return nil, nil, err
				}
				skipped = append(skipped, broken(row, err))
				continue
			}
			if err := g.Rival.inTurns(ctx, &r, report.BlockLatency, func() (base, head []float64, err error) {
				return graphsInTurns(ctx, cfg, lib, [2]string{filepath.Join(g.Rival.Dir, modelFile), g.Path}, feed, blockOf(r), out)
			}); err != nil {
				return nil, nil, err
			}
			if batch != int64(asked) {
				r.Notes = append(r.Notes, fmt.Sprintf("the batch of the model is fixed at %d; batch_sizes asks for %d", batch, asked))
			}
			rows = append(rows, r)
		}
		seen[batch] = true
	}
	return rows, skipped, nil
}

func inputs(m *onnx.Model) []ort.ValueInfo {
	var out []ort.ValueInfo
	for _, v := range m.Inputs() {
		x := ort.ValueInfo{Name: v.Name, DType: v.DType, Dims: []int64{}}
		for _, d := range v.Dims {
			if d.Fixed() {
				x.Dims = append(x.Dims, d.Size)
			} else {
				x.Dims = append(x.Dims, -1)
			}
		}
		out = append(out, x)
	}
	return out
}

// feedOf makes the feed of one batch size: the profile's opt with the batch
// replaced. batch is the size that the feed really has.
func feedOf(cfg *config.Config, found []ort.ValueInfo, ranges []report.IntegerRange, asked int64) (feed []tensor.Named, batch int64, err error) {
	plan, err := validation.PlanOf(cfg, found, ranges)
	if err != nil {
		return nil, 0, err
	}
	shapes := cfg.ShapesAt(0, asked)
	batch = asked
	dynamic := false
	for _, in := range plan.Inputs {
		dynamic = dynamic || in.Batch
	}
	for _, f := range found {
		var in *validation.Input
		for i := range plan.Inputs {
			if plan.Inputs[i].Name == f.Name {
				in = &plan.Inputs[i]
			}
		}
		if in == nil {
			return nil, 0, failure.New(failure.Usage, "measure: the graph's input %q is not declared in model.inputs", f.Name)
		}
		shape, ok := shapes[f.Name]
		if !ok && len(plan.Points) > 0 {
			shape = plan.Points[0].Shapes[f.Name]
		}
		if !dynamic && len(feed) == 0 && len(shape) > 0 {
			batch = shape[0]
		}
		t, err := tensor.Generate(in.DType, shape, in.Range, strconv.FormatInt(cfg.Benchmark.Seed, 10), f.Name, "benchmark")
		if err != nil {
			return nil, 0, failure.New(failure.Usage, "measure: input %q: %w", f.Name, err)
		}
		feed = append(feed, tensor.Named{Name: f.Name, Tensor: t})
	}
	return feed, batch, nil
}

// measureRow measures one pair in a fresh process.
func measureRow(ctx context.Context, cfg *config.Config, lib ort.Library, g Graph, feed []tensor.Named, batch, workers int, out Output) (report.Measurement, error) {
	ctx, cancel := limited(ctx, cfg)
	defer cancel()
	session, err := openGraph(ctx, cfg, lib, g.Path, out)
	if err != nil {
		return report.Measurement{}, err
	}
	defer session.Close()
	result, err := session.Benchmark(ctx, feed, ort.BenchmarkRequest{
		Workers: workers, Warmup: cfg.Benchmark.WarmupIters, Iters: cfg.Benchmark.Iters,
		MaxTimeMs: float64(cfg.Benchmark.MaxSeconds) * 1000 / 2,
	})
	if err != nil {
		return report.Measurement{}, err
	}
	m, err := result.Measurement(batch)
	if err != nil {
		return report.Measurement{}, err
	}
	load := report.Number(session.LoadMs())
	m.Backend, m.Device, m.Precision = backend, cpu, g.Precision
	_, threads := threadsOf(cfg)
	m.Mode = "graph-optimisation=all threads=" + threads
	m.LoadMs, m.PeakRSS = &load, result.PeakRSS
	return m, nil
}

// limited ends a runtime that hangs; warm-up and timing stop by themselves.
func limited(ctx context.Context, cfg *config.Config) (context.Context, context.CancelFunc) {
	limit := time.Duration(cfg.Benchmark.MaxSeconds) * time.Second
	return context.WithTimeoutCause(ctx, 2*limit+time.Minute, fmt.Errorf("no end within twice benchmark.max_seconds (%s)", limit))
}

// openGraph loads a graph as it is measured.
func openGraph(ctx context.Context, cfg *config.Config, lib ort.Library, path string, out Output) (*ort.Session, error) {
	threads, _ := threadsOf(cfg)
	return ort.Open(ctx, lib, path, ort.Options{
		Threads: threads, GraphOptimization: ort.OptimizeAll, MemoryMB: cfg.Validation.MemoryMB, Log: out.Log,
	})
}

// threadsOf is how many threads ONNX Runtime gets, and how a row's mode says it.
func threadsOf(cfg *config.Config) (int, string) {
	if n := cfg.Benchmark.Threads; n > 0 {
		return n, strconv.Itoa(n)
	}
	return ort.DefaultThreads, "default"
}
