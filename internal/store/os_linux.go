package store

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// startWriteback asks the kernel to begin writing a range of a file; length 0
// means to its end. It is a hint: the later sync is what counts.
func startWriteback(f File, offset, length int64) {
	if fd := f.Fd(); fd != ^uintptr(0) {
		_ = unix.SyncFileRange(int(fd), offset, length, unix.SYNC_FILE_RANGE_WRITE)
	}
}

// ctimeNano is when a file's data or description last changed; unlike mtime, no
// call can set it.
func ctimeNano(st *syscall.Stat_t) int64 { return st.Ctim.Nano() }

// needsCleaning is what ext4 and xfs answer when they find themselves damaged.
const needsCleaning = syscall.EUCLEAN
