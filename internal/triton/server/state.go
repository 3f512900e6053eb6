package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/regular"
	"github.com/trtship/trtship/internal/triton/kserve"
	"github.com/trtship/trtship/internal/triton/tritonpb"
)

// StateFormat is the tag of a state file.
const StateFormat = "trtship-server/1"

// State is what is known about a server that outlives the command that started
// it. It lies in a file <name>.json of the servers' folder.
type State struct {
	Format     string    `json:"format"`
	Name       string    `json:"name"`
	PID        int       `json:"pid,omitempty"`
	Began      string    `json:"process_start,omitempty"` // of the process, in the kernel's ticks: an id alone may be another's by now
	Prefix     string    `json:"shm_prefix,omitempty"`
	Container  string    `json:"container,omitempty"` // id
	Image      string    `json:"image,omitempty"`
	HTTP       string    `json:"http"`
	GRPC       string    `json:"grpc"`
	Metrics    string    `json:"metrics"`
	Log        string    `json:"log,omitempty"`
	Scratch    string    `json:"scratch,omitempty"`
	Alias      string    `json:"alias,omitempty"` // folder of plain names for its folders
	Repository string    `json:"repository"`
	Control    string    `json:"control"`
	Started    time.Time `json:"started"`
}

// Serve starts a server that outlives the caller and records it in dir under
// name. One that is recorded there and runs is refused.
func Serve(ctx context.Context, dir, name string, o Options) (State, error) {
	if err := checkFree(ctx, dir, name); err != nil {
		return State{}, err
	}
	scratch := scratchOf(dir, name)
	if err := os.RemoveAll(scratch); err != nil {
		return State{}, failure.New(failure.Artifact, "clear scratch: %w", err)
	}
	if err := os.MkdirAll(scratch, 0o700); err != nil {
		return State{}, failure.New(failure.Artifact, "make scratch: %w", err)
	}
	o.Scratch = scratch
	if o.Log == "" {
		o.Log = filepath.Join(dir, name+".log")
	}
	s, err := start(ctx, o, true)
	if err != nil {
		_ = os.RemoveAll(scratch)
		return State{}, err
	}
	st := State{
		Format: StateFormat, Name: name, PID: s.PID(), Began: processStart(s.PID()), Prefix: s.prefix,
		HTTP: s.HTTP, GRPC: s.GRPC, Metrics: s.Metrics, Log: o.Log, Scratch: scratch, Alias: s.alias,
		Repository: strings.Join(o.Repositories, string(os.PathListSeparator)), Control: o.Control, Started: time.Now().UTC().Truncate(time.Second),
	}
	if err := st.save(dir); err != nil {
		s.Stop()
		_ = os.RemoveAll(scratch)
		return State{}, err
	}
	return st, nil
}

// scratchOf is the folder of what a server that outlives us needs.
func scratchOf(dir, name string) string { return filepath.Join(dir, name+".scratch") }

// prefixForm is the form of a prefix that launch makes.
var prefixForm = regexp.MustCompile(`^trtship_[0-9a-f]{8}$`)

// checkFree refuses a name whose server runs.
func checkFree(ctx context.Context, dir, name string) error {
	if name == "" || name != filepath.Base(name) || strings.HasPrefix(name, ".") {
		return failure.New(failure.Usage, "%q is no name for a server", name)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return failure.New(failure.Artifact, "make the servers' folder: %w", err)
	}
	st, err := Lookup(dir, name)
	if err != nil {
		return nil //nolint:nilerr // nothing is recorded
	}
	if st.alive() {
		return failure.New(failure.Triton, "a server for %s runs already at %s", name, st.HTTP).
			WithHint("`trtship stop` ends it, `trtship status` shows it")
	}
	return Stop(ctx, dir, name, nil) // what is left of one that died
}

func (s State) save(dir string) error {
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	temporary := filepath.Join(dir, "."+s.Name+".json")
	if err := os.WriteFile(temporary, append(b, '\n'), 0o644); err != nil {
		return failure.New(failure.Artifact, "record the server: %w", err)
	}
	if err := os.Rename(temporary, filepath.Join(dir, s.Name+".json")); err != nil {
		return failure.New(failure.Artifact, "record the server: %w", err)
	}
	return nil
}

// Lookup reads the record of one server.
func Lookup(dir, name string) (State, error) {
	var st State
	b, err := regular.ReadFile(filepath.Join(dir, name+".json"))
	if errors.Is(err, fs.ErrNotExist) {
		return st, failure.New(failure.Triton, "no server for %s was started here", name).WithHint("`trtship serve` starts one")
	}
	if err == nil {
		err = json.Unmarshal(b, &st)
	}
	if err == nil && st.Format != StateFormat {
		err = fmt.Errorf("format %q", st.Format)
	}
	if err != nil {
		return st, failure.New(failure.Artifact, "read the record of the server: %w", err).At(filepath.Join(dir, name+".json"))
	}
	return st, nil
}

// Recorded lists the servers that are recorded in dir, by name.
func Recorded(dir string) ([]State, error) {
	files, err := filepath.Glob(filepath.Join(regular.Literal(dir), "*.json"))
	if err != nil {
		return nil, err
	}
	var out []State
	for _, f := range files {
		st, err := Lookup(dir, strings.TrimSuffix(filepath.Base(f), ".json"))
		if err != nil {
			return nil, err
		}
		out = append(out, st)
	}
	return out, nil
}

// processStart returns when a process began, in ticks since boot; empty if it
// is gone.
func processStart(pid int) string {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return ""
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 20 || fields[0] == "Z" {
		return ""
	}
	return fields[19]
}

// alive reports whether the recorded process still runs; containers are asked
// through Docker.
func (s State) alive() bool {
	return s.PID > 0 && s.Began != "" && processStart(s.PID) == s.Began
}

// Status is how a recorded server is now.
type Status struct {
	State
	Running bool
	Ready   bool
	Version string // of the server
	Models  []*tritonpb.RepositoryIndexResponse_ModelIndex
	Why     string // why it is not running or not ready
}

// Inspect asks a recorded server. docker may be nil if it is a local process.
func Inspect(ctx context.Context, st State, docker Docker) (Status, error) {
	out := Status{State: st, Running: st.alive()}
	if st.Container != "" {
		if docker == nil {
			return out, failure.New(failure.Missing, "the server is the container %.12s, and Docker does not answer", st.Container)
		}
		var err error
		if out.Running, out.Why, err = docker.Running(ctx, st.Container); err != nil {
			return out, err
		}
	}
	if !out.Running {
		if out.Why == "" {
			out.Why = "the process is gone"
			if e := readLog(st.Log); len(e.errors) > 0 {
				out.Why += ": " + e.errors[0].Error()
			}
		}
		return out, nil
	}
	c, err := kserve.Open(kserve.Options{Protocol: kserve.HTTP, Address: st.HTTP, Timeout: 5 * time.Second})
	if err != nil {
		return out, err
	}
	defer func() { _ = c.Close() }()
	if out.Ready, err = c.ServerReady(ctx); err != nil {
		out.Why = err.Error()
		return out, nil //nolint:nilerr // it runs and does not answer: that is the status
	}
	if m, err := c.ServerMetadata(ctx); err == nil {
		out.Version = m.GetVersion()
	}
	if out.Models, err = c.Index(ctx, false); err != nil {
		out.Why = err.Error()
	}
	return out, nil
}

// Stop ends a recorded server and its whole group, removes what it left, and
// forgets it. Its log stays. docker may be nil if it is a local process.
func Stop(ctx context.Context, dir, name string, docker Docker) error {
	st, err := Lookup(dir, name)
	if err != nil {
		return err
	}
	if st.Container != "" {
		if docker == nil {
			return failure.New(failure.Missing, "the server is the container %.12s, and Docker does not answer", st.Container)
		}
		if err := docker.Remove(ctx, st.Container); err != nil {
			return err
		}
	} else if st.alive() {
		if err := endGroup(ctx, st); err != nil {
			return err
		}
	}
	if prefixForm.MatchString(st.Prefix) { // a record that was tampered with removes nothing else
		sweep(st.Prefix)
	}
	removeAlias(st.Alias)
	if err := os.RemoveAll(scratchOf(dir, name)); err != nil {
		return failure.New(failure.Artifact, "remove scratch: %w", err)
	}
	if err := os.Remove(filepath.Join(dir, name+".json")); err != nil {
		return failure.New(failure.Artifact, "forget the server: %w", err)
	}
	return nil
}

// stopGrace is the time between SIGTERM and SIGKILL.
const stopGrace = 10 * time.Second

func endGroup(ctx context.Context, st State) error {
	for _, step := range []struct {
		signal syscall.Signal
		wait   time.Duration
	}{{syscall.SIGTERM, stopGrace}, {syscall.SIGKILL, stopGrace}} {
		if err := syscall.Kill(-st.PID, step.signal); errors.Is(err, syscall.ESRCH) {
			return nil
		} else if err != nil {
			return failure.New(failure.Triton, "end the server (process %d): %w", st.PID, err)
		}
		deadline := time.Now().Add(step.wait)
		for time.Now().Before(deadline) {
			if groupGone(st) {
				return nil
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(20 * time.Millisecond):
			}
		}
	}
	return failure.New(failure.Triton, "the server (process %d) does not end", st.PID)
}

// groupGone reports whether nothing of the group runs; a process that is only
// waiting to be collected counts as gone.
func groupGone(st State) bool {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return errors.Is(syscall.Kill(-st.PID, 0), syscall.ESRCH)
	}
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		b, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(b), ") ")
		f := strings.Fields(rest) // state, parent, group, ...
		if len(f) > 2 && f[2] == strconv.Itoa(st.PID) && f[0] != "Z" {
			return false
		}
	}
	return true
}
