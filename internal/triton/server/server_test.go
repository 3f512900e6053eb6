package server_test

import (
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/internal/testkit"
	"github.com/trtship/trtship/internal/triton/kserve"
	"github.com/trtship/trtship/internal/triton/server"
	"github.com/trtship/trtship/internal/triton/tritontest"
)

var cases = filepath.Join("..", "..", "..", "testdata", "cases")

func repository(t *testing.T, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, n := range names {
		tritontest.CopyTree(t, filepath.Join(cases, filepath.FromSlash(n)), filepath.Join(dir, filepath.Base(n)))
	}
	return dir
}

func TestARealServerAnswersOverBothProtocolsAndEndsWithItsGroup(t *testing.T) {
	s := tritontest.Start(t, server.Options{
		Repositories: []string{repository(t, "s02-layout/no_name")},
		Wait:         []server.Want{{Model: "no_name", Version: "1"}},
	})
	in := tensor.Named{Name: "x", Tensor: tensor.Tensor{DType: tensor.Float32, Shape: []int64{2, 4}, Data: make([]byte, 32)}}
	for _, p := range []kserve.Protocol{kserve.HTTP, kserve.GRPC} {
		c, err := s.Client(p)
		if err != nil {
			t.Fatal(err)
		}
		out, err := kserve.Model{Client: c, Name: "no_name"}.Infer(t.Context(), []tensor.Named{in})
		if err != nil {
			t.Fatalf("%s: %v", p, err)
		}
		if len(out) != 1 || out[0].Name != "y" || out[0].Shape[0] != 2 {
			t.Errorf("%s: got %+v", p, out)
		}
		_ = c.Close()
	}
	if s.Version() != "2.51.0" {
		t.Errorf("version %q", s.Version())
	}
	pid := s.PID()
	s.Stop()
	if err := syscall.Kill(-pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("something of the group still runs: %v", err)
	}
}

func TestTheFirstLoadErrorEndsTheStartWithTritonsWords(t *testing.T) {
	for name, want := range map[string]string{
		"s02-layout/wrong_file_name":        "unable to find",
		"s02-layout/version_latest":         "at least one version must be available",
		"s03-text/tutorial_batching_option": `no field named "batching_option"`,
		"s04-instance-groups/cpu_with_gpus": "gpus",
		"s02-layout/platform_backend_pair":  "unexpected 'platform' and 'backend' pair",
		"s02-layout/labels_missing":         "labels.txt",
	} {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			_, err := server.Start(t.Context(), server.Options{
				Installation: tritontest.Installation(t),
				Repositories: []string{repository(t, name)},
				Wait:         []server.Want{{Model: filepath.Base(name)}},
				Scratch:      t.TempDir(),
			})
			e, ok := errors.AsType[*failure.Error](err)
			if !ok || e.Code != failure.Triton {
				t.Fatalf("got %v", err)
			}
			text := e.Error()
			for _, d := range e.Details {
				text += "\n" + d.Value
			}
			if !strings.Contains(text, want) {
				t.Errorf("%s\ndoes not say %q (after %s)", text, want, time.Since(began))
			}
		})
	}
}

func TestAPortInUseIsNamedAndNothingIsLeft(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	_, err = server.Start(t.Context(), server.Options{
		Installation: tritontest.Installation(t),
		Repositories: []string{repository(t, "s02-layout/no_name")},
		HTTPPort:     l.Addr().(*net.TCPAddr).Port,
		Scratch:      t.TempDir(),
	})
	if failure.CodeOf(err) != failure.Triton || !strings.Contains(err.Error(), "in use") {
		t.Fatalf("got %v", err)
	}
}

func TestAServerThatIsKilledSaysSo(t *testing.T) {
	s := tritontest.Start(t, server.Options{
		Repositories: []string{repository(t, "s02-layout/no_name")},
		Wait:         []server.Want{{Model: "no_name"}},
	})
	if err := syscall.Kill(s.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-s.Done()
	err := s.Err()
	if failure.CodeOf(err) != failure.Triton || !strings.Contains(err.Error(), "SIGKILL") {
		t.Fatalf("got %v", err)
	}
}

func TestAModelThatNeverBecomesReadyIsNamed(t *testing.T) {
	s, err := server.Start(t.Context(), server.Options{
		Installation: tritontest.Installation(t),
		Repositories: []string{repository(t, "s02-layout/no_name")},
		Wait:         []server.Want{{Model: "no_name", Version: "7"}},
		Scratch:      t.TempDir(), ReadyTimeout: 6 * time.Second,
	})
	if err == nil {
		s.Stop()
	}
	if failure.CodeOf(err) != failure.Triton || !strings.Contains(err.Error(), "no_name version 7 is not ready after 6s") {
		t.Fatalf("got %v", err)
	}
}

func TestNoServerAnywhereIsMissing(t *testing.T) {
	_, err := server.Find(t.Context(), server.FindOptions{Path: t.TempDir()})
	if failure.CodeOf(err) != failure.Missing {
		t.Fatalf("got %v", err)
	}
	_, err = server.Find(t.Context(), server.FindOptions{Server: filepath.Join(t.TempDir(), "tritonserver")})
	if failure.CodeOf(err) != failure.Missing || !strings.Contains(err.Error(), "tritonserver") {
		t.Fatalf("got %v", err)
	}
}

func TestMain(m *testing.M) { testkit.Main(m) }

func TestAFullDiskIsOneErrorAndNothingIsLeft(t *testing.T) {
	defer server.FillDisk(&os.PathError{Op: "write", Path: "model.py", Err: syscall.ENOSPC})()
	scratch := t.TempDir()
	_, err := server.Start(t.Context(), server.Options{
		Installation: tritontest.Installation(t), Repositories: []string{repository(t, "s02-layout/no_name")}, Scratch: scratch,
	})
	if failure.CodeOf(err) != failure.Triton || !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "start tritonserver") {
		t.Errorf("got %v", err)
	}
	dir := t.TempDir()
	_, err = server.Serve(t.Context(), dir, "m", server.Options{Installation: tritontest.Installation(t), Repositories: []string{t.TempDir()}})
	if failure.CodeOf(err) != failure.Triton {
		t.Errorf("got %v", err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 0 {
		t.Errorf("%d entries are left", len(entries))
	}
}

func TestALogThatCannotBeWrittenIsSaid(t *testing.T) {
	_, err := server.Start(t.Context(), server.Options{
		Installation: tritontest.Installation(t), Repositories: []string{t.TempDir()}, Scratch: t.TempDir(), Log: filepath.Join(t.TempDir(), "no", "such", "folder"),
	})
	if failure.CodeOf(err) != failure.Triton || !strings.Contains(err.Error(), "log") {
		t.Errorf("got %v", err)
	}
}

// Between choosing a free port and listening on it, a server of somebody else may
// have taken it; its models are not ours.
func TestAnotherServerOnThePortIsNotTakenForOurs(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v2" {
			_, _ = w.Write([]byte(`{"name":"trtship_0badcafe","version":"2.51.0","extensions":[]}`))
		}
	}))
	defer other.Close()
	for _, c := range []struct {
		name string
		args []string
		want bool
	}{
		{"trtship_0badcafe", nil, true},
		{"trtship_00000001", nil, false},
		{"trtship_00000001", []string{"--id=mine"}, true}, // a name of the caller, which is not known
	} {
		s := server.ForTest(strings.TrimPrefix(other.URL, "http://"), time.Second)
		got, err := s.Answers(t.Context(), c.name, c.args...)
		if err != nil || got != c.want {
			t.Errorf("%s %v: %v, %v", c.name, c.args, got, err)
		}
	}
	s := server.ForTest("127.0.0.1:1", time.Second)
	if got, err := s.Answers(t.Context(), "trtship_0badcafe"); got || err != nil {
		t.Errorf("nobody listens: %v, %v", got, err)
	}
}
