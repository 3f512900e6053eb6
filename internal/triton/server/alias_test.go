package server_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/internal/triton/kserve"
	"github.com/trtship/trtship/internal/triton/server"
	"github.com/trtship/trtship/internal/triton/tritontest"
)

func aliases(t *testing.T) int {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(os.TempDir(), "trtship-????????"))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, dir := range left {
		if _, err := os.Lstat(filepath.Join(dir, "scratch")); err == nil {
			n++
		}
	}
	return n
}

// TestNamesOfFoldersMeanNothing serves from folders whose names a shell, PATH
// or Python would read as something else.
func TestNamesOfFoldersMeanNothing(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir()) // so that no other test's links are counted
	odd := filepath.Join(t.TempDir(), "a b:c'd\"e$HOME\nü;😀*")
	model := filepath.Join(odd, "models")
	tritontest.CopyTree(t, filepath.Join(cases, "s02-layout", "no_name"), filepath.Join(model, "no_name"))
	scratch := filepath.Join(odd, "scratch")
	if err := os.MkdirAll(scratch, 0o700); err != nil {
		t.Fatal(err)
	}
	in := tensor.Named{Name: "x", Tensor: tensor.Tensor{DType: tensor.Float32, Shape: []int64{2, 4}, Data: make([]byte, 32)}}
	ask := func(address string) {
		t.Helper()
		c, err := kserve.Open(kserve.Options{Protocol: kserve.HTTP, Address: address})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		if out, err := (kserve.Model{Client: c, Name: "no_name"}).Infer(t.Context(), []tensor.Named{in}); err != nil || len(out) != 1 {
			t.Errorf("%v %v", out, err)
		}
	}
	o := server.Options{Repositories: []string{model}, Wait: []server.Want{{Model: "no_name", Version: "1"}}, Scratch: scratch}
	s := tritontest.Start(t, o)
	ask(s.HTTP)
	if n := aliases(t); n != 1 {
		t.Errorf("%d folders of links while it runs", n)
	}
	s.Stop()

	o.Installation = tritontest.Installation(t)
	state := filepath.Join(odd, "servers")
	st, err := server.Serve(t.Context(), state, "m", o)
	if err != nil {
		t.Fatal(err)
	}
	ask(st.HTTP)
	if err := server.Stop(t.Context(), state, "m", nil); err != nil {
		t.Error(err)
	}
	o.Wait = []server.Want{{Model: "absent"}}
	o.Scratch = filepath.Join(odd, "scratch2")
	if err := os.MkdirAll(o.Scratch, 0o700); err != nil {
		t.Fatal(err)
	}
	o.ReadyTimeout = 1
	if _, err := server.Start(t.Context(), o); err == nil {
		t.Error("a model that is not there is ready")
	}
	if n := aliases(t); n != 0 {
		t.Errorf("%d folders of links are left", n)
	}
	if _, err := os.Stat(filepath.Join(model, "no_name", "config.pbtxt")); err != nil {
		t.Error("what the links led to is gone")
	}
}
