package locate

import (
	"context"
	"os"
	"path/filepath"

	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/ort"
	"github.com/trtship/trtship/internal/tensor"
)

// ORT runs graphs in ONNX Runtime with graph optimisation off. It is the
// reference of a search, and with graphs that only emulate a precision a
// candidate that needs no GPU.
type ORT struct {
	Library ort.Library
	Scratch string // an existing folder
	Options ort.Options
}

// Run saves the graph, loads it into a child and feeds it.
func (r ORT) Run(ctx context.Context, m *onnx.Model, feeds [][]tensor.Named) ([][]tensor.Named, error) {
	dir, err := os.MkdirTemp(r.Scratch, "locate-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "model.onnx")
	if err := m.Save(path, onnx.SaveOptions{}); err != nil {
		return nil, err
	}
	s, err := ort.Open(ctx, r.Library, path, r.Options)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	return runAll(ctx, s, feeds)
}

type inferrer interface {
	Infer(ctx context.Context, inputs []tensor.Named) ([]tensor.Named, error)
}

func runAll(ctx context.Context, s inferrer, feeds [][]tensor.Named) ([][]tensor.Named, error) {
	out := make([][]tensor.Named, 0, len(feeds))
	for _, f := range feeds {
		got, err := s.Infer(ctx, f)
		if err != nil {
			return nil, err
		}
		out = append(out, got)
	}
	return out, nil
}
