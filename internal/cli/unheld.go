package cli

import (
	"strings"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/report"
)

// doesNotHold makes the process exit with code after a command that ran to its
// end, and printed what it found, because that does not hold. The text and what
// is added to it are for --json: people have read the output. It is the only way
// to such a code, so that no command ends with one in silence.
func (a *app) doesNotHold(code failure.Code, format string, args ...any) *failure.Error {
	a.unheld = failure.New(code, format, args...)
	return a.unheld
}

// ended returns the exit code of a command that ran to its end. With --json the
// last line of stderr is the error, as for a command that could not run.
func (a *app) ended() int {
	switch {
	case a.unheld == nil:
		return int(failure.OK)
	case a.json:
		return a.fail(a.unheld)
	}
	return int(a.unheld.Code)
}

// concludes makes a report's exit code that of the process. The error has the
// check that decided the code, and below it everything else that does not hold.
func (a *app) concludes(rep *report.Report) {
	var bad []report.Reason
	for _, s := range rep.Stages {
		checks := s.Checks
		if len(checks) == 0 { // the stage did not come to any
			checks = []report.Check{{ID: s.Name, Verdict: s.Verdict, Detail: s.Reason}}
		}
		for _, c := range checks {
			if code := failure.OfCheck(s.Name, c.ID, c.Verdict, failure.InRun); code != failure.OK {
				bad = append(bad, report.Reason{Check: c.ID, Subject: c.Subject, Verdict: c.Verdict, ExitCode: int(code), Text: c.Summary(), Hint: c.Hint})
			}
		}
	}
	a.reasons(rep.ExitCode, bad)
}

// judged makes the gate's exit code that of the process.
func (a *app) judged(g *report.Gate) { a.reasons(g.ExitCode, g.Reasons) }

// reasons makes an error of what does not hold. The first with the code decided it.
func (a *app) reasons(code int, bad []report.Reason) {
	if code == int(failure.OK) {
		return
	}
	first := -1
	for i, r := range bad {
		if r.ExitCode == code {
			first = i
			break
		}
	}
	if first < 0 {
		a.doesNotHold(failure.Code(code), "the report's exit code is %d, and no check in it says why", code)
		return
	}
	e := a.doesNotHold(failure.Code(code), "%s: %s", reasonName(bad[first]), bad[first].Text)
	if hint := bad[first].Hint; hint != "" {
		e.WithHint("%s", hint)
	}
	for i, r := range bad {
		if i != first {
			e.With(reasonName(r), "%s", r.Text)
		}
	}
}

// reasonName is the check, what it is about, and its verdict.
func reasonName(r report.Reason) string {
	return strings.Join(strings.Fields(r.Check+" "+r.Subject.String()+" "+string(r.Verdict)), " ")
}
