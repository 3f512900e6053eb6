package store_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/store"
	"github.com/trtship/trtship/internal/testkit"
)

// later is a clock for which all files of a test are old.
func later() time.Time { return time.Now().Add(time.Hour) }

func hashSource(t testing.TB, st *store.Store, path string, code bool) artifact.Digest {
	t.Helper()
	d, err := st.HashSource(ctx, path, code)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestWhatASourceIsMadeOf(t *testing.T) {
	files := map[string]string{
		"net.py": "a", "pkg/layers.py": "b", "pkg/__pycache__/layers.pyc": "c", "pkg/data.bin": "d",
		".git/x.py": "e", ".venv/lib/y.py": "f", "readme.md": "g",
	}
	tests := map[string]struct {
		change     func(dir string) error
		data, code bool // whether the digest changes
	}{
		"nothing":            {func(string) error { return nil }, false, false},
		"the time of a file": {func(dir string) error { return os.Chtimes(filepath.Join(dir, "net.py"), time.Now(), time.Now()) }, false, false},
		"a byte of source":   {func(dir string) error { return write(dir, "pkg/layers.py", "B") }, true, true},
		"a byte of data":     {func(dir string) error { return write(dir, "pkg/data.bin", "D") }, true, false},
		"a compiled file":    {func(dir string) error { return write(dir, "pkg/__pycache__/layers.pyc", "C") }, false, false},
		"hidden source":      {func(dir string) error { return write(dir, ".venv/lib/y.py", "F") }, true, false},
		"a file more":        {func(dir string) error { return write(dir, "pkg/new.py", "") }, true, true},
		"a name":             {func(dir string) error { return os.Rename(filepath.Join(dir, "net.py"), filepath.Join(dir, "met.py")) }, true, true},
		"a file's folder": {func(dir string) error {
			return os.Rename(filepath.Join(dir, "pkg/layers.py"), filepath.Join(dir, "layers.py"))
		}, true, true},
		"an empty folder":        {func(dir string) error { return os.Mkdir(filepath.Join(dir, "empty"), 0o755) }, false, false},
		"a link to a file":       {func(dir string) error { return os.Symlink("net.py", filepath.Join(dir, "link.py")) }, true, true},
		"a link to a folder":     {func(dir string) error { return os.Symlink("pkg", filepath.Join(dir, "linked")) }, true, true},
		"a link that goes round": {func(dir string) error { return os.Symlink("..", filepath.Join(dir, "pkg", "up")) }, false, false},
		"a dangling link":        {func(dir string) error { return os.Symlink("nothing", filepath.Join(dir, "x.py")) }, false, false},
		"a pipe":                 {func(dir string) error { return syscall.Mkfifo(filepath.Join(dir, "x.py"), 0o644) }, false, false},
		"two files exchanged": {func(dir string) error {
			return errors.Join(write(dir, "net.py", "b"), write(dir, "pkg/layers.py", "a"))
		}, true, true},
	}
	for name, tt := range tests {
		for _, code := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, code %v", name, code), func(t *testing.T) {
				st := open(t, testkit.FastDir(t), store.WithClock(later))
				dir := filepath.Join(testkit.FastDir(t), "src")
				fill(t, dir, files)
				before := hashSource(t, st, dir, code)
				if err := tt.change(dir); err != nil {
					t.Fatal(err)
				}
				changed := hashSource(t, st, dir, code) != before
				if want := map[bool]bool{false: tt.data, true: tt.code}[code]; changed != want {
					t.Errorf("changed is %v, want %v", changed, want)
				}
			})
		}
	}
}

func write(dir, name, text string) error {
	return os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644)
}

func TestASourceElsewhereHasTheSameDigest(t *testing.T) {
	st := open(t, testkit.FastDir(t))
	a, b := testkit.FastDir(t), testkit.FastDir(t)
	for _, dir := range []string{a, b} {
		fill(t, dir, map[string]string{"x/y.py": "1", "z": "2"})
	}
	if hashSource(t, st, a, false) != hashSource(t, st, b, false) {
		t.Error("the place of a folder got into its digest")
	}
	one := publish(t, st, artifact.ONNX, map[string]string{"f": "2"})
	if got := hashSource(t, st, filepath.Join(a, "z"), false); got != one.Digest {
		t.Errorf("the digest of a file is %s, want that of its bytes", got)
	}
}

func TestASourceThatIsNotThere(t *testing.T) {
	st := open(t, testkit.FastDir(t))
	for _, path := range []string{"/nothing/here", os.DevNull} {
		if _, err := st.HashSource(ctx, path, false); failure.CodeOf(err) != failure.Artifact {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// counted opens files and counts how often.
type counted struct {
	store.OS
	dir   string
	opens atomic.Int64
}

func (c *counted) Open(path string) (store.File, error) {
	if filepath.Dir(path) == c.dir {
		c.opens.Add(1)
	}
	return c.OS.Open(path)
}

func TestAnUnchangedFileIsNotReadAgain(t *testing.T) {
	dir := testkit.FastDir(t)
	fill(t, dir, map[string]string{"a": "1", "b": "2", "c": "3"})
	root := testkit.FastDir(t)
	hash := func(clock func() time.Time) (artifact.Digest, int) {
		fsys := &counted{dir: dir}
		st := open(t, root, store.WithFS(fsys), store.WithClock(clock))
		d := hashSource(t, st, dir, false)
		if err := st.Close(); err != nil {
			t.Fatal(err)
		}
		return d, int(fsys.opens.Load())
	}
	// Files as young as these could change again without a sign.
	first, n := hash(time.Now)
	if _, m := hash(time.Now); n != 3 || m != 3 {
		t.Errorf("young files were read %d and %d times, want 3 and 3", n, m)
	}
	if _, n := hash(later); n != 3 {
		t.Errorf("old files were read %d times at first", n)
	}
	if d, n := hash(later); n != 0 || d != first {
		t.Errorf("unchanged files were read %d times", n)
	}
	t.Run("but one whose time was set back is", func(t *testing.T) {
		info, err := os.Stat(filepath.Join(dir, "b"))
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(write(dir, "b", "9"), os.Chtimes(filepath.Join(dir, "b"), info.ModTime(), info.ModTime())); err != nil {
			t.Fatal(err)
		}
		if d, n := hash(later); n != 1 || d == first {
			t.Errorf("read %d times, the digest changed: %v", n, d != first)
		}
	})
	t.Run("and one that was replaced", func(t *testing.T) {
		hash(later)
		before, _ := hash(later)
		if err := errors.Join(write(dir, "new", "7"), os.Rename(filepath.Join(dir, "new"), filepath.Join(dir, "c"))); err != nil {
			t.Fatal(err)
		}
		if d, n := hash(later); n != 1 || d == before {
			t.Errorf("read %d times, the digest changed: %v", n, d != before)
		}
	})
	t.Run("what is remembered is not believed when damaged", func(t *testing.T) {
		before, _ := hash(later)
		found, err := filepath.Glob(filepath.Join(root, "sources", "*"))
		if err != nil || len(found) != 1 {
			t.Fatal(found, err)
		}
		text, err := os.ReadFile(found[0])
		if err != nil {
			t.Fatal(err)
		}
		for at := range text {
			bad := append([]byte{}, text...)
			bad[at] ^= 1
			if err := os.WriteFile(found[0], bad, 0o644); err != nil {
				t.Fatal(err)
			}
			if d, _ := hash(later); d != before {
				t.Fatalf("a flipped bit at %d became the digest %s", at, d)
			}
		}
	})
}

func TestHashFiles(t *testing.T) {
	st := open(t, testkit.FastDir(t), store.WithClock(later))
	dir := testkit.FastDir(t)
	fill(t, dir, map[string]string{"a.py": "1"})
	paths := []string{filepath.Join(dir, "a.py"), filepath.Join(dir, "missing.py")}
	for range 2 {
		got, err := st.HashFiles(ctx, "export", paths)
		if err != nil || got[0] != hashSource(t, st, paths[0], false) || got[1] != "" {
			t.Errorf("digests %v, error %v", got, err)
		}
	}
	if got, err := st.HashFiles(ctx, "export", nil); err != nil || got != nil {
		t.Errorf("no files: %v %v", got, err)
	}
	if _, err := st.HashFiles(ctx, "export", []string{dir}); failure.CodeOf(err) != failure.Artifact {
		t.Errorf("a folder: %v", err)
	}
}
