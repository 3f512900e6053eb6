package cli

import (
	"os"
	"os/user"
	"path/filepath"
	"testing"

	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/proc"
)

// TestTheCommitOfACheckoutThatBelongsToAnotherUser is what a container action
// meets: it runs as root, and the runner's user made the checkout.
func TestTheCommitOfACheckoutThatBelongsToAnotherUser(t *testing.T) {
	git, err := proc.Look("git", os.Getenv("PATH"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	marker := filepath.Join(t.TempDir(), "ran")
	hook := put(t, filepath.Join(t.TempDir(), "monitor"), "#!/bin/sh\ntouch "+marker+"\n")
	if err := os.Chmod(hook, 0o755); err != nil {
		t.Fatal(err)
	}
	env := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}
	for _, args := range [][]string{{"init", "-q"}, {"-c", "user.name=x", "-c", "user.email=x@example.com", "commit", "-q", "--allow-empty", "-m", "x"}, {"config", "core.fsmonitor", hook}} {
		if _, err := proc.Output(t.Context(), proc.Command{Path: git, Args: append([]string{"-C", dir}, args...), Env: env}); err != nil {
			t.Fatal(err)
		}
	}
	if me, err := user.Current(); err == nil && me.Uid == "0" { // others own what they make, and have the rest of the test
		for _, path := range []string{dir, filepath.Join(dir, ".git")} {
			if err := os.Chown(path, 1234, 1234); err != nil {
				t.Fatal(err)
			}
		}
	}
	s := &session{a: &app{io: IO{Getenv: func(k string) string { return map[string]string{"PATH": os.Getenv("PATH"), "HOME": dir}[k] }}}, cfg: &config.Config{Dir: dir}}
	if g := s.git(t.Context()); g == nil || len(g.Commit) != 40 || g.Dirty {
		t.Errorf("git is %+v, want the commit", g)
	}
	if _, err := os.Stat(marker); err == nil {
		t.Error("a program of the checkout's configuration was started")
	}
}
