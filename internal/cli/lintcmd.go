package cli

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/triton/lint"
	"github.com/trtship/trtship/report"
)

// lintFormats are the outputs of lint.
var lintFormats = []string{"text", "json", "sarif", "github"}

// lintFlags are the flags of lint.
type lintFlags struct {
	format, tensorrt string
	gpus             int
	strict           bool
}

func newLintCmd(a *app) *cobra.Command {
	var f lintFlags
	c := &cobra.Command{
		Use:   "lint DIR|FILE...",
		Short: "Find the mistakes in a Triton model repository, ours or not",
		Long: `lint reads model repositories, single models or config.pbtxt files and names every mistake with
file, line and column: unknown fields with the nearest one, the folder layout, and what the
configuration says against what the model files really are. Each finding says who decides it:
Triton's core, a native backend, or trtship. Errors are exit 10.`,
		Example: "  trtship lint model_repository\n  trtship lint model_repository --format sarif",
		GroupID: "serving",
		Args:    positional(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if a.json && !cmd.Flags().Changed("format") {
				f.format = "json"
			}
			return a.lint(cmd, args, f)
		},
	}
	c.Flags().StringVar(&f.format, "format", "text", "`format`: "+strings.Join(lintFormats, ", ")+" (annotations)")
	c.Flags().StringVar(&f.tensorrt, "tensorrt", "", "TensorRT `release` of the server, to hold plans to")
	c.Flags().IntVar(&f.gpus, "gpus", -1, "`number` of GPUs that the server sees; not known by default")
	c.Flags().BoolVar(&f.strict, "strict", false, "warnings are exit 10, too")
	return c
}

func (a *app) lint(cmd *cobra.Command, paths []string, f lintFlags) error {
	if !slices.Contains(lintFormats, f.format) {
		return failure.New(failure.Usage, "--format %q is not one of %s", f.format, strings.Join(lintFormats, ", "))
	}
	o := lint.Options{TensorRT: f.tensorrt}
	if f.gpus >= 0 {
		o.GPUs = &f.gpus
	}
	all := []lint.Finding{}
	for _, p := range paths {
		found, err := lint.Dir(cmd.Context(), p, o)
		if err != nil {
			return err
		}
		prefix := p
		if info, err := os.Stat(p); err == nil && !info.IsDir() {
			prefix = filepath.Dir(p)
		}
		for i := range found {
			found[i].File = filepath.ToSlash(filepath.Join(prefix, found[i].File))
		}
		all = append(all, found...)
	}
	if err := a.printFindings(all, f.format); err != nil {
		return err
	}
	errors, warnings := lint.Worst(all)
	if errors > 0 || f.strict && warnings > 0 {
		e := a.doesNotHold(failure.Triton, "%s and %s", report.Count(errors, "mistake"), report.Count(warnings, "warning"))
		for _, f := range all {
			if f.Severity != lint.Note {
				e.With(f.Place(), "%s: %s", f.Severity, f.Text)
			}
		}
	}
	return nil
}

func (a *app) printFindings(found []lint.Finding, format string) error {
	var b []byte
	var err error
	switch format {
	case "json":
		b, err = lint.JSON(found)
	case "sarif":
		b, err = lint.SARIF(found, a.version, "")
	case "github":
		b = []byte(lint.Annotations(found, ""))
	default:
		b = []byte(lint.Text(found))
	}
	if err != nil {
		return err
	}
	a.print("%s\n", strings.TrimRight(string(b), "\n"))
	return nil
}
