package rollout_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/rollout"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/internal/triton/kserve"
	"github.com/trtship/trtship/internal/triton/server"
	"github.com/trtship/trtship/internal/triton/tritonpb"
	"github.com/trtship/trtship/internal/triton/tritontest"
	"github.com/trtship/trtship/report"
)

var tutorial = filepath.Join("..", "..", "testdata", "tutorial")

// world is a server in explicit mode with version 1, and version 2 on disk.
type world struct {
	s          *server.Server
	client     kserve.Client
	repository string
}

func newWorld(t *testing.T, control string) *world {
	t.Helper()
	w := &world{repository: t.TempDir()}
	tritontest.CopyTree(t, filepath.Join(tutorial, "corrected", "mnist"), filepath.Join(w.repository, "mnist"))
	o := server.Options{Repositories: []string{w.repository}, Control: control, Wait: []server.Want{{Model: "mnist", Version: "1"}}}
	if control == "explicit" {
		o.Load = []string{"mnist"}
	}
	w.s = tritontest.Start(t, o)
	var err error
	if w.client, err = w.s.Client(kserve.GRPC); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.client.Close() })
	tritontest.CopyTree(t, filepath.Join(tutorial, "corrected_v2", "mnist", "2"), filepath.Join(w.repository, "mnist", "2"))
	return w
}

func image() []tensor.Named {
	x := make([]float32, 28*28)
	for i := range x {
		x[i] = float32(i%13) / 13
	}
	return []tensor.Named{tritontest.Tensor("INPUT__0", []int64{1, 1, 28, 28}, x...)}
}

// traffic sends requests without a version all the time and counts who answers.
type traffic struct {
	stop    context.CancelFunc
	group   sync.WaitGroup
	lost    atomic.Int64
	mu      sync.Mutex
	by      map[string]int
	problem error
}

func (w *world) traffic(t *testing.T) *traffic {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	r := &traffic{stop: cancel, by: map[string]int{}}
	for i := range 4 {
		p := []kserve.Protocol{kserve.HTTP, kserve.GRPC}[i%2]
		c, err := w.s.Client(p)
		if err != nil {
			t.Fatal(err)
		}
		r.group.Go(func() {
			defer func() { _ = c.Close() }()
			for ctx.Err() == nil {
				// The request itself is not cut off: one that was sent must be answered.
				out, err := c.Infer(context.WithoutCancel(ctx), kserve.Request{Model: "mnist", Inputs: image()})
				r.mu.Lock()
				if err != nil {
					r.lost.Add(1)
					r.problem = err
				}
				r.by[out.Version]++
				r.mu.Unlock()
				time.Sleep(time.Millisecond) // leaves the server some of the processor
			}
		})
	}
	return r
}

func (r *traffic) end() {
	r.stop()
	r.group.Wait()
}

func pass(context.Context, string, string, *tritonpb.ModelConfig) ([]report.Check, error) {
	return []report.Check{{ID: "served/within-tolerance", Verdict: report.Pass}}, nil
}

func fail(context.Context, string, string, *tritonpb.ModelConfig) ([]report.Check, error) {
	return []report.Check{{ID: "served/within-tolerance", Verdict: report.Fail, Got: "max abs 3"}}, nil
}

// answers returns the version that a new request gets.
func (w *world) answers(t *testing.T) string {
	t.Helper()
	out, err := w.client.Infer(t.Context(), kserve.Request{Model: "mnist", Inputs: image()})
	if err != nil {
		t.Fatal(err)
	}
	return out.Version
}

// candidateLeft reports what is left of the name under which a version is tried.
func (w *world) candidateLeft(t *testing.T) {
	t.Helper()
	entries, err := os.ReadDir(w.repository)
	if err != nil || len(entries) != 1 {
		t.Errorf("the repository holds %d folders, %v", len(entries), err)
	}
	index, err := w.client.Index(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range index {
		if m.GetName() != "mnist" {
			t.Errorf("%s is still loaded", m.GetName())
		}
	}
}

func TestASwapUnderLoadLosesNoRequest(t *testing.T) {
	w := newWorld(t, "explicit")
	load := w.traffic(t)
	var asked []string
	judge := func(ctx context.Context, model, version string, loaded *tritonpb.ModelConfig) ([]report.Check, error) {
		asked = append(asked, model+"/"+version)
		c := kserve.Model{Client: w.client, Name: model, Version: version}
		if _, err := c.Infer(ctx, image()); err != nil {
			return nil, err
		}
		if loaded.GetName() != model {
			t.Errorf("the configuration of %s", loaded.GetName())
		}
		load.mu.Lock()
		defer load.mu.Unlock()
		if model != "mnist" && load.by["2"] > 0 {
			t.Error("requests reached version 2 before it was validated")
		}
		return pass(ctx, model, version, loaded)
	}
	res, err := rollout.Swap(t.Context(), rollout.SwapOptions{Client: w.client, Repository: w.repository, Model: "mnist", Validate: judge, Confirm: judge})
	load.end()
	if err != nil {
		t.Fatalf("%v\n%v", err, res.Steps)
	}
	if !res.Swapped || res.RolledBack || res.To != "2" || !slices.Equal(res.From, []string{"1"}) || !slices.Equal(asked, []string{"mnist--candidate/2", "mnist/2"}) {
		t.Errorf("%+v %v", res, asked)
	}
	if load.lost.Load() != 0 {
		t.Errorf("%d requests were lost: %v", load.lost.Load(), load.problem)
	}
	if load.by["1"] == 0 || load.by["2"] == 0 || w.answers(t) != "2" {
		t.Errorf("answered by %v, at the end by %s", load.by, w.answers(t))
	}
	w.candidateLeft(t)
}

func TestAVersionThatDoesNotHoldNeverTakesOver(t *testing.T) {
	w := newWorld(t, "explicit")
	load := w.traffic(t)
	res, err := rollout.Swap(t.Context(), rollout.SwapOptions{Client: w.client, Repository: w.repository, Model: "mnist", Validate: fail})
	load.end()
	if err != nil || res.Swapped || res.RolledBack || len(res.Checks) != 1 {
		t.Errorf("%v %+v", err, res)
	}
	if load.lost.Load() != 0 || load.by["2"] != 0 {
		t.Errorf("%d lost (%v), answered by %v", load.lost.Load(), load.problem, load.by)
	}
	w.candidateLeft(t)
}

func TestAVersionThatFailsInItsPlaceIsRolledBackWithoutALoss(t *testing.T) {
	w := newWorld(t, "explicit")
	load := w.traffic(t)
	res, err := rollout.Swap(t.Context(), rollout.SwapOptions{Client: w.client, Repository: w.repository, Model: "mnist", Validate: pass, Confirm: fail})
	load.end()
	if err != nil || res.Swapped || !res.RolledBack {
		t.Errorf("%v %+v", err, res)
	}
	if load.lost.Load() != 0 || load.by["2"] == 0 || w.answers(t) != "1" {
		t.Errorf("%d lost (%v), answered by %v, at the end by %s", load.lost.Load(), load.problem, load.by, w.answers(t))
	}
	w.candidateLeft(t)
}

func TestAVersionThatDoesNotLoadChangesNothing(t *testing.T) {
	w := newWorld(t, "explicit")
	if err := os.WriteFile(filepath.Join(w.repository, "mnist", "2", "model.onnx"), []byte("broken"), 0o644); err != nil {
		t.Fatal(err)
	}
	res, err := rollout.Swap(t.Context(), rollout.SwapOptions{Client: w.client, Repository: w.repository, Model: "mnist", Validate: pass})
	if err != nil || res.Swapped || len(res.Checks) != 1 || res.Checks[0].Verdict != report.Fail {
		t.Errorf("%v %+v", err, res)
	}
	if ok, err := w.client.ModelReady(t.Context(), "mnist", "1"); !ok || err != nil {
		t.Errorf("version 1: %v %v", ok, err)
	}
	w.candidateLeft(t)
}

func TestWhatCannotBeSwapped(t *testing.T) {
	w := newWorld(t, "")
	swap := func(o rollout.SwapOptions) error {
		o.Client, o.Validate = w.client, pass
		if o.Repository == "" {
			o.Repository = w.repository
		}
		_, err := rollout.Swap(t.Context(), o)
		return err
	}
	for name, c := range map[string]struct {
		o    rollout.SwapOptions
		want string
	}{
		"a server without explicit control": {rollout.SwapOptions{Model: "mnist"}, "not allowed"},
		"a model that is not there":         {rollout.SwapOptions{Model: "nobody"}, "no such file"},
		"a version that is not there":       {rollout.SwapOptions{Model: "mnist", Version: 9}, "version 9 of mnist is not in the repository"},
		"the version that is served":        {rollout.SwapOptions{Model: "mnist", Version: 1}, "served already"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := swap(c.o); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v", err)
			}
		})
	}
	tritontest.Write(t, w.repository, "other/config.pbtxt", "max_batch_size: 1")
	if err := swap(rollout.SwapOptions{Model: "other"}); failure.CodeOf(err) != failure.Triton || !strings.Contains(err.Error(), "not ready on the server") {
		t.Errorf("got %v", err)
	}
	tritontest.Write(t, w.repository, "other/config.pbtxt", "batching_option [ ]")
	if err := swap(rollout.SwapOptions{Model: "other"}); failure.CodeOf(err) != failure.Triton || !strings.Contains(err.Error(), "1:1") {
		t.Errorf("got %v", err)
	}
	boom := errors.New("boom")
	_ = os.RemoveAll(filepath.Join(w.repository, "other"))
	_, err := rollout.Swap(t.Context(), rollout.SwapOptions{Client: w.client, Repository: w.repository, Model: "mnist", Validate: func(context.Context, string, string, *tritonpb.ModelConfig) ([]report.Check, error) { return nil, boom }})
	if err == nil {
		t.Error("it swapped")
	}
	w.candidateLeft(t)
}
