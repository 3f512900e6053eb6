package server

import (
	"os"
	"time"
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
