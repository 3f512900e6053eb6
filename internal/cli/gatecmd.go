package cli

import (
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/gate"
	"github.com/trtship/trtship/report"
)

// gateFlags are the flags of gate.
type gateFlags struct {
	baseline, until, output string
	require                 bool
	vanished, junit, allow  []string
	confidence              float64
}

func newGateCmd(a *app) *cobra.Command {
	var f gateFlags
	c := &cobra.Command{
		Use:   "gate [RUN|PATH]",
		Short: "Judge a report, against a baseline if there is one",
		Long: `gate reads a report (of the latest run by default) and decides whether the change goes through:
every check that was asked for ran and held, budgets hold, and nothing got worse than the
baseline by more than the margin. It reads nothing but these files, and runs anywhere.

Exit codes: that of the first check that does not hold, 12 for budgets and regressions, 13 for
what did not run or is inconclusive.`,
		GroupID: "ci",
		Args:    positional(0, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			which := ""
			if len(args) == 1 {
				which = args[0]
			}
			return a.gate(which, f)
		},
	}
	c.Flags().StringVar(&f.baseline, "baseline", "", "report of the baseline: a `path`, or the id of a run")
	c.Flags().StringVar(&f.until, "until", "", "the `stage` that the caller itself set as the bound; hardware stages behind it are not held against the report")
	c.Flags().BoolVar(&f.require, "require-baseline", false, "fail without a baseline that can be compared (implied by --baseline)")
	c.Flags().StringSliceVar(&f.vanished, "allow-vanished", nil, "`patterns` of rows that may be gone")
	c.Flags().StringSliceVar(&f.junit, "junit", nil, "`patterns` of JUnit files of other tools that must hold, too")
	c.Flags().StringSliceVar(&f.allow, "allow-skipped", nil, "`patterns` of tests in them that may be skipped")
	c.Flags().Float64Var(&f.confidence, "confidence", gate.DefaultConfidence, "`level` of the confidence intervals of changes")
	c.Flags().StringVarP(&f.output, "output", "o", "", "write gate.json, report.md, report.html and junit.xml into this `folder`, over those of an earlier gate")
	return c
}

func (a *app) gate(which string, f gateFlags) error {
	for _, p := range slices.Concat(f.vanished, f.junit, f.allow) {
		if _, err := filepath.Match(p, ""); err != nil {
			return failure.New(failure.Usage, "%q is no pattern: %w", p, err).WithHint(`write \[ for a bracket`)
		}
	}
	head, err := a.readReport(which)
	if err != nil {
		return err
	}
	if f.until != "" && !slices.ContainsFunc(head.Stages, func(s report.Stage) bool { return s.Name == f.until }) {
		return failure.New(failure.Usage, "--until: the report has no stage %q", f.until).WithHint("`trtship run --help` lists the stages")
	}
	o := gate.Options{Until: f.until, RequireBaseline: f.require || f.baseline != "", AllowVanished: f.vanished, Confidence: f.confidence}
	var base *report.Report
	if f.baseline != "" {
		if base, err = a.readReport(f.baseline); err != nil {
			return err
		}
		o.Source = "file"
	}
	if len(f.junit) > 0 {
		o.Checks = gate.ReadJUnit(f.junit, f.allow)
	}
	v := report.View{Report: head, Gate: gate.Judge(head, base, o), Baseline: base}
	if f.output != "" {
		if err := writeGate(v, f.output); err != nil {
			return err
		}
	}
	a.judged(v.Gate)
	if a.json {
		b, err := report.Encode(v.Gate)
		if err != nil {
			return err
		}
		_, err = a.io.Stdout.Write(b)
		return err
	}
	_ = a.put(report.Text(v, report.TextOptions{Color: a.color(a.io.Stdout), Width: a.width(a.io.Stdout)}))
	return nil
}

func (a *app) readReport(which string) (*report.Report, error) {
	path, err := a.findReport(which)
	if err != nil {
		return nil, err
	}
	r, err := report.Read(path)
	if err != nil {
		return nil, failure.New(failure.Artifact, "%w", err).WithHint("give a report.json as `trtship run` wrote it, a run's folder or its id")
	}
	return r, nil
}

// writeGate writes the judgement and its renderings.
func writeGate(v report.View, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return failure.New(failure.Artifact, "make folder: %w", err)
	}
	b, err := report.Encode(v.Gate)
	if err != nil {
		return err
	}
	junit, err := report.JUnit(v)
	if err != nil {
		return err
	}
	for name, b := range map[string][]byte{
		"gate.json": b, "report.md": []byte(report.Markdown(v, report.MarkdownOptions{})), "report.html": report.HTML(v), "junit.xml": junit,
	} {
		if err := report.WriteFile(filepath.Join(dir, name), b); err != nil {
			return failure.New(failure.Artifact, "write %s: %w", name, err)
		}
	}
	return nil
}
