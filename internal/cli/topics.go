package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/trtship/trtship/internal/failure"
)

// exitCodesTopic is `trtship help exit-codes`.
func exitCodesTopic() *cobra.Command {
	var b strings.Builder
	b.WriteString("Exit codes:\n\n")
	for _, c := range failure.Codes {
		fmt.Fprintf(&b, "  %3d  %-12s %s\n       %-12s %s\n", c.Code, c.Name, c.Meaning, "", c.Remedy)
	}
	return &cobra.Command{Use: "exit-codes", Short: "What each exit code means", Long: b.String()}
}

// WriteExitCodes returns docs/exit-codes.md.
func WriteExitCodes() []byte {
	var b strings.Builder
	b.WriteString(`# Exit codes

<!-- Generated from internal/failure/codes.go by ` + "`make golden`" + `. -->

A command exits with the code of the first thing that did not hold, in the order of the stages. Every error names its
cause and, where one is known, a hint; with ` + "`--json`" + ` the last line on stderr is an object with the code, its name and
the message.

| code | name | meaning | what to do |
| --- | --- | --- | --- |
`)
	for _, c := range failure.Codes {
		fmt.Fprintf(&b, "| %d | %s | %s | %s |\n", c.Code, c.Name, c.Meaning, c.Remedy)
	}
	b.WriteString(`
A check that was measured and does not hold gives the code of its stage; one that could not run here gives 3 in
` + "`trtship run`" + ` and 13 in ` + "`trtship gate`" + `. 12 is for budgets and baselines alone.
`)
	return []byte(b.String())
}
