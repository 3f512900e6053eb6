package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// Write writes report.json at path: canonical bytes (see Encode), into a
// temporary file beside it that is synced and renamed, so that a reader finds
// the old document or the new one and never a part of either.
func (r *Report) Write(path string) error {
	b, err := Encode(r)
	if err != nil {
		return fmt.Errorf("write report %s: %w", path, err)
	}
	if err := WriteFile(path, b); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// Encode returns the canonical bytes of a document of this package: fields in
// the order of the struct, map keys sorted, two spaces of indentation, arrays
// of plain values on one line, one newline at the end, no HTML escapes.
func Encode(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(WithLists(v)); err != nil {
		return nil, err
	}
	return indent(b.Bytes()), nil
}

// WriteFile puts b at path in one step.
func WriteFile(path string, b []byte) (err error) {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, ".tmp-"+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = f.Close()
			_ = os.Remove(f.Name())
		}
	}()
	if _, err = f.Write(b); err != nil {
		return err
	}
	if err = f.Chmod(0o644); err != nil {
		return err
	}
	if err = f.Sync(); err != nil {
		return err
	}
	if err = f.Close(); err != nil {
		return err
	}
	if err = os.Rename(f.Name(), path); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close() //nolint:errcheck // only synced
	return d.Sync()
}

// indent lays out compact JSON. Arrays that hold no object and no array stay
// on one line: raw samples would otherwise take a line each.
func indent(src []byte) []byte {
	out := make([]byte, 0, len(src)*3/2)
	depth := 0
	var flat []bool // by open bracket: does it stay on one line
	newline := func() {
		out = append(out, '\n')
		for range depth {
			out = append(out, ' ', ' ')
		}
	}
	inline := func() bool { return len(flat) > 0 && flat[len(flat)-1] }
	for i := 0; i < len(src); i++ {
		switch c := src[i]; c {
		case '"':
			end := stringEnd(src, i)
			out = append(out, src[i:end]...)
			i = end - 1
		case '{', '[':
			out = append(out, c)
			if next := src[i+1]; next == '}' || next == ']' {
				out = append(out, next)
				i++
				continue
			}
			one := c == '[' && isFlat(src[i+1:])
			flat = append(flat, one)
			if !one {
				depth++
				newline()
			}
		case '}', ']':
			if !inline() {
				depth--
				newline()
			}
			flat = flat[:len(flat)-1]
			out = append(out, c)
		case ',':
			out = append(out, c)
			if inline() {
				out = append(out, ' ')
			} else {
				newline()
			}
		case ':':
			out = append(out, ':', ' ')
		default:
			out = append(out, c)
		}
	}
	return out
}

// stringEnd returns the index after the string that starts at i.
func stringEnd(src []byte, i int) int {
	for j := i + 1; j < len(src); j++ {
		switch src[j] {
		case '\\':
			j++
		case '"':
			return j + 1
		}
	}
	return len(src)
}

// isFlat reports whether the array that src continues holds only plain values.
func isFlat(src []byte) bool {
	for i := 0; i < len(src); i++ {
		switch src[i] {
		case '"':
			i = stringEnd(src, i) - 1
		case '{', '[':
			return false
		case ']':
			return true
		}
	}
	return false
}
