package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/report"
	"github.com/trtship/trtship/stages/benchmark"
)

// againstPart runs the pipeline with a baseline: the engine that is the baseline's
// own is the same without a measurement, and another one runs in turns with it.
func againstPart(ctx context.Context, e *env) []Row {
	rows, err := against(ctx, e)
	if err != nil {
		return append(rows, broken("run --against", "digits fp16", err)...)
	}
	return rows
}

// againstCases are runs against one of digits in fp16: what their rows have, and
// what the gate may say. What becomes of another engine is the GPU's to say.
var againstCases = []struct {
	name  string
	more  []string
	holds func(*report.Interleaved) bool
	codes []failure.Code
}{
	{"the same engine", nil, (*report.Interleaved).Identical, []failure.Code{failure.OK}},
	{"an engine of another optimization level", []string{"--set", "tensorrt.optimization_level=1"}, func(il *report.Interleaved) bool {
		return !il.Identical() && len(il.Base) == benchmark.TurnRounds && len(il.Head) == benchmark.TurnRounds
	}, []failure.Code{failure.OK, failure.Regression}},
}

func against(ctx context.Context, e *env) ([]Row, error) {
	_, base, err := e.upToBenchmark(ctx)
	if err != nil {
		return nil, err
	}
	var rows []Row
	for _, c := range againstCases {
		r, path, err := e.upToBenchmark(ctx, append([]string{"--against", base}, c.more...)...)
		if err != nil {
			return rows, err
		}
		judged, err := e.judged(ctx, c.name, path, base, c.codes)
		if err != nil {
			return rows, err
		}
		rows = append(rows, inTurnsRow(c.name, r, c.holds), judged)
	}
	return rows, nil
}

// upToBenchmark runs the digits CNN in fp16 and keeps the report.
func (e *env) upToBenchmark(ctx context.Context, more ...string) (*report.Report, string, error) {
	args := []string{"--set", "target=tensorrt", "--set", "tensorrt.precisions=[fp16]", "--set", "benchmark.onnx_baseline=false", "--until", "benchmark"}
	r, code, err := e.pipeline(ctx, "digits", "examples/digits/trtship.yaml", append(args, more...)...)
	if err == nil && code != failure.OK {
		err = fmt.Errorf("exit code %d", code)
	}
	if err != nil {
		return nil, "", err
	}
	path := filepath.Join(e.work, "digits", "against-"+r.Run.ID+".json")
	return r, path, r.Write(path)
}

// inTurnsRow holds where every row of an engine has what it must.
func inTurnsRow(subject string, r *report.Report, holds func(*report.Interleaved) bool) Row {
	row := Row{Area: "run --against", Subject: subject, Verdict: pass, Detail: fmt.Sprintf("%d rows", len(r.Benchmark.Rows))}
	if len(r.Benchmark.Rows) == 0 {
		row.Verdict = report.Missing
	}
	for _, m := range r.Benchmark.Rows {
		if m.Interleaved == nil || !holds(m.Interleaved) {
			row.Verdict, row.Detail = fail, fmt.Sprintf("%s: %+v; notes %q", m.Row(), m.Interleaved, m.Notes)
		}
	}
	return row
}

// judged asks the gate about a run, which may end with the codes alone.
func (e *env) judged(ctx context.Context, subject, path, base string, codes []failure.Code) (Row, error) {
	dir := filepath.Join(e.work, "digits")
	out, code, err := e.trtship(ctx, dir, "gate", path, "--baseline", base, "--until", "benchmark", "--json")
	if err != nil {
		return Row{}, err
	}
	g, err := report.DecodeGate(out)
	if err != nil {
		return Row{}, fmt.Errorf("the gate ended with exit code %d and no verdict: %w", code, err)
	}
	row := Row{Area: "run --against", Subject: subject + ", by the gate", Verdict: pass, Figures: map[string]report.Number{}}
	for _, d := range g.Deltas {
		if d.Ratio != nil {
			row.Figures["ratio "+d.Row] = *d.Ratio
		}
		row.Detail += fmt.Sprintf("%s %s; ", d.Metric, d.Change)
	}
	if !slices.Contains(codes, code) || len(g.Deltas) == 0 {
		row.Verdict = fail
	}
	return row, nil
}
