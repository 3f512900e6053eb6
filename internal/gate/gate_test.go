package gate_test

import (
	"strings"
	"testing"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/gate"
	"github.com/trtship/trtship/report"
	"github.com/trtship/trtship/report/reporttest"
)

func TestEverySituationGetsItsVerdictAndExitCode(t *testing.T) {
	for _, c := range reporttest.Cases() {
		t.Run(c.Name, func(t *testing.T) {
			g := gate.Judge(c.Report, c.Baseline, gate.Options{Source: c.Source})
			if g.Verdict != c.Verdict || g.ExitCode != c.ExitCode {
				t.Errorf("verdict %s, exit %d; want %s, %d; reasons %+v", g.Verdict, g.ExitCode, c.Verdict, c.ExitCode, g.Reasons)
			}
			if (g.ExitCode == 0) != (len(g.Reasons) == 0) {
				t.Errorf("exit %d with %d reasons", g.ExitCode, len(g.Reasons))
			}
		})
	}
}

// judged changes a full report and returns the gate's result.
func judged(t *testing.T, o gate.Options, change func(r *report.Report)) *report.Gate {
	t.Helper()
	r := reporttest.Full()
	change(r)
	return gate.Judge(r, nil, o)
}

func TestWhatIsNotMeasuredIsNotGood(t *testing.T) {
	type row struct {
		name    string
		change  func(r *report.Report)
		options gate.Options
		verdict report.Verdict
		code    failure.Code
	}
	stage := reporttest.Stage
	missing := func(name string) func(r *report.Report) {
		return func(r *report.Report) {
			s := stage(r, name)
			s.Verdict, s.Checks, s.Reason = report.Missing, nil, "no GPU"
		}
	}
	cut := func(names ...string) func(r *report.Report) {
		return func(r *report.Report) {
			r.Run.Until = "optimize"
			for _, n := range names {
				s := stage(r, n)
				s.Verdict, s.Checks = report.NotAsked, nil
			}
			r.Benchmark, r.Settings.Budgets = nil, nil
		}
	}
	hardware := []string{"build", "validate_engine", "benchmark", "package", "served"}
	all := func(fs ...func(*report.Report)) func(*report.Report) {
		return func(r *report.Report) {
			for _, f := range fs {
				f(r)
			}
		}
	}
	optional := func(r *report.Report) { r.Settings.Hardware = "optional" }
	for _, c := range []row{
		{"a full run passes", func(*report.Report) {}, gate.Options{}, report.Pass, 0},
		{"a missing hardware stage fails where hardware is required", missing("build"), gate.Options{}, report.Missing, failure.Incomplete},
		{"a missing hardware stage is said where hardware is optional", all(missing("build"), optional), gate.Options{}, report.Pass, 0},
		{"a missing stage that needs no hardware fails in any case", all(missing("export"), optional), gate.Options{}, report.Missing, failure.Incomplete},
		{"a hardware stage that was cut off fails", cut(hardware...), gate.Options{}, report.Missing, failure.Incomplete},
		{"a hardware stage that the caller's own bound cut off does not", cut(hardware...), gate.Options{Until: "optimize"}, report.Pass, 0},
		{"another bound than the run's does not excuse it", cut(hardware...), gate.Options{Until: "export"}, report.Missing, failure.Incomplete},
		{"a bound does not excuse --only", all(cut(hardware...), func(r *report.Report) { r.Run.Only = []string{"export"} }), gate.Options{Until: "optimize"}, report.Missing, failure.Incomplete},
		{"a stage that passed without a check is broken", func(r *report.Report) { stage(r, "export").Checks = nil }, gate.Options{}, report.Broken, failure.Export},
		{"a stage that broke after good checks is broken", func(r *report.Report) { stage(r, "build").Verdict = report.Broken }, gate.Options{}, report.Broken, failure.Build},
		{"an unknown verdict is not good", func(r *report.Report) { stage(r, "export").Checks[0].Verdict = "fine" }, gate.Options{}, "fine", failure.Export},
		{"an inconclusive check stops the change", func(r *report.Report) { stage(r, "benchmark").Checks[0].Verdict = report.Inconclusive }, gate.Options{}, report.Inconclusive, failure.Incomplete},
		{"a report without stages is no evidence", func(r *report.Report) { r.Stages, r.Benchmark, r.Settings.Budgets = nil, nil, nil }, gate.Options{}, report.Missing, failure.Incomplete},
		{"a verdict worse than the checks is not overlooked", func(r *report.Report) { r.Verdict, r.ExitCode = report.Fail, 6 }, gate.Options{}, report.Broken, failure.Incomplete},
		{"a required baseline that is not there is a gap", func(*report.Report) {}, gate.Options{RequireBaseline: true}, report.Missing, failure.Incomplete},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := judged(t, c.options, c.change)
			if g.Verdict != c.verdict || g.ExitCode != int(c.code) {
				t.Errorf("verdict %s, exit %d; want %s, %d; reasons %+v", g.Verdict, g.ExitCode, c.verdict, c.code, g.Reasons)
			}
		})
	}
}

func TestTheFirstBadCheckInStageOrderDecidesTheExitCode(t *testing.T) {
	g := judged(t, gate.Options{}, func(r *report.Report) {
		reporttest.Stage(r, "served").Checks[0].Verdict = report.Broken
		reporttest.Stage(r, "validate_engine").Checks[0].Verdict = report.Fail
		r.Settings.Budgets[0].Max = reporttest.Number(0.01)
	})
	if g.ExitCode != int(failure.Tolerance) || g.Verdict != report.Broken || len(g.Reasons) != 3 {
		t.Errorf("exit %d, verdict %s, %d reasons; want 6, broken, 3", g.ExitCode, g.Verdict, len(g.Reasons))
	}
}

func TestTheExitCodesOfStages(t *testing.T) {
	for stage, want := range map[string]failure.Code{
		"inspect": 4, "export": 5, "validate": 6, "optimize": 6, "validate_optimized": 6, "calibrate": 8, "quantize": 6,
		"build": 7, "validate_engine": 6, "benchmark": 9, "package": 10, "served": 10, "no-such": 70,
	} {
		for _, v := range []report.Verdict{report.Fail, report.Broken, "unheard-of"} {
			if got := failure.ForCheck(stage, v, failure.InGate); got != want {
				t.Errorf("%s %s: exit %d, want %d", stage, v, got, want)
			}
		}
	}
	for v, want := range map[report.Verdict][2]failure.Code{
		report.Pass: {0, 0}, report.Skip: {0, 0}, report.NotAsked: {0, 0}, report.Missing: {3, 13}, report.Inconclusive: {13, 13},
	} {
		if run, in := failure.ForCheck("build", v, failure.InRun), failure.ForCheck("build", v, failure.InGate); run != want[0] || in != want[1] {
			t.Errorf("%s: exit %d in a run and %d in the gate, want %v", v, run, in, want)
		}
	}
}

func reasonsOf(g *report.Gate, id string) []report.Reason {
	var out []report.Reason
	for _, r := range g.Reasons {
		if r.Check == id {
			out = append(out, r)
		}
	}
	return out
}

func checksOf(g *report.Gate, id string) []report.Check {
	var out []report.Check
	for _, c := range g.Checks {
		if c.ID == id {
			out = append(out, c)
		}
	}
	return out
}

func TestBudgets(t *testing.T) {
	type row struct {
		name   string
		budget report.Budget
		base   bool
		change func(head, base *report.Report)
		want   report.Verdict
		code   failure.Code
	}
	n := reporttest.Number
	fp16 := map[string]string{"precision": "fp16"}
	none := func(_, _ *report.Report) {}
	for _, c := range []row{
		{"a limit that holds passes", report.Budget{Metric: "latency_p99_ms", Where: fp16, Max: n(5)}, false, none, report.Pass, 0},
		{"a limit that is exceeded fails", report.Budget{Metric: "latency_p99_ms", Where: fp16, Max: n(0.1)}, false, none, report.Fail, failure.Regression},
		{"a throughput that is too low fails", report.Budget{Metric: "throughput", Min: n(1e9)}, false, none, report.Fail, failure.Regression},
		{"the size of an engine is limited", report.Budget{Metric: "engine_bytes", Max: n(1000)}, false, none, report.Fail, failure.Regression},
		{"memory is limited", report.Budget{Metric: "gpu_memory_bytes", Max: n(1 << 40)}, false, none, report.Pass, 0},
		{"peak memory is limited", report.Budget{Metric: "peak_rss_bytes", Max: n(1)}, false, none, report.Fail, failure.Regression},
		{"loading is limited", report.Budget{Metric: "load_ms", Max: n(80)}, false, none, report.Fail, failure.Regression},
		{"building is limited", report.Budget{Metric: "build_seconds", Max: n(40)}, false, none, report.Fail, failure.Regression},
		{"the cold call is limited", report.Budget{Metric: "cold_ms", Max: n(1e6)}, false, none, report.Pass, 0},
		{"nodes are counted", report.Budget{Metric: "nodes", Max: n(10)}, false, none, report.Fail, failure.Regression},
		{"bytes of the graph are counted", report.Budget{Metric: "onnx_bytes", Max: n(1 << 30)}, false, none, report.Pass, 0},
		{"accuracy must not fall below a limit", report.Budget{Metric: "accuracy", Min: n(0.97)}, false, func(h, _ *report.Report) {
			h.Validations[2].Task = &report.Task{Metric: "accuracy", Samples: 100, Reference: 0.98, Candidate: 0.96}
		}, report.Fail, failure.Regression},
		{"a NaN does not pass", report.Budget{Metric: "throughput", Min: n(0)}, false, func(h, _ *report.Report) { h.Benchmark.Rows[0].Throughput = report.Number(nan()) }, report.Fail, failure.Regression},
		{"a budget that nothing was measured for is a gap", report.Budget{Metric: "latency_p99_ms", Where: map[string]string{"precision": "int8"}, Max: n(5)}, false, none, report.Missing, failure.Incomplete},
		{"a metric that nobody knows is broken", report.Budget{Metric: "beauty", Max: n(5)}, false, none, report.Broken, failure.Incomplete},
		{"a restriction that nobody knows is broken", report.Budget{Metric: "throughput", Where: map[string]string{"colour": "red"}, Max: n(5)}, false, none, report.Broken, failure.Incomplete},
		{"without a baseline a relative limit is skipped", report.Budget{Metric: "throughput", MaxDrop: n(0.1)}, false, none, report.Skip, 0},
		{"a relative limit that holds passes", report.Budget{Metric: "throughput", MaxDrop: n(0.1)}, true, none, report.Pass, 0},
		{"a relative limit that is exceeded fails", report.Budget{Metric: "throughput", MaxDrop: n(0.1)}, true, func(_, b *report.Report) { b.Benchmark.Rows[0].Throughput *= 2 }, report.Fail, failure.Regression},
		{"an engine may not grow beyond the limit", report.Budget{Metric: "engine_bytes", MaxRise: n(0.05)}, true, func(h, _ *report.Report) {
			size := int64(500000)
			h.Benchmark.Rows[1].EngineBytes = &size
		}, report.Fail, failure.Regression},
		{"speeds of another machine are not compared", report.Budget{Metric: "latency_p99_ms", MaxRise: n(0.05)}, true, func(_, b *report.Report) { b.Environment.GPUs[0].Driver = "1.2" }, report.Skip, 0},
		{"sizes of another machine are compared", report.Budget{Metric: "nodes", MaxRise: n(0.05)}, true, func(h, b *report.Report) { b.Environment.GPUs[0].Driver, h.Optimize.NodesAfter = "1.2", 12 }, report.Fail, failure.Regression},
	} {
		t.Run(c.name, func(t *testing.T) {
			head := reporttest.Full()
			head.Settings.Budgets = []report.Budget{c.budget}
			var base *report.Report
			old := reporttest.Full()
			if c.base {
				base = old
			}
			c.change(head, old)
			g := gate.Judge(head, base, gate.Options{})
			worst := report.Skip
			for _, x := range append(checksOf(g, "gate/budget"), checksOf(g, "gate/budget-relative")...) {
				if x.Verdict != report.Skip {
					worst = report.Worst(worst, x.Verdict)
					if worst == report.Skip {
						worst = x.Verdict
					}
				}
				if x.Verdict == report.Pass && worst == report.Skip {
					worst = report.Pass
				}
			}
			if worst != c.want || g.ExitCode != int(c.code) {
				t.Errorf("verdict %s, exit %d; want %s, %d; checks %+v", worst, g.ExitCode, c.want, c.code, g.Checks)
			}
		})
	}
}

func nan() float64 { z := 0.0; return z / z }

func TestABudgetForHardwareIsSkippedWhereHardwareIsOptional(t *testing.T) {
	g := judged(t, gate.Options{}, func(r *report.Report) {
		r.Settings.Hardware = "optional"
		s := reporttest.Stage(r, "benchmark")
		s.Verdict, s.Checks = report.Missing, nil
		r.Benchmark = nil
	})
	if g.ExitCode != 0 {
		t.Errorf("exit %d, want 0: %+v", g.ExitCode, g.Reasons)
	}
	if c := checksOf(g, "gate/budget"); len(c) != 1 || c[0].Verdict != report.Skip {
		t.Errorf("budget %+v, want one skipped check", c)
	}
	if !strings.Contains(strings.Join(g.Notes, " "), "Missing, which proves nothing: benchmark") {
		t.Errorf("notes %q do not say what did not run", g.Notes)
	}
}

func TestWhatTheBaselineHadMustStillBeThere(t *testing.T) {
	type row struct {
		name   string
		change func(head *report.Report)
		allow  []string
		gone   string
		want   report.Verdict
	}
	for _, c := range []row{
		{"a measurement that vanished fails", func(h *report.Report) { h.Benchmark.Rows = h.Benchmark.Rows[:2] }, nil, "onnxruntime fp32 batch 8 concurrency 1 threads=16", report.Fail},
		{"one that was allowed to does not", func(h *report.Report) { h.Benchmark.Rows = h.Benchmark.Rows[:2] }, []string{"onnxruntime *"}, "", report.Pass},
		{"an output that is no longer compared fails", func(h *report.Report) { h.Validations[0].Rows = h.Validations[0].Rows[1:] }, nil, "validate logits min", report.Fail},
		{"a stage that is gone fails", func(h *report.Report) { h.Stages = h.Stages[1:] }, nil, "stage inspect", report.Fail},
		{"turning the benchmark off fails", func(h *report.Report) {
			h.Benchmark, h.Settings.Budgets = nil, nil
			s := reporttest.Stage(h, "benchmark")
			s.Verdict, s.Checks = report.Skip, nil
		}, nil, "tensorrt fp32 batch 8 concurrency 1 cuda-graph=on", report.Fail},
		{"a row that could not be measured fails with its reason", func(h *report.Report) {
			h.Benchmark.Skipped = []report.SkippedRow{{Name: h.Benchmark.Rows[2].Row(), Reason: "out of memory", Verdict: report.Broken}}
			h.Benchmark.Rows = h.Benchmark.Rows[:2]
		}, nil, "onnxruntime fp32 batch 8 concurrency 1 threads=16", report.Fail},
		{"a row in another mode is refused by name", func(h *report.Report) { h.Benchmark.Rows[1].Mode = "cuda-graph=off" }, nil, "tensorrt fp16 batch 8 concurrency 1 cuda-graph=on", report.Missing},
	} {
		t.Run(c.name, func(t *testing.T) {
			head := reporttest.Full()
			c.change(head)
			g := gate.Judge(head, reporttest.Full(), gate.Options{AllowVanished: c.allow})
			found := checksOf(g, "gate/vanished")
			if c.gone == "" {
				if len(found) != 0 || g.ExitCode != 0 {
					t.Fatalf("checks %+v, exit %d; want none, 0", found, g.ExitCode)
				}
				return
			}
			if len(found) == 0 || found[0].Subject.Node != c.gone || found[0].Verdict != c.want {
				t.Fatalf("checks %+v, want %s %s", found, c.gone, c.want)
			}
			want := failure.Regression
			if c.want == report.Missing {
				want = failure.Incomplete
			}
			if g.ExitCode != int(want) {
				t.Errorf("exit %d, want %d", g.ExitCode, want)
			}
		})
	}
}

func TestAStageThatDidNotRunIsNotCountedTwice(t *testing.T) {
	head := reporttest.Full()
	head.Settings.Hardware = "optional"
	for _, n := range []string{"build", "validate_engine", "benchmark"} {
		s := reporttest.Stage(head, n)
		s.Verdict, s.Checks = report.Missing, nil
	}
	head.Validations = append(head.Validations[:2:2], head.Validations[4])
	head.Benchmark, head.Settings.Budgets = nil, nil
	if g := gate.Judge(head, reporttest.Full(), gate.Options{}); g.ExitCode != 0 {
		t.Errorf("exit %d, want 0: %+v", g.ExitCode, g.Reasons)
	}
}

func TestAComparisonIsRefusedByName(t *testing.T) {
	for name, c := range map[string]struct {
		change func(base *report.Report)
		want   string
	}{
		"another GPU":              {func(b *report.Report) { b.Environment.GPUs[0].Name = "NVIDIA A100" }, "GPU: NVIDIA A100 then, NVIDIA H200 now"},
		"another driver":           {func(b *report.Report) { b.Environment.GPUs[0].Driver = "550.1" }, "driver: 550.1 then, 570.86.15 now"},
		"another TensorRT":         {func(b *report.Report) { b.Environment.Tools["tensorrt"] = "11.2.0" }, "TensorRT: 11.2.0 then, 10.6.0 now"},
		"no GPU then":              {func(b *report.Report) { b.Environment.GPUs = nil }, "GPU: none then, NVIDIA H200 now; driver: none then, 570.86.15 now"},
		"a slice of the GPU":       {func(b *report.Report) { b.Environment.GPUs[0].MIG = true }, "GPU: NVIDIA H200 (MIG) then, NVIDIA H200 now"},
		"another processor":        {func(b *report.Report) { b.Environment.Cores = 2 }, "processor: AMD EPYC 9554 with 2 cores then, AMD EPYC 9554 with 16 cores now"},
		"another ONNX Runtime":     {func(b *report.Report) { b.Environment.Tools["onnxruntime"] = "1.24.0" }, "ONNX Runtime: 1.24.0 then, 1.30.0 now"},
		"nothing, so it is judged": {func(*report.Report) {}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			base := reporttest.Full()
			c.change(base)
			head := reporttest.Full()
			for i := range head.Benchmark.Rows { // a regression that must not be judged against another machine
				for k := range head.Benchmark.Rows[i].Samples {
					head.Benchmark.Rows[i].Samples[k] *= 2
				}
			}
			g := gate.Judge(head, base, gate.Options{})
			got := strings.Join(g.Baseline.Differences, "; ")
			if got != c.want {
				t.Errorf("differences %q, want %q", got, c.want)
			}
			if regressed := len(reasonsOf(g, "gate/latency")) > 0; regressed != (c.want == "") {
				t.Errorf("regressions reported: %v", regressed)
			}
			required := gate.Judge(head, base, gate.Options{RequireBaseline: true})
			if c.want != "" && required.ExitCode != int(failure.Incomplete) {
				t.Errorf("exit %d with a required baseline, want 13", required.ExitCode)
			}
		})
	}
}

func TestDifferencesOfHardwareThatWasNotMeasuredDoNotMatter(t *testing.T) {
	head, base := reporttest.Full(), reporttest.Full()
	head.Benchmark.Rows, base.Benchmark.Rows = head.Benchmark.Rows[2:], base.Benchmark.Rows[2:]
	base.Environment.GPUs[0].Name = "another"
	if d := gate.Differences(base, head); d != nil {
		t.Errorf("differences %q, want none: only a processor was measured", d)
	}
}
