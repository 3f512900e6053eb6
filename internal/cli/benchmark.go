package cli

import (
	"context"
	"fmt"
	"io"
	"math"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/gate"
	"github.com/trtship/trtship/internal/measure"
	"github.com/trtship/trtship/internal/pipeline"
	"github.com/trtship/trtship/report"
	"github.com/trtship/trtship/stages/benchmark"
)

func newBenchmarkCmd(a *app) *cobra.Command {
	c := a.group("benchmark", "Measure models, and compare measurements", "measure")
	c.AddCommand(newBenchmarkTritonCmd(a), newBenchmarkONNXCmd(a), newBenchmarkEngineCmd(a), newBenchmarkABCmd(a), newBenchmarkCompareCmd(a), newBenchmarkOverheadCmd(a))
	return c
}

func newBenchmarkONNXCmd(a *app) *cobra.Command {
	var output string
	c := &cobra.Command{
		Use:   "onnx CONFIG [MODEL.onnx]",
		Short: "Measure ONNX Runtime on the CPU, for each batch size and concurrency",
		Long: `benchmark onnx measures the optimized graph, or MODEL.onnx, in ONNX Runtime on the CPU with its graph
optimisation on. Each pair of benchmark.batch_sizes and benchmark.concurrency has a process of
its own. Cold call, load time, phases, percentiles, peak memory and raw samples are kept.`,
		Args: positional(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error { return a.benchmarkONNX(cmd.Context(), args, output) },
	}
	c.Flags().StringVarP(&output, "output", "o", "", "write the report to this `file`, which must not exist; for benchmark compare")
	return c
}

func (a *app) benchmarkONNX(ctx context.Context, args []string, output string) error {
	if err := refuseExisting(output); err != nil {
		return err
	}
	s, err := a.step(ctx, args[0])
	if err != nil {
		return err
	}
	defer s.session.Close()
	lib, err := s.session.machine.ORT(ctx)
	if err != nil {
		return err
	}
	model := ""
	if len(args) == 2 {
		model = args[1]
	} else if model, err = s.optimized(ctx); err != nil {
		return err
	}
	snapshot, err := s.session.cfg.Snapshot(s.session.cfg.Dir)
	if err != nil {
		return err
	}
	watch := a.observer()
	watch.RunStarted("", "")
	watch.StageStarted(pipeline.StageInfo{Name: "benchmark", Title: "Measure latency and throughput", Total: 1})
	rows, skipped, err := benchmark.ONNX(ctx, s.session.cfg, lib, benchmark.Graph{Path: model, Precision: "fp32"}, benchmark.Output{
		Log:      io.Discard,
		Progress: func(done, total int64, label string) { watch.StageProgress("benchmark", done, total, label) },
	})
	watch.Close()
	if err != nil {
		return err
	}
	rep := s.session.report(ctx, snapshot)
	return a.finishBenchmark(&rep, report.Benchmark{Rows: rows, Skipped: skipped}, output)
}

// optimized returns the path of the optimized graph, made if it is not there.
func (s *step) optimized(ctx context.Context) (string, error) {
	art, err := s.made(ctx, "optimize", artifact.OptimizedONNX)
	if err != nil {
		return "", err
	}
	return filepath.Join(art.Dir, "model.onnx"), nil
}

// finishBenchmark prints measurements made by hand, and writes them as a report.
func (a *app) finishBenchmark(rep *report.Report, b report.Benchmark, output string) error {
	checks := []report.Check{}
	for _, s := range b.Skipped {
		checks = append(checks, report.Check{ID: "benchmark/measured", Verdict: s.Verdict, Detail: s.Name + ": " + s.Reason})
	}
	checks = append(checks, report.Check{ID: "benchmark/measured", Verdict: report.Pass, Got: fmt.Sprintf("%d measurements", len(b.Rows))})
	if len(b.Rows) == 0 {
		checks[len(checks)-1].Verdict = report.Broken
	}
	verdict := report.Of(checks)
	rep.Format, rep.Run.ID, rep.Verdict, rep.Benchmark = report.Format, "by-hand", verdict, &b
	rep.Stages = []report.Stage{{Name: "benchmark", Verdict: verdict, Checks: checks}}
	rep.Artifacts = []report.ArtifactSummary{}
	conclude(rep)
	a.concludes(rep)
	if output != "" {
		out, err := report.Encode(rep)
		if err != nil {
			return err
		}
		if err := writeNew(output, out); err != nil {
			return err
		}
	}
	return a.printReport(rep)
}

func newBenchmarkCompareCmd(a *app) *cobra.Command {
	var confidence float64
	var margin float64
	c := &cobra.Command{
		Use:   "compare BASE HEAD",
		Short: "Compare the measurements of two reports",
		Long: `benchmark compare sets rows of the same name against each other: the ratio of medians with its
confidence interval. Rows of another GPU, driver or mode are refused by name, and so are reports of
different models; other weights are said. BASE and HEAD are runs, folders of runs or report files. It
informs; to let it decide, use gate.`,
		Args: positional(2, 2),
		RunE: func(_ *cobra.Command, args []string) error {
			return a.benchmarkCompare(args[0], args[1], margin, confidence)
		},
	}
	c.Flags().Float64Var(&confidence, "confidence", gate.DefaultConfidence, "`level` of the confidence intervals")
	c.Flags().Float64Var(&margin, "margin", 0.01, "`ratio` inside which two measurements are the same")
	return c
}

func (a *app) benchmarkCompare(base, head string, margin, confidence float64) error {
	var sides [2]measure.Side
	for i, which := range []string{base, head} {
		r, err := a.readReport(which)
		if err != nil {
			return err
		}
		if sides[i], err = measure.SideOf(which, r); err != nil {
			return err
		}
	}
	c, err := measure.Compare(sides[0], sides[1], func(base, head []float64) report.Delta {
		return gate.Compare(base, head, margin, confidence)
	})
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(c)
	}
	t := a.table("row", "metric", "base", "head", "ratio", "change")
	for _, d := range c.Deltas {
		change := string(d.Change)
		if d.Low == nil && d.Change == report.Unclear {
			change = "no interval" // not noisy: nothing but a median has one
		}
		t.AppendRow([]any{d.Row, d.Metric, shown(d.Base), shown(d.Head), interval(d), change})
	}
	a.printTable(t)
	for _, part := range []struct {
		title string
		lines []string
	}{{"not compared", c.Refused}, {"only in base", c.OnlyBase}, {"only in head", c.OnlyHead}, {"note", c.Warnings}} {
		for _, l := range part.lines {
			a.say("%s: %s", part.title, l)
		}
	}
	return nil
}

func shown(n *report.Number) string {
	if n == nil {
		return ""
	}
	x := float64(*n)
	if math.Abs(x) >= 1000 && math.Abs(x) < 1e9 {
		return fmt.Sprintf("%.0f", x) // 10660, not 1.066e+04
	}
	return fmt.Sprintf("%.4g", x)
}

func interval(d report.Delta) string {
	if d.Ratio == nil || d.Low == nil || d.High == nil {
		return shown(d.Ratio)
	}
	return fmt.Sprintf("%.4g (%.4g to %.4g)", float64(*d.Ratio), float64(*d.Low), float64(*d.High))
}

func newBenchmarkOverheadCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "overhead DIRECT SERVED",
		Short: "Set served measurements against direct ones: what the server adds",
		Long: `benchmark overhead sets every served row against the direct row of its precision, batch and
concurrency: an engine's if there is one, else ONNX Runtime's. Reports of different models are refused.`,
		Args: positional(2, 2),
		RunE: func(_ *cobra.Command, args []string) error { return a.benchmarkOverhead(args[0], args[1]) },
	}
}

func (a *app) benchmarkOverhead(direct, served string) error {
	var b [2]report.Benchmark
	var models [2]report.Model
	for i, which := range []string{direct, served} {
		r, err := a.readReport(which)
		if err != nil {
			return err
		}
		if r.Benchmark == nil {
			return failure.New(failure.Usage, "%s holds no measurement", which).WithHint("run the benchmark stage, or benchmark triton -o")
		}
		b[i], models[i] = *r.Benchmark, r.Model
	}
	if err := measure.SameModel(fmt.Sprintf("set %s against %s", served, direct), models[0], models[1]); err != nil {
		return err
	}
	pairs, alone, err := measure.Overheads(b[0], b[1])
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(map[string]any{"pairs": pairs, "alone": append([]string{}, alone...)})
	}
	t := a.table("served", "direct p50 ms", "served p50 ms", "added ms", "ratio")
	for _, p := range pairs {
		t.AppendRow([]any{
			p.Row, fmt.Sprintf("%.4g", float64(p.DirectP50)), fmt.Sprintf("%.4g", float64(p.ServedP50)),
			fmt.Sprintf("%.4g", float64(p.Added)), fmt.Sprintf("%.3g", float64(p.Ratio)),
		})
	}
	a.printTable(t)
	for _, l := range alone {
		a.say("without a direct measurement: %s", l)
	}
	return nil
}
