package provenance_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/trtship/trtship/internal/provenance"
)

func sum(text string) string { return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(text))) }

// tree writes files by path and returns their folder.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "tree")
	for name, text := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestFilesAreHeldToWhatIsSaidOfThem(t *testing.T) {
	one := []provenance.Want{{Path: "a/one", Digest: sum("one"), Size: 3}}
	tests := map[string]struct {
		want   []provenance.Want
		change func(t *testing.T, dir string)
		found  []string // what, path
		files  int
	}{
		"everything is as it should be": {want: one, files: 1},
		"a size that is not known":      {want: []provenance.Want{{Path: "a/one", Digest: sum("one"), Size: -1}}, files: 1},
		"other bytes of the same length": {want: one, files: 1, found: []string{"changed a/one"}, change: func(t *testing.T, dir string) {
			write(t, dir, "a/one", "eno")
		}},
		"another length is found without hashing": {want: one, found: []string{"changed a/one"}, change: func(t *testing.T, dir string) {
			write(t, dir, "a/one", "one and more")
		}},
		"a file that is gone": {want: one, found: []string{"missing a/one"}, change: func(t *testing.T, dir string) {
			remove(t, dir, "a/one")
		}},
		"a folder that is gone": {want: one, found: []string{"missing a/one"}, change: func(t *testing.T, dir string) {
			remove(t, dir, "a")
		}},
		"the whole tree is gone": {want: one, found: []string{"missing ."}, change: func(t *testing.T, dir string) {
			remove(t, dir, ".")
		}},
		"files that nobody speaks of": {want: one, files: 1, found: []string{"extra a/b/", "extra x"}, change: func(t *testing.T, dir string) {
			write(t, dir, "x", "")
			write(t, dir, "a/b/c", "")
		}},
		"a folder in its place": {want: one, found: []string{"changed a/one"}, change: func(t *testing.T, dir string) {
			remove(t, dir, "a/one")
			if err := os.Mkdir(filepath.Join(dir, "a/one"), 0o755); err != nil {
				t.Fatal(err)
			}
		}},
		"a symbolic link to the right bytes": {want: one, files: 0, found: []string{"changed a/one"}, change: func(t *testing.T, dir string) {
			write(t, dir, "../one", "one")
			remove(t, dir, "a/one")
			symlink(t, "../../one", filepath.Join(dir, "a/one"))
		}},
		"a folder that is a symbolic link": {want: one, found: []string{"changed a/one", "extra a"}, change: func(t *testing.T, dir string) {
			if err := os.Rename(filepath.Join(dir, "a"), filepath.Join(dir, "../b")); err != nil {
				t.Fatal(err)
			}
			symlink(t, "../b", filepath.Join(dir, "a"))
		}},
		"a pipe that nobody writes to": {want: one, found: []string{"changed a/one"}, change: func(t *testing.T, dir string) {
			remove(t, dir, "a/one")
			if err := syscall.Mkfifo(filepath.Join(dir, "a/one"), 0o644); err != nil {
				t.Fatal(err)
			}
		}},
		"paths that leave the tree, whatever lies there": {want: []provenance.Want{
			{Path: "../one", Digest: sum("one")},
			{Path: "/etc/passwd", Digest: sum("")},
			{Path: "a/../a/one", Digest: sum("one")},
			{Path: "", Digest: sum("")},
			{Path: `a\one`, Digest: sum("")},
			{Path: "a/one\x00", Digest: sum("")},
			{Path: "./a/one", Digest: sum("one")},
		}, found: []string{
			"extra a/one", "invalid ", "invalid ../one", "invalid ./a/one", "invalid /etc/passwd", "invalid a/../a/one", "invalid a/one\x00", `invalid a\one`,
		}, change: func(t *testing.T, dir string) { write(t, dir, "../one", "one") }},
		"a digest in upper case":   {want: []provenance.Want{{Path: "a/one", Digest: "sha256:" + strings.ToUpper(sum("one")[7:]), Size: 3}}, found: []string{"invalid a/one"}},
		"a digest that is cut off": {want: []provenance.Want{{Path: "a/one", Digest: sum("one")[:60], Size: 3}}, found: []string{"invalid a/one"}},
		"no digest":                {want: []provenance.Want{{Path: "a/one"}}, found: []string{"invalid a/one"}},
		"a file that is listed twice, with two digests": {
			want:  []provenance.Want{{Path: "a/one", Digest: sum("one"), Size: 3}, {Path: "a/one", Digest: sum("two"), Size: 3}},
			found: []string{"invalid a/one"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			dir := tree(t, map[string]string{"a/one": "one"})
			if tt.change != nil {
				tt.change(t, dir)
			}
			found, err := provenance.CheckFiles(t.Context(), dir, tt.want, true)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, p := range found.Problems {
				got = append(got, string(p.What)+" "+p.Path)
				if p.String() == "" || p.What == provenance.Changed && p.Want == "" {
					t.Errorf("%+v says too little", p)
				}
			}
			for i := range got { // they are sorted by path
				if i > 0 && found.Problems[i].Path < found.Problems[i-1].Path {
					t.Errorf("not sorted: %v", got)
				}
			}
			if d := cmp.Diff(sorted(tt.found), sorted(got)); d != "" {
				t.Errorf("problems (-want +got):\n%s", d)
			}
			if found.Files != tt.files {
				t.Errorf("%d files were hashed, want %d", found.Files, tt.files)
			}
		})
	}
}

func TestAVerificationEndsWithItsContext(t *testing.T) {
	dir := tree(t, map[string]string{"one": "one"})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := provenance.CheckFiles(ctx, dir, []provenance.Want{{Path: "one", Digest: sum("one"), Size: -1}}, true); err == nil {
		t.Error("no error")
	}
}

func TestTooManyStrangersAreNotAllNamed(t *testing.T) {
	files := map[string]string{}
	for i := range 1010 {
		files[fmt.Sprint(i)] = ""
	}
	found, err := provenance.CheckFiles(t.Context(), tree(t, files), nil, true, "7")
	if err != nil || len(found.Problems) != 1001 {
		t.Errorf("%d problems, error %v", len(found.Problems), err)
	}
}

func TestADocumentIsABoundedRegularFile(t *testing.T) {
	dir := tree(t, map[string]string{"small": "12345"})
	if b, err := provenance.ReadFile(filepath.Join(dir, "small"), 5); err != nil || string(b) != "12345" {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := provenance.ReadFile(filepath.Join(dir, "small"), 4); err == nil || !strings.Contains(err.Error(), "more than the 4 bytes") {
		t.Errorf("too large: %v", err)
	}
	if _, err := provenance.ReadFile(dir, 4); err == nil {
		t.Error("a folder was read")
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := provenance.ReadFile(filepath.Join(dir, "pipe"), 4); err == nil || !strings.Contains(err.Error(), "pipe") {
		t.Errorf("a pipe: %v", err)
	}
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	path := filepath.Join(dir, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, dir, name string) {
	t.Helper()
	if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
		t.Fatal(err)
	}
}

func symlink(t *testing.T, target, path string) {
	t.Helper()
	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}
}
