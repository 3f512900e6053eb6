// Package onnx reads, checks, edits and writes ONNX models. It runs nothing:
// internal/ort does.
//
// A Model is the protobuf message together with the files that its large
// tensors lie in. Opening a model reads its structure only: raw data of
// LargeTensor bytes and more stays in the file and is reachable through
// TensorData and TensorReader, so that a model of several gigabytes costs a few
// megabytes. Such a tensor looks like one with external data whose location is
// the model's own file; code that needs values must never look at RawData
// itself.
package onnx

import (
	"io"
	"os"
	"path/filepath"
	"sync"

	"github.com/trtship/trtship/internal/onnx/onnxpb"
)

// LargeTensor is the size in bytes from which a tensor's data stays in its file.
const LargeTensor = 64 << 10

// MaxDepth is how deep graphs may be nested in each other (If, Loop, Scan).
const MaxDepth = 100

// Model is a checked ONNX model.
type Model struct {
	// Proto is the model. It may be edited; Check tells whether it still holds
	// together.
	Proto *onnxpb.ModelProto
	// Path is the file that was opened; empty for a model made in memory.
	Path string
	// Notes say what opening had to mend or what a reader should know.
	Notes []string

	dir  string // of external data
	base string // of Path

	mu    *sync.Mutex
	files map[string]*os.File // open data files by location
	lazy  map[string]io.ReaderAt
}

// New wraps a model that was built in memory. dir is where its external data
// lies; it may be empty if it has none. The model is not checked.
func New(proto *onnxpb.ModelProto, dir string) *Model {
	return &Model{Proto: proto, dir: dir, mu: new(sync.Mutex), files: map[string]*os.File{}, lazy: map[string]io.ReaderAt{}}
}

// With returns a model with another message over the same data files, such as a
// clone that was edited.
func (m *Model) With(proto *onnxpb.ModelProto) *Model {
	c := *m
	c.Proto = proto
	c.Notes = append([]string(nil), m.Notes...)
	return &c
}

// Dir returns the folder that external data is looked for in.
func (m *Model) Dir() string { return m.dir }

// Graph returns the main graph.
func (m *Model) Graph() *onnxpb.GraphProto { return m.Proto.GetGraph() }

// Close closes the data files that reading tensors has opened. The model stays
// usable: a later read opens them again.
func (m *Model) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var first error
	for name, f := range m.files {
		if err := f.Close(); err != nil && first == nil {
			first = err
		}
		delete(m.files, name)
	}
	return first
}

func newModel(path string, proto *onnxpb.ModelProto) *Model {
	m := New(proto, filepath.Dir(path))
	m.Path, m.base = path, filepath.Base(path)
	return m
}
