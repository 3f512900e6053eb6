// Package httpbound bounds what an HTTP client takes from a server: how many bytes
// a reply has, and how long nothing comes. It is for libraries that read a reply
// to its end whatever its size, and wait for it without end.
package httpbound

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"
)

// Transport passes requests on to next (the default transport if nil). It reads
// no more than most bytes of a reply, and gives up where nothing comes for as
// long as idle, of the head or of the body.
func Transport(next http.RoundTripper, most int64, idle time.Duration) http.RoundTripper {
	if next == nil {
		next = http.DefaultTransport
	}
	return &transport{next, most, idle}
}

type transport struct {
	next http.RoundTripper
	most int64
	idle time.Duration
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(r.Context())
	silent := fmt.Errorf("nothing came from %s for %s", r.URL.Host, t.idle)
	timer := time.AfterFunc(t.idle, func() { cancel(silent) })
	request := r.WithContext(ctx)
	if r.Body != nil && r.Body != http.NoBody {
		// While a request is sent the server may well be silent.
		request.Body = &sending{r.Body, timer, t.idle}
	}
	reply, err := t.next.RoundTrip(request)
	if err != nil {
		timer.Stop()
		cancel(nil)
		return reply, cause(ctx, r, err)
	}
	timer.Reset(t.idle)
	reply.Body = &body{ReadCloser: reply.Body, left: t.most, transport: t, timer: timer, cancel: cancel, ctx: ctx, request: r}
	return reply, nil
}

// CloseIdleConnections lets http.Client's method of this name through.
func (t *transport) CloseIdleConnections() {
	if c, ok := t.next.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// cause is the reason for which we ended a request, if it was us.
func cause(ctx context.Context, r *http.Request, err error) error {
	if c := context.Cause(ctx); c != nil && r.Context().Err() == nil {
		return c
	}
	return err
}

type sending struct {
	io.ReadCloser
	timer *time.Timer
	idle  time.Duration
}

// Read counts what is sent as a sign of life.
func (s *sending) Read(p []byte) (int, error) {
	s.timer.Reset(s.idle)
	return s.ReadCloser.Read(p)
}

type body struct {
	io.ReadCloser
	left      int64
	transport *transport
	timer     *time.Timer
	cancel    context.CancelCauseFunc
	ctx       context.Context //nolint:containedctx // of the request whose body this is
	request   *http.Request
}

// Read fails where a reply goes on behind its bound, or does not go on.
func (b *body) Read(p []byte) (int, error) {
	if b.left < 0 {
		return 0, b.tooLong()
	}
	if int64(len(p)) > b.left+1 {
		p = p[:b.left+1]
	}
	b.timer.Reset(b.transport.idle)
	n, err := b.ReadCloser.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return n - 1, b.tooLong()
	}
	if err != nil && err != io.EOF { //nolint:errorlint // a reader's end is never wrapped
		err = cause(b.ctx, b.request, err)
	}
	return n, err
}

// Close ends the wait.
func (b *body) Close() error {
	b.timer.Stop()
	err := b.ReadCloser.Close()
	b.cancel(nil)
	return err
}

func (b *body) tooLong() error {
	return fmt.Errorf("the reply has more than %d bytes", b.transport.most)
}
