package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/report"
)

// hostile sets a terminal's title, moves its cursor and turns the direction of
// writing; one byte of it is no UTF-8.
const hostile = "a\x1b]0;title\x07\x1b[2J\x7f\u009b31m\x9b\u202e\rz"

func TestEscapeShowsWhatWouldCommandATerminal(t *testing.T) {
	for text, want := range map[string]string{
		"plain, Grüße 模型 \ufffd\n\tx": "plain, Grüße 模型 \ufffd\n\tx",
		hostile:                       `a\x1b]0;title\x07\x1b[2J\x7f\u009b31m\x9b\u202e\x0dz`,
	} {
		if got := escape(text); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}

// commandsIn finds what is no text.
func commandsIn(s string) bool { return escape(s) != s }

func TestNothingThatIsPrintedForPeopleCommandsTheirTerminal(t *testing.T) {
	var out, errs bytes.Buffer
	a := &app{io: IO{Stdout: &out, Stderr: &errs, Getenv: func(string) string { return "" }}}
	a.say("note: %s", hostile)
	a.print("%s\n", hostile)
	rows := a.table("name", "number")
	rows.AppendRow([]any{hostile, 1})
	rows.AppendRow([]any{[]string{hostile}, failure.New(failure.Model, "%s", hostile)})
	a.printTable(rows)
	a.printDiagnosis(diagnosis{Findings: []finding{{Name: "gpu", OK: true, Version: hostile, Detail: "0: " + hostile, Hint: hostile}}})
	a.fail(failure.New(failure.Model, "%s", hostile).At(hostile).With(hostile, "%s", hostile).WithHint("%s", hostile))
	a.bug(hostile, []byte(hostile))
	l := &lines{a: a}
	l.RunStarted(hostile, hostile)
	l.Note(hostile)
	l.StageFinished(report.Stage{Name: hostile, Reason: hostile})
	for name, text := range map[string]string{"stdout": out.String(), "stderr": errs.String()} {
		if text == "" || commandsIn(text) {
			t.Errorf("%s has %q", name, text)
		}
	}
}

// Colours of ours stay: they are no text of others.
func TestAPaintedWordKeepsItsColour(t *testing.T) {
	var out bytes.Buffer
	a := &app{io: IO{Stdout: &out, Stderr: &out, Getenv: func(string) string { return "" }}}
	red := painted(text.FgRed.EscapeSeq() + "no" + text.Reset.EscapeSeq())
	rows := a.table("usable")
	rows.AppendRow([]any{red})
	a.printTable(rows)
	if !strings.Contains(out.String(), string(red)) {
		t.Errorf("%q", out.String())
	}
}

// There is no way around: commands write with say, print, put and tables.
func TestCommandsPrintInOnePlace(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	direct := regexp.MustCompile(`Fprint(f|ln)?\(a\.io\.`)
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range strings.Split(string(b), "\n") {
			if direct.MatchString(line) && !strings.Contains(line, "encode error") {
				t.Errorf("%s:%d writes to a stream by itself: %s", f, i+1, strings.TrimSpace(line))
			}
		}
	}
}
