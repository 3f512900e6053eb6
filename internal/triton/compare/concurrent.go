package compare

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/internal/triton"
	"github.com/trtship/trtship/internal/triton/kserve"
	"github.com/trtship/trtship/internal/validation"
	"github.com/trtship/trtship/report"
)

// suffix is the ending of a protocol's name for the comparison under load.
const suffix = "concurrent"

// crowdSize is the number of requests that are under way besides the one that
// is compared.
const crowdSize = 8

// concurrent repeats the comparison while other feeds of all sizes are on their
// way, so that the server merges them with the one that is compared. A model
// whose answer depends on its neighbours in a batch shows here.
func (r *runner) concurrent(ctx context.Context, p kserve.Protocol) error {
	if r.o.Loaded.GetDynamicBatching() == nil {
		r.checks = append(r.checks, report.Check{
			ID: checkMerged, Verdict: report.Skip, Want: "merged batches", Got: "triton.dynamic_batching is not set: the server runs each request by itself",
		})
		return nil
	}
	feeds, err := r.feeds()
	if err != nil {
		return err
	}
	if len(feeds) == 0 {
		return failure.New(failure.Triton, "compare under load: no feed fits max_batch_size %d", r.o.Loaded.GetMaxBatchSize())
	}
	client, err := r.o.Dial(p)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	before, err := counts(ctx, client, r.o.Model, r.o.Version)
	if err != nil {
		return err
	}
	c := startCrowd(ctx, r.served(client), feeds, r.o.Seed)
	err = r.judge(ctx, string(p)+"-"+suffix, r.served(client))
	if err == nil {
		err = r.untilMerged(ctx, client, before)
	}
	crowdErr := c.end()
	if err != nil {
		return err
	}
	after, err := counts(ctx, client, r.o.Model, r.o.Version)
	if err != nil {
		return err
	}
	r.checks = append(r.checks, mergedCheck(before, after, crowdErr))
	return nil
}

// untilMerged gives the server a moment more where a short comparison ended
// before any two requests met.
func (r *runner) untilMerged(ctx context.Context, control kserve.Client, before statistics) error {
	for deadline := time.Now().Add(3 * time.Second); time.Now().Before(deadline); {
		now, err := counts(ctx, control, r.o.Model, r.o.Version)
		if err != nil {
			return err
		}
		if now.requests-before.requests > now.executions-before.executions {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
	return nil
}

// feeds reads one sample of every point that the server takes.
func (r *runner) feeds() ([][]tensor.Named, error) {
	var out [][]tensor.Named
	for _, p := range r.ref.Points {
		if len(p.Samples) == 0 || r.tooLarge(p) != "" {
			continue
		}
		feed, err := r.ref.In(p.Samples[0])
		if err != nil {
			return nil, err
		}
		out = append(out, feed)
	}
	return out, nil
}

// statistics are the server's own counts of a model.
type statistics struct{ requests, inferences, executions uint64 }

func counts(ctx context.Context, c kserve.Client, name, version string) (statistics, error) {
	all, err := c.Statistics(ctx, name, version)
	if err != nil {
		return statistics{}, err
	}
	var s statistics
	for _, m := range all {
		s.requests += m.GetInferenceStats().GetSuccess().GetCount()
		s.inferences += m.GetInferenceCount()
		s.executions += m.GetExecutionCount()
	}
	return s, nil
}

func mergedCheck(before, after statistics, crowd error) report.Check {
	requests, runs := after.requests-before.requests, after.executions-before.executions
	c := report.Check{
		ID: checkMerged, Want: "fewer executions than requests", Got: fmt.Sprintf("%d requests in %d executions", requests, runs),
		Verdict: report.Pass,
		Metrics: map[string]report.Number{"requests": report.Number(requests), "executions": report.Number(runs), "rows": report.Number(after.inferences - before.inferences)},
	}
	if runs >= requests {
		c.Verdict = report.Fail
	}
	if crowd != nil {
		c.Verdict, c.Detail = report.Broken, "a request of the load failed: "+crowd.Error()
	}
	return c
}

// crowd sends feeds again and again until it is ended. A request that was sent
// is always waited for: one that is cancelled may cost the server its life.
type crowd struct {
	ended atomic.Bool
	group sync.WaitGroup
	mu    sync.Mutex
	err   error
}

func startCrowd(ctx context.Context, model triton.Served, feeds [][]tensor.Named, seed int64) *crowd {
	c := &crowd{}
	for i := range crowdSize {
		random := rand.New(rand.NewPCG(uint64(seed), uint64(i)))
		c.group.Go(func() {
			for ctx.Err() == nil && !c.ended.Load() {
				if _, err := model.Infer(ctx, feeds[random.IntN(len(feeds))]); err != nil && ctx.Err() == nil {
					c.fail(err)
					return
				}
			}
		})
	}
	return c
}

func (c *crowd) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
	}
}

// end stops the crowd and returns the first error of a request.
func (c *crowd) end() error {
	c.ended.Store(true)
	c.group.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

var _ validation.Candidate = triton.Served{}
