package tensor

import (
	"archive/zip"
	"bytes"
	"compress/flate"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"github.com/trtship/trtship/internal/regular"
)

// npzNote is the comment of an archive member whose type NumPy lacks. Readers
// that do not know it see the raw unsigned integers.
type npzNote struct {
	DType DType   `json:"dtype"`
	Shape []int64 `json:"shape,omitempty"`
}

// WriteNPZ writes arrays as an uncompressed .npz that numpy.load reads. The
// same arrays give the same bytes. Types that NumPy lacks are written raw, with
// the type in the member's comment, which ReadNPZ reads.
func WriteNPZ(path string, arrays []Named) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	err = writeNPZ(f, arrays)
	if c := f.Close(); err == nil {
		err = c
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

func writeNPZ(w io.Writer, arrays []Named) error {
	z := zip.NewWriter(w)
	seen := map[string]bool{}
	for _, a := range arrays {
		if seen[a.Name] {
			return fmt.Errorf("array %q is given twice", a.Name)
		}
		seen[a.Name] = true
		h := &zip.FileHeader{Name: a.Name + ".npy", Method: zip.Store}
		t, note := plain(a.Tensor)
		if note != nil {
			b, err := json.Marshal(note)
			if err != nil {
				return err
			}
			h.Comment = string(b)
		}
		m, err := z.CreateHeader(h)
		if err != nil {
			return err
		}
		if err := WriteNPY(m, t); err != nil {
			return fmt.Errorf("array %q: %w", a.Name, err)
		}
	}
	return z.Close()
}

// plain returns a tensor that WriteNPY takes without loss, and what to note.
func plain(t Tensor) (Tensor, *npzNote) {
	switch t.DType {
	case BFloat16, Float8E4, Float8E5:
		return t, &npzNote{DType: t.DType}
	case Int4, UInt4:
		return t, &npzNote{DType: t.DType, Shape: t.Shape}
	case String:
		if _, err := unicodeWidth(t.Strings); err == nil {
			return t, nil
		}
		// Length-prefixed, as Triton's BYTES.
		raw := AppendStrings(nil, t.Strings)
		return Tensor{DType: UInt8, Shape: []int64{int64(len(raw))}, Data: raw}, &npzNote{DType: String, Shape: t.Shape}
	}
	return t, nil
}

// AppendStrings appends each string with its length in front, 4 bytes
// little-endian: the form in which strings travel between processes and to Triton.
func AppendStrings(b []byte, ss []string) []byte {
	for _, s := range ss {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(s)))
		b = append(b, s...)
	}
	return b
}

// SplitStrings reads what AppendStrings wrote.
func SplitStrings(b []byte) ([]string, error) {
	var ss []string
	for len(b) > 0 {
		if len(b) < 4 {
			return nil, fmt.Errorf("string %d: %d bytes left, expected a length of 4", len(ss), len(b))
		}
		n := uint64(binary.LittleEndian.Uint32(b))
		if n > uint64(len(b)-4) {
			return nil, fmt.Errorf("string %d: %d bytes left, expected %d", len(ss), len(b)-4, n)
		}
		ss = append(ss, string(b[4:4+n]))
		b = b[4+n:]
	}
	return ss, nil
}

// ReadNPZ reads all arrays of an .npz in the archive's order. It refuses
// members with paths, arrays given twice, pickles, and more than DefaultLimit
// bytes in all.
func ReadNPZ(path string) ([]Named, error) {
	f, err := regular.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	arrays, err := readNPZ(f, info.Size(), DefaultLimit)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return arrays, nil
}

func readNPZ(r io.ReaderAt, size, limit int64) ([]Named, error) {
	z, err := zip.NewReader(r, size)
	if err != nil {
		return nil, fmt.Errorf("is not an .npz file: %w", err)
	}
	var arrays []Named
	seen := map[string]bool{}
	for _, m := range z.File {
		name, ok := strings.CutSuffix(m.Name, ".npy")
		if !ok {
			return nil, fmt.Errorf("member %q is no .npy array", m.Name)
		}
		if !safeMember(name) {
			return nil, fmt.Errorf("member %q has a path that leads out of the archive", m.Name)
		}
		if seen[name] {
			return nil, fmt.Errorf("array %q is given twice", name)
		}
		seen[name] = true
		t, err := readMember(m, limit)
		if err != nil {
			return nil, fmt.Errorf("array %q: %w", name, err)
		}
		limit -= int64(len(t.Data))
		for _, s := range t.Strings {
			limit -= int64(len(s)) + 16
		}
		if limit <= 0 {
			return nil, errors.New("holds more bytes than the limit")
		}
		arrays = append(arrays, Named{Name: name, Tensor: t})
	}
	return arrays, nil
}

// safeMember refuses names that would leave a folder if a caller made files of
// them. Slashes inside are fine: ONNX names such as "/enc/out" are common.
func safeMember(name string) bool {
	if name == "" || strings.ContainsAny(name, "\x00\\") {
		return false
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return false
		}
	}
	return true
}

func readMember(m *zip.File, limit int64) (Tensor, error) {
	r, err := m.Open()
	if err != nil {
		return Tensor{}, err
	}
	defer r.Close()
	t, err := ReadNPY(r, limit)
	if err != nil {
		if _, ok := errors.AsType[flate.CorruptInputError](err); ok || errors.Is(err, zip.ErrChecksum) {
			return Tensor{}, fmt.Errorf("is damaged: %w", err)
		}
		return Tensor{}, err
	}
	// Reading to the end checks the member's CRC.
	var one [1]byte
	if n, err := r.Read(one[:]); n > 0 {
		return Tensor{}, errors.New("has bytes after its last element")
	} else if err != nil && !errors.Is(err, io.EOF) {
		return Tensor{}, fmt.Errorf("is damaged: %w", err)
	}
	if m.Comment == "" {
		return t, nil
	}
	return applyNote(t, m.Comment)
}

func applyNote(t Tensor, comment string) (Tensor, error) {
	var note npzNote
	d := json.NewDecoder(bytes.NewReader([]byte(comment)))
	d.DisallowUnknownFields()
	if d.Decode(&note) != nil {
		return t, nil // somebody else's comment
	}
	switch note.DType {
	case String:
		if t.DType != UInt8 {
			break
		}
		ss, err := SplitStrings(t.Data)
		if err != nil {
			return Tensor{}, err
		}
		out := Tensor{DType: String, Shape: note.Shape, Strings: ss}
		return out, out.Check()
	case Int4, UInt4:
		out := Tensor{DType: note.DType, Shape: note.Shape, Data: t.Data}
		return out, out.Check()
	}
	if note.DType.Size() != 0 && note.DType.Size() == t.DType.Size() {
		t.DType = note.DType
	}
	return t, nil
}

// ReadFeed reads one set of inputs: an .npz file with one array an input, or a
// folder with one .npy file an input.
func ReadFeed(path string) ([]Named, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return ReadNPZ(path)
	}
	var feed []Named
	err = filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(p) != ".npy" {
			return err
		}
		t, err := ReadNPYFile(p)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(path, p)
		if err != nil {
			return err
		}
		feed = append(feed, Named{Name: strings.TrimSuffix(filepath.ToSlash(rel), ".npy"), Tensor: t})
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(feed) == 0 {
		return nil, fmt.Errorf("read %s: the folder holds no .npy file", path)
	}
	sort.Slice(feed, func(i, j int) bool { return feed[i].Name < feed[j].Name })
	return feed, nil
}
