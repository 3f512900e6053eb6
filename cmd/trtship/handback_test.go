package main

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/trtship/trtship/internal/proc"
	"github.com/trtship/trtship/internal/testkit"
)

// TestASignalledActionHandsItsFilesBack ends the action in the middle of a run,
// as a runner does when a job is cancelled, and looks at who owns what is left.
func TestASignalledActionHandsItsFilesBack(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("this test hands files to another user and must run as root, as the container action does")
	}
	work := t.TempDir()
	if err := os.CopyFS(filepath.Join(work, "digits"), os.DirFS(filepath.Join(testkit.Root(t), "examples", "digits"))); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(work, 4321, 5432); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	p, err := proc.Start(context.Background(), proc.Command{Path: built(t), Args: []string{"action"}, Dir: work, Stdout: &out, Grace: time.Minute, Env: append(os.Environ(),
		"CI=true", "GITHUB_ACTIONS=true", "GITHUB_WORKSPACE="+work, "GITHUB_EVENT_NAME=push", "INPUT_CONFIG=digits/trtship.yaml", "INPUT_BASELINE=none", "INPUT_COMMENT=false", "INPUT_UPLOAD=none")})
	if err != nil {
		t.Fatal(err)
	}
	// A run has its folder, and its first stage is at work.
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if logs, _ := filepath.Glob(filepath.Join(work, ".trtship", "runs", "*", "logs", "*.log")); len(logs) > 0 {
			break
		}
		if time.Now().After(end) {
			p.Kill()
			t.Fatalf("no run began:\n%s", out.String())
		}
	}
	p.Stop()
	e, ok := errors.AsType[*proc.Error](p.Wait())
	if !ok || e.Exit != 143 {
		t.Errorf("the action ended with %v, want 143:\n%s", e, out.String())
	}
	files := 0
	err = filepath.WalkDir(filepath.Join(work, ".trtship"), func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := os.Lstat(path)
		if err != nil {
			return err
		}
		files++
		if st, ok := info.Sys().(*syscall.Stat_t); !ok || st.Uid != 4321 || st.Gid != 5432 {
			t.Errorf("%s still belongs to %d:%d", path, st.Uid, st.Gid)
		}
		return nil
	})
	if err != nil || files < 5 {
		t.Errorf("%d files are left, %v", files, err)
	}
}
