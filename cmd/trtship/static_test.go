package main

import (
	"bytes"
	"debug/elf"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/trtship/trtship/internal/proc"
	"github.com/trtship/trtship/internal/testkit"
)

// TestAStaticBuildWorksFromScratch builds without cgo and runs what needs no
// runtime in a root that holds the binary and a run, and nothing else but the
// /dev/null that every container has: no loader, no library, no /tmp, no /etc.
func TestAStaticBuildWorksFromScratch(t *testing.T) {
	root := t.TempDir()
	static := filepath.Join(root, "trtship")
	golang, err := proc.Look("go", os.Getenv("PATH"))
	if err != nil {
		t.Fatal(err)
	}
	if err := proc.Run(t.Context(), proc.Command{Path: golang, Args: []string{"build", "-o", static, "./cmd/trtship"}, Dir: testkit.Root(t), Env: append(os.Environ(), "CGO_ENABLED=0"), Stderr: os.Stderr}); err != nil {
		t.Fatal(err)
	}
	demandStatic(t, static)
	runExample(t, root)
	if err := os.Mkdir(filepath.Join(root, "dev"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "dev", "null"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		args []string
		says string
		code int
	}{
		{"gate", []string{"gate", "-o", "judged"}, "every check held", 0},
		{"gate with a baseline and JUnit, where a skipped stage counts", []string{"gate", "--baseline", "report.json", "--junit", "judged/junit.xml"}, "skipped or not run", 13},
		{"report", []string{"report", "--format", "html"}, "<!DOCTYPE html>", 0},
		{"recheck", []string{"recheck", "--tol", "atol=1,rtol=1"}, "every check held", 0},
		{"comment", []string{"comment", "--from", "judged-report.json", "--print"}, "<!-- trtship-report:classifier -->", 0},
		{"lint", []string{"lint", "model_repository"}, "", 0},
		{"package", []string{"package", "onnx/trtship.yaml", "onnx/model.onnx", "-o", "new_repository"}, "", 0},
		{"a stage that needs ONNX Runtime says so", []string{"validate", "onnx", "onnx/trtship.yaml", "onnx/model.onnx"}, "", 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, code := fromScratch(t, root, c.args...)
			if code != c.code || !strings.Contains(out, c.says) {
				t.Errorf("exit %d, want %d with %q:\n%s", code, c.code, c.says, out)
			}
		})
	}
}

// demandStatic fails for a binary that asks for a loader or a library.
func demandStatic(t *testing.T, path string) {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			t.Error("the static build asks for a loader")
		}
	}
	if libs, _ := f.ImportedLibraries(); len(libs) > 0 {
		t.Errorf("the static build asks for %v", libs)
	}
}

// runExample runs an example with the usual build and leaves what it made in root.
func runExample(t *testing.T, root string) {
	t.Helper()
	if err := os.CopyFS(filepath.Join(root, "onnx"), os.DirFS(filepath.Join(testkit.Root(t), "examples", "onnx"))); err != nil {
		t.Fatal(err)
	}
	if err := proc.Run(t.Context(), proc.Command{Path: built(t), Args: []string{"run", "onnx/trtship.yaml", "--until", "package"}, Dir: root, Env: append(os.Environ(), "CI=")}); err != nil {
		t.Fatal(err)
	}
	runs, err := filepath.Glob(filepath.Join(root, ".trtship", "runs", "*"))
	if err != nil || len(runs) != 1 {
		t.Fatalf("runs %v, %v", runs, err)
	}
	b, err := os.ReadFile(filepath.Join(runs[0], "report.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"report.json", "judged-report.json"} {
		if err := os.WriteFile(filepath.Join(root, name), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	repository, err := filepath.EvalSymlinks(filepath.Join(runs[0], "artifacts", "model_repository"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(filepath.Join(root, "model_repository"), os.DirFS(repository)); err != nil {
		t.Fatal(err)
	}
}

// fromScratch runs the static binary with root as the root of its file system.
func fromScratch(t *testing.T, root string, args ...string) (output string, code int) {
	t.Helper()
	tool, line := "chroot", append([]string{root, "/trtship"}, args...)
	if os.Geteuid() != 0 {
		tool, line = "unshare", append([]string{"-r", "chroot"}, line...)
	}
	path, err := proc.Look(tool, os.Getenv("PATH")+":/usr/sbin:/sbin")
	if err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	err = proc.Run(t.Context(), proc.Command{Path: path, Args: line, Env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, Stdout: &out, Stderr: &errs})
	if e, ok := errors.AsType[*proc.Error](err); ok {
		code = e.Exit
	} else if err != nil {
		t.Fatal(err)
	}
	return out.String() + errs.String(), code
}
