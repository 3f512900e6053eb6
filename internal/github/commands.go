package github

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"unicode"
	"unicode/utf8"

	"github.com/sethvargo/go-githubactions"
)

// Limits of the runner. It keeps ten annotations of each level of a step,
// shortens their text, and drops a summary that is too long as a whole.
const (
	maxAnnotations    = 10
	maxAnnotationText = 4096
	maxSummary        = 1 << 20
	maxOutputs        = 1 << 20
)

// Console writes workflow commands. Text from outside goes through it escaped;
// nothing else may write to the same stream while commands are read.
type Console struct {
	w io.Writer
}

// NewConsole returns a console that writes to w, the step's stdout.
func NewConsole(w io.Writer) *Console { return &Console{w: w} }

// command writes one command, escaped by go-githubactions. Its Action is not
// used: it panics where stdout cannot be written.
func (c *Console) command(name string, properties githubactions.CommandProperties, text string) {
	fmt.Fprintln(c.w, (&githubactions.Command{Name: name, Properties: properties, Message: text}).String())
}

// Mask keeps a value out of the log.
func (c *Console) Mask(value string) {
	for _, line := range strings.Split(value, "\n") {
		if line = strings.TrimSpace(line); line != "" {
			c.command("add-mask", nil, line)
		}
	}
}

// Group starts a folded part of the log; the function that it returns ends it.
func (c *Console) Group(title string) func() {
	c.command("group", nil, title)
	return func() { c.command("endgroup", nil, "") }
}

// Quiet makes the runner ignore commands until the function that it returns
// is called: what a model's own code prints must not become a command.
func (c *Console) Quiet() (resume func(), err error) {
	token, err := randomToken()
	if err != nil {
		return nil, err
	}
	c.command("stop-commands", nil, token)
	return func() { fmt.Fprintf(c.w, "\n::%s::\n", token) }, nil
}

// Annotation is one message at a place.
type Annotation struct {
	Level string // error, warning, notice
	File  string // relative to the workspace; empty: none
	Line  int
	// EndLine is the last line of a range; 0 is Line alone.
	EndLine int
	Title   string
	Text    string
}

// Annotate writes annotations in the order given, ten of each level at most;
// the tenth says how many there are beyond it.
func (c *Console) Annotate(list []Annotation) {
	total := map[string]int{}
	for _, a := range list {
		total[a.Level]++
	}
	done := map[string]int{}
	for _, a := range list {
		done[a.Level]++
		n := done[a.Level]
		if n > maxAnnotations || n == maxAnnotations && total[a.Level] > maxAnnotations {
			if n == maxAnnotations {
				c.command(a.Level, nil, fmt.Sprintf("and %d more, all in the report", total[a.Level]-maxAnnotations+1))
			}
			continue
		}
		c.command(a.Level, a.properties(), clip(plain(a.Text), maxAnnotationText-200))
	}
}

// Notice, Warning and Error write one annotation without a place.
func (c *Console) Notice(format string, args ...any) {
	c.command("notice", nil, clip(plain(fmt.Sprintf(format, args...)), maxAnnotationText-200))
}

// Warning writes a warning without a place.
func (c *Console) Warning(format string, args ...any) {
	c.command("warning", nil, clip(plain(fmt.Sprintf(format, args...)), maxAnnotationText-200))
}

// Error writes an error without a place.
func (c *Console) Error(format string, args ...any) {
	c.command("error", nil, clip(plain(fmt.Sprintf(format, args...)), maxAnnotationText-200))
}

// Print writes a line of log that cannot be taken for a command.
func (c *Console) Print(format string, args ...any) {
	for _, line := range strings.Split(plain(fmt.Sprintf(format, args...)), "\n") {
		if strings.HasPrefix(strings.TrimSpace(line), "::") || strings.Contains(line, "##[") {
			line = "\u200b" + strings.ReplaceAll(line, "##[", "#\u200b#[")
		}
		fmt.Fprintln(c.w, line)
	}
}

func (a Annotation) properties() githubactions.CommandProperties {
	properties := githubactions.CommandProperties{}
	add := func(k, v string) {
		if v != "" {
			properties[k] = plain(v)
		}
	}
	add("file", a.File)
	if a.File != "" && a.Line > 0 {
		add("line", strconv.Itoa(a.Line))
		if a.EndLine > a.Line {
			add("endLine", strconv.Itoa(a.EndLine))
		}
	}
	add("title", clip(a.Title, 200))
	return properties
}

// plain drops control characters other than newline and tab.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return r
		}
		if unicode.IsControl(r) || r == utf8.RuneError {
			return -1
		}
		return r
	}, s)
}

// clip shortens s to at most n bytes at a character boundary.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	n -= len("…")
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}

// WriteOutputs appends outputs to the file at path. Values may hold anything:
// every one gets a delimiter of its own that nobody can guess.
func WriteOutputs(path string, values map[string]string) error {
	if path == "" {
		return nil
	}
	var b strings.Builder
	for _, o := range Outputs {
		v, ok := values[o.Name]
		if !ok {
			continue
		}
		token, err := randomToken()
		if err != nil {
			return err
		}
		if strings.Contains(v, token) {
			return errors.New("write outputs: a value holds its own delimiter")
		}
		fmt.Fprintf(&b, "%s<<%s\n%s\n%s\n", o.Name, token, v, token)
	}
	if b.Len() > maxOutputs {
		return fmt.Errorf("write outputs: %d bytes are more than the %d that a job may have", b.Len(), maxOutputs)
	}
	return appendFile(path, b.String())
}

// WriteSummary appends Markdown to the step's summary. render gets the room
// that is left in bytes, for a summary that is too long is dropped as a whole.
func WriteSummary(path string, render func(limit int) string) error {
	if path == "" {
		return nil
	}
	used := 0
	if info, err := os.Stat(path); err == nil {
		used = int(min(info.Size(), maxSummary))
	}
	const reserve = 1024
	room := maxSummary - used - reserve
	if room < 4096 {
		return fmt.Errorf("write summary: %d bytes are used already", used)
	}
	text := render(room)
	if len(text) > room {
		return fmt.Errorf("write summary: %d bytes do not fit into %d", len(text), room)
	}
	return appendFile(path, text+"\n")
}

func appendFile(path, text string) error {
	// A pipe without a reader would be waited for.
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY|syscall.O_NONBLOCK, 0o644)
	if err != nil {
		return err
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		_ = f.Close()
		return errors.Join(err, fmt.Errorf("%s is no regular file", path))
	}
	if _, err := f.WriteString(text); err != nil {
		_ = f.Close()
		return err
	}
	return f.Close()
}

func randomToken() (string, error) {
	var b [16]byte
	if _, err := rand.Read(b[:]); err != nil {
		return "", err
	}
	return "trtship_" + hex.EncodeToString(b[:]), nil
}
