package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/engine"
	"github.com/trtship/trtship/internal/engine/enginetest"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/internal/testkit"
	"github.com/trtship/trtship/internal/worker"
	"github.com/trtship/trtship/internal/worker/workertest"
)

func TestMain(m *testing.M) {
	child := &enginetest.Child{Factor: 2, Phases: map[string][]float64{"compute": {1, 2}}}
	workertest.RunChildIfAsked(func(method string, params json.RawMessage) (any, error) {
		var result json.RawMessage
		err := child.Call(method, params, &result)
		return result, err
	})
	testkit.Main(m)
}

// The child with TensorRT goes wrong at each of its messages while a plan is
// built, opened, run and measured.
func TestTheEngineChildGoesWrongAtEachMessage(t *testing.T) {
	testkit.NoChildren(t)
	const messages = 2 * 5
	talk := func(fault string, at int) (string, error) {
		dir := t.TempDir()
		onnx := filepath.Join(dir, "model.onnx")
		if err := os.WriteFile(onnx, []byte("graph"), 0o600); err != nil {
			t.Fatal(err)
		}
		w, err := worker.Start(context.Background(), workertest.Options(t, fault, at))
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close() //nolint:errcheck // it only ends the child
		r := engine.RequestOf(config.Defaults().TensorRT, "fp32", onnx, filepath.Join(dir, "model.plan"))
		r.TimingOut = filepath.Join(dir, "timing.cache")
		r.Profiles = []engine.Profile{{"x": engine.Range{Min: []int64{1, 4}, Opt: []int64{1, 4}, Max: []int64{2, 4}}}}
		d, err := engine.Build(w, r)
		if err != nil {
			return "", err
		}
		s, err := engine.Open(w, r.Plan, d, dir)
		if err != nil {
			return "", err
		}
		in := []tensor.Named{{Name: "x", Tensor: tensor.FromFloat32s([]int64{1, 4}, []float32{1, 2, 3, 4})}}
		out, err := s.Infer(context.Background(), in)
		if err != nil {
			return "", err
		}
		timing, err := s.Benchmark(engine.Load{Inputs: in, Streams: 1, Iters: 2, MaxSeconds: 1})
		if err != nil {
			return "", err
		}
		if err := s.Close(); err != nil {
			return "", err
		}
		return fmt.Sprint(d.TensorRT, out[0].Data, timing.Phases), nil
	}
	want, err := talk("", -1)
	if err != nil {
		t.Fatal(err)
	}
	var tried, failures int64
	for at := range messages {
		for _, fault := range workertest.Faults {
			if workertest.Slow(fault) && at > 1 {
				continue
			}
			tried++
			got, err := talk(fault, at)
			_, crashed := errors.AsType[*worker.Crash](err)
			if crashed || fault == "an error of nothing" && failure.CodeOf(err) == failure.Bug || err == nil && got == want && fault == "twice" {
				continue
			}
			failures++
			t.Errorf("%s at message %d: got %q, %v", fault, at, got, err)
		}
	}
	testkit.RecordFaults(t, testkit.FaultRow{Kind: "engine child goes wrong at a message", Tried: tried, Failures: failures, Detail: fmt.Sprintf("%d messages, %d ways", messages, len(workertest.Faults))})
}
