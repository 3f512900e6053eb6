package cli

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"time"

	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/engine"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/gpu"
	"github.com/trtship/trtship/internal/ort"
	"github.com/trtship/trtship/internal/stage"
	"github.com/trtship/trtship/internal/triton/server"
	"github.com/trtship/trtship/internal/worker"
	"github.com/trtship/trtship/report"
)

// machine is what there is here to work with. Everything is looked up when it
// is first asked for: torch and what belongs to it from files and metadata, without
// an import; the GPU and TensorRT from the real libraries, each in a child.
type machine struct {
	a *app

	pythonOnce, ortOnce, tritonOnce, gpuOnce, trtOnce bool

	python    string
	pythonErr error
	ort       ort.Library
	ortErr    error
	triton    server.Installation
	tritonErr error
	gpus      []gpu.Device
	gpuErr    error
	trt       engine.Installed
	trtErr    error

	importTime time.Duration // in place of the constant, in tests
}

func (a *app) machine() *machine { return &machine{a: a} }

// Python returns the interpreter that models run in.
func (m *machine) Python() (string, error) {
	if !m.pythonOnce {
		m.pythonOnce = true
		var home string
		if home, m.pythonErr = m.a.cacheHome(); m.pythonErr == nil {
			m.python, m.pythonErr = worker.FindPython(m.a.python, m.a.io.Getenv("TRTSHIP_PYTHON"), home, m.a.io.Getenv("PATH"))
		}
	}
	return m.python, m.pythonErr
}

// ORT returns the ONNX Runtime library.
func (m *machine) ORT(ctx context.Context) (ort.Library, error) {
	if !m.ortOnce {
		m.ortOnce = true
		python, _ := m.Python() // there are other places to look
		m.ort, m.ortErr = ort.Find(ctx, ort.Places{
			File: m.a.io.Getenv("TRTSHIP_ORT_LIB"), Python: python,
			LoaderPath: filepath.SplitList(m.a.io.Getenv("LD_LIBRARY_PATH")),
		})
	}
	return m.ort, m.ortErr
}

// Triton returns the tritonserver of the configuration (which may be nil),
// PATH or the locked environments.
func (m *machine) Triton(ctx context.Context, cfg *config.Config) (server.Installation, error) {
	if m.tritonOnce {
		return m.triton, m.tritonErr
	}
	m.tritonOnce = true
	o := server.FindOptions{Path: m.a.io.Getenv("PATH"), LoaderPath: filepath.SplitList(m.a.io.Getenv("LD_LIBRARY_PATH")), Env: m.visibleEnv()}
	if cfg != nil {
		o.Server = cfg.Triton.Server
	}
	python, err := m.Python()
	if err == nil {
		o.Python = python
		if dirs, err := worker.SitePackages(ctx, python); err == nil {
			o.SitePackages = append(o.SitePackages, dirs...)
		}
	}
	if home, err := m.a.cacheHome(); err == nil {
		if env, err := worker.LockedEnv(home, worker.GroupTriton); err == nil {
			o.SitePackages = append(o.SitePackages, env.SitePackages)
		}
	}
	m.triton, m.tritonErr = server.Find(ctx, o)
	return m.triton, m.tritonErr
}

// GPUs returns the NVIDIA GPUs that both NVML and CUDA show; none is an error with
// the cause. Some of them may have a fault.
func (m *machine) GPUs(ctx context.Context) ([]gpu.Device, error) {
	if !m.gpuOnce {
		m.gpuOnce = true
		var setting *string
		if s, ok := m.visibleDevices(); ok {
			setting = &s
		}
		m.gpus, m.gpuErr = gpu.Ask(ctx, m.a.io.Environ()).Usable(setting)
	}
	return m.gpus, m.gpuErr
}

// visibleDevices is CUDA_VISIBLE_DEVICES, where it is set, even to nothing.
func (m *machine) visibleDevices() (string, bool) {
	for _, v := range m.a.io.Environ() {
		if setting, ok := strings.CutPrefix(v, "CUDA_VISIBLE_DEVICES="); ok {
			return setting, true
		}
	}
	return "", false
}

// visibleEnv passes on to children with an environment of their own which GPUs they see, and
// lets them count as NVML does.
func (m *machine) visibleEnv() []string {
	env := []string{"CUDA_DEVICE_ORDER=PCI_BUS_ID"}
	if setting, ok := m.visibleDevices(); ok {
		env = append(env, "CUDA_VISIBLE_DEVICES="+setting)
	}
	return env
}

// tensorrtPackages are the names under which TensorRT's Python bindings are installed.
var tensorrtPackages = []string{"tensorrt", "tensorrt-cu12", "tensorrt-cu13", "tensorrt-cu12-bindings", "tensorrt-cu13-bindings", "tensorrt-bindings"}

// Package returns the version of the first of names that is installed in the
// interpreter, from metadata.
func (m *machine) Package(ctx context.Context, names ...string) (string, error) {
	python, err := m.Python()
	if err != nil {
		return "", err
	}
	versions, err := worker.PackageVersions(ctx, python, names...)
	if err != nil {
		return "", err
	}
	for _, n := range names {
		if v := versions[n]; v != "" {
			return v, nil
		}
	}
	return "", failure.New(failure.Missing, "%s is not installed for %s", names[0], python).
		WithHint("install it there, or name another interpreter with --python or TRTSHIP_PYTHON")
}

// Has returns nil if the machine has a capability, and why it has not otherwise. What
// cfg names, such as the GPU, is looked up; it may be nil.
func (m *machine) Has(ctx context.Context, cfg *config.Config, need stage.Need) error {
	var err error
	switch need {
	case stage.NeedTorch:
		if _, err = m.Package(ctx, "torch"); err != nil { // not every package has metadata
			_, err = m.Imported(ctx, "torch")
		}
	case stage.NeedORT:
		_, err = m.ORT(ctx)
	case stage.NeedGPU:
		_, err = m.device(ctx, cfg)
	case stage.NeedTensorRT:
		if d, none := m.device(ctx, cfg); none == nil {
			_, err = m.tensorrtFor(ctx, d)
		} else {
			_, err = m.TensorRT(ctx)
		}
	case stage.NeedTriton:
		_, err = m.Triton(ctx, cfg)
	default:
		return failure.New(failure.Bug, "unknown need %q", need)
	}
	return err
}

// device returns the GPU that a configuration names, the first one without.
func (m *machine) device(ctx context.Context, cfg *config.Config) (gpu.Device, error) {
	devices, err := m.GPUs(ctx)
	if err != nil {
		return gpu.Device{}, err
	}
	if cfg == nil {
		return gpu.Choose(devices, "0")
	}
	d, err := gpu.Choose(devices, cfg.TensorRT.Device)
	if e, ok := errors.AsType[*failure.Error](err); ok {
		return d, e.At(cfg.Where("tensorrt.device"))
	}
	return d, err
}

// environment describes the machine for a report: no host name, no user, no path.
func (m *machine) environment(ctx context.Context) report.Environment {
	env := report.Environment{OS: osName(), CPU: cpuName(), Cores: cores(), Tools: map[string]string{"trtship": m.a.version}}
	if python, err := m.Python(); err == nil {
		versions, err := worker.PackageVersions(ctx, python, "torch", "onnx", "onnxscript", "numpy")
		if err == nil {
			for name, v := range versions {
				env.Tools[name] = v
			}
		}
	}
	if lib, err := m.ORT(ctx); err == nil {
		env.Tools["onnxruntime"] = lib.Version
	}
	devices, noGPU := m.GPUs(ctx)
	trt := m.TensorRT
	if noGPU != nil { // nothing is run with it then: the name is enough, and an import takes seconds
		trt = func(ctx context.Context) (string, error) { return m.Package(ctx, tensorrtPackages...) }
	}
	if v, err := trt(ctx); err == nil {
		env.Tools["tensorrt"] = v
	}
	if in, err := m.Triton(ctx, nil); err == nil && in.Version != "" {
		env.Tools["tritonserver"] = in.Version
	}
	for _, d := range devices {
		if d.Fault == nil {
			env.GPUs = append(env.GPUs, d.GPU)
		}
	}
	return env
}

// firstLine returns the message and the hint of an error for a table.
func firstLine(err error) (text, hint string) {
	text = err.Error()
	if f, ok := errors.AsType[*failure.Error](err); ok {
		text, hint = f.Error(), f.Hint
	}
	line, _, _ := strings.Cut(text, "\n")
	return line, hint
}
