// Package testkit is what tests of several packages share: golden files, the
// wall between packages, where the real tools are, fake stages, failing file
// systems, and the count of faults that were tried.
//
// It imports no package whose own tests need it, so that those can use it.
package testkit

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// update is the only flag of its name in the module: a test binary that linked
// two would panic.
var update = flag.Bool("update", false, "write golden files instead of comparing with them")

// Update reports whether golden files are being written.
func Update() bool { return *update }

// Golden compares got with the file at path, or writes it with -update.
func Golden(t testing.TB, path string, got []byte) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v (run the test with -update to write it)", err)
	}
	if !bytes.Equal(want, got) {
		t.Errorf("%s differs (-want +got); run the test with -update if the change is meant:\n%s", path, cmp.Diff(string(want), string(got)))
	}
}

// Root returns the module's folder.
func Root(t testing.TB) string {
	t.Helper()
	_, file, _, ok := runtime.Caller(0)
	if !ok {
		t.Fatal("no caller")
	}
	for dir := filepath.Dir(file); dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
	}
	t.Fatal("no go.mod above " + file)
	return ""
}
