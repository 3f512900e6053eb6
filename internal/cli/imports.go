package cli

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/trtship/trtship/internal/engine"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/gpu"
	"github.com/trtship/trtship/internal/worker"
)

// importTime is how long Python may take to start and to import a package, from a
// cold disk.
const importTime = time.Minute

// askPython starts a child of the interpreter, asks it one thing, and ends it. A child
// that dies or hangs is exit 3 with what it wrote last: it is no answer.
func (m *machine) askPython(ctx context.Context, what string, ask func(*worker.Worker) error) error {
	python, err := m.Python()
	if err != nil {
		return err
	}
	w, err := worker.Start(ctx, worker.Options{Python: python, CUDA: true, Env: m.withLibraries(m.visibleEnv()), Timeout: m.patience()})
	if err != nil {
		return failure.New(failure.Missing, "%s: %w", python, err).WithHint("name a working Python with --python or TRTSHIP_PYTHON")
	}
	defer w.Close()
	err = ask(w)
	crash, ok := errors.AsType[*worker.Crash](err)
	if !ok {
		return err
	}
	e := failure.New(failure.Missing, "%s in %s: %s", what, python, crash.Reason()).
		WithHint("try it by hand: %s -c 'import %s'", python, moduleOf(what))
	if tail := strings.Split(strings.TrimSpace(crash.Tail), "\n"); tail[0] != "" {
		e.With("its last lines", "%s", strings.Join(tail[max(0, len(tail)-5):], "\n"))
	}
	return e
}

// moduleOf is the module that meets the same fault.
func moduleOf(what string) string {
	switch module, ok := strings.CutPrefix(what, "import "); {
	case ok:
		return module
	case what == "start Python":
		return "sys"
	}
	return "tensorrt as t; t.Runtime(t.Logger())"
}

func (m *machine) patience() time.Duration {
	if m.importTime > 0 {
		return m.importTime
	}
	return importTime
}

// withLibraries adds to the environment of a child what it needs to find the libraries.
func (m *machine) withLibraries(env []string) []string {
	if path := m.a.io.Getenv("LD_LIBRARY_PATH"); path != "" {
		env = append(env, "LD_LIBRARY_PATH="+path)
	}
	return env
}

// Interpreter starts Python and returns its path and its version.
func (m *machine) Interpreter(ctx context.Context) (path, version string, err error) {
	var seen struct {
		Python string `json:"python"`
	}
	err = m.askPython(ctx, "start Python", func(w *worker.Worker) error { return w.Call("worker.probe", struct{}{}, &seen) })
	return m.python, seen.Python, err
}

// Imported imports a package and returns its version.
func (m *machine) Imported(ctx context.Context, name string) (string, error) {
	var seen struct {
		Version string `json:"version"`
	}
	err := m.askPython(ctx, "import "+name, func(w *worker.Worker) error {
		return w.Call("worker.package", map[string]string{"name": name}, &seen)
	})
	return seen.Version, err
}

// importedAll imports packages, each in a child of its own, at the same time.
func (m *machine) importedAll(ctx context.Context, names ...string) (versions []string, errs []error) {
	versions, errs = make([]string, len(names)), make([]error, len(names))
	if _, err := m.Python(); err != nil { // looked up once, before the goroutines
		for i := range errs {
			errs[i] = err
		}
		return versions, errs
	}
	var all sync.WaitGroup
	for i, name := range names {
		all.Go(func() { versions[i], errs[i] = m.Imported(ctx, name) })
	}
	all.Wait()
	return versions, errs
}

// installed imports TensorRT.
func (m *machine) installed(ctx context.Context) (engine.Installed, error) {
	if !m.trtOnce {
		m.trtOnce = true
		m.trtErr = m.askPython(ctx, "import tensorrt", func(w *worker.Worker) error {
			var err error
			m.trt, err = engine.AskInstalled(w)
			return err
		})
	}
	return m.trt, m.trtErr
}

// TensorRT returns the version of the TensorRT that the interpreter imports.
func (m *machine) TensorRT(ctx context.Context) (string, error) {
	i, err := m.installed(ctx)
	return i.Version, err
}

// startTensorRT starts TensorRT's runtime on the first GPU. That takes seconds and a
// context on the GPU: a run leaves it to its first build.
func (m *machine) startTensorRT(ctx context.Context) error {
	return m.askPython(ctx, "start TensorRT's runtime", func(w *worker.Worker) error { return engine.StartRuntime(w) })
}

// tensorrtFor returns the version of a TensorRT that runs on one of the devices.
func (m *machine) tensorrtFor(ctx context.Context, devices ...gpu.Device) (string, error) {
	i, err := m.installed(ctx)
	if err != nil {
		return i.Version, err
	}
	for _, d := range devices {
		if d.Fault != nil {
			continue
		}
		if err = i.Takes(d.Driver, d.CUDA, d.ComputeCapability); err == nil {
			break
		}
	}
	return i.Version, err
}
