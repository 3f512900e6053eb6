package benchmark

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/engine"
	"github.com/trtship/trtship/internal/engine/enginetest"
	"github.com/trtship/trtship/internal/measure"
	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/onnx/onnxtest"
	"github.com/trtship/trtship/internal/ort"
	"github.com/trtship/trtship/internal/testkit"
	"github.com/trtship/trtship/internal/worker"
	"github.com/trtship/trtship/report"
)

// products is a graph of so many matrix products, x float32 [batch, 64].
func products(t *testing.T, n int, input string) artifact.Artifact {
	t.Helper()
	dir := t.TempDir()
	if err := onnxtest.Products(n, input).Model(t).Save(filepath.Join(dir, modelFile), onnx.SaveOptions{}); err != nil {
		t.Fatal(err)
	}
	return artifact.Artifact{Record: artifact.Record{Kind: artifact.OptimizedONNX, Digest: artifact.Digest(fmt.Sprintf("sha256:%064x", n))}, Dir: dir}
}

// had answers with one artifact, or says why there is none.
func had(a *artifact.Artifact, err error) Rivals {
	return func(context.Context, artifact.Artifact) (*artifact.Artifact, string, error) {
		return a, "base-run", err
	}
}

func TestGraphsRunInTurnsWithTheBaselines(t *testing.T) {
	cfg := load(t, dynamic, "benchmark.batch_sizes=[8]", "benchmark.concurrency=[1]")
	head, slow, strange := products(t, 2, "x"), products(t, 300, "x"), products(t, 3, "z")
	gone := products(t, 4, "x")
	gone.Dir = t.TempDir()
	for name, c := range map[string]struct {
		rivals Rivals
		note   string
		check  func(*report.Interleaved) bool
	}{
		"no baseline":          {nil, "", func(il *report.Interleaved) bool { return il == nil }},
		"nobody asked for one": {had(nil, nil), "", func(il *report.Interleaved) bool { return il == nil }},
		"the same graph": {had(&head, nil), "", func(il *report.Interleaved) bool {
			return il != nil && il.Identical() && il.Baseline == head.ID() && len(il.Base)+len(il.Head) == 0
		}},
		"a slower baseline": {had(&slow, nil), "", func(il *report.Interleaved) bool {
			return il != nil && !il.Identical() && il.Baseline == slow.ID() && il.Metric == "latency_p50_ms" && len(il.Base) == cpuRounds && len(il.Head) == cpuRounds &&
				measure.Median(measure.Floats(il.Base)) > 2*measure.Median(measure.Floats(il.Head))
		}},
		"one that cannot be had":   {had(nil, errors.New("it is not in this store")), "it is not in this store", func(il *report.Interleaved) bool { return il == nil }},
		"one with other inputs":    {had(&strange, nil), "z", func(il *report.Interleaved) bool { return il == nil }},
		"one whose file is absent": {had(&gone, nil), "model.onnx", func(il *report.Interleaved) bool { return il == nil }},
	} {
		t.Run(name, func(t *testing.T) {
			rows, skipped, err := ONNX(t.Context(), cfg, library(t), Graph{Path: filepath.Join(head.Dir, modelFile), Precision: "fp32", Rival: c.rivals.of(t.Context(), head)}, Output{Log: io.Discard})
			if err != nil || len(rows) != 1 || len(skipped) != 0 {
				t.Fatalf("%d rows, skipped %v, %v; want the row, whatever became of its rival", len(rows), skipped, err)
			}
			if !c.check(rows[0].Interleaved) {
				t.Errorf("in turns: %+v", rows[0].Interleaved)
			}
			notes := strings.Join(rows[0].Notes, "\n")
			if strings.Contains(notes, apart) != (c.note != "") || !strings.Contains(notes, c.note) || strings.Contains(notes, t.TempDir()) {
				t.Errorf("notes are %q, want %q", notes, c.note)
			}
		})
	}
}

func TestRoundsForWhichThereIsNoTimeAreLeftOut(t *testing.T) {
	cfg := load(t, dynamic)
	cfg.Benchmark.MaxSeconds = 0
	a := products(t, 2, "x")
	feed, _, err := feedOf(cfg, opened(t, a), nil, 1)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(a.Dir, modelFile)
	base, head, err := graphsInTurns(t.Context(), cfg, library(t), [2]string{path, path}, feed, 5, Output{Log: io.Discard})
	if err != nil || len(base) != 1 || len(head) != 1 {
		t.Errorf("%d and %d blocks, %v; want the first round and no more", len(base), len(head), err)
	}
}

func opened(t *testing.T, a artifact.Artifact) []ort.ValueInfo {
	t.Helper()
	m, err := onnx.Open(filepath.Join(a.Dir, modelFile))
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	return inputs(m)
}

func TestEnginesRunInTurnsWithTheBaselines(t *testing.T) {
	blocks := map[string][]float64{"base": slices.Repeat([]float64{2}, TurnRounds), "head": slices.Repeat([]float64{1}, TurnRounds)}
	mine := engineArtifact(t)
	mine.Digest = artifact.Digest("sha256:" + strings.Repeat("1", 64))
	theirs := func(change func(*engine.Description)) *artifact.Artifact {
		dir := t.TempDir()
		enginetest.WriteEngine(t, dir, func(d *engine.Description) { d.Precision = "fp16"; change(d) })
		return &artifact.Artifact{Record: artifact.Record{Kind: artifact.Engine, Label: "fp16", Digest: artifact.Digest("sha256:" + strings.Repeat("2", 64))}, Dir: dir}
	}
	same := func(*engine.Description) {}
	crash := &worker.Crash{Method: "trt.compare", Err: errors.New("crashed (SIGSEGV)")}
	for name, c := range map[string]struct {
		rivals  Rivals
		extra   string
		fail    map[string]error
		note    string
		started int
	}{
		"another engine":           {rivals: had(theirs(same), nil), started: 2},
		"two at a time":            {rivals: had(theirs(same), nil), extra: "  concurrency: [2]\n", note: "one request at a time", started: 1},
		"another TensorRT":         {rivals: had(theirs(func(d *engine.Description) { d.TensorRT = "8.6.1" }), nil), note: "was built by TensorRT 8.6.1", started: 1},
		"another typing":           {rivals: had(theirs(func(d *engine.Description) { d.Typing = "weak" }), nil), note: "its typing is weak, ours strong", started: 1},
		"other tensors":            {rivals: had(theirs(func(d *engine.Description) { d.Tensors[0].DType = "float16" }), nil), note: "they have other tensors", started: 1},
		"a child that dies":        {rivals: had(theirs(same), nil), fail: map[string]error{"trt.compare": crash}, note: "SIGSEGV", started: 2},
		"one that cannot be had":   {rivals: had(nil, errors.New("it is not in this store")), note: "it is not in this store", started: 1},
		"the same engine, in runs": {rivals: had(&mine, nil), started: 1},
	} {
		t.Run(name, func(t *testing.T) {
			child := &enginetest.Child{Phases: steady(), Blocks: blocks, Fail: c.fail}
			g := NewOnGPU(engineConfig(t, "  cuda_graph: \"on\"\n  loads: 3\n"+c.extra), GPUTools{
				Start: func(context.Context, io.Writer, func(done, total int64, label string)) (Child, error) {
					child.Started++
					return child, nil
				},
				Rivals: c.rivals,
			})
			rows, skipped, err := g.Measure(t.Context(), []artifact.Artifact{mine}, testkit.NewOutputs(t))
			if err != nil || len(rows) != 1 || len(skipped) != 0 || child.Started != c.started {
				t.Fatalf("%d rows, skipped %v, %d children, %v", len(rows), skipped, child.Started, err)
			}
			notes, il := strings.Join(rows[0].Notes, "\n"), rows[0].Interleaved
			if strings.Contains(notes, apart) != (c.note != "") || !strings.Contains(notes, c.note) || (il == nil) != (c.note != "") {
				t.Fatalf("notes %q, in turns %+v", notes, il)
			}
			switch {
			case il == nil:
			case il.Identical():
				if il.Baseline != mine.ID() || slices.Contains(child.Asked, "trt.compare") {
					t.Errorf("in turns %+v, asked %v", il, child.Asked)
				}
			case filepath.Dir(child.Turns["base"]) == mine.Dir || filepath.Dir(child.Turns["head"]) != mine.Dir:
				t.Errorf("the sides are changed: %v", child.Turns)
			case il.Metric != "compute_p50_ms" || len(il.Base) != TurnRounds || il.Base[0] != 2 || il.Head[0] != 1:
				t.Errorf("in turns %+v: blocks are lost", il)
			}
		})
	}
}
