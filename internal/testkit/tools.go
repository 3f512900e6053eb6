package testkit

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"sort"
	"testing"
)

// setup is what a test says when a real tool is not there: it fails, for a
// skipped test is one that nobody notices.
const setup = "run `make setup`"

// Python returns the interpreter with torch, onnx and ONNX Runtime: that of
// TRTSHIP_PYTHON, else of the locked environment. The test fails if there is none.
func Python(t testing.TB) string {
	t.Helper()
	if p := os.Getenv("TRTSHIP_PYTHON"); p != "" {
		return mustExist(t, p, "TRTSHIP_PYTHON")
	}
	return LockedPython(t, "base")
}

// LockedPython returns the interpreter of a locked environment ("base",
// "triton", "bench").
func LockedPython(t testing.TB, group string) string {
	t.Helper()
	lock, err := os.ReadFile(filepath.Join(Root(t), "internal", "worker", "env", group+".lock"))
	if err != nil {
		t.Fatalf("%v: %s", err, setup)
	}
	sum := sha256.Sum256(lock)
	marker := filepath.Join(cacheHome(t), "env-"+group+"-"+hex.EncodeToString(sum[:])[:12], "trtship-env.json")
	text, err := os.ReadFile(marker)
	if err != nil {
		t.Fatalf("the %s Python environment is not installed: %v: %s", group, err, setup)
	}
	var env struct{ Python string }
	if err := json.Unmarshal(text, &env); err != nil || env.Python == "" {
		t.Fatalf("%s cannot be read: %v: %s", marker, err, setup)
	}
	return mustExist(t, env.Python, marker)
}

func cacheHome(t testing.TB) string {
	t.Helper()
	if dir := os.Getenv("XDG_CACHE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "trtship")
	}
	if home := os.Getenv("HOME"); filepath.IsAbs(home) {
		return filepath.Join(home, ".cache", "trtship")
	}
	t.Fatal("neither XDG_CACHE_HOME nor HOME is an absolute path")
	return ""
}

func mustExist(t testing.TB, path, named string) string {
	t.Helper()
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%s names %v: %s", named, err, setup)
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return abs
}

// ORTLibrary returns libonnxruntime: the file of TRTSHIP_ORT_LIB, else that in
// the onnxruntime package of Python. The test fails if there is none.
func ORTLibrary(t testing.TB) string {
	t.Helper()
	if p := os.Getenv("TRTSHIP_ORT_LIB"); p != "" {
		return mustExist(t, p, "TRTSHIP_ORT_LIB")
	}
	return inPackages(t, Python(t), "onnxruntime/capi/libonnxruntime.so*")
}

// Tritonserver returns the tritonserver executable: that of
// TRTSHIP_TRITONSERVER, else that inside the nvidia-pytriton package of the
// locked triton environment or of Python. The test fails if there is none.
func Tritonserver(t testing.TB) string {
	t.Helper()
	if p := os.Getenv("TRTSHIP_TRITONSERVER"); p != "" {
		return mustExist(t, p, "TRTSHIP_TRITONSERVER")
	}
	const inside = "pytriton/tritonserver/bin/tritonserver"
	if p := os.Getenv("TRTSHIP_PYTHON"); p != "" {
		if found := globPackages(p, inside); len(found) > 0 {
			return found[0]
		}
	}
	return inPackages(t, LockedPython(t, "triton"), inside)
}

func inPackages(t testing.TB, python, pattern string) string {
	t.Helper()
	found := globPackages(python, pattern)
	if len(found) == 0 {
		t.Fatalf("the packages of %s have no %s: %s", python, pattern, setup)
	}
	return found[len(found)-1]
}

func globPackages(python, pattern string) []string {
	found, err := filepath.Glob(filepath.Join(filepath.Dir(filepath.Dir(python)), "lib", "python3*", "site-packages", filepath.FromSlash(pattern)))
	if err != nil {
		return nil
	}
	sort.Strings(found)
	return found
}
