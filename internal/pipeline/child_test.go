package pipeline_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/failpoint"
	"github.com/trtship/trtship/internal/pipeline"
	"github.com/trtship/trtship/internal/stage"
	"github.com/trtship/trtship/internal/store"
	"github.com/trtship/trtship/internal/testkit"
	"github.com/trtship/trtship/report"
)

// A child is this test binary once more, doing one thing in a project's folder
// with a failpoint armed, as TRTSHIP_FAILPOINT arms it in the command.
const (
	childDo  = "TRTSHIP_TEST_CHILD_DO"
	childDir = "TRTSHIP_TEST_CHILD_DIR"
	childMax = "TRTSHIP_TEST_CHILD_MAX" // bytes of a file
)

func TestMain(m *testing.M) {
	do := os.Getenv(childDo)
	if do == "" {
		testkit.Main(m)
	}
	err := failpoint.Arm(os.Getenv("TRTSHIP_FAILPOINT"))
	if limit, aerr := strconv.Atoi(os.Getenv(childMax)); aerr == nil {
		signal.Ignore(syscall.SIGXFSZ) // the write then fails with EFBIG
		l := uint64(limit)
		err = errors.Join(err, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: l, Max: l}))
	}
	if err == nil {
		err = childActions[do](os.Getenv(childDir))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// childActions are what a child can do. Together they pass every failpoint of
// the store and the pipeline.
var childActions = map[string]func(dir string) error{
	"run": func(dir string) error { return childRun(dir, false) },
	// fresh: every stage runs, and publishes what is there already.
	"fresh": func(dir string) error { return childRun(dir, true) },
	// damaged: something flipped a bit of every artifact before.
	"damaged": func(dir string) error { return childRun(dir, false) },
	"gc": func(dir string) error {
		return withStore(dir, func(st *store.Store) error {
			_, err := st.GC(store.GCOptions{Evidence: true})
			return err
		})
	},
	"copy": func(dir string) error {
		return withStore(dir, func(st *store.Store) error {
			a, err := pipeline.Adopt(context.Background(), st, artifact.ONNX, "", store.Source{Path: filepath.Join(dir, "model.py")})
			if err != nil {
				return err
			}
			return st.CopyOut(context.Background(), a, filepath.Join(dir, "out.py"), "model.py")
		})
	},
}

func withStore(dir string, do func(*store.Store) error) error {
	st, err := store.Open(context.Background(), filepath.Join(dir, "store"))
	if err != nil {
		return err
	}
	return errors.Join(do(st), st.Close())
}

// childRun runs the light pipeline. Every stage that runs leaves a line in
// ran.log, and one artifact has folders in it.
func childRun(dir string, fresh bool) error {
	return withStore(dir, func(st *store.Store) error {
		p := &project{dir: dir}
		o := p.options(loggedChain(p)...)
		o.Store, o.Fresh = st, fresh
		rep, err := pipeline.Run(context.Background(), o)
		if err != nil {
			return err
		}
		if rep.ExitCode != 0 {
			return fmt.Errorf("exit code %d: %v", rep.ExitCode, firstBad(rep))
		}
		return nil
	})
}

func firstBad(rep *report.Report) string {
	for _, s := range rep.Stages {
		for _, c := range s.Checks {
			if !c.Verdict.Good() {
				return c.ID + " " + string(c.Verdict) + ": " + c.Detail
			}
		}
	}
	return ""
}

func loggedChain(p *project) []stage.Planned {
	c := newChain(p)
	list := c.list()
	for i := range list {
		list[i].Stage = &logged{Stage: list[i].Stage, path: p.path("ran.log")}
	}
	c.pack.Work = func(_ context.Context, in stage.Inputs, out stage.Outputs) ([]report.Check, error) {
		dir, err := out.Scratch("repository")
		if err == nil {
			err = errors.Join(
				os.MkdirAll(filepath.Join(dir, "model", "1"), 0o755),
				os.MkdirAll(filepath.Join(dir, "model", "empty", "folder"), 0o755),
				os.WriteFile(filepath.Join(dir, "model", "config.pbtxt"), []byte("name: \"model\""), 0o600),
				os.WriteFile(filepath.Join(dir, "model", "1", "model.onnx"), bytes.Repeat([]byte("x"), 3<<20), 0o644),
			)
		}
		if err == nil {
			_, err = out.Publish(artifact.Repository, "", dir, map[string]string{"version": "1"})
		}
		return []report.Check{{ID: "package/ok", Verdict: report.Pass}}, err
	}
	return list
}

// logged notes that a stage ran, in one append.
type logged struct {
	stage.Stage
	path string
}

func (l *logged) Run(ctx context.Context, in stage.Inputs, out stage.Outputs) ([]report.Check, error) {
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	_, err = f.WriteString(l.Spec().Name + "\n")
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	return l.Stage.Run(ctx, in, out)
}

// child runs an action in another process. killed reports that it died as by
// kill -9, which is what an armed point does.
func (p *project) child(do, failpoint string) (killed bool, err error) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = []string{childDo + "=" + do, childDir + "=" + p.dir, "TRTSHIP_FAILPOINT=" + failpoint, "TMPDIR=" + os.TempDir()}
	if p.limit > 0 {
		cmd.Env = append(cmd.Env, childMax+"="+strconv.Itoa(p.limit-1))
	}
	if cover := os.Getenv("GOCOVERDIR"); cover != "" {
		cmd.Env = append(cmd.Env, "GOCOVERDIR="+cover)
	}
	out, err := cmd.CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		if w, ok := exit.Sys().(syscall.WaitStatus); ok && w.Signaled() && w.Signal() == syscall.SIGKILL {
			return true, nil
		}
	}
	if err != nil {
		err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(out))
	}
	return false, err
}

// contents maps the artifacts of a store to their digests.
func (p *project) contents() map[string]string {
	p.t.Helper()
	st := p.open()
	defer st.Close() //nolint:errcheck // a test
	items, err := st.List()
	if err != nil {
		p.t.Fatal(err)
	}
	m := map[string]string{}
	for _, it := range items {
		m[filepath.Base(filepath.Dir(it.Dir))] = string(it.Digest)
	}
	return m
}

// strays lists what has no place in a store after all runs have ended.
func (p *project) strays() []string {
	p.t.Helper()
	var found []string
	for _, pattern := range []string{"store/scratch/*", "store/.tmp-*", "store/*/.tmp-*", "store/*/*/.tmp-*"} {
		found = append(found, mustGlob(p.t, p, pattern)...)
	}
	return found
}

func (p *project) ran() map[string]int {
	p.t.Helper()
	text, err := os.ReadFile(p.path("ran.log"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		p.t.Fatal(err)
	}
	m := map[string]int{}
	for _, line := range strings.Fields(string(text)) {
		m[line]++
	}
	return m
}

// points are the failpoints of this binary: those of the store and the pipeline.
func points() []string {
	return slices.DeleteFunc(failpoint.Names(), func(n string) bool {
		return !strings.HasPrefix(n, "store.") && !strings.HasPrefix(n, "pipeline.")
	})
}
