package rollout_test

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/trtship/trtship/internal/rollout"
	"github.com/trtship/trtship/internal/triton/kserve"
	"github.com/trtship/trtship/internal/triton/tritonpb"
)

// TestRequestsThatAreGivenUpLeaveTheServerWhole gives up requests at any moment
// of their life, loads and unloads. A server of the locked environment that is
// told so over gRPC ends with a segmentation fault, or never lets go of the
// model: a swap then waited for its candidate until its timeout.
func TestRequestsThatAreGivenUpLeaveTheServerWhole(t *testing.T) {
	w := newWorld(t, "explicit")
	for round := range 4 {
		if err := w.client.Load(t.Context(), "mnist", nil); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if n := giveUp(t, w); n < 100 {
			t.Errorf("only %d requests were given up", n)
		}
		if err := w.client.Unload(t.Context(), "mnist"); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
			index, err := w.client.Index(t.Context(), false)
			if err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
			if len(index) == 0 || index[0].GetState() != "UNLOADING" {
				break
			}
			if time.Since(began) > 30*time.Second {
				t.Fatalf("round %d: the server keeps the model: %v", round, index)
			}
		}
	}
}

// giveUp sends requests for a while, each with little time, and returns how many
// of them were given up.
func giveUp(t *testing.T, w *world) int64 {
	t.Helper()
	c, err := w.s.Client(kserve.GRPC)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	var given atomic.Int64
	var group sync.WaitGroup
	for worker := range 8 {
		random := rand.New(rand.NewPCG(1, uint64(worker)))
		group.Go(func() {
			for began := time.Now(); time.Since(began) < time.Second; {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(random.IntN(4000))*time.Microsecond)
				if _, err := c.Infer(ctx, kserve.Request{Model: "mnist", Inputs: image()}); err != nil {
					given.Add(1)
				}
				cancel()
			}
		})
	}
	group.Wait()
	return given.Load()
}

// keeper is a server that never lets go of the candidate.
type keeper struct{ kserve.Client }

func (k keeper) Index(ctx context.Context, ready bool) ([]*tritonpb.RepositoryIndexResponse_ModelIndex, error) {
	index, err := k.Client.Index(ctx, ready)
	if !ready {
		index = append(index, &tritonpb.RepositoryIndexResponse_ModelIndex{Name: "mnist--candidate", Version: "2", State: "UNLOADING"})
	}
	return index, err
}

func TestACandidateThatTheServerKeepsIsNamed(t *testing.T) {
	w := newWorld(t, "explicit")
	res, err := rollout.Swap(t.Context(), rollout.SwapOptions{
		Client: keeper{w.client}, Repository: w.repository, Model: "mnist", Validate: fail, Timeout: 5 * time.Second,
	})
	if err != nil || res.Swapped || len(res.Checks) != 1 {
		t.Errorf("%v %+v", err, res)
	}
	if last := res.Steps[len(res.Steps)-1]; !strings.Contains(last, "mnist--candidate is still being unloaded after 5s") {
		t.Errorf("the last step is %q", last)
	}
}
