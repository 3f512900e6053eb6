package server

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"github.com/trtship/trtship/internal/regular"
)

// LoadError is a model that the server could not load, in the server's words.
type LoadError struct {
	Model   string // directory or model name
	Version string // empty if the model as a whole
	Text    string
	Backend bool     // a backend refused it, not the server's core
	Parser  []string // what the text-format parser said about config.pbtxt
}

func (e LoadError) Error() string {
	name := e.Model
	if e.Version != "" {
		name += " version " + e.Version
	}
	return fmt.Sprintf("load %s: %s", name, e.Text)
}

var (
	logLine     = regexp.MustCompile(`^([EWI])\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ ([a-z_0-9.]+:\d+)\] ?(.*)$`)
	loadVersion = regexp.MustCompile(`^failed to load '(.*?)' version (\d+): (?s)(.*)$`)
	loadModel   = regexp.MustCompile(`^failed to load model '(.*?)': (?s)(.*)$`)
	pollFailed  = regexp.MustCompile(`^Poll failed for model directory '(.*?)': (?s)(.*)$`)
	parserError = regexp.MustCompile(`^\[libprotobuf ERROR .*?\] (.*)$`)
	inUse       = regexp.MustCompile(`Socket '([^']+)' already in use`)
)

// logReport is what a server's log says so far.
type logReport struct {
	errors  []LoadError
	others  []string // further lines of severity E
	inUse   string   // address that is taken
	version string   // server_version
}

// readLog reads the log file from the start. It is small: load errors end a
// start at once.
func readLog(path string) logReport {
	b, err := regular.ReadFile(path)
	if err != nil {
		return logReport{}
	}
	return parseLog(string(b))
}

func parseLog(text string) logReport {
	var r logReport
	var parser []string
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		if m := parserError.FindStringSubmatch(line); m != nil {
			parser = append(parser, strings.TrimPrefix(m[1], "Error parsing text-format inference.ModelConfig: "))
			continue
		}
		if m := inUse.FindStringSubmatch(line); m != nil {
			r.inUse = m[1]
		}
		if v, ok := strings.CutPrefix(line, "| server_version "); ok {
			r.version = strings.Trim(v, " |")
		}
		if i := strings.Index(line, "error while loading shared libraries"); i >= 0 {
			// The dynamic loader, not the server: a stub that never starts, which the
			// server waits for without end.
			r.errors = append(r.errors, LoadError{Model: "the stub of the python backend", Text: line[i:], Backend: true})
		}
		m := logLine.FindStringSubmatch(line)
		if m == nil || m[1] != "E" {
			continue
		}
		text := m[3]
		if u, err := strconv.Unquote(text); err == nil {
			text = u
		}
		if e, ok := loadError(text); ok {
			e.Parser, parser = parser, nil
			r.errors = append(r.errors, e)
		} else {
			r.others = append(r.others, text)
		}
	}
	return r
}

func loadError(text string) (LoadError, bool) {
	backend := strings.Contains(text, "TritonModelException: ") || strings.Contains(text, "unable to find backend library")
	if m := loadVersion.FindStringSubmatch(text); m != nil {
		return LoadError{Model: m[1], Version: m[2], Text: clean(m[3]), Backend: backend}, true
	}
	if m := loadModel.FindStringSubmatch(text); m != nil {
		return LoadError{Model: m[1], Text: clean(m[2]), Backend: backend}, true
	}
	if m := pollFailed.FindStringSubmatch(text); m != nil {
		return LoadError{Model: m[1], Text: clean(m[2]), Backend: backend}, true
	}
	return LoadError{}, false
}

// clean drops the Python traceback that the python backend adds.
func clean(text string) string {
	text, _, _ = strings.Cut(text, "\n\nAt:\n")
	text = strings.ReplaceAll(text, "TritonModelException: ", "")
	return strings.TrimSpace(text)
}

// tailOf returns the last lines of a log, at most n bytes.
func tailOf(path string, n int64) string {
	f, err := regular.Open(path)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	at := max(0, info.Size()-n)
	b := make([]byte, info.Size()-at)
	if _, err := f.ReadAt(b, at); err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// maxLog bounds what is read of a container's log.
const maxLog = 4 << 20

// readFrames reads the log of a container: frames of a stream's number, three
// zeros, a length of four bytes, and the text. Unlike the engine's own package
// it believes no length: a header may announce 4 GB.
func readFrames(r io.Reader) (string, error) {
	var b strings.Builder
	var head [8]byte
	for b.Len() < maxLog {
		if _, err := io.ReadFull(r, head[:]); err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				return b.String(), nil
			}
			return b.String(), err
		}
		if head[0] > 3 || head[1]|head[2]|head[3] != 0 {
			return b.String(), fmt.Errorf("frame % x is none", head)
		}
		size := int64(binary.BigEndian.Uint32(head[4:]))
		if _, err := io.CopyN(&b, r, min(size, int64(maxLog-b.Len()))); err != nil && !errors.Is(err, io.EOF) {
			return b.String(), err
		}
	}
	return b.String(), nil
}
