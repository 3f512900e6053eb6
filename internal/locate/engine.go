package locate

import (
	"context"
	"os"
	"path/filepath"

	"github.com/trtship/trtship/internal/engine"
	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/tensor"
)

// Engine builds a strongly typed engine from each graph and runs it.
type Engine struct {
	Child   engine.Caller
	Request engine.BuildRequest // profiles, device and limits; paths are set here
	Scratch string              // an existing folder
}

// Run builds, loads, feeds and unloads.
func (r Engine) Run(ctx context.Context, m *onnx.Model, feeds [][]tensor.Named) ([][]tensor.Named, error) {
	dir, err := os.MkdirTemp(r.Scratch, "locate-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	request := r.Request
	request.ONNX, request.Plan, request.Typing = filepath.Join(dir, "model.onnx"), filepath.Join(dir, engine.PlanFile), "strong"
	if err := m.Save(request.ONNX, onnx.SaveOptions{}); err != nil {
		return nil, err
	}
	d, err := engine.Build(r.Child, request)
	if err != nil {
		return nil, err
	}
	s, err := engine.Open(r.Child, request.Plan, d, dir)
	if err != nil {
		return nil, err
	}
	out, err := runAll(ctx, s, feeds)
	if closed := s.Close(); err == nil {
		err = closed
	}
	return out, err
}
