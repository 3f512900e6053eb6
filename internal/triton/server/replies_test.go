package server_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/testkit"
	"github.com/trtship/trtship/internal/triton/server"
)

// A container engine that answers wrongly: nothing is taken for a container
// that is none, and nobody waits for ever.
func TestBrokenRepliesOfTheEngine(t *testing.T) {
	t.Cleanup(server.EngineSilence(300 * time.Millisecond))
	talk := func(ctx context.Context, address string) (string, error) {
		c, err := server.ConnectDocker(ctx, func(name string) string {
			return map[string]string{"DOCKER_HOST": "tcp://" + address}[name]
		})
		if err != nil {
			return "", err
		}
		id, err := c.Create(ctx, server.Container{Image: "a/b:c", Name: "m", Address: "127.0.0.1", Ports: map[int]int{8000: 18000}})
		if err != nil {
			return "", err
		}
		running, why, err := c.Running(ctx, id)
		if err == nil && !running {
			err = failure.New(failure.Triton, "it ended: %s", why)
			if why == "" {
				err = errors.New("it ended without a reason")
			}
		}
		if err != nil {
			return "", err
		}
		if _, err := c.Logs(ctx, id); err != nil { // what came of a log is shown as it is
			return "", err
		}
		return fmt.Sprint(id, running), c.Remove(ctx, id)
	}
	testkit.BreakReplies(t, "broken reply of a container engine", func() http.Handler { return &dockerAPI{running: true} }, talk, func(err error) string {
		if c := failure.CodeOf(err); c != failure.Triton && c != failure.Missing {
			return fmt.Sprintf("code %d", c)
		}
		return ""
	})
}
