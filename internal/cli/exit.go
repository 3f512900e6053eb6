package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/triton/kserve"
	"github.com/trtship/trtship/internal/worker"
	"github.com/trtship/trtship/report"
)

// SignalError is the cause of a context that a signal ended.
type SignalError struct{ Signal syscall.Signal }

func (e SignalError) Error() string { return "stopped by " + signalName(e.Signal) }

func signalName(s syscall.Signal) string {
	if s == syscall.SIGTERM {
		return "SIGTERM"
	}
	return "SIGINT"
}

// exit turns the outcome of a command into the exit code of the process, and
// prints the error if there is one. It is the only place where that is decided.
func (a *app) exit(ctx context.Context, err error) int {
	if sig, ok := errors.AsType[SignalError](context.Cause(ctx)); ok && (err != nil || a.unheld != nil) {
		code := failure.Interrupted
		if sig.Signal == syscall.SIGTERM {
			code = failure.Terminated
		}
		return a.fail(failure.New(code, "%s", sig.Error()).WithHint("run the same command again; finished stages are reused"))
	}
	if err == nil {
		return a.ended()
	}
	if f, ok := errors.AsType[*failure.Error](err); ok {
		// What was wrapped around the failure says more than the failure alone.
		if whole := err.Error(); whole != f.Error() && f.Where == "" {
			g := *f
			g.Message = whole
			f = &g
		}
		return a.fail(f)
	}
	if _, ok := errors.AsType[*kserve.ServerError](err); ok { // whichever command asked
		return a.fail(failure.New(failure.Triton, "%w", err))
	}
	if c, ok := errors.AsType[*worker.Crash](err); ok { // a model, TensorRT or the driver ended the child
		f := c.Failure(c.Code())
		f.Message = err.Error()
		return a.fail(f)
	}
	if errors.Is(err, syscall.EPIPE) {
		return a.ended() // the reader of stdout has seen enough
	}
	return a.bug(err.Error(), trace(err))
}

// jsonError is an error as one line.
type jsonError struct {
	Code    int              `json:"code"`
	Name    string           `json:"name"`
	Message string           `json:"message"`
	Where   string           `json:"where,omitempty"`
	Hint    string           `json:"hint,omitempty"`
	Details []failure.Detail `json:"details,omitempty"`
	Trace   string           `json:"trace,omitempty"`
}

// fail prints an expected failure and returns its exit code.
func (a *app) fail(f *failure.Error) int {
	if a.json {
		a.jsonLine(jsonError{Code: int(f.Code), Name: f.Code.String(), Message: f.Message, Where: f.Where, Hint: f.Hint, Details: f.Details})
		return int(f.Code)
	}
	writeFailure(a.io.Stderr, f, a.color(a.io.Stderr))
	return int(f.Code)
}

// writeFailure writes place, message, details and hint for people.
func writeFailure(w io.Writer, f *failure.Error, color bool) {
	paint := func(code, s string) string {
		if !color {
			return s
		}
		return "\x1b[" + code + "m" + s + "\x1b[0m"
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s\n", paint("31;1", "trtship:"), escape(f.Error()))
	widest := 0
	for _, d := range f.Details {
		widest = max(widest, len(d.Label))
	}
	for _, d := range f.Details {
		value := strings.ReplaceAll(strings.TrimRight(d.Value, "\n"), "\n", "\n"+strings.Repeat(" ", min(widest, 24)+4))
		fmt.Fprintf(&b, "  %-*s  %s\n", min(widest, 24), escape(d.Label), escape(value))
	}
	if f.Hint != "" {
		fmt.Fprintf(&b, "%s %s\n", paint("36", "hint:"), escape(f.Hint))
	}
	_, _ = w.Write(b.Bytes())
}

// bug reports what nobody expected.
func (a *app) bug(message string, stack []byte) int {
	if a.json {
		a.jsonLine(jsonError{Code: int(failure.Bug), Name: failure.Bug.String(), Message: message, Trace: string(stack)})
		return int(failure.Bug)
	}
	doc, _ := failure.Bug.Doc()
	a.say("trtship: %s\n%s\nThis is a bug in trtship. %s", message, stack, doc.Remedy)
	return int(failure.Bug)
}

// trace lists the chain of an unexpected error with types, and the goroutine's stack.
func trace(err error) []byte {
	var b bytes.Buffer
	b.WriteString("trace:\n")
	for e := err; e != nil; e = errors.Unwrap(e) {
		fmt.Fprintf(&b, "  %s: %s\n", reflect.TypeOf(e), e)
	}
	b.Write(debug.Stack())
	return b.Bytes()
}

func (a *app) jsonLine(v any) {
	var line bytes.Buffer
	enc := json.NewEncoder(&line)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		fmt.Fprintf(a.io.Stderr, "trtship: encode error: %v\n", err)
		return
	}
	_, _ = a.io.Stderr.Write(line.Bytes())
}

// printJSON writes v as the data of a command. Lists in it are never null.
func (a *app) printJSON(v any) error {
	enc := json.NewEncoder(a.io.Stdout)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(report.WithLists(v)); err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	return nil
}
