package worker_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/proc"
	"github.com/trtship/trtship/internal/testkit"
	"github.com/trtship/trtship/internal/worker"
	"github.com/trtship/trtship/report"
)

func vector() worker.Input { return input("x", "float32", 2, 4) }

func inspectErr(t *testing.T, w *worker.Worker, factory string) *worker.Crash {
	t.Helper()
	_, err := w.Inspect(worker.InspectRequest{Model: model(factory, vector()), Sizes: []worker.Sizes{{}}})
	crash, ok := errors.AsType[*worker.Crash](err)
	if !ok {
		t.Fatalf("error %v (%T), want a *Crash", err, err)
	}
	return crash
}

func TestDeathBySignalIsABrokenCheckThatNamesModelCallAndLastWords(t *testing.T) {
	w, _ := start(t, nil)
	crash := inspectErr(t, w, "dies")
	if p, ok := errors.AsType[*proc.Error](crash); !ok || p.Signal != syscall.SIGSEGV {
		t.Errorf("cause %v, want SIGSEGV", crash.Err)
	}
	check, ok := worker.BrokenCheck("inspect/loads", crash)
	if !ok || check.Verdict != report.Broken {
		t.Fatalf("check %+v, want broken", check)
	}
	for _, text := range []string{"zoo", "torch.inspect", "SIGSEGV", "about to die"} {
		if !strings.Contains(check.Detail, text) {
			t.Errorf("detail lacks %q: %s", text, check.Detail)
		}
	}
	if again := inspectErr(t, w, "plain"); again != crash {
		t.Errorf("a dead child answers %v", again)
	}
}

func TestAChildThatLeavesWithoutAWordIsACrash(t *testing.T) {
	w, _ := start(t, nil)
	if got := inspectErr(t, w, "leaves").Reason(); !strings.Contains(got, "ended without an answer") {
		t.Errorf("reason %q", got)
	}
}

func TestAHangEndsAtTheDeadline(t *testing.T) {
	w, _ := start(t, func(o *worker.Options) { o.Timeout = 6 * time.Second })
	crash := inspectErr(t, w, "hangs")
	if !errors.Is(crash, context.DeadlineExceeded) {
		t.Errorf("cause %v, want the deadline", crash.Err)
	}
	if got := crash.Reason(); !strings.Contains(got, "after 6s") {
		t.Errorf("reason %q names no limit", got)
	}
}

func TestCancellingEndsTheChild(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	w, err := worker.Start(ctx, worker.Options{Python: python(t), Path: []string{zoo(t)}})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	time.AfterFunc(3*time.Second, cancel)
	if crash := inspectErr(t, w, "hangs"); !errors.Is(crash, context.Canceled) {
		t.Errorf("cause %v, want cancelled", crash.Err)
	}
}

func TestTheMemoryLimitEndsAnAllocationAndSaysSo(t *testing.T) {
	w, _ := start(t, func(o *worker.Options) { o.MemoryMB = 1024 })
	crash := inspectErr(t, w, "eats")
	for _, text := range []string{"out of memory", "limit 1024 MiB"} {
		if !strings.Contains(crash.Reason(), text) {
			t.Errorf("reason %q lacks %q", crash.Reason(), text)
		}
	}
	// The same limit leaves room for a model that needs little.
	w, _ = start(t, func(o *worker.Options) { o.MemoryMB = 1024 })
	if _, err := w.Inspect(worker.InspectRequest{Model: model("plain", image()), Sizes: threeFive}); err != nil {
		t.Errorf("a small model under the limit: %v", err)
	}
}

func TestTheChildSeesAnExplicitEnvironmentAndNoWorkingDirectory(t *testing.T) {
	t.Setenv("PYTHONPATH", "/nowhere")
	t.Setenv("TRTSHIP_SECRET", "x")
	second := t.TempDir()
	w, _ := start(t, func(o *worker.Options) {
		o.Path = []string{zoo(t), second}
		o.Env = []string{"EXTRA=1"}
		o.Threads = 2
	})
	var got struct {
		Path        []string          `json:"path"`
		Environment map[string]string `json:"environment"`
		Directory   string            `json:"directory"`
	}
	if err := w.Call("worker.probe", struct{}{}, &got); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{zoo(t), second}, got.Path[:2]); d != "" {
		t.Errorf("head of sys.path (-want +got):\n%s", d)
	}
	for _, p := range got.Path {
		if p == "" || p == "." || p == got.Directory || p == "/nowhere" {
			t.Errorf("sys.path has %q", p)
		}
	}
	var names []string
	for n := range got.Environment {
		names = append(names, n)
	}
	slices.Sort(names)
	want := []string{
		"CUBLAS_WORKSPACE_CONFIG", "CUDA_VISIBLE_DEVICES", "EXTRA", "HOME", "LANG", "LC_ALL", "MKL_NUM_THREADS",
		"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "PATH", "TMPDIR", "TZ",
	}
	if d := cmp.Diff(want, names); d != "" {
		t.Errorf("environment (-want +got):\n%s", d)
	}
	if got.Environment["OMP_NUM_THREADS"] != "2" || got.Environment["CUDA_VISIBLE_DEVICES"] != "" {
		t.Errorf("environment %v", got.Environment)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(got.Directory); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("folder of a closed child is still there: %v", err)
	}
}

func TestAMethodThatIsNotThereIsABug(t *testing.T) {
	w, _ := start(t, nil)
	for _, method := range []string{"no.such", "worker.nothing"} {
		if got := failure.CodeOf(w.Call(method, struct{}{}, &struct{}{})); got != failure.Bug {
			t.Errorf("%s: code %d, want %d", method, got, failure.Bug)
		}
	}
	if err := w.Call("worker.probe", struct{}{}, &struct{}{}); err != nil {
		t.Errorf("the child is gone after an error: %v", err)
	}
}

func TestAPythonWithoutTorchIsAMissingCapability(t *testing.T) {
	bare := filepath.Join(t.TempDir(), "venv")
	base, err := proc.Look("python3", os.Getenv("PATH"))
	if err != nil {
		t.Fatalf("%v: run make setup", err)
	}
	env := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME")}
	if err := proc.Run(context.Background(), proc.Command{Path: base, Args: []string{"-m", "venv", "--without-pip", bare}, Env: env}); err != nil {
		t.Fatal(err)
	}
	w, _ := start(t, func(o *worker.Options) { o.Python = filepath.Join(bare, "bin", "python") })
	_, err = w.Inspect(worker.InspectRequest{Model: model("plain", image()), Sizes: threeFive})
	if failure.CodeOf(err) != failure.Missing || !strings.Contains(whole(err), bare) {
		t.Errorf("error %v, want exit 3 naming %s", err, bare)
	}
	versions, err := worker.PackageVersions(context.Background(), filepath.Join(bare, "bin", "python"), "torch")
	if err != nil || len(versions) != 0 {
		t.Errorf("versions %v, %v, want none", versions, err)
	}
}

func TestAnInterpreterThatIsNotThereDoesNotStart(t *testing.T) {
	if _, err := worker.Start(context.Background(), worker.Options{Python: filepath.Join(t.TempDir(), "python")}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v, want not exist", err)
	}
}

// orphan starts a child whose model hangs, and writes the child's process id
// into a file.
func orphan(out string) {
	log, err := os.Create(out + ".log")
	if err != nil {
		panic(err)
	}
	w, err := worker.Start(context.Background(), worker.Options{
		Python: os.Getenv("WORKER_TEST_PYTHON"), Path: []string{os.Getenv("WORKER_TEST_ZOO")}, Log: log,
	})
	if err != nil {
		panic(err)
	}
	var got struct {
		PID int `json:"pid"`
	}
	if err := w.Call("worker.probe", struct{}{}, &got); err != nil {
		panic(err)
	}
	if err := os.WriteFile(out+".new", []byte(fmt.Sprint(got.PID)), 0o600); err == nil {
		_ = os.Rename(out+".new", out)
	}
	_, err = w.Inspect(worker.InspectRequest{Model: model("hangs", vector()), Sizes: []worker.Sizes{{}}})
	panic(err)
}

func TestTheChildGoesWhenTrtshipIsKilled(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "child")
	parent, err := proc.Start(context.Background(), proc.Command{Path: self, Env: []string{
		"WORKER_TEST_ORPHAN=" + out, "WORKER_TEST_PYTHON=" + python(t), "WORKER_TEST_ZOO=" + zoo(t), "TMPDIR=" + t.TempDir(),
	}})
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	eventually(t, "the child answers", func() bool {
		b, err := os.ReadFile(out)
		if err != nil {
			return false
		}
		_, err = fmt.Sscan(string(b), &pid)
		return err == nil
	})
	if !testkit.Alive(pid) {
		t.Fatalf("child %d is not there", pid)
	}
	eventually(t, "the model hangs", func() bool {
		b, err := os.ReadFile(out + ".log")
		return err == nil && strings.Contains(string(b), "hanging")
	})
	parent.Kill() // of its own group only: the child has another
	eventually(t, "the child is gone", func() bool { return !testkit.Alive(pid) })
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if holds() {
			return
		}
	}
	t.Fatalf("it does not happen that %s", what)
}
