//go:build cgo

package gpu

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/report"
)

// NVML asks the driver's management library. The zero value is not usable.
type NVML struct {
	lib  nvml.Interface
	root Root
}

// New returns a probe of this machine. The library is loaded at the first question.
func New() *NVML { return &NVML{lib: nvml.New(), root: "/"} }

// NewWith returns a probe over another NVML, for tests.
func NewWith(lib nvml.Interface, root Root) *NVML { return &NVML{lib: lib, root: root} }

// Devices lists the GPUs and, below a GPU in MIG mode, its MIG devices. None is
// an error that names the cause, with exit code 3.
func (n *NVML) Devices() ([]Device, error) {
	if err := n.check(n.lib.Init()); err != nil {
		return nil, err
	}
	defer n.lib.Shutdown()
	count, ret := n.lib.DeviceGetCount()
	if err := n.check(ret); err != nil {
		return nil, err
	}
	if count == 0 {
		return nil, failure.New(failure.Missing, "the NVIDIA driver shows no GPU").
			WithHint("in a container, check NVIDIA_VISIBLE_DEVICES; on a host, look at lspci and dmesg")
	}
	var out []Device
	for i := range count {
		handle, ret := n.lib.DeviceGetHandleByIndex(i)
		if err := n.check(ret); err != nil {
			return nil, fmt.Errorf("read GPU %d: %w", i, err)
		}
		d, err := n.device(i, handle)
		if err != nil {
			return nil, fmt.Errorf("read GPU %d: %w", i, err)
		}
		out = append(out, d)
		out = append(out, n.migs(d, handle)...)
	}
	return out, nil
}

func (n *NVML) device(index int, handle nvml.Device) (Device, error) {
	d := Device{GPU: report.GPU{Index: index}}
	var ret nvml.Return
	if d.Name, ret = handle.GetName(); ret != nvml.SUCCESS {
		return d, n.check(ret)
	}
	if d.UUID, ret = handle.GetUUID(); ret != nvml.SUCCESS {
		return d, n.check(ret)
	}
	major, minor, ret := handle.GetCudaComputeCapability()
	if ret != nvml.SUCCESS {
		return d, n.check(ret)
	}
	d.ComputeCapability = fmt.Sprintf("%d.%d", major, minor)
	memory, ret := handle.GetMemoryInfo()
	if ret != nvml.SUCCESS {
		return d, n.check(ret)
	}
	d.MemoryBytes = memory.Total
	if d.Driver, ret = n.lib.SystemGetDriverVersion(); ret != nvml.SUCCESS {
		return d, n.check(ret)
	}
	cuda, ret := n.lib.SystemGetCudaDriverVersion()
	if ret != nvml.SUCCESS {
		return d, n.check(ret)
	}
	d.CUDA = fmt.Sprintf("%d.%d", cuda/1000, cuda%1000/10)
	return d, nil
}

// migs lists the MIG devices of a GPU; a GPU that cannot be partitioned has none.
func (n *NVML) migs(parent Device, handle nvml.Device) []Device {
	mode, _, ret := handle.GetMigMode()
	if ret != nvml.SUCCESS || mode != nvml.DEVICE_MIG_ENABLE {
		return nil
	}
	limit, ret := handle.GetMaxMigDeviceCount()
	if ret != nvml.SUCCESS {
		return nil
	}
	var out []Device
	for i := range limit {
		mig, ret := handle.GetMigDeviceHandleByIndex(i)
		if ret != nvml.SUCCESS {
			continue // a free slot
		}
		d := parent
		d.MIG = true
		if d.UUID, ret = mig.GetUUID(); ret != nvml.SUCCESS {
			continue
		}
		if name, ret := mig.GetName(); ret == nvml.SUCCESS {
			d.Name = name
		}
		if memory, ret := mig.GetMemoryInfo(); ret == nvml.SUCCESS {
			d.MemoryBytes = memory.Total
		}
		out = append(out, d)
	}
	return out
}

// Read returns the state of a device now.
func (n *NVML) Read(d Device) (Reading, error) {
	if err := n.check(n.lib.Init()); err != nil {
		return Reading{}, err
	}
	defer n.lib.Shutdown()
	handle, ret := n.lib.DeviceGetHandleByUUID(d.UUID)
	if err := n.check(ret); err != nil {
		return Reading{}, err
	}
	memoryOf := handle
	if d.MIG { // clocks, power and temperature are those of the whole GPU
		handle, ret = handle.GetDeviceHandleFromMigDeviceHandle()
		if err := n.check(ret); err != nil {
			return Reading{}, err
		}
	}
	var r Reading
	sm, ret := handle.GetClockInfo(nvml.CLOCK_SM)
	if err := n.check(ret); err != nil {
		return r, err
	}
	memory, ret := handle.GetClockInfo(nvml.CLOCK_MEM)
	if err := n.check(ret); err != nil {
		return r, err
	}
	r.SMMHz, r.MemoryMHz = int(sm), int(memory)
	if milliwatts, ret := handle.GetPowerUsage(); ret == nvml.SUCCESS {
		r.PowerW = float64(milliwatts) / 1000
	}
	if degrees, ret := handle.GetTemperature(nvml.TEMPERATURE_GPU); ret == nvml.SUCCESS {
		r.TemperatureC = int(degrees)
	}
	if reasons, ret := handle.GetCurrentClocksEventReasons(); ret == nvml.SUCCESS {
		r.Throttle = throttle(reasons)
	}
	if used, ret := memoryOf.GetMemoryInfo(); ret == nvml.SUCCESS {
		r.UsedBytes = used.Used
	}
	if mode, ret := handle.GetPersistenceMode(); ret == nvml.SUCCESS {
		r.Persistence = mode == nvml.FEATURE_ENABLED
	}
	return r, nil
}

// reasons are the clock event reasons that slow a GPU down, by NVML's bits. An
// idle GPU and application clocks are no throttling.
var reasons = []struct {
	bit  uint64
	name string
}{
	{0x4, "sw-power-cap"},
	{0x8, "hw-slowdown"},
	{0x10, "sync-boost"},
	{0x20, "sw-thermal-slowdown"},
	{0x40, "hw-thermal-slowdown"},
	{0x80, "hw-power-brake"},
	{0x100, "display-clock-setting"},
}

func throttle(bits uint64) []string {
	var out []string
	for _, r := range reasons {
		if bits&r.bit != 0 {
			out = append(out, r.name)
		}
	}
	return out
}

func (n *NVML) check(ret nvml.Return) error {
	switch ret {
	case nvml.SUCCESS:
		return nil
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return n.root.explain(notFound, nvml.ErrorString(ret))
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return n.root.explain(mismatch, "driver and library are of different versions")
	case nvml.ERROR_NO_PERMISSION:
		return n.root.explain(noPermission, nvml.ErrorString(ret))
	}
	return n.root.explain("", nvml.ErrorString(ret))
}
