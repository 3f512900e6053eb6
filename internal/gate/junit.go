package gate

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/text/encoding/charmap"

	"github.com/trtship/trtship/internal/regular"
	"github.com/trtship/trtship/report"
)

// Limits of a JUnit file that is read.
const (
	maxJUnitBytes = 100 << 20
	maxJUnitDepth = 64
	maxJUnitNamed = 20 // cases that are named in a check
)

// junitCheck is the id of the checks that ReadJUnit makes.
const junitCheck = "gate/junit"

// ReadJUnit judges JUnit files of other tools: every test in them must have run
// and passed. A file that is missing, empty, not well-formed or without tests
// is no evidence; a pattern that matches no file is a missing one. allow are
// patterns (path.Match) of "classname.name" or "name" that may be skipped.
func ReadJUnit(patterns, allow []string) []report.Check {
	var checks []report.Check
	for _, p := range patterns {
		files, err := filepath.Glob(p)
		if err != nil || len(files) == 0 {
			checks = append(checks, junitVerdict(p, report.Broken, "no file matches", "a test run that leaves no report may not have run at all"))
			continue
		}
		for _, f := range files {
			checks = append(checks, readJUnitFile(f, allow))
		}
	}
	return checks
}

func junitVerdict(file string, v report.Verdict, got, hint string) report.Check {
	return report.Check{ID: junitCheck, Subject: report.Subject{Node: filepath.ToSlash(file)}, Verdict: v, Want: "every test ran and passed", Got: got, Hint: hint}
}

func readJUnitFile(file string, allow []string) report.Check {
	b, err := readAtMost(file, maxJUnitBytes)
	if err != nil {
		return junitVerdict(file, report.Broken, err.Error(), "")
	}
	return JudgeJUnit(file, b, allow)
}

func readAtMost(file string, limit int64) ([]byte, error) {
	f, err := regular.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // only read
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("the file has more than %d bytes", limit)
	}
	return b, err
}

// JudgeJUnit judges the bytes of one JUnit file. Elements count, the totals in
// attributes are not believed, except where they admit more failures than the
// file shows.
func JudgeJUnit(file string, b []byte, allow []string) report.Check {
	if len(bytes.TrimSpace(b)) == 0 {
		return junitVerdict(file, report.Broken, "the file is empty", "")
	}
	t, err := parseJUnit(b)
	if err != nil {
		return junitVerdict(file, report.Broken, err.Error(), "a report that cannot be read proves nothing")
	}
	return t.check(file, allow)
}

// tally is what a JUnit file holds.
type tally struct {
	passed, failed, errored int
	claimed                 int // failures and errors that attributes of the root admit
	notRun                  []string
	bad                     []string
	reasons                 map[string]string
}

func (t *tally) check(file string, allow []string) report.Check {
	var notRun []string
	for _, n := range t.notRun {
		if !allowed(n, allow) {
			notRun = append(notRun, n)
		}
	}
	metrics := map[string]report.Number{"passed": report.Number(t.passed), "failed": report.Number(t.failed), "errors": report.Number(t.errored), "not_run": report.Number(len(t.notRun))}
	var c report.Check
	switch {
	case t.failed+t.errored > 0:
		c = junitVerdict(file, report.Fail, fmt.Sprintf("%d failed, %d errors, %d not run, %d passed", t.failed, t.errored, len(t.notRun), t.passed), "")
		c.Detail = t.list(t.bad)
	case t.claimed > 0:
		c = junitVerdict(file, report.Fail, fmt.Sprintf("the file's totals admit %d failures or errors that it does not show", t.claimed), "")
	case len(notRun) > 0:
		c = junitVerdict(file, report.Missing, fmt.Sprintf("%d skipped or not run, %d passed", len(notRun), t.passed), "a skipped test is not a passed test; allow it by name if it must be")
		c.Detail = t.list(notRun)
	case t.passed == 0:
		c = junitVerdict(file, report.Missing, "0 tests ran", "an empty report is no evidence")
	default:
		c = junitVerdict(file, report.Pass, fmt.Sprintf("%d passed", t.passed), "")
		if n := len(t.notRun); n > 0 {
			c.Detail = fmt.Sprintf("%d not run, as allowed by name", n)
		}
	}
	c.Metrics = metrics
	return c
}

func (t *tally) list(names []string) string {
	var b strings.Builder
	for i, n := range names {
		if i == maxJUnitNamed {
			fmt.Fprintf(&b, "and %d more\n", len(names)-i)
			break
		}
		b.WriteString(n)
		if r := t.reasons[n]; r != "" {
			b.WriteString(": " + r)
		}
		b.WriteString("\n")
	}
	return b.String()
}

func allowed(name string, patterns []string) bool {
	short := name[strings.LastIndexByte(name, '.')+1:]
	for _, p := range patterns {
		for _, n := range []string{name, short} {
			if ok, err := path.Match(p, n); err == nil && ok {
				return true
			}
		}
	}
	return false
}

func parseJUnit(b []byte) (*tally, error) {
	d := xml.NewDecoder(bytes.NewReader(b))
	d.CharsetReader = charset
	p := &junitParser{tally: &tally{reasons: map[string]string{}}}
	for {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("not well-formed, byte %d: %w", d.InputOffset(), err)
		}
		if err := p.token(tok); err != nil {
			return nil, fmt.Errorf("byte %d: %w", d.InputOffset(), err)
		}
	}
	if p.roots != 1 {
		return nil, fmt.Errorf("%d root elements, want one", p.roots)
	}
	p.tally.claimed = max(0, p.claimed-p.tally.failed-p.tally.errored)
	return p.tally, nil
}

func charset(label string, in io.Reader) (io.Reader, error) {
	switch strings.ToLower(label) {
	case "iso-8859-1", "latin1":
		return charmap.ISO8859_1.NewDecoder().Reader(in), nil
	case "windows-1252":
		return charmap.Windows1252.NewDecoder().Reader(in), nil
	case "us-ascii", "ascii":
		return in, nil
	}
	return nil, fmt.Errorf("encoding %q is not read; write the report in UTF-8", label)
}

type junitParser struct {
	*tally
	open    []string
	roots   int
	claimed int
	current *testcase
}

type testcase struct {
	name, outcome, reason string
	depth                 int
}

func (p *junitParser) token(tok xml.Token) error {
	switch t := tok.(type) {
	case xml.Directive:
		if bytes.Contains(bytes.ToUpper(t), []byte("ENTITY")) {
			return errors.New("declares entities, which are not expanded")
		}
	case xml.StartElement:
		return p.start(t)
	case xml.EndElement:
		p.open = p.open[:len(p.open)-1]
		if p.current != nil && len(p.open) < p.current.depth {
			p.finish()
		}
	}
	return nil
}

func (p *junitParser) start(e xml.StartElement) error {
	name := e.Name.Local
	if len(p.open) == 0 {
		p.roots++
		if name != "testsuites" && name != "testsuite" {
			return fmt.Errorf("the root element is %s, want testsuites or testsuite", name)
		}
		p.claimed = number0(attribute(e, "failures")) + number0(attribute(e, "errors"))
	}
	p.open = append(p.open, name)
	if len(p.open) > maxJUnitDepth {
		return fmt.Errorf("elements are nested more than %d deep", maxJUnitDepth)
	}
	switch {
	case name == "testcase" && p.current == nil:
		p.current = &testcase{name: caseName(e), outcome: outcome(e), depth: len(p.open)}
	case p.current != nil && len(p.open) == p.current.depth+1:
		p.result(name, attribute(e, "message"))
	case p.current == nil && (name == "error" || name == "failure"):
		// Of a whole suite: its set-up broke.
		p.errored++
		p.bad = append(p.bad, "a suite: "+attribute(e, "message"))
	}
	return nil
}

func caseName(e xml.StartElement) string {
	name := attribute(e, "name")
	if class := attribute(e, "classname"); class != "" {
		name = class + "." + name
	}
	if name == "" {
		name = "a test without a name"
	}
	return name
}

// outcome reads the attributes that some writers use in place of elements.
func outcome(e xml.StartElement) string {
	for _, key := range []string{"status", "result"} {
		switch strings.ToLower(attribute(e, key)) {
		case "notrun", "not_run", "skipped", "disabled", "suppressed", "ignored":
			return "skipped"
		case "failed", "failure":
			return "failure"
		case "error", "errored":
			return "error"
		}
	}
	return ""
}

// result notes a child of a test case; the worst one counts.
func (p *junitParser) result(element, message string) {
	order := []string{"", "skipped", "failure", "error"}
	kind := element
	if element == "disabled" || element == "ignored" {
		kind = "skipped"
	}
	if i := slices.Index(order, kind); i > slices.Index(order, p.current.outcome) {
		p.current.outcome, p.current.reason = kind, message
	}
}

func (p *junitParser) finish() {
	c := p.current
	p.current = nil
	p.reasons[c.name] = strings.Join(strings.Fields(c.reason), " ")
	switch c.outcome {
	case "error":
		p.errored++
		p.bad = append(p.bad, c.name)
	case "failure":
		p.failed++
		p.bad = append(p.bad, c.name)
	case "skipped":
		p.notRun = append(p.notRun, c.name)
	default:
		p.passed++
	}
}

func attribute(e xml.StartElement, name string) string {
	for _, a := range e.Attr {
		if a.Name.Local == name {
			return a.Value
		}
	}
	return ""
}

func number0(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 {
		return 0
	}
	return n
}
