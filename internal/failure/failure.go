// Package failure is how trtship says that something could not be done: one
// error type with an exit code, a cause, a hint and details, and the table of
// all exit codes. A check that was measured and does not hold is not a failure
// in this sense; it is a report.Check with its own verdict.
package failure

import (
	"errors"
	"fmt"
	"strings"
)

// Detail is one labelled line below an error, such as "expected" and "[8,1]".
type Detail struct {
	Label string `json:"label"`
	Value string `json:"value"`
}

// Error is an expected failure. Its text is lower case, names what was
// attempted, and carries no final full stop.
type Error struct {
	Code    Code     // exit code of the process
	Message string   // what could not be done, with the value at fault
	Where   string   // file, file:line or file:line:column; empty if none
	Hint    string   // what the reader can do about it; empty if nothing is known
	Details []Detail // further facts, in order
	Err     error    // the cause; may be nil
}

// New returns an Error with a formatted message. %w wraps a cause.
func New(code Code, format string, args ...any) *Error {
	wrapped := fmt.Errorf(format, args...)
	return &Error{Code: code, Message: wrapped.Error(), Err: errors.Unwrap(wrapped)}
}

// At sets the place at fault and returns e.
func (e *Error) At(where string) *Error { e.Where = where; return e }

// WithHint sets the hint and returns e.
func (e *Error) WithHint(format string, args ...any) *Error {
	e.Hint = fmt.Sprintf(format, args...)
	return e
}

// With adds a detail and returns e.
func (e *Error) With(label, format string, args ...any) *Error {
	e.Details = append(e.Details, Detail{Label: label, Value: fmt.Sprintf(format, args...)})
	return e
}

func (e *Error) Error() string {
	if e.Where != "" && !strings.Contains(e.Message, e.Where) { // a place is said once
		return e.Where + ": " + e.Message
	}
	return e.Message
}

func (e *Error) Unwrap() error { return e.Err }

// CodeOf returns the exit code that err asks for: OK for nil, Bug for an error
// that is no Error. Of errors joined with errors.Join the first Error decides.
func CodeOf(err error) Code {
	if err == nil {
		return OK
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return Bug
}
