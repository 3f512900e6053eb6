package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/pipeline"
	"github.com/trtship/trtship/internal/stage"
	"github.com/trtship/trtship/internal/store"
	"github.com/trtship/trtship/internal/testkit"
	"github.com/trtship/trtship/report"
)

// thorough runs try every fault in every way; others take each fault in one way.
func thorough() bool { return os.Getenv("TRTSHIP_RECORD_FAULTS") != "" }

// wantContents are the artifacts of the light pipeline.
func wantContents(t *testing.T) map[string]string {
	t.Helper()
	p := newProject(t)
	if err := childRun(p.dir, false); err != nil {
		t.Fatal(err)
	}
	return p.contents()
}

// prepare brings a project to where an action begins.
func prepare(t *testing.T, do string) *project {
	t.Helper()
	p := newProject(t)
	if do != "run" && do != "copy" {
		if err := childRun(p.dir, false); err != nil {
			t.Fatal(err)
		}
	}
	switch do {
	case "damaged":
		for _, path := range p.artifactFiles() {
			if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
				flip(t, path, 1)
			}
		}
	case "gc":
		// Nothing refers to anything any more, and there is evidence.
		if err := os.RemoveAll(p.path("runs")); err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(p.path("store/damaged/onnx-1"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

func TestKillAtEveryFailpoint(t *testing.T) {
	want := wantContents(t)
	var tried, failures int64
	for _, point := range points() {
		hit := false
		for do := range childActions {
			if hit && slowChildren && !thorough() {
				break
			}
			for n := 0; ; n = nextHit(n) {
				p := prepare(t, do)
				killed, err := p.child(do, fmt.Sprintf("%s:kill:%d", point, n))
				if err != nil {
					t.Fatalf("%s %s: %v", do, point, err)
				}
				if !killed {
					break // passed fewer times
				}
				hit = true
				tried++
				if why := p.recovers(want); why != "" {
					failures++
					t.Errorf("%s, killed at %s (hit %d): %s", do, point, n+1, why)
				}
			}
		}
		if !hit {
			t.Errorf("no action passes the failpoint %s", point)
		}
	}
	testkit.RecordFaults(t, testkit.FaultRow{Kind: "kill at a failpoint", Tried: tried, Failures: failures})
}

// nextHit goes through all hits of a point, or through ever fewer of them.
func nextHit(n int) int {
	switch {
	case thorough():
		return n + 1
	case slowChildren:
		return 8*n + 8
	}
	return 2*n + 1
}

// recovers runs again after a fault and says what is wrong then; empty if all
// is as if nothing had happened. Before the run, nothing half-written may be
// visible.
func (p *project) recovers(want map[string]string) string {
	verify := func() string {
		st, err := store.Open(context.Background(), p.path("store"))
		if err != nil {
			return err.Error()
		}
		defer st.Close() //nolint:errcheck // a test
		v, err := st.Verify(context.Background())
		if err != nil {
			return err.Error()
		}
		var lines []string
		for _, problem := range v.Problems {
			lines = append(lines, problem.Path+": "+problem.Text)
		}
		return strings.Join(lines, "; ")
	}
	damaged := len(mustGlob(p.t, p, "store/damaged/*")) > 0 || strings.Contains(verify(), "digest")
	if why := verify(); why != "" && !damaged {
		return "verify before the next run: " + why
	}
	if err := childRun(p.dir, false); err != nil {
		return "the next run: " + err.Error()
	}
	if why := verify(); why != "" {
		return "verify after the next run: " + why
	}
	got := p.contents()
	for id := range got {
		if strings.HasPrefix(id, "onnx-") && want[id] == "" {
			delete(got, id) // what copy adopted
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		return "artifacts (-want +got): " + d
	}
	if s := p.strays(); len(s) > 0 {
		return fmt.Sprintf("left behind: %v", s)
	}
	for _, r := range mustGlob(p.t, p, "runs/*/report.json") {
		var rep report.Report
		readJSON(p.t, r, &rep)
	}
	return ""
}

func TestEveryFileOperationFails(t *testing.T) {
	want := wantContents(t)
	count := &testkit.FaultFS{FS: store.OS{}}
	if why := faulted(t, newProject(t), count, want); why != "" {
		t.Fatal(why)
	}
	kinds := []struct {
		name  string
		err   error
		short bool
	}{
		{"ENOSPC", syscall.ENOSPC, false},
		{"EIO", syscall.EIO, false},
		{"EACCES", syscall.EACCES, false},
		{"short write", syscall.ENOSPC, true},
		{"EROFS", syscall.EROFS, false},
		{"EMFILE", syscall.EMFILE, false},
	}
	tried, failures := map[string]int64{}, map[string]int64{}
	for at := int64(1); at <= count.Count(); at++ {
		for i, k := range kinds {
			if !thorough() && int(at)%(3*len(kinds)) != 3*i {
				continue
			}
			p := newProject(t)
			fsys := &testkit.FaultFS{FS: store.OS{}, At: at, Err: k.err, Short: k.short}
			why := faulted(t, p, fsys, want)
			if fsys.Hit() == "" {
				continue // this run had fewer operations
			}
			tried[k.name]++
			if why == "" {
				why = p.recovers(want)
			}
			if why != "" {
				failures[k.name]++
				t.Errorf("operation %d (%s) fails with %s: %s", at, fsys.Hit(), k.name, why)
			}
		}
	}
	for _, k := range kinds {
		testkit.RecordFaults(t, testkit.FaultRow{Kind: "file operation fails: " + k.name, Tried: tried[k.name], Failures: failures[k.name]})
	}
}

// faulted runs the light pipeline on a file system, and says where the outcome
// lies: a run that says it is good has made everything, and one that is not has
// an error or a report that says so.
func faulted(t *testing.T, p *project, fsys store.FS, want map[string]string) string {
	t.Helper()
	st, err := store.Open(context.Background(), p.path("store"), store.WithFS(fsys))
	if err != nil {
		return expected(err)
	}
	o := p.options(loggedChain(p)...)
	o.Store = st
	rep, err := pipeline.Run(context.Background(), o)
	if cerr := st.Close(); cerr != nil {
		if why := expected(cerr); why != "" {
			return why
		}
	}
	if err != nil {
		return expected(err)
	}
	if rep.ExitCode == 0 {
		if d := cmp.Diff(want, p.contents()); d != "" {
			return "the run says that it is good, but (-want +got): " + d
		}
		return ""
	}
	if bad := firstBad(rep); bad == "" {
		return fmt.Sprintf("exit code %d without a bad check", rep.ExitCode)
	} else if failure.Code(rep.ExitCode) != failure.Artifact {
		return fmt.Sprintf("exit code %d instead of 11: %s", rep.ExitCode, bad)
	}
	return ""
}

// expected refuses an error that is no failure with the code of files.
func expected(err error) string {
	if failure.CodeOf(err) != failure.Artifact {
		return fmt.Sprintf("error with code %d: %v", failure.CodeOf(err), err)
	}
	return ""
}

func TestAFullDisk(t *testing.T) {
	dir := testkit.FastDir(t)
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		needsRoot(t, err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	p := &project{t: t, dir: dir}
	remount := func(kb int) {
		if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT, fmt.Sprintf("size=%dk", kb)); err != nil {
			t.Fatal(err)
		}
	}
	p.write("model.py", "weights = 1")
	want := wantContents(t)
	full, failures := int64(0), int64(0)
	step := 96
	if slowChildren {
		step = 1024
	}
	for kb := 64; ; kb += step {
		remount(kb)
		if err := os.RemoveAll(p.path("runs")); err != nil { // each failed run leaves its report
			t.Fatal(err)
		}
		_, err := p.child("run", "")
		if err == nil {
			break
		}
		full++
		if !strings.Contains(err.Error(), "no space left on device") {
			failures++
			t.Errorf("with %d KiB: %v", kb, err)
		}
		st, serr := store.Open(context.Background(), p.path("store"))
		if serr != nil {
			if !errors.Is(serr, syscall.ENOSPC) {
				failures++
				t.Errorf("with %d KiB, open: %v", kb, serr)
			}
			continue
		}
		v, verr := st.Verify(context.Background())
		if verr != nil || len(v.Problems) > 0 {
			failures++
			t.Errorf("with %d KiB, verify: %v %v", kb, v.Problems, verr)
		}
		_ = st.Close()
		if kb > 64<<10 {
			t.Fatal("the run never completes")
		}
	}
	if full < 10 && !slowChildren {
		t.Errorf("the disk was full only %d times", full)
	}
	if why := p.recovers(want); why != "" {
		failures++
		t.Error(why)
	}
	testkit.RecordFaults(t, testkit.FaultRow{Kind: "full disk", Tried: full, Failures: failures, Detail: fmt.Sprintf("a tmpfs that grows by %d KiB a run", step)})
}

// needsRoot ends a test that mounts. make faults must be able to; elsewhere a
// file size limit (TestAFileSizeLimit) stands in.
func needsRoot(t *testing.T, err error) {
	t.Helper()
	if thorough() {
		t.Fatalf("mount: %v: run as root", err)
	}
	t.Skipf("mount: %v: needs root", err)
}

func TestAFileSizeLimit(t *testing.T) {
	want := wantContents(t)
	p := newProject(t)
	tried, failures := int64(0), int64(0)
	for limit := 0; limit < 64<<10; limit = 2*limit + 100 {
		p.limit = limit + 1
		tried++
		_, err := p.child("run", "")
		if err == nil || !strings.Contains(err.Error(), "file too large") {
			failures++
			t.Errorf("with a limit of %d bytes: %v", limit, err)
		}
	}
	p.limit = 0
	if why := p.recovers(want); why != "" {
		failures++
		t.Error(why)
	}
	testkit.RecordFaults(t, testkit.FaultRow{Kind: "file size limit", Tried: tried, Failures: failures})
}

func TestAReadOnlyDisk(t *testing.T) {
	dir := testkit.FastDir(t)
	if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_RDONLY, "size=64k"); err != nil {
		needsRoot(t, err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	_, err := store.Open(context.Background(), filepath.Join(dir, "store"))
	if failure.CodeOf(err) != failure.Artifact || !errors.Is(err, syscall.EROFS) {
		t.Errorf("store: %v", err)
	}
	p := newProject(t)
	o := p.options(newChain(p).list()...)
	o.RunsDir = filepath.Join(dir, "runs")
	if _, err := p.run(o); failure.CodeOf(err) != failure.Artifact || !errors.Is(err, syscall.EROFS) {
		t.Errorf("runs: %v", err)
	}
}

func TestTenRunsAtOnceDoTheWorkOnce(t *testing.T) {
	p := newProject(t)
	var wg sync.WaitGroup
	for range 10 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if _, err := p.child("run", ""); err != nil {
				t.Error(err)
			}
		}()
	}
	wg.Wait()
	want := map[string]int{"inspect": 1, "export": 1, "validate": 1, "optimize": 1, "package": 1}
	if d := cmp.Diff(want, p.ran()); d != "" {
		t.Errorf("how often the stages ran (-want +got):\n%s", d)
	}
	if why := p.recovers(wantContents(t)); why != "" {
		t.Error(why)
	}
	runs, err := pipeline.Runs(p.path("runs"))
	if err != nil || len(runs) != 11 {
		t.Errorf("%d runs, error %v", len(runs), err)
	}
}

func TestTenRunsAtOnceThatAreKilled(t *testing.T) {
	p := newProject(t)
	want := wantContents(t)
	names := points()
	workers, kills := 10, 20
	if slowChildren && !thorough() {
		workers, kills = 4, 3
	}
	var mu sync.Mutex
	var died, tried, failures int64
	var wg sync.WaitGroup
	for w := range workers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for k, mine := 0, 0; mine < kills && k < 5*kills; k++ {
				// Other points for each worker; every second run comes to all of them.
				spec := fmt.Sprintf("%s:kill:%d", names[(w*7+k)%len(names)], k%2)
				killed, err := p.child([]string{"fresh", "run"}[k%2], spec)
				mu.Lock()
				tried++
				if killed {
					died++
					mine++
				}
				if err != nil {
					failures++
					t.Errorf("%s: %v", spec, err)
				}
				mu.Unlock()
			}
			if _, err := p.child("run", ""); err != nil {
				t.Error(err)
			}
		}()
	}
	wg.Wait()
	if why := p.recovers(want); why != "" {
		failures++
		t.Error(why)
	}
	if died < int64(workers*kills) {
		t.Errorf("only %d runs died", died)
	}
	testkit.RecordFaults(t, testkit.FaultRow{
		Kind: "ten runs at once, killed at failpoints", Tried: died, Failures: failures,
		Detail: fmt.Sprintf("%d runs, of which %d were killed; every artifact is there once", tried, died),
	})
}

func TestClockJumps(t *testing.T) {
	p := newProject(t)
	times := []time.Time{
		time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC), time.Unix(0, 0), time.Date(2099, 12, 31, 23, 59, 59, 0, time.UTC),
		time.Date(1969, 1, 1, 0, 0, 0, 0, time.UTC), time.Now(),
	}
	n := 0
	now := func() time.Time { n++; return times[n%len(times)] } // jumps at every look
	var first *report.Report
	for range 10 {
		st, err := store.Open(context.Background(), p.path("store"), store.WithClock(now))
		if err != nil {
			t.Fatal(err)
		}
		o := p.options(newChain(p).list()...)
		o.Store, o.Now = st, now
		rep, err := pipeline.Run(context.Background(), o)
		if err != nil || rep.ExitCode != 0 {
			t.Fatalf("exit code %d, error %v", rep.ExitCode, err)
		}
		for _, s := range rep.Stages {
			if s.Seconds < 0 {
				t.Errorf("%s took %v s", s.Name, s.Seconds)
			}
		}
		if first == nil {
			first = rep
		} else if d := cmp.Diff(first.Artifacts, rep.Artifacts); d != "" || !rep.Stages[0].Cached {
			t.Errorf("artifacts (-first +now):\n%s", d)
		}
		if err := st.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := pipeline.Latest(p.path("runs")); err != nil {
		t.Error(err)
	}
	testkit.RecordFaults(t, testkit.FaultRow{Kind: "clock jumps", Tried: int64(n)})
}

func TestHostilePaths(t *testing.T) {
	names := []string{
		"with space", "with 'single' and \"double\" quotes", "with\nnewline", "with:colon;semicolon", "-dash", "$HOME and `pwd` and $(id)",
		"üñïcödé 模型", "not utf-8 \xff\xfe", "trailing space ", "back\\slash", "%s%d%n", "[glob]*?", strings.Repeat("long", 60),
	}
	for _, name := range names {
		t.Run(fmt.Sprintf("%q", name), func(t *testing.T) {
			base := testkit.FastDir(t)
			p := &project{t: t, dir: filepath.Join(base, name)}
			if err := os.Mkdir(p.dir, 0o755); err != nil {
				t.Fatal(err)
			}
			p.write("model.py", "weights = 1")
			first := p.mustRun(p.options(newChain(p).list()...))
			c := newChain(p)
			second := p.mustRun(p.options(c.list()...))
			if first.ExitCode != 0 || second.ExitCode != 0 || c.runs() != "00000" {
				t.Errorf("exit codes %d and %d, runs %s", first.ExitCode, second.ExitCode, c.runs())
			}
			link := filepath.Join(p.dir, "runs", second.Run.ID, "artifacts", "onnx", "text")
			if _, err := os.Stat(link); err != nil {
				t.Error(err)
			}
			v, err := p.open().Verify(context.Background())
			if err != nil || len(v.Problems) > 0 || v.Artifacts != 4 {
				t.Errorf("verify %+v, error %v", v, err)
			}
		})
	}
	testkit.RecordFaults(t, testkit.FaultRow{Kind: "hostile paths", Tried: int64(len(names))})
}

func TestHostileNamesInAnArtifact(t *testing.T) {
	hostile := map[string]func(dir string) error{
		"a link out of the artifact":  func(dir string) error { return os.Symlink("/etc/passwd", filepath.Join(dir, "a")) },
		"a link to a folder":          func(dir string) error { return os.Symlink("/etc", filepath.Join(dir, "a")) },
		"a link inside the artifact":  func(dir string) error { return errors.Join(touch(dir, "b"), os.Symlink("b", filepath.Join(dir, "a"))) },
		"a dangling link":             func(dir string) error { return os.Symlink("nothing", filepath.Join(dir, "a")) },
		"a pipe":                      func(dir string) error { return syscall.Mkfifo(filepath.Join(dir, "a"), 0o644) },
		"a name with a newline":       func(dir string) error { return touch(dir, "a\n0000  b") },
		"a name with a backslash":     func(dir string) error { return touch(dir, `a\b`) },
		"a name that is not UTF-8":    func(dir string) error { return touch(dir, "a\xff") },
		"a name with a control":       func(dir string) error { return touch(dir, "a\x1b[31m") },
		"no file, only empty folders": func(dir string) error { return os.MkdirAll(filepath.Join(dir, "a", "b"), 0o755) },
	}
	for name, do := range hostile {
		t.Run(name, func(t *testing.T) {
			p := newProject(t)
			c := newChain(p)
			c.export.Work = func(_ context.Context, _ stage.Inputs, out stage.Outputs) ([]report.Check, error) {
				dir, err := out.Scratch("x")
				if err == nil {
					err = do(dir)
				}
				if err != nil {
					t.Error(err)
				}
				_, err = out.Publish(artifact.ONNX, "", dir, nil)
				return nil, err
			}
			rep := p.mustRun(p.options(c.list()...))
			if rep.ExitCode != 11 || len(p.contents()) != 0 {
				t.Errorf("exit code %d, store %v", rep.ExitCode, p.contents())
			}
			if s := p.strays(); len(s) > 0 {
				t.Errorf("left behind: %v", s)
			}
		})
	}
	testkit.RecordFaults(t, testkit.FaultRow{Kind: "hostile names in an artifact", Tried: int64(len(hostile))})
}

func touch(dir, name string) error { return os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o644) }
