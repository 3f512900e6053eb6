package compare

import (
	"context"
	"testing"
	"time"

	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/internal/triton"
	"github.com/trtship/trtship/internal/triton/kserve"
	"github.com/trtship/trtship/internal/triton/tritonpb"
)

// slowClient answers after a moment, and counts the requests that were cancelled.
type slowClient struct {
	kserve.Client
	arrived   chan struct{}
	cancelled chan error
}

func (c slowClient) Infer(ctx context.Context, _ kserve.Request) (kserve.Response, error) {
	select {
	case c.arrived <- struct{}{}:
	default:
	}
	select {
	case <-ctx.Done():
		c.cancelled <- ctx.Err()
	case <-time.After(50 * time.Millisecond):
	}
	return kserve.Response{}, nil
}

func TestACrowdEndsWithoutCancellingARequest(t *testing.T) {
	client := slowClient{arrived: make(chan struct{}, 1), cancelled: make(chan error, crowdSize)}
	model := triton.Served{Model: kserve.Model{Client: client, Name: "m"}, Config: &tritonpb.ModelConfig{}}
	c := startCrowd(t.Context(), model, [][]tensor.Named{{}}, 1)
	<-client.arrived
	if err := c.end(); err != nil {
		t.Error(err)
	}
	if n := len(client.cancelled); n > 0 {
		t.Errorf("%d requests were cancelled", n)
	}
}
