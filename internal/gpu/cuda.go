//go:build cgo

package gpu

import (
	"fmt"
	"runtime"
	"unsafe"

	"github.com/ebitengine/purego"
)

// out is where the driver writes its answers: static, since Go may move what lies on a
// stack between taking its address and the call.
var out struct {
	version, count int32
	text           *byte
}

// askCUDA loads the CUDA driver's library into this process and asks it for its
// version and its devices.
func askCUDA() CUDA {
	runtime.LockOSThread() // the reason of a failure is the thread's own
	defer runtime.UnlockOSThread()
	lib, err := purego.Dlopen("libcuda.so.1", purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return CUDA{Missing: err.Error()}
	}
	functions := map[string]uintptr{}
	for _, name := range []string{"cuInit", "cuDriverGetVersion", "cuDeviceGetCount", "cuGetErrorName", "cuGetErrorString"} {
		if functions[name], err = purego.Dlsym(lib, name); err != nil {
			return CUDA{Missing: "libcuda.so.1 lacks " + name}
		}
	}
	var c CUDA
	call := func(name string, args ...uintptr) bool {
		status, _, _ := purego.SyscallN(functions[name], args...)
		if c.Status = int(int32(status)); c.Status == 0 {
			return true
		}
		text := func(name string) string {
			out.text = nil
			if status, _, _ := purego.SyscallN(functions[name], uintptr(c.Status), uintptr(unsafe.Pointer(&out.text))); int32(status) != 0 || out.text == nil {
				return "?"
			}
			return cString(out.text)
		}
		c.Call, c.Name, c.Text = name, fmt.Sprintf("%s %d", text("cuGetErrorName"), c.Status), text("cuGetErrorString")
		return false
	}
	// The version is known without a device, and says more where there is none.
	if call("cuDriverGetVersion", uintptr(unsafe.Pointer(&out.version))) {
		c.Version = fmt.Sprintf("%d.%d", out.version/1000, out.version%1000/10)
	}
	if call("cuInit", 0) && call("cuDeviceGetCount", uintptr(unsafe.Pointer(&out.count))) {
		c.Count = int(out.count)
	}
	return c
}

// loadError is why the loader does not take a library; "" if it does.
func loadError(library string) string {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if _, err := purego.Dlopen(library, purego.RTLD_LAZY|purego.RTLD_LOCAL); err != nil {
		return err.Error()
	}
	return ""
}

func cString(p *byte) string {
	const longest = 512
	var b []byte
	for i := range longest {
		ch := *(*byte)(unsafe.Add(unsafe.Pointer(p), i))
		if ch == 0 {
			break
		}
		b = append(b, ch)
	}
	return string(b)
}
