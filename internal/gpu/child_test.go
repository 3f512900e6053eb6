//go:build cgo

package gpu

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/proc"
	"github.com/trtship/trtship/internal/testkit"
)

func TestMain(m *testing.M) {
	RunChildIfAsked()
	testkit.Main(m)
}

// driver compiles testdata/NAME.c as both libraries of a driver and returns their
// folder. It stands in for a driver of which we would have to break the files.
func driver(t *testing.T, flags ...string) string {
	t.Helper()
	cc, err := proc.Look("cc", os.Getenv("PATH"))
	if err != nil {
		t.Fatal(err, ": run make setup")
	}
	dir := t.TempDir()
	for source, library := range map[string]string{"nvml.c": files[libraryNVML], "cuda.c": files[libraryCUDA]} {
		args := append([]string{"-shared", "-fPIC", "-o", filepath.Join(dir, library), filepath.Join("testdata", source)}, flags...)
		if out, err := proc.Output(t.Context(), proc.Command{Path: cc, Args: args, Env: os.Environ(), Dir: "."}); err != nil {
			t.Fatal(out, err)
		}
	}
	return dir
}

func environment(dir string, extra ...string) []string {
	return append([]string{"LD_LIBRARY_PATH=" + dir, "PATH=" + os.Getenv("PATH")}, extra...)
}

func TestADriverThatWorksIsUsable(t *testing.T) {
	devices, err := Ask(t.Context(), environment(driver(t))).Usable(nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(devices) != 1 || devices[0].Name != "Test GPU" || devices[0].Driver != "580.1" || devices[0].CUDA != "13.0" || devices[0].FreeBytes != 4<<30 {
		t.Errorf("got %+v", devices)
	}
}

// None of these may end the process that asks, or pass for a GPU.
func TestADriverThatIsBrokenIsAnErrorWithTheCause(t *testing.T) {
	cut := func(library string) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			path := filepath.Join(dir, files[library])
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Truncate(path, info.Size()/3); err != nil {
				t.Fatal(err)
			}
		}
	}
	remove := func(library string) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, files[library])); err != nil {
				t.Fatal(err)
			}
		}
	}
	tests := map[string]struct {
		flags         []string
		change        func(t *testing.T, dir string)
		env           []string
		message, hint string
	}{
		"NVML is cut off": {nil, cut(libraryNVML), nil, "libnvidia-ml.so.1", "install the driver's libraries again"},
		"NVML is an empty file": {nil, func(t *testing.T, dir string) {
			if err := os.Truncate(filepath.Join(dir, files[libraryNVML]), 0); err != nil {
				t.Fatal(err)
			}
		}, nil, "file too short", "install the driver's libraries again"},
		"NVML lacks nvmlInit":   {[]string{"-DNO_INIT"}, nil, nil, "nvmlInit", "install the driver's libraries again"},
		"NVML aborts":           {[]string{"-DABORTS"}, nil, nil, "SIGABRT", "install the driver's libraries again"},
		"NVML hangs":            {[]string{"-DHANGS"}, nil, nil, "no answer within", "the driver hangs"},
		"CUDA is cut off":       {nil, cut(libraryCUDA), nil, "libcuda.so.1", ""},
		"CUDA is not there":     {nil, remove(libraryCUDA), nil, "libcuda.so.1: cannot open", ""},
		"CUDA is not to be had": {nil, remove(libraryCUDA), []string{"NVIDIA_DRIVER_CAPABILITIES=utility"}, "libcuda.so.1", "NVIDIA_DRIVER_CAPABILITIES=utility: set it to compute,utility"},
		"CUDA lacks cuInit": {[]string{"-DNO_INIT"}, func(t *testing.T, dir string) {
			if err := os.Rename(filepath.Join(driver(t), files[libraryNVML]), filepath.Join(dir, files[libraryNVML])); err != nil {
				t.Fatal(err)
			}
		}, nil, "lacks cuInit", ""},
		"CUDA shows no device":       {[]string{"-DCOUNT=0"}, nil, nil, "CUDA shows none", "CUDA_VISIBLE_DEVICES"},
		"versions differ":            {[]string{"-DSTATUS=803"}, nil, nil, "cuInit: CUDA_ERROR_TEST 803 (a text of the driver)", "of different versions"},
		"forward compatibility":      {[]string{"-DSTATUS=804"}, nil, nil, "804", "cuda-compat"},
		"no device for CUDA":         {[]string{"-DSTATUS=100"}, nil, nil, "100", "MIG"},
		"the fabric manager is down": {[]string{"-DSTATUS=802"}, nil, nil, "802", "nvidia-fabricmanager"},
		"an error without a reason":  {[]string{"-DSTATUS=999"}, nil, nil, "999", "nvidia_uvm"},
		"an error that nobody knows": {[]string{"-DSTATUS=12345"}, nil, nil, "12345", "documentation of the CUDA driver"},
		"CUDA without NVML":          {nil, remove(libraryNVML), nil, "NVML", "NVML"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			dir := driver(t, tt.flags...)
			if tt.change != nil {
				tt.change(t, dir)
			}
			patience := patience
			if slices.Contains(tt.flags, "-DHANGS") {
				patience = time.Second
			}
			_, err := ask(t.Context(), environment(dir, tt.env...), patience).Usable(nil)
			var e *failure.Error
			if !errors.As(err, &e) {
				t.Fatalf("got %v, want a failure", err)
			}
			if e.Code != failure.Missing || !strings.Contains(e.Message, tt.message) || !strings.Contains(e.Hint, tt.hint) || e.Hint == "" {
				t.Errorf("got code %d, %q, hint %q; want 3, %q and %q", e.Code, e.Message, e.Hint, tt.message, tt.hint)
			}
		})
	}
}
