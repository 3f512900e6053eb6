//go:build cgo

package gpu

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxh200"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/report"
)

// The mock of go-nvml stands in for a driver: there is no GPU where this runs.
func TestDevicesOfAnEightGPUMachine(t *testing.T) {
	devices, err := NewWith(dgxh200.New(), "/").Devices()
	if err != nil {
		t.Fatal(err)
	}
	if len(devices) != 8 {
		t.Fatalf("got %d devices, want 8", len(devices))
	}
	if d := devices[3]; d.Index != 3 || d.ComputeCapability != "9.0" || !strings.Contains(d.Name, "H200") || d.Driver == "" || d.CUDA == "" || d.MemoryBytes == 0 {
		t.Errorf("device 3 is %+v", d)
	}
}

func TestARefusalNamesItsCause(t *testing.T) {
	tests := map[string]struct {
		ret   nvml.Return
		files []string
		hint  string
	}{
		"no driver at all":                     {nvml.ERROR_LIBRARY_NOT_FOUND, nil, "no NVIDIA driver is installed"},
		"a container without the runtime":      {nvml.ERROR_LIBRARY_NOT_FOUND, []string{".dockerenv"}, "--gpus all"},
		"a driver without its libraries":       {nvml.ERROR_LIBRARY_NOT_FOUND, []string{"proc/driver/nvidia/version"}, "libnvidia-ml.so.1"},
		"module and library differ":            {nvml.ERROR_LIB_RM_VERSION_MISMATCH, []string{"sys/module/nvidia/version"}, "different versions"},
		"no permission":                        {nvml.ERROR_NO_PERMISSION, []string{"dev/nvidia0"}, "permissions"},
		"driver loaded, device files missing":  {nvml.ERROR_UNKNOWN, []string{"sys/module/nvidia/version"}, "/dev/nvidia0 is missing"},
		"a fault that says nothing of modules": {nvml.ERROR_UNKNOWN, nil, "nvidia-smi"},
		"library there, kernel module missing": {nvml.ERROR_DRIVER_NOT_LOADED, nil, "kernel module is not loaded"},
		"everything there and still refused":   {nvml.ERROR_UNKNOWN, []string{"sys/module/nvidia/version", "dev/nvidia0"}, "nvidia-smi"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for _, f := range tt.files {
				path := filepath.Join(root, f)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte("580.1\n"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			lib := &mock.Interface{InitFunc: func() nvml.Return { return tt.ret }}
			_, err := NewWith(lib, Root(root)).Devices()
			var e *failure.Error
			if !errors.As(err, &e) {
				t.Fatalf("got %v, want a failure", err)
			}
			if e.Code != failure.Missing || !strings.Contains(e.Hint, tt.hint) {
				t.Errorf("got code %d, hint %q; want 3 and %q", e.Code, e.Hint, tt.hint)
			}
		})
	}
}

func TestChoose(t *testing.T) {
	devices := []Device{
		{GPU: report.GPU{Index: 0, Name: "A"}, UUID: "GPU-aa"},
		{GPU: report.GPU{Index: 1, Name: "B"}, UUID: "GPU-ab"},
		{GPU: report.GPU{Index: 1, Name: "B MIG", MIG: true}, UUID: "MIG-cc"},
	}
	for which, want := range map[string]string{"0": "A", "1": "B", "GPU-ab": "B", "MIG-c": "B MIG"} {
		d, err := Choose(devices, which)
		if err != nil || d.Name != want {
			t.Errorf("Choose(%q) = %v, %v; want %s", which, d.Name, err, want)
		}
	}
	for _, which := range []string{"7", "GPU-a", "GPU-zz"} {
		if d, err := Choose(devices, which); failure.CodeOf(err) != failure.Missing {
			t.Errorf("Choose(%q) = %v, %v; want exit code 3", which, d, err)
		}
	}
}

func TestVisibleDevicesAreNumberedAsCUDANumbersThem(t *testing.T) {
	all, err := NewWith(dgxh200.New(), "/").Devices()
	if err != nil {
		t.Fatal(err)
	}
	for setting, want := range map[string][]int{
		"3": {3}, "5,2": {5, 2}, "1,99,2": {1}, all[6].UUID: {6}, " 4 , 0 ": {4, 0}, "0,0": nil, "1,2,1": nil, "": nil, "-1": nil, "none": nil,
	} {
		got, err := Visible(all, setting)
		if (err != nil) != (want == nil) || len(got) != len(want) {
			t.Errorf("%q: %d devices, %v; want %v", setting, len(got), err, want)
			continue
		}
		for i, d := range got {
			if d.UUID != all[want[i]].UUID || d.Index != i {
				t.Errorf("%q: device %d is %d with UUID %s, want %s", setting, i, d.Index, d.UUID, all[want[i]].UUID)
			}
		}
		if want == nil && failure.CodeOf(err) != failure.Missing {
			t.Errorf("%q: %v, want exit code 3", setting, err)
		}
	}
}

// The GPU in MIG mode is made of the library's mock objects.
func TestAMIGDeviceIsChosenAndReadThroughItsGPU(t *testing.T) {
	whole := &mock.Device{
		GetNameFunc:                  func() (string, nvml.Return) { return "NVIDIA H200", nvml.SUCCESS },
		GetUUIDFunc:                  func() (string, nvml.Return) { return "GPU-1", nvml.SUCCESS },
		GetCudaComputeCapabilityFunc: func() (int, int, nvml.Return) { return 9, 0, nvml.SUCCESS },
		GetMemoryInfoFunc:            func() (nvml.Memory, nvml.Return) { return nvml.Memory{Total: 100 << 30, Used: 50 << 30}, nvml.SUCCESS },
		GetMigModeFunc:               func() (int, int, nvml.Return) { return nvml.DEVICE_MIG_ENABLE, 0, nvml.SUCCESS },
		GetMaxMigDeviceCountFunc:     func() (int, nvml.Return) { return 2, nvml.SUCCESS },
		GetClockInfoFunc:             func(nvml.ClockType) (uint32, nvml.Return) { return 1980, nvml.SUCCESS },
		GetPowerUsageFunc:            func() (uint32, nvml.Return) { return 300_000, nvml.SUCCESS },
		GetTemperatureFunc:           func(nvml.TemperatureSensors) (uint32, nvml.Return) { return 40, nvml.SUCCESS },
		GetCurrentClocksEventReasonsFunc: func() (uint64, nvml.Return) {
			return 0, nvml.SUCCESS
		},
		GetPersistenceModeFunc: func() (nvml.EnableState, nvml.Return) { return nvml.FEATURE_ENABLED, nvml.SUCCESS },
	}
	part := &mock.Device{
		GetUUIDFunc:       func() (string, nvml.Return) { return "MIG-7", nvml.SUCCESS },
		GetNameFunc:       func() (string, nvml.Return) { return "NVIDIA H200 MIG 1g.18gb", nvml.SUCCESS },
		GetMemoryInfoFunc: func() (nvml.Memory, nvml.Return) { return nvml.Memory{Total: 18 << 30, Used: 3 << 30}, nvml.SUCCESS },
		GetClockInfoFunc:  func(nvml.ClockType) (uint32, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED },
		GetDeviceHandleFromMigDeviceHandleFunc: func() (nvml.Device, nvml.Return) {
			return whole, nvml.SUCCESS
		},
	}
	whole.GetMigDeviceHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
		if i == 1 {
			return part, nvml.SUCCESS
		}
		return nil, nvml.ERROR_NOT_FOUND
	}
	lib := &mock.Interface{
		InitFunc: func() nvml.Return { return nvml.SUCCESS }, ShutdownFunc: func() nvml.Return { return nvml.SUCCESS },
		DeviceGetCountFunc:             func() (int, nvml.Return) { return 1, nvml.SUCCESS },
		DeviceGetHandleByIndexFunc:     func(int) (nvml.Device, nvml.Return) { return whole, nvml.SUCCESS },
		DeviceGetHandleByUUIDFunc:      func(string) (nvml.Device, nvml.Return) { return part, nvml.SUCCESS },
		SystemGetDriverVersionFunc:     func() (string, nvml.Return) { return "580.1", nvml.SUCCESS },
		SystemGetCudaDriverVersionFunc: func() (int, nvml.Return) { return 13000, nvml.SUCCESS },
	}
	n := NewWith(lib, "/")
	devices, err := n.Devices()
	if err != nil || len(devices) != 2 {
		t.Fatalf("%d devices, %v; want the GPU and its MIG device", len(devices), err)
	}
	for _, which := range []string{"0", "GPU-1"} { // CUDA shows the first MIG device in its place
		if d, err := Choose(devices, which); err != nil || d.UUID != "MIG-7" {
			t.Errorf("%s is %+v, %v; want the MIG device", which, d, err)
		}
	}
	if text := devices[1].String(); !strings.Contains(text, "0 MIG: ") || !strings.Contains(text, "MIG-7") {
		t.Errorf("the MIG device is shown as %q; want its mark and the UUID that names it", text)
	}
	visible, err := Visible(devices, "MIG-7")
	if err != nil {
		t.Fatal(err)
	}
	d, err := Choose(visible, "0")
	if err != nil || d.UUID != "MIG-7" {
		t.Fatalf("index 0 of the visible ones is %+v, %v; want the MIG device", d, err)
	}
	r, err := n.Read(d)
	if err != nil || r.SMMHz != 1980 || r.UsedBytes != 3<<30 {
		t.Errorf("got %+v, %v; want the clocks of the GPU and the memory of the MIG device", r, err)
	}
}

// A GPU of two, whose one does not answer, leaves the other.
func TestAGPUThatDoesNotAnswerIsListedWithItsFault(t *testing.T) {
	ok := func() (string, nvml.Return) { return "NVIDIA A100", nvml.SUCCESS }
	board := func(change func(*mock.Device)) *mock.Device {
		d := &mock.Device{
			GetNameFunc: ok, GetUUIDFunc: func() (string, nvml.Return) { return "GPU-b", nvml.SUCCESS },
			GetCudaComputeCapabilityFunc: func() (int, int, nvml.Return) { return 8, 0, nvml.SUCCESS },
			GetMemoryInfoFunc:            func() (nvml.Memory, nvml.Return) { return nvml.Memory{Total: 40 << 30, Used: 1 << 30}, nvml.SUCCESS },
			GetMigModeFunc:               func() (int, int, nvml.Return) { return 0, 0, nvml.ERROR_NOT_SUPPORTED },
			GetMaxMigDeviceCountFunc:     func() (int, nvml.Return) { return 0, nvml.SUCCESS },
		}
		change(d)
		return d
	}
	tests := map[string]struct {
		change      func(*mock.Device)
		fault, hint string
	}{
		"memory that is not told": {func(d *mock.Device) {
			d.GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) { return nvml.Memory{}, nvml.ERROR_NOT_SUPPORTED }
		}, "", ""},
		"no UUID": {func(d *mock.Device) {
			d.GetUUIDFunc = func() (string, nvml.Return) { return "", nvml.ERROR_NOT_SUPPORTED }
		}, "", ""},
		"lost": {func(d *mock.Device) {
			d.GetNameFunc = func() (string, nvml.Return) { return "", nvml.ERROR_GPU_IS_LOST }
		}, "name cannot be read", "fallen off the bus"},
		"lost in between": {func(d *mock.Device) {
			d.GetUUIDFunc = func() (string, nvml.Return) { return "", nvml.ERROR_GPU_IS_LOST }
		}, "UUID cannot be read", "fallen off the bus"},
		"full": {func(d *mock.Device) {
			d.GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) {
				return nvml.Memory{Total: 40 << 30, Used: 40<<30 - 1<<20}, nvml.SUCCESS
			}
		}, "only 1 of 40960 MiB", "nvidia-smi lists the processes"},
		"MIG mode without a MIG device": {func(d *mock.Device) {
			d.GetMigModeFunc = func() (int, int, nvml.Return) { return nvml.DEVICE_MIG_ENABLE, 0, nvml.SUCCESS }
		}, "has no MIG device", "nvidia-smi mig"},
		"an error without a name": {func(d *mock.Device) {
			d.GetNameFunc = func() (string, nvml.Return) { return "", nvml.ERROR_UNKNOWN }
		}, "name cannot be read", "dmesg"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			first, second := board(tt.change), board(func(*mock.Device) {})
			lib := &mock.Interface{
				InitFunc: func() nvml.Return { return nvml.SUCCESS }, ShutdownFunc: func() nvml.Return { return nvml.SUCCESS },
				DeviceGetCountFunc: func() (int, nvml.Return) { return 2, nvml.SUCCESS },
				DeviceGetHandleByIndexFunc: func(i int) (nvml.Device, nvml.Return) {
					return []nvml.Device{first, second}[i], nvml.SUCCESS
				},
				SystemGetDriverVersionFunc:     func() (string, nvml.Return) { return "580.1", nvml.SUCCESS },
				SystemGetCudaDriverVersionFunc: func() (int, nvml.Return) { return 13000, nvml.SUCCESS },
			}
			devices, err := NewWith(lib, "/").Devices()
			if err != nil || len(devices) != 2 || devices[1].Fault != nil {
				t.Fatalf("%v, %v; want both, the second without a fault", devices, err)
			}
			d, err := Choose(devices, "0")
			if tt.fault == "" {
				if err != nil || d.UUID == "" {
					t.Errorf("%+v, %v; want a device that can be named", d, err)
				}
				return
			}
			var e *failure.Error
			if !errors.As(err, &e) || e.Code != failure.Missing || !strings.Contains(e.Message, tt.fault) || !strings.Contains(e.Hint, tt.hint) {
				t.Errorf("%v, want %q with the hint %q", err, tt.fault, tt.hint)
			}
			working := Survey{Devices: devices, CUDA: CUDA{Count: 1}}
			if usable, err := working.Usable(nil); err != nil || len(usable) != 2 {
				t.Errorf("%v, %v: one of two is enough", usable, err)
			}
			stopped := Survey{Devices: devices, CUDA: CUDA{Call: "cuInit", Status: 999, Name: "CUDA_ERROR_UNKNOWN 999"}}
			if _, err := stopped.Usable(nil); !errors.As(err, &e) || !strings.Contains(e.Hint, "only the GPUs without a fault") {
				t.Errorf("CUDA does not start: %v, want the hint to hide the one with the fault", err)
			}
			only := "0"
			if _, err := working.Usable(&only); !errors.As(err, &e) || !strings.Contains(e.Message, tt.fault) || !strings.Contains(e.Hint, tt.hint) {
				t.Errorf("alone: %v, want %q with the hint %q", err, tt.fault, tt.hint)
			}
		})
	}
}

func TestThrottleNamesOnlyWhatSlowsDown(t *testing.T) {
	if got := throttle(0x1); len(got) != 0 {
		t.Errorf("an idle GPU is throttled by %v", got)
	}
	if got := strings.Join(throttle(0x4|0x40), " "); got != "sw-power-cap hw-thermal-slowdown" {
		t.Errorf("got %q", got)
	}
}
