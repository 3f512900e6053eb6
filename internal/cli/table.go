package cli

import (
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// table makes a table in the one style of the program.
func (a *app) table(heads ...string) table.Writer {
	t := table.NewWriter()
	style := table.StyleLight
	style.Format.Header = text.FormatDefault
	if !a.terminal(a.io.Stdout) {
		// A pipe gets columns that tools can split, and nothing that wraps.
		style.Options = table.OptionsNoBordersAndSeparators
	}
	t.SetStyle(style)
	row := make(table.Row, len(heads))
	for i, h := range heads {
		row[i] = h
	}
	t.AppendHeader(row)
	return t
}

// printTable writes a table to stdout.
func (a *app) printTable(t table.Writer) { a.print("%s\n", t.Render()) }

// paint colours a word where stdout is a terminal that wants colours.
func (a *app) paint(c text.Color, s string) string {
	if !a.color(a.io.Stdout) {
		return s
	}
	return c.EscapeSeq() + s + text.Reset.EscapeSeq()
}
