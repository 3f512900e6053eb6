package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/stages"
)

// Commands returns the tree of commands, for documents and tests.
func Commands() *cobra.Command {
	a := &app{io: IO{Getenv: func(string) string { return "" }, Environ: func() []string { return nil }}}
	root := a.root()
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	return root
}

// WriteReference returns docs/cli.md.
func WriteReference() []byte {
	var b strings.Builder
	root := Commands()
	b.WriteString("# Commands\n\n<!-- Generated from the commands themselves by `make golden`. -->\n\n")
	b.WriteString(root.Long + "\n\nFlags of every command:\n\n")
	flags(&b, root.PersistentFlags())
	for _, g := range root.Groups() {
		fmt.Fprintf(&b, "\n## %s\n", strings.TrimSuffix(g.Title, ":"))
		for _, c := range root.Commands() {
			if c.GroupID == g.ID {
				command(&b, c)
			}
		}
	}
	return []byte(b.String())
}

// command writes a command and those below it.
func command(b *strings.Builder, c *cobra.Command) {
	if c.Hidden || c.Name() == "help" || c.Parent() != nil && c.Parent().Name() == "completion" {
		return
	}
	if !c.HasSubCommands() || c.Name() == "completion" {
		use := c.UseLine()
		if c.Name() == "completion" {
			use += " bash|fish|powershell|zsh"
		}
		fmt.Fprintf(b, "\n### %s\n\n", use)
		text := c.Long
		if text == "" || c.Name() == "completion" {
			text = c.Short + "."
		}
		b.WriteString(text + "\n")
		if c.Example != "" {
			fmt.Fprintf(b, "\n```sh\n%s\n```\n", strings.ReplaceAll(c.Example, "\n  ", "\n")[2:])
		}
		if c.HasLocalFlags() {
			b.WriteString("\n")
			flags(b, c.LocalNonPersistentFlags())
		}
		return
	}
	for _, sub := range c.Commands() {
		command(b, sub)
	}
}

func flags(b *strings.Builder, set *pflag.FlagSet) {
	rows := 0
	set.VisitAll(func(f *pflag.Flag) {
		if f.Name == "help" {
			return
		}
		if rows == 0 {
			b.WriteString("| flag | meaning |\n| --- | --- |\n")
		}
		rows++
		value, usage := pflag.UnquoteUsage(f)
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		if value != "" {
			name += " " + value
		}
		if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "[]" && f.DefValue != "0" {
			usage += " (default " + f.DefValue + ")"
		}
		fmt.Fprintf(b, "| `%s` | %s |\n", name, strings.ReplaceAll(usage, "|", "\\|"))
	})
}

// WriteChecks returns docs/checks.md, from the stages' own descriptions.
func WriteChecks() []byte {
	var b strings.Builder
	b.WriteString(`# Checks

<!-- Generated from the stages' descriptions by ` + "`make golden`" + `. -->

What each stage checks, in the order in which stages run. An id is stable: it does not change once it is released. A
verdict is pass; fail (measured, does not hold); missing (asked for, could not run here); broken (crashed, timed out,
corrupt); inconclusive (measured, too noisy to say); skip (turned off in the configuration) or not-asked (cut off by
--until, --from or --only). Only pass is good, and skip alone is neutral.
`)
	for _, s := range stages.All(config.Defaults(), stages.Tools{}) {
		spec := s.Spec()
		fmt.Fprintf(&b, "\n## %s\n\n%s.", spec.Name, spec.Title)
		if len(spec.Needs) > 0 {
			needs := make([]string, len(spec.Needs))
			for i, n := range spec.Needs {
				needs[i] = string(n)
			}
			fmt.Fprintf(&b, " Needs %s.", strings.Join(needs, ", "))
		}
		if !spec.Cacheable {
			b.WriteString(" Never reused: it measures or runs something now.")
		}
		b.WriteString("\n\n| check | holds when it passes | what to do when it does not |\n| --- | --- | --- |\n")
		for _, c := range spec.Checks {
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", c.ID, cell(c.Title), cell(c.Remedy))
		}
	}
	return []byte(b.String())
}

func cell(s string) string { return strings.ReplaceAll(strings.ReplaceAll(s, "|", "\\|"), "\n", " ") }
