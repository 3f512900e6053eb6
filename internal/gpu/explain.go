package gpu

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/regular"
)

// Root is the folder whose proc and dev tell more about a fault; "/" outside tests.
type Root string

// The statuses of NVML that explain tells apart.
const (
	notFound     = "library-not-found"
	mismatch     = "version-mismatch"
	noPermission = "no-permission"
	notLoaded    = "driver-not-loaded"
)

// explain turns NVML's refusal to start into an error that says what is wrong.
func (r Root) explain(status, text string) error {
	driver := r.exists("proc/driver/nvidia/version") || r.exists("sys/module/nvidia/version")
	device := r.exists("dev/nvidia0") || r.exists("dev/nvidiactl")
	e := failure.New(failure.Missing, "no usable NVIDIA GPU: NVML: %s", text)
	switch {
	case status == mismatch:
		return e.With("kernel module", "%s", r.moduleVersion()).
			WithHint("the loaded NVIDIA kernel module and the user-space library are of different versions; reboot, or install the library that matches the module")
	case status == notFound && r.container():
		return e.WithHint("this container has no NVIDIA driver library: start it with --gpus all, or with the runtime nvidia and NVIDIA_VISIBLE_DEVICES")
	case status == notFound && driver:
		return e.WithHint("the kernel module is loaded but libnvidia-ml.so.1 is not found: install the driver's user-space libraries, or add their folder to the loader path")
	case status == notFound:
		return e.WithHint("no NVIDIA driver is installed on this machine")
	case status == noPermission:
		return e.WithHint("the user may not open /dev/nvidia*: check the permissions of the device files and the container's device list")
	case !device && driver:
		return e.WithHint("the driver is loaded but /dev/nvidia0 is missing: in a container, start it with --gpus all; on a host, run nvidia-modprobe")
	case status == notLoaded && !driver:
		return e.WithHint("the NVIDIA kernel module is not loaded: modprobe nvidia, or look at dmesg for why it does not")
	}
	return e.WithHint("run nvidia-smi on this machine: it meets the same fault; dmesg has more in its lines with NVRM or Xid")
}

// cudaHints are what to do about an error of cuInit, by CUresult.
var cudaHints = map[int]string{
	2:   "the GPU has no memory left for another process: nvidia-smi lists those that hold it",
	46:  "the GPU is taken: another process has it exclusively, or its compute mode is prohibited (nvidia-smi -c 0 allows all)",
	100: "the driver hides every GPU from CUDA: look at CUDA_VISIBLE_DEVICES, at MIG mode without a MIG device (nvidia-smi mig -lgi), and at the container's device list",
	101: "CUDA_VISIBLE_DEVICES or the container's device list names a GPU that is not there",
	304: "the driver could not open its device files: look at the permissions of /dev/nvidia* and run nvidia-modprobe -u",
	802: "the GPUs are not ready: on machines with NVSwitch, start nvidia-fabricmanager of the driver's version",
	803: "libcuda.so.1 and the loaded kernel module are of different versions: reboot, or install the library that matches the module",
	804: "the libcuda.so.1 that is found is one for forward compatibility (cuda-compat), which this GPU or this driver does not take: remove its folder from the loader path, or update the driver",
	999: "often /dev/nvidia-uvm is missing, or the module nvidia_uvm is stale after a suspend: run nvidia-modprobe -u, or reload nvidia_uvm; dmesg has more in its lines with NVRM or Xid",
}

// explainCUDA turns what keeps CUDA from working into an error. capabilities is
// NVIDIA_DRIVER_CAPABILITIES of this process.
func (r Root) explainCUDA(c CUDA, capabilities string) error {
	if c.Missing != "" {
		e := failure.New(failure.Missing, "NVML shows a GPU, but CUDA cannot be used: %s", c.Missing)
		switch {
		case capabilities != "" && !strings.Contains(capabilities, "compute") && capabilities != "all":
			return e.WithHint("this container was started with NVIDIA_DRIVER_CAPABILITIES=%s: set it to compute,utility", capabilities)
		case r.container() && strings.Contains(c.Missing, "No such file"):
			return e.WithHint("the container has only a part of the driver: start it with NVIDIA_DRIVER_CAPABILITIES=compute,utility")
		}
		if !strings.Contains(c.Missing, "No such file") {
			return e.WithHint(damaged, files[libraryCUDA])
		}
		return e.WithHint("install the CUDA library of the driver (libcuda.so.1), or add its folder to the loader path")
	}
	e := failure.New(failure.Missing, "NVML shows a GPU, but CUDA cannot be used: %s: %s (%s)", c.Call, c.Name, c.Text)
	if c.Version != "" {
		e.With("driver's CUDA", "%s", c.Version)
	}
	if hint := cudaHints[c.Status]; hint != "" {
		return e.WithHint("%s", hint)
	}
	return e.WithHint("look for this error in the documentation of the CUDA driver; dmesg has more in its lines with NVRM or Xid")
}

func (r Root) container() bool { return r.exists(".dockerenv") || r.exists("run/.containerenv") }

func (r Root) exists(path string) bool {
	_, err := os.Stat(filepath.Join(string(r), path))
	return err == nil
}

func (r Root) moduleVersion() string {
	b, err := regular.ReadFile(filepath.Join(string(r), "sys/module/nvidia/version"))
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(b))
}
