package github_test

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/trtship/trtship/internal/github"
	"github.com/trtship/trtship/internal/github/githubtest"
)

type uploader struct {
	fake *githubtest.Results
	art  *github.Artifacts
	log  *bytes.Buffer
	clk  *clock
}

func newUploader(t *testing.T, fake *githubtest.Results, change func(e *github.Env)) uploader {
	t.Helper()
	fake.Run, fake.Job = "run-1", "job-1"
	u := uploader{fake: fake, log: &bytes.Buffer{}, clk: &clock{}}
	e := github.Env{ServerURL: "https://github.com", ResultsURL: fake.Start(t) + "/some/path/", RuntimeToken: github.Secret(fake.Token())}
	if change != nil {
		change(&e)
	}
	a, err := github.NewArtifacts(e, nil, u.clk.Clock(), github.NewConsole(u.log), 200)
	if err != nil {
		t.Fatal(err)
	}
	u.art = a
	t.Cleanup(func() {
		for _, v := range fake.Violations {
			t.Errorf("contract: %s", v)
		}
	})
	return u
}

// files writes a small and a large file, which takes three blocks.
func files(t *testing.T) (dir string, items []github.Item) {
	t.Helper()
	dir = t.TempDir()
	big := make([]byte, 17<<20)
	rng := rand.NewChaCha8([32]byte{1})
	_, _ = rng.Read(big)
	for name, b := range map[string][]byte{"report.json": []byte(`{"a": 1}`), "engines/model.plan": big} {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	items, err := github.Collect(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	return dir, items
}

func TestAnArtifactArrivesWhole(t *testing.T) {
	u := newUploader(t, &githubtest.Results{}, nil)
	dir, items := files(t)
	got, err := u.art.Upload(context.Background(), "bench", items)
	if err != nil {
		t.Fatal(err)
	}
	b := u.fake.Stored["bench"]
	sum := sha256.Sum256(b)
	if got.ID != "42" || got.Size != int64(len(b)) || got.Digest != "sha256:"+hex.EncodeToString(sum[:]) {
		t.Errorf("%+v for %d bytes", got, len(b))
	}
	z, err := zip.NewReader(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range z.File {
		names = append(names, f.Name)
		r, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		have, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if want, _ := os.ReadFile(filepath.Join(dir, f.Name)); !bytes.Equal(have, want) {
			t.Errorf("%s arrived with other bytes", f.Name)
		}
	}
	if !slices.Equal(names, []string{"engines/model.plan", "report.json"}) {
		t.Errorf("files %v", names)
	}
	if !strings.Contains(u.log.String(), "::add-mask::se/cret\n") || !strings.Contains(u.log.String(), "::add-mask::se%252Fcret\n") {
		t.Errorf("the signature is not masked, raw and encoded: %q", u.log.String())
	}
	if exp := u.fake.Expires["bench"]; !strings.HasPrefix(exp, "2024-02-12T") { // 90 days after the clock's time, the most there is
		t.Errorf("expires %q", exp)
	}
}

func TestRetentionOfZeroIsTheRepositorys(t *testing.T) {
	fake := &githubtest.Results{}
	u := newUploader(t, fake, nil)
	a, err := github.NewArtifacts(github.Env{ServerURL: "https://github.com", ResultsURL: fake.Base(), RuntimeToken: github.Secret(fake.Token()), RetentionDays: 0}, nil, u.clk.Clock(), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, items := files(t)
	if _, err := a.Upload(context.Background(), "x", items[1:]); err != nil {
		t.Fatal(err)
	}
	if e, ok := fake.Expires["x"]; ok {
		t.Errorf("expires_at %q was sent", e)
	}
	a, err = github.NewArtifacts(github.Env{ServerURL: "https://github.com", ResultsURL: fake.Base(), RuntimeToken: github.Secret(fake.Token()), RetentionDays: 3}, nil, u.clk.Clock(), nil, 10)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Upload(context.Background(), "y", items[1:]); err != nil {
		t.Fatal(err)
	}
	if e := fake.Expires["y"]; !strings.HasPrefix(e, "2023-11-17T") { // the repository's limit of 3 days
		t.Errorf("expires %q", e)
	}
}

func TestTheServiceMayStumble(t *testing.T) {
	_, items := files(t)
	for _, kind := range []string{"CreateArtifact", "block", "blocklist", "FinalizeArtifact"} {
		t.Run(kind, func(t *testing.T) {
			fake := &githubtest.Results{}
			fake.Fail = func(w http.ResponseWriter, k string, n int) bool {
				if k == kind && n <= 2 {
					githubtest.Twirp(w, []int{503, 429}[n-1], "try again")
					return true
				}
				return false
			}
			u := newUploader(t, fake, nil)
			if _, err := u.art.Upload(context.Background(), "x", items); err != nil {
				t.Fatal(err)
			}
			if len(u.clk.waited) != 2 || u.clk.waited[1] <= 0 {
				t.Errorf("waited %v, want twice", u.clk.waited)
			}
		})
	}
}

func TestWhatIsFinalIsNotRepeated(t *testing.T) {
	_, items := files(t)
	for name, c := range map[string]struct {
		code int
		text string
		want error
	}{
		"the storage is full": {403, "Failed to CreateArtifact: insufficient usage to create artifact", github.ErrQuota},
		"not allowed":         {403, "no", nil},
	} {
		t.Run(name, func(t *testing.T) {
			fake := &githubtest.Results{}
			calls := 0
			fake.Fail = func(w http.ResponseWriter, _ string, _ int) bool {
				calls++
				githubtest.Twirp(w, c.code, c.text)
				return true
			}
			u := newUploader(t, fake, nil)
			_, err := u.art.Upload(context.Background(), "x", items)
			if err == nil || calls != 1 || c.want != nil && !errors.Is(err, c.want) {
				t.Errorf("error %v after %d calls", err, calls)
			}
		})
	}
	fake := &githubtest.Results{}
	calls := 0
	fake.Fail = func(w http.ResponseWriter, _ string, _ int) bool {
		calls++
		githubtest.Twirp(w, 500, "down")
		return true
	}
	u := newUploader(t, fake, nil)
	if _, err := u.art.Upload(context.Background(), "x", items); err == nil || calls != 5 {
		t.Errorf("error %v after %d calls, want one after 5", err, calls)
	}
}

func TestASinglePutThatAnswers200IsAFailure(t *testing.T) {
	_, items := files(t)
	fake := &githubtest.Results{}
	fake.Fail = func(w http.ResponseWriter, kind string, _ int) bool {
		if kind == "block" {
			w.WriteHeader(http.StatusOK) // a server that took it for something else
			return true
		}
		return false
	}
	u := newUploader(t, fake, nil)
	if _, err := u.art.Upload(context.Background(), "x", items); err == nil {
		t.Error("only 201 says that a block arrived")
	}
}

func TestANameThatIsTaken(t *testing.T) {
	_, items := files(t)
	t.Run("by an earlier attempt of this job: replaced", func(t *testing.T) {
		u := newUploader(t, &githubtest.Results{Owner: map[string]string{"x": "job-1"}}, nil)
		got, err := u.art.Upload(context.Background(), "x", items)
		if err != nil || got.Name != "x" || !slices.Equal(u.fake.Deleted, []string{"x"}) {
			t.Errorf("%+v, %v, deleted %v", got, err, u.fake.Deleted)
		}
	})
	t.Run("by another job: a number is added, nothing is deleted", func(t *testing.T) {
		u := newUploader(t, &githubtest.Results{Owner: map[string]string{"x": "job-2"}}, nil)
		got, err := u.art.Upload(context.Background(), "x", items)
		if err != nil || got.Name == "x" || len(u.fake.Deleted) != 0 || u.fake.Stored[got.Name] == nil {
			t.Errorf("%+v, %v, deleted %v", got, err, u.fake.Deleted)
		}
	})
	t.Run("for ever: an error", func(t *testing.T) {
		fake := &githubtest.Results{}
		fake.Fail = func(w http.ResponseWriter, kind string, _ int) bool {
			if kind == "CreateArtifact" {
				githubtest.Twirp(w, http.StatusConflict, "an artifact with this name already exists on the workflow run")
				return true
			}
			return false
		}
		u := newUploader(t, fake, nil)
		if _, err := u.art.Upload(context.Background(), "x", items); err == nil {
			t.Error("no error")
		}
	})
}

func TestNamesOfArtifactsAndFiles(t *testing.T) {
	u := newUploader(t, &githubtest.Results{}, nil)
	_, items := files(t)
	for _, name := range []string{"", "a/b", `a\b`, "a:b", "a\nb", "a*"} {
		if _, err := u.art.Upload(context.Background(), name, items); err == nil {
			t.Errorf("name %q was accepted", name)
		}
	}
	for _, file := range []string{"", "../x", "/x", "a:b", "a\rb"} {
		if _, err := u.art.Upload(context.Background(), "x", []github.Item{{Name: file, Path: items[0].Path}}); err == nil {
			t.Errorf("file name %q was accepted", file)
		}
	}
	if _, err := u.art.Upload(context.Background(), "x", nil); err == nil {
		t.Error("an artifact without files was accepted")
	}
	if _, err := u.art.Upload(context.Background(), "x", []github.Item{{Name: "gone", Path: "/no/such/file"}}); err == nil {
		t.Error("a file that is not there was uploaded")
	}
}

func TestWhereThereIsNoService(t *testing.T) {
	good := (&githubtest.Results{Run: "r", Job: "j"}).Token()
	jwt := func(claims string) github.Secret {
		return github.Secret("e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".x")
	}
	for name, e := range map[string]github.Env{
		"an enterprise server":      {ServerURL: "https://git.example.com", ResultsURL: "http://x", RuntimeToken: github.Secret(good)},
		"a run step":                {ServerURL: "https://github.com"},
		"a token that is none":      {ServerURL: "https://github.com", ResultsURL: "http://x", RuntimeToken: "abc"},
		"a token that is not JSON":  {ServerURL: "https://github.com", ResultsURL: "http://x", RuntimeToken: jwt("x")},
		"a token without the scope": {ServerURL: "https://github.com", ResultsURL: "http://x", RuntimeToken: jwt(`{"scp":"Actions.GenericRead:a:b"}`)},
		"a scope of two fields":     {ServerURL: "https://github.com", ResultsURL: "http://x", RuntimeToken: jwt(`{"scp":"Actions.Results:a"}`)},
		"an address that is none":   {ServerURL: "https://github.com", ResultsURL: "x", RuntimeToken: github.Secret(good)},
	} {
		if _, err := github.NewArtifacts(e, nil, github.Clock{}, nil, 0); !errors.Is(err, github.ErrNoArtifacts) {
			t.Errorf("%s: error %v", name, err)
		}
	}
	for host, enterprise := range map[string]bool{"https://github.com": false, "https://acme.ghe.com": false, "http://localhost:80": false, "http://a.localhost": false, "https://github.example.com": true, "https://notgithub.com": true, ":": true} {
		if got := (github.Env{ServerURL: host}).EnterpriseServer(); got != enterprise {
			t.Errorf("%s: %v", host, got)
		}
	}
}

func TestCollectFollowsLinksAndKeepsOrder(t *testing.T) {
	dir := t.TempDir()
	real := filepath.Join(dir, "store")
	for _, n := range []string{"b/2", "a/1"} {
		p := filepath.Join(real, n)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(real, link); err != nil {
		t.Fatal(err)
	}
	items, err := github.Collect(link, "fp16")
	if err != nil || len(items) != 2 || items[0].Name != "fp16/a/1" || items[1].Name != "fp16/b/2" {
		t.Errorf("%+v, %v", items, err)
	}
	if _, err := github.Collect(filepath.Join(dir, "none"), ""); err == nil {
		t.Error("a folder that is not there was collected")
	}
}
