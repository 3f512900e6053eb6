package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/trtship/trtship/internal/proc"
	"github.com/trtship/trtship/internal/testkit"
)

// built builds the program once for a test.
func built(t *testing.T) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "trtship")
	golang, err := proc.Look("go", os.Getenv("PATH"))
	if err != nil {
		t.Fatal(err)
	}
	if err := proc.Run(t.Context(), proc.Command{
		Path: golang, Args: []string{"build", "-o", bin, "./cmd/trtship"}, Dir: testkit.Root(t), Env: os.Environ(), Stderr: os.Stderr,
	}); err != nil {
		t.Fatal(err)
	}
	return bin
}

// fastest returns the shortest of n runs of a command.
func fastest(ctx context.Context, t *testing.T, n int, path string, args ...string) time.Duration {
	t.Helper()
	best := time.Duration(0)
	for range n {
		start := time.Now()
		if err := proc.Run(ctx, proc.Command{Path: path, Args: args, Env: os.Environ()}); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(start); best == 0 || d < best {
			best = d
		}
	}
	return best
}

// TestVersionStartsFast holds the program's start against Python's import of
// torch, both measured here and now.
func TestVersionStartsFast(t *testing.T) {
	ours := fastest(t.Context(), t, 10, built(t), "version")
	theirs := fastest(t.Context(), t, 2, testkit.Python(t), "-c", "import torch")
	ratio := float64(theirs) / float64(ours)
	t.Logf("trtship version %v, import torch %v: %.0f times", ours, theirs, ratio)
	if ratio < 40 {
		t.Errorf("trtship version starts only %.0f times faster than import torch (%v, %v); want 40", ratio, ours, theirs)
	}
}

// TestSecondRunReusesTheFirst runs an example twice and compares the times of
// the stages that can be reused.
func TestSecondRunReusesTheFirst(t *testing.T) {
	bin, dir := built(t), t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, "digits"), os.DirFS(filepath.Join(testkit.Root(t), "examples", "digits"))); err != nil {
		t.Fatal(err)
	}
	env := append(os.Environ(), "TRTSHIP_STORE="+filepath.Join(dir, "store"), "CI=")
	run := func() time.Duration {
		start := time.Now()
		err := proc.Run(t.Context(), proc.Command{
			Path: bin, Args: []string{"run", filepath.Join(dir, "digits", "trtship.yaml"), "--until", "package", "--set", "benchmark.enabled=false"},
			Env: env, Dir: dir, Stderr: os.Stderr,
		})
		if err != nil {
			t.Fatal(err)
		}
		return time.Since(start)
	}
	cold, warm := run(), min(run(), run())
	t.Logf("cold %v, warm %v: 1/%.0f", cold, warm, float64(cold)/float64(warm))
	if warm*20 > cold {
		t.Errorf("the second run takes %v, more than a twentieth of the first (%v)", warm, cold)
	}
}
