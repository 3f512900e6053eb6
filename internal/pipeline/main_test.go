package pipeline_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/pipeline"
	"github.com/trtship/trtship/internal/stage"
	"github.com/trtship/trtship/internal/store"
	"github.com/trtship/trtship/internal/testkit"
	"github.com/trtship/trtship/report"
)

// project is a folder with a store, runs and a source file.
type project struct {
	t     testing.TB
	dir   string
	limit int // bytes that a child may write to a file, plus one
}

func newProject(t testing.TB) *project {
	t.Helper()
	p := &project{t: t, dir: testkit.FastDir(t)}
	p.write("model.py", "weights = 1")
	return p
}

func (p *project) path(rel string) string { return filepath.Join(p.dir, filepath.FromSlash(rel)) }

func (p *project) write(rel, text string) {
	p.t.Helper()
	if err := os.WriteFile(p.path(rel), []byte(text), 0o644); err != nil {
		p.t.Fatal(err)
	}
}

func (p *project) open() *store.Store {
	p.t.Helper()
	st, err := store.Open(context.Background(), p.path("store"))
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = st.Close() })
	return st
}

func (p *project) options(stages ...stage.Planned) pipeline.Options {
	return pipeline.Options{
		Stages: stages, RunsDir: p.path("runs"), Project: p.path("trtship.yaml"), BaseDir: p.dir,
		Config: []byte("model: {}\n"),
	}
}

// run opens the store, runs, and closes it, as one invocation does.
func (p *project) run(o pipeline.Options) (*report.Report, error) {
	p.t.Helper()
	st, err := store.Open(context.Background(), p.path("store"))
	if err != nil {
		p.t.Fatal(err)
	}
	defer func() {
		if err := st.Close(); err != nil {
			p.t.Error(err)
		}
	}()
	o.Store = st
	return pipeline.Run(context.Background(), o)
}

func (p *project) mustRun(o pipeline.Options) *report.Report {
	p.t.Helper()
	rep, err := p.run(o)
	if err != nil {
		p.t.Fatal(err)
	}
	return rep
}

// chain is a light pipeline: inspect, export, validate, optimize and package,
// all of the real names and kinds, export reading model.py.
type chain struct {
	inspect, export, validate, optimize, pack *testkit.Fake
}

func newChain(p *project) *chain {
	c := &chain{
		inspect:  testkit.Text("inspect", nil),
		export:   testkit.Text("export", nil, artifact.ONNX),
		validate: testkit.Text("validate", []artifact.Kind{artifact.ONNX}, artifact.Reference),
		optimize: testkit.Text("optimize", []artifact.Kind{artifact.ONNX}, artifact.OptimizedONNX),
		pack:     testkit.Text("package", []artifact.Kind{artifact.OptimizedONNX}, artifact.Repository),
	}
	c.export.Source = []string{p.path("model.py")}
	return c
}

func (c *chain) list() []stage.Planned {
	return []stage.Planned{{Stage: c.inspect}, {Stage: c.export}, {Stage: c.validate}, {Stage: c.optimize}, {Stage: c.pack}}
}

func (c *chain) runs() string {
	var b strings.Builder
	for _, f := range []*testkit.Fake{c.inspect, c.export, c.validate, c.optimize, c.pack} {
		b.WriteByte(byte('0' + f.Runs.Load()))
	}
	return b.String()
}

// verdicts writes a report's stages as "name verdict", with * for a cached one.
func verdicts(r *report.Report) []string {
	var out []string
	for _, s := range r.Stages {
		line := s.Name + " " + string(s.Verdict)
		if s.Cached {
			line += "*"
		}
		out = append(out, line)
	}
	return out
}

func stageOf(t testing.TB, r *report.Report, name string) report.Stage {
	t.Helper()
	for _, s := range r.Stages {
		if s.Name == name {
			return s
		}
	}
	t.Fatalf("the report has no stage %s", name)
	return report.Stage{}
}

func readJSON(t testing.TB, path string, v any) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, v)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// artifactFiles lists every file of every artifact in the store.
func (p *project) artifactFiles() []string {
	p.t.Helper()
	found, err := filepath.Glob(p.path("store/*/*/files/*"))
	if err != nil {
		p.t.Fatal(err)
	}
	return found
}

// flip changes one bit of a file and leaves its times and mode.
func flip(t testing.TB, path string, at int) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text[at%len(text)] ^= 1
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path, info.ModTime(), info.ModTime()); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, info.Mode().Perm()); err != nil {
		t.Fatal(err)
	}
}
