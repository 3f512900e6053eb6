package proc

import (
	"syscall"
	"unsafe"
)

// DieBySignal gives the signals of native crashes back to the kernel, for a child
// that calls into libraries of others: the Go runtime would turn them into a trace
// and exit status 2. No core is written.
func DieBySignal() {
	_ = syscall.Setrlimit(syscall.RLIMIT_CORE, &syscall.Rlimit{})
	const prSetDumpable = 4 // a core pattern with a pipe ignores the limit
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, prSetDumpable, 0, 0)
	var byDefault [4]uint64 // struct sigaction: SIG_DFL, no flags
	for _, s := range []syscall.Signal{syscall.SIGSEGV, syscall.SIGBUS, syscall.SIGFPE, syscall.SIGILL, syscall.SIGABRT} {
		_, _, _ = syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(s),
			uintptr(unsafe.Pointer(&byDefault)), 0, 8, 0, 0)
	}
}
