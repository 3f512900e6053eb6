package testkit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// BrokenReply is one way in which a server answers wrongly.
type BrokenReply struct {
	Name string
	// Answer takes the place of the right handler, which is passed on for those
	// that spoil its answer.
	Answer func(w http.ResponseWriter, r *http.Request, right http.Handler)
	// sent counts the bytes of an endless reply.
	sent *atomic.Int64
}

func fixed(status int, kind, body string) func(http.ResponseWriter, *http.Request, http.Handler) {
	return func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		w.Header().Set("Content-Type", kind)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// HugeReply is how many bytes the endless reply of BrokenReplies holds. A client
// that takes them all has no bound.
const HugeReply = 96 << 20

// BrokenReplies are wrong answers over HTTP: refusals, proxies' pages, other
// JSON, none, half, slow and huge ones.
func BrokenReplies() []BrokenReply {
	const asJSON = "application/json"
	var sent atomic.Int64
	all := []BrokenReply{
		{Name: "no body", Answer: fixed(200, asJSON, "")},
		{Name: "no content", Answer: fixed(204, "", "")},
		{Name: "a page of HTML", Answer: fixed(200, "text/html", "<html><body>Sign in</body></html>")},
		{Name: "a cut off object", Answer: fixed(200, asJSON, `{"name":"m","out`)},
		{Name: "an array of nulls", Answer: fixed(200, asJSON, `[null,null]`)},
		{Name: "a number", Answer: fixed(200, asJSON, `1e999`)},
		{Name: "deep nesting", Answer: fixed(200, asJSON, strings.Repeat("[", 200_000))},
		{Name: "bytes that are no text", Answer: fixed(200, asJSON, "\xff\xfe\x00\x1f\x8b")},
		{Name: "zip that is none", Answer: func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = io.WriteString(w, "not gzip")
		}},
		{Name: "longer than announced", Answer: func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
			raw(w, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}{}{}{}")
		}},
		{Name: "shorter than announced", Answer: func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			raw(w, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2000\r\n\r\n{}")
		}},
		{Name: "no HTTP", Answer: func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { raw(w, "220 mail.example ESMTP\r\n") }},
		{Name: "closed at once", Answer: func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { raw(w, "") }},
		{Name: "to itself for ever", Answer: func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
			http.Redirect(w, r, r.URL.String(), http.StatusFound)
		}},
		{Name: "silence", Answer: func(_ http.ResponseWriter, r *http.Request, _ http.Handler) {
			_, _ = io.Copy(io.Discard, r.Body) // only then is it seen that the client went away
			<-r.Context().Done()
		}},
		{Name: "silence after the head", Answer: func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
			_, _ = io.Copy(io.Discard, r.Body)
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}},
		{Name: "huge", sent: &sent, Answer: func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
			w.Header().Set("Content-Type", asJSON)
			_, _ = io.WriteString(w, `{"x":"`)
			n, _ := io.CopyN(w, endless{}, HugeReply)
			if r.Method != http.MethodHead { // of which nothing is sent
				sent.Store(n)
			}
		}},
		{Name: "slow, but right", Answer: func(w http.ResponseWriter, r *http.Request, right http.Handler) {
			time.Sleep(20 * time.Millisecond)
			right.ServeHTTP(w, r)
		}},
	}
	for _, status := range []int{400, 401, 403, 404, 409, 418, 422, 429, 500, 502, 503, 504} {
		all = append(all, BrokenReply{Name: fmt.Sprint("status ", status), Answer: fixed(status, asJSON, `{"message":"no","error":"no","errors":[]}`)})
	}
	return all
}

type endless struct{}

func (endless) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = 'a'
	}
	return len(b), nil
}

// raw answers with bytes as they are and closes the connection.
func raw(w http.ResponseWriter, text string) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	_, _ = io.WriteString(conn, text)
	_ = conn.Close()
}

// SpoilReply passes requests on to right, but for one, by number from 0, which
// gets the broken answer. hit counts the requests.
func SpoilReply(right http.Handler, at int64, broken BrokenReply, hit *atomic.Int64) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if hit.Add(1)-1 == at {
			broken.Answer(w, r, right)
			return
		}
		right.ServeHTTP(w, r)
	})
}

// Wire is a connection between a client and a server that goes wrong after so
// many bytes of the server's.
type Wire struct {
	// After is where it goes wrong; negative: never.
	After int64
	// How it goes wrong: "cut", "reset", "stall" or "garbage".
	How string

	passed atomic.Int64
	l      net.Listener
	to     string
	mu     sync.Mutex
	open   []net.Conn
}

// WireFaults are the ways in which a Wire goes wrong.
var WireFaults = []string{"cut", "reset", "stall", "garbage"}

// Start listens in front of a server's address until the test ends and returns
// the address to use in its place.
func (w *Wire) Start(t testing.TB, to string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.l, w.to = l, to
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go w.pass(c)
		}
	}()
	t.Cleanup(w.Stop)
	return l.Addr().String()
}

// Stop closes the wire and what goes over it.
func (w *Wire) Stop() {
	_ = w.l.Close()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.open {
		_ = c.Close()
	}
	w.open = nil
}

// Passed is how many bytes of the server's arrived.
func (w *Wire) Passed() int64 { return w.passed.Load() }

func (w *Wire) pass(client net.Conn) {
	server, err := net.Dial("tcp", w.to)
	if err != nil {
		_ = client.Close()
		return
	}
	w.mu.Lock()
	w.open = append(w.open, client, server)
	w.mu.Unlock()
	go func() {
		_, _ = io.Copy(server, client)
		_ = server.Close()
	}()
	buf := make([]byte, 32<<10)
	for {
		n, err := server.Read(buf)
		if n > 0 && !w.forward(client, buf[:n]) {
			return
		}
		if err != nil {
			_ = client.Close()
			return
		}
	}
}

// forward reports whether the connection goes on.
func (w *Wire) forward(client net.Conn, b []byte) bool {
	before := w.passed.Add(int64(len(b))) - int64(len(b))
	if w.After < 0 || before+int64(len(b)) <= w.After {
		_, err := client.Write(b)
		return err == nil
	}
	_, _ = client.Write(b[:max(0, w.After-before)])
	switch w.How {
	case "stall":
		return false // what is open stays open
	case "reset":
		if c, ok := client.(*net.TCPConn); ok {
			_ = c.SetLinger(0)
		}
	case "garbage":
		_, _ = client.Write([]byte(strings.Repeat("\x00\xff\r\n{]", 4)))
	}
	_ = client.Close()
	return false
}

// Conversation talks to a server. It returns an error, or what it took for the
// answers in a form that can be compared.
type Conversation func(ctx context.Context, address string) (string, error)

// patience is how long a conversation may last, its own time limits included.
const patience = 20 * time.Second

// Faults counts the conversations that were disturbed.
type Faults struct {
	t               testing.TB
	talk            Conversation
	judge           func(error) string
	want            string
	tried, failures int64
}

// NewFaults lets a conversation happen once without a fault, over a server's
// address. judge says what is wrong with an error, or nothing.
func NewFaults(t testing.TB, address string, talk Conversation, judge func(error) string) *Faults {
	t.Helper()
	want, err := talk(context.Background(), address)
	if err != nil {
		t.Fatalf("without a fault: %v", err)
	}
	return &Faults{t: t, talk: talk, judge: judge, want: want}
}

// Try lets the conversation happen with a fault: it must end, and end in an
// error or in the right answers.
func (f *Faults) Try(what, address string) {
	f.t.Helper()
	f.tried++
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	got, err := f.talk(ctx, address)
	why := ""
	switch {
	case ctx.Err() != nil:
		why = fmt.Sprintf("no end after %s: %v", patience, err)
	case err == nil && got != f.want:
		why = fmt.Sprintf("taken for an answer: %q, want %q", got, f.want)
	case err != nil && f.judge != nil:
		if bad := f.judge(err); bad != "" {
			why = fmt.Sprintf("%s: %v", bad, err)
		}
	}
	if why != "" {
		f.Fail("%s: %s", what, why)
	}
}

// Fail counts and says a failure.
func (f *Faults) Fail(format string, args ...any) {
	f.t.Helper()
	f.failures++
	f.t.Errorf(format, args...)
}

// Record keeps the counts.
func (f *Faults) Record(kind, format string, args ...any) {
	f.t.Helper()
	RecordFaults(f.t, FaultRow{Kind: kind, Tried: f.tried, Failures: f.failures, Detail: fmt.Sprintf(format, args...)})
}

// BreakReplies lets a conversation over HTTP happen over and over, each time
// with one reply broken in one way, or one connection that goes wrong at one byte.
func BreakReplies(t testing.TB, kind string, right func() http.Handler, talk Conversation, judge func(error) string) {
	t.Helper()
	log.SetOutput(io.Discard) // net/http remarks on what it finds
	defer log.SetOutput(os.Stderr)
	var hit atomic.Int64
	plain := &Wire{After: -1}
	f := NewFaults(t, plain.Start(t, Serve(t, SpoilReply(right(), -1, BrokenReply{}, &hit))), talk, judge)
	requests := hit.Load()
	for at := range requests {
		for _, b := range BrokenReplies() {
			what := fmt.Sprintf("request %d, %s", at, b.Name)
			f.Try(what, Serve(t, SpoilReply(right(), at, b, new(atomic.Int64))))
			if b.sent != nil && b.sent.Load() == HugeReply {
				f.Fail("%s: all %d bytes were taken", what, HugeReply)
			}
		}
	}
	f.BreakWires(plain.Passed(), func() string { return Serve(t, right()) })
	f.Record(kind, "%d requests of a conversation, each answered in %d wrong ways; connections cut, reset, silent and garbled at bytes of %d", requests, len(BrokenReplies()), plain.Passed())
}

// BreakWires lets the conversation happen over connections that go wrong at
// bytes of the n that the server sends. start starts a server anew.
func (f *Faults) BreakWires(n int64, start func() string) {
	f.t.Helper()
	for _, how := range WireFaults {
		for _, after := range spread(n, how) {
			w := &Wire{After: after, How: how}
			f.Try(fmt.Sprintf("%s after %d bytes", how, after), w.Start(f.t, start()))
			w.Stop()
		}
	}
}

// spread are places in a stream: its begin and end, and between them.
func spread(n int64, how string) []int64 {
	steps := int64(24)
	if how == "stall" {
		steps = 6 // each costs a time limit
	}
	out := []int64{0, 1}
	for i := int64(1); i < steps; i++ {
		if at := n * i / steps; at > out[len(out)-1] {
			out = append(out, at)
		}
	}
	return append(out, n-1)
}

// Serve starts a server for a handler until the test ends and returns host:port.
// Handlers that wait are ended with it.
func Serve(t testing.TB, h http.Handler) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute, BaseContext: func(net.Listener) context.Context { return ctx }}
	go func() {
		if err := s.Serve(l); err != nil && !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	}()
	t.Cleanup(func() { cancel(); _ = s.Close() })
	return l.Addr().String()
}
