package github_test

import (
	"archive/zip"
	"bytes"
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/trtship/trtship/internal/github"
	"github.com/trtship/trtship/internal/github/githubtest"
	"github.com/trtship/trtship/report"
	"github.com/trtship/trtship/report/reporttest"
)

const engineName = "trtship-digits-gate-engine"

// zipped packs files; a name that ends with "@" is a symbolic link.
func zipped(t *testing.T, files ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, f := range files {
		name, text, _ := strings.Cut(f, "=")
		h := &zip.FileHeader{Name: strings.TrimSuffix(name, "@"), Method: zip.Deflate}
		if strings.HasSuffix(name, "@") {
			h.SetMode(fs.ModeSymlink | 0o777)
		}
		w, err := z.CreateHeader(h)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestWhatTheBaselinesRunUploadedIsFetched(t *testing.T) {
	s := newStep(t, reporttest.Full())
	full := reporttest.Full()
	s.before = &report.Report{Run: report.Run{Config: full.Run.Config}, Model: report.Model{Name: full.Model.Name}, Environment: full.Environment}
	s.api.Artifacts = []githubtest.Artifact{
		{ID: 10, Name: artifactName, HeadSHA: "m2", RunID: 1, Contents: packed(t, report.Pass, nil)},
		{ID: 11, Name: engineName, HeadSHA: "m2", RunID: 1, Contents: zipped(t, "fp16-engine/", "fp16-engine/model.plan=plan", "fp16-engine/engine.json={}")},
		{ID: 12, Name: engineName, HeadSHA: "m2", RunID: 2, Contents: zipped(t, "fp16-engine/model.plan=of another run")},
	}
	dir := t.TempDir()
	s.fetch = func(b github.Base) {
		s.api.BreakDownloads = 1
		if err := b.Fetch(context.Background(), "engine", dir); err != nil || s.api.BreakDownloads != 0 {
			t.Errorf("%v, %d downloads left to break", err, s.api.BreakDownloads)
		}
		if err := b.Fetch(context.Background(), "onnx", dir); err == nil || !strings.Contains(err.Error(), "run 1 has no artifact trtship-digits-gate-onnx") {
			t.Errorf("got %v for what was not uploaded", err)
		}
	}
	if code, err := s.run(t); err != nil || code != 0 {
		t.Fatalf("code %d, %v", code, err)
	}
	var found []string
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, _ error) error {
		if !d.IsDir() {
			b, err := os.ReadFile(path)
			if err != nil {
				t.Error(err)
			}
			rel, _ := filepath.Rel(dir, path)
			found = append(found, rel+"="+string(b))
		}
		return nil
	})
	if want := []string{"fp16-engine/engine.json={}", "fp16-engine/model.plan=plan"}; !slices.Equal(found, want) {
		t.Errorf("unpacked %q, want %q", found, want)
	}
}

func TestAnArtifactWritesNothingOutsideOfItsFolder(t *testing.T) {
	for name, files := range map[string][]string{
		"a way up":        {"../outside=x"},
		"an absolute one": {"/outside=x"},
		"a link":          {"in@=..", "in/outside=x"},
		"twice":           {"a=x", "a=y"},
	} {
		t.Run(name, func(t *testing.T) {
			api := history()
			api.Repository, api.Token = "owner/model", "tok"
			api.Artifacts = []githubtest.Artifact{{ID: 11, Name: engineName, HeadSHA: "m2", RunID: 1, Contents: zipped(t, files...)}}
			c, err := github.NewAPI(github.Env{Repository: "owner/model", APIURL: api.Start(t), Token: "tok"}, nil, (&clock{}).Clock())
			if err != nil {
				t.Fatal(err)
			}
			top := t.TempDir()
			dir := filepath.Join(top, "in")
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := c.Fetch(t.Context(), 1, engineName, dir); err == nil {
				t.Error("no error")
			}
			if entries, err := os.ReadDir(top); err != nil || len(entries) != 1 {
				t.Errorf("%v, %v: something was written outside", entries, err)
			}
		})
	}
}

func TestWhatIsNoZipFileIsNotUnpacked(t *testing.T) {
	api := history()
	api.Repository, api.Token = "owner/model", "tok"
	api.Artifacts = []githubtest.Artifact{{ID: 11, Name: engineName, HeadSHA: "m2", RunID: 1, Contents: []byte("no zip file")}}
	c, err := github.NewAPI(github.Env{Repository: "owner/model", APIURL: api.Start(t), Token: "tok"}, nil, (&clock{}).Clock())
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Fetch(t.Context(), 1, engineName, t.TempDir()); err == nil || !strings.Contains(err.Error(), engineName+" is no zip file") {
		t.Errorf("got %v", err)
	}
}
