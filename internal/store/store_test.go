package store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/failpoint"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/store"
	"github.com/trtship/trtship/internal/testkit"
	"github.com/trtship/trtship/report"
)

var ctx = context.Background()

func open(t testing.TB, root string, options ...store.Option) *store.Store {
	t.Helper()
	st, err := store.Open(ctx, root, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	return st
}

// publish makes an artifact of named texts.
func publish(t testing.TB, st *store.Store, kind artifact.Kind, files map[string]string) artifact.Artifact {
	t.Helper()
	a, err := st.Publish(ctx, store.Draft{Kind: kind, Stage: "export"}, scratch(t, st, files))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func scratch(t testing.TB, st *store.Store, files map[string]string) string {
	t.Helper()
	dir, err := st.Scratch("x")
	if err != nil {
		t.Fatal(err)
	}
	fill(t, dir, files)
	return dir
}

func fill(t testing.TB, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
}

func problems(t testing.TB, st *store.Store) []store.Problem {
	t.Helper()
	v, err := st.Verify(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return v.Problems
}

func TestPublishedArtifacts(t *testing.T) {
	st := open(t, testkit.FastDir(t))
	a := publish(t, st, artifact.ONNX, map[string]string{"model.onnx": "graph", "data/weights.bin": "w"})
	if got := filepath.Base(filepath.Dir(a.Dir)); got != a.ID() || len(a.ID()) != len("onnx-")+12 {
		t.Errorf("folder %s, id %s", got, a.ID())
	}
	want := []artifact.File{{Path: "data/weights.bin", Size: 1}, {Path: "model.onnx", Size: 5}}
	for i := range a.Files {
		a.Files[i].Digest = ""
	}
	if d := cmp.Diff(want, a.Files); d != "" || a.Size != 6 {
		t.Errorf("size %d, files (-want +got):\n%s", a.Size, d)
	}
	for _, p := range []string{".", "data", "model.onnx", "data/weights.bin", "../record.json", ".."} {
		info, err := os.Stat(filepath.Join(a.Dir, p))
		if err != nil || info.Mode().Perm()&0o222 != 0 {
			t.Errorf("%s can be written: %v %v", p, info.Mode(), err)
		}
	}
	// One file: its digest is that of sha256sum.
	one := publish(t, st, artifact.Engine, map[string]string{"model.plan": "abc"})
	if one.Digest != "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" {
		t.Errorf("digest %s", one.Digest)
	}
	again := publish(t, st, artifact.Engine, map[string]string{"model.plan": "abc"})
	if again.Dir != one.Dir {
		t.Errorf("equal bytes lie in %s and %s", one.Dir, again.Dir)
	}
	if p := problems(t, st); len(p) > 0 {
		t.Error(p)
	}
}

func TestNamesThatCollide(t *testing.T) {
	st := open(t, testkit.FastDir(t))
	t.Run("one file under two names is two artifacts", func(t *testing.T) {
		a := publish(t, st, artifact.Engine, map[string]string{"a.plan": "x"})
		b := publish(t, st, artifact.Engine, map[string]string{"b.plan": "x"})
		if a.Digest != b.Digest || a.Dir == b.Dir {
			t.Fatalf("digests %s and %s in %s and %s", a.Digest, b.Digest, a.Dir, b.Dir)
		}
		for _, want := range []artifact.Artifact{a, b} {
			got, err := st.Open(ctx, want.Record)
			if err != nil || got.Dir != want.Dir {
				t.Errorf("opened %s, error %v", got.Dir, err)
			}
		}
		if again := publish(t, st, artifact.Engine, map[string]string{"b.plan": "x"}); again.Dir != b.Dir {
			t.Errorf("a third folder %s", again.Dir)
		}
	})
	t.Run("equal first digits get a longer name", func(t *testing.T) {
		a := publish(t, st, artifact.ONNX, map[string]string{"model.onnx": "first"})
		// What has the usual name of the second artifact is another one.
		second := artifact.Record{Kind: artifact.ONNX, Files: []artifact.File{{Path: "model.onnx", Size: 6, Digest: "sha256:16367aacb67a4a017c8da8ab95682ccb390863780f7114dda0a0e0c55644c7c4"}}}
		second.Digest = artifact.DigestOf(second.Files)
		usual := filepath.Join(st.Root(), "onnx", second.ID())
		if err := os.Rename(filepath.Dir(a.Dir), usual); err != nil {
			t.Fatal(err)
		}
		b := publish(t, st, artifact.ONNX, map[string]string{"model.onnx": "second"})
		if b.Digest != second.Digest || filepath.Dir(b.Dir) == usual || !strings.HasPrefix(filepath.Dir(b.Dir), usual) {
			t.Fatalf("second lies in %s, its usual name is %s", b.Dir, usual)
		}
		if got, err := st.Open(ctx, b.Record); err != nil || got.Dir != b.Dir {
			t.Errorf("opened %s, error %v", got.Dir, err)
		}
		if text, err := os.ReadFile(filepath.Join(usual, "files", "model.onnx")); err != nil || string(text) != "first" {
			t.Errorf("the other artifact is %q, error %v", text, err)
		}
	})
}

func TestAFileThatOthersCanReach(t *testing.T) {
	st := open(t, testkit.FastDir(t))
	dir := scratch(t, st, map[string]string{"a": "mine"})
	other := filepath.Join(t.TempDir(), "other")
	if err := os.Link(filepath.Join(dir, "a"), filepath.Join(st.Root(), "link")); err != nil {
		t.Fatal(err)
	}
	_ = other
	a, err := st.Publish(ctx, store.Draft{Kind: artifact.ONNX}, dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(st.Root(), "link"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(st.Root(), "link"), []byte("evil"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := st.Open(ctx, a.Record); err != nil {
		t.Errorf("the artifact changed with the other name: %v", err)
	}
	if err := os.Remove(filepath.Join(st.Root(), "link")); err != nil {
		t.Fatal(err)
	}
}

func TestPublishLeavesOtherFoldersAlone(t *testing.T) {
	st := open(t, testkit.FastDir(t))
	dir := t.TempDir()
	fill(t, dir, map[string]string{"model.onnx": "graph", "sub/x": "y"})
	a, err := st.Publish(ctx, store.Draft{Kind: artifact.ONNX}, dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(a.Files) != 2 {
		t.Errorf("files %v", a.Files)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "sub", "x")); err != nil || string(text) != "y" {
		t.Errorf("the user's file is %q, error %v", text, err)
	}
}

func TestPut(t *testing.T) {
	dir := t.TempDir()
	fill(t, dir, map[string]string{"m.onnx": "graph", "w.bin": "weights", "repo/a/config.pbtxt": "c", "repo/a/1/m": "m"})
	if err := errors.Join(os.Symlink("m.onnx", filepath.Join(dir, "link.onnx")), os.Symlink("repo", filepath.Join(dir, "repolink"))); err != nil {
		t.Fatal(err)
	}
	odd := t.TempDir()
	if err := errors.Join(syscall.Mkfifo(filepath.Join(odd, "pipe"), 0o600), os.Symlink("pipe", filepath.Join(odd, "link"))); err != nil {
		t.Fatal(err)
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	tests := map[string]struct {
		sources []store.Source
		want    string // files; empty if refused
	}{
		"a file keeps its name":               {[]store.Source{{Path: at("m.onnx")}}, "m.onnx"},
		"a file gets a name":                  {[]store.Source{{Path: at("m.onnx"), As: "model.onnx"}}, "model.onnx"},
		"a folder's files lie at the top":     {[]store.Source{{Path: at("repo")}}, "a/1/m a/config.pbtxt"},
		"a folder can have a name":            {[]store.Source{{Path: at("repo"), As: "x"}, {Path: at("w.bin")}}, "w.bin x/a/1/m x/a/config.pbtxt"},
		"a link that is named is followed":    {[]store.Source{{Path: at("link.onnx")}}, "link.onnx"},
		"also one to a folder":                {[]store.Source{{Path: at("repolink")}}, "a/1/m a/config.pbtxt"},
		"a link inside a folder is refused":   {[]store.Source{{Path: dir}}, ""},
		"a name that leaves is refused":       {[]store.Source{{Path: at("m.onnx"), As: "../m.onnx"}}, ""},
		"an absolute name is refused":         {[]store.Source{{Path: at("m.onnx"), As: "/etc/m.onnx"}}, ""},
		"two files of one name are refused":   {[]store.Source{{Path: at("m.onnx"), As: "a"}, {Path: at("w.bin"), As: "a"}}, ""},
		"a file that is not there is refused": {[]store.Source{{Path: at("nothing")}}, ""},
		"a pipe is refused, not waited for":   {[]store.Source{{Path: filepath.Join(odd, "pipe"), As: "model.plan"}}, ""},
		"a link to a pipe, too":               {[]store.Source{{Path: filepath.Join(odd, "link")}}, ""},
		"a folder with a pipe, too":           {[]store.Source{{Path: odd}}, ""},
		"a device is refused":                 {[]store.Source{{Path: "/dev/zero"}}, ""},
		"no file is refused":                  {nil, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			st := open(t, testkit.FastDir(t))
			a, err := st.Put(ctx, store.Draft{Kind: artifact.ONNX}, tt.sources...)
			if tt.want == "" {
				if failure.CodeOf(err) != failure.Artifact {
					t.Errorf("error %v", err)
				}
				return
			}
			var names []string
			for _, f := range a.Files {
				names = append(names, f.Path)
			}
			if err != nil || strings.Join(names, " ") != tt.want {
				t.Errorf("files %q, error %v, want %q", names, err, tt.want)
			}
			if _, err := st.Open(ctx, a.Record); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestALargeFileIsHashedAsItIsWritten(t *testing.T) {
	st := open(t, testkit.FastDir(t))
	text := make([]byte, 40<<20+12345)
	rand.New(rand.NewSource(1)).Read(text) //nolint:gosec,staticcheck // a test
	path := filepath.Join(t.TempDir(), "big")
	if err := os.WriteFile(path, text, 0o644); err != nil {
		t.Fatal(err)
	}
	a, err := st.Put(ctx, store.Draft{Kind: artifact.ONNX}, store.Source{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(a.Dir, "big"))
	if err != nil || !bytes.Equal(got, text) {
		t.Errorf("%d bytes of %d, error %v", len(got), len(text), err)
	}
	if _, err := st.Open(ctx, a.Record); err != nil {
		t.Error(err)
	}
	canceled, cancel := context.WithCancelCause(ctx)
	cancel(failure.New(failure.Interrupted, "SIGINT"))
	if _, err := st.Put(canceled, store.Draft{Kind: artifact.ONNX}, store.Source{Path: path}); failure.CodeOf(err) != failure.Interrupted {
		t.Errorf("canceled: %v", err)
	}
	if _, err := st.Open(canceled, a.Record); err == nil {
		t.Error("opened although canceled")
	}
	if _, err := st.Open(ctx, a.Record); err != nil {
		t.Errorf("a canceled check is no damage: %v", err)
	}
}

func TestADraftThatIsNone(t *testing.T) {
	st := open(t, testkit.FastDir(t))
	for _, kind := range []artifact.Kind{"", "../x", "Engine", "a b"} {
		if _, err := st.Publish(ctx, store.Draft{Kind: kind}, scratch(t, st, map[string]string{"a": "b"})); err == nil {
			t.Errorf("kind %q is taken", kind)
		}
	}
}

func TestEntries(t *testing.T) {
	st := open(t, testkit.FastDir(t))
	a := publish(t, st, artifact.ONNX, map[string]string{"model.onnx": "graph"})
	k := artifact.NewKey("export", 1)
	if e, _, why, err := st.Lookup(ctx, "export", k.Digest()); e != nil || why != "" || err != nil {
		t.Fatalf("found %v %q %v in an empty store", e, why, err)
	}
	in := store.Entry{
		Stage: "export", Key: k.Digest(), Parts: k.Parts(), Artifacts: []artifact.Record{a.Record}, Seconds: 2,
		Checks: []report.Check{{ID: "export/ok", Verdict: report.Pass, Metrics: map[string]report.Number{"max_abs": 1e-7}}},
		Deps:   []store.Dep{{Path: "a.py", Digest: a.Digest}},
	}
	if err := st.Record(in); err != nil {
		t.Fatal(err)
	}
	e, arts, why, err := st.Lookup(ctx, "export", k.Digest())
	if err != nil || why != "" || len(arts) != 1 || arts[0].Dir != a.Dir {
		t.Fatalf("found %v %q %v", arts, why, err)
	}
	in.Format, in.Made = e.Format, e.Made
	if d := cmp.Diff(in, *e); d != "" {
		t.Errorf("(-recorded +found):\n%s", d)
	}
	if e, _, _, err := st.Lookup(ctx, "validate", k.Digest()); e != nil || err != nil {
		t.Errorf("another stage finds %v, error %v", e, err)
	}
	if err := errors.Join(st.Forget("export", k.Digest()), st.Forget("export", k.Digest())); err != nil {
		t.Fatal(err)
	}
	if e, _, _, err := st.Lookup(ctx, "export", k.Digest()); e != nil || err != nil {
		t.Errorf("found %v after it was forgotten, error %v", e, err)
	}
}

func TestAnotherLayoutIsRefused(t *testing.T) {
	root := testkit.FastDir(t)
	if err := open(t, root).Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "format"), []byte("trtship-store/2\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Open(ctx, root); failure.CodeOf(err) != failure.Artifact || !strings.Contains(err.Error(), "trtship-store/2") {
		t.Errorf("error %v", err)
	}
	file := filepath.Join(t.TempDir(), "file")
	fill(t, filepath.Dir(file), map[string]string{"file": ""})
	if _, err := store.Open(ctx, filepath.Join(file, "store")); failure.CodeOf(err) != failure.Artifact {
		t.Errorf("a store below a file: %v", err)
	}
}

func TestSweep(t *testing.T) {
	root := testkit.FastDir(t)
	living := open(t, root)
	mine := scratch(t, living, map[string]string{"a": "b"})
	dead := filepath.Join(root, "scratch", "0123456789abcdef")
	fill(t, dead, map[string]string{"1-export/half": "written"})
	fill(t, filepath.Join(root, "scratch"), map[string]string{"0123456789abcdef.lock": ""})
	lost := filepath.Join(root, "scratch", "fedcba9876543210") // without its lock
	fill(t, lost, map[string]string{"x/y": "z"})
	if err := errors.Join(os.Chmod(filepath.Join(lost, "x"), 0o555), os.Chmod(lost, 0o555)); err != nil {
		t.Fatal(err)
	}
	if got := living.Leftovers(); len(got) != 2 {
		t.Errorf("leftovers %v", got)
	}
	other := open(t, root)
	for _, path := range []string{dead, dead + ".lock", lost} {
		if _, err := os.Lstat(path); err == nil {
			t.Errorf("%s is still there", path)
		}
	}
	if _, err := os.Stat(filepath.Join(mine, "a")); err != nil {
		t.Errorf("the scratch of a living run was swept: %v", err)
	}
	if err := errors.Join(living.Close(), other.Close()); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(filepath.Join(root, "scratch")); err != nil || len(left) > 0 {
		t.Errorf("left %v, error %v", left, err)
	}
	if err := other.Discard(root); err == nil {
		t.Error("Discard removes what is no scratch")
	}
}

func TestLock(t *testing.T) {
	root := testkit.FastDir(t)
	a, b := open(t, root), open(t, root)
	unlock, err := a.Lock(ctx, "key", func() { t.Error("waits for nobody") })
	if err != nil {
		t.Fatal(err)
	}
	waited := make(chan struct{})
	got := make(chan error)
	go func() {
		u, err := b.Lock(ctx, "key", func() { close(waited) })
		if err == nil {
			u()
		}
		got <- err
	}()
	<-waited
	short, cancel := context.WithCancelCause(ctx)
	cause := errors.New("SIGTERM")
	cancel(cause)
	if _, err := b.Lock(short, "key", nil); !errors.Is(err, cause) {
		t.Errorf("canceled: %v", err)
	}
	unlock()
	if err := <-got; err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"", "a/b", "store", `a\b`} {
		if _, err := a.Lock(ctx, bad, nil); err == nil {
			t.Errorf("the lock name %q is taken", bad)
		}
	}
}

func TestManyPublishersOfOneArtifact(t *testing.T) {
	root := testkit.FastDir(t)
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			st, err := store.Open(ctx, root)
			if err != nil {
				t.Error(err)
				return
			}
			defer st.Close() //nolint:errcheck // a test
			for j := range 10 {
				dir, err := st.Scratch("x")
				if err == nil {
					err = os.WriteFile(filepath.Join(dir, "a"), []byte(fmt.Sprint(j)), 0o644)
				}
				if err == nil {
					_, err = st.Publish(ctx, store.Draft{Kind: artifact.ONNX, Label: fmt.Sprint(i)}, dir)
				}
				if err != nil {
					t.Error(err)
				}
			}
		}()
	}
	wg.Wait()
	st := open(t, root)
	items, err := st.List()
	if err != nil || len(items) != 10 {
		t.Errorf("%d artifacts, error %v", len(items), err)
	}
	if p := problems(t, st); len(p) > 0 {
		t.Error(p)
	}
}

func TestAnotherRunPublishesInBetween(t *testing.T) {
	root := testkit.FastDir(t)
	a, b := open(t, root), open(t, root)
	defer failpoint.Call("store.publish.synced", func() { publish(t, b, artifact.ONNX, map[string]string{"m": "same"}) })()
	got := publish(t, a, artifact.ONNX, map[string]string{"m": "same"})
	if _, err := a.Open(ctx, got.Record); err != nil {
		t.Error(err)
	}
	if items, err := a.List(); err != nil || len(items) != 1 {
		t.Errorf("%d artifacts, error %v", len(items), err)
	}
}

func TestCopyOut(t *testing.T) {
	st := open(t, testkit.FastDir(t))
	a := publish(t, st, artifact.ONNX, map[string]string{"model.onnx": "graph", "model.onnx.data": "w"})
	read := func(path string) string {
		text, err := os.ReadFile(path)
		if err != nil {
			return err.Error()
		}
		return string(text)
	}
	t.Run("a main file and its companions", func(t *testing.T) {
		dir := t.TempDir()
		dest := filepath.Join(dir, "new", "out.onnx")
		if err := st.CopyOut(ctx, a, dest, "model.onnx"); err != nil {
			t.Fatal(err)
		}
		if read(dest) != "graph" || read(filepath.Join(dir, "new", "model.onnx.data")) != "w" {
			t.Error("other bytes")
		}
		if left, err := os.ReadDir(filepath.Join(dir, "new")); err != nil || len(left) != 2 {
			t.Errorf("left %v", left)
		}
		if err := os.WriteFile(dest, []byte("edited by hand"), 0o600); err != nil {
			t.Errorf("the copy cannot be written: %v", err)
		}
	})
	t.Run("a folder", func(t *testing.T) {
		dest := filepath.Join(t.TempDir(), "out")
		if err := st.CopyOut(ctx, a, dest, ""); err != nil || read(filepath.Join(dest, "model.onnx")) != "graph" {
			t.Error(err)
		}
	})
	for _, taken := range []string{"out.onnx", "model.onnx.data"} {
		t.Run("nothing is overwritten: "+taken, func(t *testing.T) {
			dir := t.TempDir()
			fill(t, dir, map[string]string{taken: "precious"})
			err := st.CopyOut(ctx, a, filepath.Join(dir, "out.onnx"), "model.onnx")
			if failure.CodeOf(err) != failure.Artifact || !strings.Contains(err.Error(), taken) || read(filepath.Join(dir, taken)) != "precious" {
				t.Errorf("error %v, file %q", err, read(filepath.Join(dir, taken)))
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
				t.Errorf("left %v", left)
			}
		})
	}
	t.Run("nor a dangling link", func(t *testing.T) {
		dest := filepath.Join(t.TempDir(), "out.onnx")
		if err := os.Symlink("/nowhere/else", dest); err != nil {
			t.Fatal(err)
		}
		if err := st.CopyOut(ctx, a, dest, "model.onnx"); failure.CodeOf(err) != failure.Artifact {
			t.Errorf("error %v", err)
		}
	})
	t.Run("nor what appears meanwhile", func(t *testing.T) {
		dest := filepath.Join(t.TempDir(), "out")
		defer failpoint.Call("store.copy.chunk", func() { fill(t, dest, map[string]string{"model.onnx": "precious"}) })()
		err := st.CopyOut(ctx, a, dest, "")
		if failure.CodeOf(err) != failure.Artifact || read(filepath.Join(dest, "model.onnx")) != "precious" {
			t.Errorf("error %v", err)
		}
	})
	t.Run("an artifact that changes meanwhile is not handed out", func(t *testing.T) {
		b := publish(t, st, artifact.Engine, map[string]string{"p": "plan"})
		path := filepath.Join(b.Dir, "p")
		if err := errors.Join(os.Chmod(path, 0o644), os.WriteFile(path, []byte("plam"), 0o644)); err != nil {
			t.Fatal(err)
		}
		dest := filepath.Join(t.TempDir(), "p")
		if err := st.CopyOut(ctx, b, dest, "p"); failure.CodeOf(err) != failure.Artifact {
			t.Errorf("error %v", err)
		}
		if _, err := os.Lstat(dest); err == nil {
			t.Error("it was handed out")
		}
	})
}

func TestFree(t *testing.T) {
	st := open(t, testkit.FastDir(t))
	free, err := st.Free()
	if err != nil || free <= 0 {
		t.Errorf("%d bytes, error %v", free, err)
	}
	if err := st.RequireFree(1); err != nil {
		t.Error(err)
	}
	if err := st.RequireFree(1 << 62); failure.CodeOf(err) != failure.Artifact {
		t.Errorf("error %v", err)
	}
}

func TestAFullDiskIsNamed(t *testing.T) {
	fsys := &testkit.FaultFS{FS: store.OS{}}
	st := open(t, testkit.FastDir(t), store.WithFS(fsys))
	dir := scratch(t, st, map[string]string{"a": "b"})
	fsys.At, fsys.Err = fsys.Count()+3, syscall.ENOSPC
	_, err := st.Publish(ctx, store.Draft{Kind: artifact.ONNX}, dir)
	f, ok := errors.AsType[*failure.Error](err)
	if !ok || !errors.Is(err, syscall.ENOSPC) || !strings.Contains(f.Hint, "gc") {
		t.Errorf("error %v", err)
	}
}

func TestGC(t *testing.T) {
	type fixture struct {
		st         *store.Store
		runs       string
		kept, lone artifact.Artifact
	}
	setup := func(t *testing.T, options ...store.Option) fixture {
		root := testkit.FastDir(t)
		st := open(t, root, options...)
		f := fixture{st: st, runs: filepath.Join(t.TempDir(), "runs")}
		f.kept = publish(t, st, artifact.ONNX, map[string]string{"m": "kept"})
		f.lone = publish(t, st, artifact.ONNX, map[string]string{"m": "lone"})
		for name, a := range map[string]artifact.Artifact{"kept": f.kept, "lone": f.lone} {
			k := artifact.NewKey(name, 1)
			if err := st.Record(store.Entry{Stage: "export", Key: k.Digest(), Artifacts: []artifact.Record{a.Record}}); err != nil {
				t.Fatal(err)
			}
		}
		fill(t, f.runs, map[string]string{"r1/report.json": "{}"})
		err := st.SetRoot(store.Root{Run: "r1", Dir: filepath.Join(f.runs, "r1"), Refs: []store.Ref{{Kind: artifact.ONNX, Digest: f.kept.Digest}}})
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	t.Run("removes what no run refers to, and its entries", func(t *testing.T) {
		f := setup(t)
		dry, err := f.st.GC(store.GCOptions{DryRun: true})
		if err != nil {
			t.Fatal(err)
		}
		if items, err := f.st.List(); err != nil || len(items) != 2 {
			t.Errorf("a dry run removed something: %v %v", items, err)
		}
		got, err := f.st.GC(store.GCOptions{})
		want := store.Collected{Artifacts: []string{f.lone.ID()}, Entries: 1, Bytes: 4, Kept: 1}
		if d := cmp.Diff(want, got); d != "" || err != nil {
			t.Errorf("error %v (-want +got):\n%s", err, d)
		}
		if d := cmp.Diff(dry, got); d != "" {
			t.Errorf("the dry run said otherwise:\n%s", d)
		}
		if _, err := f.st.Open(ctx, f.kept.Record); err != nil {
			t.Error(err)
		}
		if p := problems(t, f.st); len(p) > 0 {
			t.Error(p)
		}
		items, err := f.st.List()
		if err != nil || len(items) != 1 || len(items[0].Runs) != 1 || items[0].Runs[0] != "r1" {
			t.Errorf("items %+v, error %v", items, err)
		}
	})
	t.Run("a run whose folder was removed keeps nothing", func(t *testing.T) {
		f := setup(t)
		if err := os.RemoveAll(filepath.Join(f.runs, "r1")); err != nil {
			t.Fatal(err)
		}
		got, err := f.st.GC(store.GCOptions{})
		if err != nil || len(got.Artifacts) != 2 || got.Entries != 2 {
			t.Errorf("%+v, error %v", got, err)
		}
	})
	t.Run("a disk that is not mounted keeps everything", func(t *testing.T) {
		f := setup(t)
		if err := os.RemoveAll(f.runs); err != nil { // an empty folder is left
			t.Fatal(err)
		}
		got, err := f.st.GC(store.GCOptions{})
		if err != nil || got.Kept != 1 {
			t.Errorf("%+v, error %v", got, err)
		}
	})
	t.Run("what is young is kept", func(t *testing.T) {
		f := setup(t)
		got, err := f.st.GC(store.GCOptions{Younger: time.Hour})
		if err != nil || got.Kept != 2 {
			t.Errorf("%+v, error %v", got, err)
		}
		later := open(t, f.st.Root(), store.WithClock(func() time.Time { return time.Now().Add(2 * time.Hour) }))
		if err := f.st.Close(); err != nil {
			t.Fatal(err)
		}
		if got, err := later.GC(store.GCOptions{Younger: time.Hour}); err != nil || got.Kept != 1 {
			t.Errorf("later: %+v, error %v", got, err)
		}
	})
	t.Run("does not begin while a run is under way", func(t *testing.T) {
		f := setup(t)
		other := open(t, f.st.Root())
		if _, err := f.st.GC(store.GCOptions{}); failure.CodeOf(err) != failure.Artifact || !strings.Contains(err.Error(), "a run is using it") {
			t.Errorf("error %v", err)
		}
		if err := other.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := f.st.GC(store.GCOptions{}); err != nil {
			t.Error(err)
		}
	})
	t.Run("references that cannot be read stop it", func(t *testing.T) {
		f := setup(t)
		fill(t, filepath.Join(f.st.Root(), "roots"), map[string]string{"r2.json": "{"})
		if _, err := f.st.GC(store.GCOptions{}); failure.CodeOf(err) != failure.Artifact {
			t.Errorf("error %v", err)
		}
		if items, _ := f.st.List(); len(items) != 0 {
			t.Log("list fails as well")
		}
	})
	t.Run("locks of keys go, and what was remembered long ago", func(t *testing.T) {
		f := setup(t)
		unlock, err := f.st.Lock(ctx, "key-export-0", nil)
		if err != nil {
			t.Fatal(err)
		}
		unlock()
		fill(t, filepath.Join(f.st.Root(), "sources"), map[string]string{"new": "", "old": ""})
		past := time.Now().Add(-40 * 24 * time.Hour)
		if err := os.Chtimes(filepath.Join(f.st.Root(), "sources", "old"), past, past); err != nil {
			t.Fatal(err)
		}
		if _, err := f.st.GC(store.GCOptions{}); err != nil {
			t.Fatal(err)
		}
		for path, want := range map[string]bool{"locks/store": true, "locks/key-export-0": false, "sources/new": true, "sources/old": false} {
			if _, err := os.Stat(filepath.Join(f.st.Root(), path)); (err == nil) != want {
				t.Errorf("%s: %v", path, err)
			}
		}
	})
	t.Run("two runs of one id in two projects both keep what they refer to", func(t *testing.T) {
		f := setup(t)
		other := filepath.Join(t.TempDir(), "runs", "r1")
		fill(t, other, map[string]string{"report.json": "{}"})
		if err := f.st.SetRoot(store.Root{Run: "r1", Dir: other, Refs: []store.Ref{{Kind: artifact.ONNX, Digest: f.lone.Digest}}}); err != nil {
			t.Fatal(err)
		}
		if got, err := f.st.GC(store.GCOptions{}); err != nil || got.Kept != 2 {
			t.Errorf("%+v, error %v", got, err)
		}
	})
	t.Run("evidence goes when asked", func(t *testing.T) {
		f := setup(t)
		path := filepath.Join(f.kept.Dir, "m")
		if err := errors.Join(os.Chmod(path, 0o644), os.WriteFile(path, []byte("kepT"), 0o644)); err != nil {
			t.Fatal(err)
		}
		_, err := f.st.Open(ctx, f.kept.Record)
		d, ok := errors.AsType[*store.Damage](err)
		if !ok || d.Evidence == "" || !strings.Contains(d.Error(), "m: has the digest") {
			t.Fatalf("error %v", err)
		}
		if text, err := os.ReadFile(filepath.Join(d.Evidence, "files", "m")); err != nil || string(text) != "kepT" {
			t.Errorf("evidence %q, error %v", text, err)
		}
		if _, err := f.st.GC(store.GCOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(d.Evidence); err != nil {
			t.Error("evidence went without being asked")
		}
		if _, err := f.st.GC(store.GCOptions{Evidence: true}); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(d.Evidence); err == nil {
			t.Error("evidence is still there")
		}
	})
}

func TestFind(t *testing.T) {
	st := open(t, testkit.FastDir(t))
	a := publish(t, st, artifact.ONNX, map[string]string{"m": "a"})
	b := publish(t, st, artifact.Engine, map[string]string{"m": "b"})
	for name, tt := range map[string]struct {
		text string
		want artifact.Artifact
	}{
		"an id":                  {a.ID(), a},
		"a digest":               {string(b.Digest), b},
		"the start of an id":     {"onnx-", a},
		"the start of a digest":  {b.Digest.Short()[:6], b},
		"several artifacts":      {"", artifact.Artifact{}},
		"nothing that begins so": {"repository-", artifact.Artifact{}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := st.Find(tt.text)
			if (err == nil) != (tt.want.Dir != "") || got.Dir != tt.want.Dir {
				t.Errorf("found %s, error %v", got.Dir, err)
			}
		})
	}
	c := publish(t, st, artifact.ONNX, map[string]string{"m": "c"})
	_, err := st.Find("onnx")
	f, ok := errors.AsType[*failure.Error](err)
	if !ok || len(f.Details) != 2 || !strings.Contains(f.Error(), "2 artifacts begin with it") {
		t.Errorf("error %v for %s and %s", err, a.ID(), c.ID())
	}
}

func TestAnEntryWhoseArtifactIsGoneIsAMissAndStale(t *testing.T) {
	st := open(t, testkit.FastDir(t))
	a := publish(t, st, artifact.ONNX, map[string]string{"m": "text"})
	err := st.Record(store.Entry{Stage: "export", Key: a.Digest, Artifacts: []artifact.Record{a.Record}})
	if err := errors.Join(err, os.Chmod(filepath.Dir(a.Dir), 0o755), os.Chmod(a.Dir, 0o755), os.RemoveAll(filepath.Dir(a.Dir))); err != nil {
		t.Fatal(err)
	}
	if e, _, why, err := st.Lookup(ctx, "export", a.Digest); e != nil || err != nil || !strings.Contains(why, "not in the store") {
		t.Errorf("found %v, why %q, error %v", e, why, err)
	}
	if v, err := st.Verify(ctx); err != nil || v.Stale != 1 || len(v.Problems) > 0 {
		t.Errorf("%+v, error %v", v, err)
	}
}

func TestVerifyNamesWhatIsWrong(t *testing.T) {
	must := func(t *testing.T, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	tests := map[string]struct {
		do   func(t *testing.T, st *store.Store, a artifact.Artifact)
		want string
	}{
		"a flipped byte": {func(t *testing.T, _ *store.Store, a artifact.Artifact) {
			must(t, os.Chmod(filepath.Join(a.Dir, "m"), 0o644))
			must(t, os.WriteFile(filepath.Join(a.Dir, "m"), []byte("texT"), 0o644))
		}, "m: has the digest"},
		"a folder without a record": {func(t *testing.T, st *store.Store, _ artifact.Artifact) {
			fill(t, filepath.Join(st.Root(), "onnx", "onnx-000000000000", "files"), map[string]string{"m": ""})
		}, "record cannot be used"},
		"an artifact under another's name": {func(t *testing.T, st *store.Store, a artifact.Artifact) {
			must(t, os.Rename(filepath.Dir(a.Dir), filepath.Join(st.Root(), "onnx", "onnx-000000000000")))
		}, "its record is that of"},
		"an entry that cannot be read": {func(t *testing.T, st *store.Store, _ artifact.Artifact) {
			fill(t, filepath.Join(st.Root(), "cache", "export"), map[string]string{"x.json": "{}\n"})
		}, "cache entry cannot be read"},
		"an entry of another key": {func(t *testing.T, st *store.Store, a artifact.Artifact) {
			must(t, st.Record(store.Entry{Stage: "export", Key: a.Digest, Artifacts: []artifact.Record{a.Record}}))
			dir := filepath.Join(st.Root(), "cache", "export")
			must(t, os.Rename(filepath.Join(dir, strings.TrimPrefix(string(a.Digest), "sha256:")+".json"), filepath.Join(dir, "0.json")))
		}, "that of another key"},
		"a file that does not belong": {func(t *testing.T, st *store.Store, _ artifact.Artifact) {
			fill(t, st.Root(), map[string]string{"notes.txt": ""})
		}, "does not belong to the store"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			st := open(t, testkit.FastDir(t))
			a := publish(t, st, artifact.ONNX, map[string]string{"m": "text"})
			if p := problems(t, st); len(p) > 0 {
				t.Fatal(p)
			}
			tt.do(t, st, a)
			p := problems(t, st)
			if len(p) == 0 || !strings.Contains(p[len(p)-1].Text, tt.want) {
				t.Errorf("problems %v, want %q", p, tt.want)
			}
		})
	}
}
