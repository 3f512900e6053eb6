package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/engine"
	"github.com/trtship/trtship/internal/gate"
	"github.com/trtship/trtship/internal/locate"
	"github.com/trtship/trtship/internal/measure"
	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/ort"
	"github.com/trtship/trtship/internal/precision"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/report"
)

func broken(area, subject string, err error) []Row {
	return []Row{{Area: area, Subject: subject, Verdict: report.Broken, Detail: err.Error()}}
}

// locatePart looks for the product that overflows in fp16, among 16, with real
// strongly typed engines, and repairs it.
func locatePart(ctx context.Context, e *env) []Row {
	rows, err := locateOverflow(ctx, e)
	if err != nil {
		return append(rows, broken("locate", "overflow", err)...)
	}
	return rows
}

func locateOverflow(ctx context.Context, e *env) ([]Row, error) {
	const products, culprit = 16, 9
	m := chain(16, 64, products, map[int]float32{culprit: 1e5, culprit + 1: 1e-5})
	child, err := e.child(ctx)
	if err != nil {
		return nil, err
	}
	defer child.Close()
	lib, err := ort.Find(ctx, ort.Places{File: os.Getenv("TRTSHIP_ORT_LIB"), Python: e.python})
	if err != nil {
		return nil, err
	}
	section := config.TensorRT{WorkspaceMB: 1024, OptimizationLevel: 0, HardwareCompat: "none", Typing: "strong", Device: "0"}
	o := locate.Options{
		Convert:   toHalf,
		Candidate: locate.Engine{Child: child, Request: engine.RequestOf(section, "fp16", "", ""), Scratch: e.work},
		Reference: locate.ORT{Library: lib, Scratch: e.work},
		Feeds:     [][]tensor.Named{feedFor(16, 64)}, Tolerance: report.Tolerance{Atol: 0.05, Rtol: 0.05},
		Progress: func(builds, limit int, label string) {
			fmt.Fprintf(os.Stderr, "build %d of at most %d: %s\n", builds, limit, label)
		},
	}
	found, builds, err := locate.First(ctx, m, nil, o)
	if err != nil {
		return nil, err
	}
	row := Row{
		Area: "locate", Subject: "overflow in one of 32 nodes, fp16", Verdict: fail, Detail: "nothing was found",
		Figures: map[string]report.Number{"builds": report.Number(builds), "limit": report.Number(locate.Limit(2 * products))},
	}
	want := fmt.Sprintf("matmul_%d", culprit)
	if found != nil {
		row.Detail = fmt.Sprintf("%s after %d builds of at most %d, want %s", found.Node, builds, found.Limit, want)
		if found.Node == want && builds <= found.Limit {
			row.Verdict = pass
		}
	}
	repaired, err := locate.Repair(ctx, m, o, 6)
	if err != nil {
		return []Row{row}, err
	}
	after, _, err := locate.First(ctx, m, repaired.Keep, o)
	if err != nil {
		return []Row{row}, err
	}
	fix := Row{
		Area: "keep_fp32", Subject: "overflow in one of 32 nodes, fp16", Verdict: pass,
		Detail: fmt.Sprintf("the engine holds with %v in float32", repaired.Keep),
	}
	if after != nil || len(repaired.Keep) == 0 {
		fix.Verdict, fix.Detail = fail, fmt.Sprintf("with %v in float32 the engine still leaves the tolerance", repaired.Keep)
	}
	return []Row{row, fix}, nil
}

func toHalf(m *onnx.Model, keep []string) (*onnx.Model, error) {
	h, err := precision.ToHalf(m, precision.HalfOptions{DType: tensor.Float16, KeepIO: true, Keep: precision.NewSelection("quantize.keep_fp32", keep)})
	if err != nil {
		return nil, err
	}
	return h.Model, nil
}

// built builds a chain in float32 and returns its plan and description.
func (e *env) built(ctx context.Context, name string, m *onnx.Model) (string, *engine.Description, error) {
	dir := filepath.Join(e.work, name)
	plan := filepath.Join(dir, engine.PlanFile)
	if d, err := engine.ReadDescription(plan); err == nil {
		return plan, d, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", nil, err
	}
	source := filepath.Join(dir, "model.onnx")
	_ = os.Remove(source) // of a build that was cut off
	if err := m.Save(source, onnx.SaveOptions{}); err != nil {
		return "", nil, err
	}
	child, err := e.child(ctx)
	if err != nil {
		return "", nil, err
	}
	defer child.Close()
	section := config.TensorRT{WorkspaceMB: 1024, OptimizationLevel: 3, HardwareCompat: "none", Typing: "strong", Device: "0"}
	d, err := engine.Build(child, engine.RequestOf(section, "fp32", source, plan))
	if err != nil {
		return "", nil, err
	}
	return plan, d, d.Write(filepath.Join(dir, engine.DescriptionFile))
}

const (
	chainRows, chainWidth, chainLength = 16, 384, 40
	rounds, block, loads               = 30, 20, 3
)

// changePart sets an engine against itself 100 times, and 20 times against one
// that an independent loop finds 4 to 6 % slower.
func changePart(ctx context.Context, e *env) []Row {
	rows, err := changes(ctx, e)
	if err != nil {
		return append(rows, broken("benchmark ab", "chain", err)...)
	}
	return rows
}

func changes(ctx context.Context, e *env) ([]Row, error) {
	plan, d, err := e.built(ctx, "chain-40", chain(chainRows, chainWidth, chainLength, nil))
	if err != nil {
		return nil, err
	}
	feed := feedFor(chainRows, chainWidth)
	same, figures, err := e.repeat(ctx, 100, report.Same, plan, d, plan, d, feed)
	if err != nil {
		return nil, err
	}
	row := Row{
		Area: "benchmark ab", Subject: "an engine against itself, 100 times", Verdict: pass, Figures: figures,
		Detail: fmt.Sprintf("%d of 100 are the same, want at least 97", same),
	}
	if same < 97 {
		row.Verdict = fail
	}
	slow, ds, ratio, err := e.slower(ctx, plan, feed)
	if err != nil {
		return []Row{row}, err
	}
	regressed, figures, err := e.repeat(ctx, 20, report.Regressed, plan, d, slow, ds, feed)
	if err != nil {
		return []Row{row}, err
	}
	figures["independent_ratio"] = report.Number(ratio)
	second := Row{
		Area: "benchmark ab", Subject: fmt.Sprintf("an engine that is %.1f %% slower, 20 times", 100*(ratio-1)), Verdict: pass, Figures: figures,
		Detail: fmt.Sprintf("%d of 20 are found regressed, want at least 19", regressed),
	}
	if regressed < 19 {
		second.Verdict = fail
	}
	return []Row{row, second}, nil
}

// slower builds longer chains until the independent loop finds one 4 to 6 % slower.
func (e *env) slower(ctx context.Context, plan string, feed []tensor.Named) (string, *engine.Description, float64, error) {
	base, err := e.peerAlone(ctx, plan, feed)
	if err != nil {
		return "", nil, 0, err
	}
	var seen []float64
	for _, extra := range []int{2, 3, 1, 4} {
		name := "chain-" + strconv.Itoa(chainLength+extra)
		longer, d, err := e.built(ctx, name, chain(chainRows, chainWidth, chainLength+extra, nil))
		if err != nil {
			return "", nil, 0, err
		}
		got, err := e.peerAlone(ctx, longer, feed)
		if err != nil {
			return "", nil, 0, err
		}
		ratio := got.Compute / base.Compute
		if ratio >= 1.04 && ratio <= 1.06 {
			return longer, d, ratio, nil
		}
		seen = append(seen, ratio)
	}
	return "", nil, 0, fmt.Errorf("no chain is 4 to 6 %% slower by the independent loop: %v", seen)
}

// repeat alternates two engines many times in one child and counts a verdict.
func (e *env) repeat(ctx context.Context, times int, want report.Change, base string, db *engine.Description, head string, dh *engine.Description, feed []tensor.Named) (int, map[string]report.Number, error) {
	child, err := e.child(ctx)
	if err != nil {
		return 0, nil, err
	}
	defer child.Close()
	b, err := engine.Open(child, base, db, e.work)
	if err != nil {
		return 0, nil, err
	}
	h, err := engine.Open(child, head, dh, e.work)
	if err != nil {
		return 0, nil, err
	}
	verdicts := map[report.Change]int{}
	var ratios []float64
	for range times {
		x, y, err := engine.Alternate(b, h, feed, feed, engine.Alternation{Rounds: rounds, Block: block, Loads: loads, CUDAGraph: true, WarmupIters: 20})
		if err != nil {
			return 0, nil, err
		}
		d := gate.ComparePairs(x, y, 0.01, 0.99)
		verdicts[d.Change]++
		if d.Ratio != nil {
			ratios = append(ratios, float64(*d.Ratio))
		}
	}
	s, err := measure.Summarize(ratios)
	if err != nil {
		return 0, nil, err
	}
	figures := map[string]report.Number{"ratio_min": s.Min, "ratio_p50": s.P50, "ratio_max": s.Max, "rounds": rounds, "block": block, "loads": loads}
	for change, n := range verdicts {
		figures[string(change)] = report.Number(n)
	}
	return verdicts[want], figures, nil
}
