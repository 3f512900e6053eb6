package load

import (
	"context"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// mostBlocking is the number of connections up to which each one has a thread.
const mostBlocking = 128

// stream is the connection below a protocol.
type stream interface {
	Read(p []byte) (int, error)
	Write(p []byte) (int, error)
	// begin bounds the time of the request that starts.
	begin(timeout time.Duration) error
	Close() error
}

// open connects. The connection breaks when ctx ends.
//
// A connection of a closed loop is a blocking socket, on which a request is two
// system calls, and its goroutine has a thread. Over Go's poller it would be
// four, and worse: all connections would wait for the one thread that polls.
// Where the machine is busy with other work, that thread waits for a processor
// and the server runs dry, while a client with a thread for each connection, as
// perf_analyzer is, keeps it at work.
func open(ctx context.Context, o Options) (stream, error) {
	d := net.Dialer{Timeout: 10 * time.Second}
	c, err := d.DialContext(ctx, "tcp", o.Address)
	if err != nil {
		return nil, err
	}
	if !o.blocking() {
		p := &polled{Conn: c}
		p.stop = context.AfterFunc(ctx, func() { _ = c.Close() })
		return p, nil
	}
	defer func() { _ = c.Close() }() // the socket lives on in its copy
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return nil, fmt.Errorf("%T is no TCP connection", c)
	}
	s, err := newSocket(tcp)
	if err != nil {
		return nil, fmt.Errorf("make the socket block: %w", err)
	}
	s.stop = context.AfterFunc(ctx, s.interrupt)
	return s, nil
}

// blocking reports whether every connection gets a thread.
func (o Options) blocking() bool { return o.Rate == 0 && o.Concurrency <= mostBlocking }

// polled is a connection of Go's poller.
type polled struct {
	net.Conn
	stop func() bool
}

func (p *polled) begin(timeout time.Duration) error {
	return p.SetDeadline(time.Now().Add(timeout))
}

func (p *polled) Close() error {
	p.stop()
	return p.Conn.Close()
}

// socket is a blocking socket.
type socket struct {
	fd      int
	timeout time.Duration // as the kernel has it
	stop    func() bool
	mu      sync.Mutex // of closed: fd must not be used by interrupt after it
	closed  bool
}

// newSocket takes a copy of a connection's socket out of Go's poller.
func newSocket(c *net.TCPConn) (*socket, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	s := &socket{fd: -1}
	var inner error
	err = raw.Control(func(fd uintptr) {
		syscall.ForkLock.RLock()
		defer syscall.ForkLock.RUnlock()
		if s.fd, inner = syscall.Dup(int(fd)); inner == nil {
			syscall.CloseOnExec(s.fd)
		}
	})
	if err == nil {
		err = inner
	}
	if err == nil {
		if err = syscall.SetNonblock(s.fd, false); err != nil {
			_ = syscall.Close(s.fd)
		}
	}
	return s, err
}

func (s *socket) begin(timeout time.Duration) error {
	if timeout == s.timeout {
		return nil
	}
	tv := syscall.NsecToTimeval(int64(timeout))
	for _, option := range []int{syscall.SO_RCVTIMEO, syscall.SO_SNDTIMEO} {
		if err := syscall.SetsockoptTimeval(s.fd, syscall.SOL_SOCKET, option, &tv); err != nil {
			return err
		}
	}
	s.timeout = timeout
	return nil
}

func (s *socket) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for {
		n, err := syscall.Read(s.fd, p)
		switch {
		case err == syscall.EINTR: //nolint:errorlint // a system call returns it bare
		case err != nil:
			return 0, s.failed("read", err)
		case n == 0:
			return 0, errEnded
		default:
			return n, nil
		}
	}
}

func (s *socket) Write(p []byte) (int, error) {
	done := 0
	for done < len(p) {
		n, err := syscall.Write(s.fd, p[done:])
		switch {
		case err == syscall.EINTR: //nolint:errorlint // a system call returns it bare
		case err != nil:
			return done, s.failed("write", err)
		default:
			done += n
		}
	}
	return done, nil
}

// failed names the operation; a timeout comes as EAGAIN.
func (s *socket) failed(what string, err error) error {
	if err == syscall.EAGAIN { //nolint:errorlint // a system call returns it bare
		err = os.ErrDeadlineExceeded
	}
	return fmt.Errorf("%s: %w", what, err)
}

// interrupt ends what waits on the socket.
func (s *socket) interrupt() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		_ = syscall.Shutdown(s.fd, syscall.SHUT_RDWR)
	}
}

func (s *socket) Close() error {
	s.stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return syscall.Close(s.fd)
}
