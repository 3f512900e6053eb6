package precision

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/ort"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/internal/testkit"
)

func TestMain(m *testing.M) {
	ort.RunChildIfAsked()
	testkit.Main(m)
}

// run saves m, loads it in ONNX Runtime, and runs it on one feed.
func run(t *testing.T, m *onnx.Model, feeds ...tensor.Named) []tensor.Named {
	t.Helper()
	if err := m.Check(); err != nil {
		t.Fatalf("check: %v", err)
	}
	path := filepath.Join(t.TempDir(), "model.onnx")
	if err := m.Save(path, onnx.SaveOptions{}); err != nil {
		t.Fatal(err)
	}
	s, err := ort.Open(context.Background(), ort.Library{Path: testkit.ORTLibrary(t)}, path, ort.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	out, err := s.Infer(context.Background(), feeds)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// open opens a model of the repository.
func open(t *testing.T, elements ...string) *onnx.Model {
	t.Helper()
	m, err := onnx.Open(filepath.Join(append([]string{"..", ".."}, elements...)...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// feed returns a float32 input.
func feed(name string, shape []int64, v ...float32) tensor.Named {
	return tensor.Named{Name: name, Tensor: tensor.FromFloat32s(shape, v)}
}
