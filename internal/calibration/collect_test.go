package calibration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trtship/trtship/internal/dataset"
	"github.com/trtship/trtship/internal/failpoint"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/ort"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/internal/testkit"
)

// rows is a data set of random rows in batches.
type rows struct {
	data    tensor.Tensor
	batch   int
	name    string
	started int // Batches calls
}

func (r *rows) Batches(_ context.Context, from int) iter.Seq2[dataset.Batch, error] {
	r.started++
	return func(yield func(dataset.Batch, error) bool) {
		n := int(r.data.Shape[0])
		for at := from; at < n; at += r.batch {
			end := min(at+r.batch, n)
			b := dataset.Batch{First: at, Samples: end - at, Tensors: []tensor.Named{{Name: r.name, Tensor: r.data.Rows(int64(at), int64(end))}}}
			for i := at; i < end; i++ {
				b.Digests = append(b.Digests, [32]byte{byte(i), byte(i >> 8)})
			}
			if !yield(b, nil) {
				return
			}
		}
	}
}

// caseModel is x -> Mul by 2 -> Relu.
const caseModel = cases + "/model.onnx"

func options(t *testing.T, n int) (CollectOptions, *rows) {
	t.Helper()
	v := sample(4, n*4)
	feeds := &rows{data: tensor.FromFloat32s([]int64{int64(n), 4}, v), batch: 8, name: "data:0"}
	return CollectOptions{
		Library: ort.Library{Path: testkit.ORTLibrary(t)}, Model: caseModel, Tensors: caseGraph.Tensors, Interface: []string{"data:0", "y"},
		Feeds: feeds, Samples: n, Key: "k", Every: time.Nanosecond,
	}, feeds
}

func mustCollect(t *testing.T, o CollectOptions) *Collected {
	t.Helper()
	c, err := Collect(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestCollectSeesInputsIntermediatesAndOutputs(t *testing.T) {
	o, feeds := options(t, 40)
	c := mustCollect(t, o)
	x := feeds.data.Float32s()
	want := map[string]*Observer{"data:0": NewObserver(), "/mul/Mul_output_0": NewObserver(), "y": NewObserver()}
	for _, v := range x {
		want["data:0"].Add([]float32{v})
		want["/mul/Mul_output_0"].Add([]float32{2 * v})
		want["y"].Add([]float32{max(2*v, 0)})
	}
	if d := cmp.Diff(want, c.Observers); d != "" {
		t.Error(d)
	}
	if c.Audit.Samples != 40 || c.Passes != 1 || c.Resumed != 0 || !strings.HasPrefix(c.Runtime, "1.") {
		t.Errorf("%+v", c)
	}
}

func TestInterruptedCollectionGoesOnAndGivesTheSame(t *testing.T) {
	o, _ := options(t, 100)
	want := mustCollect(t, o)
	for _, after := range []int{0, 3, 7, 11} {
		o, _ := options(t, 100)
		o.Checkpoint = filepath.Join(t.TempDir(), "state", "c.json")
		if err := failpoint.Arm(fmt.Sprintf("calibrate.batch.done:eio:%d", after)); err != nil {
			t.Fatal(err)
		}
		_, err := Collect(context.Background(), o)
		if !errors.Is(err, syscall.EIO) {
			t.Fatalf("after %d: %v", after, err)
		}
		failpoint.Disarm()
		got := mustCollect(t, o)
		if d := cmp.Diff(want.Observers, got.Observers); d != "" {
			t.Errorf("after %d batches: %s", after, d)
		}
		if got.Audit.Feeds() != want.Audit.Feeds() || got.Audit.Distinct() != 100 {
			t.Errorf("after %d batches: another account of what was fed", after)
		}
		if wantResumed := after * 8; got.Resumed != wantResumed {
			t.Errorf("after %d batches: went on after %d samples, want %d", after, got.Resumed, wantResumed)
		}
		Discard(o.Checkpoint)
		if _, err := os.Stat(o.Checkpoint); err == nil {
			t.Error("the checkpoint is still there")
		}
	}
}

func TestForeignAndDamagedCheckpointsAreNotUsed(t *testing.T) {
	o, _ := options(t, 40)
	want := mustCollect(t, o)
	o.Checkpoint = filepath.Join(t.TempDir(), "c.json")
	if err := failpoint.Arm("calibrate.batch.done:eio:2"); err != nil {
		t.Fatal(err)
	}
	if _, err := Collect(context.Background(), o); err == nil {
		t.Fatal("the failpoint was not hit")
	}
	failpoint.Disarm()
	good, err := os.ReadFile(o.Checkpoint)
	if err != nil {
		t.Fatal(err)
	}
	var doc map[string]any
	if err := json.Unmarshal(good, &doc); err != nil {
		t.Fatal(err)
	}
	with := func(key string, v any) []byte {
		c := map[string]any{}
		for k, old := range doc {
			c[k] = old
		}
		c[key] = v
		b, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for name, text := range map[string][]byte{
		"half a file": good[:len(good)/2], "no JSON": []byte("hello"), "another key": with("key", "other"), "another format": with("format", "x/9"),
		"a group that is none": with("group", 7), "damaged observers": with("observers", []byte("{}x")), "truncated observers": with("observers", []byte(`{"y":"AA=="}`)),
	} {
		if err := os.WriteFile(o.Checkpoint, text, 0o644); err != nil {
			t.Fatal(err)
		}
		got := mustCollect(t, o)
		if d := cmp.Diff(want.Observers, got.Observers); d != "" || got.Resumed != 0 {
			t.Errorf("%s: resumed after %d: %s", name, got.Resumed, d)
		}
	}
}

func TestGroupsOfTensorsGiveTheSame(t *testing.T) {
	o, _ := options(t, 40)
	want := mustCollect(t, o)
	got := group([]string{"a", "b", "c", "d"}, map[string]int64{"a": 3, "b": 3, "c": 7, "d": 1}, 2, 14)
	if d := cmp.Diff([][]string{{"a", "b"}, {"c"}, {"d"}}, got); d != "" {
		t.Error(d)
	}
	for _, interrupt := range []bool{false, true} {
		o, _ = options(t, 40)
		c := &collector{CollectOptions: o, all: newObservers(), audit: dataset.NewAudit(), groups: [][]string{{"data:0"}, {"/mul/Mul_output_0", "y"}}}
		c.Progress = func(int64, int64, string) {}
		if interrupt {
			c.Checkpoint = filepath.Join(t.TempDir(), "c.json")
			if err := failpoint.Arm("calibrate.batch.done:eio:7"); err != nil { // in the second pass
				t.Fatal(err)
			}
		}
		var err error
		for c.group < len(c.groups) && err == nil {
			err = c.pass(context.Background())
		}
		if interrupt {
			failpoint.Disarm()
			if err == nil {
				t.Fatal("the failpoint was not hit")
			}
			o.Checkpoint = c.Checkpoint
			again := mustCollect(t, o)
			if again.Passes != 2 || again.Resumed != 16 {
				t.Errorf("%d passes, went on after %d", again.Passes, again.Resumed)
			}
			c.all.byName, c.audit = again.Observers, again.Audit
		} else if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want.Observers, c.all.byName); d != "" {
			t.Errorf("interrupted %t: %s", interrupt, d)
		}
		if c.audit.Samples != 40 {
			t.Errorf("%d samples fed, want every one counted once", c.audit.Samples)
		}
	}
}

func TestCollectOfNothingIsRefused(t *testing.T) {
	o, feeds := options(t, 40)
	feeds.data.Shape[0] = 0
	if _, err := Collect(context.Background(), o); failure.CodeOf(err) != failure.Calibration {
		t.Errorf("error %v", err)
	}
}

func TestCollectNamesTheSamplesOfARunThatFails(t *testing.T) {
	o, feeds := options(t, 40)
	bad := tensor.FromFloat32s([]int64{8, 5}, make([]float32, 40))
	feeds.data = bad
	_, err := Collect(context.Background(), o)
	if err == nil {
		t.Fatal("rows of another width were accepted")
	}
}

func TestRanges(t *testing.T) {
	o, bad := NewObserver(), NewObserver()
	for range 9999 {
		o.Add([]float32{1})
	}
	o.Add([]float32{-100})
	bad.Add([]float32{1, float32(math.NaN())})
	got, err := Ranges(map[string]*Observer{"o": o, "bad": bad, "none": NewObserver()}, Rule{Method: Percentile, Percentile: 99.9}, map[string]string{"o": "/node"})
	if err != nil {
		t.Fatal(err)
	}
	if got[0].Name != "bad" || got[0].Used || got[1].Used || !got[2].Used {
		t.Errorf("used: %+v", got)
	}
	r := got[2]
	if r.Node != "/node" || r.Min != -100 || r.Max != 1 || r.AbsMax != 100 || float64(r.Threshold) > 1.01 || float64(r.Threshold) < 0.9 {
		t.Errorf("range %+v", r)
	}
	if c := float64(r.Clipped); c < 0.5e-4 {
		t.Errorf("clipped %g", c)
	}
	if _, err := Ranges(map[string]*Observer{"o": o}, Rule{Method: "kl"}, nil); err == nil {
		t.Error("an unknown method gave ranges")
	}
}

func TestStructureIsOfTheGraphNotOfItsWeights(t *testing.T) {
	read := func() *onnx.Model {
		m, err := onnx.Open(caseModel)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Close() })
		return m
	}
	a, b, c := read(), read(), read()
	other := onnx.NewTensor("k", tensor.FromFloat32s([]int64{}, []float32{7}))
	b.Proto.Graph.Initializer[0] = other
	op := "Sigmoid"
	c.Proto.Graph.Node[1].OpType = &op
	if Structure(a) != Structure(b) {
		t.Error("another weight changes the structure")
	}
	if Structure(a) == Structure(c) {
		t.Error("another operator has the same structure")
	}
}
