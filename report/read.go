package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"regexp"
	"strings"
	"syscall"
)

// MaxBytes is the largest report.json that is read.
const MaxBytes = 256 << 20

// Read reads and checks the report at path. Fields that it does not know are
// ignored; another format, an unknown verdict or trailing data is an error.
func Read(path string) (*Report, error) {
	b, err := readBounded(path)
	if err != nil {
		return nil, fmt.Errorf("read report: %w", err)
	}
	r, err := Decode(b)
	if err != nil {
		return nil, fmt.Errorf("read report %s: %w", path, err)
	}
	return r, nil
}

// Decode reads a report from the bytes of a report.json.
func Decode(b []byte) (*Report, error) {
	r := new(Report)
	if err := decode(b, r); err != nil {
		return nil, err
	}
	if err := r.Validate(); err != nil {
		return nil, err
	}
	return r, nil
}

// ReadGate reads the gate.json at path.
func ReadGate(path string) (*Gate, error) {
	b, err := readBounded(path)
	if err != nil {
		return nil, fmt.Errorf("read gate result: %w", err)
	}
	g, err := DecodeGate(b)
	if err != nil {
		return nil, fmt.Errorf("read gate result %s: %w", path, err)
	}
	return g, nil
}

// DecodeGate reads a gate's result from the bytes of a gate.json.
func DecodeGate(b []byte) (*Gate, error) {
	g := new(Gate)
	if err := decode(b, g); err != nil {
		return nil, err
	}
	if g.Format != GateFormat {
		return nil, fmt.Errorf("format is %q, want %q", g.Format, GateFormat)
	}
	if !known(g.Verdict) {
		return nil, fmt.Errorf("verdict %q is none of %v", g.Verdict, Verdicts)
	}
	return g, nil
}

func readBounded(path string) ([]byte, error) {
	// Opening a pipe would wait for a writer.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // only read
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a file", path)
	}
	if info.Size() > MaxBytes {
		return nil, fmt.Errorf("%s has %d bytes, more than the %d that are read", path, info.Size(), int64(MaxBytes))
	}
	b := make([]byte, info.Size())
	n, err := io.ReadFull(f, b)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, err
	}
	return b[:n], nil
}

func decode(b []byte, v any) error {
	if len(b) == 0 {
		return errors.New("the file is empty")
	}
	err := json.Unmarshal(b, v)
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Errorf("%s: not JSON: %w", place(b, e.Offset), err)
	}
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		field := e.Field
		if field == "" {
			field = "the document"
		}
		if n, ok := strings.CutPrefix(e.Value, "number "); ok {
			return fmt.Errorf("%s: %s is %s, which is no number that fits", place(b, e.Offset), field, n)
		}
		return fmt.Errorf("%s: %s is a JSON %s, want %s", place(b, e.Offset), field, e.Value, jsonKind(e.Type))
	}
	return err
}

// jsonKind names a type as JSON does.
func jsonKind(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Pointer:
		return jsonKind(t.Elem())
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.Slice, reflect.Array:
		return "an array"
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Float32, reflect.Float64:
		return "a number"
	}
	return "a whole number"
}

// place turns a byte offset into "line 3, column 5".
func place(b []byte, offset int64) string {
	line, col := 1, 1
	for _, c := range b[:max(0, min(offset-1, int64(len(b))))] {
		if c == '\n' {
			line, col = line+1, 0
		}
		col++
	}
	return fmt.Sprintf("line %d, column %d", line, col)
}

var checkID = regexp.MustCompile(`^[a-z][a-z0-9_]*/[a-z0-9]+(-[a-z0-9]+)*$`)

// Validate says what is wrong with a report that was read or made: its format,
// a verdict that does not exist, a stage named twice, a check without a proper
// id. It does not judge the run.
func (r *Report) Validate() error {
	if r.Format != Format {
		if r.Format == "" {
			return fmt.Errorf("no format: this is not a trtship report (want format %q)", Format)
		}
		return fmt.Errorf("format is %q, this program reads %q; use the trtship that wrote it", r.Format, Format)
	}
	if h := r.Settings.Hardware; h != "required" && h != "optional" {
		return fmt.Errorf("settings.hardware is %q, want required or optional", h)
	}
	if !known(r.Verdict) {
		return fmt.Errorf("verdict %q is none of %v", r.Verdict, Verdicts)
	}
	seen := map[string]bool{}
	for i := range r.Stages {
		s := &r.Stages[i]
		if s.Name == "" || seen[s.Name] {
			return fmt.Errorf("stages[%d]: name %q is empty or there twice", i, s.Name)
		}
		seen[s.Name] = true
		if err := s.validate(); err != nil {
			return fmt.Errorf("stage %s: %w", s.Name, err)
		}
	}
	return r.validateDocuments()
}

func (s *Stage) validate() error {
	if !known(s.Verdict) {
		return fmt.Errorf("verdict %q is none of %v", s.Verdict, Verdicts)
	}
	for i := range s.Checks {
		c := &s.Checks[i]
		if !checkID.MatchString(c.ID) {
			return fmt.Errorf("checks[%d]: id %q is not <stage>/<kebab-case>", i, c.ID)
		}
		if !known(c.Verdict) {
			return fmt.Errorf("check %s: verdict %q is none of %v", c.ID, c.Verdict, Verdicts)
		}
	}
	return nil
}

func (r *Report) validateDocuments() error {
	for i, v := range r.Validations {
		for j := range v.Rows {
			row := &v.Rows[j]
			if !known(row.Verdict) {
				return fmt.Errorf("validations[%d].rows[%d]: verdict %q is none of %v", i, j, row.Verdict, Verdicts)
			}
			if row.Elements < 0 || row.Breaches < 0 || row.Breaches > row.Elements {
				return fmt.Errorf("validations[%d].rows[%d]: %d breaches of %d elements", i, j, row.Breaches, row.Elements)
			}
		}
	}
	if r.Benchmark == nil {
		return nil
	}
	for i, s := range r.Benchmark.Skipped {
		if !known(s.Verdict) {
			return fmt.Errorf("benchmark.skipped[%d]: verdict %q is none of %v", i, s.Verdict, Verdicts)
		}
	}
	return nil
}

func known(v Verdict) bool { return rank(v) < len(Verdicts) }
