package store

import "golang.org/x/sys/unix"

// startWriteback asks the kernel to begin writing a range of a file; length 0
// means to its end. It is a hint: the later sync is what counts.
func startWriteback(f File, offset, length int64) {
	if fd := f.Fd(); fd != ^uintptr(0) {
		_ = unix.SyncFileRange(int(fd), offset, length, unix.SYNC_FILE_RANGE_WRITE)
	}
}
