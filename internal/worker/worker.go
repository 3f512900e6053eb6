// Package worker runs Python in a child process: torch, and later TensorRT, and
// nothing else is done in Python. The sources are embedded and written into a
// private folder; the child is started with -I (no PYTHON* variables, no user
// site, no working directory on sys.path) and an explicit environment.
//
// Requests and replies are JSON, one a line, on descriptors 3 and 4, so that
// user code may print to stdout, which goes to the stage's log. Tensors travel
// as .npz files whose names are in the request; bfloat16 and float8 arrays are
// raw unsigned integers there, with their type in the JSON line. Nothing is
// ever pickled.
package worker

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/trtship/trtship/internal/failpoint"
	"github.com/trtship/trtship/internal/proc"
)

// Options say how a Python child runs.
type Options struct {
	// Python is the absolute path of the interpreter; see FindPython.
	Python string
	// Subject names what the child works on in errors, usually the model's name.
	Subject string
	// Path is put in front of sys.path: the configuration's folder, then
	// model.python_path. Files that the child reads below it are reported as
	// sources of a result.
	Path []string
	// Timeout ends the child, with all that it started; 0 is no limit.
	Timeout time.Duration
	// TimeoutSetting names what of the configuration Timeout comes from, for who
	// has to raise it.
	TimeoutSetting string
	// MemoryMB limits the address space to this many MiB above what the
	// interpreter and its libraries map; 0 is no limit. (torch's libraries alone
	// map several GB, which are no memory in use.)
	MemoryMB int
	// Threads of torch, OpenMP and MKL; default 1, so that results repeat.
	Threads int
	// CUDA shows the machine's GPUs to the child. Without it
	// CUDA_VISIBLE_DEVICES is empty.
	CUDA bool
	// Env is added to the explicit environment, as NAME=value.
	Env []string
	// Log gets what the child writes to stdout and stderr.
	Log io.Writer
	// Progress hears how far a call is; may be nil.
	Progress func(done, total int64, label string)
}

// Worker is a running Python child. Calls go one at a time; models stay loaded
// between them.
type Worker struct {
	opt     Options
	proc    *proc.Process
	in      *os.File // requests
	out     *os.File // replies
	replies *bufio.Reader
	sources string // folder of the Python sources
	home    string
	cancel  context.CancelFunc
	next    int64
	reached []string // by the call that runs
	broken  error    // after a fault of the protocol the child is of no more use
}

// Start starts a child. It does not import torch: the first call does. The
// child ends with ctx, at its timeout, or with Close.
func Start(ctx context.Context, opt Options) (*Worker, error) {
	if opt.Threads < 1 {
		opt.Threads = 1
	}
	if opt.Log == nil {
		opt.Log = io.Discard
	}
	w := &Worker{opt: opt}
	if err := w.start(ctx); err != nil {
		w.release()
		return nil, fmt.Errorf("start python worker: %w", err)
	}
	return w, nil
}

func (w *Worker) start(ctx context.Context) error {
	var err error
	if w.sources, err = writeSources(); err != nil {
		return err
	}
	if w.home, err = os.MkdirTemp("", "trtship-home-"); err != nil {
		return err
	}
	childIn, in, err := os.Pipe()
	if err != nil {
		return err
	}
	defer childIn.Close()
	w.in = in
	out, childOut, err := os.Pipe()
	if err != nil {
		return err
	}
	defer childOut.Close()
	w.out = out
	w.replies = bufio.NewReader(out)
	setup, err := json.Marshal(map[string]any{
		"path": append([]string{}, w.opt.Path...), "memory_mb": w.opt.MemoryMB, "threads": w.opt.Threads,
	})
	if err != nil {
		return err
	}
	ctx, w.cancel = context.WithCancel(ctx)
	if w.opt.Timeout > 0 {
		cause := &timeoutError{limit: w.opt.Timeout, setting: w.opt.TimeoutSetting}
		stop := w.cancel
		var end context.CancelFunc
		ctx, end = context.WithTimeoutCause(ctx, w.opt.Timeout, cause)
		w.cancel = func() { end(); stop() }
	}
	// -B: leave no __pycache__ in the user's folders. -u: what was printed
	// before a crash is in the log.
	w.proc, err = proc.Start(ctx, proc.Command{
		Path:   w.opt.Python,
		Args:   []string{"-I", "-B", "-u", filepath.Join(w.sources, "main.py"), string(setup)},
		Env:    w.environment(),
		Dir:    w.home,
		Stdout: w.opt.Log,
		Stderr: w.opt.Log,
		Files:  []*os.File{childIn, childOut},
		Grace:  2 * time.Second,
	})
	if err == nil {
		err = childStarted.Hit()
	}
	return err
}

// Where a fault or the end of this process is tried.
var (
	childStarted = failpoint.New("worker.child.started")
	requestSent  = failpoint.New("worker.request.sent")
	replyRead    = failpoint.New("worker.reply.read")
)

func (w *Worker) environment() []string {
	threads := strconv.Itoa(w.opt.Threads)
	env := []string{
		"PATH=" + filepath.Dir(w.opt.Python) + ":/usr/local/bin:/usr/bin:/bin",
		"HOME=" + w.home,
		"TMPDIR=" + w.home,
		"LANG=C.UTF-8",
		"LC_ALL=C.UTF-8",
		"TZ=UTC",
		"OMP_NUM_THREADS=" + threads,
		"MKL_NUM_THREADS=" + threads,
		"OPENBLAS_NUM_THREADS=" + threads,
		"CUBLAS_WORKSPACE_CONFIG=:4096:8", // deterministic cuBLAS
	}
	if !w.opt.CUDA {
		env = append(env, "CUDA_VISIBLE_DEVICES=")
	}
	return append(env, w.opt.Env...)
}

// Call sends one request and decodes the result into result. method is
// "<half>.<function>", e.g. "torch.inspect". An expected failure is a
// *failure.Error; a child that died, hung or broke the protocol is a *Crash.
func (w *Worker) Call(method string, params, result any) error {
	if w.broken != nil {
		return w.broken
	}
	w.next++
	w.reached = nil
	line, err := json.Marshal(request{ID: w.next, Method: method, Params: params})
	if err != nil {
		return fmt.Errorf("encode request %s: %w", method, err)
	}
	if _, err := w.in.Write(append(line, '\n')); err != nil {
		return w.crash(method, err)
	}
	if err := requestSent.Hit(); err != nil {
		return w.crash(method, err)
	}
	for {
		got, err := readReply(w.replies, maxReply)
		if err == nil {
			err = replyRead.Hit()
		}
		switch {
		case err != nil:
			return w.crash(method, err)
		case got.ID != w.next:
			return w.crash(method, fmt.Errorf("reply to request %d, expected %d", got.ID, w.next))
		case got.Progress != nil:
			if w.opt.Progress != nil {
				w.opt.Progress(got.Progress.Done, got.Progress.Total, got.Progress.Label)
			}
		case got.Reached != "":
			w.reached = append(w.reached, got.Reached)
		case got.Error != nil:
			return w.failure(method, got.Error)
		default:
			if err := json.Unmarshal(got.Result, result); err != nil {
				return w.crash(method, fmt.Errorf("decode result: %w", err))
			}
			return nil
		}
	}
}

// crash ends the child and says why. A child that ended by itself gives its
// own account (signal, exit status, last lines); else err is the fault.
func (w *Worker) crash(method string, err error) error {
	c := &Crash{Subject: w.opt.Subject, Method: method, Reached: w.reached}
	gone := errors.Is(err, io.EOF) || errors.Is(err, errReplyCut) || errors.Is(err, os.ErrClosed) || isPipe(err)
	if gone {
		select { // the pipe closes a moment before the end is known
		case <-w.proc.Done():
		case <-time.After(2 * time.Second):
		}
	}
	select {
	case <-w.proc.Done():
		if end := w.proc.Wait(); end != nil {
			c.Err = end
			break
		}
		c.Err = fmt.Errorf("child ended without an answer: %w", err)
	default:
		w.proc.Kill()
		c.Err = err
	}
	c.Tail = w.proc.Tail()
	w.broken = c
	return c
}

// Close ends the child and removes its folders.
func (w *Worker) Close() error {
	w.release()
	return nil
}

func (w *Worker) release() {
	if w.in != nil {
		_ = w.in.Close() // end of requests: the child leaves
	}
	if w.proc != nil {
		select {
		case <-w.proc.Done():
		case <-time.After(2 * time.Second):
			w.proc.Stop()
		}
	}
	if w.cancel != nil {
		w.cancel()
	}
	if w.out != nil {
		_ = w.out.Close()
	}
	for _, dir := range []string{w.sources, w.home} {
		if dir != "" {
			_ = os.RemoveAll(dir)
		}
	}
}
