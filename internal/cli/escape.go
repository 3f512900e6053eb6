package cli

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/jedib0t/go-pretty/v6/table"
)

// escape shows what would command a terminal as Go writes it in a string: control
// characters, bytes that are no UTF-8, and marks that change the direction of
// writing. Names and texts come from models, drivers and files; everything that is
// printed for people goes through here, by say, print, tables and errors. Line ends
// and tabs stay.
func escape(s string) string {
	if !strings.ContainsFunc(s, commandsTerminal) && utf8.ValidString(s) {
		return s
	}
	var b strings.Builder
	for i, r := range s {
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(s[i:], "\uFFFD"):
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case commandsTerminal(r) && r < utf8.RuneSelf:
			fmt.Fprintf(&b, `\x%02x`, r)
		case commandsTerminal(r):
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

func commandsTerminal(r rune) bool {
	return r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029')
}

// painted is a word of our own with colours around it: a cell that is not escaped.
type painted string

// rows is a table whose cells are escaped.
type rows struct{ table.Writer }

// AppendRow adds a row.
func (t rows) AppendRow(row table.Row, config ...table.RowConfig) {
	clean := make(table.Row, len(row))
	for i, cell := range row {
		switch c := cell.(type) {
		case painted:
			clean[i] = string(c)
		case bool, int, int64, uint64, float64: // they are aligned as numbers
			clean[i] = c
		default:
			clean[i] = escape(fmt.Sprint(c))
		}
	}
	t.Writer.AppendRow(clean, config...)
}
