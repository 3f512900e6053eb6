package cli

import (
	"context"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/trtship/trtship/internal/pipeline"
	"github.com/trtship/trtship/report"
)

// runFlags are the flags of run.
type runFlags struct {
	until, from  string
	only         []string
	against      string
	allowMissing bool
	fresh        bool
	noDiskCheck  bool
}

func newRunCmd(a *app) *cobra.Command {
	var f runFlags
	c := &cobra.Command{
		Use:   "run CONFIG",
		Short: "Run the pipeline: every stage, reusing what has not changed",
		Long: `run goes through the stages that the configuration asks for. Finished stages whose inputs,
settings and tools are the same are reused. The run's folder gets the report as JSON,
Markdown, HTML and JUnit, a log for each stage, and links to the artifacts.

A machine that cannot do what is asked says so before the first stage (exit 3), with the
--until that would work. So does a store that lacks what a stage outside of --from or --only
makes, with the --from or --only that would make it.

With --against the benchmark lets each engine and graph run in turns with the baseline's, in blocks
side by side, which tells a change from the machine's mood; the gate then judges by that. The
baseline's are taken from the store, else from beside its report: a run's folder, or the action's
artifacts in one folder. One that is the same byte for byte needs no measurement.`,
		Example: `  trtship run examples/digits/trtship.yaml
  trtship run examples/digits/trtship.yaml --until optimize
  trtship run examples/digits/trtship.yaml --against base/report.json`,
		GroupID: "pipeline",
		Args:    positional(1, 1),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.run(cmd.Context(), args[0], f) },
	}
	c.Flags().StringVar(&f.until, "until", "", "last `stage` to run")
	c.Flags().StringVar(&f.from, "from", "", "first `stage` to run; what it needs is taken from the store")
	c.Flags().StringSliceVar(&f.only, "only", nil, "run these `stages` only; what they need is taken from the store")
	c.Flags().StringVar(&f.against, "against", "", "measure in turns with the engines and graphs of this `run`, folder of a run or report.json")
	c.Flags().BoolVar(&f.allowMissing, "allow-missing", false, "run what can run here, and report the rest as missing")
	c.Flags().BoolVar(&f.fresh, "fresh", false, "reuse nothing")
	c.Flags().BoolVar(&f.noDiskCheck, "no-disk-check", false, "start although the store's disk seems too small for what the run writes")
	return c
}

func (a *app) run(ctx context.Context, path string, f runFlags) error {
	s, err := a.open(ctx, path)
	if err != nil {
		return err
	}
	defer s.Close()
	if f.against != "" {
		if err := s.setAgainst(f.against); err != nil {
			return err
		}
	}
	o, err := s.options(ctx)
	if err != nil {
		return err
	}
	o.RunsDir = a.runsDir()
	o.Until, o.From, o.Only, o.AllowMissing, o.Fresh = f.until, f.from, f.only, f.allowMissing, f.fresh
	if !f.noDiskCheck {
		o.DiskBytes = diskNeed(s.cfg, o)
	}
	watch := a.observer()
	o.Observer = watch
	rep, err := pipeline.Run(ctx, o)
	watch.Close()
	s.noteUnused(rep)
	failed := a.failed(rep, err)
	if rep != nil && (err == nil || a.json) {
		if perr := a.printReport(rep); perr != nil {
			return perr
		}
	}
	if dir := watch.Dir(); dir != "" {
		a.say("report: %s", a.rel(filepath.Join(dir, "report.json")))
		a.say("        %s", a.rel(filepath.Join(dir, "reports", "report.html")))
		a.say("artifacts: %s", a.rel(filepath.Join(dir, "artifacts")))
	}
	return failed
}

// printReport writes a report to stdout, as tables or as JSON.
func (a *app) printReport(rep *report.Report) error {
	if a.json {
		b, err := report.Encode(rep)
		if err != nil {
			return err
		}
		_, err = a.io.Stdout.Write(b)
		return err
	}
	_ = a.put(report.Text(report.View{Report: rep}, report.TextOptions{Color: a.color(a.io.Stdout), Width: a.width(a.io.Stdout)}))
	return nil
}
