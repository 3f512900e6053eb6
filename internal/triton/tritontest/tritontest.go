// Package tritontest starts the real tritonserver for tests and writes small
// model repositories.
package tritontest

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/trtship/trtship/internal/triton/server"
	"github.com/trtship/trtship/internal/worker"
)

// Installation returns the real tritonserver with the Python that the stand-in
// backends run on. A machine without it fails the test: it is no reason to skip.
func Installation(t testing.TB) server.Installation {
	t.Helper()
	o := server.FindOptions{Path: os.Getenv("PATH")}
	cache, err := worker.CacheHome(os.Getenv)
	if err != nil {
		t.Fatal(err)
	}
	if o.Python, err = worker.FindPython("", os.Getenv("TRTSHIP_PYTHON"), cache, o.Path); err != nil {
		t.Fatalf("%v\nrun `make setup`", err)
	}
	if env, err := worker.LockedEnv(cache, worker.GroupTriton); err == nil {
		o.SitePackages = append(o.SitePackages, env.SitePackages) // numpy 1 lies here too
	}
	if dirs, err := worker.SitePackages(t.Context(), o.Python); err == nil {
		o.SitePackages = append(o.SitePackages, dirs...)
	}
	in, err := server.Find(t.Context(), o)
	if err != nil {
		t.Fatalf("%v\nrun `make setup`", err)
	}
	return in
}

// Start starts a server for o and stops it with the test. Installation,
// Scratch and a generous timeout are filled in.
func Start(t testing.TB, o server.Options) *server.Server {
	t.Helper()
	o.Installation = Installation(t)
	if o.Scratch == "" {
		o.Scratch = t.TempDir()
	}
	if o.ReadyTimeout == 0 {
		o.ReadyTimeout = 3 * time.Minute
	}
	s, err := server.Start(context.WithoutCancel(t.Context()), o)
	if err != nil {
		t.Fatalf("%+v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			b, _ := os.ReadFile(s.Log)
			t.Logf("server's log:\n%s", b)
		}
		s.Stop()
	})
	return s
}

// CopyTree copies a folder of small files into a new writable one.
func CopyTree(t testing.TB, from, to string) {
	t.Helper()
	if err := os.MkdirAll(to, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
}

// Write writes a file below dir and makes its folders.
func Write(t testing.TB, dir, name, text string) {
	t.Helper()
	full := filepath.Join(dir, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(full, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
