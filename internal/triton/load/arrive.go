package load

import (
	"context"
	"math/rand/v2"
	"time"
)

// arrive sends the due time of every arrival, whatever became of the earlier
// ones: latency counts from there, so that a slow server cannot slow down the
// measurement of its own slowness.
func (g *generator) arrive(ctx context.Context, out chan<- time.Duration) {
	random := rand.New(rand.NewPCG(uint64(g.o.Seed), 1))
	gap := func() time.Duration {
		mean := float64(time.Second) / g.o.Rate
		if g.o.Distribution == Poisson {
			return time.Duration(random.ExpFloat64() * mean)
		}
		return time.Duration(mean)
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for due := gap(); ; due += gap() {
		if wait := due - time.Since(g.start); wait > 0 {
			timer.Reset(wait)
			select {
			case <-ctx.Done():
				return
			case <-timer.C:
			}
		}
		if len(out) > 0 { // somebody still waits: all connections are busy
			g.late.Add(1)
		}
		select {
		case <-ctx.Done():
			return
		case out <- due:
		}
	}
}
