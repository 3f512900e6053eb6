//go:build !cgo

package gpu

import "github.com/trtship/trtship/internal/failure"

// NVML is what a build without cgo has: nothing.
type NVML struct{}

// New returns a probe that reports itself missing.
func New() *NVML { return &NVML{} }

// Devices always fails with exit code 3.
func (*NVML) Devices() ([]Device, error) { return nil, errNoCgo() }

// Read always fails with exit code 3.
func (*NVML) Read(Device) (Reading, error) { return Reading{}, errNoCgo() }

func errNoCgo() error {
	return failure.New(failure.Missing, "this trtship was built without cgo and cannot load NVML").
		WithHint("use the release binary, or build with CGO_ENABLED=1")
}

func askCUDA() CUDA { return CUDA{Missing: errNoCgo().Error()} }

func loadError(string) string { return "" }
