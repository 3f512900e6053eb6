//go:build faults

package pipeline_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/trtship/trtship/internal/failpoint"
	"github.com/trtship/trtship/internal/testkit"

	_ "github.com/trtship/trtship/internal/cli" // its failpoints, and those of all stages and tools
)

// These tests kill the real program over real models; make faults runs them.

// program is the built command and how to call it in a folder of its own.
type program struct {
	t       testing.TB
	path    string
	env     []string
	dir     string
	example string
}

var build = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "trtship-faults-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "trtship")
	cmd := exec.Command("go", "build", "-o", path, "github.com/trtship/trtship/cmd/trtship")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return path, nil
})

func newProgram(t testing.TB, example string) *program {
	t.Helper()
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return &program{
		t: t, path: path, dir: testkit.FastDir(t),
		example: filepath.Join(testkit.Root(t), "examples", example, "trtship.yaml"),
		env: []string{
			"PATH=/usr/bin:/bin", "HOME=" + os.Getenv("HOME"), "TRTSHIP_PYTHON=" + testkit.Python(t), "NO_COLOR=1",
			"TRTSHIP_ORT_LIB=" + testkit.ORTLibrary(t),
		},
	}
}

func (p *program) command(failpoint string, args ...string) *exec.Cmd {
	cmd := exec.Command(p.path, args...)
	cmd.Dir = p.dir
	cmd.Env = append(p.env[:len(p.env):len(p.env)], "TRTSHIP_FAILPOINT="+failpoint)
	return cmd
}

// run ships the example as far as the repository. The benchmark is no subject
// here, and is never the same twice.
func (p *program) run(failpoint string, more ...string) (killed bool, err error) {
	args := append([]string{"run", p.example, "--until", "package", "--set", "benchmark.enabled=false"}, more...)
	cmd := p.command(failpoint, args...)
	out, err := cmd.CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		if w, ok := exit.Sys().(syscall.WaitStatus); ok && w.Signaled() && w.Signal() == syscall.SIGKILL {
			return true, nil
		}
	}
	if err != nil {
		err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(out))
	}
	return false, err
}

// artifacts lists what is in the store, after verifying it.
func (p *program) artifacts() map[string]bool {
	p.t.Helper()
	for _, args := range [][]string{{"artifacts", "verify"}} {
		if out, err := p.command("", args...).CombinedOutput(); err != nil {
			p.t.Errorf("%v: %v: %s", args, err, out)
		}
	}
	found, err := filepath.Glob(filepath.Join(p.dir, ".trtship", "store", "*", "*-????????????*", "record.json"))
	if err != nil {
		p.t.Fatal(err)
	}
	m := map[string]bool{}
	for _, f := range found {
		m[filepath.Base(filepath.Dir(f))] = true
	}
	return m
}

// wantArtifacts are those of a run that nothing disturbs, and how long it takes.
func wantArtifacts(t testing.TB, example string) (map[string]bool, time.Duration) {
	t.Helper()
	p := newProgram(t, example)
	start := time.Now()
	if _, err := p.run(""); err != nil {
		t.Fatal(err)
	}
	took := time.Since(start)
	return p.artifacts(), took
}

func TestRealTenRunsAtOnceEachKilledAtTwentyFailpoints(t *testing.T) {
	want, _ := wantArtifacts(t, "onnx")
	p := newProgram(t, "onnx")
	// Those on the way of this example; the others have tests of their own.
	names := slices.DeleteFunc(failpoint.Names(), func(n string) bool {
		return strings.HasPrefix(n, "worker.") || strings.HasPrefix(n, "calibrate.") || strings.HasPrefix(n, "store.gc.") ||
			strings.HasPrefix(n, "store.copy") || strings.HasPrefix(n, "store.aside.") || strings.HasPrefix(n, "store.entry.")
	})
	const workers, kills = 10, 20
	var mu sync.Mutex
	var died, tried, failures int64
	var wg sync.WaitGroup
	for w := range workers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for k, mine := 0, 0; mine < kills && k < 5*kills; k++ {
				// Every second run does all work anew, and so comes to every point.
				args := []string{"--fresh"}
				if k%2 == 1 {
					args = nil
				}
				spec := fmt.Sprintf("%s:kill:%d", names[(w*5+k)%len(names)], k%2)
				killed, err := p.run(spec, args...)
				mu.Lock()
				tried++
				if killed {
					died++
					mine++
				}
				if err != nil {
					failures++
					t.Errorf("%s: %v", spec, err)
				}
				mu.Unlock()
			}
			if _, err := p.run(""); err != nil {
				t.Error(err)
			}
		}()
	}
	wg.Wait()
	if d := cmp.Diff(want, p.artifacts()); d != "" {
		failures++
		t.Errorf("artifacts (-want +got):\n%s", d)
	}
	if died < workers*kills {
		t.Errorf("only %d runs died", died)
	}
	testkit.RecordFaults(t, testkit.FaultRow{
		Kind: "ten real runs at once, killed at failpoints", Tried: died, Failures: failures,
		Detail: fmt.Sprintf("examples/onnx to its repository, one store; %d runs, of which %d were killed; all finish in the end and every artifact is there once", tried, died),
	})
}

func TestRealKillAtEveryFailpoint(t *testing.T) {
	// The model that needs no torch passes most points in a second or two; the
	// other is there for those of the Python child.
	for example, prefix := range map[string]string{"onnx": "", "torchscript": "worker."} {
		t.Run(example, func(t *testing.T) {
			want, _ := wantArtifacts(t, example)
			var tried, failures int64
			var passed []string
			for _, name := range failpoint.Names() {
				if !strings.HasPrefix(name, prefix) {
					continue
				}
				p := newProgram(t, example)
				killed, err := p.run(name + ":kill")
				if err != nil {
					failures++
					t.Errorf("%s: %v", name, err)
				}
				if !killed {
					passed = append(passed, name)
					continue
				}
				tried++
				if _, err := p.run(""); err != nil {
					failures++
					t.Errorf("after %s: %v", name, err)
				}
				if d := cmp.Diff(want, p.artifacts()); d != "" {
					failures++
					t.Errorf("after %s: artifacts (-want +got):\n%s", name, d)
				}
			}
			t.Logf("not on the way: %s", strings.Join(passed, ", "))
			testkit.RecordFaults(t, testkit.FaultRow{
				Kind: "real run killed at a failpoint", Tried: tried, Failures: failures, Detail: "examples/" + example + " to its repository",
			})
		})
	}
}

func TestRealRandomKillsWithTorch(t *testing.T) {
	// Orphans of the program become our children, so that none is overlooked.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	testkit.NoChildren(t)
	want, took := wantArtifacts(t, "digits")
	p := newProgram(t, "digits")
	rng := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a test
	const kills = 10
	var died, failures int64
	for range kills {
		after := time.Duration(rng.Int64N(int64(took)))
		ctx, cancel := context.WithTimeout(context.Background(), after)
		cmd := exec.CommandContext(ctx, p.path, "run", p.example, "--until", "package", "--set", "benchmark.enabled=false", "--fresh")
		cmd.Dir, cmd.Env = p.dir, p.env
		if err := cmd.Run(); err != nil {
			died++
		}
		cancel()
		if out, err := p.command("", "artifacts", "verify").CombinedOutput(); err != nil {
			failures++
			t.Errorf("killed after %v: %v: %s", after, err, out)
		}
	}
	if _, err := p.run(""); err != nil {
		failures++
		t.Error(err)
	}
	if d := cmp.Diff(want, p.artifacts()); d != "" {
		failures++
		t.Errorf("artifacts (-want +got):\n%s", d)
	}
	if died < kills/2 {
		t.Errorf("only %d runs died", died)
	}
	testkit.RecordFaults(t, testkit.FaultRow{
		Kind: "real run with torch killed at random", Tried: kills, Failures: failures,
		Detail: fmt.Sprintf("examples/digits to its repository, every stage anew; %d died", died),
	})
}
