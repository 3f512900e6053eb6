//go:build cgo

package ort

import (
	"runtime"

	"github.com/ebitengine/purego"
)

// dlopen opens a shared library. The reason of a failure is the thread's own, so
// the goroutine must not move to another one before it has been read.
func dlopen(path string) (uintptr, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
}

// dlsym finds a symbol of a library.
func dlsym(lib uintptr, name string) (uintptr, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return purego.Dlsym(lib, name)
}

// syscallN calls a C function.
func syscallN(fn uintptr, args ...uintptr) (r1, r2, err uintptr) { return purego.SyscallN(fn, args...) }
