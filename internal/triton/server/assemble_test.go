package server

import (
	"os"
	"path/filepath"
	"testing"
)

// A folder of a start before holds links to the installation's files.
func TestASecondStartInAFolderLeavesTheInstallationWhole(t *testing.T) {
	dir := t.TempDir()
	src, dst := filepath.Join(dir, "libtriton_python.so"), filepath.Join(dir, "scratch.so")
	if err := os.WriteFile(src, []byte("the library"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := place(src, dst); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{src, dst} {
			if b, err := os.ReadFile(path); err != nil || string(b) != "the library" {
				t.Fatalf("%s holds %q, %v", filepath.Base(path), b, err)
			}
		}
	}
}
