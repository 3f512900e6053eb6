// Package server finds, starts, watches and ends tritonserver: as a local
// process, or as a container through Docker's own client.
package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/proc"
	"github.com/trtship/trtship/internal/regular"
)

// FindOptions says where a tritonserver may be.
type FindOptions struct {
	Server string // named by the user (triton.server); nothing else is looked at then
	Path   string // value of PATH
	// Python is the interpreter whose packages (onnxruntime, tensorrt) the
	// stand-in backends use; absolute. It is not needed for a server that brings
	// native backends.
	Python string
	// SitePackages are folders that may hold the server of the nvidia-pytriton
	// wheel, in order, after PATH.
	SitePackages []string
	// LoaderPath are folders of shared libraries that the server needs besides
	// its own, such as the one of libcuda.
	LoaderPath []string
	// Env is added to the environment of the server and its backends, NAME=value:
	// what says which GPUs they see.
	Env []string
}

// Installation is a tritonserver and what it takes to run it.
type Installation struct {
	Binary  string // absolute
	Version string // of the server if known without starting it, else empty
	// Native says that the server has its own backend folder; the stand-in
	// backends are not used then.
	Native bool
	wheel  string // folder pytriton/tritonserver
	libs   []string
	env    []string
	// overlay are package folders that go before the interpreter's own: the
	// python backend reads numpy arrays as numpy 1 lays them out.
	overlay []string
	python  pythonFacts
}

// pythonFacts is what the stub of the python backend needs to know.
type pythonFacts struct {
	Base    string   `json:"base"`    // interpreter below any virtual environment
	Version string   `json:"version"` // such as 3.11
	LibDir  string   `json:"libdir"`  // of libpython; empty if it is static
	Site    []string `json:"site"`    // folders of its packages
}

// errNoServer is the reason when nothing is found.
var errNoServer = errors.New("no tritonserver in PATH or in the Python environment")

// Find locates a tritonserver: the one that is named, else that of PATH, else
// the one in the nvidia-pytriton wheel. None is failure.Missing.
func Find(ctx context.Context, o FindOptions) (Installation, error) {
	if o.Server != "" {
		binary, err := proc.Look(o.Server, o.Path)
		if err != nil {
			return Installation{}, failure.New(failure.Missing, "tritonserver %q cannot be run: %w", o.Server, err).
				WithHint("triton.server names an executable; leave it out to use the one of PATH or of the locked environment")
		}
		return describe(ctx, binary, o)
	}
	if binary, err := proc.Look("tritonserver", o.Path); err == nil {
		return describe(ctx, binary, o)
	}
	for _, dir := range o.SitePackages {
		binary := filepath.Join(dir, "pytriton", "tritonserver", "bin", "tritonserver")
		if _, err := os.Stat(binary); err == nil {
			return describe(ctx, binary, o)
		}
	}
	return Installation{}, failure.New(failure.Missing, "%w", errNoServer).
		WithHint("run `trtship env install triton`, or name one with triton.server, or a container with triton.image")
}

// describe tells a server of the wheel from a native one.
func describe(ctx context.Context, binary string, o FindOptions) (Installation, error) {
	if real, err := filepath.EvalSymlinks(binary); err == nil {
		binary = real
	}
	in := Installation{Binary: binary, libs: o.LoaderPath, env: o.Env}
	root := filepath.Dir(filepath.Dir(binary))
	stubs := filepath.Join(root, "python_backend_stubs")
	if _, err := os.Stat(stubs); err != nil {
		in.Native = true
		in.Version = nativeVersion(root)
		return in, nil
	}
	in.wheel = root
	in.libs = append([]string{filepath.Join(filepath.Dir(filepath.Dir(root)), "nvidia_pytriton.libs")}, o.LoaderPath...)
	in.Version = wheelVersion(filepath.Dir(filepath.Dir(root)))
	if o.Python == "" {
		return in, failure.New(failure.Missing, "tritonserver %s carries only the python backend and no Python is named for it", binary).
			WithHint("set TRTSHIP_PYTHON or run `trtship env install`")
	}
	facts, err := askPython(ctx, o.Python)
	if err != nil {
		return in, err
	}
	in.python = facts
	for _, dir := range o.SitePackages {
		if old, _ := filepath.Glob(filepath.Join(regular.Literal(dir), "numpy-1.*.dist-info")); len(old) > 0 {
			in.overlay = append(in.overlay, dir)
		}
	}
	if facts.LibDir != "" {
		in.libs = append(in.libs, facts.LibDir)
	}
	if _, err := os.Stat(filepath.Join(stubs, facts.Version)); err != nil {
		have, _ := filepath.Glob(filepath.Join(regular.Literal(stubs), "*"))
		for i := range have {
			have[i] = filepath.Base(have[i])
		}
		return in, failure.New(failure.Missing, "tritonserver has no python backend stub for Python %s", facts.Version).
			With("stubs", "%s", strings.Join(have, " ")).WithHint("use one of these Python versions")
	}
	return in, nil
}

const factsScript = `import sys, sysconfig, json, os
lib = sysconfig.get_config_var("LIBDIR") or ""
name = sysconfig.get_config_var("INSTSONAME") or ""
print(json.dumps({"base": os.path.realpath(sys._base_executable), "version": "%d.%d" % sys.version_info[:2],
                  "site": list(dict.fromkeys(sysconfig.get_path(p) for p in ("purelib", "platlib"))),
                  "libdir": lib if name and os.path.exists(os.path.join(lib, name)) else ""}))`

func askPython(ctx context.Context, python string) (pythonFacts, error) {
	var f pythonFacts
	out, err := proc.Output(ctx, proc.Command{Path: python, Args: []string{"-I", "-c", factsScript}})
	if err == nil {
		err = json.Unmarshal([]byte(out), &f)
	}
	if err != nil {
		return f, failure.New(failure.Missing, "ask %s for its version: %w", filepath.Base(python), err).At(python)
	}
	return f, nil
}

// serverReleases maps releases of the wheel to the server inside.
var serverReleases = map[string]string{"0.7.0": "2.51.0"}

func wheelVersion(site string) string {
	dirs, _ := filepath.Glob(filepath.Join(regular.Literal(site), "nvidia_pytriton-*.dist-info"))
	for _, d := range dirs {
		v := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(d), "nvidia_pytriton-"), ".dist-info")
		return serverReleases[v]
	}
	return ""
}

func nativeVersion(root string) string {
	b, err := regular.ReadFile(filepath.Join(root, "TRITON_VERSION"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// String names the server for reports, without paths.
func (in Installation) String() string {
	v := in.Version
	if v == "" {
		v = "of unknown version"
	}
	if in.Native {
		return fmt.Sprintf("tritonserver %s", v)
	}
	return fmt.Sprintf("tritonserver %s (nvidia-pytriton, stand-in backends on Python %s)", v, in.python.Version)
}

// Environment is the least that the executable needs to start.
func (in Installation) Environment() []string {
	if in.Native {
		return []string{"PATH=/usr/bin:/bin"}
	}
	return []string{"PATH=/usr/bin:/bin", "LD_LIBRARY_PATH=" + strings.Join(in.libs, ":")}
}
