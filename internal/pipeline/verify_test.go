package pipeline_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/pipeline"
	"github.com/trtship/trtship/internal/provenance"
	"github.com/trtship/trtship/internal/stage"
	"github.com/trtship/trtship/report"
)

// settled are options with a clock, a model and an environment of their own.
func (p *project) settled(c *chain) pipeline.Options {
	o := p.options(c.list()...)
	o.Report = report.Report{
		Tool: report.Tool{Name: "trtship", Version: "v1"}, Model: report.Model{Name: "m", Kind: "onnx"}, Settings: report.Settings{Hardware: "optional"},
		Run: report.Run{Config: "trtship.yaml", ConfigHash: string(digestOf("model: {}\n"))}, Environment: report.Environment{OS: "Linux", Tools: map[string]string{"torch": "2.11"}},
	}
	o.Materials = []provenance.Material{{Name: "python lock base", Digest: digestOf("lock")}}
	return o
}

func (p *project) runDir(r *report.Report) string { return p.path("runs/" + r.Run.ID) }

func TestARunSaysWhatItMadeFromWhat(t *testing.T) {
	p := newProject(t)
	c := newChain(p)
	c.export.Tool = map[string]string{"torch": "2.11"}
	rep := p.mustRun(p.settled(c))
	text, err := os.ReadFile(filepath.Join(p.runDir(rep), provenance.FileName))
	if err != nil {
		t.Fatal(err)
	}
	s, err := provenance.Decode(text)
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Subjects) == 0 || len(s.Byproducts) != 3 {
		t.Errorf("%d subjects, %d byproducts", len(s.Subjects), len(s.Byproducts))
	}
	// Every subject is a file that sha256sum finds at its path.
	for _, w := range append(s.Subjects, s.Byproducts...) {
		b, err := os.ReadFile(filepath.Join(p.runDir(rep), filepath.FromSlash(w.Path)))
		if err != nil || string(digestOf(string(b))) != w.Digest {
			t.Errorf("%s: %v", w.Path, err)
		}
	}
	for _, want := range []string{`"model.py"`, `"tool torch"`, `"python lock base"`, `"configuration"`, digestOf("weights = 1").Short()} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%s is not in the statement", want)
		}
	}
	host, _ := os.Hostname()
	for _, secret := range []string{p.dir, host} {
		if len(secret) > 3 && bytes.Contains(text, []byte(secret)) {
			t.Errorf("the statement names %s", secret)
		}
	}
}

// definition is the part of a statement that equal inputs make equal.
func definition(t *testing.T, dir string) string {
	t.Helper()
	var m map[string]any
	readJSON(t, filepath.Join(dir, provenance.FileName), &m)
	details, ok := m["predicate"].(map[string]any)["runDetails"].(map[string]any)
	if !ok {
		t.Fatal("no runDetails")
	}
	delete(details, "metadata")
	delete(details, "byproducts")
	b, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestEqualInputsGiveEqualProvenance(t *testing.T) {
	p, q := newProject(t), newProject(t)
	first := p.mustRun(p.settled(newChain(p)))
	cached := p.mustRun(p.settled(newChain(p)))
	elsewhere := q.mustRun(q.settled(newChain(q)))
	want := definition(t, p.runDir(first))
	if d := cmp.Diff(want, definition(t, p.runDir(cached))); d != "" {
		t.Errorf("a run that reuses says otherwise:\n%s", d)
	}
	if d := cmp.Diff(want, definition(t, q.runDir(elsewhere))); d != "" {
		t.Errorf("a run in another folder says otherwise:\n%s", d)
	}
	q.write("model.py", "weights = 2")
	if want == definition(t, q.runDir(q.mustRun(q.settled(newChain(q))))) {
		t.Error("another source gives the same statement")
	}
}

func TestARunThatMadeNothingHasNoStatement(t *testing.T) {
	p := newProject(t)
	c := newChain(p)
	c.inspect.Describe.Needs = []stage.Need{stage.NeedGPU}
	o := p.settled(c)
	o.Only, o.AllowMissing = []string{"inspect"}, true
	rep := p.mustRun(o)
	if _, err := os.Stat(filepath.Join(p.runDir(rep), provenance.FileName)); err == nil {
		t.Error("there is one")
	}
	found, err := pipeline.VerifyRun(t.Context(), p.runDir(rep))
	if err != nil || len(found.Problems) != 0 {
		t.Errorf("%v, %v", found.Problems, err)
	}
}

// edit changes a JSON document of a run's folder.
func edit(t *testing.T, path string, change func(m map[string]any)) {
	t.Helper()
	var m map[string]any
	readJSON(t, path, &m)
	change(m)
	b, err := json.MarshalIndent(m, "", "  ")
	if err == nil {
		err = os.WriteFile(path, b, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func subjects(m map[string]any) []any { return m["subject"].([]any) } //nolint:forcetypeassert // a test

func firstArtifact(m map[string]any) map[string]any {
	stages := m["stages"].([]any)                                              //nolint:forcetypeassert // a test
	return stages[1].(map[string]any)["artifacts"].([]any)[0].(map[string]any) //nolint:forcetypeassert // a test
}

func TestAChangeOfARunIsFound(t *testing.T) {
	tests := map[string]struct {
		change func(t *testing.T, dir string)
		want   []string // parts of the problems, all of them
	}{
		"nothing was changed": {change: func(*testing.T, string) {}},
		"a byte of an artifact": {func(t *testing.T, dir string) {
			path := filepath.Join(dir, "artifacts/onnx/text")
			b := must(os.ReadFile(path))(t)
			b[0] ^= 1
			overwrite(t, path, b)
		}, []string{"artifacts/onnx/text differs"}},
		"the configuration": {func(t *testing.T, dir string) {
			overwrite(t, filepath.Join(dir, "config.yaml"), []byte("model: {a}\n"))
		}, []string{
			"config.yaml differs", // by the manifest and by the statement, said once
		}},
		"a version folder that holds nothing": {func(t *testing.T, dir string) {
			if err := os.Mkdir(filepath.Join(dir, "artifacts", "onnx", "2"), 0o755); err != nil {
				t.Fatal(err)
			}
		}, []string{"artifacts/onnx/2/ is not listed"}},
		"a verdict in the report": {func(t *testing.T, dir string) {
			edit(t, filepath.Join(dir, "report.json"), func(m map[string]any) { m["exit_code"] = 6 })
		}, []string{"report.json differs"}},
		"a report that is none": {func(t *testing.T, dir string) { overwrite(t, filepath.Join(dir, "report.json"), []byte("{")) }, []string{"report.json", "report.json differs"}},
		"the report is gone":    {func(t *testing.T, dir string) { drop(t, dir, "report.json") }, []string{"report.json is missing"}},
		"the manifest is gone":  {func(t *testing.T, dir string) { drop(t, dir, "manifest.json") }, []string{"manifest.json is missing"}},
		"the statement is gone": {func(t *testing.T, dir string) { drop(t, dir, provenance.FileName) }, []string{"provenance.json is missing"}},
		"the statement is garbage": {func(t *testing.T, dir string) { overwrite(t, filepath.Join(dir, provenance.FileName), []byte("\x00")) }, []string{
			"no in-toto statement",
		}},
		"the folder of artifacts is gone": {func(t *testing.T, dir string) { drop(t, dir, "artifacts") }, []string{
			"artifacts is missing", "artifacts/onnx is missing", "artifacts/onnx-optimized is missing", "artifacts/model_repository is missing", "artifacts/reference is missing",
		}},
		"an artifact is gone from the store": {func(t *testing.T, dir string) {
			to := must(filepath.EvalSymlinks(filepath.Join(dir, "artifacts/onnx")))(t)
			drop(t, filepath.Dir(to), "files")
		}, []string{"artifacts/onnx is missing: the store does not have it"}},
		"a link that leads elsewhere": {func(t *testing.T, dir string) {
			drop(t, dir, "artifacts/onnx")
			if err := os.Symlink("/etc", filepath.Join(dir, "artifacts/onnx")); err != nil {
				t.Fatal(err)
			}
		}, []string{"artifacts/onnx/text is missing", "artifacts/onnx/*"}},
		"a file that nobody speaks of": {func(t *testing.T, dir string) {
			overwrite(t, filepath.Join(dir, "notes.txt"), nil)
			overwrite(t, filepath.Join(dir, "artifacts/more"), nil)
		}, []string{"notes.txt is not listed", "artifacts/more is not listed"}},
		"a digest in the manifest": {func(t *testing.T, dir string) {
			edit(t, filepath.Join(dir, "manifest.json"), func(m map[string]any) { firstArtifact(m)["digest"] = string(digestOf("x")) })
		}, []string{"manifest.json is not valid: artifact", "is not in manifest.json"}},
		"a path in the manifest that leaves": {func(t *testing.T, dir string) {
			edit(t, filepath.Join(dir, "manifest.json"), func(m map[string]any) {
				firstArtifact(m)["files"].([]any)[0].(map[string]any)["path"] = "../../../../etc/passwd" //nolint:forcetypeassert // a test
			})
		}, []string{`".."`, "is not in manifest.json"}},
		"a run that did not finish": {func(t *testing.T, dir string) {
			edit(t, filepath.Join(dir, "manifest.json"), func(m map[string]any) { m["state"] = "running" })
		}, []string{"has not finished"}},
		"a manifest of another run": {func(t *testing.T, dir string) {
			edit(t, filepath.Join(dir, "manifest.json"), func(m map[string]any) { m["run"] = "2020-01-01_000000" })
		}, []string{"of run"}},
		"a manifest of another format": {func(t *testing.T, dir string) {
			edit(t, filepath.Join(dir, "manifest.json"), func(m map[string]any) { m["format"] = "other/2" })
		}, []string{"its format is"}},
		"a subject that leaves": {func(t *testing.T, dir string) {
			edit(t, filepath.Join(dir, provenance.FileName), func(m map[string]any) {
				subjects(m)[0].(map[string]any)["name"] = "../../../etc/passwd" //nolint:forcetypeassert // a test
			})
		}, []string{`passwd" is not in manifest.json`, "is no subject"}},
		"a subject that is there twice": {func(t *testing.T, dir string) {
			edit(t, filepath.Join(dir, provenance.FileName), func(m map[string]any) { m["subject"] = append(subjects(m), subjects(m)[0]) })
		}, []string{"is there twice"}},
		"a subject's digest in upper case": {func(t *testing.T, dir string) {
			edit(t, filepath.Join(dir, provenance.FileName), func(m map[string]any) {
				d := subjects(m)[0].(map[string]any)["digest"].(map[string]any) //nolint:forcetypeassert // a test
				d["sha256"] = strings.ToUpper(d["sha256"].(string))             //nolint:forcetypeassert // a test
			})
		}, []string{"does not have the digest"}},
		"an artifact that is no subject": {func(t *testing.T, dir string) {
			edit(t, filepath.Join(dir, provenance.FileName), func(m map[string]any) { m["subject"] = subjects(m)[1:] })
		}, []string{"is no subject"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := newProject(t)
			rep := p.mustRun(p.settled(newChain(p)))
			dir := p.runDir(rep)
			tt.change(t, dir)
			before := state(t, p.dir)
			found, err := pipeline.VerifyRun(t.Context(), dir)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, p := range found.Problems {
				got = append(got, p.Path+" | "+p.String())
			}
			for _, want := range tt.want {
				want, all := strings.CutSuffix(want, "*")
				at := slices.IndexFunc(got, func(s string) bool { return strings.Contains(s, want) })
				if at < 0 {
					t.Errorf("%q is not among\n%s", want, strings.Join(got, "\n"))
					continue
				}
				got = slices.Delete(got, at, at+1)
				if all {
					got = slices.DeleteFunc(got, func(s string) bool { return strings.Contains(s, want) })
				}
			}
			if len(got) > 0 && !strings.Contains(name, "path in the manifest") && !strings.Contains(name, "digest in the manifest") {
				t.Errorf("also found:\n%s", strings.Join(got, "\n"))
			}
			if d := cmp.Diff(before, state(t, p.dir)); d != "" {
				t.Errorf("the verification changed something:\n%s", d)
			}
		})
	}
}

func TestVerifyingARunEndsWithItsContext(t *testing.T) {
	p := newProject(t)
	rep := p.mustRun(p.settled(newChain(p)))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := pipeline.VerifyRun(ctx, p.runDir(rep)); err == nil {
		t.Error("no error")
	}
}

// state lists all below a folder with sizes and times.
func state(t *testing.T, dir string) []string {
	t.Helper()
	var out []string
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err == nil {
			out = append(out, path+" "+info.Mode().String()+" "+info.ModTime().Format(time.RFC3339Nano))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func overwrite(t *testing.T, path string, b []byte) {
	t.Helper()
	_ = os.Chmod(path, 0o644)
	_ = os.Chmod(filepath.Dir(path), 0o755)
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
}

func drop(t *testing.T, dir, name string) {
	t.Helper()
	_ = os.Chmod(dir, 0o755)
	_ = filepath.Walk(filepath.Join(dir, name), func(path string, info os.FileInfo, err error) error {
		if err == nil && info.IsDir() {
			return os.Chmod(path, 0o755)
		}
		return err
	})
	if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
		t.Fatal(err)
	}
}

// must fails the test on an error.
func must[T any](v T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func digestOf(text string) artifact.Digest {
	sum := sha256.Sum256([]byte(text))
	return artifact.SumDigest(sum[:])
}
