package store_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/store"
	"github.com/trtship/trtship/internal/testkit"
)

// everything does all that a store can do, and returns the errors.
func everything(t *testing.T, root, outside string, fsys store.FS) []error {
	t.Helper()
	st, err := store.Open(ctx, root, store.WithFS(fsys), store.WithClock(later))
	if err != nil {
		return []error{err}
	}
	var errs []error
	note := func(err error) { errs = append(errs, err) }
	dir, err := st.Scratch("x")
	note(err)
	var a artifact.Artifact
	if err == nil {
		fill(t, dir, map[string]string{"m": "text", "d/e": "f"})
		a, err = st.Publish(ctx, store.Draft{Kind: artifact.ONNX}, dir)
		note(err)
	}
	_, err = st.Put(ctx, store.Draft{Kind: artifact.Engine}, store.Source{Path: filepath.Join(outside, "in")})
	note(err)
	key := artifact.NewKey("export", 1)
	if len(a.Files) > 0 {
		_, err = st.Open(ctx, a.Record)
		note(err)
		note(st.Record(store.Entry{Stage: "export", Key: key.Digest(), Artifacts: []artifact.Record{a.Record}}))
		note(st.CopyOut(ctx, a, filepath.Join(outside, "out"), ""))
	}
	_, _, _, err = st.Lookup(ctx, "export", key.Digest())
	note(err)
	_, err = st.HashSource(ctx, outside, false)
	note(err)
	note(st.SetLastParts("p", "export", key.Parts()))
	st.LastParts("p", "export")
	note(st.SetRoot(store.Root{Run: "r", Dir: outside}))
	_, err = st.Verify(ctx)
	note(err)
	_, err = st.Find("engine")
	note(err)
	_, err = st.GC(store.GCOptions{Evidence: true})
	note(err)
	note(st.Close())
	return errs
}

func TestEveryOperationOfTheStoreFails(t *testing.T) {
	setup := func() (root, outside string) {
		outside = testkit.FastDir(t)
		fill(t, outside, map[string]string{"in/a": "1", "in/b": "2"})
		return testkit.FastDir(t), outside
	}
	count := &testkit.FaultFS{FS: store.OS{}}
	root, outside := setup()
	for _, err := range everything(t, root, outside, count) {
		if err != nil {
			t.Fatal(err)
		}
	}
	kinds := []error{syscall.ENOSPC, syscall.EIO, syscall.EACCES, syscall.EROFS}
	var tried, failures int64
	for at := int64(1); at <= count.Count(); at++ {
		fsys := &testkit.FaultFS{FS: store.OS{}, At: at, Err: kinds[int(at)%len(kinds)], Short: at%2 == 0}
		root, outside := setup()
		why := ""
		for _, err := range everything(t, root, outside, fsys) {
			if _, damage := errors.AsType[*store.Damage](err); err != nil && failure.CodeOf(err) != failure.Artifact && !damage {
				why = fmt.Sprintf("error with code %d: %v", failure.CodeOf(err), err)
			}
		}
		tried++
		st, err := store.Open(ctx, root)
		if err != nil {
			t.Fatalf("operation %d (%s): the next open: %v", at, fsys.Hit(), err)
		}
		if p := problems(t, st); len(p) > 0 {
			why = fmt.Sprint(p)
		}
		if left := st.Leftovers(); len(left) > 0 {
			why = fmt.Sprint("left behind: ", left)
		}
		if err := st.Close(); err != nil {
			why = err.Error()
		}
		if why != "" {
			failures++
			t.Errorf("operation %d (%s) fails with %v: %s", at, fsys.Hit(), fsys.Err, why)
		}
	}
	testkit.RecordFaults(t, testkit.FaultRow{Kind: "file operation of the store fails", Tried: tried, Failures: failures})
}
