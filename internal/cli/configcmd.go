package cli

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/failure"
)

func newConfigCmd(a *app) *cobra.Command {
	c := a.group("config", "Check, print and describe configurations", "setup")
	c.AddCommand(
		&cobra.Command{
			Use:   "validate CONFIG...",
			Short: "Check configurations; every mistake is listed with its line",
			Long: `config validate lists every mistake with its line, and every file that is named and cannot be read.
Nothing is run.`,
			Args: positional(1, -1),
			RunE: func(_ *cobra.Command, args []string) error { return a.configValidate(args) },
		},
		&cobra.Command{
			Use:   "show CONFIG",
			Short: "Print a configuration with all defaults and overrides filled in",
			Args:  positional(1, 1),
			RunE:  func(_ *cobra.Command, args []string) error { return a.configShow(args[0]) },
		},
		&cobra.Command{
			Use:   "schema",
			Short: "Print the JSON schema of the configuration",
			Args:  positional(0, 0),
			RunE: func(*cobra.Command, []string) error {
				b, err := config.Schema()
				if err != nil {
					return err
				}
				a.print("%s", b)
				return nil
			},
		},
	)
	return c
}

// validated is the outcome for one file, for --json.
type validated struct {
	File     string           `json:"file"`
	Valid    bool             `json:"valid"`
	Problems []config.Problem `json:"problems"`
}

// configValidate checks all files before it fails with one error for all of them.
func (a *app) configValidate(files []string) error {
	var errs []error
	out := []validated{}
	for _, f := range files {
		cfg, err := a.loadConfig(f)
		if err == nil {
			err = cfg.CheckFiles(nil)
		}
		out = append(out, validated{File: f, Valid: err == nil, Problems: problemsOf(f, err)})
		switch {
		case err != nil:
			errs = append(errs, err)
		case !a.json:
			a.print("%s: valid\n", f)
		}
	}
	if a.json {
		if err := a.printJSON(out); err != nil {
			return err
		}
	}
	return together(len(files), errs, out)
}

// problemsOf returns the mistakes of a file; that it cannot be read is one.
func problemsOf(file string, err error) []config.Problem {
	if err == nil {
		return []config.Problem{}
	}
	if p, ok := errors.AsType[config.Problems](err); ok {
		return p
	}
	return []config.Problem{{Where: file, Text: err.Error()}}
}

// together makes one error of those of several files: of the one file, or with
// every mistake of all of them. The first decides the exit code.
func together(files int, errs []error, all []validated) error {
	switch {
	case len(errs) == 0:
		return nil
	case files == 1:
		return errs[0]
	}
	e := failure.New(failure.CodeOf(errs[0]), "%d of %d configurations are wrong", len(errs), files)
	for _, v := range all {
		for _, p := range v.Problems {
			text := p.Text
			if p.Path != "" {
				text = p.Path + ": " + text
			}
			e.With(p.Where, "%s", text)
		}
	}
	return e.WithHint("`trtship config schema` describes every key")
}

func (a *app) configShow(file string) error {
	cfg, err := a.loadConfig(file)
	if err != nil {
		return err
	}
	b, err := cfg.Snapshot(cfg.Dir)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(map[string]string{"file": file, "yaml": string(b)})
	}
	a.print("%s", b)
	return nil
}
