package proc

import (
	"errors"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// attributes puts a child into its own group, and into our fate unless it is to
// outlive us.
func attributes(outlives bool) *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Setpgid: true}
	if !outlives {
		a.Pdeathsig = syscall.SIGKILL
	}
	return a
}

// limit bounds a child that was just started: no core dump, which could hold
// weights and data, and no more address space than it may have.
func limit(pid int, memory uint64) error {
	err := unix.Prlimit(pid, unix.RLIMIT_CORE, &unix.Rlimit{}, nil)
	if memory > 0 && err == nil {
		err = unix.Prlimit(pid, unix.RLIMIT_AS, &unix.Rlimit{Cur: memory, Max: memory}, nil)
	}
	if errors.Is(err, unix.ESRCH) {
		return nil // it has ended already
	}
	return err
}

// awaitExit returns when the child has ended, and leaves it to be reaped.
func awaitExit(pid int) {
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// sealDescriptors keeps what we were given ourselves, such as a lock of the
// shell that started us, from our children. All that Go opens is closed in a
// child anyway.
func sealDescriptors() {
	const all = ^uint(0) >> 1
	if unix.CloseRange(3, all, unix.CLOSE_RANGE_CLOEXEC) == nil {
		return
	}
	entries, err := os.ReadDir("/proc/self/fd") // Linux before 5.11
	if err != nil {
		return
	}
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
}
