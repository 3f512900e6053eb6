package ort

import (
	"errors"

	"github.com/trtship/trtship/internal/tensor"
)

// BenchmarkRequest is a measurement made inside the child.
type BenchmarkRequest struct{}

// BenchmarkResult is what it found.
type BenchmarkResult struct{}

func (s *server) benchmark(feed []tensor.Named, q BenchmarkRequest) (*BenchmarkResult, error) {
	return nil, errors.New("not built yet")
}
