package server_test

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/triton/kserve"
	"github.com/trtship/trtship/internal/triton/server"
	"github.com/trtship/trtship/internal/triton/tritontest"
)

func TestTheServersMemoryIsLimited(t *testing.T) {
	t.Run("to what it needs", func(t *testing.T) {
		s := tritontest.Start(t, server.Options{
			Repositories: []string{repository(t, "s02-layout/no_name")}, Wait: []server.Want{{Model: "no_name"}}, MemoryMB: 64 << 10,
		})
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", s.PID()))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, "Max address space") && !strings.Contains(line, fmt.Sprint(uint64(64)<<30)) {
				t.Error(line)
			}
		}
	})
	t.Run("below it, which is one error", func(t *testing.T) {
		_, err := server.Start(t.Context(), server.Options{
			Installation: tritontest.Installation(t), Repositories: []string{repository(t, "s02-layout/no_name")}, Scratch: t.TempDir(), MemoryMB: 16,
		})
		if failure.CodeOf(err) != failure.Triton {
			t.Errorf("got %v", err)
		}
	})
}

// A server that takes a connection and says nothing must not hold its caller.
func TestACallOfAServerThatHangsEnds(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // ends the accepting below
	for _, p := range []kserve.Protocol{kserve.HTTP, kserve.GRPC} {
		s := server.ForTest(l.Addr().String(), 200*time.Millisecond)
		c, err := s.Client(p)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.ModelReady(t.Context(), "m", ""); err == nil {
			t.Errorf("%s: no error", p)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}
