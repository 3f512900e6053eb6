// Package gpu asks NVML what NVIDIA GPUs the machine has, how they are doing,
// and, when it cannot, why. It is the only import of go-nvml. Where NVML says no,
// the error names the cause (no driver, a driver and a library of different
// versions, a container without the NVIDIA runtime, ...), never a bare "no GPU".
package gpu

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/report"
)

// Device is one GPU or MIG device. The UUID is for choosing a device; it never
// enters a report.
type Device struct {
	report.GPU
	UUID string
}

// Reading is what NVML says of a device at one moment.
type Reading struct {
	SMMHz, MemoryMHz int
	PowerW           float64
	TemperatureC     int
	Throttle         []string // reasons that are active, none when it runs freely
	UsedBytes        uint64   // by all processes
	Persistence      bool
}

// Root is the folder whose proc and dev tell more about a fault; "/" outside tests.
type Root string

// explain turns NVML's refusal into an error that says what is wrong.
func (r Root) explain(status string, text string) error {
	driver := r.exists("proc/driver/nvidia/version") || r.exists("sys/module/nvidia/version")
	device := r.exists("dev/nvidia0") || r.exists("dev/nvidiactl")
	container := r.exists(".dockerenv") || r.exists("run/.containerenv")
	e := failure.New(failure.Missing, "no usable NVIDIA GPU: NVML: %s", text)
	switch {
	case status == mismatch:
		return e.With("kernel module", "%s", r.moduleVersion()).
			WithHint("the loaded NVIDIA kernel module and the user-space library are of different versions; reboot, or install the library that matches the module")
	case status == notFound && container:
		return e.WithHint("this container has no NVIDIA driver library: start it with --gpus all, or with the runtime nvidia and NVIDIA_VISIBLE_DEVICES")
	case status == notFound && driver:
		return e.WithHint("the kernel module is loaded but libnvidia-ml.so.1 is not found: install the driver's user-space libraries, or add their folder to the loader path")
	case status == notFound:
		return e.WithHint("no NVIDIA driver is installed on this machine")
	case status == noPermission:
		return e.WithHint("the user may not open /dev/nvidia*: check the permissions of the device files and the container's device list")
	case !device && driver:
		return e.WithHint("the driver is loaded but /dev/nvidia0 is missing: in a container, start it with --gpus all; on a host, run nvidia-modprobe")
	case !driver:
		return e.WithHint("the NVIDIA kernel module is not loaded: modprobe nvidia, or look at dmesg for why it does not")
	}
	return e.WithHint("run nvidia-smi on this machine: it meets the same fault")
}

// The statuses of NVML that explain tells apart.
const (
	notFound     = "library-not-found"
	mismatch     = "version-mismatch"
	noPermission = "no-permission"
)

func (r Root) exists(path string) bool {
	_, err := os.Stat(filepath.Join(string(r), path))
	return err == nil
}

func (r Root) moduleVersion() string {
	b, err := os.ReadFile(filepath.Join(string(r), "sys/module/nvidia/version"))
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(b))
}

// Visible returns the devices that CUDA shows a process with this value of
// CUDA_VISIBLE_DEVICES, numbered as CUDA numbers them there (in PCI order). As in
// CUDA, an entry that names no device ends the list; an empty value shows none.
func Visible(devices []Device, setting string) ([]Device, error) {
	var out []Device
	for entry := range strings.SplitSeq(setting, ",") {
		d, err := Choose(devices, strings.TrimSpace(entry))
		if err != nil || strings.TrimSpace(entry) == "" {
			break
		}
		d.Index = len(out)
		out = append(out, d)
	}
	if len(out) == 0 {
		return nil, failure.New(failure.Missing, "CUDA_VISIBLE_DEVICES is %q, which shows no GPU; this machine has %s", setting, list(devices)).
			WithHint("unset CUDA_VISIBLE_DEVICES, or set it to indices or UUIDs of these GPUs")
	}
	return out, nil
}

// Choose returns the device that a setting names: an index, a UUID or its
// beginning, of a GPU or a MIG device.
func Choose(devices []Device, which string) (Device, error) {
	if i, err := strconv.Atoi(which); err == nil {
		for _, mig := range []bool{false, true} { // of a GPU and its MIG devices, which have its index, the GPU
			for _, d := range devices {
				if d.Index == i && d.MIG == mig {
					return d, nil
				}
			}
		}
		return Device{}, failure.New(failure.Missing, "GPU %d is not there: this machine has %d", i, len(devices)).
			WithHint("set tensorrt.device to one of: %s", list(devices))
	}
	var found []Device
	for _, d := range devices {
		if strings.HasPrefix(d.UUID, which) {
			found = append(found, d)
		}
	}
	if len(found) != 1 {
		return Device{}, failure.New(failure.Missing, "GPU %q matches %d devices", which, len(found)).
			WithHint("set tensorrt.device to one of: %s", list(devices))
	}
	return found[0], nil
}

func list(devices []Device) string {
	var names []string
	for _, d := range devices {
		names = append(names, fmt.Sprintf("%d (%s)", d.Index, d.Name))
	}
	return strings.Join(names, ", ")
}

// Clocks sets two readings, taken before and after a measurement, side by side.
func Clocks(before, after Reading) *report.Clocks {
	return &report.Clocks{
		SMMHz:       [2]int{before.SMMHz, after.SMMHz},
		MemoryMHz:   [2]int{before.MemoryMHz, after.MemoryMHz},
		PowerW:      [2]report.Number{report.Number(before.PowerW), report.Number(after.PowerW)},
		TempC:       [2]int{before.TemperatureC, after.TemperatureC},
		Throttle:    [2]string{strings.Join(before.Throttle, " "), strings.Join(after.Throttle, " ")},
		Persistence: before.Persistence,
	}
}
