package onnx

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
	"github.com/trtship/trtship/internal/regular"
)

// span is a run of bytes in a data file.
type span struct {
	location       string // relative to the model's folder
	offset, length int64
}

// spanOf reads a tensor's external-data entries and checks their form and that
// the length is what the tensor's shape needs.
func (m *Model) spanOf(place string, t *onnxpb.TensorProto) (span, error) {
	var s span
	s.length = -1
	need, err := dataSize(t)
	if err != nil {
		return s, failure.New(failure.Model, "read %s: %w", tensorName(place, t), err)
	}
	fail := func(format string, args ...any) *failure.Error {
		return failure.New(failure.Model, "read external data of %s: "+format, append([]any{tensorName(place, t)}, args...)...)
	}
	if need < 0 {
		return s, fail("strings cannot be external")
	}
	for _, e := range t.GetExternalData() {
		switch e.GetKey() {
		case "location":
			s.location = e.GetValue()
		case "offset":
			if s.offset, err = strconv.ParseInt(e.GetValue(), 10, 64); err != nil || s.offset < 0 {
				return s, fail("offset %q is not a number from 0 up", e.GetValue())
			}
		case "length":
			if s.length, err = strconv.ParseInt(e.GetValue(), 10, 64); err != nil || s.length < 0 {
				return s, fail("length %q is not a number from 0 up", e.GetValue())
			}
		}
	}
	if why := badLocation(s.location); why != "" && (m.base == "" || s.location != m.base) {
		return s, fail("location %q %s", s.location, why).
			WithHint("external data must lie in the model's folder or below; write the model again with its data beside it")
	}
	if s.length < 0 {
		s.length = need
	}
	if s.length != need {
		return s, fail("length %d, its shape %s needs %d bytes", s.length, shapeText(t), need)
	}
	if s.offset > math.MaxInt64-s.length {
		return s, fail("offset %d plus length %d is too large", s.offset, s.length)
	}
	return s, nil
}

// badLocation says what is wrong with a location, or nothing.
func badLocation(loc string) string {
	switch {
	case loc == "":
		return "is empty"
	case strings.ContainsRune(loc, 0):
		return "holds a NUL byte"
	case filepath.IsAbs(loc), strings.HasPrefix(loc, `\`), len(loc) > 1 && loc[1] == ':':
		return "is an absolute path"
	}
	for part := range strings.FieldsFuncSeq(loc, func(r rune) bool { return r == '/' || r == '\\' }) {
		if part == ".." {
			return "leaves the model's folder"
		}
	}
	return ""
}

// openData opens the file of a span and checks that the span lies in it. Files
// stay open until Close.
func (m *Model) openData(place string, t *onnxpb.TensorProto, s span) (*os.File, error) {
	m.mu.Lock()
	f, ok := m.files[s.location]
	m.mu.Unlock()
	full := filepath.Join(m.dir, filepath.FromSlash(s.location))
	if !ok {
		var err error
		f, err = m.openFile(s.location)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil, failure.New(failure.Artifact, "read external data of %s: %s does not exist", tensorName(place, t), full).
				WithHint("copy the data file together with the .onnx file")
		case errors.As(err, new(*linkError)):
			return nil, failure.New(failure.Model, "read external data of %s: location %q %w", tensorName(place, t), s.location, err).
				WithHint("replace the link by a copy of the file that it points to")
		case err != nil:
			return nil, failure.New(failure.Artifact, "read external data of %s: %w", tensorName(place, t), err)
		}
		m.mu.Lock()
		if other, raced := m.files[s.location]; raced {
			f.Close()
			f = other
		} else {
			m.files[s.location] = f
		}
		m.mu.Unlock()
	}
	info, err := f.Stat()
	if err != nil {
		return nil, failure.New(failure.Artifact, "read external data of %s: %w", tensorName(place, t), err)
	}
	if s.offset+s.length > info.Size() {
		return nil, failure.New(failure.Model, "read external data of %s: bytes %d to %d lie past the end of %s, which has %d bytes",
			tensorName(place, t), s.offset, s.offset+s.length, full, info.Size()).
			WithHint("the data file is of another model, or was cut off")
	}
	return f, nil
}

// openFile opens the file of a location.
func (m *Model) openFile(location string) (*os.File, error) {
	if m.base != "" && location == m.base {
		return regular.Open(m.Path)
	}
	return openRegular(m.dir, location)
}

// linkError is a location that is a link.
type linkError struct{ what string }

func (e *linkError) Error() string { return e.what }

// openRegular opens dir/loc if every part of loc is a plain folder or, at the
// end, a plain file with one name.
func openRegular(dir, loc string) (*os.File, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	parts := strings.FieldsFunc(filepath.ToSlash(loc), func(r rune) bool { return r == '/' })
	for i := range parts {
		p := filepath.Join(parts[:i+1]...)
		info, err := root.Lstat(p)
		if err != nil {
			return nil, err
		}
		if info.Mode()&fs.ModeSymlink != 0 {
			return nil, &linkError{"is a symbolic link"}
		}
		if i == len(parts)-1 && !info.Mode().IsRegular() {
			return nil, &linkError{"is not a regular file"}
		}
	}
	f, err := root.OpenFile(filepath.Join(parts...), os.O_RDONLY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Nlink > 1 {
		f.Close()
		return nil, &linkError{"is a hard link (the file has more than one name)"}
	}
	return f, nil
}

// rawBytes returns the bytes of a tensor whose data is in its message, as
// raw_data holds them. They must not be changed. It fails for strings.
func (m *Model) rawBytes(t *onnxpb.TensorProto) ([]byte, error) {
	if raw := t.GetRawData(); len(raw) > 0 {
		if err := m.checkData("", t); err != nil {
			return nil, located(err, m.Path)
		}
		return raw, nil
	}
	d, err := m.TensorData(t)
	if err != nil {
		return nil, err
	}
	if d.Strings != nil {
		return nil, failure.New(failure.Model, "read %s: strings have no raw bytes", tensorName("", t))
	}
	return d.Data, nil
}

// TensorReader returns the tensor's bytes as raw_data would hold them, without
// loading large ones. It fails for strings.
func (m *Model) TensorReader(t *onnxpb.TensorProto) (*io.SectionReader, error) {
	if t.GetDataLocation() != onnxpb.TensorProto_EXTERNAL {
		b, err := m.rawBytes(t)
		if err != nil {
			return nil, err
		}
		return io.NewSectionReader(bytes.NewReader(b), 0, int64(len(b))), nil
	}
	if r := m.lazyReader(t); r != nil {
		return r, nil
	}
	s, err := m.spanOf("", t)
	if err != nil {
		return nil, located(err, m.Path)
	}
	f, err := m.openData("", t, s)
	if err != nil {
		return nil, located(err, m.Path)
	}
	return io.NewSectionReader(f, s.offset, s.length), nil
}
