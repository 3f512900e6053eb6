package worker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/proc"
	"github.com/trtship/trtship/report"
)

// Crash is a child that died, ran past its time, or broke the protocol. It is
// not an answer about the model: a stage reports it as a broken check.
type Crash struct {
	Subject string   // model
	Method  string   // call during which it happened
	Err     error    // *proc.Error if the child ended
	Tail    string   // last lines of its stderr
	Reached []string // what the call had done by then, in the child's words
}

// timeoutError is why a child that ran past its time was ended.
type timeoutError struct {
	limit   time.Duration
	setting string
}

func (t *timeoutError) Error() string {
	text := fmt.Sprintf("out of time after %v", t.limit)
	if t.setting != "" {
		text += " (" + t.setting + ")"
	}
	return text
}

func (t *timeoutError) Unwrap() error { return context.DeadlineExceeded }

func (c *Crash) Error() string { return c.what() + c.Reason() }

// what names the call.
func (c *Crash) what() string {
	what := c.Method
	if c.Subject != "" {
		what += " of " + c.Subject
	}
	return "python worker: " + what + ": "
}

// Reason says in one line how the child ended, with its last words.
func (c *Crash) Reason() string {
	if p, ok := errors.AsType[*proc.Error](c.Err); ok && !p.Killed {
		return c.end() + lastLine(c.Tail)
	}
	return c.end()
}

// end says how the child ended, without its last words.
func (c *Crash) end() string {
	p, ok := errors.AsType[*proc.Error](c.Err)
	switch {
	case !ok:
		return c.Err.Error()
	case p.Killed:
		return fmt.Sprintf("ended: %v", p.Cause)
	case p.Signal != 0:
		return fmt.Sprintf("python crashed (%s)", proc.SignalName(p.Signal))
	default:
		return fmt.Sprintf("python ended with exit status %d", p.Exit)
	}
}

func (c *Crash) Unwrap() error { return c.Err }

// hint says what can be done about it.
func (c *Crash) hint() string {
	if t, ok := errors.AsType[*timeoutError](c.Err); ok && t.setting != "" {
		return "raise " + t.setting
	}
	return ""
}

// Failure is the crash as the end of a command, with its last lines. code is for
// what the command wanted of the child.
func (c *Crash) Failure(code failure.Code) *failure.Error {
	e := failure.New(code, "%w", error(c))
	e.Hint = cmp.Or(c.hint(), "the child's last words say why; trtship doctor shows what it ran with")
	if t := strings.TrimSpace(c.Tail); t != "" {
		e.With("last lines", "%s", t)
	}
	return e
}

// Code is the exit code of a crash that is the end of a command: that of what
// was asked of the child.
func (c *Crash) Code() failure.Code {
	switch c.Method {
	case "torch.export":
		return failure.Export
	case "trt.benchmark", "trt.compare":
		return failure.Benchmark
	}
	if strings.HasPrefix(c.Method, "trt.") {
		return failure.Build
	}
	return failure.Model
}

// Reached reports whether the call whose error this is had reached a milestone
// before it failed.
func Reached(err error, milestone string) bool {
	if c, ok := errors.AsType[*Crash](err); ok {
		return slices.Contains(c.Reached, milestone)
	}
	r, ok := errors.AsType[*Refusal](err)
	return ok && slices.Contains(r.Reached, milestone)
}

func lastLine(tail string) string {
	lines := strings.Split(strings.TrimSpace(tail), "\n")
	if last := strings.TrimSpace(lines[len(lines)-1]); last != "" {
		return ": " + last
	}
	return ""
}

// BrokenCheck turns a Crash into the check id with verdict broken. ok is false
// for any other error.
func BrokenCheck(id string, err error) (c report.Check, ok bool) {
	crash, ok := errors.AsType[*Crash](err)
	if !ok {
		return report.Check{}, false
	}
	c = report.Check{
		ID: id, Verdict: report.Broken, Want: "an answer from the Python child",
		Got: crash.Reason(), Detail: crash.what() + crash.end(), Hint: crash.hint(),
	}
	if t := strings.TrimSpace(crash.Tail); t != "" {
		c.Detail += "\n" + t
	}
	return c, true
}

// CheckOf turns what a call could not do into the check id: broken for a child
// that died, failed for a model that cannot be loaded, run or exported. ok is
// false for every other error (a missing capability, a bug): the caller passes
// that on.
func CheckOf(id string, err error) (c report.Check, ok bool) {
	if c, ok := BrokenCheck(id, err); ok {
		return c, true
	}
	e, ok := errors.AsType[*failure.Error](err)
	if !ok || KindOf(err) == "" || (e.Code != failure.Model && e.Code != failure.Export) {
		return report.Check{}, false
	}
	c = report.Check{ID: id, Verdict: report.Fail, Got: e.Message, Hint: e.Hint}
	var lines []string
	if e.Where != "" {
		lines = append(lines, "at "+e.Where)
	}
	for _, d := range e.Details {
		lines = append(lines, d.Label+": "+d.Value)
	}
	c.Detail = strings.Join(lines, "\n")
	return c, true
}

// failure turns the child's account of an error into an *failure.Error. The
// Python traceback goes to the log, and into the details of a bug.
func (w *Worker) failure(method string, r *remoteError) error {
	if r.Trace != "" {
		fmt.Fprintf(w.opt.Log, "%s: %s\n%s\n", method, r.Message, r.Trace)
	}
	if r.Kind == "memory" { // says nothing about the model, and the child may be in any state
		return w.crash(method, fmt.Errorf("%s (limit %d MiB)", r.Message, w.opt.MemoryMB))
	}
	code := failure.Code(r.Code)
	if _, known := code.Doc(); !known || code == failure.OK {
		code = failure.Bug
	}
	e := failure.New(code, "%s", w.near(r.Message)).At(w.near(r.Where))
	e.Hint = r.Hint
	for _, d := range r.Details {
		e.With(d.Label, "%s", w.near(d.Value))
	}
	if r.Trace != "" && code == failure.Bug {
		e.With("python traceback", "%s", r.Trace)
	}
	e.Err = &Refusal{Kind: r.Kind, Data: r.Data, Reached: w.reached}
	return e
}

// near shortens paths below the user's folders to relative ones: reports from
// two checkouts of the same model are then the same.
func (w *Worker) near(text string) string {
	for _, root := range w.opt.Path {
		text = strings.ReplaceAll(text, strings.TrimSuffix(root, "/")+"/", "")
	}
	return text
}

// Refusal is the cause below a *failure.Error from the child.
type Refusal struct {
	// Kind says what could not be done: load, trust, forward, signature, export,
	// build, missing, bug.
	Kind string
	// Data is what the method added for programs; may be nil.
	Data json.RawMessage
	// Reached is what the call had done by then, in the child's words.
	Reached []string
}

func (r *Refusal) Error() string { return r.Kind }

// KindOf returns the kind of a Refusal within err, or "".
func KindOf(err error) string {
	if r, ok := errors.AsType[*Refusal](err); ok {
		return r.Kind
	}
	return ""
}

func isPipe(err error) bool { return errors.Is(err, syscall.EPIPE) }
