package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/trtship/trtship/internal/proc"
	"github.com/trtship/trtship/internal/triton/server"
	"github.com/trtship/trtship/internal/worker"
)

// inMemory says that a server is none.
const inMemory = "answers from memory"

// tiny is the smallest model that a server can have: it gives back what it gets.
const tiny = `import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", r.inputs()[0].as_numpy())]) for r in requests]
`

// resnet50 runs torchvision's ResNet-50 with random weights, in half precision
// where there is a GPU. Requests that wait together are one batch.
const resnet50 = `import numpy as np
import torch
import torchvision
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        torch.manual_seed(0)
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.dtype = torch.float16 if self.device == "cuda" else torch.float32
        self.model = torchvision.models.resnet50(weights=None).eval().to(self.device, self.dtype)
        with torch.no_grad():
            for n in (1, 2, 4, 8, 16, 32):
                self.run(np.zeros((n if self.device == "cuda" else 1, 3, 224, 224), np.float32))

    def run(self, x):
        with torch.no_grad():
            return self.model(torch.from_numpy(x).to(self.device, self.dtype)).float().cpu().numpy()

    def execute(self, requests):
        arrays = [r.inputs()[0].as_numpy() for r in requests]
        y = self.run(np.concatenate(arrays))
        ends = np.cumsum([len(a) for a in arrays])[:-1]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", np.ascontiguousarray(p))]) for p in np.split(y, ends)]
`

// models are the models that are written here: configuration and model.py.
var models = map[string][2]string{
	"tiny": {`backend: "python" max_batch_size: 0 input [ { name: "x" data_type: TYPE_FP32 dims: [ 16 ] } ] output [ { name: "y" data_type: TYPE_FP32 dims: [ 16 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]`, tiny},
	"resnet50": {`backend: "python" max_batch_size: 32 dynamic_batching { } input [ { name: "x" data_type: TYPE_FP32 dims: [ 3, 224, 224 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 1000 ] } ] instance_group [ { kind: KIND_CPU count: 1 } ]`, resnet50},
}

// begin starts what a name of -on asks for.
func (b *bench) begin(ctx context.Context, name string) (at address, what string, stop func(), err error) {
	if b.s.at.http != "" {
		return b.s.at, "a server that runs", func() {}, nil
	}
	if name == "memory" {
		at, stop, err = b.startResponder(ctx)
		return at, inMemory, stop, err
	}
	if model, pattern, ok := strings.Cut(name, "="); ok {
		dir, err := newest(pattern, model)
		if err != nil {
			return at, "", nil, err
		}
		return b.startTriton(ctx, dir, model)
	}
	files, ok := models[name]
	if !ok {
		return at, "", nil, fmt.Errorf("-on: %q is not memory, tiny, resnet50 or NAME=REPOSITORY", name)
	}
	dir := filepath.Join(b.dir, "repository-"+name)
	if err := errors.Join(
		os.MkdirAll(filepath.Join(dir, name, "1"), 0o755),
		os.WriteFile(filepath.Join(dir, name, "config.pbtxt"), []byte(files[0]), 0o644),
		os.WriteFile(filepath.Join(dir, name, "1", "model.py"), []byte(files[1]), 0o644),
	); err != nil {
		return at, "", nil, err
	}
	return b.startTriton(ctx, dir, name)
}

// newest returns the repository that matches a pattern, holds the model and was
// written last.
func newest(pattern, model string) (string, error) {
	dirs, err := filepath.Glob(pattern)
	if err != nil {
		return "", err
	}
	dirs = slices.DeleteFunc(dirs, func(dir string) bool { _, err := os.Stat(filepath.Join(dir, model)); return err != nil })
	if len(dirs) == 0 {
		return "", fmt.Errorf("no folder %s holds the model %s", pattern, model)
	}
	written := func(dir string) time.Time {
		i, err := os.Stat(dir)
		if err != nil {
			return time.Time{}
		}
		return i.ModTime()
	}
	return filepath.Abs(slices.MaxFunc(dirs, func(a, b string) int { return written(a).Compare(written(b)) }))
}

// startTriton starts the tritonserver of PATH, of the Python environment or of
// the locked one.
func (b *bench) startTriton(ctx context.Context, dir, model string) (at address, what string, stop func(), err error) {
	o := server.FindOptions{Path: os.Getenv("PATH"), LoaderPath: filepath.SplitList(os.Getenv("LD_LIBRARY_PATH"))}
	cache, err := worker.CacheHome(os.Getenv)
	if err != nil {
		return at, "", nil, err
	}
	if o.Python, err = worker.FindPython("", os.Getenv("TRTSHIP_PYTHON"), cache, o.Path); err != nil {
		return at, "", nil, err
	}
	if dirs, err := worker.SitePackages(ctx, o.Python); err == nil {
		o.SitePackages = append(o.SitePackages, dirs...)
	}
	if env, err := worker.LockedEnv(cache, worker.GroupTriton); err == nil {
		o.SitePackages = append(o.SitePackages, env.SitePackages)
	}
	in, err := server.Find(ctx, o)
	if err != nil {
		return at, "", nil, err
	}
	scratch, err := os.MkdirTemp(b.dir, "server-*")
	if err != nil {
		return at, "", nil, err
	}
	s, err := server.Start(ctx, server.Options{Installation: in, Repositories: []string{dir}, Wait: []server.Want{{Model: model}}, Scratch: scratch, ReadyTimeout: 3 * time.Minute})
	if err != nil {
		return at, "", nil, err
	}
	return address{s.HTTP, s.GRPC, model}, "tritonserver " + s.Version(), s.Stop, nil
}

// startResponder starts the responder as a child and learns its addresses.
func (b *bench) startResponder(ctx context.Context) (at address, stop func(), err error) {
	read, write, err := os.Pipe()
	if err != nil {
		return at, nil, err
	}
	defer func() { _ = read.Close() }()
	p, err := proc.Start(ctx, proc.Command{Path: b.self, Args: []string{"-responder"}, Output: write})
	_ = write.Close()
	if err != nil {
		return at, nil, err
	}
	at.model = "memory"
	if _, err := fmt.Fscanln(read, &at.http, &at.grpc); err != nil {
		p.Stop()
		return at, nil, fmt.Errorf("start the responder: %w", err)
	}
	return at, p.Stop, nil
}
