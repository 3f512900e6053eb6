package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/engine"
	"github.com/trtship/trtship/internal/measure"
	"github.com/trtship/trtship/internal/proc"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/report"
)

// aLoop is one engine in one mode, to be measured by both loops.
type aLoop struct {
	subject string
	plan    string
	d       *engine.Description
	feed    []tensor.Named
	graph   bool
}

// timing is what a loop finds in one loading of an engine: medians in milliseconds.
type timing struct {
	Compute float64 `json:"compute_ms"`
	Enqueue float64 `json:"enqueue_ms"`
}

// Both loops measure everything in turns, each time in a process of its own, since
// a process keeps its luck with cores. How fast an engine is depends on where its
// context lies in memory; both load the engines in the same order, each with one
// context before the measured one, so that they lie alike and the loops differ alone.
const (
	turns        = 7
	loadsOfATurn = 5
	itersOfALoad = 300
)

// loopPart sets our benchmark beside the independent loop, on three engines that
// the parts before have built.
func loopPart(ctx context.Context, e *env) []Row {
	loops, rows := e.loops()
	if len(loops) == 0 {
		return rows
	}
	measured, err := e.besideEachOther(ctx, loops)
	if err != nil {
		return append(rows, broken("independent loop", "all engines", err)...)
	}
	return append(rows, measured...)
}

// loops finds the engines; an absent one is a broken row.
func (e *env) loops() ([]aLoop, []Row) {
	var loops []aLoop
	var rows []Row
	for _, of := range []struct{ part, config, precision string }{
		{"digits", "examples/digits/trtship.yaml", "fp32"},
		{"encoder", "bench/gpucheck/encoder/trtship.yaml", "fp16"},
		{"resnet50", "bench/gpucheck/resnet50/trtship.yaml", "fp16"},
	} {
		subject := of.part + " " + of.precision
		plan, d, err := e.enginePlan(of.part, of.precision)
		if err != nil {
			rows = append(rows, broken("independent loop", subject, err)...)
			continue
		}
		feed, err := feedOf(of.config, d)
		if err != nil {
			rows = append(rows, broken("independent loop", subject, err)...)
			continue
		}
		loops = append(loops, aLoop{subject + ", CUDA graph off", plan, d, feed, false}, aLoop{subject + ", CUDA graph on", plan, d, feed, true})
	}
	return loops, rows
}

// enginePlan finds the strongly typed plan that a part left in its store.
func (e *env) enginePlan(part, precision string) (string, *engine.Description, error) {
	plans, err := filepath.Glob(filepath.Join(e.work, part, "store", "engine", "*", "files", engine.PlanFile))
	if err != nil {
		return "", nil, err
	}
	for _, plan := range plans {
		if d, err := engine.ReadDescription(plan); err == nil && d.Precision == precision && d.Typing == "strong" {
			return plan, d, nil
		}
	}
	return "", nil, fmt.Errorf("%s-strong left no %s engine: run it first", part, precision)
}

// besideEachOther measures in turns, ours and theirs.
func (e *env) besideEachOther(ctx context.Context, loops []aLoop) ([]Row, error) {
	ours, theirs := make([][]timing, len(loops)), make([][]timing, len(loops))
	for turn := range turns {
		fmt.Fprintf(os.Stderr, "turn %d of %d\n", turn+1, turns)
		t, err := e.ours(ctx, loops)
		if err != nil {
			return nil, err
		}
		p, err := e.peer(ctx, loops)
		if err != nil {
			return nil, err
		}
		for i, l := range loops {
			ours[i], theirs[i] = append(ours[i], t[i]...), append(theirs[i], p[i]...)
			fmt.Fprintf(os.Stderr, "%s: %v, by the independent loop %v µs\n", l.subject, micros(t[i]), micros(p[i]))
		}
	}
	rows := make([]Row, 0, len(loops))
	for i, l := range loops {
		rows = append(rows, compareLoops(l.subject, ours[i], theirs[i]))
	}
	return rows, nil
}

// micros lists the compute medians.
func micros(all []timing) []string {
	var out []string
	for _, t := range all {
		out = append(out, fmt.Sprintf("%.1f", 1000*t.Compute))
	}
	return out
}

// lowest is the lowest median of all loadings: a busy host and an unlucky place
// in memory only ever add.
func lowest(all []timing) timing {
	best := all[0]
	for _, t := range all {
		best.Compute, best.Enqueue = min(best.Compute, t.Compute), min(best.Enqueue, t.Enqueue)
	}
	return best
}

// spread adds the median and the highest of the compute medians of all loadings.
func spread(figures map[string]report.Number, name string, all []timing) {
	var compute []float64
	for _, t := range all {
		compute = append(compute, t.Compute)
	}
	figures[name+" of half of the loadings"] = report.Number(measure.Median(compute))
	figures[name+" of the slowest loading"] = report.Number(slices.Max(compute))
}

// compareLoops holds when compute agrees within 2 % and ours enqueues within 5 µs of theirs.
func compareLoops(subject string, allOurs, allTheirs []timing) Row {
	ours, theirs := lowest(allOurs), lowest(allTheirs)
	ratio, later := ours.Compute/theirs.Compute, ours.Enqueue-theirs.Enqueue
	row := Row{Area: "independent loop", Subject: subject, Verdict: pass, Figures: map[string]report.Number{
		"compute_ms": report.Number(ours.Compute), "independent_compute_ms": report.Number(theirs.Compute), "ratio": report.Number(ratio),
		"enqueue_ms": report.Number(ours.Enqueue), "independent_enqueue_ms": report.Number(theirs.Enqueue),
		"processes": turns, "loadings": report.Number(len(allOurs)), "independent_loadings": report.Number(len(allTheirs)),
	}}
	spread(row.Figures, "compute_ms", allOurs)
	spread(row.Figures, "independent_compute_ms", allTheirs)
	row.Detail = fmt.Sprintf("compute %.4f ms, by the independent loop %.4f ms (%+.2f %%); enqueue %+.1f µs", ours.Compute, theirs.Compute, 100*(ratio-1), 1000*later)
	if ratio > 1.02 || ratio < 0.98 || later > 0.005 {
		row.Verdict = fail
	}
	return row
}

// ours measures with trtship's own loop, in one child.
func (e *env) ours(ctx context.Context, loops []aLoop) ([][]timing, error) {
	child, err := e.child(ctx)
	if err != nil {
		return nil, err
	}
	defer child.Close()
	var out [][]timing
	for _, l := range loops {
		var found []timing
		for range loadsOfATurn {
			t, err := e.once(child, l)
			if err != nil {
				return nil, err
			}
			found = append(found, t)
		}
		out = append(out, found)
	}
	return out, nil
}

// once loads an engine and measures it where it lies.
func (e *env) once(child engine.Caller, l aLoop) (timing, error) {
	s, err := engine.Open(child, l.plan, l.d, e.work)
	if err != nil {
		return timing{}, err
	}
	t, err := s.Benchmark(engine.Load{Inputs: l.feed, Streams: 1, CUDAGraph: l.graph, WarmupIters: 100, Iters: itersOfALoad, Loads: 1, MaxSeconds: 60})
	if err != nil {
		return timing{}, err
	}
	return timing{measure.Median(t.Phases["compute"]), measure.Median(t.Phases["enqueue"])}, s.Close()
}

// peer measures with the independent loop, in one process.
func (e *env) peer(ctx context.Context, loops []aLoop) ([][]timing, error) {
	type input struct {
		Name  string  `json:"name"`
		DType string  `json:"dtype"`
		Shape []int64 `json:"shape"`
		File  string  `json:"file"`
	}
	type job struct {
		Plan   string  `json:"plan"`
		Graph  bool    `json:"graph"`
		Inputs []input `json:"inputs"`
	}
	var jobs []job
	for i, l := range loops {
		j := job{Plan: l.plan, Graph: l.graph}
		for k, f := range l.feed {
			path := filepath.Join(e.work, fmt.Sprintf("peer-%d-%d.bin", i, k))
			if err := os.WriteFile(path, f.Data, 0o600); err != nil {
				return nil, err
			}
			j.Inputs = append(j.Inputs, input{f.Name, string(f.DType), f.Shape, path})
		}
		jobs = append(jobs, j)
	}
	arg, err := json.Marshal(map[string]any{"iters": itersOfALoad, "loads": loadsOfATurn, "loops": jobs})
	if err != nil {
		return nil, err
	}
	out, err := proc.Output(ctx, proc.Command{Path: e.python, Args: []string{"bench/gpucheck/peer.py", string(arg)}, Env: os.Environ(), Stderr: os.Stderr})
	if err != nil {
		return nil, err
	}
	var found [][]timing
	if err := json.Unmarshal([]byte(out), &found); err != nil {
		return nil, fmt.Errorf("read the independent loop's answer: %w", err)
	}
	if len(found) != len(loops) {
		return nil, fmt.Errorf("the independent loop answered %d of %d", len(found), len(loops))
	}
	return found, nil
}

// peerAlone measures one engine with a CUDA graph by the independent loop.
func (e *env) peerAlone(ctx context.Context, plan string, feed []tensor.Named) (timing, error) {
	found, err := e.peer(ctx, []aLoop{{plan: plan, feed: feed, graph: true}})
	if err != nil {
		return timing{}, err
	}
	return lowest(found[0]), nil
}

// feedOf makes a feed of the profile's opt.
func feedOf(path string, d *engine.Description) ([]tensor.Named, error) {
	cfg, err := config.Load(path, config.Options{})
	if err != nil {
		return nil, err
	}
	var feed []tensor.Named
	for _, t := range d.Inputs() {
		shape := t.Dims
		if len(d.Profiles) > 0 {
			if r, ok := d.Profiles[0][t.Name]; ok {
				shape = r.Opt
			}
		}
		var limits tensor.Range
		for _, in := range cfg.Model.Inputs {
			if in.Name == t.Name && len(in.Range) == 2 {
				limits = tensor.Range{Low: string(in.Range[0]), High: string(in.Range[1])}
			}
		}
		v, err := tensor.Generate(tensor.DType(t.DType), shape, limits, "gpucheck", t.Name)
		if err != nil {
			return nil, err
		}
		feed = append(feed, tensor.Named{Name: t.Name, Tensor: v})
	}
	return feed, nil
}
