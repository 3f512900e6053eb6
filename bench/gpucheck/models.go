package main

import (
	"context"
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/report"
)

// part is one piece of the work.
type part struct {
	name, title string
	run         func(ctx context.Context, e *env) []Row
	prepare     func(ctx context.Context, e *env) error // builds what run would build first, or nil
}

const allPrecisions = "[fp32, fp16, bf16, int8]"

var parts = []part{
	{name: "tests", title: "the tests that need a GPU", run: testsPart},
	model("digits", "strong", "examples/digits/trtship.yaml", allPrecisions),
	// Of pictures of 8x8 float32 is the fastest type, so that weak typing alone gives no int8 layer.
	model("digits", "weak", "examples/digits/trtship.yaml", allPrecisions, "tensorrt.precision_constraints=prefer"),
	{name: "against", title: "engines in turns with a baseline's, as the pipeline runs them", run: againstPart},
	{name: "locate", title: "the node that overflows in fp16 is found and repaired", run: locatePart},
	{name: "change", title: "one engine against itself, and against a slower one", run: changePart},
	model("encoder", "strong", "bench/gpucheck/encoder/trtship.yaml", allPrecisions),
	model("encoder", "weak", "bench/gpucheck/encoder/trtship.yaml", allPrecisions, "tensorrt.precision_constraints=prefer"),
	model("resnet50", "strong", "bench/gpucheck/resnet50/trtship.yaml", allPrecisions),
	{name: "loop", title: "our benchmark beside an independent loop", run: loopPart},
	model("resnet50", "weak", "bench/gpucheck/resnet50/trtship.yaml", allPrecisions, "tensorrt.precision_constraints=prefer"),
}

// model is the part that takes one model through the whole pipeline.
func model(name, typing, config, precisions string, set ...string) part {
	full := name + "-" + typing
	args := []string{"--set", "target=tensorrt", "--set", "tensorrt.typing=" + typing, "--set", "tensorrt.precisions=" + precisions}
	for _, v := range set {
		args = append(args, "--set", v)
	}
	p := part{name: full, title: name + " in " + strings.Trim(precisions, "[]") + ", " + typing + " typing, to a served plan"}
	p.prepare = func(ctx context.Context, e *env) error {
		_, code, err := e.pipeline(ctx, name, config, append(slices.Clone(args), "--until", "build")...)
		if err == nil && code != failure.OK {
			err = fmt.Errorf("prepare %s: exit code %d", full, code)
		}
		return err
	}
	p.run = func(ctx context.Context, e *env) []Row {
		r, code, err := e.pipeline(ctx, name, config, args...)
		if err != nil {
			return []Row{{Area: "run", Subject: full, Verdict: report.Broken, Detail: err.Error()}}
		}
		e.note(r)
		rows := append(stageRows(full, r), exitRow(full, code))
		again, _, err := e.pipeline(ctx, name, config, append(slices.Clone(args), "--until", "package", "--set", "benchmark.enabled=false")...)
		if err != nil {
			return append(rows, Row{Area: "reuse", Subject: full, Verdict: report.Broken, Detail: err.Error()})
		}
		return append(rows, reuseRow(full, again))
	}
	return p
}

// prepare builds the engines of a model, so that its part finds them.
func prepare(ctx context.Context, e *env, name string) error {
	for _, p := range parts {
		if p.name == name && p.prepare != nil {
			return p.prepare(ctx, e)
		}
	}
	return fmt.Errorf("there is nothing to prepare for %q", name)
}

func exitRow(subject string, code failure.Code) Row {
	row := Row{Area: "exit code", Subject: subject, Verdict: pass, Detail: fmt.Sprintf("%d (%s)", code, code)}
	if code != failure.OK {
		row.Verdict = fail
	}
	return row
}

// stageRows makes one row of each stage and precision: the worst verdict of its
// checks, and the figures that people ask for.
func stageRows(subject string, r *report.Report) []Row {
	var rows []Row
	for _, s := range r.Stages {
		if s.Verdict == report.Skip {
			continue
		}
		if len(s.Checks) == 0 {
			rows = append(rows, Row{Area: s.Name, Subject: subject, Verdict: s.Verdict, Detail: s.Reason})
			continue
		}
		for _, precision := range precisionsOf(s.Checks) {
			rows = append(rows, stageRow(s, subject, precision, r))
		}
	}
	return rows
}

func precisionsOf(checks []report.Check) []string {
	var out []string
	for _, c := range checks {
		if !slices.Contains(out, c.Subject.Precision) {
			out = append(out, c.Subject.Precision)
		}
	}
	sort.Strings(out)
	return out
}

func stageRow(s report.Stage, subject, precision string, r *report.Report) Row {
	var mine []report.Check
	for _, c := range s.Checks {
		if c.Subject.Precision == precision {
			mine = append(mine, c)
		}
	}
	row := Row{Area: s.Name, Subject: strings.TrimSpace(subject + " " + precision), Verdict: report.Of(mine), Figures: map[string]report.Number{}}
	var bad []string
	for _, c := range mine {
		if !c.Verdict.Good() {
			bad = append(bad, strings.TrimSpace(c.ID+" "+string(c.Verdict)+" "+c.Subject.Output+" "+c.Subject.Point+": want "+c.Want+", got "+c.Got+" "+c.Detail))
		}
		if s.Name == "build" {
			for k, v := range c.Metrics {
				row.Figures[k] = v
			}
		}
	}
	row.Detail = fmt.Sprintf("%d checks hold", len(mine))
	if len(bad) > 0 {
		row.Detail = strings.Join(bad, "; ")
	}
	figures(row.Figures, s.Name, precision, r)
	return row
}

// figures adds the worst differences of a validation and the medians of a benchmark.
func figures(f map[string]report.Number, stage, precision string, r *report.Report) {
	for _, v := range r.Validations {
		if v.Stage != stage || v.Precision != precision {
			continue
		}
		for _, row := range v.Rows {
			if m, ok := row.Metrics["max_abs"]; ok && m > f["max_abs"] {
				f["max_abs"] = m
			}
		}
		if v.Task != nil {
			f["reference_"+v.Task.Metric], f[v.Task.Metric] = v.Task.Reference, v.Task.Candidate
		}
	}
	if stage != "benchmark" || r.Benchmark == nil {
		return
	}
	for _, m := range r.Benchmark.Rows {
		if m.Backend == "tensorrt" && m.Precision == precision {
			key := fmt.Sprintf("compute_p50_ms batch=%d streams=%d %s", m.Batch, m.Concurrency, m.Mode)
			f[key] = m.Phases["compute"].P50
			f[strings.Replace(key, "compute_p50_ms", "samples_per_s", 1)] = m.Throughput
		}
	}
}

// reuseRow says whether a second run built nothing.
func reuseRow(subject string, r *report.Report) Row {
	row := Row{Area: "reuse", Subject: subject, Verdict: pass, Detail: "the second run reuses every cacheable stage"}
	var again []string
	for _, s := range r.Stages {
		if !s.Cached && s.Verdict != report.Skip && s.Verdict != report.NotAsked {
			again = append(again, s.Name+" ("+strings.Join(s.Changed, ", ")+")")
		}
	}
	if len(again) > 0 {
		row.Verdict, row.Detail = fail, "ran again: "+strings.Join(again, ", ")
	}
	return row
}
