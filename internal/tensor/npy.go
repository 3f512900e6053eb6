package tensor

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/trtship/trtship/internal/regular"
)

// npyMagic starts every .npy file; a version byte pair and a header follow.
const npyMagic = "\x93NUMPY"

// maxHeader bounds the header of an .npy file. NumPy's own limit is 10000.
const maxHeader = 1 << 16

// maxDims is NumPy's largest number of axes.
const maxDims = 64

// DefaultLimit bounds how many bytes of elements a reader allocates for one
// file when the caller names no limit.
const DefaultLimit = 8 << 30

// Header describes the array of an .npy file as it lies in the file.
type Header struct {
	DType   DType
	Shape   []int64
	Fortran bool // column-major order
	big     bool // big-endian
	width   int  // bytes of one element in the file
	kind    byte // NumPy's kind: f i u b S U
}

// ReadNPY reads one .npy stream into memory. Strings of kinds S and U become
// String tensors; Fortran order becomes C order and big-endian little-endian.
// limit bounds the bytes of the elements; 0 means DefaultLimit.
func ReadNPY(r io.Reader, limit int64) (Tensor, error) {
	h, err := readHeader(r)
	if err != nil {
		return Tensor{}, fmt.Errorf("read .npy: %w", err)
	}
	if limit == 0 {
		limit = DefaultLimit
	}
	n := Elements(h.Shape)
	if n > limit/int64(max(h.width, 1)) {
		return Tensor{}, fmt.Errorf("read .npy: %s%v needs %d bytes, more than the limit of %d", h.DType, h.Shape, n*int64(h.width), limit)
	}
	raw, err := readExactly(r, n*int64(h.width))
	if err != nil {
		return Tensor{}, fmt.Errorf("read .npy: elements of %s%v: %w", h.DType, h.Shape, err)
	}
	return h.decode(raw)
}

// readExactly reads n bytes without trusting n: memory grows with what arrives.
func readExactly(r io.Reader, n int64) ([]byte, error) {
	const trust = 16 << 20
	if n <= trust {
		b := make([]byte, n)
		_, err := io.ReadFull(r, b)
		return b, shortRead(err)
	}
	var buf bytes.Buffer
	got, err := io.Copy(&buf, io.LimitReader(r, trust))
	if err == nil && got < trust {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, err
	}
	// The stream is long: believe the header now.
	b := make([]byte, n)
	copy(b, buf.Bytes())
	_, err = io.ReadFull(r, b[trust:])
	return b, shortRead(err)
}

func shortRead(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// ReadNPYFile reads one .npy file into memory, as ReadNPY does.
func ReadNPYFile(path string) (Tensor, error) {
	f, err := regular.Open(path)
	if err != nil {
		return Tensor{}, err
	}
	defer f.Close()
	t, err := ReadNPY(f, 0)
	if err != nil {
		return Tensor{}, fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}

// decode turns the bytes of a file into a tensor; it owns raw.
func (h *Header) decode(raw []byte) (Tensor, error) {
	if h.big && h.kind != 'S' {
		unit := h.width
		if h.kind == 'U' {
			unit = 4
		}
		swapBytes(raw, unit)
	}
	if h.Fortran && len(h.Shape) > 1 {
		raw = toCOrder(raw, h.Shape, h.width)
	}
	t := Tensor{DType: h.DType, Shape: h.Shape}
	switch h.kind {
	case 'S', 'U':
		n := int(Elements(h.Shape))
		t.Strings = make([]string, n)
		for i := range n {
			s, err := h.text(raw[i*h.width : (i+1)*h.width])
			if err != nil {
				return Tensor{}, fmt.Errorf("element %d: %w", i, err)
			}
			t.Strings[i] = s
		}
	case 'b':
		for i, b := range raw {
			if b > 1 {
				raw[i] = 1 // any other bit pattern is undefined for its readers
			}
		}
		t.Data = raw
	default:
		t.Data = raw
	}
	return t, nil
}

// text decodes one fixed-width string; NumPy pads with zeros at the end.
func (h *Header) text(b []byte) (string, error) {
	if h.kind == 'S' {
		return string(bytes.TrimRight(b, "\x00")), nil
	}
	var s strings.Builder
	zeros := 0
	for ; len(b) > 0; b = b[4:] {
		r := binary.LittleEndian.Uint32(b)
		if r == 0 {
			zeros++
			continue
		}
		for ; zeros > 0; zeros-- {
			s.WriteByte(0)
		}
		if r > utf8.MaxRune || !utf8.ValidRune(rune(r)) {
			return "", fmt.Errorf("%#x is no character", r)
		}
		s.WriteRune(rune(r))
	}
	return s.String(), nil
}

func swapBytes(b []byte, unit int) {
	if unit < 2 {
		return
	}
	for ; len(b) >= unit; b = b[unit:] {
		slices.Reverse(b[:unit])
	}
}

// toCOrder copies elements from column-major to row-major order.
func toCOrder(src []byte, shape []int64, width int) []byte {
	dst := make([]byte, len(src))
	stride := make([]int64, len(shape)) // of the source, in elements
	step := int64(1)
	for i, d := range shape {
		stride[i] = step
		step *= d
	}
	index := make([]int64, len(shape))
	from := int64(0)
	for at := 0; at < len(dst); at += width {
		copy(dst[at:at+width], src[from*int64(width):])
		for axis := len(shape) - 1; axis >= 0; axis-- {
			index[axis]++
			from += stride[axis]
			if index[axis] < shape[axis] {
				break
			}
			from -= stride[axis] * shape[axis]
			index[axis] = 0
		}
	}
	return dst
}

// NPYReader reads parts of an .npy file in C order, for data larger than memory.
type NPYReader struct {
	Header
	f     *os.File
	start int64
}

// OpenNPY opens an .npy file and checks that it is as long as its header says.
func OpenNPY(path string) (*NPYReader, error) {
	f, err := regular.Open(path)
	if err != nil {
		return nil, err
	}
	r, err := newNPYReader(f)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return r, nil
}

func newNPYReader(f *os.File) (*NPYReader, error) {
	h, err := readHeader(f)
	if err != nil {
		return nil, err
	}
	start, err := f.Seek(0, io.SeekCurrent)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if want := start + Elements(h.Shape)*int64(h.width); info.Size() < want {
		return nil, fmt.Errorf("is cut off: %d bytes, expected %d", info.Size(), want)
	}
	if h.Fortran && len(h.Shape) > 1 {
		return nil, errors.New("is in Fortran order and cannot be read in parts: save it with numpy.ascontiguousarray")
	}
	return &NPYReader{Header: h, f: f, start: start}, nil
}

// Rows reads elements lo to hi of the first axis.
func (r *NPYReader) Rows(lo, hi int64) (Tensor, error) {
	if len(r.Shape) == 0 || lo < 0 || hi < lo || hi > r.Shape[0] {
		return Tensor{}, fmt.Errorf("read rows %d to %d of shape %v: out of range", lo, hi, r.Shape)
	}
	row := Elements(r.Shape[1:]) * int64(r.width)
	raw := make([]byte, (hi-lo)*row)
	if _, err := r.f.ReadAt(raw, r.start+lo*row); err != nil {
		return Tensor{}, fmt.Errorf("read rows %d to %d: %w", lo, hi, shortRead(err))
	}
	part := r.Header
	part.Shape = slices.Clone(r.Shape)
	part.Shape[0] = hi - lo
	return part.decode(raw)
}

// Close closes the file.
func (r *NPYReader) Close() error { return r.f.Close() }

// WriteNPY writes t in the format of NumPy. Types that NumPy lacks (bfloat16,
// the 8-bit floats, packed integers) are written as unsigned integers of the
// same width; whoever reads them must know the type. Strings become kind U,
// unless they end in NUL or are no UTF-8, which is refused.
func WriteNPY(w io.Writer, t Tensor) error {
	if err := t.Check(); err != nil {
		return fmt.Errorf("write .npy: %w", err)
	}
	descr, shape, data := "", t.Shape, t.Data
	switch t.DType {
	case String:
		width, err := unicodeWidth(t.Strings)
		if err != nil {
			return fmt.Errorf("write .npy: %w", err)
		}
		descr, data = "<U"+strconv.Itoa(width), unicodeBytes(t.Strings, width)
	case Int4, UInt4:
		descr, shape = "|u1", []int64{int64(len(t.Data))}
	default:
		descr = npyDescr(t.DType)
	}
	if _, err := w.Write(npyHeader(descr, shape)); err != nil {
		return err
	}
	_, err := w.Write(data)
	return err
}

func npyDescr(d DType) string {
	switch d {
	case BFloat16:
		return "<u2"
	case Float8E4, Float8E5:
		return "|u1"
	}
	for code, o := range npyTypes {
		if o == d {
			if d.Size() == 1 {
				return "|" + code
			}
			return "<" + code
		}
	}
	return ""
}

func npyHeader(descr string, shape []int64) []byte {
	var dims strings.Builder
	for i, d := range shape {
		if i > 0 {
			dims.WriteString(", ")
		}
		dims.WriteString(strconv.FormatInt(d, 10))
	}
	if len(shape) == 1 {
		dims.WriteByte(',')
	}
	text := fmt.Sprintf("{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", descr, dims.String())
	const fixed = len(npyMagic) + 4
	pad := 63 - (fixed+len(text))%64
	text += strings.Repeat(" ", pad) + "\n"
	b := append([]byte(npyMagic), 1, 0)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(text)))
	return append(b, text...)
}

func unicodeWidth(ss []string) (int, error) {
	width := 1
	for i, s := range ss {
		if !utf8.ValidString(s) || strings.HasSuffix(s, "\x00") {
			return 0, fmt.Errorf("string %d (%.40q) does not fit NumPy's strings: it ends in NUL or is no UTF-8", i, s)
		}
		width = max(width, utf8.RuneCountInString(s))
	}
	return width, nil
}

func unicodeBytes(ss []string, width int) []byte {
	b := make([]byte, 4*width*len(ss))
	for i, s := range ss {
		at := 4 * width * i
		for _, r := range s {
			binary.LittleEndian.PutUint32(b[at:], uint32(r))
			at += 4
		}
	}
	return b
}
