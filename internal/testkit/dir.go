package testkit

import (
	"os"
	"testing"
)

// FastDir is a temporary folder in memory where the system has one, for tests
// that write and sync thousands of small files; else it is t.TempDir.
func FastDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "trtship-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}
