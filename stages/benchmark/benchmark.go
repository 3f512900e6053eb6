// Package benchmark is the stage that measures the model: ONNX Runtime on the
// CPU as the baseline, and the engines on the GPU. A slow result is no failure
// here; budgets and baselines are the gate's.
package benchmark

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/ort"
	"github.com/trtship/trtship/internal/stage"
	"github.com/trtship/trtship/report"
)

const (
	name          = "benchmark"
	checkMeasured = name + "/measured"
	modelFile     = "model.onnx"
)

// Engines measures TensorRT engines. What it could not measure is in the
// skipped rows; an error means that nothing could be found out.
type Engines interface {
	Measure(ctx context.Context, engines []artifact.Artifact, out Workplace) ([]report.Measurement, []report.SkippedRow, error)
	// Tools are the versions that decide the numbers, by name.
	Tools(ctx context.Context) (map[string]string, error)
}

// Workplace is the part of stage.Outputs that a measurement needs.
type Workplace interface {
	Scratch(name string) (string, error)
	Log() io.Writer
	Progress(done, total int64, label string)
}

// Stage measures.
type Stage struct {
	cfg     *config.Config
	lib     ort.Library
	engines Engines
	rivals  Rivals
}

// New returns the stage. engines is nil where the configuration asks for none,
// rivals where there is no baseline to be measured in turns with.
func New(cfg *config.Config, lib ort.Library, engines Engines, rivals Rivals) *Stage {
	return &Stage{cfg: cfg, lib: lib, engines: engines, rivals: rivals}
}

// wantsEngines reports whether engines are part of what was asked for.
func (s *Stage) wantsEngines() bool { return s.cfg.Target == "tensorrt" }

// OnCPU reports whether a configuration has ONNX Runtime measured.
func OnCPU(c *config.Config) bool { return c.Benchmark.Baseline || c.Target != "tensorrt" }

// Spec describes the stage.
func (s *Stage) Spec() stage.Spec {
	spec := stage.Spec{
		Name: name, Version: 1, Title: "Measure latency and throughput",
		In: []stage.In{
			{Kind: artifact.ONNX, Optional: true},
			{Kind: artifact.OptimizedONNX, Optional: true},
			{Kind: artifact.PrecisionONNX, Optional: true},
		},
		Out: []artifact.Kind{artifact.BenchmarkReport},
		Checks: []stage.CheckDoc{{
			ID: checkMeasured, Title: "Every measurement that was asked for was made, and no request failed.",
			Remedy: "Read the cause in the check; fewer workers or a smaller batch may fit into memory.", Hardware: s.wantsEngines(),
		}},
		Hardware: s.wantsEngines(),
	}
	if OnCPU(s.cfg) {
		spec.Needs = append(spec.Needs, stage.NeedORT)
	}
	if s.wantsEngines() {
		spec.In = append(spec.In, stage.In{Kind: artifact.Engine})
		spec.Needs = append(spec.Needs, stage.NeedGPU, stage.NeedTensorRT)
	}
	return spec
}

// Settings is the benchmark section.
func (s *Stage) Settings() any { return s.cfg.Benchmark }

// Sources are none: everything comes from artifacts.
func (*Stage) Sources() []string { return nil }

// Tools are the versions of the runtimes.
func (s *Stage) Tools(ctx context.Context) (map[string]string, error) {
	tools := map[string]string{"onnxruntime": s.lib.Version}
	if s.engines == nil {
		return tools, nil
	}
	more, err := s.engines.Tools(ctx)
	for n, v := range more {
		tools[n] = v
	}
	return tools, err
}

// Run measures every row, the CPU's first.
func (s *Stage) Run(ctx context.Context, in stage.Inputs, out stage.Outputs) ([]report.Check, error) {
	doc := report.Benchmark{Rows: []report.Measurement{}}
	if OnCPU(s.cfg) {
		for _, g := range s.graphs(ctx, in) {
			rows, skipped, err := ONNX(ctx, s.cfg, s.lib, g, Output{Log: out.Log(), Progress: out.Progress})
			if err != nil {
				return nil, err
			}
			doc.Rows, doc.Skipped = append(doc.Rows, rows...), append(doc.Skipped, skipped...)
		}
		doc.Notes = append(doc.Notes, "ONNX Runtime runs on the CPU, with its graph optimisation on: set against a GPU engine it shows what the GPU brings, not one framework against another")
	}
	if s.wantsEngines() {
		if err := s.measureEngines(ctx, in, out, &doc); err != nil {
			return nil, err
		}
	}
	if len(doc.Rows)+len(doc.Skipped) == 0 {
		return nil, failure.New(failure.Benchmark, "measure: there is nothing to measure: no graph and no engine")
	}
	if _, err := out.PublishDocument(artifact.BenchmarkReport, doc); err != nil {
		return nil, err
	}
	return Checks(doc), nil
}

func (s *Stage) measureEngines(ctx context.Context, in stage.Inputs, out stage.Outputs, doc *report.Benchmark) error {
	engines := in.All(artifact.Engine)
	if s.engines == nil || len(engines) == 0 {
		for _, p := range s.cfg.TensorRT.Precisions {
			doc.Skipped = append(doc.Skipped, report.SkippedRow{Name: "tensorrt " + p, Reason: "there is no engine to measure", Verdict: report.Missing})
		}
		return nil
	}
	rows, skipped, err := s.engines.Measure(ctx, engines, out)
	doc.Rows, doc.Skipped = append(doc.Rows, rows...), append(doc.Skipped, skipped...)
	return err
}

// graphs are the graphs to run in ONNX Runtime: the optimized one, else the
// exported one; and where ONNX Runtime is what serves, each other precision.
func (s *Stage) graphs(ctx context.Context, in stage.Inputs) []Graph {
	var out []Graph
	add := func(a artifact.Artifact, precision string) {
		out = append(out, Graph{Path: filepath.Join(a.Dir, modelFile), Precision: precision, Rival: s.rivals.of(ctx, a)})
	}
	for _, kind := range []artifact.Kind{artifact.OptimizedONNX, artifact.ONNX} {
		if all := in.All(kind); len(all) > 0 {
			add(all[0], "fp32")
			break
		}
	}
	if s.wantsEngines() {
		return out
	}
	for _, a := range in.All(artifact.PrecisionONNX) {
		if a.Label != "fp32" {
			add(a, a.Label)
		}
	}
	return out
}

// Checks says of every row whether it was measured.
func Checks(doc report.Benchmark) []report.Check {
	var checks []report.Check
	for _, m := range doc.Rows {
		c := report.Check{
			ID: checkMeasured, Subject: report.Subject{Precision: m.Precision, Node: m.Row()},
			Verdict: report.Pass, Want: "no request fails", Got: fmt.Sprintf("%d requests, %d failed", m.Requests, m.Errors),
			Hardware: m.Device != cpu,
		}
		if m.Errors > 0 {
			c.Verdict = report.Fail
			c.Detail = m.Notes[0]
		}
		if l, ok := m.Latency(); ok {
			c.Metrics = map[string]report.Number{"latency_p50_ms": l.P50, "latency_p99_ms": l.P99, "throughput": m.Throughput}
		}
		checks = append(checks, c)
	}
	for _, s := range doc.Skipped {
		if s.Verdict == report.Skip {
			continue // asked for by nobody
		}
		checks = append(checks, report.Check{
			ID: checkMeasured, Subject: report.Subject{Node: s.Name}, Verdict: s.Verdict,
			Want: "a measurement", Detail: s.Reason, Hardware: s.Verdict == report.Missing,
		})
	}
	return checks
}

// Output is where a measurement tells how it goes.
type Output struct {
	Log      io.Writer
	Progress func(done, total int64, label string)
}

// broken is the skipped row of a runtime that died or refused.
func broken(row string, err error) report.SkippedRow {
	s := report.SkippedRow{Name: row, Reason: err.Error(), Verdict: report.Broken}
	if f, ok := errors.AsType[*failure.Error](err); ok {
		if _, crashed := errors.AsType[*ort.CrashError](err); !crashed {
			s.Verdict = report.Fail
		}
		for _, d := range f.Details {
			s.Reason += fmt.Sprintf("\n%s: %s", d.Label, d.Value)
		}
	}
	return s
}
