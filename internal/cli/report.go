package cli

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/report"
)

// reportFormats are the renderings of `report`.
var reportFormats = []string{"text", "md", "junit", "html", "json"}

func newReportCmd(a *app) *cobra.Command {
	var format, output string
	c := &cobra.Command{
		Use:   "report [RUN|PATH]",
		Short: "Show the report of a run (the latest by default)",
		Long: `report shows a report as tables, Markdown, JUnit, one self-contained HTML page or JSON. RUN is
the id of a run or its beginning; PATH is a report.json or a run's folder.`,
		GroupID: "pipeline",
		Args:    positional(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if a.json && !cmd.Flags().Changed("format") {
				format = "json"
			}
			which := ""
			if len(args) == 1 {
				which = args[0]
			}
			return a.report(which, format, output)
		},
	}
	c.Flags().StringVar(&format, "format", "text", "`format`: "+strings.Join(reportFormats, ", "))
	c.Flags().StringVarP(&output, "output", "o", "", "write to this `file`, which must not exist, and not to stdout")
	return c
}

func (a *app) report(which, format, output string) error {
	if !slices.Contains(reportFormats, format) {
		return failure.New(failure.Usage, "--format %q is not one of %s", format, strings.Join(reportFormats, ", "))
	}
	path, err := a.findReport(which)
	if err != nil {
		return err
	}
	rep, err := report.Read(path)
	if err != nil {
		return failure.New(failure.Artifact, "read report: %w", err)
	}
	color := output == "" && a.color(a.io.Stdout)
	b, err := renderAs(report.View{Report: rep}, format, report.TextOptions{Color: color, Width: a.width(a.io.Stdout)})
	if err != nil {
		return err
	}
	if output != "" {
		return writeNew(output, b)
	}
	_, err = a.io.Stdout.Write(b)
	return err
}

// renderAs renders a view in one of reportFormats.
func renderAs(v report.View, format string, o report.TextOptions) ([]byte, error) {
	switch format {
	case "md":
		return []byte(report.Markdown(v, report.MarkdownOptions{})), nil
	case "junit":
		return report.JUnit(v)
	case "html":
		return report.HTML(v), nil
	case "json":
		return report.Encode(v.Report)
	}
	return []byte(report.Text(v, o)), nil
}

// findReport returns the path of a report: that of a file, of a run's folder,
// of a run's id or its beginning, or of the latest run.
func (a *app) findReport(which string) (string, error) {
	if which != "" {
		if info, err := os.Stat(which); err == nil {
			if info.IsDir() {
				return filepath.Join(which, "report.json"), nil
			}
			return which, nil
		}
	}
	if strings.ContainsRune(which, filepath.Separator) || filepath.Ext(which) == ".json" {
		return "", failure.New(failure.Artifact, "there is no report at %s", which).WithHint("give a report.json as `trtship run` wrote it, a run's folder or its id")
	}
	dir, err := a.findRun(which)
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "report.json"), nil
}

// findRun returns the folder of the run whose id begins with which, or of the
// latest run.
func (a *app) findRun(which string) (string, error) {
	root := a.runsDir()
	entries, err := os.ReadDir(root)
	if err != nil {
		return "", failure.New(failure.Artifact, "find runs: %w", err).WithHint("`trtship run CONFIG` makes one; --store names another place")
	}
	var found []string
	var latest fs.FileInfo
	for _, e := range entries {
		info, err := os.Stat(filepath.Join(root, e.Name(), "report.json"))
		if err != nil || !strings.HasPrefix(e.Name(), which) {
			continue // a run that was never finished has no report
		}
		if which != "" {
			found = append(found, e.Name())
			continue
		}
		if latest == nil || info.ModTime().After(latest.ModTime()) {
			latest, found = info, []string{e.Name()}
		}
	}
	switch len(found) {
	case 1:
		return filepath.Join(root, found[0]), nil
	case 0:
		if which != "" {
			which += " "
		}
		return "", failure.New(failure.Artifact, "no finished run %sin %s", which, root).WithHint("`trtship run CONFIG` makes one")
	}
	return "", failure.New(failure.Usage, "%q matches %d runs: %s", which, len(found), strings.Join(found, ", "))
}
