package cli

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestTablesFitTheTerminal(t *testing.T) {
	for _, columns := range []int{60, 80, 200} {
		p := openPTY(t, columns)
		a := &app{io: IO{Stdout: p.user, Getenv: func(string) string { return "" }}}
		table := a.table("tool", "usable", "where, or why not")
		table.AppendRow([]any{"docker", "no", "no engine: " + strings.Repeat("failed to connect to the socket ", 5)})
		table.AppendRow([]any{"python", "yes", "/home/" + strings.Repeat("long", 30)})
		a.printTable(table)
		text := p.end(t)
		for line := range strings.Lines(text) {
			if n := utf8.RuneCountInString(strings.TrimRight(line, "\r\n")); n > columns {
				t.Errorf("%d columns: a line has %d: %q", columns, n, line)
			}
		}
		if squeezed := strings.Join(strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(" \r\n│", r) }), ""); !strings.Contains(squeezed, strings.Repeat("long", 30)) {
			t.Errorf("%d columns: something was cut off:\n%s", columns, text)
		}
	}
}
