package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

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

// both is what the two loops find around one context.
type both struct {
	Ours   timing `json:"ours"`
	Theirs timing `json:"theirs"`
}

// How fast an engine is depends on where its context lies in memory, and on the
// cores, the stream and the host's pages that a process got. So the loops are held
// to each other in one process, around the same context, and turn by turn a fresh
// process tries its luck. In apartTurns of them each loop also runs as it would
// alone, in a process of its own: that is told, with its luck, and not judged.
const (
	turns        = 7
	apartTurns   = 3
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

// found is what was found for one engine in one mode.
type found struct {
	beside       []both
	ours, theirs []timing // in processes of their own
}

// besideEachOther measures in turns: both loops in one process, then each in its own.
func (e *env) besideEachOther(ctx context.Context, loops []aLoop) ([]Row, error) {
	all := make([]found, len(loops))
	for turn := range turns {
		fmt.Fprintf(os.Stderr, "turn %d of %d\n", turn+1, turns)
		if err := e.oneTurn(ctx, loops, all, turn < apartTurns); err != nil {
			return nil, err
		}
	}
	rows := make([]Row, 0, len(loops))
	for i, l := range loops {
		rows = append(rows, compareLoops(l.subject, all[i]))
	}
	return rows, nil
}

// oneTurn adds what the loops find in fresh processes.
func (e *env) oneTurn(ctx context.Context, loops []aLoop, all []found, apart bool) error {
	beside, err := loopScript[both](ctx, e, "bench/gpucheck/beside.py", loops)
	if err != nil {
		return err
	}
	for i, l := range loops {
		all[i].beside = append(all[i].beside, beside[i]...)
		fmt.Fprintf(os.Stderr, "%s: %s\n", l.subject, inWords(beside[i]))
	}
	if !apart {
		return nil
	}
	ours, err := e.ours(ctx, loops)
	if err != nil {
		return err
	}
	theirs, err := e.peer(ctx, loops)
	if err != nil {
		return err
	}
	for i, l := range loops {
		all[i].ours, all[i].theirs = append(all[i].ours, ours[i]...), append(all[i].theirs, theirs[i]...)
		fmt.Fprintf(os.Stderr, "%s, apart: %v, by the independent loop %v µs\n", l.subject, micros(ours[i]), micros(theirs[i]))
	}
	return nil
}

// inWords lists both compute medians of every loading.
func inWords(all []both) string {
	var out []string
	for _, b := range all {
		out = append(out, fmt.Sprintf("%.1f and %.1f µs (%+.2f %%)", 1000*b.Ours.Compute, 1000*b.Theirs.Compute, 100*(b.Ours.Compute/b.Theirs.Compute-1)))
	}
	return strings.Join(out, ", ")
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

// column takes one number of every loading.
func column[T any](all []T, of func(T) float64) []float64 {
	out := make([]float64, 0, len(all))
	for _, x := range all {
		out = append(out, of(x))
	}
	return out
}

// compareLoops holds when, in the middle loading, compute agrees within 2 % and ours
// enqueues within 5 µs of theirs, around the same context.
func compareLoops(subject string, f found) Row {
	ratios := column(f.beside, func(b both) float64 { return b.Ours.Compute / b.Theirs.Compute })
	ratio := measure.Median(ratios)
	later := measure.Median(column(f.beside, func(b both) float64 { return b.Ours.Enqueue - b.Theirs.Enqueue }))
	middle := func(of func(both) float64) report.Number { return report.Number(measure.Median(column(f.beside, of))) }
	apart, theirs := lowest(f.ours), lowest(f.theirs)
	row := Row{Area: "independent loop", Subject: subject, Verdict: pass, Figures: map[string]report.Number{
		"compute_ms": middle(func(b both) float64 { return b.Ours.Compute }), "independent_compute_ms": middle(func(b both) float64 { return b.Theirs.Compute }),
		"enqueue_ms": middle(func(b both) float64 { return b.Ours.Enqueue }), "independent_enqueue_ms": middle(func(b both) float64 { return b.Theirs.Enqueue }),
		"ratio": report.Number(ratio), "lowest ratio of a loading": report.Number(slices.Min(ratios)), "highest ratio of a loading": report.Number(slices.Max(ratios)),
		"enqueue_ms more": report.Number(later), "processes": turns, "loadings": report.Number(len(f.beside)),
		"compute_ms apart": report.Number(apart.Compute), "independent_compute_ms apart": report.Number(theirs.Compute), "loadings apart": report.Number(len(f.ours)),
	}}
	row.Detail = fmt.Sprintf("around the same context %+.2f %% (%.4f ms), enqueue %+.1f µs; in processes of their own, at their luckiest, %.4f ms and by the independent loop %.4f ms",
		100*(ratio-1), float64(row.Figures["compute_ms"]), 1000*later, apart.Compute, theirs.Compute)
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
	return loopScript[timing](ctx, e, "bench/gpucheck/peer.py", loops)
}

// loopScript runs a script in a process of its own; it finds a T for every loading of
// every loop.
func loopScript[T any](ctx context.Context, e *env, script string, loops []aLoop) ([][]T, error) {
	arg, err := e.asked(loops)
	if err != nil {
		return nil, err
	}
	out, err := proc.Output(ctx, proc.Command{Path: e.python, Args: []string{script, arg}, Env: os.Environ(), Stderr: os.Stderr})
	if err != nil {
		return nil, err
	}
	var found [][]T
	if err := json.Unmarshal([]byte(out), &found); err != nil {
		return nil, fmt.Errorf("read the answer of %s: %w", script, err)
	}
	if len(found) != len(loops) {
		return nil, fmt.Errorf("%s answered %d of %d", script, len(found), len(loops))
	}
	return found, nil
}

// asked is the argument of both scripts; the inputs lie in files.
func (e *env) asked(loops []aLoop) (string, error) {
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
				return "", err
			}
			j.Inputs = append(j.Inputs, input{f.Name, string(f.DType), f.Shape, path})
		}
		jobs = append(jobs, j)
	}
	arg, err := json.Marshal(map[string]any{"iters": itersOfALoad, "loads": loadsOfATurn, "loops": jobs})
	return string(arg), err
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
