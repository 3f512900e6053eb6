package ort

import (
	"bufio"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/tensor"
)

// talk runs the child's side inside the test, so that its own errors are seen.
type talk struct {
	t    *testing.T
	w    *bufio.Writer
	end  io.Closer
	r    *bufio.Reader
	done chan error
	next int64
}

func newTalk(t *testing.T) *talk {
	t.Helper()
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	k := &talk{t: t, w: bufio.NewWriter(inW), end: inW, r: bufio.NewReader(outR), done: make(chan error, 1)}
	go func() {
		err := serve(inR, outW)
		outW.Close()
		k.done <- err
	}()
	t.Cleanup(func() { inW.Close() })
	return k
}

func (k *talk) ask(q request, feed ...tensor.Named) reply {
	k.t.Helper()
	k.next++
	q.ID = k.next
	var bodies [][]byte
	q.Tensors, bodies = announce(feed)
	if err := send(k.w, q, bodies); err != nil {
		k.t.Fatal(err)
	}
	var a reply
	if err := receiveLine(k.r, &a); err != nil {
		k.t.Fatal(err)
	}
	var err error
	if a.outputs, err = receiveTensors(k.r, a.Tensors); err != nil {
		k.t.Fatal(err)
	}
	if a.ID != k.next {
		k.t.Errorf("reply %d to request %d", a.ID, k.next)
	}
	return a
}

func (k *talk) close() error {
	k.end.Close()
	return <-k.done
}

func TestTheChildAnswersInOrderAndNamesItsRefusals(t *testing.T) {
	lib := library(t)
	k := newTalk(t)
	load := &loadRequest{Library: lib.Path, Model: identity(t, []int64{-1}, tensor.Float32, tensor.String, tensor.Float16), Options: sessionOptions{Threads: 1}}
	if a := k.ask(request{Op: opInfer}); a.Error == nil || !strings.Contains(a.Error.Message, "before a model is loaded") {
		t.Errorf("a run without a model: %+v", a.Error)
	}
	if a := k.ask(request{Op: opVersion, Load: load}); a.Error != nil || a.Version != lib.Version {
		t.Errorf("version = %q, %v", a.Version, a.Error)
	}
	if a := k.ask(request{Op: opVersion, Load: &loadRequest{Library: "/none.so"}}); a.Error == nil {
		t.Error("a library that is not there has a version")
	}
	if a := k.ask(request{Op: opLoad, Load: &loadRequest{Library: lib.Path, Model: "/none.onnx"}}); a.Error == nil || a.Error.Code == 0 {
		t.Errorf("a model that is not there: %+v", a.Error)
	}
	if a := k.ask(request{Op: opLoad, Load: &loadRequest{Library: lib.Path, Model: "/none.onnx", ExtraOutputs: []string{"x"}}}); a.Error == nil {
		t.Error("a model that is not there was extended")
	}
	if a := k.ask(request{Op: opLoad, Load: load}); a.Error != nil || len(a.Inputs) != 3 || a.LoadMs <= 0 {
		t.Fatalf("load: %+v", a)
	}
	feed := []tensor.Named{
		{Name: "in_float32", Tensor: tensor.FromFloat64s(tensor.Float32, []int64{2}, []float64{1, math.Inf(1)})},
		{Name: "in_string", Tensor: tensor.FromStrings([]int64{1}, []string{"a\x00"})},
		{Name: "in_float16", Tensor: tensor.Zeros(tensor.Float16, 0)},
	}
	a := k.ask(request{Op: opInfer}, feed...)
	for i, o := range a.outputs {
		if !o.Tensor.Equal(feed[i].Tensor) {
			t.Errorf("%s = %v", o.Name, o.Tensor)
		}
	}
	if a := k.ask(request{Op: opInfer}, feed[0]); a.Error == nil {
		t.Error("a run with inputs missing")
	}
	if a := k.ask(request{Op: "dance"}); a.Error == nil || !strings.Contains(a.Error.Message, `"dance" is not known`) {
		t.Errorf("an unknown request: %+v", a.Error)
	}
	if a := k.ask(request{Op: opEndProfile}); a.Error == nil {
		t.Error("a profile without profiling")
	}
	if a := k.ask(request{Op: opBenchmark, Benchmark: &BenchmarkRequest{Workers: 2, Iters: 5}}, feed...); a.Error != nil || len(a.Benchmark.Samples) != 10 {
		t.Errorf("benchmark: %+v", a.Error)
	}
	if a := k.ask(request{Op: opBenchmark, Benchmark: &BenchmarkRequest{Workers: 2, Iters: 5}}, feed[0]); a.Error == nil {
		t.Error("measured with inputs missing")
	}
	if err := k.close(); err != nil {
		t.Errorf("the end of requests is an error: %v", err)
	}
}

func TestTheChildProfilesAndTakesOptions(t *testing.T) {
	k := newTalk(t)
	load := &loadRequest{
		Library: library(t).Path, Model: identity(t, []int64{-1}, tensor.Float32), ExtraOutputs: []string{"in_float32"},
		Options: sessionOptions{Threads: 1, Profile: filepath.Join(t.TempDir(), "p"), Entries: map[string]string{"session.use_env_allocators": "0"}},
	}
	if a := k.ask(request{Op: opLoad, Load: load}); a.Error != nil || len(a.Outputs) != 2 {
		t.Fatalf("load: %+v", a)
	}
	if a := k.ask(request{Op: opEndProfile}); a.Error != nil || a.Path == "" {
		t.Errorf("profile: %+v", a)
	}
	_ = k.close()
}

func TestNonsenseOnThePipeEndsTheChild(t *testing.T) {
	for name, text := range map[string]string{
		"no JSON":               "hello\n",
		"a negative length":     `{"id":1,"op":"infer","tensors":[{"name":"x","dtype":"float32","shape":[1],"bytes":-4}]}` + "\n",
		"a length beyond sense": `{"id":1,"op":"infer","tensors":[{"name":"x","dtype":"float32","shape":[1],"bytes":9000000000000}]}` + "\n",
		"another length":        `{"id":1,"op":"infer","tensors":[{"name":"x","dtype":"float32","shape":[2],"bytes":4}]}` + "\nabcd",
		"strings cut off":       `{"id":1,"op":"infer","tensors":[{"name":"x","dtype":"string","shape":[1],"bytes":4}]}` + "\n\x09\x00\x00\x00",
	} {
		if err := serve(strings.NewReader(text), io.Discard); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if err := serve(strings.NewReader(`{"id":1,"op":"x"}`+"\n"), brokenPipe{}); err == nil {
		t.Error("a broken pipe: no error")
	}
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

func TestStatusBytes(t *testing.T) {
	if n, err := statusBytes("VmHWM"); err != nil || n < 1<<20 {
		t.Errorf("VmHWM = %d, %v", n, err)
	}
	if _, err := statusBytes("None"); err == nil {
		t.Error("a field that is not there was read")
	}
}

func TestFindLooksInItsOrder(t *testing.T) {
	dir := t.TempDir()
	file := func(parts ...string) string {
		path := filepath.Join(append([]string{dir}, parts...)...)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	named := file("named", "libonnxruntime.so.1.2.3")
	venv := file("venv", "lib", "python3.11", "site-packages", "onnxruntime", "capi", "libonnxruntime.so.1.4.0")
	python := file("venv", "bin", "python")
	file("venv", "pyvenv.cfg")
	loader := file("loader", "libonnxruntime.so.1.5.0")
	file("loader", "libonnxruntime.so.1")
	// An isolated environment does not see the packages of the Python it was made of.
	file("base", "lib", "python3.11", "site-packages", "onnxruntime", "capi", "libonnxruntime.so.9.9.9")
	base := file("base", "bin", "python")
	if err := os.MkdirAll(filepath.Join(dir, "isolated", "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	isolated := filepath.Join(dir, "isolated", "bin", "python")
	if err := os.Symlink(base, isolated); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "isolated", "pyvenv.cfg"), []byte("home = x\ninclude-system-site-packages = false\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	sharing := filepath.Join(dir, "sharing", "bin", "python")
	if err := os.MkdirAll(filepath.Dir(sharing), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(base, sharing); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "sharing", "pyvenv.cfg"), []byte("include-system-site-packages = true\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	loaderPath := []string{"relative", filepath.Join(dir, "loader")}
	cases := map[string]struct {
		places  Places
		path    string
		version string
	}{
		"the file that is named":       {Places{File: named, Python: python, LoaderPath: loaderPath}, named, "1.2.3"},
		"the package of the Python":    {Places{Python: python, LoaderPath: loaderPath}, venv, "1.4.0"},
		"the loader's path":            {Places{Python: isolated, LoaderPath: loaderPath}, loader, "1.5.0"},
		"the packages of the base":     {Places{Python: sharing}, filepath.Join(dir, "base", "lib", "python3.11", "site-packages", "onnxruntime", "capi", "libonnxruntime.so.9.9.9"), "9.9.9"},
		"a Python without the package": {Places{Python: file("other", "bin", "python"), LoaderPath: loaderPath}, loader, "1.5.0"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := Find(t.Context(), c.places)
			if err != nil || got.Path != c.path || got.Version != c.version || got.Source == "" {
				t.Errorf("got %+v, %v; want %s, %s", got, err, c.path, c.version)
			}
		})
	}
	if _, err := Find(t.Context(), Places{File: filepath.Join(dir, "gone.so"), LoaderPath: loaderPath}); failure.CodeOf(err) != failure.Missing {
		t.Errorf("a named file that is gone: %v", err)
	}
	if _, err := Find(t.Context(), Places{File: file("named", "odd.so")}); failure.CodeOf(err) != failure.Missing {
		t.Errorf("a file that is no library: %v", err)
	}
}

func TestALibraryWithoutAVersionInItsNameIsAsked(t *testing.T) {
	lib := library(t)
	path := filepath.Join(t.TempDir(), "mine.so")
	b, err := os.ReadFile(lib.Path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b, 0o700); err != nil {
		t.Fatal(err)
	}
	got, err := Find(t.Context(), Places{File: path})
	if err != nil || got.Version != lib.Version {
		t.Errorf("got %+v, %v; want version %s", got, err, lib.Version)
	}
}

func TestALibraryThatIsNoONNXRuntime(t *testing.T) {
	for _, c := range []string{"/lib/x86_64-linux-gnu/libm.so.6", "/usr/lib/x86_64-linux-gnu/libm.so.6", "/lib64/libm.so.6", "/usr/lib/aarch64-linux-gnu/libm.so.6"} {
		if _, err := os.Stat(c); err == nil {
			if _, err := openNative(c); err == nil || !strings.Contains(err.Error(), "no ONNX Runtime library") {
				t.Errorf("err = %v", err)
			}
			return
		}
	}
	t.Fatal("no libm found: extend the list")
}

func TestTheLastWordsOfAChildAreNoTrace(t *testing.T) {
	for text, want := range map[string]string{
		"a warning\nfatal error: runtime: out of memory\n\ngoroutine 1:\nmain.main()": "fatal error: runtime: out of memory",
		"1\n2\n3\n4\n5\n6\n": "2\n3\n4\n5\n6",
		"":                   "",
	} {
		if got := lastWords(text); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
