package server_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/testkit"
	"github.com/trtship/trtship/internal/triton/server"
)

// fakeDocker records what it is asked for; a server of the test stands for the
// container.
type fakeDocker struct {
	made    server.Container
	removed []string
	running bool
	why     string
	log     string
	inside  bool
	mounts  []server.Mount
	handler http.Handler
	servers []*httptest.Server
}

func (f *fakeDocker) Create(_ context.Context, c server.Container) (string, error) {
	f.made = c
	if f.handler != nil {
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(c.Ports[8000])))
		if err != nil {
			return "", err
		}
		s := httptest.NewUnstartedServer(f.handler)
		s.Listener = l
		s.Start()
		f.servers = append(f.servers, s)
	}
	return "0123456789abcdef", nil
}

func (f *fakeDocker) Running(context.Context, string) (bool, string, error) {
	return f.running, f.why, nil
}
func (f *fakeDocker) Logs(context.Context, string) (string, error) { return f.log, nil }
func (f *fakeDocker) Remove(_ context.Context, id string) error {
	f.removed = append(f.removed, id)
	return nil
}

func (f *fakeDocker) Self(context.Context) (bool, []server.Mount, error) {
	return f.inside, f.mounts, nil
}

// ready answers as a server whose model is ready.
func ready(model string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v2/models/"+model+"/ready" && r.URL.Path != "/v2/health/ready" {
			w.WriteHeader(http.StatusBadRequest)
		}
	})
}

func TestAContainerIsStartedAsItIsAskedFor(t *testing.T) {
	dir, repository := t.TempDir(), t.TempDir()
	f := &fakeDocker{running: true, handler: ready("m")}
	var warned []string
	st, err := server.ServeContainer(t.Context(), f, dir, "m", server.ContainerOptions{
		Image: "nvcr.io/nvidia/tritonserver:24.10-py3", Repository: repository, Wait: []server.Want{{Model: "m"}}, Control: "explicit", Load: []string{"m"},
		GPUs: "0,GPU-aa", SharedMB: 512, Verbose: true, CacheBytes: 1 << 20, Warn: func(s string) { warned = append(warned, s) },
	})
	if err != nil {
		t.Fatal(err)
	}
	c := f.made
	if c.Address != "127.0.0.1" || c.Repository != repository || c.SharedMB != 512 || strings.Join(c.GPUs, " ") != "0 GPU-aa" || len(warned) != 0 {
		t.Errorf("%+v %v", c, warned)
	}
	want := "tritonserver --model-repository=/models --model-control-mode=explicit --load-model=m --log-verbose=1 --cache-config=local,size=1048576"
	if strings.Join(c.Command, " ") != want {
		t.Errorf("%v", c.Command)
	}
	if got, err := server.Inspect(t.Context(), st, f); err != nil || !got.Running || !got.Ready {
		t.Errorf("%+v %v", got, err)
	}
	if err := server.Stop(t.Context(), dir, "m", f); err != nil || len(f.removed) != 1 {
		t.Errorf("%v %v", f.removed, err)
	}
	for _, s := range f.servers {
		s.Close()
	}
}

func TestWhatIsNoContainerIsExit2(t *testing.T) {
	good := server.ContainerOptions{Image: "a/b:c", Repository: t.TempDir()}
	for name, change := range map[string]func(*server.ContainerOptions){
		"no image":                        func(o *server.ContainerOptions) { o.Image = "" },
		"an image that starts with -":     func(o *server.ContainerOptions) { o.Image = "--privileged" },
		"an image with a space":           func(o *server.ContainerOptions) { o.Image = "a b" },
		"an image in upper case":          func(o *server.ContainerOptions) { o.Image = "NVCR/Triton" },
		"a repository with :":             func(o *server.ContainerOptions) { o.Repository = "/models:/etc" },
		"a repository that starts with -": func(o *server.ContainerOptions) { o.Repository = "-v" },
		"a repository with a comma":       func(o *server.ContainerOptions) { o.Repository = "/a,readonly=false" },
		"an address that is none":         func(o *server.ContainerOptions) { o.Address = "localhost;rm" },
		"GPUs that are none":              func(o *server.ContainerOptions) { o.GPUs = "first" },
		"all GPUs and more":               func(o *server.ContainerOptions) { o.GPUs = "all,1" },
	} {
		t.Run(name, func(t *testing.T) {
			o, f := good, &fakeDocker{}
			change(&o)
			_, err := server.ServeContainer(t.Context(), f, t.TempDir(), "m", o)
			if failure.CodeOf(err) != failure.Usage {
				t.Errorf("got %v", err)
			}
			if f.made.Image != "" {
				t.Error("a container was made")
			}
		})
	}
}

func TestAnAddressThatOthersReachIsSaidLoudly(t *testing.T) {
	for address, loud := range map[string]bool{"": false, "127.0.0.1": false, "::1": false, "0.0.0.0": true, "10.0.0.7": true} {
		var said string
		if err := server.CheckAddress(address, func(s string) { said = s }); err != nil {
			t.Errorf("%q: %v", address, err)
		}
		if loud != (strings.HasPrefix(said, "WARNING") && strings.Contains(said, "no authentication")) {
			t.Errorf("%q: %q", address, said)
		}
	}
}

// g03: in a container with the host's socket a mount names a path of the host.
func TestThePathTrapIsFoundAndTranslated(t *testing.T) {
	testkit.HoldsCase(t, "g03-container-action")
	repository := t.TempDir()
	serve := func(f *fakeDocker) error {
		f.running, f.handler = true, ready("m")
		_, err := server.ServeContainer(t.Context(), f, t.TempDir(), "m", server.ContainerOptions{Image: "a/b:c", Repository: repository, Wait: []server.Want{{Model: "m"}}})
		for _, s := range f.servers {
			s.Close()
		}
		return err
	}
	f := &fakeDocker{inside: true, mounts: []server.Mount{{Host: "/var", Container: "/"}, {Host: "/home/runner/work", Container: filepath.Dir(repository)}}}
	if err := serve(f); err != nil || f.made.Repository != filepath.Join("/home/runner/work", filepath.Base(repository)) {
		t.Errorf("%s %v", f.made.Repository, err)
	}
	f = &fakeDocker{inside: true, mounts: []server.Mount{{Host: "/x", Container: "/elsewhere"}}}
	if err := serve(f); failure.CodeOf(err) != failure.Triton || !strings.Contains(err.Error(), "no folder of the host") || f.made.Image != "" {
		t.Errorf("got %v", err)
	}
}

func TestContainersThatDoNotComeUpAreRemoved(t *testing.T) {
	for name, c := range map[string]struct {
		f    *fakeDocker
		want string
	}{
		"a load error is shown at once": {&fakeDocker{running: true, log: `E1130 07:35:15.038057 1 model_lifecycle.cc:642] "failed to load 'm' version 1: Internal: no such plan"` + "\n"}, "load m version 1: Internal: no such plan"},
		"it ended":                      {&fakeDocker{why: "exit status 1 "}, "exit status 1"},
		"it never becomes ready":        {&fakeDocker{running: true, handler: ready("other")}, "m is not ready after 300ms"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			_, err := server.ServeContainer(t.Context(), c.f, dir, "m", server.ContainerOptions{Image: "a/b:c", Repository: t.TempDir(), Wait: []server.Want{{Model: "m"}}, ReadyTimeout: 300 * time.Millisecond})
			if failure.CodeOf(err) != failure.Triton || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v", err)
			}
			if len(c.f.removed) != 1 {
				t.Error("the container is left")
			}
			if all, err := server.Recorded(dir); err != nil || len(all) != 0 {
				t.Errorf("it is recorded: %v %v", all, err)
			}
			for _, s := range c.f.servers {
				s.Close()
			}
		})
	}
}

func TestADockerThatDoesNotAnswerIsMissing(t *testing.T) {
	_, err := server.ConnectDocker(t.Context(), func(string) string { return "unix:///no/such/socket" })
	if failure.CodeOf(err) != failure.Missing || !strings.Contains(err.Error(), "unix:///no/such/socket") {
		t.Errorf("got %v", err)
	}
}
