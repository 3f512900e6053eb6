package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/triton/server"
	"github.com/trtship/trtship/internal/triton/tritontest"
)

func serve(t *testing.T, dir string) server.State {
	t.Helper()
	st, err := server.Serve(t.Context(), dir, "m", server.Options{
		Installation: tritontest.Installation(t), Repositories: []string{repository(t, "s02-layout/no_name")},
		Wait: []server.Want{{Model: "no_name"}}, Control: "explicit", Load: []string{"no_name"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Stop(context.Background(), dir, "m", nil) })
	return st
}

func TestAServerIsServedAskedAndStopped(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "servers")
	st := serve(t, dir)
	all, err := server.Recorded(dir)
	if err != nil || len(all) != 1 || all[0].PID != st.PID {
		t.Fatalf("%+v %v", all, err)
	}
	got, err := server.Inspect(t.Context(), all[0], nil)
	if err != nil || !got.Running || !got.Ready || got.Version != "2.51.0" || len(got.Models) != 1 || got.Models[0].GetState() != "READY" {
		t.Errorf("%+v %v", got, err)
	}
	_, err = server.Serve(t.Context(), dir, "m", server.Options{})
	if failure.CodeOf(err) != failure.Triton || !strings.Contains(err.Error(), "runs already") {
		t.Errorf("a second one: %v", err)
	}
	if err := server.Stop(t.Context(), dir, "m", nil); err != nil {
		t.Fatal(err)
	}
	if groupRuns(t, st.PID) {
		t.Error("something of the group still runs")
	}
	if _, err := os.Stat(st.Scratch); err == nil {
		t.Error("scratch is left")
	}
	if _, err := os.Stat(st.Log); err != nil {
		t.Errorf("the log must stay: %v", err)
	}
	if left, _ := filepath.Glob("/dev/shm/" + st.Prefix + "*"); len(left) > 0 {
		t.Errorf("shared memory is left: %v", left)
	}
	if err := server.Stop(t.Context(), dir, "m", nil); failure.CodeOf(err) != failure.Triton {
		t.Errorf("stopped twice: %v", err)
	}
}

// groupRuns reports whether a process of the group is more than a zombie.
func groupRuns(t *testing.T, pid int) bool {
	t.Helper()
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, f := range stats {
		b, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(b), ") ")
		fields := strings.Fields(rest) // state, parent, group
		if len(fields) > 2 && fields[2] == strconv.Itoa(pid) && fields[0] != "Z" {
			return true
		}
	}
	return false
}

func TestAServerThatDiedIsSaidAndReplaced(t *testing.T) {
	dir := t.TempDir()
	st := serve(t, dir)
	if err := syscall.Kill(-st.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	var got server.Status
	for range 500 {
		var err error
		if got, err = server.Inspect(t.Context(), st, nil); err != nil {
			t.Fatal(err)
		}
		if !got.Running {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if got.Running || got.Ready || !strings.Contains(got.Why, "gone") {
		t.Errorf("%+v", got)
	}
	again := serve(t, dir)
	if again.PID == st.PID {
		t.Error("it was not replaced")
	}
}

func TestAnotherProcessOfTheSameIDIsNotEnded(t *testing.T) {
	dir := t.TempDir()
	st := server.State{Format: server.StateFormat, Name: "m", PID: os.Getpid(), Began: "1"} // we began later
	b, _ := json.Marshal(st)
	tritontest.Write(t, dir, "m.json", string(b))
	if err := server.Stop(t.Context(), dir, "m", nil); err != nil {
		t.Errorf("got %v", err) // and we are still here
	}
}

func TestRecordsThatAreNone(t *testing.T) {
	dir := t.TempDir()
	tritontest.Write(t, dir, "m.json", `{"format":"other"}`)
	if _, err := server.Lookup(dir, "m"); failure.CodeOf(err) != failure.Artifact {
		t.Errorf("got %v", err)
	}
	if _, err := server.Recorded(dir); failure.CodeOf(err) != failure.Artifact {
		t.Errorf("got %v", err)
	}
	for _, name := range []string{"", "a/b", "..", ".a"} {
		if _, err := server.Serve(t.Context(), dir, name, server.Options{}); failure.CodeOf(err) != failure.Usage {
			t.Errorf("%q: %v", name, err)
		}
	}
	st := server.State{Container: "abc"}
	if _, err := server.Inspect(t.Context(), st, nil); failure.CodeOf(err) != failure.Missing {
		t.Errorf("a container without Docker: %v", err)
	}
}

func TestAStartThatIsCutOffLeavesNothing(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(500*time.Millisecond, func() { cancel(errors.New("enough")) })
	dir := t.TempDir()
	_, err := server.Serve(ctx, dir, "m", server.Options{
		Installation: tritontest.Installation(t), Repositories: []string{repository(t, "s02-layout/no_name")}, Wait: []server.Want{{Model: "no_name", Version: "9"}},
	})
	if err == nil || !strings.Contains(err.Error(), "enough") {
		t.Errorf("got %v", err)
	}
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if e.Name() != "m.log" {
			t.Errorf("%s is left", e.Name())
		}
	}
}

func TestARecordThatWasTamperedWithRemovesNothingElse(t *testing.T) {
	dir, precious := t.TempDir(), t.TempDir()
	file := filepath.Join(precious, "file")
	link := filepath.Join(precious, "trtship-zz")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Symlink(file, link)); err != nil {
		t.Fatal(err)
	}
	shm, err := os.CreateTemp("/dev/shm", "precious-*")
	if err != nil {
		t.Fatal(err)
	}
	_ = shm.Close()
	defer func() { _ = os.Remove(shm.Name()) }()
	record := server.State{Format: server.StateFormat, Name: "m", PID: 1, Began: "0", HTTP: "127.0.0.1:1", Scratch: precious, Prefix: "precious-", Alias: precious}
	b, err := json.Marshal(record)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "m.json"), b, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := server.Stop(t.Context(), dir, "m", nil); err != nil {
		t.Error(err)
	}
	for _, f := range []string{file, link, shm.Name()} {
		if _, err := os.Lstat(f); err != nil {
			t.Errorf("gone: %v", err)
		}
	}
}
