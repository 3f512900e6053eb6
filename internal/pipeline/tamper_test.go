package pipeline_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/stage"
	"github.com/trtship/trtship/internal/testkit"
	"github.com/trtship/trtship/report"
)

// verify fails the test if the store has anything half-written or damaged.
func (p *project) verify() {
	p.t.Helper()
	st := p.open()
	defer st.Close() //nolint:errcheck // a test
	v, err := st.Verify(context.Background())
	if err != nil {
		p.t.Fatal(err)
	}
	for _, problem := range v.Problems {
		p.t.Errorf("%s: %s", problem.Path, problem.Text)
	}
}

func TestDamageIsFoundAtTheNextUse(t *testing.T) {
	file := func(p *project, kind string) string {
		found, err := filepath.Glob(p.path("store/" + kind + "/*/files/text"))
		if err != nil || len(found) != 1 {
			p.t.Fatalf("%v %v", found, err)
		}
		return found[0]
	}
	must := func(p *project, err error) {
		p.t.Helper()
		if err != nil {
			p.t.Fatal(err)
		}
	}
	damages := map[string]struct {
		do       func(p *project, path string)
		evidence bool
	}{
		"one flipped bit": {func(p *project, path string) { flip(p.t, path, 5) }, true},
		"a shorter file": {func(p *project, path string) {
			must(p, os.Chmod(path, 0o644))
			must(p, os.Truncate(path, 3))
		}, true},
		"a removed file": {func(p *project, path string) {
			must(p, os.Chmod(filepath.Dir(path), 0o755))
			must(p, os.Remove(path))
		}, true},
		"a file more": {func(p *project, path string) {
			must(p, os.Chmod(filepath.Dir(path), 0o755))
			must(p, os.WriteFile(path+"2", nil, 0o644))
		}, true},
		"a link to a file of the same bytes": {func(p *project, path string) {
			must(p, os.Chmod(filepath.Dir(path), 0o755))
			must(p, os.Rename(path, p.path("moved")))
			must(p, os.Symlink(p.path("moved"), path))
		}, true},
		"a record of other files": {func(p *project, path string) {
			record := filepath.Join(filepath.Dir(filepath.Dir(path)), "record.json")
			must(p, os.Chmod(record, 0o644))
			must(p, os.WriteFile(record, []byte("{}"), 0o644))
		}, true},
		"an artifact that is gone": {func(p *project, path string) {
			dir := filepath.Dir(filepath.Dir(path))
			must(p, os.Chmod(dir, 0o755))
			must(p, os.Chmod(filepath.Dir(path), 0o755))
			must(p, os.RemoveAll(dir))
		}, false},
	}
	kinds := map[string]string{"onnx": "export", "reference": "validate", "onnx-optimized": "optimize", "repository": "package"}
	for name, damage := range damages {
		for kind, maker := range kinds {
			t.Run(name+" of "+kind, func(t *testing.T) {
				p := newProject(t)
				first := p.mustRun(p.options(newChain(p).list()...))
				damage.do(p, file(p, kind))
				c := newChain(p)
				rep := p.mustRun(p.options(c.list()...))
				for _, f := range []*testkit.Fake{c.inspect, c.export, c.validate, c.optimize, c.pack} {
					want := int64(0)
					if f.Describe.Name == maker {
						want = 1
					}
					if got := f.Runs.Load(); got != want {
						t.Errorf("%s ran %d times, want %d", f.Describe.Name, got, want)
					}
				}
				if rep.ExitCode != 0 || len(rep.Notes) != 1 || !strings.Contains(rep.Notes[0], maker+" runs again: artifact "+kind) {
					t.Errorf("exit code %d, notes %q", rep.ExitCode, rep.Notes)
				}
				if d := cmp.Diff(first.Artifacts, rep.Artifacts); d != "" {
					t.Errorf("artifacts (-first +second):\n%s", d)
				}
				kept, err := filepath.Glob(p.path("store/damaged/" + kind + "-*"))
				if err != nil || len(kept) != map[bool]int{true: 1, false: 0}[damage.evidence] {
					t.Errorf("evidence %v, error %v", kept, err)
				}
				p.verify()
			})
		}
	}
}

func TestDamageBetweenTwoStagesOfOneRun(t *testing.T) {
	p := newProject(t)
	c := newChain(p)
	done := false
	c.validate.Work = func(_ context.Context, in stage.Inputs, out stage.Outputs) ([]report.Check, error) {
		a, err := in.One(artifact.ONNX)
		if err == nil {
			err = c.validate.PublishText(in, out)
		}
		if err == nil && !done {
			flip(t, filepath.Join(a.Dir, "text"), 2)
			done = true
		}
		return testkit.Pass("validate/ok"), err
	}
	rep := p.mustRun(p.options(c.list()...))
	if rep.ExitCode != 0 || c.runs() != "12111" {
		t.Errorf("exit code %d, runs %s", rep.ExitCode, c.runs())
	}
	if len(rep.Notes) == 0 || !strings.Contains(rep.Notes[0], "export runs again") {
		t.Errorf("notes %q", rep.Notes)
	}
	p.verify()
}

func TestDamageOfWhatCannotBeMadeAgainIsExit11(t *testing.T) {
	p := newProject(t)
	p.mustRun(p.options(newChain(p).list()...))
	found, err := filepath.Glob(p.path("store/onnx/*/files/text"))
	if err != nil || len(found) != 1 {
		t.Fatal(found, err)
	}
	// package is asked for alone, with new settings; what it reads is whole, but
	// changes while its key is made: its Tools are asked for after the inputs
	// were looked up.
	c := newChain(p)
	optimized, err := filepath.Glob(p.path("store/onnx-optimized/*/files/text"))
	if err != nil || len(optimized) != 1 {
		t.Fatal(optimized, err)
	}
	o := p.options(c.list()...)
	o.Only = []string{"package"}
	o.Stages[4] = stage.Planned{Stage: &flipping{Fake: c.pack, do: func() { flip(t, optimized[0], 1) }}}
	c.pack.Setting = "new"
	rep := p.mustRun(o)
	if rep.ExitCode != 11 || c.runs() != "00000" {
		t.Errorf("exit code %d, runs %s", rep.ExitCode, c.runs())
	}
	if ch := stageOf(t, rep, "package").Checks; len(ch) != 1 || ch[0].ID != "package/artifacts" {
		t.Errorf("checks %+v", ch)
	}
}

// flipping damages something when it is asked for its tools.
type flipping struct {
	*testkit.Fake
	do func()
}

func (f *flipping) Tools(context.Context) (map[string]string, error) {
	if f.do != nil {
		f.do()
		f.do = nil
	}
	return nil, nil
}

func TestDamageOfWhatOnlyExplainsOrSavesTime(t *testing.T) {
	for _, pattern := range []string{"store/cache/*/*.json", "store/last/*/*.json", "store/sources/*"} {
		t.Run(pattern, func(t *testing.T) {
			p := newProject(t)
			old := mustGlob(t, p, "model.py")[0]
			past := mustStat(t, old).ModTime().Add(-1 << 40)
			if err := os.Chtimes(old, past, past); err != nil {
				t.Fatal(err)
			}
			first := p.mustRun(p.options(newChain(p).list()...))
			for at := range 40 {
				for _, path := range mustGlob(t, p, pattern) {
					flip(t, path, at*7)
				}
				rep := p.mustRun(p.options(newChain(p).list()...))
				if d := cmp.Diff(first.Artifacts, rep.Artifacts); d != "" || rep.ExitCode != 0 {
					t.Fatalf("exit code %d, artifacts (-first +now):\n%s", rep.ExitCode, d)
				}
			}
		})
	}
}

func mustGlob(t testing.TB, p *project, pattern string) []string {
	t.Helper()
	found, err := filepath.Glob(p.path(pattern))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func mustStat(t testing.TB, path string) os.FileInfo {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info
}
