package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/testkit"
	"github.com/trtship/trtship/internal/worker"
	"github.com/trtship/trtship/internal/worker/workertest"
)

// echo is what the child that goes wrong answers.
func echo(method string, params json.RawMessage) (any, error) {
	return map[string]any{"method": method, "params": params}, nil
}

// A child that dies, hangs or talks nonsense at any of its messages is an error
// that says so; what it said before counts, and no process is left.
func TestTheChildGoesWrongAtEachMessage(t *testing.T) {
	testkit.NoChildren(t)
	const calls = 3
	talk := func(fault string, at int) (string, error) {
		w, err := worker.Start(context.Background(), workertest.Options(t, fault, at))
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close() //nolint:errcheck // it only ends the child
		all := ""
		for i := range calls {
			var got struct {
				Method string
				Params struct{ N int }
			}
			if err := w.Call("torch.echo", map[string]int{"n": i}, &got); err != nil {
				return all, err
			}
			all += fmt.Sprintf("%s %d;", got.Method, got.Params.N)
		}
		return all, nil
	}
	want, err := talk("", -1)
	if err != nil {
		t.Fatal(err)
	}
	var tried, failures int64
	for at := range 2 * calls {
		for _, fault := range workertest.Faults {
			if workertest.Slow(fault) && at > 1 {
				continue
			}
			tried++
			got, err := talk(fault, at)
			_, crashed := errors.AsType[*worker.Crash](err)
			switch {
			case err == nil && got == want && fault == "twice": // progress, or nobody asked any more
			case fault == "an error of nothing" && failure.CodeOf(err) == failure.Bug && !crashed:
			case crashed:
			default:
				failures++
				t.Errorf("%s at message %d: got %q, %v", fault, at, got, err)
			}
		}
	}
	testkit.RecordFaults(t, testkit.FaultRow{Kind: "python child goes wrong at a message", Tried: tried, Failures: failures, Detail: fmt.Sprintf("%d messages, %d ways", 2*calls, len(workertest.Faults))})
}
