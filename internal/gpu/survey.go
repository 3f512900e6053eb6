package gpu

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/trtship/trtship/internal/failure"
)

// CUDA is what the CUDA driver says.
type CUDA struct {
	Version string `json:"version,omitempty"` // of CUDA, that the driver is made for
	Count   int    `json:"count"`             // devices that CUDA_VISIBLE_DEVICES leaves
	// Missing is why libcuda.so.1 cannot be loaded; "" if it can.
	Missing string `json:"missing,omitempty"`
	// Status, with its name and its text from the driver, is the CUresult of Call,
	// if that failed; 0 otherwise.
	Status int    `json:"status,omitempty"`
	Call   string `json:"call,omitempty"`
	Name   string `json:"name,omitempty"`
	Text   string `json:"text,omitempty"`
}

// works reports whether CUDA shows a device.
func (c CUDA) works() bool { return c.Missing == "" && c.Status == 0 && c.Count > 0 }

// Survey is what both libraries of the driver say of this machine.
type Survey struct {
	Devices []Device
	NVML    error // why there are no devices
	CUDA    CUDA
	Crash   error // how the child that asked CUDA ended, if it did not answer

	absent       bool // NVML's library
	root         Root
	capabilities string
}

// Usable returns the devices for a process: those that setting, the value of
// CUDA_VISIBLE_DEVICES, shows; all for nil. Devices with a fault are among them, as
// long as there is one without. No usable device is an error with exit code 3 that
// names the cause.
func (s Survey) Usable(setting *string) ([]Device, error) {
	if s.NVML != nil {
		return nil, s.withoutNVML()
	}
	devices := s.Devices
	if setting != nil {
		var err error
		if devices, err = Visible(devices, *setting); err != nil {
			return nil, err
		}
	}
	if err := allFaulty(devices); err != nil {
		return nil, err
	}
	switch {
	case s.Crash != nil:
		return nil, s.Crash
	case s.CUDA.Missing != "" || s.CUDA.Status != 0:
		return nil, withDevices(s.root.explainCUDA(s.CUDA, s.capabilities), devices)
	case s.CUDA.Count == 0:
		return nil, withDevices(failure.New(failure.Missing, "NVML shows a GPU, but CUDA shows none").
			WithHint("%s", cudaHints[100]), devices)
	}
	return devices, nil
}

// withoutNVML tells NVML's fault, and how CUDA does without it.
func (s Survey) withoutNVML() error {
	known, ok := errors.AsType[*failure.Error](s.NVML)
	if ok && s.absent && s.CUDA.works() {
		e := *known
		e.Details = slices.Clone(e.Details)
		e.With("CUDA", "works and shows %d devices", s.CUDA.Count)
		hint := "NVML (libnvidia-ml.so.1) belongs to the same driver: install it"
		if s.root.container() {
			hint = "start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility: NVML is of utility"
		}
		return e.WithHint("%s", hint)
	}
	return s.NVML
}

// allFaulty is the error for devices of which none can be used. A GPU in MIG mode
// that has MIG devices is used through them.
func allFaulty(devices []Device) error {
	var lines []string
	var first *Fault
	for _, d := range devices {
		switch {
		case d.Fault != nil:
			if first == nil {
				first = d.Fault
			}
			lines = append(lines, fmt.Sprintf("GPU %d (%s): %s", d.Index, d.Name, d.Fault.Message))
		case !d.Partitioned:
			return nil
		}
	}
	if first == nil {
		return nil
	}
	return failure.New(failure.Missing, "no usable NVIDIA GPU: %s", strings.Join(lines, "; ")).WithHint("%s", first.Hint)
}

func withDevices(err error, devices []Device) error {
	e, ok := errors.AsType[*failure.Error](err)
	if !ok {
		return err
	}
	if slices.ContainsFunc(devices, func(d Device) bool { return d.Fault != nil }) {
		// One GPU with a fault can keep CUDA from starting on all of them.
		e.WithHint("%s; or show CUDA only the GPUs without a fault, with CUDA_VISIBLE_DEVICES", e.Hint)
	}
	return e.With("devices of NVML", "%s", list(devices))
}
