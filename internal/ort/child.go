package ort

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/proc"
	"github.com/trtship/trtship/internal/tensor"
)

// childArg, as the only argument, makes this program an ONNX Runtime child.
const childArg = "trtship-onnxruntime-child"

// The child's descriptors after stdin, stdout and stderr.
const (
	requestFD = 3
	replyFD   = 4
)

// canRunChild is set once main has given us the chance to be the child; without
// it a child would run the whole program again.
var canRunChild atomic.Bool

// RunChildIfAsked turns the process into an ONNX Runtime child, and ends it, if
// it was started as one; otherwise it returns at once. It is the first thing
// that main and every TestMain do.
func RunChildIfAsked() {
	canRunChild.Store(true)
	if len(os.Args) != 2 || os.Args[1] != childArg {
		return
	}
	proc.DieBySignal()
	requests := os.NewFile(requestFD, "requests")
	replies := os.NewFile(replyFD, "replies")
	if err := serve(requests, replies); err != nil {
		fmt.Fprintln(os.Stderr, "onnxruntime child:", err)
		os.Exit(1) //nolint:forbidigo // the process is the child
	}
	os.Exit(0) //nolint:forbidigo // the process is the child
}

// server is the child's side of one session.
type server struct {
	out     *bufio.Writer
	session *nativeSession
	load    *loadRequest
	reducer Reducer
	// reducing gets the outcome of what the reducer does now; nil if it rests.
	reducing chan error
}

// serve answers requests until their stream ends. It reads ahead by one request,
// so that the transfer of the next feed overlaps with the current run.
func serve(in io.Reader, out io.Writer) error {
	s := &server{out: bufio.NewWriterSize(out, 1<<20)}
	defer s.close()
	requests := make(chan request, 1)
	failed := make(chan error, 1)
	go func() {
		defer close(requests)
		r := bufio.NewReaderSize(in, 1<<20)
		for {
			var q request
			err := receiveLine(r, &q)
			if err == nil {
				q.feed, err = receiveTensors(r, q.Tensors)
			}
			if errors.Is(err, io.EOF) || errors.Is(err, os.ErrClosed) {
				return
			}
			if err != nil {
				failed <- err
				return
			}
			requests <- q
		}
	}()
	for q := range requests {
		if err := s.answer(q); err != nil {
			return err
		}
	}
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}

func (s *server) close() {
	_ = s.settle() // its outputs lie in the session's memory
	if s.session != nil {
		s.session.close()
	}
}

// answer handles one request. Only a broken pipe is an error.
func (s *server) answer(q request) error {
	a := reply{ID: q.ID}
	var free func()
	bodies, err := s.do(q, &a, &free)
	if free != nil {
		defer free()
	}
	if err != nil {
		a = reply{ID: q.ID}
		if a.Error, _ = errors.AsType[*statusError](err); a.Error == nil {
			a.Error = &statusError{Message: err.Error()}
		}
		bodies = nil
	}
	return send(s.out, a, bodies)
}

func (s *server) do(q request, a *reply, free *func()) ([][]byte, error) {
	switch {
	case q.Op == opVersion && q.Load != nil:
		n, err := openNative(q.Load.Library)
		if err != nil {
			return nil, err
		}
		a.Version = n.version
		return nil, nil
	case q.Op == opLoad && q.Load != nil && s.session == nil:
		return nil, s.open(q.Load, a)
	case s.session == nil:
		return nil, fmt.Errorf("request %q before a model is loaded", q.Op)
	case q.Op == opInfer:
		return s.infer(q, a, free)
	case q.Op == opBenchmark && q.Benchmark != nil:
		r, err := s.benchmark(q.feed, *q.Benchmark)
		a.Benchmark = r
		return nil, err
	case q.Op == opReduce && q.Reduce != nil:
		return nil, s.reduce(q)
	case q.Op == opSizes:
		var err error
		a.Sizes, err = s.sizes(q)
		return nil, err
	case q.Op == opReduced:
		state, err := s.reduced()
		a.State = state
		return nil, err
	case q.Op == opEndProfile:
		path, err := s.session.endProfile()
		a.Path = path
		return nil, err
	}
	return nil, fmt.Errorf("request %q is not known", q.Op)
}

func (s *server) open(l *loadRequest, a *reply) error {
	if err := limitMemory(l.MemoryMB); err != nil {
		return err
	}
	n, err := loadNative(l.Library)
	if err != nil {
		return err
	}
	start := time.Now()
	var model []byte
	if len(l.ExtraOutputs) > 0 {
		if model, err = withOutputs(l.Model, l.ExtraOutputs); err != nil {
			return err
		}
		if l.Options.Entries == nil {
			l.Options.Entries = map[string]string{}
		}
		l.Options.Entries["session.model_external_initializers_file_folder_path"] = filepath.Dir(l.Model)
	}
	if s.session, err = n.openSession(l.Model, model, l.Options); err != nil {
		return err
	}
	s.load = l
	a.LoadMs = milliseconds(time.Since(start))
	a.Version = n.version
	a.Inputs, a.Optional, a.Outputs = s.session.inputs, s.session.optional, s.session.outputs
	return nil
}

func (s *server) infer(q request, a *reply, free *func()) ([][]byte, error) {
	named, release, err := s.outputs(q.feed)
	*free = release // after the reply has been written
	if err != nil {
		return nil, err
	}
	var bodies [][]byte
	a.Tensors, bodies = announce(named)
	return bodies, nil
}

// outputs runs the model. The tensors lie in the runtime's memory until free is
// called.
func (s *server) outputs(feed []tensor.Named) (named []tensor.Named, free func(), err error) {
	names, inputs, err := s.values(feed)
	defer func() { s.session.free(inputs) }()
	if err != nil {
		return nil, func() {}, err
	}
	outputs, err := s.session.run(names, inputs)
	if err != nil {
		return nil, func() {}, err
	}
	free = func() { s.session.free(outputs) }
	named = make([]tensor.Named, len(outputs))
	for i, v := range outputs {
		t, err := s.session.view(v)
		if err != nil {
			return nil, free, fmt.Errorf("output %q: %w", s.session.outputs[i].Name, err)
		}
		named[i] = tensor.Named{Name: s.session.outputs[i].Name, Tensor: t}
	}
	return named, free, nil
}

func (s *server) values(feed []tensor.Named) ([]string, []*value, error) {
	var names []string
	var values []*value
	for _, f := range feed {
		v, err := s.session.newValue(f.Tensor)
		if err != nil {
			return nil, values, fmt.Errorf("input %q: %w", f.Name, err)
		}
		names, values = append(names, f.Name), append(values, v)
	}
	return names, values, nil
}

// limitMemory bounds the address space to what the process has now and mb more.
func limitMemory(mb int) error {
	if mb <= 0 {
		return nil
	}
	now, err := statusBytes("VmSize")
	if err != nil {
		return err
	}
	limit := uint64(now) + uint64(mb)<<20
	if err := syscall.Setrlimit(syscall.RLIMIT_AS, &syscall.Rlimit{Cur: limit, Max: limit}); err != nil {
		return fmt.Errorf("set the memory limit: %w", err)
	}
	return nil
}

// statusBytes reads a size of this process, such as VmHWM, its peak resident
// memory. getrusage would count what the parent had before exec.
func statusBytes(field string) (int64, error) {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(b) {
		if rest, ok := bytes.CutPrefix(line, []byte(field+":")); ok {
			kb, err := strconv.ParseInt(string(bytes.TrimSuffix(bytes.TrimSpace(rest), []byte(" kB"))), 10, 64)
			return kb << 10, err
		}
	}
	return 0, fmt.Errorf("/proc/self/status has no %s", field)
}

// withOutputs returns the model's bytes with more graph outputs. In protobuf a
// message field given twice is merged, so a second graph that holds nothing but
// outputs, put at the end of the file, extends the first.
func withOutputs(path string, names []string) ([]byte, error) {
	model, err := onnx.Skeleton(path)
	if err != nil {
		return nil, err
	}
	const (
		modelGraph    = 7<<3 | 2
		graphOutput   = 12<<3 | 2
		valueInfoName = 1<<3 | 2
	)
	var graph []byte
	for _, name := range names {
		info := append([]byte{valueInfoName}, delimited([]byte(name))...)
		graph = append(append(graph, graphOutput), delimited(info)...)
	}
	return append(append(model, modelGraph), delimited(graph)...), nil
}

func delimited(b []byte) []byte {
	var n []byte
	for x := uint64(len(b)); ; x >>= 7 {
		if x < 0x80 {
			n = append(n, byte(x))
			return append(n, b...)
		}
		n = append(n, byte(x)|0x80)
	}
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
