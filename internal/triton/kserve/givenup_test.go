package kserve_test

import (
	"context"
	"testing"
	"time"

	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/internal/triton/kserve"
)

// TestACallThatIsGivenUpBeforeItBeginsIsNotMade does not even ask the slow model.
func TestACallThatIsGivenUpBeforeItBeginsIsNotMade(t *testing.T) {
	_, clients := start(t)
	for how, c := range clients {
		t.Run(how, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			began := time.Now()
			if _, err := c.Infer(ctx, kserve.Request{Model: "slow", Inputs: []tensor.Named{{Name: "IN_INT8", Tensor: echoes["INT8"]}}}); err == nil || time.Since(began) > 2*time.Second {
				t.Errorf("%v after %s", err, time.Since(began))
			}
		})
	}
}
