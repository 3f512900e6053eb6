package ort

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/trtship/trtship/internal/failpoint"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/proc"
	"github.com/trtship/trtship/internal/tensor"
)

// Session is a model loaded into an ONNX Runtime child. Its methods may be
// called from several goroutines; the child runs one request after the other
// while the next one is already on its way.
type Session struct {
	library Library
	model   string
	options Options

	inputs, optional, outputs []ValueInfo
	loadMs                    float64

	child  *proc.Process
	cancel context.CancelFunc
	in     io.Closer

	sending sync.Mutex // one request at a time on the pipe
	out     *bufio.Writer

	mu      sync.Mutex
	next    int64
	waiting map[int64]chan reply
	broken  error // set once the child is gone
}

// Open starts a child and loads a model into it. The child lives until Close or
// the end of ctx.
func Open(ctx context.Context, lib Library, model string, o Options) (*Session, error) {
	s := &Session{library: lib, model: model, options: o, waiting: map[int64]chan reply{}}
	if lib.Path == "" {
		return nil, errNoLibrary()
	}
	path, err := filepath.Abs(model)
	if err != nil {
		return nil, err
	}
	if info, err := os.Stat(path); err != nil || info.IsDir() {
		return nil, failure.New(failure.Artifact, "open model %s: no such file", model).At(model)
	}
	if err := s.start(ctx); err != nil {
		return nil, err
	}
	l := &loadRequest{
		Library: lib.Path, Model: path, ExtraOutputs: o.ExtraOutputs, MemoryMB: o.MemoryMB,
		Options: sessionOptions{Threads: o.threads(), Level: o.GraphOptimization, Entries: o.ConfigEntries},
	}
	if o.ProfileDir != "" {
		l.Options.Profile = filepath.Join(o.ProfileDir, "profile")
	}
	a, err := s.do(ctx, request{Op: opLoad, Load: l}, "")
	if err != nil {
		s.Close()
		return nil, s.loadError(err)
	}
	s.inputs, s.optional, s.outputs, s.loadMs = a.Inputs, a.Optional, a.Outputs, a.LoadMs
	s.library.Version = a.Version
	return s, nil
}

// start runs the child with two pipes.
func (s *Session) start(ctx context.Context) error {
	if !canRunChild.Load() {
		return errors.New("start ONNX Runtime: ort.RunChildIfAsked was not called first thing in main (or TestMain)")
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("start ONNX Runtime: %w", err)
	}
	theirIn, ourOut, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("start ONNX Runtime: %w", err)
	}
	ourIn, theirOut, err := os.Pipe()
	if err != nil {
		theirIn.Close()
		ourOut.Close()
		return fmt.Errorf("start ONNX Runtime: %w", err)
	}
	ctx, s.cancel = context.WithCancel(ctx)
	s.child, err = proc.Start(ctx, proc.Command{
		Path: self, Args: []string{childArg}, Env: []string{"LANG=C.UTF-8", "GOTRACEBACK=single"}, Dir: os.TempDir(),
		Stdout: s.options.Log, Stderr: s.options.Log, Files: []*os.File{theirIn, theirOut}, Grace: time.Second,
	})
	theirIn.Close()
	theirOut.Close()
	if err != nil {
		s.cancel()
		ourOut.Close()
		ourIn.Close()
		return fmt.Errorf("start ONNX Runtime: %w", err)
	}
	s.in, s.out = ourOut, bufio.NewWriterSize(ourOut, 1<<20)
	go s.receive(ourIn)
	if err := childStarted.Hit(); err != nil {
		_ = s.Close()
		return err
	}
	return nil
}

// receive hands replies to those who wait for them, until the child is gone.
func (s *Session) receive(in io.ReadCloser) {
	defer in.Close()
	r := bufio.NewReaderSize(in, 1<<20)
	for {
		var a reply
		err := receiveLine(r, &a)
		if err == nil {
			a.outputs, err = receiveTensors(r, a.Tensors)
		}
		if err == nil {
			err = replyRead.Hit()
		}
		if err != nil {
			s.lost(err)
			return
		}
		s.mu.Lock()
		c := s.waiting[a.ID]
		delete(s.waiting, a.ID)
		s.mu.Unlock()
		if c == nil {
			s.lost(fmt.Errorf("a reply to request %d, which nobody made", a.ID))
			return
		}
		c <- a
	}
}

// lost ends every wait: the child ended, or talks nonsense.
func (s *Session) lost(cause error) {
	if !errors.Is(cause, io.EOF) && !errors.Is(cause, io.ErrUnexpectedEOF) {
		s.child.Kill()
	}
	err := s.child.Wait()
	if err == nil {
		err = fmt.Errorf("the ONNX Runtime child ended early: %w", cause)
	}
	s.mu.Lock()
	s.broken = err
	for id, c := range s.waiting {
		close(c)
		delete(s.waiting, id)
	}
	s.mu.Unlock()
}

// do sends one request and waits for its reply. feed describes what was fed,
// for errors.
func (s *Session) do(ctx context.Context, q request, feed string, tensors ...tensor.Named) (reply, error) {
	if s.options.Timeout > 0 && q.Op != opBenchmark {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, s.options.Timeout,
			fmt.Errorf("no answer within %s", s.options.Timeout))
		defer cancel()
	}
	c := make(chan reply, 1)
	s.mu.Lock()
	if s.broken != nil {
		defer s.mu.Unlock()
		return reply{}, s.childError(s.broken, feed)
	}
	s.next++
	q.ID = s.next
	s.waiting[q.ID] = c
	s.mu.Unlock()
	sent := make(chan error, 1)
	go func() { sent <- s.send(q, tensors) }()
	for {
		select {
		case err := <-sent:
			if err != nil {
				// The child closed its end: wait for how it ended.
				<-s.child.Done()
			}
			sent = nil
		case a, ok := <-c:
			if ok {
				return a, s.replyError(a, feed)
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			return reply{}, s.childError(s.broken, feed)
		case <-ctx.Done():
			s.child.Kill() // a run cannot be stopped in any other way
			return reply{}, s.stopped(context.Cause(ctx), feed)
		}
	}
}

func (s *Session) send(q request, tensors []tensor.Named) error {
	var bodies [][]byte
	q.Tensors, bodies = announce(tensors)
	s.sending.Lock()
	defer s.sending.Unlock()
	if err := send(s.out, q, bodies); err != nil {
		return err
	}
	return requestSent.Hit()
}

// Where a fault or the end of this process is tried.
var (
	childStarted = failpoint.New("ort.child.started")
	requestSent  = failpoint.New("ort.request.sent")
	replyRead    = failpoint.New("ort.reply.read")
)

// Infer runs the model on one feed, by name, and returns its outputs in the
// model's order, extra outputs after them. The outputs belong to the caller.
func (s *Session) Infer(ctx context.Context, inputs []tensor.Named) ([]tensor.Named, error) {
	if err := s.checkFeed(inputs); err != nil {
		return nil, err
	}
	a, err := s.do(ctx, request{Op: opInfer}, describeFeed(inputs), inputs...)
	if err != nil {
		return nil, err
	}
	return a.outputs, nil
}

// checkFeed compares names and element types with the model's inputs. Sizes are
// left to ONNX Runtime.
func (s *Session) checkFeed(feed []tensor.Named) error {
	for _, f := range feed {
		if err := f.Check(); err != nil {
			return fmt.Errorf("input %q: %w", f.Name, err)
		}
	}
	given := map[string]tensor.DType{}
	for _, f := range feed {
		given[f.Name] = f.DType
	}
	for _, in := range s.inputs {
		d, ok := given[in.Name]
		if !ok {
			return failure.New(failure.Usage, "run %s: input %q is not fed", filepath.Base(s.model), in.Name).
				With("inputs", "%v", s.inputs).With("fed", "%v", tensor.Names(feed))
		}
		if d != in.DType {
			return failure.New(failure.Usage, "run %s: input %q is %s, fed %s", filepath.Base(s.model), in.Name, in.DType, d)
		}
		delete(given, in.Name)
	}
	for _, o := range s.optional {
		delete(given, o.Name)
	}
	for _, f := range feed {
		name := f.Name
		if _, unknown := given[name]; !unknown {
			continue
		}
		return failure.New(failure.Usage, "run %s: the model has no input %q", filepath.Base(s.model), name).
			With("inputs", "%v", s.inputs)
	}
	return nil
}

// Inputs returns the inputs that have to be fed.
func (s *Session) Inputs() []ValueInfo { return s.inputs }

// Overridable returns the initializers that a feed may replace.
func (s *Session) Overridable() []ValueInfo { return s.optional }

// Outputs returns the outputs in order, extra ones after the model's.
func (s *Session) Outputs() []ValueInfo { return s.outputs }

// LoadMs is how long loading the model took, in milliseconds.
func (s *Session) LoadMs() float64 { return s.loadMs }

// Library returns the library, with its version as it says itself.
func (s *Session) Library() Library { return s.library }

// Describe says what runs, e.g. "ONNX Runtime 1.30.0, graph optimisation off, 1 thread".
func (s *Session) Describe() string {
	threads := fmt.Sprintf("%d threads", s.options.threads())
	switch s.options.threads() {
	case 0:
		threads = "its own number of threads"
	case 1:
		threads = "1 thread"
	}
	return fmt.Sprintf("ONNX Runtime %s, graph optimisation %s, %s", s.library.Version, s.options.GraphOptimization, threads)
}

// EndProfile ends profiling and returns the path of the profile, a JSON file.
func (s *Session) EndProfile(ctx context.Context) (string, error) {
	a, err := s.do(ctx, request{Op: opEndProfile}, "")
	return a.Path, err
}

// Close ends the child. It is safe to call it twice.
func (s *Session) Close() error {
	_ = s.in.Close() // the end of requests ends the child
	select {
	case <-s.child.Done():
	case <-time.After(2 * time.Second):
		s.child.Kill()
	}
	s.cancel()
	return nil
}
