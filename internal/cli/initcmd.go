package cli

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/failure"
)

func newInitCmd(a *app) *cobra.Command {
	var name, kind string
	c := &cobra.Command{
		Use:   "init [FILE]",
		Short: "Write a starter configuration and its schema for editors",
		Long: `init writes a configuration to start from (trtship.yaml unless FILE is given) and, beside
it, the JSON schema that its first line points editors to. Files that are there already
are left alone: that is exit 11.`,
		GroupID: "setup",
		Args:    positional(0, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			file := "trtship.yaml"
			if len(args) == 1 {
				file = args[0]
			}
			return a.init(file, name, kind)
		},
	}
	c.Flags().StringVar(&name, "name", "my_model", "`name` of the model")
	c.Flags().StringVar(&kind, "kind", "module", "`kind` of the model: "+strings.Join(config.StarterKinds, ", "))
	return c
}

func (a *app) init(file, name, kind string) error {
	text, err := config.Starter(name, kind, config.SchemaFile)
	if err != nil {
		return err
	}
	schema, err := config.Schema()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return failure.New(failure.Artifact, "make folder: %w", err)
	}
	if err := writeNew(file, text); err != nil {
		return err
	}
	schemaFile := filepath.Join(filepath.Dir(file), config.SchemaFile)
	if err := writeNew(schemaFile, schema); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if a.json {
		return a.printJSON(map[string]string{"configuration": file, "schema": schemaFile})
	}
	a.say("wrote %s and %s", file, schemaFile)
	a.say("next: edit it, then `trtship config validate %s` and `trtship run %s`", file, file)
	return nil
}

// writeNew writes a file that must not be there yet.
func writeNew(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return failure.New(failure.Artifact, "make folder: %w", err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return failure.New(failure.Artifact, "write %s: it is there already: %w", path, err).WithHint("choose another path, or remove the file")
	}
	if err != nil {
		return failure.New(failure.Artifact, "write file: %w", err)
	}
	_, err = f.Write(data)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		_ = os.Remove(path)
		return failure.New(failure.Artifact, "write file: %w", err)
	}
	return nil
}
