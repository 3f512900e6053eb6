package pipeline

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strings"
	"time"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/failpoint"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/regular"
	"github.com/trtship/trtship/internal/store"
	"github.com/trtship/trtship/report"
)

// ManifestFormat is the tag of manifest.json.
const ManifestFormat = "trtship-manifest/1"

// Manifest is manifest.json: the state of a run and its artifacts in full.
type Manifest struct {
	Format  string          `json:"format"`
	Run     string          `json:"run"`
	Started time.Time       `json:"started"`
	State   string          `json:"state"` // running, finished
	Config  string          `json:"config_digest"`
	Stages  []ManifestStage `json:"stages"`
}

// ManifestStage is one stage that has ended.
type ManifestStage struct {
	Name      string            `json:"name"`
	Verdict   report.Verdict    `json:"verdict"`
	Cached    bool              `json:"cached"`
	Key       string            `json:"key,omitempty"`
	Artifacts []artifact.Record `json:"artifacts,omitempty"`
}

// runDir is the folder of a run, or none.
type runDir struct {
	fs      store.FS
	path    string
	written map[string]artifact.Digest // of the documents, by name
}

var (
	runMade     = failpoint.New("pipeline.run.made")
	runManifest = failpoint.New("pipeline.run.manifest")
	runLinked   = failpoint.New("pipeline.run.linked")
	runReport   = failpoint.New("pipeline.run.report")
)

// openDir makes the run's folder with what is known at its start.
func (r *runner) openDir() error {
	r.dir = runDir{fs: r.o.Store.FS(), written: map[string]artifact.Digest{}}
	if r.o.RunsDir == "" {
		r.id = newID(r.started)
		return nil
	}
	if err := r.makeDir(); err != nil {
		return failure.New(failure.Artifact, "make folder of the run: %w", err).At(r.o.RunsDir).
			WithHint("The folder of runs must be writable.")
	}
	return nil
}

func newID(t time.Time) string {
	b := make([]byte, 3)
	_, _ = rand.Read(b) // never fails since Go 1.24
	return t.UTC().Format("2006-01-02") + "_" + hex.EncodeToString(b)
}

func (r *runner) makeDir() error {
	abs, err := filepath.Abs(r.o.RunsDir)
	if err != nil {
		return err
	}
	fsys := r.dir.fs
	if err := fsys.MkdirAll(abs); err != nil {
		return err
	}
	for range 100 {
		r.id = newID(r.started)
		r.dir.path = filepath.Join(abs, r.id)
		if err = fsys.Mkdir(r.dir.path); !errors.Is(err, fs.ErrExist) {
			break
		}
	}
	if err != nil {
		return err
	}
	for _, sub := range []string{"logs", "reports", "artifacts"} {
		if err := fsys.Mkdir(filepath.Join(r.dir.path, sub)); err != nil {
			return err
		}
	}
	if err := runMade.Hit(); err != nil {
		return err
	}
	if err := r.dir.write("config.yaml", r.o.Config); err != nil {
		return err
	}
	if err := r.dir.writeJSON("environment.json", r.o.Report.Environment); err != nil {
		return err
	}
	return r.checkpoint()
}

// checkpoint writes down how far the run has come, and tells the store what it
// refers to.
func (r *runner) checkpoint() error {
	if r.dir.path == "" {
		return nil
	}
	if err := r.o.Store.SetRoot(store.Root{Run: r.id, Dir: r.dir.path, Refs: r.refs()}); err != nil {
		return err
	}
	if err := r.dir.writeJSON("manifest.json", r.manifest("running")); err != nil {
		return err
	}
	return runManifest.Hit()
}

func (r *runner) manifest(state string) Manifest {
	m := Manifest{Format: ManifestFormat, Run: r.id, Started: r.started.UTC(), State: state, Config: r.o.Report.Run.ConfigHash, Stages: []ManifestStage{}}
	for _, s := range r.steps {
		res, ok := r.results[s.spec.Name]
		if !ok {
			continue
		}
		ms := ManifestStage{Name: res.Name, Verdict: res.Verdict, Cached: res.Cached, Key: res.Key}
		for _, a := range res.artifacts {
			ms.Artifacts = append(ms.Artifacts, a.Record)
		}
		m.Stages = append(m.Stages, ms)
	}
	return m
}

// finish links the artifacts, and writes the report before anything else can fail.
func (r *runner) finish(rep *report.Report) error {
	if r.dir.path == "" {
		return nil
	}
	if err := r.link(); err != nil {
		rep.Notes = append(rep.Notes, "the run's artifacts folder is not complete: "+err.Error())
	}
	if err := r.dir.writeJSON("report.json", rep); err != nil {
		return failure.New(failure.Artifact, "write report: %w", err).At(r.dir.path)
	}
	if err := runReport.Hit(); err != nil {
		return failure.New(failure.Artifact, "write report: %w", err)
	}
	if r.o.Render != nil {
		if err := r.o.Render(rep, filepath.Join(r.dir.path, "reports")); err != nil {
			r.o.Observer.Note("the renderings of the report were not written: " + err.Error())
		}
	}
	if err := r.o.Store.SetRoot(store.Root{Run: r.id, Dir: r.dir.path, Refs: r.refs()}); err != nil {
		return err
	}
	if err := r.provenance(rep); err != nil {
		return failure.New(failure.Artifact, "write provenance: %w", err).At(r.dir.path)
	}
	if err := r.dir.writeJSON("manifest.json", r.manifest("finished")); err != nil {
		return failure.New(failure.Artifact, "write manifest: %w", err).At(r.dir.path)
	}
	return nil
}

// link makes a relative link in artifacts/ for every artifact.
func (r *runner) link() error {
	names := newLinkNames()
	for _, s := range r.steps {
		res := r.results[s.spec.Name]
		if res == nil {
			continue
		}
		for _, a := range res.artifacts {
			if err := r.dir.link(names.next(a.Record, s.spec.Name), a.Dir); err != nil {
				return err
			}
		}
	}
	return runLinked.Hit()
}

// linkNames gives each artifact of a run its name in artifacts/. The names
// follow from the order of the manifest alone.
type linkNames map[string]bool

func newLinkNames() linkNames { return linkNames{} }

func (taken linkNames) next(a artifact.Record, stage string) string {
	name := LinkName(a.Kind, a.Label)
	if taken[name] {
		name += "-" + stage
	}
	for n := 2; taken[name]; n++ {
		name = fmt.Sprintf("%s-%s-%d", LinkName(a.Kind, a.Label), stage, n)
	}
	taken[name] = true
	return name
}

// LinkName is the name of an artifact in a run's folder.
func LinkName(kind artifact.Kind, label string) string {
	name := string(kind)
	if kind == artifact.Repository {
		name = "model_repository"
	}
	if label != "" {
		name += "-" + strings.Map(func(c rune) rune {
			if strings.ContainsRune("/\\ \t\r\n", c) {
				return '-'
			}
			return c
		}, label)
	}
	return name
}

func (d *runDir) link(name, dir string) error {
	base := filepath.Join(d.path, "artifacts")
	real, err := filepath.EvalSymlinks(base)
	if err != nil {
		return err
	}
	target, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return err
	}
	if rel, err := filepath.Rel(real, target); err == nil {
		target = rel
	}
	return d.fs.Symlink(target, filepath.Join(base, name))
}

// log makes the log of a stage. A stage that runs twice in one run has two.
func (d *runDir) log(stage string) (f store.File, name string, err error) {
	if d.path == "" {
		f, err = os.OpenFile(os.DevNull, os.O_WRONLY, 0)
		return f, "", err
	}
	for n := 1; n < 100; n++ {
		name = "logs/" + stage + ".log"
		if n > 1 {
			name = fmt.Sprintf("logs/%s.%d.log", stage, n)
		}
		f, err = d.fs.Create(filepath.Join(d.path, filepath.FromSlash(name)))
		if !errors.Is(err, fs.ErrExist) {
			break
		}
	}
	if err != nil {
		return nil, "", failure.New(failure.Artifact, "make log of %s: %w", stage, err)
	}
	return f, name, nil
}

func (d *runDir) write(name string, data []byte) error {
	sum := sha256.Sum256(data)
	d.written[name] = artifact.SumDigest(sum[:])
	return store.WriteFile(d.fs, filepath.Join(d.path, name), data)
}

func (d *runDir) writeJSON(name string, v any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(report.WithLists(v)); err != nil {
		return err
	}
	return d.write(name, b.Bytes())
}

var runName = regexp.MustCompile(`^\d{4}-\d\d-\d\d_[0-9a-f]{6}$`)

// RunRef is a run's folder.
type RunRef struct {
	ID      string
	Dir     string
	Started time.Time
	State   string // of the manifest; "unknown" if it cannot be read
	Report  bool   // there is a report.json
}

// Runs lists the runs in a folder, the latest last. A folder that is not there
// has none.
func Runs(dir string) ([]RunRef, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, failure.New(failure.Artifact, "list runs: %w", err).At(dir)
	}
	var runs []RunRef
	for _, e := range entries {
		if !e.IsDir() || !runName.MatchString(e.Name()) {
			continue
		}
		ref := RunRef{ID: e.Name(), Dir: filepath.Join(dir, e.Name()), State: "unknown"}
		if info, err := e.Info(); err == nil {
			ref.Started = info.ModTime()
		}
		var m Manifest
		if text, err := regular.ReadFile(filepath.Join(ref.Dir, "manifest.json")); err == nil && json.Unmarshal(text, &m) == nil {
			ref.Started, ref.State = m.Started, m.State
		}
		_, err := os.Stat(filepath.Join(ref.Dir, "report.json"))
		ref.Report = err == nil
		runs = append(runs, ref)
	}
	sort.SliceStable(runs, func(i, j int) bool {
		if !runs[i].Started.Equal(runs[j].Started) {
			return runs[i].Started.Before(runs[j].Started)
		}
		return runs[i].ID < runs[j].ID
	})
	return runs, nil
}

// Latest returns the latest run with a report.
func Latest(dir string) (RunRef, error) {
	runs, err := Runs(dir)
	if err != nil {
		return RunRef{}, err
	}
	for i := len(runs) - 1; i >= 0; i-- {
		if runs[i].Report {
			return runs[i], nil
		}
	}
	return RunRef{}, failure.New(failure.Artifact, "find the latest run: there is none with a report in %s", dir).At(dir).
		WithHint("Run `trtship run CONFIG` first, or name a run's folder.")
}
