// Command trtship ships models: export, validation, clean-up, engines,
// benchmarks and a Triton repository, every step checked and recorded.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/trtship/trtship/internal/cli"
	"github.com/trtship/trtship/internal/gpu"
	"github.com/trtship/trtship/internal/ort"
)

func main() {
	ort.RunChildIfAsked()
	gpu.RunChildIfAsked()
	os.Exit(run())
}

// run wires the process to the program: streams, environment, signals.
func run() int {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		s := <-signals
		// A second signal ends the process at once.
		signal.Stop(signals)
		if sig, ok := s.(syscall.Signal); ok {
			cancel(cli.SignalError{Signal: sig})
		}
	}()
	return cli.Main(ctx, os.Args[1:], cli.IO{
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.Getenv, Environ: os.Environ,
	})
}
