package benchmark

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/engine"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/gpu"
	"github.com/trtship/trtship/internal/measure"
	"github.com/trtship/trtship/internal/ort"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/report"
)

const tensorrt = "tensorrt"

// Child is a Python child that can be ended.
type Child interface {
	engine.Caller
	io.Closer
}

// GPUTools are what measuring engines needs from outside.
type GPUTools struct {
	// Start starts a Python child that sees the GPU.
	Start func(ctx context.Context, log io.Writer, progress func(done, total int64, label string)) (Child, error)
	// Versions of the tools that decide the numbers, by name.
	Versions func(ctx context.Context) (map[string]string, error)
	// Read asks NVML about the GPU that is measured; nil reads nothing.
	Read func() (gpu.Reading, error)
	// Rivals are the baseline's engines; nil without a baseline.
	Rivals Rivals
}

// OnGPU measures engines directly, without a server.
type OnGPU struct {
	cfg   *config.Config
	tools GPUTools
}

// NewOnGPU returns the measurement of a configuration.
func NewOnGPU(cfg *config.Config, tools GPUTools) *OnGPU { return &OnGPU{cfg: cfg, tools: tools} }

var _ Engines = (*OnGPU)(nil)

// Tools are TensorRT's version and the like.
func (g *OnGPU) Tools(ctx context.Context) (map[string]string, error) { return g.tools.Versions(ctx) }

// setting is one measurement of an engine.
type setting struct {
	batch, streams int
	graph          bool
}

func (s setting) mode() string {
	if s.graph {
		return "cuda-graph=on"
	}
	return "cuda-graph=off"
}

func (g *OnGPU) settings() []setting {
	var out []setting
	b := g.cfg.Benchmark
	for _, batch := range b.BatchSizes {
		for _, streams := range b.Concurrency {
			if b.CUDAGraph != "on" {
				out = append(out, setting{batch, streams, false})
			}
			if b.CUDAGraph != "off" {
				out = append(out, setting{batch, streams, true})
			}
		}
	}
	return out
}

// Measure measures every engine in every setting. Each engine has a child of its
// own, so that its memory and its cold call are its own.
func (g *OnGPU) Measure(ctx context.Context, engines []artifact.Artifact, out Workplace) ([]report.Measurement, []report.SkippedRow, error) {
	var rows []report.Measurement
	var skipped []report.SkippedRow
	for _, a := range engines {
		r, s, err := g.one(ctx, a, out)
		rows, skipped = append(rows, r...), append(skipped, s...)
		if err != nil {
			return rows, skipped, err
		}
	}
	return rows, skipped, nil
}

func (g *OnGPU) one(ctx context.Context, a artifact.Artifact, out Workplace) (rows []report.Measurement, skipped []report.SkippedRow, err error) {
	d, err := engine.DescriptionOf(a)
	if err != nil {
		return nil, nil, err
	}
	settings, rival := g.settings(), g.tools.Rivals.of(ctx, a)
	for i, s := range settings {
		row := fmt.Sprintf("%s %s batch %d concurrency %d %s", tensorrt, a.Label, s.batch, s.streams, s.mode())
		out.Progress(int64(i), int64(len(settings)), row)
		m, err := g.row(ctx, a, d, s, out)
		if err == nil {
			err = rival.inTurns(ctx, &m, report.BlockCompute, func() (base, head []float64, err error) {
				return g.enginesInTurns(ctx, rival, a, d, s, out)
			})
		}
		switch {
		case err == nil:
			rows = append(rows, m)
		case ctx.Err() != nil || failure.CodeOf(err) == failure.Missing || failure.CodeOf(err) == failure.Usage:
			return rows, skipped, err
		default:
			skipped = append(skipped, broken(row, err))
		}
	}
	return rows, skipped, nil
}

// row measures one setting in a fresh child. Shapes that no profile takes are
// refused before one is started.
func (g *OnGPU) row(ctx context.Context, a artifact.Artifact, d *engine.Description, s setting, out Workplace) (report.Measurement, error) {
	feed, err := EngineFeed(g.cfg, d, s.batch)
	if err != nil {
		return report.Measurement{}, err
	}
	scratch, err := out.Scratch("benchmark-" + a.Label)
	if err != nil {
		return report.Measurement{}, err
	}
	child, err := g.tools.Start(ctx, out.Log(), nil)
	if err != nil {
		return report.Measurement{}, err
	}
	defer child.Close()
	session, err := engine.Open(child, filepath.Join(a.Dir, engine.PlanFile), d, scratch)
	if err != nil {
		return report.Measurement{}, err
	}
	before, beforeErr := g.read()
	b := g.cfg.Benchmark
	t, err := session.Benchmark(engine.Load{
		Inputs: feed, Streams: s.streams, CUDAGraph: s.graph, WarmupIters: b.WarmupIters, Iters: b.Iters, Loads: b.Loads, MaxSeconds: b.MaxSeconds,
	})
	if err != nil {
		return report.Measurement{}, err
	}
	after, afterErr := g.read()
	m, err := measurement(d, s, t)
	if err != nil {
		return m, err
	}
	if beforeErr == nil && afterErr == nil {
		m.Clocks = gpu.Clocks(before, after)
		if len(after.Throttle) > 0 {
			m.Notes = append(m.Notes, "the GPU was throttled: "+strings.Join(after.Throttle, ", "))
		}
	}
	return m, nil
}

func (g *OnGPU) read() (gpu.Reading, error) {
	if g.tools.Read == nil {
		return gpu.Reading{}, failure.New(failure.Missing, "nobody reads the GPU")
	}
	return g.tools.Read()
}

// EngineFeed makes a feed for an engine from its own tensors; batch 0 is the
// profile's opt. A feed that no profile of the engine takes is refused.
func EngineFeed(cfg *config.Config, d *engine.Description, batch int) ([]tensor.Named, error) {
	if batch == 0 {
		batch = 1
		if _, opt, _, ok := cfg.BatchRange(0); ok {
			batch = int(opt)
		}
	}
	var found []ort.ValueInfo
	for _, t := range d.Inputs() {
		found = append(found, ort.ValueInfo{Name: t.Name, DType: tensor.DType(t.DType), Dims: t.Dims})
	}
	feed, _, err := feedOf(cfg, found, nil, int64(batch)) // a plan holds no tables that ranges could come from
	if err != nil {
		return nil, err
	}
	shapes := map[string][]int64{}
	for _, t := range feed {
		shapes[t.Name] = t.Shape
	}
	if _, err := d.ProfileFor(shapes); err != nil {
		return nil, failure.New(failure.Usage, "%s engine, batch %d: %w", d.Precision, batch, err).
			WithHint("stay within the engine's profiles, or build it again with a profile for this size below tensorrt.profiles")
	}
	return feed, nil
}

// measurement turns an engine's timing into a row.
func measurement(d *engine.Description, s setting, t engine.Timing) (report.Measurement, error) {
	cold, load, memory := report.Number(t.ColdMs), report.Number(t.LoadMs), t.GPUMemory
	size, seconds := d.PlanBytes, report.Number(d.BuildSeconds)
	all := t.Phases[measure.EndToEnd]
	m := report.Measurement{
		Backend: tensorrt, Device: d.GPU, Precision: d.Precision, Batch: s.batch, Concurrency: s.streams,
		Mode: s.mode() + " typing=" + d.Typing, Requests: len(all), Warmup: t.Warmup.Requests, ColdMs: &cold, LoadMs: &load,
		Throughput: report.Number(float64(len(all)*s.batch) / t.WallSeconds), Phases: map[string]report.Stats{},
		GPUMemory: &memory, EngineBytes: &size, BuildSec: &seconds,
	}
	for name, values := range t.Phases {
		stats, err := measure.Summarize(values)
		if err != nil {
			return m, fmt.Errorf("phase %s: %w", name, err)
		}
		m.Phases[name] = stats
	}
	for _, v := range all {
		m.Samples = append(m.Samples, report.Number(v))
	}
	for _, l := range t.Loads {
		m.ComputeByLoad = append(m.ComputeByLoad, report.Number(l.ComputeMs))
	}
	m.Notes = append(measure.Notes(inTurns(all, t.Loads)), bounds(m.Phases)...)
	m.Notes = append(m.Notes, placement(t.Loads)...)
	if !t.Warmup.Steady {
		m.Notes = append(m.Notes, "the warm-up did not settle")
	}
	return m, nil
}

// inTurns takes the first sample of every loading, then the second of every one:
// what drifts while an engine stays where it is drifts here too, and a step from
// one loading to the next is none.
func inTurns(samples []float64, loads []engine.Loading) []float64 {
	var parts [][]float64
	for _, l := range loads {
		if l.Requests > len(samples) {
			break
		}
		parts, samples = append(parts, samples[:l.Requests]), samples[l.Requests:]
	}
	out := make([]float64, 0, len(samples))
	for i := 0; len(parts) > 0; i++ {
		parts = slices.DeleteFunc(parts, func(p []float64) bool { return i >= len(p) })
		for _, p := range parts {
			out = append(out, p[i])
		}
	}
	return append(out, samples...)
}

// placed is the ratio of compute medians from which where the engine lies is worth a word.
const placed = 1.02

// placement says when the engine's speed depends on where it lies in memory.
func placement(loads []engine.Loading) []string {
	if len(loads) < 2 {
		return nil
	}
	low, high := loads[0].ComputeMs, loads[0].ComputeMs
	for _, l := range loads[1:] {
		low, high = min(low, l.ComputeMs), max(high, l.ComputeMs)
	}
	if high < placed*low {
		return nil
	}
	return []string{fmt.Sprintf("compute depends on where the engine lies in memory: the medians of %d loadings lie from %.4g to %.4g ms", len(loads), low, high)}
}

// bounds says what holds a request up when it is not the engine's computing.
func bounds(phases map[string]report.Stats) []string {
	var notes []string
	compute := phases["compute"].P50
	if phases["enqueue"].P50 > 0.8*compute {
		notes = append(notes, "host-bound: enqueueing takes most of the compute time")
	}
	if slices.Max([]report.Number{phases["h2d"].P50, phases["d2h"].P50}) >= compute {
		notes = append(notes, "transfer-bound: a copy takes as long as the computing")
	}
	return notes
}
