package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/report"
)

func newValidateCmd(a *app) *cobra.Command {
	c := a.group("validate", "Compare a model with the reference, numerically", "steps")
	c.AddCommand(newValidateTritonCmd(a), newValidateONNXCmd(a), newValidateEngineCmd(a))
	return c
}

func newValidateONNXCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "onnx CONFIG [MODEL.onnx]",
		Short: "Compare an ONNX model with the reference at min, opt, max and one size that is none of them",
		Long: `validate onnx runs the exported graph, or MODEL.onnx, in ONNX Runtime with graph optimisation off
and compares every output with the reference at every point. A comparison that does not hold
is exit 6, after the tables are printed.`,
		Args: positional(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			s, err := a.step(ctx, args[0])
			if err != nil {
				return err
			}
			defer s.session.Close()
			if len(args) == 2 {
				if err := s.giveONNX(ctx, artifact.ONNX, "", args[1]); err != nil {
					return err
				}
			}
			rep, _, err := s.run(ctx, "validate")
			if err == nil && !a.json {
				a.printValidations(rep)
			}
			return err
		},
	}
}

// printValidations writes the rows of every comparison.
func (a *app) printValidations(rep *report.Report) {
	for _, v := range rep.Validations {
		a.print("\n%s against %s\n", v.Candidate, v.Reference)
		t := a.table("output", "point", "max abs", "cosine min", "breaches", "verdict")
		for _, r := range v.Rows {
			t.AppendRow([]any{r.Output, r.Point, metric(r, "max_abs"), metric(r, "cosine_min"), r.Breaches, r.Verdict})
		}
		a.printTable(t)
	}
}

func metric(r report.Comparison, name string) string {
	if v, ok := r.Metrics[name]; ok {
		return fmt.Sprintf("%.4g", float64(v))
	}
	return ""
}
