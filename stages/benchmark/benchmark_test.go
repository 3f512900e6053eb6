package benchmark

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/ort"
	"github.com/trtship/trtship/internal/stage"
	"github.com/trtship/trtship/internal/testkit"
	"github.com/trtship/trtship/report"
)

func TestMain(m *testing.M) {
	ort.RunChildIfAsked()
	testkit.Main(m)
}

type given map[artifact.Kind][]artifact.Artifact

func (i given) One(kind artifact.Kind) (artifact.Artifact, error) {
	if len(i[kind]) != 1 {
		return artifact.Artifact{}, fmt.Errorf("there are %d of %s", len(i[kind]), kind)
	}
	return i[kind][0], nil
}

func (i given) All(kind artifact.Kind) []artifact.Artifact { return i[kind] }

var _ stage.Inputs = given{}

// folder is an artifact with one graph of the field failures.
func folder(t *testing.T, kind artifact.Kind, label string, parts ...string) artifact.Artifact {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(append([]string{testkit.Root(t), "testdata", "cases"}, parts...)...))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, modelFile), b, 0o600); err != nil {
		t.Fatal(err)
	}
	return artifact.Artifact{Record: artifact.Record{Kind: kind, Label: label}, Dir: dir}
}

func library(t *testing.T) ort.Library {
	t.Helper()
	lib, err := ort.Find(t.Context(), ort.Places{File: testkit.ORTLibrary(t)})
	if err != nil {
		t.Fatal(err)
	}
	return lib
}

// load reads a configuration; FILE stands for a graph.
func load(t *testing.T, text string, set ...string) *config.Config {
	t.Helper()
	path := filepath.Join(t.TempDir(), "trtship.yaml")
	file := filepath.Join(testkit.Root(t), "testdata", "cases", "e03-training-mode-ops", "dropout_eval.onnx")
	if err := os.WriteFile(path, []byte(strings.ReplaceAll(text, "FILE", file)), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(path, config.Options{Set: set})
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

const dynamic = `
model: {name: m, kind: onnx, path: FILE}
target: onnxruntime
tensorrt:
  profiles:
    - inputs:
        x: {min: [1, 64], opt: [4, 64], max: [8, 64]}
benchmark: {iters: 20, warmup_iters: 5, batch_sizes: [1, 8], concurrency: [1, 2], threads: 1}
`

func run(t *testing.T, cfg *config.Config, engines Engines, in given) ([]report.Check, report.Benchmark, error) {
	t.Helper()
	out := testkit.NewOutputs(t)
	s := New(cfg, library(t), engines, nil)
	checks, err := s.Run(t.Context(), in, out)
	var doc report.Benchmark
	if b := out.Documents[artifact.BenchmarkReport]; b != nil {
		if err := json.Unmarshal(b, &doc); err != nil {
			t.Fatal(err)
		}
	}
	return checks, doc, err
}

func TestEveryPairOfBatchAndConcurrencyIsMeasured(t *testing.T) {
	in := given{
		artifact.ONNX:          {folder(t, artifact.ONNX, "", "o14-not-a-model", "html.onnx")}, // the optimized one is taken
		artifact.OptimizedONNX: {folder(t, artifact.OptimizedONNX, "", "e03-training-mode-ops", "dropout_eval.onnx")},
		artifact.PrecisionONNX: {folder(t, artifact.PrecisionONNX, "fp32", "o14-not-a-model", "html.onnx"), folder(t, artifact.PrecisionONNX, "fp16", "e03-training-mode-ops", "dropout_eval.onnx")},
	}
	checks, doc, err := run(t, load(t, dynamic), nil, in)
	if err != nil {
		t.Fatal(err)
	}
	var rows []string
	for _, m := range doc.Rows {
		rows = append(rows, m.Row())
		e := m.Phases["end_to_end"]
		if m.Requests != 20*m.Concurrency || e.Count != m.Requests || len(m.Samples) != m.Requests || m.Errors != 0 {
			t.Errorf("%s: %d requests, %d samples, %d errors", m.Row(), m.Requests, len(m.Samples), m.Errors)
		}
		sum := m.Phases["preprocess"].Mean + m.Phases["execute"].Mean + m.Phases["postprocess"].Mean
		if sum <= 0 || sum > e.Mean {
			t.Errorf("%s: the phases take %v of %v", m.Row(), sum, e.Mean)
		}
		if m.PeakRSS < 1<<20 || m.ColdMs == nil || *m.LoadMs <= 0 || m.Throughput <= 0 || m.Device != "cpu" {
			t.Errorf("%s: %+v", m.Row(), m)
		}
		if !slices.ContainsFunc(m.Notes, func(n string) bool { return strings.Contains(n, "fewer than 100") }) == (m.Requests < 100) {
			t.Errorf("%s: notes %q", m.Row(), m.Notes)
		}
	}
	var want []string
	for _, p := range []string{"fp32", "fp16"} {
		for _, b := range []int{1, 8} {
			for _, c := range []int{1, 2} {
				want = append(want, fmt.Sprintf("onnxruntime %s batch %d concurrency %d graph-optimisation=all threads=1", p, b, c))
			}
		}
	}
	if diff := cmp.Diff(want, rows); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if report.Of(checks) != report.Pass || len(checks) != 8 {
		t.Errorf("%d checks: %+v", len(checks), checks)
	}
	if len(doc.Notes) == 0 || !strings.Contains(doc.Notes[0], "graph optimisation on") {
		t.Errorf("notes %q", doc.Notes)
	}
}

func TestAFixedBatchIsMeasuredOnceAndSaid(t *testing.T) {
	cfg := load(t, `
model:
  name: m
  kind: onnx
  path: FILE
  inputs: [{name: x, dtype: float32, shape: [4, 64]}]
target: onnxruntime
benchmark: {iters: 5, batch_sizes: [4]}
`)
	cfg.Benchmark.BatchSizes = []int{1, 4, 8} // a caller's own list
	in := given{artifact.ONNX: {folder(t, artifact.ONNX, "", "e03-training-mode-ops", "dropout_eval.onnx")}}
	_, doc, err := run(t, cfg, nil, in)
	if err != nil {
		t.Fatal(err)
	}
	if len(doc.Rows) != 2 || doc.Rows[0].Batch != 4 || !strings.Contains(strings.Join(doc.Rows[0].Notes, "\n"), "fixed at 4; batch_sizes asks for 1") {
		t.Errorf("rows %+v", doc.Rows)
	}
	if len(doc.Skipped) != 1 || doc.Skipped[0].Verdict != report.Skip || !strings.Contains(doc.Skipped[0].Reason, "fixed at 4") {
		t.Errorf("skipped %+v", doc.Skipped)
	}
}

func TestAGraphThatDoesNotRunIsAFailedCheck(t *testing.T) {
	cfg := load(t, dynamic, "benchmark.batch_sizes=[1]", "benchmark.concurrency=[1]")
	cases := map[string]struct {
		graph []string
		want  report.Verdict
		text  string
	}{
		"an operator nobody knows": {[]string{"e07-unknown-ops", "domain_not_imported.onnx"}, report.Fail, "Foo"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			checks, doc, err := run(t, cfg, nil, given{artifact.ONNX: {folder(t, artifact.ONNX, "", c.graph...)}})
			if failure.CodeOf(err) == failure.Model {
				return // our own reader refused it before
			}
			if err != nil || len(doc.Rows) != 0 || report.Of(checks) != c.want || !strings.Contains(checks[0].Detail, c.text) {
				t.Errorf("%v: %+v", err, checks)
			}
		})
	}
}

func TestACrashIsABrokenCheck(t *testing.T) {
	cfg := load(t, strings.Replace(dynamic, "[1, 64], opt: [4, 64], max: [8, 64]", "[2, 6], opt: [2, 6], max: [2, 6]", 1), "benchmark.batch_sizes=[2]", "benchmark.concurrency=[1]")
	checks, doc, err := run(t, cfg, nil, given{artifact.ONNX: {folder(t, artifact.ONNX, "", "o09-empty-optional-names", "split_empty_output.onnx")}})
	if err != nil {
		t.Fatal(err)
	}
	if len(doc.Skipped) != 1 || report.Of(checks) == report.Pass {
		t.Fatalf("%+v", doc)
	}
	if checks[0].Verdict == report.Broken && !strings.Contains(checks[0].Detail, "SIGSEGV") {
		t.Errorf("check %+v", checks[0])
	}
}

// engines is a GPU that is not there.
type engines struct {
	rows []report.Measurement
	err  error
}

func (e engines) Measure(context.Context, []artifact.Artifact, Workplace) ([]report.Measurement, []report.SkippedRow, error) {
	return e.rows, []report.SkippedRow{{Name: "tensorrt int8", Reason: "does not load", Verdict: report.Fail}}, e.err
}

func (engines) Tools(context.Context) (map[string]string, error) {
	return map[string]string{"tensorrt": "10.6"}, nil
}

func TestEnginesAreMeasuredWhereTheyAreAskedFor(t *testing.T) {
	cfg := load(t, strings.Replace(dynamic, "onnxruntime", "tensorrt", 1), "benchmark.batch_sizes=[1]", "benchmark.concurrency=[1]")
	row := report.Measurement{Backend: "tensorrt", Device: "H200", Precision: "fp32", Batch: 1, Concurrency: 1, Requests: 10, Errors: 1, Notes: []string{"1 of 11 requests failed"}}
	in := given{artifact.ONNX: {folder(t, artifact.ONNX, "", "e03-training-mode-ops", "dropout_eval.onnx")}, artifact.Engine: {{}}}
	checks, doc, err := run(t, cfg, engines{rows: []report.Measurement{row}}, in)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range checks {
		got = append(got, fmt.Sprintf("%s %s %v %s", c.Subject.Node, c.Verdict, c.Hardware, c.Detail))
	}
	want := []string{
		"onnxruntime fp32 batch 1 concurrency 1 graph-optimisation=all threads=1 pass false ",
		"tensorrt fp32 batch 1 concurrency 1 fail true 1 of 11 requests failed",
		"tensorrt int8 fail false does not load",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if len(doc.Rows) != 2 {
		t.Errorf("rows %+v", doc.Rows)
	}
	if _, _, err := run(t, cfg, engines{err: errors.New("gone")}, in); err == nil {
		t.Error("an engine that cannot be measured at all is no error")
	}
	// Asked for, and nobody to measure them.
	checks, doc, err = run(t, cfg, nil, in)
	if err != nil || doc.Skipped[0].Verdict != report.Missing || report.Of(checks) != report.Missing {
		t.Errorf("%v: %+v", err, doc.Skipped)
	}
	s := New(cfg, library(t), engines{}, nil)
	if tools, err := s.Tools(t.Context()); err != nil || tools["tensorrt"] != "10.6" || tools["onnxruntime"] == "" {
		t.Errorf("tools %v, %v", tools, err)
	}
	if n := s.Spec().Needs; !slices.Equal(n, []stage.Need{stage.NeedORT, stage.NeedGPU, stage.NeedTensorRT}) || !s.Spec().Hardware || s.Spec().Cacheable {
		t.Errorf("spec %+v", s.Spec())
	}
	if s.Sources() != nil || s.Settings() == nil {
		t.Error("sources or settings")
	}
}

func TestNothingToMeasureIsExit9(t *testing.T) {
	if _, _, err := run(t, load(t, dynamic), nil, given{}); failure.CodeOf(err) != failure.Benchmark {
		t.Errorf("err = %v", err)
	}
}
