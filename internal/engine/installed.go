package engine

import (
	"strconv"
	"strings"

	"github.com/trtship/trtship/internal/failure"
)

// Installed is the TensorRT that an interpreter imports.
type Installed struct {
	Version string `json:"version"`
	Python  string `json:"python"`
	// Known is false for a release before Oldest, the first one that our table of
	// features has, and for a version that is not Readable.
	Known    bool   `json:"known"`
	Readable bool   `json:"readable"`
	Oldest   string `json:"oldest"`
	// ComputeCapability is the least that the release takes, Driver the least Linux
	// driver for the CUDA that its packages are made for; "" and 0 if they do not say.
	ComputeCapability string `json:"compute_capability"`
	CUDA              int    `json:"cuda"`
	Driver            string `json:"driver"`
	// Builder is why the libraries of kernels that a build needs are not found.
	Builder string `json:"builder"`
}

// AskInstalled imports TensorRT in the child. What cannot be used is an error with
// exit code 3.
func AskInstalled(w Caller) (Installed, error) {
	var i Installed
	if err := w.Call("trt.installed", struct{}{}, &i); err != nil {
		return i, err
	}
	switch {
	case !i.Readable:
		return i, failure.New(failure.Missing, "the tensorrt of %s has the version %q, which is none", i.Python, i.Version).
			WithHint("it is not NVIDIA's package: install tensorrt of release %s or newer", i.Oldest)
	case !i.Known:
		return i, failure.New(failure.Missing, "TensorRT %s is older than %s, the oldest release that can be used", i.Version, i.Oldest).
			WithHint("install tensorrt of release %s or newer for %s, or name another interpreter with --python or TRTSHIP_PYTHON", i.Oldest, i.Python)
	}
	return i, nil
}

// StartRuntime starts TensorRT's runtime on the GPU that the child sees; exit code 3
// if it does not, with its reason.
func StartRuntime(w Caller) error {
	var got struct {
		Version string `json:"version"`
		Refused string `json:"refused"`
	}
	err := w.Call("trt.start", struct{}{}, &got)
	if err == nil && got.Refused != "" {
		err = failure.New(failure.Missing, "TensorRT %s does not start on the GPU: %s", got.Version, got.Refused).
			WithHint("most often the driver is older than what this release needs: update it, or install an older release")
	}
	return err
}

// Takes returns nil if the release runs with a driver for that CUDA on a GPU of a
// compute capability, as far as its documentation says; "" is not known.
func (i Installed) Takes(driver, cuda, computeCapability string) error {
	switch {
	case before(computeCapability, i.ComputeCapability):
		return failure.New(failure.Missing, "TensorRT %s takes GPUs of compute capability %s or later, and this one has %s", i.Version, i.ComputeCapability, computeCapability).
			WithHint("use a newer GPU, or an older release of TensorRT")
	case i.CUDA > 0 && before(cuda, strconv.Itoa(i.CUDA)):
		return failure.New(failure.Missing, "TensorRT %s is made for CUDA %d, and driver %s of this machine is for CUDA %s", i.Version, i.CUDA, driver, cuda).
			WithHint("update the driver to %s or newer, or install the TensorRT of an older CUDA (tensorrt-cu%d)", i.Driver, i.CUDA-1)
	}
	return nil
}

// Builds returns nil if engines can be built with it, as far as files tell; one that
// cannot build may still run engines.
func (i Installed) Builds() error {
	if i.Builder == "" {
		return nil
	}
	return failure.New(failure.Missing, "TensorRT %s runs engines but cannot build them: %s", i.Version, i.Builder).
		WithHint("install the builder's libraries of the same release (package libnvinfer-dev or the wheel tensorrt-cu%d-libs), or build on another machine", max(i.CUDA, 12))
}

// before compares dotted numbers; what is not known or is none is not before.
func before(a, b string) bool {
	if a == "" || b == "" {
		return false
	}
	x, y := strings.Split(a, "."), strings.Split(b, ".")
	for i := range min(len(x), len(y)) {
		m, err := strconv.Atoi(x[i])
		if err != nil {
			return false
		}
		n, err := strconv.Atoi(y[i])
		if err != nil {
			return false
		}
		if m != n {
			return m < n
		}
	}
	return len(x) < len(y)
}
