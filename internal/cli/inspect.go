package cli

import (
	"fmt"
	"sort"
	"strings"

	"github.com/spf13/cobra"

	"github.com/trtship/trtship/report"
)

func newInspectCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "inspect CONFIG",
		Short: "Load the model: parameters, memory, inputs and outputs, findings",
		Long: `inspect loads the model, runs it once, and says what there is: parameters, an upper bound of the
activations (the sum of every module's outputs, not a peak), inputs and outputs, operators, and
what a reader should know before an export, such as modules in training mode.`,
		GroupID: "steps",
		Args:    positional(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := a.step(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			defer s.session.Close()
			rep, _, err := s.run(cmd.Context(), "inspect")
			if err == nil && !a.json && rep.Inspection != nil {
				a.printInspection(rep.Inspection)
			}
			return err
		},
	}
}

func (a *app) printInspection(in *report.Inspection) {
	a.print("\n%d parameters (%d trainable), %s; activations at most %s\n\n", in.Parameters, in.TrainableParameters,
		report.FormatBytes(in.ParameterBytes), report.FormatBytes(in.ActivationUpperBound))
	t := a.table("", "name", "dtype", "shape")
	for _, x := range in.Inputs {
		t.AppendRow([]any{"input", x.Name, x.DType, "[" + strings.Join(x.Dims, ", ") + "]"})
	}
	for _, x := range in.Outputs {
		t.AppendRow([]any{"output", x.Name, x.DType, "[" + strings.Join(x.Dims, ", ") + "]"})
	}
	a.printTable(t)
	for _, r := range in.Ranges {
		a.print("%s takes %d to %d (%s)\n", r.Input, r.Low, r.High, r.Source)
	}
	a.print("operators: %s\n", counts(in.Operators))
	for _, f := range in.Findings {
		a.print("%s: %s%s\n", f.Kind, f.Text, nodes(f.Nodes))
	}
}

// counts lists operators, most frequent first.
func counts(m map[string]int) string {
	names := make([]string, 0, len(m))
	for n := range m {
		names = append(names, n)
	}
	sort.Slice(names, func(i, j int) bool {
		if m[names[i]] != m[names[j]] {
			return m[names[i]] > m[names[j]]
		}
		return names[i] < names[j]
	})
	for i, n := range names {
		names[i] = fmt.Sprintf("%s %d", n, m[n])
	}
	return strings.Join(names, ", ")
}

func nodes(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return " (" + strings.Join(names, ", ") + ")"
}
