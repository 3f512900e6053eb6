package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/trtship/trtship/internal/gpu"
	"github.com/trtship/trtship/internal/ort"
	"github.com/trtship/trtship/internal/testkit"
)

func TestMain(m *testing.M) {
	ort.RunChildIfAsked()
	gpu.RunChildIfAsked()
	testscript.Main(testkit.Checked{Tests: m}, map[string]func(){
		"trtship": func() { os.Exit(run()) },
	})
}

// TestScripts runs every script in testdata/script. Scripts see the repository's
// examples, the interpreter with torch, and a store of their own that scripts of
// the same name share.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireUniqueNames:  true,
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			e.Vars = append(e.Vars,
				"ROOT="+testkit.Root(t), "HOME="+e.WorkDir, "XDG_CACHE_HOME="+cacheHome(t),
				"TRTSHIP_PYTHON="+os.Getenv("TRTSHIP_PYTHON"), "CI=",
			)
			return os.CopyFS(filepath.Join(e.WorkDir, "examples"), os.DirFS(filepath.Join(testkit.Root(t), "examples")))
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits},
	})
}

func cacheHome(t *testing.T) string {
	t.Helper()
	dir, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// exits runs a command and demands its exit code: exits 2 trtship no-such.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits code command...")
	}
	want, err := strconv.Atoi(args[0])
	if err != nil {
		ts.Fatalf("exits: %q is no exit code", args[0])
	}
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		got = e.ExitCode()
	} else if err != nil {
		ts.Fatalf("exits: %v", err)
	}
	if got != want {
		ts.Fatalf("%s exits with %d, want %d", strings.Join(args[1:], " "), got, want)
	}
}
