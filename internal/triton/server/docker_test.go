package server_test

import (
	"encoding/binary"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/triton/server"
)

// dockerAPI is a stand-in for a container engine: as much of its HTTP interface
// as is used, on a socket, so that the real client talks to it.
type dockerAPI struct {
	created map[string]any
	calls   []string
	fail    string // path that answers with an error
	running bool
	gone    bool
}

var versioned = regexp.MustCompile(`^/v1\.\d+`)

func (d *dockerAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := versioned.ReplaceAllString(r.URL.Path, "")
	d.calls = append(d.calls, r.Method+" "+path)
	w.Header().Set("Api-Version", "1.47")
	w.Header().Set("Content-Type", "application/json")
	if d.fail != "" && strings.HasSuffix(path, d.fail) {
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = w.Write([]byte(`{"message":"the engine says no"}`))
		return
	}
	if d.gone && strings.Contains(path, "/containers/") {
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write([]byte(`{"message":"No such container: abc"}`))
		return
	}
	switch {
	case path == "/_ping":
		_, _ = w.Write([]byte("OK"))
	case path == "/containers/create":
		b, _ := io.ReadAll(r.Body)
		_ = json.Unmarshal(b, &d.created)
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte(`{"Id":"abc"}`))
	case strings.HasSuffix(path, "/json"):
		state := `{"Running":true}`
		if !d.running {
			state = `{"Running":false,"ExitCode":1,"Error":"out of memory"}`
		}
		_, _ = w.Write([]byte(`{"Id":"abc","State":` + state + `,"Mounts":[{"Source":"/host","Destination":"/here"}]}`))
	case strings.HasSuffix(path, "/logs"):
		w.Header().Set("Content-Type", "application/vnd.docker.multiplexed-stream")
		for stream, text := range map[byte]string{1: "to stdout\n", 2: "to stderr\n"} {
			_, _ = w.Write(append(binary.BigEndian.AppendUint32([]byte{stream, 0, 0, 0}, uint32(len(text))), text...))
		}
	default:
		w.WriteHeader(http.StatusNoContent)
	}
}

// connect starts the stand-in and the real client on it.
func connect(t *testing.T, d *dockerAPI) server.Docker {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "docker.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(d)
	s.Listener = l
	s.Start()
	t.Cleanup(s.Close)
	c, err := server.ConnectDocker(t.Context(), func(name string) string {
		return map[string]string{"DOCKER_HOST": "unix://" + socket}[name]
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestTheEngineIsAskedThroughItsOwnClient(t *testing.T) {
	d := &dockerAPI{running: true}
	c := connect(t, d)
	id, err := c.Create(t.Context(), server.Container{
		Image: "a/b:c", Name: "trtship-m", Command: []string{"tritonserver", "--x"}, Repository: "/models/here", Address: "127.0.0.1",
		Ports: map[int]int{8000: 18000, 8001: 18001}, GPUs: []string{"0", "GPU-1"}, SharedMB: 64, MemoryMB: 96,
	})
	if err != nil || id != "abc" {
		t.Fatal(err)
	}
	host, _ := d.created["HostConfig"].(map[string]any)
	b, _ := json.Marshal(host)
	for _, want := range []string{
		`"8000/tcp":[{"HostIp":"127.0.0.1","HostPort":"18000"}]`, `"ShmSize":67108864`, `"Memory":100663296`, `"MemorySwap":100663296`, `"Source":"/models/here"`, `"Target":"/models"`, `"ReadOnly":true`,
		`"DeviceIDs":["0","GPU-1"]`, `"no-new-privileges"`,
	} {
		if !strings.Contains(string(b), want) {
			t.Errorf("the request has no %s: %s", want, b)
		}
	}
	if d.created["Image"] != "a/b:c" || strings.Contains(string(b), `"Privileged":true`) || strings.Contains(string(b), `"PublishAllPorts":true`) {
		t.Errorf("%v", d.created)
	}
	if _, err := c.Create(t.Context(), server.Container{Image: "a/b:c", Address: "127.0.0.1", GPUs: []string{"all"}}); err != nil {
		t.Fatal(err)
	}
	if b, _ = json.Marshal(d.created["HostConfig"]); !strings.Contains(string(b), `"Count":-1`) {
		t.Errorf("all GPUs: %s", b)
	}
	if running, _, err := c.Running(t.Context(), id); !running || err != nil {
		t.Errorf("%v %v", running, err)
	}
	if log, err := c.Logs(t.Context(), id); err != nil || !strings.Contains(log, "to stdout\n") || !strings.Contains(log, "to stderr\n") {
		t.Errorf("%q %v", log, err)
	}
	if err := c.Remove(t.Context(), id); err != nil {
		t.Error(err)
	}
	if last := d.calls[len(d.calls)-1]; last != "DELETE /containers/abc" {
		t.Errorf("%v", d.calls)
	}
	d.running = false
	if running, why, err := c.Running(t.Context(), id); running || err != nil || !strings.Contains(why, "exit status 1 out of memory") {
		t.Errorf("%v %q %v", running, why, err)
	}
	if inside, _, err := c.Self(t.Context()); err != nil {
		t.Errorf("%v %v", inside, err)
	}
}

func TestWhatTheEngineRefusesIsSaid(t *testing.T) {
	d := &dockerAPI{}
	c := connect(t, d)
	d.gone = true
	if running, why, err := c.Running(t.Context(), "abc"); running || err != nil || why != "the container is gone" {
		t.Errorf("%v %q %v", running, why, err)
	}
	if err := c.Remove(t.Context(), "abc"); err != nil {
		t.Errorf("one that is gone: %v", err)
	}
	d.gone = false
	for path, ask := range map[string]func() error{
		"/create": func() error {
			_, err := c.Create(t.Context(), server.Container{Image: "a/b:c", Address: "127.0.0.1"})
			return err
		},
		"/start": func() error {
			_, err := c.Create(t.Context(), server.Container{Image: "a/b:c", Address: "127.0.0.1"})
			return err
		},
		"/json": func() error { _, _, err := c.Running(t.Context(), "abc"); return err },
		"/logs": func() error { _, err := c.Logs(t.Context(), "abc"); return err },
		"/stop": func() error { return c.Remove(t.Context(), "abc") },
	} {
		d.fail = path
		if err := ask(); failure.CodeOf(err) != failure.Triton || !strings.Contains(err.Error(), "the engine says no") {
			t.Errorf("%s: %v", path, err)
		}
	}
	if last := d.calls; !strings.Contains(strings.Join(last, "\n"), "DELETE /containers/abc") {
		t.Error("a container that did not start was not removed")
	}
	if _, err := c.Create(t.Context(), server.Container{Image: "a/b:c", Address: "everywhere"}); failure.CodeOf(err) != failure.Usage {
		t.Errorf("got %v", err)
	}
}
