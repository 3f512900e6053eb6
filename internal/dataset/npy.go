package dataset

import (
	"archive/zip"
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/trtship/trtship/internal/regular"
	"github.com/trtship/trtship/internal/tensor"
)

// header is what the head of a .npy file says.
type header struct {
	kind    byte // f, i, u, b
	size    int  // bytes of an element
	swapped bool // big-endian
	shape   []int64
	length  int64 // of the head itself
}

// maxHeader bounds the head of a .npy file.
const maxHeader = 1 << 20

var (
	descrField = regexp.MustCompile(`'descr':\s*'([<>|=])([fiub])(\d+)'`)
	orderField = regexp.MustCompile(`'fortran_order':\s*(True|False)`)
	shapeField = regexp.MustCompile(`'shape':\s*\(([\d,\sL]*)\)`)
)

// readHeader reads the head of a .npy file from r.
func readHeader(r io.Reader) (header, error) {
	var h header
	var lead [12]byte
	if _, err := io.ReadFull(r, lead[:10]); err != nil {
		return h, fmt.Errorf("is no .npy file: %w", err)
	}
	if lfsPointer[:10] == string(lead[:10]) {
		return h, errPointer
	}
	if string(lead[:6]) != "\x93NUMPY" {
		return h, errors.New("is no .npy file: the first bytes are not \\x93NUMPY")
	}
	n, lengthBytes := int64(binary.LittleEndian.Uint16(lead[8:])), int64(2)
	if lead[6] >= 2 {
		if _, err := io.ReadFull(r, lead[10:12]); err != nil {
			return h, fmt.Errorf("is a damaged .npy file: %w", err)
		}
		n, lengthBytes = int64(binary.LittleEndian.Uint32(lead[8:])), 4
	}
	if n > maxHeader {
		return h, fmt.Errorf("is a damaged .npy file: a head of %d bytes", n)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(r, text); err != nil {
		return h, fmt.Errorf("is a damaged .npy file: %w", err)
	}
	h.length = 8 + lengthBytes + n
	return h, h.parse(string(text))
}

func (h *header) parse(text string) error {
	d := descrField.FindStringSubmatch(text)
	o := orderField.FindStringSubmatch(text)
	s := shapeField.FindStringSubmatch(text)
	if d == nil || o == nil || s == nil {
		return fmt.Errorf("holds no plain array of numbers: %s", strings.TrimSpace(text))
	}
	h.kind = d[2][0]
	h.size, _ = strconv.Atoi(d[3])
	h.swapped = d[1] == ">"
	if _, ok := h.dtype(); !ok {
		return fmt.Errorf("has elements of the unsupported type %s", d[0])
	}
	for _, part := range strings.Split(s[1], ",") {
		part = strings.TrimSuffix(strings.TrimSpace(part), "L")
		if part == "" {
			continue
		}
		v, err := strconv.ParseInt(part, 10, 64)
		if err != nil {
			return fmt.Errorf("has the shape (%s): %w", s[1], err)
		}
		h.shape = append(h.shape, v)
	}
	if n, err := tensor.CheckedElements(h.shape); err != nil || n > math.MaxInt64/16 {
		return fmt.Errorf("has the impossible shape (%s)", s[1])
	}
	if o[1] == "True" && len(h.shape) > 1 {
		return errors.New("is in Fortran order; save it with numpy.ascontiguousarray")
	}
	return nil
}

// dtype returns the element type.
func (h *header) dtype() (tensor.DType, bool) {
	table := map[string]tensor.DType{
		"f8": tensor.Float64, "f4": tensor.Float32, "f2": tensor.Float16,
		"i8": tensor.Int64, "i4": tensor.Int32, "i2": tensor.Int16, "i1": tensor.Int8,
		"u8": tensor.UInt64, "u4": tensor.UInt32, "u2": tensor.UInt16, "u1": tensor.UInt8, "b1": tensor.Bool,
	}
	d, ok := table[string(h.kind)+strconv.Itoa(h.size)]
	return d, ok
}

// array gives access to the rows of a stored array, one at a time.
type array struct {
	header
	path string
	file *os.File
	at   int64 // of the first element in file; -1: packed, see zipped

	mu     sync.Mutex
	packed *zip.File
	stream io.ReadCloser // of packed
	buffer *bufio.Reader
	next   int64 // row that stream is at
}

// openArray opens a .npy file.
func openArray(path string) (*array, error) {
	f, err := regular.Open(path)
	if err != nil {
		return nil, refuse("open calibration data: %w", err).At(path)
	}
	a := &array{path: path, file: f}
	if a.header, err = readHeader(f); err == nil {
		a.at = a.length
		err = a.fits(fileSize(f) - a.at)
	}
	if err != nil {
		f.Close() //nolint:errcheck // read only
		return nil, refuse("calibration data: the file %w", err).At(path)
	}
	return a, nil
}

func fileSize(f *os.File) int64 {
	st, err := f.Stat()
	if err != nil {
		return 0
	}
	return st.Size()
}

// fits checks that the data are as long as the head says.
func (a *array) fits(have int64) error {
	if want := tensor.Elements(a.shape) * int64(a.size); have < want {
		return fmt.Errorf("is cut off: an array of shape %s needs %d bytes, there are %d", describe(a.shape), want, have)
	}
	return nil
}

// openMembers opens those arrays of a .npz file that wanted has, by name; nil
// stands for the others, which may be of any kind (labels, file names). Stored
// members are read at random, compressed ones forwards only.
func openMembers(path string, wanted []Input) (map[string]*array, io.Closer, error) {
	f, err := regular.Open(path)
	if err != nil {
		return nil, nil, refuse("open calibration data: %w", err).At(path)
	}
	fail := func(err error) (map[string]*array, io.Closer, error) {
		f.Close() //nolint:errcheck // read only
		return nil, nil, refuse("calibration data: the file %w", err).At(path)
	}
	z, err := zip.NewReader(f, fileSize(f))
	if err != nil {
		return fail(fmt.Errorf("is no .npz archive: %w", err))
	}
	out := map[string]*array{}
	for _, m := range z.File {
		name := strings.TrimSuffix(m.Name, ".npy")
		if !slices.ContainsFunc(wanted, func(in Input) bool { return in.Name == name }) {
			out[name] = nil
			continue
		}
		a, err := openMember(path, f, m)
		if err != nil {
			return fail(fmt.Errorf("has a bad member %s: it %w", m.Name, err))
		}
		out[name] = a
	}
	return out, f, nil
}

func openMember(path string, f *os.File, m *zip.File) (*array, error) {
	a := &array{path: path, file: f, packed: m}
	r, err := m.Open()
	if err != nil {
		return nil, fmt.Errorf("cannot be opened: %w", err)
	}
	a.header, err = readHeader(r)
	r.Close() //nolint:errcheck // read only
	if err != nil {
		return nil, err
	}
	if m.Method == zip.Store {
		at, err := m.DataOffset()
		if err != nil {
			return nil, fmt.Errorf("cannot be located: %w", err)
		}
		a.at, a.packed = at+a.length, nil
	}
	return a, a.fits(int64(m.UncompressedSize64) - a.length)
}

// row reads row i of an array whose axis 0 has rows, into raw little-endian bytes.
func (a *array) row(i, rows int64) ([]byte, error) {
	raw := make([]byte, tensor.Elements(a.shape)*int64(a.size)/max(rows, 1))
	return raw, a.rowInto(raw, i, rows)
}

// rowInto is row into memory that is there.
func (a *array) rowInto(raw []byte, i, rows int64) error {
	n := tensor.Elements(a.shape) * int64(a.size) / max(rows, 1)
	if int64(len(raw)) != n {
		return refuse("calibration data changed while they were read").At(a.path)
	}
	var err error
	if a.packed == nil {
		_, err = a.file.ReadAt(raw, a.at+i*n)
	} else {
		err = a.stepTo(raw, i)
	}
	if err != nil {
		return refuse("read calibration data: %w", err).At(a.path)
	}
	if a.swapped {
		for j := 0; j+a.size <= len(raw); j += a.size {
			for x, y := j, j+a.size-1; x < y; x, y = x+1, y-1 {
				raw[x], raw[y] = raw[y], raw[x]
			}
		}
	}
	return nil
}

// stepTo reads row i of a compressed member, from the beginning if it lies behind.
func (a *array) stepTo(raw []byte, i int64) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stream == nil || i < a.next {
		if a.stream != nil {
			a.stream.Close() //nolint:errcheck // read only
		}
		r, err := a.packed.Open()
		if err != nil {
			return err
		}
		a.stream, a.buffer, a.next = r, bufio.NewReaderSize(r, 1<<16), 0
		if _, err := io.CopyN(io.Discard, a.buffer, a.length); err != nil {
			return err
		}
	}
	if skip := (i - a.next) * int64(len(raw)); skip > 0 {
		if _, err := io.CopyN(io.Discard, a.buffer, skip); err != nil {
			return err
		}
	}
	a.next = i + 1
	_, err := io.ReadFull(a.buffer, raw)
	return err
}

// convert writes raw elements of type from into dst of type to. Only
// conversions that keep every value are made, and float64 to float32.
func convert(dst, raw []byte, from, to tensor.DType) error {
	if from == to {
		copy(dst, raw)
		return nil
	}
	n := int64(len(raw) / from.Size())
	t := tensor.Tensor{DType: from, Shape: []int64{n}, Data: raw}
	u := tensor.Tensor{DType: to, Shape: []int64{n}, Data: dst}
	for i := range int(n) {
		if to.Floating() {
			u.SetFloat64(i, t.Float64At(i))
			continue
		}
		v := t.Int64At(i)
		u.SetFloat64(i, float64(v))
		if u.Int64At(i) != v {
			return fmt.Errorf("%d does not fit into %s", v, to)
		}
	}
	return nil
}

// convertible reports whether data of one type may feed an input of another.
func convertible(from, to tensor.DType) bool {
	whole := func(d tensor.DType) bool { return !d.Floating() && d != tensor.Bool && d != tensor.String }
	return from == to || from.Floating() && to.Floating() || whole(from) && whole(to) || from == tensor.Bool && whole(to)
}
