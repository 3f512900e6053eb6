package cli

import (
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// table makes a table in the one style of the program.
func (a *app) table(heads ...string) rows {
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
	return rows{t}
}

// printTable writes a table to stdout, no wider than the terminal where that can
// be.
func (a *app) printTable(t rows) {
	shown := t.Render()
	if configs := fit(shown, a.width(a.io.Stdout)); configs != nil {
		t.SetColumnConfigs(configs)
		shown = t.Render()
	}
	_ = a.put(shown + "\n")
}

// narrowest is the least width that a column is shrunk to.
const narrowest = 12

// fit takes from the widest columns of a rendered table what is too much for a
// width; nil if nothing is. A width of 0 is no terminal.
func fit(rendered string, width int) []table.ColumnConfig {
	top, _, _ := strings.Cut(rendered, "\n")
	total := utf8.RuneCountInString(top)
	if width <= 0 || total <= width {
		return nil
	}
	var configs []table.ColumnConfig
	for i, part := range strings.Split(strings.Trim(top, "┌┐"), "┬") {
		configs = append(configs, table.ColumnConfig{Number: i + 1, WidthMax: utf8.RuneCountInString(part) - 2, WidthMaxEnforcer: text.WrapSoft})
	}
	for ; total > width; total-- {
		widest := slices.MaxFunc(configs, func(a, b table.ColumnConfig) int { return a.WidthMax - b.WidthMax })
		if widest.WidthMax <= narrowest {
			break
		}
		configs[widest.Number-1].WidthMax--
	}
	return configs
}

// paint colours a word where stdout is a terminal that wants colours.
func (a *app) paint(c text.Color, s string) painted {
	if !a.color(a.io.Stdout) {
		return painted(s)
	}
	return painted(c.EscapeSeq() + s + text.Reset.EscapeSeq())
}
