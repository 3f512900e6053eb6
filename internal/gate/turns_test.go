package gate_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/trtship/trtship/internal/gate"
	"github.com/trtship/trtship/report"
	"github.com/trtship/trtship/report/reporttest"
)

// ofBase is the engine that the baseline of these tests has.
const ofBase = "sha256:1111111111110000000000000000000000000000000000000000000000000000"

// inTurns gives the engine's row of a report blocks in turns with a baseline's
// engine, each of so many milliseconds, and returns that baseline, whose own
// samples are the report's.
func inTurns(head *report.Report, base, ours func(i int) float64) (*report.Report, *report.Interleaved) {
	b := reporttest.Full()
	b.Run.ID = "base-run"
	var mine string
	for i := range b.Artifacts {
		if b.Artifacts[i].Kind == "engine" {
			mine, b.Artifacts[i].Digest = b.Artifacts[i].Digest, ofBase
		}
	}
	il := &report.Interleaved{Run: "base-run", Baseline: "engine-111111111111", BaseDigest: ofBase, HeadDigest: mine, Metric: "compute_p50_ms"}
	for i := range 40 {
		il.Base, il.Head = append(il.Base, report.Number(base(i))), append(il.Head, report.Number(ours(i)))
	}
	head.Benchmark.Rows[1].Interleaved = il
	return b, il
}

func steadyAt(ms float64) func(int) float64 { return func(int) float64 { return ms } }

// identical makes the blocks what an engine has that is the baseline's own.
func identical(b *report.Report, il *report.Interleaved) {
	for i := range b.Artifacts {
		if b.Artifacts[i].Kind == "engine" {
			b.Artifacts[i].Digest = il.HeadDigest
		}
	}
	il.BaseDigest, il.Base, il.Head = il.HeadDigest, nil, nil
}

// slower makes the samples of the engine's row so much slower.
func slower(r *report.Report, by float64) {
	for k := range r.Benchmark.Rows[1].Samples {
		r.Benchmark.Rows[1].Samples[k] *= report.Number(by)
	}
}

func TestBlocksInTurnsDecide(t *testing.T) {
	drift := func(i int) float64 { return 1 + 0.01*float64(i) } // of both: the clocks fall while they are measured
	for name, c := range map[string]struct {
		base, ours func(int) float64
		samples    float64 // of this run, against those of the baseline's
		baseline   bool
		want       int
	}{
		"slower, though the samples are the same":        {drift, func(i int) float64 { return 1.05 * drift(i) }, 1, true, 12},
		"the same, though the samples are slower":        {drift, drift, 1.1, true, 0},
		"slower, by blocks that need no baseline's file": {drift, func(i int) float64 { return 1.05 * drift(i) }, 1, false, 12},
		"too noisy to say":                               {steadyAt(1), func(i int) float64 { return []float64{0.9, 1.12}[i%2] }, 1, true, 13},
	} {
		t.Run(name, func(t *testing.T) {
			head := reporttest.Full()
			base, _ := inTurns(head, c.base, c.ours)
			slower(head, c.samples)
			if !c.baseline {
				base = nil
			}
			g := gate.Judge(head, base, gate.Options{})
			if g.ExitCode != c.want || !slices.ContainsFunc(g.Deltas, func(d report.Delta) bool {
				return d.Metric == "compute_p50_ms" && strings.Contains(d.Detail, "measured in turns with engine-111111111111 of run base-run")
			}) {
				t.Errorf("exit %d, want %d: %+v", g.ExitCode, c.want, g.Deltas)
			}
		})
	}
}

func TestTooFewBlocksInTurnsAreAGapWithItsRemedy(t *testing.T) {
	head := reporttest.Full()
	base, il := inTurns(head, steadyAt(1), steadyAt(1))
	il.Base, il.Head = il.Base[:9], il.Head[:9]
	g := gate.Judge(head, base, gate.Options{})
	if g.ExitCode != 13 || !slices.ContainsFunc(g.Reasons, func(r report.Reason) bool { return strings.Contains(r.Hint, "raise benchmark.max_seconds") }) {
		t.Errorf("exit %d, want 13: %+v", g.ExitCode, g.Reasons)
	}
}

func TestAnEngineThatIsTheBaselinesCannotHaveRegressed(t *testing.T) {
	head := reporttest.Full()
	slower(head, 1.1)
	head.Benchmark.Rows[1].Throughput /= 2
	head.Settings.Budgets = append(head.Settings.Budgets, report.Budget{Metric: "throughput", Where: map[string]string{"precision": "fp16"}, MaxDrop: reporttest.Number(0.05)})
	base, il := inTurns(head, steadyAt(1), steadyAt(1))
	head.Benchmark.Rows[1].Interleaved = nil
	if g := gate.Judge(head, base, gate.Options{}); g.ExitCode != 12 {
		t.Fatalf("exit %d by the samples alone, want 12", g.ExitCode)
	}
	identical(base, il)
	head.Benchmark.Rows[1].Interleaved = il
	g := gate.Judge(head, base, gate.Options{})
	if g.ExitCode != 0 || !slices.ContainsFunc(g.Deltas, func(d report.Delta) bool {
		return d.Change == report.Same && strings.Contains(d.Detail, "engine-111111111111 of run base-run, byte for byte")
	}) {
		t.Errorf("exit %d, deltas %+v, reasons %+v", g.ExitCode, g.Deltas, g.Reasons)
	}
}

// A run may have been measured in turns with another run than the one that it is
// held to.
func TestBlocksOfAnotherBaselineDoNotCount(t *testing.T) {
	for name, change := range map[string]func(base *report.Report, il *report.Interleaved, head *report.Report){
		"another baseline's engine": func(_ *report.Report, il *report.Interleaved, _ *report.Report) {
			il.BaseDigest = strings.Replace(ofBase, "11", "22", 1)
		},
		"the engine itself, which the baseline has not": func(_ *report.Report, il *report.Interleaved, _ *report.Report) {
			il.BaseDigest, il.Base, il.Head = il.HeadDigest, nil, nil
		},
		"another engine than this run's": func(base *report.Report, il *report.Interleaved, _ *report.Report) {
			il.HeadDigest = strings.Replace(ofBase, "11", "33", 1)
		},
		"the baseline's engine of another precision": func(base *report.Report, _ *report.Interleaved, _ *report.Report) {
			for i := range base.Artifacts {
				base.Artifacts[i].Label += "x"
			}
		},
		"a baseline that names no artifacts": func(base *report.Report, _ *report.Interleaved, _ *report.Report) { base.Artifacts = nil },
	} {
		t.Run(name, func(t *testing.T) {
			head := reporttest.Full()
			slower(head, 1.1)
			base, il := inTurns(head, steadyAt(1), steadyAt(1))
			if g := gate.Judge(head, base, gate.Options{}); g.ExitCode != 0 {
				t.Fatalf("exit %d before the change, want 0", g.ExitCode)
			}
			change(base, il, head)
			g := gate.Judge(head, base, gate.Options{})
			if g.ExitCode != 12 || !slices.ContainsFunc(g.Notes, func(n string) bool { return strings.Contains(n, "compared with what the baseline's run measured") }) {
				t.Errorf("exit %d, want 12 by the samples: notes %q", g.ExitCode, g.Notes)
			}
		})
	}
}

func TestBlocksThatNobodyMeasuredAreAGap(t *testing.T) {
	for name, change := range map[string]func(il *report.Interleaved){
		"no blocks":          func(il *report.Interleaved) { il.Base, il.Head = nil, nil },
		"of other lengths":   func(il *report.Interleaved) { il.Head = il.Head[1:] },
		"negative":           func(il *report.Interleaved) { il.Base[3] = -1 },
		"nothing":            func(il *report.Interleaved) { il.Head[0] = 0 },
		"not a number":       func(il *report.Interleaved) { il.Head[0] = report.Number(math.NaN()) },
		"without end":        func(il *report.Interleaved) { il.Base[0] = report.Number(math.Inf(1)) },
		"of thirty years":    func(il *report.Interleaved) { il.Base[0] = 1e308 },
		"of throughput":      func(il *report.Interleaved) { il.Metric = "throughput" },
		"of no metric":       func(il *report.Interleaved) { il.Metric = "" },
		"of no artifact":     func(il *report.Interleaved) { il.BaseDigest = "../../etc/passwd" },
		"against itself":     func(il *report.Interleaved) { il.BaseDigest = il.HeadDigest },
		"an empty structure": func(il *report.Interleaved) { *il = report.Interleaved{} },
	} {
		t.Run(name, func(t *testing.T) {
			for _, device := range []string{"NVIDIA H200", "cpu"} {
				head := reporttest.Full()
				base, il := inTurns(head, steadyAt(1), steadyAt(1))
				head.Benchmark.Rows[1].Device, base.Benchmark.Rows[1].Device = device, device
				change(il)
				if g := gate.Judge(head, base, gate.Options{}); g.ExitCode != 13 {
					t.Errorf("%s: exit %d, want 13: %+v", device, g.ExitCode, g.Reasons)
				}
			}
		})
	}
}

func TestABaselineThatDidNotPassIsNamed(t *testing.T) {
	base := reporttest.Full()
	base.Run.ID, base.Verdict = "base-run", report.Broken
	if g := gate.Judge(reporttest.Full(), base, gate.Options{}); !slices.ContainsFunc(g.Notes, func(n string) bool {
		return strings.Contains(n, "run base-run, did not pass itself: its verdict is broken")
	}) {
		t.Errorf("notes %q", g.Notes)
	}
}

func TestAProcessorInTurnsIsJudgedWhereABudgetAsksForIt(t *testing.T) {
	for name, c := range map[string]struct {
		budget, slower float64
		want           int
	}{"no budget": {0, 1.5, 0}, "within it": {0.1, 1.05, 0}, "beyond it": {0.1, 1.2, 12}} {
		t.Run(name, func(t *testing.T) {
			head := reporttest.Full()
			base, _ := inTurns(head, steadyAt(1), steadyAt(c.slower))
			head.Benchmark.Rows[1].Device, base.Benchmark.Rows[1].Device = "cpu", "cpu"
			if c.budget > 0 {
				head.Settings.Budgets = append(head.Settings.Budgets, report.Budget{Metric: "latency_p50_ms", Where: map[string]string{"precision": "fp16"}, MaxRise: reporttest.Number(c.budget)})
			}
			if g := gate.Judge(head, base, gate.Options{}); g.ExitCode != c.want {
				t.Errorf("exit %d, want %d: %+v", g.ExitCode, c.want, g.Reasons)
			}
		})
	}
}
