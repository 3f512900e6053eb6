package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

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

func against(ctx context.Context, e *env) ([]Row, error) {
	const config = "examples/digits/trtship.yaml"
	args := []string{"--set", "target=tensorrt", "--set", "tensorrt.precisions=[fp16]", "--set", "benchmark.onnx_baseline=false", "--until", "benchmark"}
	run := func(more ...string) (*report.Report, string, error) {
		r, code, err := e.pipeline(ctx, "digits", config, append(append([]string{}, args...), more...)...)
		if err == nil && code != failure.OK {
			err = fmt.Errorf("exit code %d", code)
		}
		if err != nil {
			return nil, "", err
		}
		path := filepath.Join(e.work, "digits", "against-"+r.Run.ID+".json")
		return r, path, r.Write(path)
	}
	_, base, err := run()
	if err != nil {
		return nil, err
	}
	same, samePath, err := run("--against", base)
	if err != nil {
		return nil, err
	}
	other, otherPath, err := run("--against", base, "--set", "tensorrt.optimization_level=1")
	if err != nil {
		return nil, err
	}
	rows := []Row{
		inTurnsRow("the same engine", same, func(il *report.Interleaved) bool { return il.Identical() }),
		inTurnsRow("an engine of another optimization level", other, func(il *report.Interleaved) bool {
			return !il.Identical() && len(il.Base) == benchmark.TurnRounds && len(il.Head) == benchmark.TurnRounds
		}),
	}
	for _, of := range []struct{ name, path string }{{"the same engine", samePath}, {"an engine of another optimization level", otherPath}} {
		row, err := e.judged(ctx, of.name, of.path, base)
		if err != nil {
			return rows, err
		}
		rows = append(rows, row)
	}
	return rows, os.Remove(base)
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

// judged asks the gate about a run. An engine that is the baseline's passes; what
// becomes of another one is the GPU's to say, but never that there is a gap.
func (e *env) judged(ctx context.Context, subject, path, base string) (Row, error) {
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
	if code != failure.OK && (subject == "the same engine" || code != failure.Regression) || len(g.Deltas) == 0 {
		row.Verdict = fail
	}
	return row, nil
}
