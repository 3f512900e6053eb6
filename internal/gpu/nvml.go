//go:build cgo

package gpu

import (
	"fmt"
	"strconv"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/trtship/trtship/internal/failure"
)

// NVML asks the driver's management library in this process. The zero value is not
// usable. What a library lacks that was not asked for first ends the process: [Ask]
// is for a library that nobody has tried.
type NVML struct {
	lib  nvml.Interface
	root Root
	has  func(symbol string) bool // of the library, once it is loaded
}

// New returns a probe of this machine. The library is loaded at the first question.
func New() *NVML {
	lib := nvml.New()
	return &NVML{lib: lib, root: "/", has: func(symbol string) bool { return lib.Extensions().LookupSymbol(symbol) == nil }}
}

// NewWith returns a probe over another NVML, for tests.
func NewWith(lib nvml.Interface, root Root) *NVML {
	return &NVML{lib: lib, root: root, has: func(string) bool { return true }}
}

// Devices lists the GPUs and, below a GPU in MIG mode, its MIG devices. One that
// does not answer is listed with its fault. No device is an error that names the
// cause, with exit code 3.
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
	whole := Device{}
	whole.Driver, _ = n.lib.SystemGetDriverVersion()
	if cuda, ret := n.lib.SystemGetCudaDriverVersion(); ret == nvml.SUCCESS {
		whole.CUDA = fmt.Sprintf("%d.%d", cuda/1000, cuda%1000/10)
	}
	var out []Device
	for i := range count {
		d := whole
		d.Index = i
		d.UUID = strconv.Itoa(i)
		handle, ret := n.lib.DeviceGetHandleByIndex(i)
		if ret != nvml.SUCCESS {
			d.Fault = fault("its handle", ret)
			out = append(out, d)
			continue
		}
		n.device(&d, handle)
		migs := n.migs(&d, handle)
		out = append(append(out, d), migs...)
	}
	return out, nil
}

// device fills in what a GPU says of itself. Without a name or a compute
// capability it is no device to work with; memory and UUID are things that some
// boards do not tell.
func (n *NVML) device(d *Device, handle nvml.Device) {
	var ret nvml.Return
	if d.Name, ret = handle.GetName(); ret != nvml.SUCCESS {
		d.Fault = fault("its name", ret)
		return
	}
	uuid, ret := handle.GetUUID()
	switch {
	case ret == nvml.ERROR_GPU_IS_LOST:
		d.Fault = fault("its UUID", ret)
		return
	case ret == nvml.SUCCESS && uuid != "":
		d.UUID = uuid
	}
	major, minor, ret := handle.GetCudaComputeCapability()
	if ret != nvml.SUCCESS {
		d.Fault = fault("its compute capability", ret)
		return
	}
	d.ComputeCapability = fmt.Sprintf("%d.%d", major, minor)
	d.memory(handle)
}

// leastMemory is what a CUDA context with TensorRT in it takes before any engine.
const leastMemory = 512 << 20

// memory reads how much there is and how much of it is free.
func (d *Device) memory(handle nvml.Device) {
	m, ret := handle.GetMemoryInfo()
	if ret == nvml.ERROR_GPU_IS_LOST {
		d.Fault = fault("its memory", ret)
	}
	if ret != nvml.SUCCESS || m.Total == 0 { // boards that share the host's memory tell none
		return
	}
	d.MemoryBytes, d.FreeBytes = m.Total, m.Total-min(m.Used, m.Total)
	if d.FreeBytes < leastMemory {
		d.Fault = &Fault{
			Message: fmt.Sprintf("only %d of %d MiB of its memory are free", d.FreeBytes>>20, d.MemoryBytes>>20),
			Hint:    "nvidia-smi lists the processes that hold its memory: end them, or choose another GPU",
		}
	}
}

// fault is that of a GPU that does not tell something.
func fault(what string, ret nvml.Return) *Fault {
	f := &Fault{Message: fmt.Sprintf("%s cannot be read: %s", what, nvml.ErrorString(ret))}
	switch ret {
	case nvml.ERROR_GPU_IS_LOST:
		f.Hint = "the GPU has fallen off the bus: look at dmesg for its Xid, then reset it or restart the machine"
	case nvml.ERROR_NO_PERMISSION:
		f.Hint = "the user may not open its device file: check the permissions of /dev/nvidia* and the container's device list"
	case nvml.ERROR_INSUFFICIENT_POWER:
		f.Hint = "its external power cables are not attached properly"
	case nvml.ERROR_IRQ_ISSUE:
		f.Hint = "the kernel has trouble with its interrupts: look at dmesg"
	default:
		f.Hint = "nvidia-smi meets the same fault; dmesg has more in its lines with NVRM or Xid"
	}
	return f
}

// migs lists the MIG devices of a GPU; a GPU that cannot be partitioned has none. One
// in MIG mode without any is of no use to CUDA.
func (n *NVML) migs(parent *Device, handle nvml.Device) []Device {
	if parent.Fault != nil && parent.ComputeCapability == "" || !n.has("nvmlDeviceGetMigMode") || !n.has("nvmlDeviceGetMigDeviceHandleByIndex") {
		return nil
	}
	mode, _, ret := handle.GetMigMode()
	if ret != nvml.SUCCESS || mode != nvml.DEVICE_MIG_ENABLE {
		return nil
	}
	parent.Partitioned, parent.Fault = true, nil
	limit, _ := handle.GetMaxMigDeviceCount()
	var out []Device
	for i := range limit {
		mig, ret := handle.GetMigDeviceHandleByIndex(i)
		if ret != nvml.SUCCESS {
			continue // a free slot
		}
		d := *parent
		d.MIG, d.Partitioned, d.MemoryBytes, d.FreeBytes = true, false, 0, 0
		if d.UUID, ret = mig.GetUUID(); ret != nvml.SUCCESS {
			continue
		}
		if name, ret := mig.GetName(); ret == nvml.SUCCESS {
			d.Name = name
		}
		d.memory(mig)
		out = append(out, d)
	}
	if len(out) == 0 {
		parent.Fault = &Fault{
			Message: "it is in MIG mode and has no MIG device",
			Hint:    fmt.Sprintf("make one (nvidia-smi mig -i %d -lgip lists profiles, -cgi PROFILE -C makes it), or end MIG mode: nvidia-smi -i %d -mig 0", parent.Index, parent.Index),
		}
	}
	return out
}

// Read returns the state of a device now.
func (n *NVML) Read(d Device) (Reading, error) {
	if err := n.check(n.lib.Init()); err != nil {
		return Reading{}, err
	}
	defer n.lib.Shutdown()
	handle, ret := n.handle(d)
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
	if bits, ret := n.clocksEventReasons(handle); ret == nvml.SUCCESS {
		r.Throttle = throttle(bits)
	}
	if used, ret := memoryOf.GetMemoryInfo(); ret == nvml.SUCCESS {
		r.UsedBytes = used.Used
	}
	if mode, ret := handle.GetPersistenceMode(); ret == nvml.SUCCESS {
		r.Persistence = mode == nvml.FEATURE_ENABLED
	}
	return r, nil
}

// handle finds a device again.
func (n *NVML) handle(d Device) (nvml.Device, nvml.Return) {
	if i, err := strconv.Atoi(d.UUID); err == nil {
		return n.lib.DeviceGetHandleByIndex(i)
	}
	return n.lib.DeviceGetHandleByUUID(d.UUID)
}

// clocksEventReasons asks by the name of the library: drivers before 535 have an
// older one, and a call to what a library does not have ends the process.
func (n *NVML) clocksEventReasons(handle nvml.Device) (uint64, nvml.Return) {
	switch {
	case n.has("nvmlDeviceGetCurrentClocksEventReasons"):
		return handle.GetCurrentClocksEventReasons()
	case n.has("nvmlDeviceGetCurrentClocksThrottleReasons"):
		return handle.GetCurrentClocksThrottleReasons()
	}
	return 0, nvml.ERROR_FUNCTION_NOT_FOUND
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
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return n.root.explain(notLoaded, nvml.ErrorString(ret))
	}
	return n.root.explain("", nvml.ErrorString(ret))
}
