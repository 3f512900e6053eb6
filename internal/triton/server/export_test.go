package server

import (
	"context"
	"os"
	"time"

	"github.com/trtship/trtship/internal/triton/kserve"
)

// FillDisk makes every write fail with err until the returned function is called.
func FillDisk(err error) (restore func()) {
	writeFile = func(string, []byte, os.FileMode) error { return err }
	return func() { writeFile = os.WriteFile }
}

// ForTest is a server at an address that nobody started.
func ForTest(address string, call time.Duration) *Server {
	return &Server{HTTP: address, GRPC: address, call: call}
}

// EngineSilence sets how long an engine may be silent until the returned
// function is called.
func EngineSilence(d time.Duration) (restore func()) {
	old := engineSilence
	engineSilence = d
	return func() { engineSilence = old }
}

// Answers reports whether the server named name is what answers at its address.
func (s *Server) Answers(ctx context.Context, name string, args ...string) (bool, error) {
	c, err := s.Client(kserve.HTTP)
	if err != nil {
		return false, err
	}
	defer c.Close() //nolint:errcheck // only read
	s.prefix = name
	return s.itself(ctx, c, args), nil
}
