package cli

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/regular"
)

func newManCmd(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:     "man",
		Short:   "Write the manual pages",
		GroupID: "setup",
		Args:    positional(0, 0),
	}
	out := c.Flags().StringP("output", "o", "man", "`folder` to write to")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := os.MkdirAll(*out, 0o755); err != nil {
			return failure.New(failure.Artifact, "make folder: %w", err)
		}
		root := cmd.Root()
		root.DisableAutoGenTag = true
		if err := doc.GenManTree(root, &doc.GenManHeader{Title: "TRTSHIP", Section: "1", Source: "trtship"}, *out); err != nil {
			return failure.New(failure.Artifact, "write manual pages: %w", err)
		}
		pages, err := filepath.Glob(filepath.Join(regular.Literal(*out), "*.1"))
		if err != nil {
			return fmt.Errorf("list manual pages: %w", err)
		}
		if a.json {
			return a.printJSON(pages)
		}
		a.say("wrote %d manual pages to %s", len(pages), *out)
		return nil
	}
	return c
}
