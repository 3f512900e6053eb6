package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/trtship/trtship/internal/config"
)

func newConfigCmd(a *app) *cobra.Command {
	c := group("config", "Check, print and describe configurations", "setup")
	c.AddCommand(
		&cobra.Command{
			Use:   "validate CONFIG...",
			Short: "Check configurations; every mistake is listed with its line",
			Args:  positional(1, -1),
			RunE:  func(_ *cobra.Command, args []string) error { return a.configValidate(args) },
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

// configValidate checks all files before it fails with the first error.
func (a *app) configValidate(files []string) error {
	var first error
	out := []validated{}
	for _, f := range files {
		_, err := a.loadConfig(f)
		v := validated{File: f, Valid: err == nil, Problems: []config.Problem{}}
		if p, ok := errors.AsType[config.Problems](err); ok {
			v.Problems = p
		}
		out = append(out, v)
		switch {
		case err == nil && !a.json:
			a.print("%s: valid\n", f)
		case err != nil && first == nil:
			first = err
		case err != nil:
			a.exitMessage(err)
		}
	}
	if a.json {
		if err := a.printJSON(out); err != nil {
			return err
		}
	}
	return first
}

// exitMessage prints an error that does not decide the exit code.
func (a *app) exitMessage(err error) {
	if !a.json {
		fmt.Fprintf(a.io.Stderr, "trtship: %v\n", err)
	}
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
