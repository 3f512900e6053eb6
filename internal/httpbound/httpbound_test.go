package httpbound_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/trtship/trtship/internal/httpbound"
)

func TestAReplyIsReadUpToItsBound(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, strings.Repeat("x", len(r.URL.Path)-1))
	}))
	defer s.Close()
	c := &http.Client{Transport: httpbound.Transport(nil, 5, time.Minute)}
	defer c.CloseIdleConnections()
	for length, want := range map[int]string{0: "", 4: "", 5: "", 6: "more than 5 bytes", 5000: "more than 5 bytes"} {
		r, err := c.Get(s.URL + "/" + strings.Repeat("a", length))
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r.Body)
		_ = r.Body.Close()
		if want == "" && (err != nil || len(b) != length) || want != "" && (err == nil || !strings.Contains(err.Error(), want) || len(b) != 5) {
			t.Errorf("%d bytes: read %d, %v", length, len(b), err)
		}
	}
	if _, err := c.Get("http://127.0.0.1:1/"); err == nil {
		t.Error("no server, no error")
	}
}

func TestSilenceEnds(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // only then is it seen that the client went away
		if r.URL.Path == "/body" {
			_, _ = io.WriteString(w, "begin")
			_ = http.NewResponseController(w).Flush()
		}
		if r.URL.Path == "/slow" { // longer than the limit on the whole, but never silent for so long
			for range 8 {
				_, _ = io.WriteString(w, "x")
				_ = http.NewResponseController(w).Flush()
				time.Sleep(50 * time.Millisecond)
			}
			return
		}
		<-r.Context().Done()
	}))
	defer s.Close()
	c := &http.Client{Transport: httpbound.Transport(nil, 1000, 250*time.Millisecond)}
	defer c.CloseIdleConnections()
	if _, err := c.Post(s.URL+"/head", "text/plain", strings.NewReader("x")); err == nil || !strings.Contains(err.Error(), "nothing came") {
		t.Errorf("silence before the head: %v", err)
	}
	for path, want := range map[string]string{"/body": "begin", "/slow": "xxxxxxxx"} {
		r, err := c.Get(s.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r.Body)
		_ = r.Body.Close()
		if string(b) != want || path == "/body" != (err != nil && strings.Contains(err.Error(), "nothing came")) {
			t.Errorf("%s: %q, %v", path, b, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+"/head", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Do(r); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that gave up: %v", err)
	}
}
