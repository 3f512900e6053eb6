package ort

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/proc"
	"github.com/trtship/trtship/internal/tensor"
)

// CrashError is ONNX Runtime dying by a signal. It unwraps to a failure with
// code Tolerance while running and Model while loading.
type CrashError struct {
	Signal syscall.Signal
	Model  string // file name
	Feed   string // what it was fed; empty while loading
	Tail   string // last lines of the child's stderr
	fail   *failure.Error
}

func (e *CrashError) Error() string { return e.fail.Error() }

// Unwrap returns the *failure.Error.
func (e *CrashError) Unwrap() error { return e.fail }

// errBadFeed marks an error that the feed, not the model, caused.
var errBadFeed = errors.New("values of the inputs are out of range")

// BadFeed reports whether ONNX Runtime refused the values of the inputs.
func BadFeed(err error) bool { return errors.Is(err, errBadFeed) }

func (s *Session) name() string { return filepath.Base(s.model) }

// childError says how the child ended.
func (s *Session) childError(err error, feed string) error {
	e, ok := errors.AsType[*proc.Error](err)
	if !ok {
		return err
	}
	tail := lastLines(e.Tail, 5)
	if outOfMemory(e.Tail) && s.options.MemoryMB > 0 {
		return s.memoryError(err)
	}
	if e.Killed {
		return s.stopped(e.Cause, feed)
	}
	if e.Signal == 0 {
		return fmt.Errorf("run %s: the ONNX Runtime child ended with exit status %d: %s", s.name(), e.Exit, lastWords(e.Tail))
	}
	code, during := failure.Tolerance, "running"
	if feed == "" {
		code, during = failure.Model, "loading"
	}
	f := failure.New(code, "ONNX Runtime crashed (%s) while %s %s", proc.SignalName(e.Signal), during, s.name()).
		WithHint("the model makes ONNX Runtime %s itself crash: look for unusual operators, such as a Split with an output left out, or try another version", s.library.Version).
		With("model", "%s", s.model)
	if feed != "" {
		f.With("feed", "%s", feed)
	}
	if tail != "" {
		f.With("stderr", "%s", tail)
	}
	return &CrashError{Signal: e.Signal, Model: s.model, Feed: feed, Tail: tail, fail: f}
}

func (s *Session) stopped(cause error, feed string) error {
	if feed == "" {
		return fmt.Errorf("load %s: %w", s.name(), cause)
	}
	return fmt.Errorf("run %s on %s: %w", s.name(), feed, cause)
}

func (s *Session) memoryError(err error) error {
	return failure.New(failure.Model, "run %s: more than %d MiB of memory are needed: %s", s.name(), s.options.MemoryMB, lastWords(err.Error())).
		WithHint("raise validation.memory_mb")
}

func outOfMemory(text string) bool {
	for _, s := range []string{"bad_alloc", "bad allocation", "Failed to allocate memory", "out of memory", "cannot allocate memory", "Cannot allocate memory", "address space collisions"} {
		if strings.Contains(text, s) {
			return true
		}
	}
	return false
}

// indexError finds the node and the index in what Gather and its kin say, e.g.
// "Non-zero status code returned while running Gather node. Name:'/emb/Gather'
// Status Message: indices element out of data bounds, idx=10 must be within the
// inclusive range [-10,9]".
var (
	indexError   = regexp.MustCompile(`idx=(-?\d+) must be within the inclusive range \[(-?\d+),\s*(-?\d+)\]`)
	reshapeError = regexp.MustCompile(`cannot be reshaped to the requested shape\. Input shape:\{([-\d,]*)\}, requested shape:\{([-\d,]*)\}`)
	failedNode   = regexp.MustCompile(`while running (\w+) node\. Name:'([^']*)'`)
)

// replyError turns a refusal of the child into a failure.
func (s *Session) replyError(a reply, feed string) error {
	if a.Error == nil {
		return nil
	}
	if feed == "" {
		return a.Error // loading: see loadError
	}
	text := a.Error.Message
	if outOfMemory(text) && s.options.MemoryMB > 0 {
		return s.memoryError(a.Error)
	}
	node := ""
	if m := failedNode.FindStringSubmatch(text); m != nil {
		node = fmt.Sprintf("%s node %q", m[1], m[2])
	}
	if m := indexError.FindStringSubmatch(text); m != nil {
		high, _ := strconv.ParseInt(m[3], 10, 64)
		return failure.New(failure.Usage, "run %s: %s: index %s is outside its table of %d rows: %w", s.name(), node, m[1], high+1, errBadFeed).
			WithHint("inputs[].range: [0, %d]", high).
			With("node", "%s", node).With("index", "%s", m[1]).With("feed", "%s", feed)
	}
	if m := reshapeError.FindStringSubmatch(text); m != nil {
		return failure.New(failure.Model, "run %s: %s cannot turn [%s] into [%s]", s.name(), node, m[1], m[2]).
			WithHint("a size was baked in while tracing: replace int(x.shape[0]) and the like by tensor operations").
			With("node", "%s", node).With("feed", "%s", feed).With("onnxruntime", "%s", text)
	}
	code := failure.Model
	if a.Error.Code == codeInvalidArgument {
		code = failure.Usage // a size or type that the model's signature refuses
	}
	f := failure.New(code, "run %s: %w", s.name(), a.Error).With("feed", "%s", feed)
	if node != "" {
		f.With("node", "%s", node)
	}
	return f
}

var (
	irError     = regexp.MustCompile(`[Uu]nsupported model IR version: (\d+), max supported IR version: (\d+)`)
	opsetError  = regexp.MustCompile(`(?i)only \*?guarantees\*? support for models stamped with official released onnx opset versions\. Opset (\d+) is under development and support for this is limited\..*?Current official support for domain (\S*) is till opset (\d+)`)
	unknownNode = regexp.MustCompile(`(?:Fatal error: |No Op registered for )([\w.:]+)(?:\((-?\d+)\) is not a registered function/op| with domain_version of (\d+))`)
)

// loadError turns a refusal to load into a failure that says what to change.
func (s *Session) loadError(err error) error {
	e, ok := errors.AsType[*statusError](err)
	if !ok {
		return err
	}
	if outOfMemory(e.Message) && s.options.MemoryMB > 0 {
		return s.memoryError(e)
	}
	version := s.library.Version
	f := failure.New(failure.Model, "load %s: %w", s.name(), e).At(s.model)
	switch {
	case strings.Contains(e.Message, "without cgo"):
		return failure.New(failure.Missing, "load ONNX Runtime: %w", e).WithHint("use the release binary, or build with CGO_ENABLED=1")
	case strings.Contains(e.Message, "no ONNX Runtime"), strings.Contains(e.Message, "dlopen"), strings.Contains(e.Message, s.library.Path):
		return failure.New(failure.Missing, "load ONNX Runtime: %w", e).WithHint("set TRTSHIP_ORT_LIB to a libonnxruntime.so, or run `trtship env install`")
	case irError.MatchString(e.Message):
		m := irError.FindStringSubmatch(e.Message)
		f.Message = fmt.Sprintf("load %s: IR %s, onnxruntime %s takes %s", s.name(), m[1], short(version), m[2])
		f.WithHint("write the model with IR version %s or lower (optimize.ir_version), or use a newer onnxruntime", m[2])
	case opsetError.MatchString(e.Message):
		m := opsetError.FindStringSubmatch(e.Message)
		f.Message = fmt.Sprintf("load %s: opset %s, onnxruntime %s takes %s", s.name(), m[1], short(version), m[3])
		f.WithHint("export with opset %s or lower (export.opset), or use a newer onnxruntime", m[3])
	case unknownNode.MatchString(e.Message):
		m := unknownNode.FindStringSubmatch(e.Message)
		f.Message = fmt.Sprintf("load %s: operator %s is not known to onnxruntime %s: %s", s.name(), m[1], short(version), e.Message)
		f.WithHint("replace the operator, or lower the opset of its domain")
	case e.Code == codeInvalidProtobuf:
		f.WithHint("the file is no ONNX model, or is cut off")
	}
	return f
}

// short cuts a version to two numbers.
func short(version string) string {
	parts := strings.SplitN(version, ".", 3)
	if len(parts) < 2 {
		return version
	}
	return parts[0] + "." + parts[1]
}

// lastWords is why a Go program ended, without the trace, or its last lines.
func lastWords(text string) string {
	for line := range strings.Lines(text) {
		for _, start := range []string{"fatal error:", "panic:", "onnxruntime child:"} {
			if i := strings.Index(line, start); i >= 0 {
				return strings.TrimSpace(line[i:])
			}
		}
	}
	return lastLines(text, 5)
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// describeFeed says what was fed, e.g. "x float32[2,3], ids int64[2,7]".
func describeFeed(feed []tensor.Named) string {
	parts := make([]string, len(feed))
	for i, f := range feed {
		parts[i] = strings.ReplaceAll(fmt.Sprintf("%s %s%v", f.Name, f.DType, f.Shape), " ", ",")
		parts[i] = strings.Replace(parts[i], ",", " ", 1)
	}
	if len(parts) == 0 {
		return "no inputs"
	}
	return strings.Join(parts, ", ")
}
