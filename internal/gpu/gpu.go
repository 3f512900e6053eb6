// Package gpu asks the NVIDIA driver what GPUs the machine has, how they are
// doing, and, when it cannot, why. It is the only import of go-nvml. Both of the
// driver's libraries are asked, NVML and CUDA's, each in a child of our own
// program: a library that is cut off or lacks a symbol ends the process that loads
// it. Where one says no, the error names the cause (no driver, a driver and a
// library of different versions, a container without the capability compute, ...),
// never a bare "no GPU".
package gpu

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/report"
)

// Device is one GPU or MIG device. The UUID is for choosing a device; it never
// enters a report.
type Device struct {
	report.GPU
	// UUID is what CUDA_VISIBLE_DEVICES takes; the index of a GPU that tells no UUID.
	UUID string `json:"uuid"`
	// Partitioned is a GPU in MIG mode: CUDA shows its MIG devices in its place.
	Partitioned bool `json:"partitioned,omitempty"`
	// FreeBytes is the memory that no process holds; 0 where MemoryBytes is, which
	// means that NVML does not know.
	FreeBytes uint64 `json:"free_bytes,omitempty"`
	// Fault is why nothing can run on it; nil if something can.
	Fault *Fault `json:"fault,omitempty"`
}

// Fault is why a device cannot be used, and what to do.
type Fault struct {
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
}

// String describes a device in a line.
func (d Device) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d", d.Index)
	if d.MIG {
		b.WriteString(" MIG")
	}
	for i, part := range []string{d.Name, d.ComputeCapability, d.UUID} {
		if part == "" || (i == 2 && part == strconv.Itoa(d.Index)) {
			continue
		}
		b.WriteString([]string{": ", ", compute capability ", ", "}[i] + part)
	}
	if d.MemoryBytes > 0 {
		fmt.Fprintf(&b, ", %d of %d MiB free", d.FreeBytes>>20, d.MemoryBytes>>20)
	}
	if d.Partitioned {
		b.WriteString(", in MIG mode")
	}
	if d.Fault != nil {
		b.WriteString(", not usable: " + d.Fault.Message)
	}
	return b.String()
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

// Visible returns the devices that CUDA shows a process with this value of
// CUDA_VISIBLE_DEVICES, numbered as CUDA numbers them there (in PCI order). As in
// CUDA, an entry that names no device ends the list, one that is named twice makes
// it empty, and an empty value shows none.
func Visible(devices []Device, setting string) ([]Device, error) {
	var out []Device
	why := "which shows no GPU"
	for entry := range strings.SplitSeq(setting, ",") {
		entry = strings.TrimSpace(entry)
		d, err := find(devices, entry)
		if err != nil || entry == "" {
			break
		}
		if slices.ContainsFunc(out, func(o Device) bool { return o.UUID == d.UUID }) {
			out, why = nil, "which names a GPU twice: CUDA shows none then"
			break
		}
		out = append(out, d)
	}
	for i := range out {
		out[i].Index = i
	}
	if len(out) == 0 {
		return nil, failure.New(failure.Missing, "CUDA_VISIBLE_DEVICES is %q, %s; this machine has %s", setting, why, list(devices)).
			WithHint("unset CUDA_VISIBLE_DEVICES, or set it to indices or UUIDs of these GPUs, each once")
	}
	return out, nil
}

// Choose returns the device that a setting names: an index, a UUID or its
// beginning, of a GPU or a MIG device. In place of a GPU in MIG mode it returns the
// first of its MIG devices, as CUDA does. One that cannot be used is an error that
// says why.
func Choose(devices []Device, which string) (Device, error) {
	d, err := find(devices, which)
	if err != nil {
		return d, err
	}
	if d.Fault != nil {
		return Device{}, failure.New(failure.Missing, "GPU %s (%s) cannot be used: %s", which, d.Name, d.Fault.Message).WithHint("%s", d.Fault.Hint)
	}
	return d, nil
}

func find(devices []Device, which string) (Device, error) {
	if i, err := strconv.Atoi(which); err == nil {
		for _, mig := range []bool{false, true} { // of a GPU and its MIG devices, which have its index, the GPU
			for at, d := range devices {
				if d.Index == i && d.MIG == mig {
					return instance(devices, at), nil
				}
			}
		}
		return Device{}, failure.New(failure.Missing, "GPU %d is not there: this machine has %s", i, list(devices)).
			WithHint("set tensorrt.device to one of: %s", list(devices))
	}
	var found []int
	for at, d := range devices {
		if strings.HasPrefix(d.UUID, which) {
			found = append(found, at)
		}
	}
	if len(found) != 1 {
		return Device{}, failure.New(failure.Missing, "GPU %q matches %d devices", which, len(found)).
			WithHint("set tensorrt.device to one of: %s", list(devices))
	}
	return instance(devices, found[0]), nil
}

// instance is the device that CUDA shows for the one at a place in the list: MIG
// devices come behind their GPU.
func instance(devices []Device, at int) Device {
	d := devices[at]
	if d.Partitioned && at+1 < len(devices) && devices[at+1].MIG {
		return devices[at+1]
	}
	return d
}

// list names devices as settings take them.
func list(devices []Device) string {
	var names []string
	for _, d := range devices {
		switch {
		case d.MIG:
			names = append(names, fmt.Sprintf("%s (%s)", d.UUID, d.Name))
		case d.Fault != nil:
			names = append(names, fmt.Sprintf("%d (not usable: %s)", d.Index, d.Fault.Message))
		default:
			names = append(names, fmt.Sprintf("%d (%s)", d.Index, d.Name))
		}
	}
	if len(names) == 0 {
		return "none"
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
