package report

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/jstemmer/go-junit-report/v2/junit"
)

// JUnit renders a report as JUnit XML: a suite for each stage and one for the
// gate, a test case for each check. A check that does not hold is a failure;
// one that is broken, missing or inconclusive is an error, so that no reader
// takes it for green. Names hold no measured numbers: a case keeps its name
// from run to run. Times are always set, and every text is made of characters
// that XML 1.0 allows.
func JUnit(v View) ([]byte, error) {
	r := v.Report
	w := junitWriter{model: pathless(r.Model.Name), started: r.Run.Started, hardware: v.hardwareRequired(), bad: v.badChecks(), seen: map[string]int{}}
	all := junit.Testsuites{Name: xmlText("trtship " + r.Model.Name)}
	total := 0.0
	for _, s := range r.Stages {
		suite := w.stage(s)
		all.AddSuite(suite)
		total += s.Seconds
	}
	if v.Gate != nil {
		all.AddSuite(w.suite("gate", v.Gate.Checks, 0))
	}
	for i := range all.Suites {
		all.Suites[i].ID = i
	}
	all.Time = xmlSeconds(total)
	// Totals are in the suites only. Jenkins' schema knows no skipped at the root,
	// and readers that find the other totals there take skipped cases for passed.
	all.Tests, all.Failures, all.Errors, all.Skipped, all.Disabled = 0, 0, 0, 0, 0
	var b bytes.Buffer
	b.WriteString(xml.Header)
	if err := all.WriteXML(&b); err != nil {
		return nil, fmt.Errorf("write JUnit: %w", err)
	}
	return b.Bytes(), nil
}

func (v View) hardwareRequired() bool {
	if v.Gate != nil {
		return v.Gate.Hardware == "required"
	}
	return v.Report.Settings.Hardware == "required"
}

// badChecks are the checks that the gate counts as standing in the way.
func (v View) badChecks() map[string]bool {
	bad := map[string]bool{}
	if v.Gate != nil {
		for _, r := range v.Gate.Reasons {
			bad[r.Check+"\x00"+r.Subject.String()] = true
		}
	}
	return bad
}

type junitWriter struct {
	model    string
	started  time.Time
	hardware bool // a hardware step that did not run is an error
	bad      map[string]bool
	seen     map[string]int // class and name, to keep cases apart
}

func (w junitWriter) stage(s Stage) junit.Testsuite {
	checks := s.Checks
	if len(checks) == 0 || Of(checks) != s.Verdict && !s.Verdict.Good() {
		checks = append([]Check{{ID: s.Name + "/run", Verdict: s.Verdict, Detail: s.Reason, Hardware: s.Hardware, Seconds: s.Seconds}}, checks...)
	}
	return w.suite(s.Name, checks, s.Seconds)
}

func (w junitWriter) suite(name string, checks []Check, seconds float64) junit.Testsuite {
	suite := junit.Testsuite{Name: xmlText(w.model + "/" + name), Package: xmlText("trtship." + w.model + "." + name), Time: xmlSeconds(seconds)}
	if !w.started.IsZero() {
		suite.Timestamp = w.started.UTC().Format("2006-01-02T15:04:05")
	}
	for _, c := range checks {
		suite.AddTestcase(w.testcase(name, c))
	}
	return suite
}

func (w junitWriter) testcase(suite string, c Check) junit.Testcase {
	name := c.ID
	if i := strings.IndexByte(name, '/'); i >= 0 {
		name = name[i+1:]
	}
	if s := c.Subject.String(); s != "" {
		name += " [" + s + "]"
	}
	class := "trtship." + w.model + "." + suite
	key := class + "\x00" + name
	w.seen[key]++
	if n := w.seen[key]; n > 1 {
		name += " #" + strconv.Itoa(n)
	}
	t := junit.Testcase{Name: xmlText(name), Classname: xmlText(class), Time: xmlSeconds(c.Seconds)}
	w.result(&t, c)
	return t
}

func (w junitWriter) result(t *junit.Testcase, c Check) {
	message := xmlText(firstLine(c.Summary()))
	result := &junit.Result{Message: message, Type: string(c.Verdict), Data: xmlText(checkText(c))}
	switch c.Verdict {
	case Pass:
		if text := metricsText(c.Metrics); text != "" {
			t.SystemOut = &junit.Output{Data: text}
		}
	case Skip:
		t.Skipped = result
	case NotAsked:
		if w.bad[c.ID+"\x00"+c.Subject.String()] {
			t.Error = result
		} else {
			t.Skipped = result
		}
	case Missing:
		// Said, and no error, only where the run was made with optional hardware.
		if c.Hardware && !w.hardware {
			t.Skipped = result
		} else {
			t.Error = result
		}
	case Broken, Inconclusive:
		t.Error = result
	case Fail:
		t.Failure = result
	default:
		result.Type = "unknown-verdict"
		t.Error = result
	}
}

func checkText(c Check) string {
	var b strings.Builder
	line := func(label, text string) {
		if text != "" {
			b.WriteString(label + text + "\n")
		}
	}
	line("check:  ", c.ID)
	line("about:  ", c.Subject.String())
	line("want:   ", c.Want)
	line("got:    ", c.Got)
	b.WriteString(metricsText(c.Metrics))
	line("", c.Detail)
	line("hint:   ", c.Hint)
	return b.String()
}

func metricsText(m map[string]Number) string {
	if len(m) == 0 {
		return ""
	}
	var b strings.Builder
	for _, k := range sortedKeys(m) {
		b.WriteString(k + " = " + strconv.FormatFloat(float64(m[k]), 'g', -1, 64) + "\n")
	}
	return xmlText(b.String())
}

// pathless makes a model's name one part of a dotted class name.
func pathless(name string) string {
	if name == "" {
		return "model"
	}
	return strings.NewReplacer(".", "_", "/", "_", " ", "_").Replace(name)
}

// xmlText keeps what XML 1.0 allows; colours and control characters go.
func xmlText(s string) string { return clean(s) }

func xmlSeconds(s float64) string {
	if math.IsNaN(s) || math.IsInf(s, 0) || s < 0 {
		s = 0
	}
	return strconv.FormatFloat(s, 'f', 3, 64)
}
