package benchmark

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/engine"
	"github.com/trtship/trtship/internal/measure"
	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/ort"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/report"
)

// Blocks of engines that run in turns, unless somebody asks for others.
const (
	TurnRounds = 40 // each engine runs a block in each
	TurnBlock  = 20 // requests of a block
)

// Blocks in ONNX Runtime: long enough for a median to be worth something on a
// processor that others use too, and of a few requests at least.
const (
	cpuRounds     = 30
	cpuBlockMs    = 20
	cpuBlockLeast = 3
	cpuBlockMost  = 500
)

// Rivals finds what the baseline had in the place of an artifact of this run,
// which may be that artifact itself, and the baseline's run. It is nil without a
// baseline, and an error says why the baseline's cannot be had.
type Rivals func(ctx context.Context, a artifact.Artifact) (found *artifact.Artifact, run string, err error)

// Rival is what the baseline had in the place of an engine or a graph.
type Rival struct {
	artifact.Artifact
	run  string // of the baseline
	mine artifact.Digest
	why  string // it cannot be had
}

// of finds the rival of an artifact; nil where nobody asks for one.
func (r Rivals) of(ctx context.Context, a artifact.Artifact) *Rival {
	if r == nil {
		return nil
	}
	found, run, err := r(ctx, a)
	switch {
	case err != nil:
		return &Rival{why: err.Error()}
	case found == nil:
		return nil
	}
	return &Rival{Artifact: *found, run: run, mine: a.Digest}
}

// inTurns adds to a row what the rival says about it. run measures both in turns:
// the medians of the blocks of the baseline's and of ours. What keeps it from that
// is a note; only the end of everything is an error.
func (r *Rival) inTurns(ctx context.Context, m *report.Measurement, metric string, run func() (base, head []float64, err error)) error {
	switch {
	case r == nil:
		return nil
	case r.why != "":
		m.Notes = append(m.Notes, apart+r.why)
		return nil
	}
	il := &report.Interleaved{Run: r.run, Baseline: r.ID(), BaseDigest: string(r.Digest), HeadDigest: string(r.mine), Metric: metric, Base: []report.Number{}, Head: []report.Number{}}
	if il.Identical() {
		m.Interleaved = il
		m.Notes = append(m.Notes, "it is "+il.Rival()+", byte for byte")
		return nil
	}
	if m.Concurrency != 1 {
		m.Notes = append(m.Notes, apart+"that is done with one request at a time")
		return nil
	}
	base, head, err := run()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		why, _, _ := strings.Cut(err.Error(), "\n")
		m.Notes = append(m.Notes, apart+why)
		return nil
	}
	il.Base, il.Head = numbers(base), numbers(head)
	m.Interleaved = il
	b, h := measure.Median(base), measure.Median(head)
	m.Notes = append(m.Notes, fmt.Sprintf("in turns with %s: %s %.4g ms, the baseline's %.4g ms (%+.1f %%)", il.Rival(), metric, h, b, 100*(h/b-1)))
	return nil
}

// apart begins the note of a row that is compared with what another run measured.
const apart = "not measured in turns with the baseline's: "

func numbers(all []float64) []report.Number {
	out := make([]report.Number, len(all))
	for i, x := range all {
		out[i] = report.Number(x)
	}
	return out
}

// enginesInTurns runs a row's engine and its rival in one fresh child.
func (g *OnGPU) enginesInTurns(ctx context.Context, rival *Rival, a artifact.Artifact, d *engine.Description, s setting, out Workplace) (base, head []float64, err error) {
	theirs, err := engine.DescriptionOf(rival.Artifact)
	if err != nil {
		return nil, nil, err
	}
	if err := match(theirs, d); err != nil {
		return nil, nil, err
	}
	plans := [2]Plan{
		{rival.ID(), filepath.Join(rival.Dir, engine.PlanFile), theirs},
		{a.ID(), filepath.Join(a.Dir, engine.PlanFile), d},
	}
	feeds, err := Feeds(g.cfg, plans, s.batch)
	if err != nil {
		return nil, nil, err
	}
	scratch, err := out.Scratch("benchmark-turns-" + a.Label)
	if err != nil {
		return nil, nil, err
	}
	child, err := g.tools.Start(ctx, out.Log(), nil)
	if err != nil {
		return nil, nil, err
	}
	defer child.Close()
	return InTurns(child, scratch, plans, feeds, engine.Alternation{
		Rounds: TurnRounds, Block: TurnBlock, Loads: g.cfg.Benchmark.Loads, CUDAGraph: s.graph, WarmupIters: g.cfg.Benchmark.WarmupIters,
	})
}

// Plan is an engine by the name that errors have for it.
type Plan struct {
	Name, Path  string
	Description *engine.Description
}

// Feeds makes a feed for each of two engines; batch 0 is the profile's opt.
func Feeds(cfg *config.Config, plans [2]Plan, batch int) (feeds [2][]tensor.Named, err error) {
	for i, p := range plans {
		if feeds[i], err = EngineFeed(cfg, p.Description, batch); err != nil {
			return feeds, fmt.Errorf("%s: %w", p.Name, err)
		}
	}
	return feeds, nil
}

// InTurns loads two engines into one child and runs them in turns: the medians of
// the blocks of each, in milliseconds.
func InTurns(child engine.Caller, scratch string, plans [2]Plan, feeds [2][]tensor.Named, o engine.Alternation) (base, head []float64, err error) {
	var sessions [2]*engine.Session
	for i, p := range plans {
		if sessions[i], err = engine.Open(child, p.Path, p.Description, scratch); err != nil {
			return nil, nil, fmt.Errorf("load %s: %w", p.Name, err)
		}
	}
	return engine.Alternate(sessions[0], sessions[1], feeds[0], feeds[1], o)
}

// match refuses a baseline's engine that could not take the place of ours here.
func match(theirs, ours *engine.Description) error {
	if theirs.Typing != ours.Typing {
		return fmt.Errorf("its typing is %s, ours %s", theirs.Typing, ours.Typing)
	}
	if unlike := theirs.TensorsUnlike(ours, "the baseline's", "ours"); len(unlike) > 0 {
		return fmt.Errorf("they have other tensors: %s", unlike[0])
	}
	return theirs.LoadsOn(engine.Machine{TensorRT: ours.TensorRT, GPU: ours.GPU, ComputeCapability: ours.ComputeCapability})
}

// blockOf is how many requests a block has, where one takes so many milliseconds.
func blockOf(m report.Measurement) int {
	l, ok := m.Latency()
	if !ok || l.P50 <= 0 {
		return cpuBlockLeast
	}
	return int(min(cpuBlockMost, max(cpuBlockLeast, math.Ceil(cpuBlockMs/float64(l.P50)))))
}

// graphsInTurns runs a graph and its rival in ONNX Runtime, each in a process of
// its own, one block after the other in ABBA order. Rounds for which half of
// benchmark.max_seconds is too short are left out; the row itself has the other half.
func graphsInTurns(ctx context.Context, cfg *config.Config, lib ort.Library, paths [2]string, feed []tensor.Named, block int, out Output) (base, head []float64, err error) {
	if err := sameTensors(paths); err != nil {
		return nil, nil, err
	}
	ctx, cancel := limited(ctx, cfg)
	defer cancel()
	var sessions [2]*ort.Session
	for i, path := range paths {
		if sessions[i], err = openGraph(ctx, cfg, lib, path, out); err != nil {
			return nil, nil, err
		}
		defer sessions[i].Close()
	}
	until := time.Now().Add(time.Duration(cfg.Benchmark.MaxSeconds) * time.Second / 2)
	var blocks [2][]float64
	for round := range cpuRounds {
		if round > 0 && time.Now().After(until) {
			break
		}
		if out.Progress != nil {
			out.Progress(int64(round), cpuRounds, "in turns with the baseline's")
		}
		q := ort.BenchmarkRequest{Workers: 1, Warmup: 1, Iters: block}
		if round == 0 {
			q.Warmup = cfg.Benchmark.WarmupIters
		}
		for turn := range 2 {
			side := (turn + round) % 2
			result, err := sessions[side].Benchmark(ctx, feed, q)
			if err != nil {
				return nil, nil, err
			}
			ms, err := medianOf(result)
			if err != nil {
				return nil, nil, err
			}
			blocks[side] = append(blocks[side], ms)
		}
	}
	return blocks[0], blocks[1], nil
}

// sameTensors refuses a baseline's graph, the first, that has other inputs or
// outputs than ours.
func sameTensors(paths [2]string) error {
	var tensors [2]string
	for i, path := range paths {
		m, err := onnx.Open(path)
		if err != nil {
			return err
		}
		tensors[i] = "inputs " + signature(m.Inputs()) + ", outputs " + signature(m.Outputs())
		if err := m.Close(); err != nil {
			return err
		}
	}
	if tensors[0] != tensors[1] {
		return fmt.Errorf("they have other tensors: the baseline's %s; ours %s", tensors[0], tensors[1])
	}
	return nil
}

// signature lists tensors by name, for a graph is fed by names.
func signature(values []onnx.Value) string {
	tensors := make([]report.Tensor, len(values))
	for i, v := range values {
		tensors[i] = v.Report()
	}
	slices.SortFunc(tensors, func(a, b report.Tensor) int { return strings.Compare(a.Name, b.Name) })
	return measure.Signature(tensors)
}

// medianOf is the median of a block's requests, none of which may have failed.
func medianOf(r ort.BenchmarkResult) (float64, error) {
	m, err := r.Measurement(1)
	if err != nil {
		return 0, err
	}
	if m.Errors > 0 {
		return 0, fmt.Errorf("%d of %d requests failed", m.Errors, m.Requests)
	}
	return measure.Median(measure.Floats(m.Samples)), nil
}
