package proc_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/trtship/trtship/internal/proc"
	"github.com/trtship/trtship/internal/testkit"
)

// A child of these tests is this binary once more, for what a shell cannot do.
const parentOf = "TRTSHIP_TEST_PARENT"

func TestMain(m *testing.M) {
	if os.Getenv(parentOf) == "" {
		testkit.Main(m)
	}
	if os.Getenv(parentOf) == "descriptors" {
		out, err := proc.Output(context.Background(), proc.Command{Path: "/bin/ls", Args: []string{"/proc/self/fd"}})
		fmt.Println(strings.Fields(out), err)
		return
	}
	// Start a child, name it, and wait to be killed.
	p, err := proc.Start(context.Background(), proc.Command{
		Path: "/bin/sh", Args: []string{"-c", "exec sleep 300"}, Outlives: os.Getenv(parentOf) == "outlives",
	})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(p.PID())
	_ = p.Wait()
}

func sh(script string, args ...string) proc.Command {
	return proc.Command{Path: "/bin/sh", Args: append([]string{"-c", script, "sh"}, args...), Env: []string{"PATH=/usr/bin:/bin"}}
}

func TestHowAChildEnds(t *testing.T) {
	testkit.NoChildren(t)
	tests := map[string]struct {
		script string
		want   proc.Error // Path and Cause left out
		text   string
		good   bool
	}{
		"well":                               {script: "exit 0", good: true},
		"well, with words":                   {script: "echo warning >&2", good: true},
		"with a status":                      {script: "echo why >&2; exit 3", want: proc.Error{Exit: 3, Tail: "why\n"}, text: "sh ended with exit status 3: why"},
		"by a signal of its own":             {script: "echo last words >&2; kill -SEGV $$", want: proc.Error{Exit: -1, Signal: syscall.SIGSEGV, Tail: "last words\n"}, text: "sh crashed (SIGSEGV): last words"},
		"by an abort":                        {script: "kill -ABRT $$", want: proc.Error{Exit: -1, Signal: syscall.SIGABRT}, text: "sh crashed (SIGABRT)"},
		"by the out-of-memory kill":          {script: "kill -KILL $$", want: proc.Error{Exit: -1, Signal: syscall.SIGKILL}, text: "sh crashed (SIGKILL)"},
		"by a signal without a name of ours": {script: "kill -USR1 $$", want: proc.Error{Exit: -1, Signal: syscall.SIGUSR1}, text: "sh crashed (user defined signal 1)"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			err := proc.Run(context.Background(), sh(tt.script))
			if tt.good {
				if err != nil {
					t.Error(err)
				}
				return
			}
			e, ok := errors.AsType[*proc.Error](err)
			if !ok {
				t.Fatalf("error %v", err)
			}
			if e.Exit != tt.want.Exit || e.Signal != tt.want.Signal || e.Killed || e.Tail != tt.want.Tail || err.Error() != tt.text {
				t.Errorf("got %+v %q, want %+v %q", *e, err, tt.want, tt.text)
			}
		})
	}
}

func TestOnlyTheEndOfStderrIsKept(t *testing.T) {
	var all bytes.Buffer
	c := sh("i=0; while [ $i -lt 3000 ]; do echo line $i >&2; i=$((i+1)); done; exit 1")
	c.Stderr = &all
	err := proc.Run(context.Background(), c)
	e, ok := errors.AsType[*proc.Error](err)
	if !ok || len(e.Tail) != proc.TailBytes || !strings.HasSuffix(e.Tail, "line 2999\n") {
		t.Errorf("tail of %d bytes, error %v", len(e.Tail), ok)
	}
	if !strings.HasPrefix(all.String(), "line 0\n") || !strings.HasSuffix(all.String(), e.Tail) {
		t.Error("the copy is not whole")
	}
}

func TestTheCauseOfADeathOutlivesItsTraces(t *testing.T) {
	for name, before := range map[string]string{"at the start": "", "behind other words": "i=0; while [ $i -lt 900 ]; do echo a line of the log >&2; i=$((i+1)); done; "} {
		err := proc.Run(context.Background(), sh(before+"echo 'fatal error: runtime: out of memory' >&2; i=0; while [ $i -lt 3000 ]; do echo goroutine $i >&2; i=$((i+1)); done; exit 2"))
		e, ok := errors.AsType[*proc.Error](err)
		if !ok || !strings.HasPrefix(e.Tail, "fatal error: runtime: out of memory\n[...]\n") || !strings.HasSuffix(e.Tail, "goroutine 2999\n") || len(e.Tail) > proc.TailBytes+600 {
			t.Errorf("%s: %.80q", name, e.Tail)
		}
	}
}

func TestACopyThatCannotBeWrittenDoesNotStopTheChild(t *testing.T) {
	c := sh("i=0; while [ $i -lt 20000 ]; do echo a line of some length >&2; i=$((i+1)); done; echo done")
	c.Stderr = failing{}
	out, err := proc.Output(context.Background(), c)
	if err != nil || out != "done\n" {
		t.Errorf("output %q, error %v", out, err)
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

func TestTheGroupEndsWithItsChild(t *testing.T) {
	testkit.NoChildren(t)
	// The grandchild ignores SIGTERM and holds the pipes.
	const family = `sh -c 'trap "" TERM; sleep 300' & echo $!; `
	tests := map[string]struct {
		script string
		end    func(p *proc.Process, cancel func())
		killed bool
	}{
		"when the child ends by itself": {script: family + "exit 0", end: func(*proc.Process, func()) {}},
		"when the child crashes":        {script: family + "kill -SEGV $$", end: func(*proc.Process, func()) {}},
		"when the context ends":         {script: family + "wait", end: func(_ *proc.Process, cancel func()) { cancel() }, killed: true},
		"when it is stopped":            {script: family + "wait", end: func(p *proc.Process, _ func()) { p.Stop() }, killed: true},
		"when it is killed":             {script: family + "wait", end: func(p *proc.Process, _ func()) { p.Kill() }, killed: true},
		"when it ignores SIGTERM":       {script: `trap "" TERM; ` + family + "wait; wait; sleep 300", end: func(p *proc.Process, _ func()) { p.Stop() }, killed: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			r, w := io.Pipe()
			defer w.Close() //nolint:errcheck // ends the copy below
			c := sh(tt.script)
			c.Stdout, c.Grace = w, 100*time.Millisecond
			p, err := proc.Start(ctx, c)
			if err != nil {
				t.Fatal(err)
			}
			buf := make([]byte, 32)
			n, err := r.Read(buf)
			if err != nil {
				t.Fatal(err)
			}
			go io.Copy(io.Discard, r) //nolint:errcheck // drained
			grandchild, err := strconv.Atoi(strings.TrimSpace(string(buf[:n])))
			if err != nil {
				t.Fatal(err)
			}
			tt.end(p, cancel)
			werr := p.Wait()
			e, _ := errors.AsType[*proc.Error](werr)
			if tt.killed != (e != nil && e.Killed) {
				t.Errorf("error %v, want killed %v", werr, tt.killed)
			}
			for n := 0; testkit.Alive(grandchild); n++ {
				if n > 500 {
					t.Fatalf("process %d outlives its group", grandchild)
				}
				time.Sleep(10 * time.Millisecond)
			}
			p.Stop() // does nothing any more
			p.Kill()
			if again := p.Wait(); again != werr { //nolint:errorlint // the same value
				t.Errorf("a second Wait returns %v", again)
			}
		})
	}
}

func TestAnEndedContext(t *testing.T) {
	t.Run("starts nothing", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(context.Background())
		cause := errors.New("the deadline of the stage")
		cancel(cause)
		marker := filepath.Join(t.TempDir(), "ran")
		if err := proc.Run(ctx, sh(`: > "$1"`, marker)); !errors.Is(err, cause) {
			t.Errorf("error %v", err)
		}
		if _, err := os.Stat(marker); err == nil {
			t.Error("the child ran")
		}
	})
	t.Run("is named by its cause", func(t *testing.T) {
		ctx, cancel := context.WithTimeoutCause(context.Background(), 50*time.Millisecond, errors.New("no answer within 50 ms"))
		defer cancel()
		c := sh("echo waiting >&2; exec sleep 300")
		c.Grace = 50 * time.Millisecond
		err := proc.Run(ctx, c)
		if err == nil || err.Error() != "sh was ended: no answer within 50 ms: waiting" {
			t.Errorf("error %v", err)
		}
	})
}

func TestNothingIsInherited(t *testing.T) {
	t.Setenv("TRTSHIP_SECRET", "token")
	for _, env := range [][]string{nil, {}, {"A=b"}} {
		out, err := proc.Output(context.Background(), proc.Command{Path: "/usr/bin/env", Env: env})
		if err != nil || strings.TrimSpace(out) != strings.Join(env, "\n") {
			t.Errorf("environment %q, error %v, want %q", out, err, env)
		}
	}
	// ls lists the folder through a descriptor of its own, 3.
	out, err := proc.Output(context.Background(), proc.Command{Path: "/bin/ls", Args: []string{"/proc/self/fd"}})
	if err != nil || strings.Join(strings.Fields(out), " ") != "0 1 2 3" {
		t.Errorf("descriptors %q, error %v", out, err)
	}
}

func TestWhatWeInheritedGoesNoFurther(t *testing.T) {
	parent := exec.Command(os.Args[0])
	parent.Env = []string{parentOf + "=descriptors"}
	for range 4 {
		f, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close() //nolint:errcheck // read only
		parent.ExtraFiles = append(parent.ExtraFiles, f)
	}
	out, err := parent.Output()
	if err != nil || string(out) != "[0 1 2 3] <nil>\n" {
		t.Errorf("descriptors %q, error %v", out, err)
	}
}

func TestFilesBecomeDescriptors(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c := sh("echo to three >&3")
	c.Files = []*os.File{w}
	if err := proc.Run(context.Background(), c); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	got, err := io.ReadAll(r)
	if err != nil || string(got) != "to three\n" {
		t.Errorf("got %q, error %v", got, err)
	}
}

func TestOutputOfItsOwn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	c := sh("echo out; echo err >&2")
	c.Output = f
	if err := errors.Join(proc.Run(context.Background(), c), f.Close()); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "out\nerr\n" {
		t.Errorf("log %q, error %v", got, err)
	}
}

func TestAChildThatWritesWithoutEndIsEnded(t *testing.T) {
	c := sh("exec cat /dev/zero")
	c.Grace = 100 * time.Millisecond
	out, err := proc.Output(context.Background(), c)
	if err == nil || !strings.Contains(err.Error(), "more than 64 MiB") || len(out) > proc.OutputBytes {
		t.Errorf("%d bytes, error %v", len(out), err)
	}
}

func TestLimits(t *testing.T) {
	tests := map[string]struct {
		memory uint64
		want   string
	}{
		"no core dump, and memory as it is": {0, "0 unlimited"},
		"no core dump, and 512 MiB":         {512 << 20, "0 524288"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := sh("sleep 0.05; echo $(ulimit -c) $(ulimit -v)")
			c.MemoryBytes = tt.memory
			out, err := proc.Output(context.Background(), c)
			if err != nil || strings.TrimSpace(out) != tt.want {
				t.Errorf("limits %q, error %v, want %q", out, err, tt.want)
			}
		})
	}
}

func TestAChildSharesOurFateUnlessItIsToOutliveUs(t *testing.T) {
	for _, how := range []string{"shares", "outlives"} {
		t.Run(how, func(t *testing.T) {
			parent := exec.Command(os.Args[0])
			parent.Env = []string{parentOf + "=" + how}
			out, err := parent.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := parent.Start(); err != nil {
				t.Fatal(err)
			}
			buf := make([]byte, 32)
			n, err := out.Read(buf)
			if err != nil {
				t.Fatal(err)
			}
			child, err := strconv.Atoi(strings.TrimSpace(string(buf[:n])))
			if err != nil {
				t.Fatal(string(buf[:n]))
			}
			if err := parent.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = parent.Wait()
			if how == "outlives" {
				time.Sleep(50 * time.Millisecond)
				if !testkit.Alive(child) {
					t.Error("the child died with us")
				}
				if err := syscall.Kill(-child, syscall.SIGKILL); err != nil {
					t.Error(err)
				}
				return
			}
			for n := 0; testkit.Alive(child); n++ {
				if n > 500 {
					_ = syscall.Kill(-child, syscall.SIGKILL)
					t.Fatalf("process %d outlives us", child)
				}
				time.Sleep(10 * time.Millisecond)
			}
		})
	}
}

func TestManyChildrenAtOnce(t *testing.T) {
	testkit.NoChildren(t)
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			ctx, cancel := context.WithTimeout(context.Background(), time.Duration(i)*time.Millisecond)
			defer cancel()
			c := sh("sleep 0.02")
			c.Grace = time.Millisecond
			_ = proc.Run(ctx, c) // ends well or is ended, and never hangs
		}()
	}
	wg.Wait()
}

func TestWhatCannotBeStarted(t *testing.T) {
	if _, err := proc.Start(context.Background(), proc.Command{Path: "sh"}); err == nil || !strings.Contains(err.Error(), "not an absolute path") {
		t.Errorf("error %v", err)
	}
	if _, err := proc.Start(context.Background(), proc.Command{Path: "/nothing/here"}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v", err)
	}
}

func TestLook(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	tool := write("tool", 0o755)
	write("plain", 0o644)
	if err := os.Mkdir(filepath.Join(dir, "folder"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	tests := map[string]struct{ name, path, want string }{
		"a name is looked for in PATH":               {"tool", "/nothing:" + dir, tool},
		"an empty element is not the working folder": {"tool", ":/nothing", ""},
		"a relative element is not used":             {"tool", ".", ""},
		"a name with a slash is made absolute":       {"./tool", "", tool},
		"what cannot be executed is not found":       {"plain", dir, ""},
		"a folder is not found":                      {"folder", dir, ""},
		"a path that cannot be executed is an error": {"./plain", "", ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := proc.Look(tt.name, tt.path)
			if (err == nil) != (tt.want != "") || err == nil && got != tt.want {
				t.Errorf("got %q, error %v, want %q", got, err, tt.want)
			}
		})
	}
}
