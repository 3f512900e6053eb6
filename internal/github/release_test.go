package github_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/github"
	"github.com/trtship/trtship/internal/github/githubtest"
)

func release(t *testing.T, api *githubtest.API) *github.Assets {
	t.Helper()
	api.Repository, api.Token = "owner/model", "tok"
	r, err := github.ParseRelease("release:v1", "owner/model")
	if err != nil {
		t.Fatal(err)
	}
	a, err := github.OpenRelease(t.Context(), github.Env{Token: "tok", APIURL: api.Start(t)}, r, nil, (&clock{}).Clock())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, v := range api.Snapshot().Violations {
			t.Errorf("contract: %s", v)
		}
	})
	return a
}

func TestAFileOfTwoGigabytesIsRefusedBeforeAnythingIsSent(t *testing.T) {
	api := &githubtest.API{Releases: []*githubtest.Release{{ID: 5, Tag: "v1"}}}
	a := release(t, api)
	path := filepath.Join(t.TempDir(), "m.tar.gz")
	write(t, path, "")
	if err := os.Truncate(path, 2<<30); err != nil {
		t.Fatal(err)
	}
	before := len(api.Snapshot().Seen)
	_, err := a.Attach(t.Context(), path)
	if failure.CodeOf(err) != failure.Artifact || !strings.Contains(err.Error(), "below 2 GiB") || len(api.Snapshot().Seen) != before {
		t.Errorf("%v, requests %v", err, api.Snapshot().Seen)
	}
}

func TestTheNameIsLookedForOverAllPages(t *testing.T) {
	rel := &githubtest.Release{ID: 5, Tag: "v1"}
	for i := range 250 {
		rel.Assets = append(rel.Assets, githubtest.ReleaseAsset{ID: int64(i + 1), Name: strings.Repeat("x", i+1), State: "uploaded"})
	}
	rel.Assets = append(rel.Assets, githubtest.ReleaseAsset{ID: 900, Name: "m.tar.gz", State: "uploaded", Contents: []byte("other")})
	a := release(t, &githubtest.API{Releases: []*githubtest.Release{rel}})
	path := filepath.Join(t.TempDir(), "m.tar.gz")
	write(t, path, "mine")
	if _, err := a.Attach(t.Context(), path); err == nil || !strings.Contains(err.Error(), "another file of that name is there") {
		t.Errorf("%v", err)
	}
}

func TestAnotherJobThatWasFaster(t *testing.T) {
	for name, there := range map[string]string{"with equal bytes": "mine", "with other bytes": "other"} {
		t.Run(name, func(t *testing.T) {
			rel := &githubtest.Release{ID: 5, Tag: "v1"}
			api := &githubtest.API{Releases: []*githubtest.Release{rel}}
			api.Fail = overtake(rel, there)
			a := release(t, api)
			path := filepath.Join(t.TempDir(), "m.tar.gz")
			write(t, path, "mine")
			done, err := a.Attach(t.Context(), path)
			if there == "mine" && (err != nil || !done.Already) || there != "mine" && err == nil {
				t.Errorf("%+v, %v", done, err)
			}
		})
	}
}

// overtake puts a file into the release just before the first upload arrives.
func overtake(rel *githubtest.Release, text string) func(http.ResponseWriter, *http.Request, int) bool {
	return func(_ http.ResponseWriter, r *http.Request, _ int) bool {
		if r.Method == http.MethodPost && len(rel.Assets) == 0 {
			rel.Assets = append(rel.Assets, githubtest.ReleaseAsset{ID: 1, Name: "m.tar.gz", State: "uploaded", Contents: []byte(text)})
		}
		return false
	}
}
