package cli

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/github/githubtest"
	"github.com/trtship/trtship/internal/provenance"
	"github.com/trtship/trtship/internal/triton"
	"github.com/trtship/trtship/internal/triton/tritonpb"
)

// released is a repository that holds the model m, and a release to attach it to.
func released(t *testing.T) (repository string, env map[string]string, api *githubtest.API) {
	t.Helper()
	repository = filepath.Join(t.TempDir(), "repository")
	weights := put(t, filepath.Join(t.TempDir(), "w"), "weights")
	if _, err := triton.Add(repository, triton.Content{Config: &tritonpb.ModelConfig{Name: "m", Backend: "onnxruntime"}, Files: map[string]string{"model.onnx": weights}}); err != nil {
		t.Fatal(err)
	}
	api = &githubtest.API{Repository: "owner/model", Token: "tok", Releases: []*githubtest.Release{{ID: 5, Tag: "v1"}, {ID: 6, Tag: "models/v2"}, {ID: 7, Tag: "v3", Draft: true}}}
	env = map[string]string{"GITHUB_API_URL": api.Start(t), "GITHUB_REPOSITORY": "owner/model", "GITHUB_TOKEN": "tok"}
	t.Cleanup(func() {
		for _, v := range api.Snapshot().Violations {
			t.Errorf("contract: %s", v)
		}
	})
	return repository, env, api
}

const assetName = "m-model-repository.tar.gz"

func TestAModelGoesIntoAReleaseAndComesBack(t *testing.T) {
	for _, c := range []struct {
		reference string
		release   int
		noDigest  bool
	}{{"release:v1", 0, false}, {"release:v1", 0, true}, {"release:owner/model@models/v2", 1, false}} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			repository, env, api := released(t)
			api.Releases[c.release].NoDigest = c.noDigest
			code, stdout, stderr := invoke(t, env, "publish", repository, c.reference)
			if code != 0 || !strings.Contains(stdout, "/releases/download/") || !strings.Contains(stdout, "sha256:") {
				t.Fatalf("exit %d, %q, %q", code, stdout, stderr)
			}
			got := api.Releases[c.release].Assets
			if len(got) != 2 || got[0].Name != assetName || got[1].Name != assetName+".sha256" || !strings.HasSuffix(string(got[1].Contents), "  "+assetName+"\n") {
				t.Fatalf("assets %+v", got)
			}
			code, again, stderr := invoke(t, env, "publish", repository, c.reference)
			if code != 0 || again != stdout || !strings.Contains(stderr, "already") || len(api.Releases[c.release].Assets) != 2 {
				t.Errorf("again: exit %d, %q, %q; equal bytes must be left alone", code, again, stderr)
			}
			out := filepath.Join(t.TempDir(), "out")
			delete(env, "GITHUB_TOKEN")
			api.Public = true
			if code, _, stderr := invoke(t, env, "pull", c.reference, "-o", out); code != 0 {
				t.Fatalf("exit %d, %q", code, stderr)
			}
			if b, err := os.ReadFile(filepath.Join(out, "m", "1", "model.onnx")); err != nil || string(b) != "weights" {
				t.Errorf("%q, %v", b, err)
			}
			if code, _, stderr := invoke(t, env, "pull", c.reference, "-o", out); code != 11 || !strings.Contains(stderr, "already there") {
				t.Errorf("over a model that is there: exit %d, %q", code, stderr)
			}
		})
	}
}

func TestReleasesThatCannotBePublishedTo(t *testing.T) {
	for name, c := range map[string]struct {
		reference string
		change    func(api *githubtest.API, env map[string]string)
		code      int
		want      string
	}{
		"no such release":            {"release:v9", nil, 11, "gh release create v9"},
		"a draft":                    {"release:v3", nil, 11, "not as a draft"},
		"another repository":         {"release:other/model@v1", nil, 11, "404"},
		"no repository":              {"release:v1", func(_ *githubtest.API, env map[string]string) { delete(env, "GITHUB_REPOSITORY") }, 2, "release:OWNER/NAME@TAG"},
		"no tag":                     {"release:", nil, 2, "is no tag"},
		"no tag of a repository":     {"release:a/b@", nil, 2, "\"release:a/b@\" is no tag of a release"},
		"a tag that is an option":    {"release:--x", nil, 2, "is no tag"},
		"a tag that leads elsewhere": {"release:../../x", nil, 2, "is no tag"},
		"a token that can only read": {"release:v1", func(api *githubtest.API, _ map[string]string) { api.ReadOnly = true }, 11, "contents: write"},
		"other bytes are there": {"release:v1", func(api *githubtest.API, _ map[string]string) {
			api.Releases[0].Assets = []githubtest.ReleaseAsset{{ID: 1, Name: assetName, State: "uploaded", Contents: []byte("other")}}
		}, 11, "never replaced"},
		"uploads never end": {"release:v1", func(api *githubtest.API, _ map[string]string) {
			api.Fail = func(w http.ResponseWriter, r *http.Request, _ int) bool {
				if r.Method == http.MethodPost {
					githubtest.Error(w, http.StatusUnprocessableEntity, "Validation Failed")
					return true
				}
				return false
			}
		}, 11, "422"},
	} {
		t.Run(name, func(t *testing.T) {
			repository, env, api := released(t)
			if c.change != nil {
				c.change(api, env)
			}
			code, _, stderr := invoke(t, env, "publish", repository, c.reference)
			if code != c.code || !strings.Contains(stderr, c.want) {
				t.Errorf("exit %d, %q; want %d and %q", code, stderr, c.code, c.want)
			}
			if name == "another repository" {
				api.Violations = nil // the stand-in knows one repository
			}
		})
	}
}

func TestAnUploadThatBreaksOffIsMadeAgain(t *testing.T) {
	repository, env, api := released(t)
	api.Releases[0].Assets = []githubtest.ReleaseAsset{{ID: 1, Name: assetName, State: "starter"}} // of an earlier job
	api.BreakUploads = 1
	if code, _, stderr := invoke(t, env, "publish", repository, "release:v1"); code != 0 {
		t.Fatalf("exit %d, %q", code, stderr)
	}
	got := api.Releases[0].Assets
	if len(got) != 2 || got[0].State != "uploaded" || got[1].State != "uploaded" {
		t.Errorf("assets %+v", got)
	}
}

func TestReleasedFilesThatDoNotHoldAreNotUsed(t *testing.T) {
	for name, c := range map[string]struct {
		change func(r *githubtest.Release)
		args   []string
		code   int
		want   string
	}{
		"nothing is attached": {func(r *githubtest.Release) { r.Assets = nil }, nil, 11, "has no file"},
		"no digest beside it": {func(r *githubtest.Release) { r.Assets = r.Assets[:1] }, nil, 11, "cannot be verified"},
		"a file that was swapped": {func(r *githubtest.Release) {
			r.Assets[0].Contents = append(append([]byte{}, r.Assets[0].Contents...), 0)
		}, nil, 11, "its .sha256 says"},
		"a digest that is none":    {func(r *githubtest.Release) { r.Assets[1].Contents = []byte("hello") }, nil, 11, "its .sha256 says hello"},
		"a digest without an end":  {func(r *githubtest.Release) { r.Assets[1].Contents = make([]byte, 5000) }, nil, 11, "which is no digest"},
		"an upload that broke off": {func(r *githubtest.Release) { r.Assets[0].State = "starter" }, nil, 11, "has no file"},
		"two models, and none named": {func(r *githubtest.Release) {
			r.Assets = append(r.Assets, githubtest.ReleaseAsset{ID: 3, Name: "n-model-repository.tar.gz", State: "uploaded"})
		}, nil, 2, "--model"},
		"a model that is not in it": {nil, []string{"--model", "other"}, 11, "has no file other-model-repository.tar.gz"},
		"a file with another content": {func(r *githubtest.Release) {
			r.Assets[0].Contents = []byte("x")
			r.Assets[1].Contents = []byte("2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881  x\n")
		}, nil, 11, "unpack"},
	} {
		t.Run(name, func(t *testing.T) {
			repository, env, api := released(t)
			if code, _, stderr := invoke(t, env, "publish", repository, "release:v1"); code != 0 {
				t.Fatal(stderr)
			}
			if c.change != nil {
				c.change(api.Releases[0])
			}
			out := filepath.Join(t.TempDir(), "out")
			code, _, stderr := invoke(t, env, append([]string{"pull", "release:v1", "-o", out}, c.args...)...)
			if code != c.code || !strings.Contains(stderr, c.want) {
				t.Errorf("exit %d, %q; want %d and %q", code, stderr, c.code, c.want)
			}
			if left, _ := os.ReadDir(out); len(left) != 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

func TestProvenanceGoesIntoTheReleaseWithTheModel(t *testing.T) {
	repository, env, api := released(t)
	m, err := triton.ReadManifest(filepath.Join(repository, "m"))
	if err != nil {
		t.Fatal(err)
	}
	speaking := func(skip string) string {
		r := provenance.Run{Config: artifact.Digest(m.Config), Stages: map[string]artifact.Digest{}}
		for _, w := range m.Wants() {
			if w.Path != skip {
				r.Subjects = append(r.Subjects, provenance.File{Path: "artifacts/model_repository/m/" + w.Path, Digest: artifact.Digest(w.Digest)})
			}
		}
		text, err := provenance.Encode(r)
		if err != nil {
			t.Fatal(err)
		}
		return put(t, filepath.Join(t.TempDir(), "provenance.json"), string(text))
	}
	if code, _, stderr := invoke(t, env, "publish", repository, "release:v1", "--provenance", speaking("1/model.onnx")); code != 11 || !strings.Contains(stderr, "1/model.onnx") || len(api.Releases[0].Assets) != 0 {
		t.Errorf("a statement of other files: exit %d, %q, %d assets", code, stderr, len(api.Releases[0].Assets))
	}
	code, first, stderr := invoke(t, env, "publish", repository, "release:v1", "--provenance", speaking(""))
	if code != 0 {
		t.Fatalf("exit %d, %q", code, stderr)
	}
	out := filepath.Join(t.TempDir(), "out")
	if code, _, stderr := invoke(t, env, "pull", "release:v1", "-o", out); code != 0 {
		t.Fatalf("exit %d, %q", code, stderr)
	}
	if _, err := os.Stat(filepath.Join(out, "m", triton.ProvenanceFile)); err != nil {
		t.Error(err)
	}
	if code, again, stderr := invoke(t, env, "publish", out, "release:v1"); code != 0 || again != first || !strings.Contains(stderr, "already") {
		t.Errorf("what was pulled has other bytes: exit %d, %q, %q, first %q", code, again, stderr, first)
	}
}
