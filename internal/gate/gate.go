// Package gate decides whether a change goes through. It is a pure function of
// one report, a baseline if there is one, and JUnit files of other tools: it
// reads no environment, no clock and no machine. What decides (whether hardware
// is required, budgets, margins) was resolved when the run was made and is
// written in the report.
package gate

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/report"
)

// DefaultConfidence is the level of the confidence intervals of changes.
const DefaultConfidence = 0.95

// Options are what the caller knows and the report cannot.
type Options struct {
	// Until is the bound that the caller itself set. A hardware stage that the
	// same bound cut off is not held against the report.
	Until string
	// Source says how the baseline was found, for people: "file", "merge base".
	Source string
	// BaselineCommit is the commit of the baseline, where the report does not say.
	BaselineCommit string
	// RequireBaseline makes it a gap when there is no baseline, or none that
	// may be compared.
	RequireBaseline bool
	// AllowVanished are patterns (path.Match) of rows that may be gone.
	AllowVanished []string
	// Confidence of the intervals; 0 is DefaultConfidence.
	Confidence float64
	// Checks are judged along with the gate's own (see ReadJUnit).
	Checks []report.Check
	// Notes are shown with the result.
	Notes []string
}

// Judge judges head, against base unless that is nil.
func Judge(head, base *report.Report, o Options) *report.Gate {
	if o.Confidence == 0 {
		o.Confidence = DefaultConfidence
	}
	j := &judge{head: head, base: base, o: o, gate: &report.Gate{Format: report.GateFormat, Hardware: head.Settings.Hardware, Notes: slices.Clone(o.Notes)}}
	j.stages()
	j.evidence()
	j.baseline()
	if base != nil && base.Verdict != report.Pass {
		j.note("The baseline, run %s, did not pass itself: its verdict is %s.", base.Run.ID, base.Verdict)
	}
	j.vanished()
	j.changes()
	j.budgets()
	j.gate.Checks = append(j.gate.Checks, o.Checks...)
	j.conclude()
	return j.gate
}

type judge struct {
	head, base *report.Report
	o          Options
	gate       *report.Gate
	unmeasured []string // hardware stages that did not run where that is allowed
	cut        []string // stages that were cut off
	passed     int
}

func (j *judge) required() bool { return j.head.Settings.Hardware != "optional" }

// ownBound reports whether the caller set the bound that cut the run off.
func (j *judge) ownBound() bool {
	r := j.head.Run
	return j.o.Until != "" && j.o.Until == r.Until && r.From == "" && len(r.Only) == 0
}

func (j *judge) stages() {
	for i := range j.head.Stages {
		j.stage(&j.head.Stages[i])
	}
	if len(j.unmeasured) > 0 {
		j.note("Hardware is optional in this run. Missing, which proves nothing: %s.", strings.Join(j.unmeasured, ", "))
	}
	if len(j.cut) > 0 {
		bound := "by the command line"
		if j.ownBound() {
			bound = "by until: " + j.o.Until
		}
		j.note("Cut off %s: %s.", bound, strings.Join(j.cut, ", "))
	}
}

func (j *judge) stage(s *report.Stage) {
	bad := false
	for _, c := range checksOf(s) {
		if j.check(s, c) {
			bad = true
		}
	}
	if !bad && len(s.Checks) > 0 && worse(s.Verdict, report.Of(s.Checks)) {
		// The stage broke after its checks were made, or says so against them.
		j.check(s, report.Check{ID: s.Name + "/run", Verdict: s.Verdict, Detail: s.Reason, Hardware: s.Hardware})
	}
}

// checksOf returns the checks of a stage; a stage without any is one check
// with the stage's verdict, and broken if it claims to have passed.
func checksOf(s *report.Stage) []report.Check {
	if len(s.Checks) > 0 {
		return s.Checks
	}
	c := report.Check{ID: s.Name + "/run", Verdict: s.Verdict, Detail: s.Reason, Hardware: s.Hardware}
	if s.Verdict == report.Pass {
		c.Verdict, c.Detail = report.Broken, "passed without a single check: no evidence"
	}
	return []report.Check{c}
}

// check counts one check and reports whether it stands in the way.
func (j *judge) check(s *report.Stage, c report.Check) bool {
	hardware := c.Hardware || s.Hardware
	v := c.Verdict
	switch v {
	case report.Pass:
		j.passed++
		return false
	case report.Skip:
		return false
	case report.NotAsked:
		if !hardware || !j.required() || j.ownBound() {
			j.cut = addOnce(j.cut, s.Name)
			return false
		}
		c.Hint = "run without --until, --from or --only, set the action's until input to this bound, or set gate.hardware: optional"
		c.Detail = "hardware is required and this step was cut off"
		v = report.Missing
	case report.Missing:
		if hardware && !j.required() {
			j.unmeasured = addOnce(j.unmeasured, s.Name)
			return false
		}
	case report.Fail, report.Broken, report.Inconclusive:
	}
	j.reason(c, v, failure.OfCheck(s.Name, c.ID, v, failure.InGate))
	return true
}

func (j *judge) reason(c report.Check, v report.Verdict, code failure.Code) {
	j.gate.Reasons = append(j.gate.Reasons, report.Reason{Check: c.ID, Subject: c.Subject, Verdict: v, ExitCode: int(code), Text: c.Summary(), Hint: c.Hint, Line: c.Line})
}

func (j *judge) note(format string, args ...any) {
	j.gate.Notes = append(j.gate.Notes, fmt.Sprintf(format, args...))
}

// evidence demands that something passed, and that the run does not say worse
// of itself than its checks do.
func (j *judge) evidence() {
	if j.passed == 0 {
		j.own(report.Check{
			ID: "gate/evidence", Verdict: report.Missing, Want: "at least one check that passed", Got: "none",
			Hint: "a run in which nothing ran lets nothing through",
		})
		return
	}
	if v := j.head.Verdict; len(j.gate.Reasons) == 0 && (worse(v, report.Missing) || v == report.Inconclusive) {
		j.own(report.Check{ID: "gate/evidence", Verdict: report.Broken, Want: "checks that explain the run's verdict", Got: fmt.Sprintf("verdict %s, exit code %d and no such check", v, j.head.ExitCode)})
	}
}

// own adds a check of the gate.
func (j *judge) own(c report.Check) { j.gate.Checks = append(j.gate.Checks, c) }

// baseline says what is compared with, and whether speeds may be.
func (j *judge) baseline() {
	if j.base == nil {
		j.gate.Baseline = &report.Baseline{Source: "none"}
		if j.o.RequireBaseline {
			j.own(report.Check{
				ID: "gate/baseline", Verdict: report.Missing, Want: "a baseline", Got: "none",
				Hint: "run the workflow on the base branch first, or leave require-baseline off for the first run",
			})
		}
		return
	}
	b := &report.Baseline{RunID: j.base.Run.ID, Commit: j.o.BaselineCommit, Source: j.o.Source, Differences: Differences(j.base, j.head)}
	if b.Commit == "" && j.base.Environment.Git != nil {
		b.Commit = j.base.Environment.Git.Commit
	}
	if b.Source == "" {
		b.Source = "file"
	}
	b.Comparable = len(b.Differences) == 0
	j.gate.Baseline = b
	if !b.Comparable {
		c := report.Check{
			ID: "gate/baseline", Verdict: report.Skip, Want: "the same machine and tools", Got: strings.Join(b.Differences, "; "),
			Hint: "compare with a run of the same GPU, driver and TensorRT",
		}
		if j.base.Model.Name != j.head.Model.Name {
			c.Want, c.Hint = "a baseline of the same model", "give the report of a run of this model"
		}
		if j.o.RequireBaseline {
			c.Verdict = report.Missing
		}
		j.own(c)
	}
}

// conclude adds the gate's own bad checks to the reasons and sets verdict and
// exit code from the first reason.
func (j *judge) conclude() {
	g := j.gate
	for _, c := range g.Checks {
		switch c.Verdict {
		case report.Pass, report.Skip, report.NotAsked:
		case report.Fail:
			code := failure.Regression
			if c.ID == junitCheck {
				code = failure.Incomplete // what another tool found is neither a budget nor a change
			}
			j.reason(c, c.Verdict, code)
		default:
			j.reason(c, c.Verdict, failure.Incomplete)
		}
	}
	g.Verdict = report.Pass
	for _, r := range g.Reasons {
		g.Verdict = report.Worst(g.Verdict, r.Verdict)
	}
	if len(g.Reasons) > 0 {
		g.ExitCode = g.Reasons[0].ExitCode
	}
}

// worse reports whether a is worse than b.
func worse(a, b report.Verdict) bool { return a != b && report.Worst(a, b) == a }

func addOnce(list []string, s string) []string {
	if slices.Contains(list, s) {
		return list
	}
	return append(list, s)
}

func (j *judge) allowedToVanish(row string) bool {
	for _, p := range j.o.AllowVanished {
		if ok, err := path.Match(p, row); err == nil && ok {
			return true
		}
	}
	return false
}
