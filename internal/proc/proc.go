// Package proc starts and ends child processes. It is the only import of
// os/exec: every child gets an absolute path, an explicit environment, its own
// process group and a bounded memory of what it wrote to stderr, and the whole
// group is ended with it.
package proc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// TailBytes is how much of a child's stderr an Error keeps.
const TailBytes = 8 << 10

// Command says what to run.
type Command struct {
	Path   string   // absolute; see Look
	Args   []string // without the program's name
	Env    []string // the whole environment; nothing is inherited
	Dir    string
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer  // gets a copy; the tail is kept anyway
	Files  []*os.File // become descriptors 3, 4, ...
	// Output, unless it is nil, is the child's stdout and stderr itself, so that
	// the child can outlive us; Stdout and Stderr are then not used and no tail
	// is kept.
	Output *os.File
	// Grace is the time between SIGTERM and SIGKILL to the group; default 5 s.
	Grace time.Duration
	// MemoryBytes limits the child's address space; 0 is no limit.
	MemoryBytes uint64
	// Outlives lets the child go on when this process dies, however it dies.
	// Without it the kernel ends the child then.
	Outlives bool
}

// Error is a child that ended badly.
type Error struct {
	Path   string
	Exit   int            // exit status; -1 if it died by a signal
	Signal syscall.Signal // 0 unless it died by one
	Killed bool           // by us, because the context ended
	Cause  error          // the context's error if Killed
	Tail   string         // last lines of stderr
}

func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s ", filepath.Base(e.Path))
	switch {
	case e.Killed:
		fmt.Fprintf(&b, "was ended: %v", e.Cause)
	case e.Signal != 0:
		fmt.Fprintf(&b, "crashed (%s)", SignalName(e.Signal))
	default:
		fmt.Fprintf(&b, "ended with exit status %d", e.Exit)
	}
	if t := strings.TrimSpace(e.Tail); t != "" {
		fmt.Fprintf(&b, ": %s", t)
	}
	return b.String()
}

func (e *Error) Unwrap() error { return e.Cause }

// SignalName returns "SIGSEGV" and the like.
func SignalName(s syscall.Signal) string {
	switch s {
	case syscall.SIGSEGV:
		return "SIGSEGV"
	case syscall.SIGABRT:
		return "SIGABRT"
	case syscall.SIGKILL:
		return "SIGKILL"
	case syscall.SIGBUS:
		return "SIGBUS"
	case syscall.SIGILL:
		return "SIGILL"
	case syscall.SIGFPE:
		return "SIGFPE"
	case syscall.SIGTERM:
		return "SIGTERM"
	case syscall.SIGINT:
		return "SIGINT"
	}
	return s.String()
}

// Process is a running child.
type Process struct {
	cmd  *exec.Cmd
	tail *tail
	done chan struct{}
	err  error

	mu     sync.Mutex
	killed bool // by us
	reaped bool // its id may be another's by now
	grace  time.Duration
	ctx    context.Context //nolint:containedctx // the life of the child is the life of this context
}

// Start runs c. The child's group is ended when ctx is done.
func Start(ctx context.Context, c Command) (*Process, error) {
	if !filepath.IsAbs(c.Path) {
		return nil, fmt.Errorf("start %q: not an absolute path", c.Path)
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("start %s: %w", filepath.Base(c.Path), context.Cause(ctx))
	}
	grace := c.Grace
	if grace == 0 {
		grace = 5 * time.Second
	}
	cmd := exec.Command(c.Path, c.Args...)
	cmd.Env = c.Env
	if cmd.Env == nil {
		cmd.Env = []string{} // nil would inherit
	}
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.ExtraFiles = c.Dir, c.Stdin, c.Stdout, c.Files
	t := &tail{next: c.Stderr}
	cmd.Stderr = t
	if c.Output != nil {
		cmd.Stdout, cmd.Stderr = c.Output, c.Output
	}
	cmd.SysProcAttr = attributes(c.Outlives)
	// Grandchildren may hold our pipes open after the child has gone.
	cmd.WaitDelay = grace
	if err := spawn(cmd); err != nil {
		return nil, fmt.Errorf("start %s: %w", filepath.Base(c.Path), err)
	}
	p := &Process{cmd: cmd, tail: t, done: make(chan struct{}), grace: grace, ctx: ctx}
	limited := limit(cmd.Process.Pid, c.MemoryBytes)
	go p.wait()
	go p.watch()
	if limited != nil {
		p.Kill()
		return nil, fmt.Errorf("limit %s: %w", filepath.Base(c.Path), limited)
	}
	return p, nil
}

// starts are the commands that the spawning thread is to start.
var (
	starts  = make(chan func())
	spawner sync.Once
)

// spawn starts a command from the one thread that starts all of them and never
// ends: the kernel ends a child when the thread that made it does.
func spawn(cmd *exec.Cmd) error {
	spawner.Do(func() {
		sealDescriptors()
		go func() {
			runtime.LockOSThread()
			for start := range starts {
				start()
			}
		}()
	})
	result := make(chan error, 1)
	starts <- func() { result <- cmd.Start() }
	return <-result
}

// Run starts c and waits for its end.
func Run(ctx context.Context, c Command) error {
	p, err := Start(ctx, c)
	if err != nil {
		return err
	}
	return p.Wait()
}

// OutputBytes is how much Output takes before it gives up on a child.
const OutputBytes = 64 << 20

// Output runs c and returns what it wrote to stdout. A child that writes more
// than OutputBytes is ended.
func Output(ctx context.Context, c Command) (string, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	b := &bounded{full: func() { cancel(fmt.Errorf("it wrote more than %d MiB", OutputBytes>>20)) }}
	c.Stdout = b
	err := Run(ctx, c)
	return b.String(), err
}

// bounded keeps what is written to it up to OutputBytes, then calls full.
type bounded struct {
	strings.Builder
	full func()
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.Len()+len(p) > OutputBytes {
		b.full()
		return len(p), nil // drained until the child is gone
	}
	return b.Builder.Write(p)
}

// Look finds an executable in the directories of a PATH value and returns its
// absolute path. A name with a slash is made absolute.
func Look(name, path string) (string, error) {
	if strings.ContainsRune(name, '/') {
		abs, err := filepath.Abs(name)
		if err != nil {
			return "", err
		}
		return abs, executable(abs)
	}
	for _, dir := range filepath.SplitList(path) {
		if dir == "" {
			continue // an empty element would mean the working directory
		}
		full := filepath.Join(dir, name)
		if executable(full) == nil && filepath.IsAbs(full) {
			return full, nil
		}
	}
	return "", fmt.Errorf("%s: %w in PATH", name, os.ErrNotExist)
}

func executable(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if info.IsDir() || info.Mode()&0o111 == 0 {
		return fmt.Errorf("%s: %w", path, os.ErrPermission)
	}
	return nil
}

// PID returns the child's process id, which is also its group's.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the child has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait waits for the end and returns nil or an *Error.
func (p *Process) Wait() error {
	<-p.done
	return p.err
}

// Tail returns the last bytes that the child wrote to stderr so far.
func (p *Process) Tail() string { return p.tail.String() }

// Stop ends the group: SIGTERM, then SIGKILL after the grace time. It returns
// when the child has ended. Stopping a child that has ended does nothing.
func (p *Process) Stop() {
	p.condemn()
	p.signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(p.grace):
		p.signal(syscall.SIGKILL)
		<-p.done
	}
}

// Kill ends the group at once.
func (p *Process) Kill() {
	p.condemn()
	p.signal(syscall.SIGKILL)
	<-p.done
}

// condemn notes that the end is our doing, unless it came before.
func (p *Process) condemn() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.killed = p.killed || !p.reaped
}

// signal sends to the group, as long as its id is certainly the child's.
func (p *Process) signal(s syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.reaped {
		_ = syscall.Kill(-p.cmd.Process.Pid, s)
	}
}

func (p *Process) watch() {
	select {
	case <-p.ctx.Done():
		p.Stop()
	case <-p.done:
	}
}

func (p *Process) wait() {
	// While the child is dead but not reaped, nobody else can have its id: now is
	// the time to end what it left in its group.
	awaitExit(p.cmd.Process.Pid)
	p.mu.Lock()
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	p.reaped = true
	p.mu.Unlock()
	p.err = p.describe(p.cmd.Wait())
	close(p.done)
}

func (p *Process) describe(err error) error {
	p.mu.Lock()
	killed := p.killed
	p.mu.Unlock()
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil // a process outside the group kept a pipe; the child itself ended well
	}
	if err == nil && !killed {
		return nil
	}
	e := &Error{Path: p.cmd.Path, Exit: p.cmd.ProcessState.ExitCode(), Killed: killed, Tail: p.tail.String()}
	if killed {
		if e.Cause = context.Cause(p.ctx); e.Cause == nil {
			e.Cause = errStopped
		}
		return e
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		if w, ok := exit.Sys().(syscall.WaitStatus); ok && w.Signaled() {
			e.Signal = w.Signal()
		}
		return e
	}
	e.Cause = err
	return e
}

var errStopped = errors.New("stopped")

// tail keeps the last TailBytes written to it, and of what is before them the
// line that a dying Go program begins its traces with: they can be longer.
type tail struct {
	mu    sync.Mutex
	buf   []byte
	cause []byte
	next  io.Writer
}

// fatal begins the line of a Go program that the runtime ends, whatever
// GOTRACEBACK says of the traces behind it.
var fatal = []byte("fatal error: ")

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, b...)
	if n := len(t.buf) - TailBytes; n > 0 {
		if at := bytes.LastIndex(t.buf[:min(n+len(fatal), len(t.buf))], fatal); at >= 0 && at < n {
			line, _, _ := bytes.Cut(t.buf[at:min(at+causeBytes, len(t.buf))], []byte("\n"))
			t.cause = bytes.Clone(line)
		}
		t.buf = append(t.buf[:0], t.buf[n:]...)
	}
	if t.next != nil {
		_, _ = t.next.Write(b) // a full disk must not stop the child's pipe
	}
	return len(b), nil
}

// causeBytes bounds the line that is kept beyond the tail.
const causeBytes = 512

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.cause) == 0 {
		return string(t.buf)
	}
	return string(t.cause) + "\n[...]\n" + string(t.buf)
}
