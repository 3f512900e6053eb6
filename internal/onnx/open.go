package onnx

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
	"github.com/trtship/trtship/internal/regular"
	"google.golang.org/protobuf/proto"
)

// Open reads the structure of the model at path, checks it and the extents of
// all its data, and puts nodes in topological order where they are not. Its
// errors are *failure.Error: a missing data file is failure.Artifact, anything
// wrong with the model failure.Model.
func Open(path string) (*Model, error) {
	m, err := OpenUnchecked(path)
	if err != nil {
		return nil, err
	}
	if err := m.Check(); err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

// OpenUnchecked is Open without Check, for a reader that wants to look into a
// broken model.
func OpenUnchecked(path string) (*Model, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, failure.New(failure.Artifact, "open model: %w", err).At(path)
	}
	if info.IsDir() {
		return nil, failure.New(failure.Model, "open model: is a folder").At(path).WithHint("name the .onnx file in it")
	}
	if !info.Mode().IsRegular() {
		// Opening a pipe could wait for ever; a device has no end.
		return nil, failure.New(failure.Model, "open model: is no regular file (%s)", info.Mode().Type()).At(path)
	}
	f, err := regular.Open(path)
	if err != nil {
		return nil, failure.New(failure.Artifact, "open model: %w", err).At(path)
	}
	defer f.Close()
	m := newModel(path, nil)
	if m.Proto, err = decode(f, info.Size(), m.base); err != nil {
		return nil, located(err, path)
	}
	return m, nil
}

// Parse reads a model from memory and checks it. dir is where its external data
// lies. Large tensors stay in the message.
func Parse(data []byte, dir string) (*Model, error) {
	p, err := decode(bytes.NewReader(data), int64(len(data)), "")
	if err != nil {
		return nil, err
	}
	m := New(p, dir)
	return m, m.Check()
}

// decode reads the message. If base is not empty, large data becomes external
// data in the file of that name.
func decode(r io.ReaderAt, size int64, base string) (*onnxpb.ModelProto, error) {
	if err := sniff(r, size); err != nil {
		return nil, err
	}
	s := &scanner{r: r, size: size, base: base}
	skeleton, err := s.scan(kindModel, 0, size, 0)
	if err != nil {
		return nil, failure.New(failure.Model, "read model: %w", err)
	}
	p := new(onnxpb.ModelProto)
	if err := (proto.UnmarshalOptions{RecursionLimit: 10 * MaxDepth}).Unmarshal(skeleton, p); err != nil {
		text := strings.ReplaceAll(strings.TrimPrefix(err.Error(), "proto:"), "\u00a0", " ")
		if strings.Contains(text, "recursion") {
			return nil, failure.New(failure.Model, "read model: its graphs or types are nested too deep")
		}
		return nil, failure.New(failure.Model, "read model: is no ONNX:%s", text)
	}
	if p.Graph == nil {
		return nil, failure.New(failure.Model, "read model: has no graph").
			WithHint("the file is a protobuf message without an ONNX graph; was it written by onnx.save?")
	}
	return p, nil
}

// located puts the path into an error that lacks one.
func located(err error, path string) error {
	if e, ok := errors.AsType[*failure.Error](err); ok && e.Where == "" {
		return e.At(path)
	}
	return err
}

// sniff recognises files that are no ONNX model and says what they are.
func sniff(r io.ReaderAt, size int64) error {
	if size == 0 {
		return failure.New(failure.Model, "read model: is empty").WithHint("the download or the export did not finish")
	}
	head := make([]byte, min(size, 512))
	if _, err := r.ReadAt(head, 0); err != nil && !errors.Is(err, io.EOF) {
		return failure.New(failure.Artifact, "read model: %w", err)
	}
	text := strings.ToLower(strings.TrimLeft(string(head), " \t\r\n\ufeff"))
	switch {
	case strings.HasPrefix(text, "version https://git-lfs"):
		what := "size unknown"
		if _, after, ok := strings.Cut(text, "\nsize "); ok {
			what = strings.TrimSpace(strings.SplitN(after, "\n", 2)[0]) + " bytes not fetched"
		}
		return failure.New(failure.Model, "read model: is a Git LFS pointer (%s): git lfs pull", what)
	case strings.HasPrefix(text, "<!doctype html"), strings.HasPrefix(text, "<html"):
		return failure.New(failure.Model, "read model: is HTML").WithHint("the download returned a web page; check the address and the access rights")
	case strings.HasPrefix(text, "<?xml"):
		return failure.New(failure.Model, "read model: is XML")
	case strings.HasPrefix(text, "{"), strings.HasPrefix(text, "["):
		return failure.New(failure.Model, "read model: is JSON text")
	}
	if isText(head) {
		return failure.New(failure.Model, "read model: is a text file")
	}
	for _, k := range signatures {
		if len(head) >= k.at+len(k.magic) && string(head[k.at:k.at+len(k.magic)]) == k.magic {
			e := failure.New(failure.Model, "read model: is %s", k.what)
			if k.hint != "" {
				e = e.WithHint("%s", k.hint)
			}
			return e
		}
	}
	return nil
}

// isText reports whether b could be ASCII text. Every model holds control
// characters early on.
func isText(b []byte) bool {
	for _, c := range b {
		if c < ' ' && c != '\n' && c != '\r' && c != '\t' || c >= 0x7f {
			return false
		}
	}
	return true
}

var signatures = []struct {
	at          int
	magic, what string
	hint        string
}{
	{0, "PK\x03\x04", "a zip archive", "a TorchScript or torch.save file is a zip: set model.kind to torchscript or checkpoint; unpack a downloaded archive first"},
	{0, "\x1f\x8b", "a gzip archive", "unpack it first"},
	{0, "\x80\x02", "a Python pickle", "set model.kind to a PyTorch kind"},
	{0, "\x89HDF", "an HDF5 file", ""},
	{4, "TFL3", "a TensorFlow Lite model", ""},
	{4, "ORTM", "a model in ONNX Runtime's own format", "give the .onnx file that it was made from"},
	{0, "ptrt", "a TensorRT plan", "give the ONNX model that it was built from"},
	{0, "ftrt", "a TensorRT plan", "give the ONNX model that it was built from"},
	{0, "\x7fELF", "an executable", ""},
}

// Files returns the path of a model and those of its external data files. Of a
// file that cannot be read as a model there is the path alone.
func Files(path string) []string {
	files := []string{path}
	m, err := Open(path)
	if err != nil {
		return files
	}
	defer m.Close() //nolint:errcheck // only read
	for _, f := range m.DataFiles() {
		files = append(files, filepath.Join(m.Dir(), filepath.FromSlash(f)))
	}
	return files
}

// DataFiles returns the locations of the model's external data files, relative
// to its folder and sorted. The model's own file is not among them.
func (m *Model) DataFiles() []string {
	seen := map[string]bool{}
	m.walkTensors(func(_ string, t *onnxpb.TensorProto) error {
		if loc := externalValue(t, "location"); t.GetDataLocation() == onnxpb.TensorProto_EXTERNAL && loc != "" && loc != m.base && !strings.HasPrefix(loc, lazyPrefix) {
			seen[loc] = true
		}
		return nil
	})
	return sortedKeys(seen)
}

func externalValue(t *onnxpb.TensorProto, key string) string {
	for _, e := range t.GetExternalData() {
		if e.GetKey() == key {
			return e.GetValue()
		}
	}
	return ""
}

func tensorName(place string, t *onnxpb.TensorProto) string {
	if n := t.GetName(); n != "" {
		return fmt.Sprintf("tensor %q", n)
	}
	return "tensor of " + place
}
