package triton_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/provenance"
	"github.com/trtship/trtship/internal/triton"
	"github.com/trtship/trtship/internal/triton/tritonpb"
	"github.com/trtship/trtship/internal/triton/tritontest"
)

func content(t *testing.T, text string) triton.Content {
	t.Helper()
	dir := t.TempDir()
	tritontest.Write(t, dir, "m", text)
	return triton.Content{Config: &tritonpb.ModelConfig{Name: "m", Backend: "onnxruntime"}, Files: map[string]string{"model.onnx": filepath.Join(dir, "m"), "sub/model.data": filepath.Join(dir, "m")}}
}

func TestVersionsAreAddedAndNeverOverwritten(t *testing.T) {
	repository := filepath.Join(t.TempDir(), "models")
	for want, text := range []string{"one", "two"} {
		v, err := triton.Add(repository, content(t, text))
		if err != nil || v != want+1 {
			t.Fatalf("version %d, %v", v, err)
		}
	}
	c := content(t, "three")
	c.Version = 1
	_, err := triton.Add(repository, c)
	if failure.CodeOf(err) != failure.Artifact || !strings.Contains(err.Error(), "version 1 of m is already there") {
		t.Errorf("got %v", err)
	}
	if b, _ := os.ReadFile(filepath.Join(repository, "m", "1", "model.onnx")); string(b) != "one" {
		t.Errorf("version 1 holds %q", b)
	}
	c.Version = 7
	if v, err := triton.Add(repository, c); err != nil || v != 7 {
		t.Errorf("%d %v", v, err)
	}
	m, err := triton.OnlyModel(repository)
	if err != nil || m.Newest() != "7" || len(m.Versions) != 3 {
		t.Errorf("%+v %v", m, err)
	}
	entries, _ := os.ReadDir(filepath.Join(repository, "m"))
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			t.Errorf("%s is left over", e.Name())
		}
	}
}

func TestWhatOthersWroteIsNotOverwritten(t *testing.T) {
	for name, prepare := range map[string]func(dir string) error{
		"a config.pbtxt of somebody else": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "config.pbtxt"), []byte("# mine"), 0o600)
		},
		"a pipe":                  func(dir string) error { return syscall.Mkfifo(filepath.Join(dir, "config.pbtxt"), 0o600) },
		"a folder":                func(dir string) error { return os.Mkdir(filepath.Join(dir, "config.pbtxt"), 0o700) },
		"labels of somebody else": func(dir string) error { return os.WriteFile(filepath.Join(dir, "labels.txt"), []byte("mine"), 0o600) },
		"a config.pbtxt of ours, changed": func(dir string) error {
			if _, err := triton.Add(filepath.Dir(dir), content(t, "one")); err != nil {
				return err
			}
			f, err := os.OpenFile(filepath.Join(dir, "config.pbtxt"), os.O_APPEND|os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			_, err = f.WriteString("# mine")
			return errors.Join(err, f.Close())
		},
	} {
		t.Run(name, func(t *testing.T) {
			repository := t.TempDir()
			dir := filepath.Join(repository, "m")
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := prepare(dir); err != nil {
				t.Fatal(err)
			}
			before, _ := os.ReadDir(dir)
			c := content(t, "two")
			c.Data = map[string][]byte{"labels.txt": []byte("ours")}
			_, err := triton.Add(repository, c)
			if failure.CodeOf(err) != failure.Artifact || !strings.Contains(err.Error(), "not overwritten") {
				t.Errorf("got %v", err)
			}
			if after, _ := os.ReadDir(dir); len(after) != len(before) {
				t.Errorf("%v became %v", before, after)
			}
		})
	}
	// A write that was cut off before the manifest is repeated.
	repository := t.TempDir()
	c := content(t, "one")
	tritontest.Write(t, repository, "m/config.pbtxt", c.Text())
	if _, err := triton.Add(repository, c); err != nil {
		t.Error(err)
	}
}

func TestWhateverFailsNothingIsLeft(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	for name, change := range map[string]func(*triton.Content){
		"a model file that is not there": func(c *triton.Content) { c.Files["other"] = missing },
		"a label file that is a folder":  func(c *triton.Content) { c.Beside = map[string]string{"labels.txt": t.TempDir()} },
		"data at the place of a folder":  func(c *triton.Content) { c.Data = map[string][]byte{"a": nil, "a/b": nil} },
		"a manifest's place that is taken": func(c *triton.Content) {
			c.Data = map[string][]byte{triton.ManifestFile: []byte("mine")}
		},
	} {
		t.Run(name, func(t *testing.T) {
			above := t.TempDir()
			repository := filepath.Join(above, "new", "models")
			c := content(t, "x")
			change(&c)
			if _, err := triton.Add(repository, c); failure.CodeOf(err) != failure.Artifact {
				t.Errorf("got %v", err)
			}
			if left, _ := os.ReadDir(above); len(left) != 0 {
				t.Errorf("%v is left", left)
			}
			old := t.TempDir()
			if _, err := triton.Add(old, content(t, "one")); err != nil {
				t.Fatal(err)
			}
			before := listing(t, old)
			c = content(t, "x")
			change(&c)
			if _, err := triton.Add(old, c); failure.CodeOf(err) != failure.Artifact {
				t.Errorf("got %v", err)
			}
			if after := listing(t, old); after != before {
				t.Errorf("%s became %s", before, after)
			}
		})
	}
}

// listing is every file below dir with its text.
func listing(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			fmt.Fprintln(&b, path)
			return err
		}
		text, err := os.ReadFile(path)
		fmt.Fprintf(&b, "%s %q\n", path, text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestNoVersionComesAfterTheLargestNumber(t *testing.T) {
	repository := t.TempDir()
	if err := os.MkdirAll(filepath.Join(repository, "m", "9223372036854775807"), 0o700); err != nil {
		t.Fatal(err)
	}
	if v, err := triton.Add(repository, content(t, "x")); failure.CodeOf(err) != failure.Artifact || !strings.Contains(err.Error(), "9223372036854775807") {
		t.Errorf("version %d, %v", v, err)
	}
	c := content(t, "x")
	c.Version = 3
	if v, err := triton.Add(repository, c); err != nil || v != 3 {
		t.Errorf("version %d, %v", v, err)
	}
}

func TestAFlippedByteAndAMissingFileAreFound(t *testing.T) {
	repository := t.TempDir()
	if _, err := triton.Add(repository, content(t, "weights")); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(repository, "m")
	if bad, err := triton.Verify(t.Context(), dir); err != nil || len(bad.Problems) != 0 {
		t.Fatalf("%v %v", bad, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "1", "model.onnx"), []byte("weightt"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "1", "sub", "model.data")); err != nil {
		t.Fatal(err)
	}
	bad, err := triton.Verify(t.Context(), dir)
	if err != nil || len(bad.Problems) != 2 || bad.Problems[0].Path != "1/model.onnx" || bad.Problems[0].What != provenance.Changed || bad.Problems[1].String() != "1/sub/model.data is missing" {
		t.Errorf("%v %v", bad, err)
	}
}

func TestWhatAManifestDoesNotListIsFound(t *testing.T) {
	repository := t.TempDir()
	if _, err := triton.Add(repository, content(t, "weights")); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(repository, "m")
	if err := os.Mkdir(filepath.Join(dir, "2"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "2", "model.onnx"), []byte("a version that Triton would serve"), 0o644); err != nil {
		t.Fatal(err)
	}
	found, err := triton.Verify(t.Context(), dir)
	if err != nil || triton.Problems(found) != "2/ is not listed" {
		t.Errorf("%q %v", triton.Problems(found), err)
	}
}

func TestAHostileManifestOpensNothingElse(t *testing.T) {
	repository := t.TempDir()
	if _, err := triton.Add(repository, content(t, "weights")); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(repository, "m")
	path := filepath.Join(dir, triton.ManifestFile)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	secret := filepath.Join(repository, "secret")
	if err := os.WriteFile(secret, []byte("weights"), 0o644); err != nil {
		t.Fatal(err)
	}
	hostile := strings.ReplaceAll(string(text), `"model.onnx"`, `"../../secret"`)
	if err := os.WriteFile(path, []byte(hostile), 0o644); err != nil {
		t.Fatal(err)
	}
	found, err := triton.Verify(t.Context(), dir)
	if err != nil || !strings.Contains(triton.Problems(found), "1/../../secret is not valid") {
		t.Errorf("%q %v", triton.Problems(found), err)
	}
	if err := os.WriteFile(path, []byte(`{"format":"other/1"}`), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := triton.Verify(t.Context(), dir); failure.CodeOf(err) != failure.Artifact {
		t.Errorf("another format: %v", err)
	}
}

func TestProvenanceBesideAModelMustCoverIt(t *testing.T) {
	repository := t.TempDir()
	if _, err := triton.Add(repository, content(t, "weights")); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(repository, "m")
	m, err := triton.ReadManifest(dir)
	if err != nil {
		t.Fatal(err)
	}
	run := provenance.Run{Config: artifact.Digest(m.Config), Stages: map[string]artifact.Digest{}}
	for _, w := range m.Wants() {
		run.Subjects = append(run.Subjects, provenance.File{Path: "artifacts/model_repository/m/" + w.Path, Digest: artifact.Digest(w.Digest)})
	}
	for name, tt := range map[string]struct {
		subjects []provenance.File
		want     string
	}{
		"of every file":     {run.Subjects, ""},
		"of all but one":    {run.Subjects[1:], "trtship-provenance.json is not valid: it does not speak of the bytes of config.pbtxt"},
		"of another format": {nil, "trtship-provenance.json is not valid: it is no in-toto statement"},
	} {
		r := run
		r.Subjects = tt.subjects
		text, err := provenance.Encode(r)
		if tt.subjects != nil && err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, triton.ProvenanceFile), text, 0o644); err != nil {
			t.Fatal(err)
		}
		found, err := triton.Verify(t.Context(), dir)
		if got := triton.Problems(found); err != nil || (tt.want == "") != (got == "") || !strings.HasPrefix(got, tt.want) {
			t.Errorf("%s: %q %v", name, got, err)
		}
	}
}

func TestModelNamesThatCannotBeFolders(t *testing.T) {
	for _, name := range []string{"", "a/b", "..", ".a", "-a", "a b", "a:b", "\u00e4"} {
		c := content(t, "x")
		c.Config.Name = name
		if _, err := triton.Add(t.TempDir(), c); failure.CodeOf(err) != failure.Usage {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestSeveralModelsAreNotOne(t *testing.T) {
	repository := t.TempDir()
	for _, n := range []string{"a", "b"} {
		c := content(t, "x")
		c.Config.Name = n
		if _, err := triton.Add(repository, c); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := triton.OnlyModel(repository); failure.CodeOf(err) != failure.Artifact || !strings.Contains(err.Error(), "2 models (a, b)") {
		t.Errorf("got %v", err)
	}
	if _, err := triton.Models(filepath.Join(repository, "none")); failure.CodeOf(err) != failure.Artifact {
		t.Errorf("got %v", err)
	}
}
