package server

import (
	"bytes"
	"encoding/binary"
	"io"
	"net/http"
	"testing"

	"github.com/moby/moby/client"

	"github.com/trtship/trtship/internal/failure"
)

// anyReply answers every request alike.
type anyReply struct {
	status int
	kind   string
	body   []byte
	asked  int
}

func (a *anyReply) RoundTrip(r *http.Request) (*http.Response, error) {
	a.asked++
	return &http.Response{
		StatusCode: a.status, Status: http.StatusText(a.status), Request: r, ContentLength: int64(len(a.body)),
		Header: http.Header{"Content-Type": {a.kind}}, Body: io.NopCloser(bytes.NewReader(a.body)),
	}, nil
}

// FuzzEngineReply lets a container engine answer anything: nothing may panic,
// errors have a code, and a container counts as running only if the engine said
// so. The bytes are read as a log too.
// Slow: each input answers up to eight requests of a client that is made anew.
func FuzzEngineReply(f *testing.F) {
	f.Add(uint16(200), []byte(`{"Id":"abc","State":{"Running":true},"Mounts":[{"Source":"/host","Destination":"/here"}]}`))
	f.Add(uint16(200), []byte(`{"Id":"abc","State":{"Running":false,"ExitCode":1,"Error":"out of memory"}}`))
	f.Add(uint16(201), []byte(`{"Id":"abc"}`))
	f.Add(uint16(404), []byte(`{"message":"No such container: abc"}`))
	f.Add(uint16(500), []byte(`<html>`))
	f.Add(uint16(200), append(binary.BigEndian.AppendUint32([]byte{2, 0, 0, 0}, 5), "hello"...))
	f.Add(uint16(200), append(binary.BigEndian.AppendUint32([]byte{1, 0, 0, 0}, 1<<31), "short"...))
	f.Add(uint16(200), []byte(`E1130 07:35:15.038057 1 model_lifecycle.cc:642] "failed to load 'm' version 1: Internal: no such plan"`))
	f.Fuzz(func(t *testing.T, code uint16, body []byte) {
		if code < 200 || code > 599 {
			return
		}
		reply := &anyReply{status: int(code), kind: "application/json", body: body}
		api, err := client.New(client.WithHost("tcp://127.0.0.1:1"), client.WithHTTPClient(&http.Client{Transport: reply}), client.WithAPIVersion("1.44"))
		if err != nil {
			t.Fatal(err)
		}
		e := &engine{api: api}
		judge := func(what string, err error) {
			if err != nil && failure.CodeOf(err) != failure.Triton {
				t.Errorf("%s: code %d: %v", what, failure.CodeOf(err), err)
			}
		}
		running, why, err := e.Running(t.Context(), "abc")
		judge("running", err)
		if running && (err != nil || code >= 400 || !bytes.Contains(bytes.ToLower(body), []byte("running"))) {
			t.Errorf("running after %d %q", code, body)
		}
		if !running && err == nil && why == "" && code >= 400 {
			t.Errorf("not running without a reason after %d", code)
		}
		id, err := e.Create(t.Context(), Container{Image: "a/b:c", Address: "127.0.0.1"})
		judge("create", err)
		if err == nil && id == "" {
			t.Error("a container without an id")
		}
		judge("remove", e.Remove(t.Context(), "abc"))
		log, err := e.Logs(t.Context(), "abc")
		judge("logs", err)
		if len(log) > len(body) || len(log) > maxLog {
			t.Errorf("a log of %d bytes out of %d", len(log), len(body))
		}
		if want, ok := framesOf(body); code == http.StatusOK && err == nil && (!ok || log != want) {
			t.Errorf("the log is %q, want %q, frames: %v", log, want, ok)
		}
		report := parseLog(string(body))
		for _, e := range report.errors {
			if e.Model == "" && !bytes.Contains(body, []byte("''")) || !bytes.Contains(body, []byte(e.Version)) {
				t.Errorf("a load error of nothing: %+v", e)
			}
		}
	})
}

// framesOf is what the frames of a log hold, as slices of the whole; ok is false
// where a frame does not begin with a stream from 0 to 3 and three zeros.
func framesOf(b []byte) (out string, ok bool) {
	for len(b) >= 8 {
		if b[0] > 3 || !bytes.Equal(b[1:4], []byte{0, 0, 0}) {
			return out, false
		}
		n := min(int(binary.BigEndian.Uint32(b[4:8])), len(b)-8)
		out += string(b[8 : 8+n])
		b = b[8+n:]
	}
	return out, true
}
