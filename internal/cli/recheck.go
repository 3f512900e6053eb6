package cli

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/store"
	"github.com/trtship/trtship/internal/validation"
	"github.com/trtship/trtship/report"
)

func newRecheckCmd(a *app) *cobra.Command {
	var tols []string
	var output string
	c := &cobra.Command{
		Use:   "recheck [RUN|PATH]",
		Short: "Judge stored outputs again, with other tolerances; nothing is run",
		Long: `recheck reads the reference and candidate outputs that a report names from the store and judges
them again. --tol takes atol, rtol, cosine_min, top1_min, max_breaches and allow_nan, for
everything or for what stands in front of a colon: a precision (onnx, fp32, fp16, bf16, int8), an
output, or precision/output. Outputs that are not in the store any more are exit 11.`,
		Example: "  trtship recheck --tol atol=1e-5,rtol=0\n  trtship recheck --tol onnx:cosine_min=0.9999 --tol onnx/logits:atol=0.01",
		GroupID: "steps",
		Args:    positional(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			which := ""
			if len(args) == 1 {
				which = args[0]
			}
			return a.recheck(cmd.Context(), which, tols, output)
		},
	}
	c.Flags().StringArrayVar(&tols, "tol", nil, "`tolerance` [precision/output:]key=value,...; may be repeated, later ones win")
	c.Flags().StringVarP(&output, "output", "o", "", "write the report with the new verdicts to this `file`, which must not exist")
	return c
}

// tolerance is one --tol.
type tolerance struct {
	precision, output string // empty matches all
	set               []func(*report.Tolerance)
}

var precisions = []string{"onnx", "fp32", "fp16", "bf16", "int8"}

// parseTolerance reads "[precision|output|precision/output:]key=value,...".
func parseTolerance(text string) (tolerance, error) {
	var t tolerance
	bad := func(format string, args ...any) (tolerance, error) {
		return t, failure.New(failure.Usage, "--tol "+strconv.Quote(text)+": "+format, args...).WithHint("for example --tol fp16:atol=0.01,rtol=0.01")
	}
	keys := text
	if eq := strings.IndexByte(text, '='); eq < 0 {
		return bad("no key=value in it")
	} else if colon := strings.LastIndexByte(text[:eq], ':'); colon >= 0 {
		scope := text[:colon]
		keys = text[colon+1:]
		first, rest, both := strings.Cut(scope, "/")
		switch {
		case slices.Contains(precisions, scope):
			t.precision = scope
		case both && slices.Contains(precisions, first):
			t.precision, t.output = first, rest
		default:
			t.output = scope
		}
	}
	for pair := range strings.SplitSeq(keys, ",") {
		key, value, _ := strings.Cut(pair, "=")
		set, err := setTolerance(key, value)
		if err != nil {
			return bad("%s: %w", pair, err)
		}
		t.set = append(t.set, set)
	}
	return t, nil
}

func setTolerance(key, value string) (func(*report.Tolerance), error) {
	if key == "allow_nan" {
		b, err := strconv.ParseBool(value)
		return func(t *report.Tolerance) { t.AllowNaN = b }, err
	}
	f, err := strconv.ParseFloat(value, 64)
	if err != nil {
		return nil, err
	}
	low := map[string]float64{"cosine_min": -1} // the others are no less than 0
	if !(f >= low[key]) {
		return nil, strconv.ErrRange
	}
	n := report.Number(f)
	switch key {
	case "atol":
		return func(t *report.Tolerance) { t.Atol = n }, nil
	case "rtol":
		return func(t *report.Tolerance) { t.Rtol = n }, nil
	case "cosine_min":
		return func(t *report.Tolerance) { t.CosineMin = &n }, nil
	case "top1_min":
		return func(t *report.Tolerance) { t.TopK = &n }, nil
	case "max_breaches":
		return func(t *report.Tolerance) { t.MaxBreaches = n }, nil
	}
	return nil, failure.New(failure.Usage, "unknown key; known are atol, rtol, cosine_min, top1_min, max_breaches, allow_nan")
}

func (a *app) recheck(ctx context.Context, which string, tols []string, output string) error {
	if err := refuseExisting(output); err != nil {
		return err
	}
	var overrides []tolerance
	for _, text := range tols {
		t, err := parseTolerance(text)
		if err != nil {
			return err
		}
		overrides = append(overrides, t)
	}
	rep, err := a.readReport(which)
	if err != nil {
		return err
	}
	if len(rep.Validations) == 0 {
		return failure.New(failure.Artifact, "the report of run %s holds no comparison", rep.Run.ID).WithHint("run a stage that compares, such as validate")
	}
	for i, o := range overrides {
		if !o.means(rep) { // a name that is misspelled would change nothing, and pass
			return failure.New(failure.Usage, "--tol %q: the report compares no such precision or output", tols[i]).WithHint("%s", compared(rep))
		}
	}
	if err := a.withStore(ctx, func(st *store.Store) error { return rejudge(ctx, rep, st, overrides) }); err != nil {
		return err
	}
	a.concludes(rep)
	if output != "" {
		b, err := report.Encode(rep)
		if err != nil {
			return err
		}
		if err := writeNew(output, b); err != nil {
			return err
		}
	}
	return a.printReport(rep)
}

// means reports whether a report has a comparison that the tolerance is for.
func (t tolerance) means(rep *report.Report) bool {
	for _, v := range rep.Validations {
		for _, r := range v.Rows {
			if (t.precision == "" || t.precision == cmp.Or(v.Precision, "onnx")) && (t.output == "" || t.output == r.Output) {
				return true
			}
		}
	}
	return false
}

// compared lists the precisions and outputs of a report.
func compared(rep *report.Report) string {
	var precisions, outputs []string
	for _, v := range rep.Validations {
		precisions = append(precisions, cmp.Or(v.Precision, "onnx"))
		for _, r := range v.Rows {
			outputs = append(outputs, r.Output)
		}
	}
	slices.Sort(precisions)
	slices.Sort(outputs)
	return "precisions: " + strings.Join(slices.Compact(precisions), ", ") + "; outputs: " + strings.Join(slices.Compact(outputs), ", ")
}

// rejudge replaces the comparisons of a report and everything that follows from them.
func rejudge(ctx context.Context, rep *report.Report, st *store.Store, overrides []tolerance) error {
	lookup := func(id string) (string, error) {
		it, err := st.Find(id)
		if err != nil {
			return "", err
		}
		art, err := st.Open(ctx, it.Record)
		return art.Dir, err
	}
	override := func(precision, output string, t report.Tolerance) report.Tolerance {
		if precision == "" {
			precision = "onnx"
		}
		for _, o := range overrides {
			if (o.precision == "" || o.precision == precision) && (o.output == "" || o.output == output) {
				for _, set := range o.set {
					set(&t)
				}
			}
		}
		return t
	}
	fresh := map[string][]report.Check{}
	for i, v := range rep.Validations {
		again, checks, err := validation.Recheck(v, lookup, override)
		if err != nil {
			return err
		}
		rep.Validations[i] = again
		fresh[v.Stage] = append(fresh[v.Stage], checks...)
	}
	for i := range rep.Stages {
		s := &rep.Stages[i]
		checks, ok := fresh[s.Name]
		if !ok {
			continue
		}
		judged := map[string]bool{}
		for _, c := range checks {
			judged[c.ID] = true
		}
		kept := slices.DeleteFunc(slices.Clone(s.Checks), func(c report.Check) bool { return judged[c.ID] })
		s.Checks = append(kept, checks...)
		s.Verdict = report.Of(s.Checks)
	}
	conclude(rep)
	return nil
}

// conclude recomputes the verdict and the exit code of a report.
func conclude(rep *report.Report) {
	rep.Verdict = report.NotAsked
	for _, s := range rep.Stages {
		switch {
		case s.Verdict == report.NotAsked || s.Verdict == report.Skip:
		case rep.Verdict == report.NotAsked:
			rep.Verdict = s.Verdict
		default:
			rep.Verdict = report.Worst(rep.Verdict, s.Verdict)
		}
	}
	rep.ExitCode = int(failure.OfStages(rep.Stages, failure.InRun))
}
