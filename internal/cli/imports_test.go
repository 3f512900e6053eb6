package cli

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/gpu"
	"github.com/trtship/trtship/internal/proc"
	"github.com/trtship/trtship/internal/stage"
	"github.com/trtship/trtship/internal/testkit"
	"github.com/trtship/trtship/report"
)

// environmentWith makes a virtual environment of the given site-packages.
func environmentWith(t *testing.T, packages map[string]string) (python string) {
	t.Helper()
	out, err := proc.Output(t.Context(), proc.Command{
		Path: testkit.Python(t), Args: []string{"-I", "-c", "import os, sys; print(os.path.realpath(sys.executable)); print(f'python3.{sys.version_info[1]}')"}, Env: []string{},
	})
	if err != nil {
		t.Fatal(err)
	}
	base, name, _ := strings.Cut(strings.TrimSpace(out), "\n")
	root := t.TempDir()
	write := func(path, text string) {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(root, "pyvenv.cfg"), "home = "+filepath.Dir(base)+"\n")
	for path, text := range packages {
		write(filepath.Join(root, "lib", name, "site-packages", path), strings.ReplaceAll(text, "ROOT", root))
	}
	python = filepath.Join(root, "bin", "python")
	if err := os.MkdirAll(filepath.Dir(python), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(base, python); err != nil {
		t.Fatal(err)
	}
	return python
}

func machineWith(python string) *machine {
	a := &app{io: IO{Getenv: func(string) string { return "" }, Environ: func() []string { return nil }}}
	return &machine{a: a, pythonOnce: true, python: python, gpuOnce: true, gpuErr: failure.New(failure.Missing, "no GPU")}
}

// Metadata is no answer: only an import that ends well, of a release that we know, is.
func TestTensorRTIsWhatCanBeImported(t *testing.T) {
	metadata := map[string]string{"tensorrt-10.6.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: tensorrt\nVersion: 10.6.0\n"}
	tests := map[string]struct {
		module string // of tensorrt/__init__.py; "" is none
		want   string
	}{
		"only metadata":        {"", "tensorrt is not installed for"},
		"it aborts":            {"import os; os.abort()", "python crashed (SIGABRT)"},
		"it ends the process":  {"import os; os._exit(0)", "ended without an answer"},
		"it exits":             {"import sys; print('no libnvinfer here', file=sys.stderr); sys.exit(5)", "exit status 5: no libnvinfer here"},
		"it hangs":             {"import time; time.sleep(600)", "out of time after 1s"},
		"it lacks a library":   {"raise ImportError('libnvinfer.so.10: cannot open shared object file')", "libnvinfer.so.10"},
		"it raises an OSError": {"raise OSError('libnvinfer.so.10: no')", "libnvinfer.so.10"},
		"an old release":       {"__version__ = '7.2.3'", "TensorRT 7.2.3 is older than 8.6"},
		"no version":           {"", "is not installed"},
		"a version of letters": {"__version__ = 'abc'", `version "abc"`},
		"without a version":    {"x = 1", `version ""`},
		"one that works":       {"__version__ = '10.6.0'", ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			packages := map[string]string{}
			for k, v := range metadata {
				packages[k] = v
			}
			if tt.module != "" {
				packages["tensorrt/__init__.py"] = tt.module
			}
			m := machineWith(environmentWith(t, packages))
			if strings.Contains(name, "hangs") {
				m.importTime = time.Second
			}
			v, err := m.TensorRT(t.Context())
			if tt.want == "" {
				if err != nil || v != "10.6.0" {
					t.Errorf("%q, %v", v, err)
				}
				return
			}
			var e *failure.Error
			if !errors.As(err, &e) || e.Code != failure.Missing || !strings.Contains(e.Message, tt.want) || e.Hint == "" {
				t.Errorf("got %v, want exit 3 with %q and a hint", err, tt.want)
			}
			if err := m.Has(t.Context(), nil, stage.NeedTensorRT); failure.CodeOf(err) != failure.Missing {
				t.Errorf("the preflight says %v, want exit 3", err)
			}
		})
	}
}

func TestAPackageIsFoundInWhicheverWayPythonFindsIt(t *testing.T) {
	m := machineWith(environmentWith(t, map[string]string{
		"elsewhere.pth": "ROOT/elsewhere\n", "../../../elsewhere/tensorrt.py": "__version__ = '10.6.0'\n", "../../../elsewhere/torch.py": "__version__ = '2.11'\n",
	}))
	if v, err := m.TensorRT(t.Context()); err != nil || v != "10.6.0" {
		t.Errorf("tensorrt %q, %v", v, err)
	}
	if v, err := m.Imported(t.Context(), "torch"); err != nil || v != "2.11" {
		t.Errorf("torch %q, %v", v, err)
	}
	if err := m.Has(t.Context(), nil, stage.NeedTorch); err != nil {
		t.Errorf("the preflight: %v", err)
	}
}

func TestWhatIsNoPythonIsNone(t *testing.T) {
	for _, path := range []string{"/bin/false", "/bin/true"} {
		if _, _, err := machineWith(path).Interpreter(t.Context()); failure.CodeOf(err) != failure.Missing {
			t.Errorf("%s: %v, want exit 3", path, err)
		}
	}
	if _, v, err := machineWith(testkit.Python(t)).Interpreter(t.Context()); err != nil || !strings.HasPrefix(v, "3.") {
		t.Errorf("%q, %v", v, err)
	}
}

// The preflight asks for the GPU that is named, not for any.
func TestThePreflightLooksForTheGPUOfTheConfiguration(t *testing.T) {
	devices := []gpu.Device{
		{GPU: report.GPU{Index: 0, Name: "A"}, UUID: "GPU-a"},
		{GPU: report.GPU{Index: 1, Name: "B"}, UUID: "GPU-b", Fault: &gpu.Fault{Message: "GPU is lost", Hint: "look at dmesg"}},
	}
	for device, want := range map[string]string{"0": "", "GPU-a": "", "99": "GPU 99 is not there", "MIG-x": "matches 0 devices", "1": "GPU is lost"} {
		m := machineWith(testkit.Python(t))
		m.gpus, m.gpuErr = devices, nil
		err := m.Has(t.Context(), &config.Config{TensorRT: config.TensorRT{Device: device}}, stage.NeedGPU)
		if want == "" {
			if err != nil {
				t.Errorf("%s: %v", device, err)
			}
			continue
		}
		var e *failure.Error
		if !errors.As(err, &e) || e.Code != failure.Missing || !strings.Contains(e.Message, want) || e.Hint == "" {
			t.Errorf("%s: %v, want exit 3 with %q", device, err, want)
		}
	}
}

// Without a home there is no cache folder; what to do about it is said.
func TestAMachineWithoutAHomeSaysWhatToSet(t *testing.T) {
	a := &app{io: IO{Getenv: func(string) string { return "" }, Environ: func() []string { return nil }}}
	_, err := a.machine().Python()
	var e *failure.Error
	if !errors.As(err, &e) || !strings.Contains(e.Hint, "set HOME") || !strings.Contains(e.Hint, "TRTSHIP_PYTHON") {
		t.Errorf("got %v", err)
	}
}
