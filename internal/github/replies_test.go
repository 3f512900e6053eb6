package github_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/trtship/trtship/internal/github"
	"github.com/trtship/trtship/internal/github/githubtest"
	"github.com/trtship/trtship/internal/testkit"
	"github.com/trtship/trtship/report"
	"github.com/trtship/trtship/report/reporttest"
)

// A refusal or a broken reply of GitHub may cost the comment or the baseline,
// which is said; what is taken must be right. The stand-in gets a comment of
// somebody else with our marker, which must stay.
func TestBrokenRepliesOfGitHub(t *testing.T) {
	contents := packed(t, report.Pass, nil)
	right := func() http.Handler {
		fake := history()
		fake.Repository, fake.Token = "owner/model", "secret-token"
		fake.Artifacts = []githubtest.Artifact{{ID: 11, HeadSHA: "m2", RunID: 2, Name: artifactName, Contents: contents}}
		fake.Comments = map[int][]githubtest.Comment{7: {{ID: 9, Login: "attacker", Body: github.Marker("digits") + "\nforged"}}}
		fake.Files = map[int][]githubtest.File{7: {{Name: "m.py", Status: "modified", Patch: "@@ -1 +1,2 @@\n a\n+b"}}}
		fake.Pulls = []githubtest.Pull{{Number: 7, HeadSHA: "head", HeadRepo: "owner/model"}}
		return fake
	}
	talk := func(ctx context.Context, address string) (string, error) {
		c := &clock{}
		client := &http.Client{Timeout: 400 * time.Millisecond, Transport: &http.Transport{}}
		defer client.CloseIdleConnections()
		api, err := github.NewAPI(github.Env{APIURL: "http://" + address, Repository: "owner/model", Token: "secret-token"}, client, c.Clock())
		if err != nil {
			return "", err
		}
		ev := pullRequest
		ev.Number = 0
		n, err := api.FindPullRequest(ctx, ev)
		if err != nil {
			return "", err
		}
		if n != 0 && n != 7 {
			return fmt.Sprintf("pull request %d", n), nil
		}
		changes, err := api.ChangedLines(ctx, 7)
		if err != nil {
			return "", err
		}
		for file := range changes {
			if file != "m.py" {
				return fmt.Sprintf("changes of %q", file), nil
			}
		}
		head := reporttest.Full()
		found, err := api.Baseline(ctx, pullRequest, artifactName, 3, "99", head)
		if err != nil {
			return "", err
		}
		if found.Report != nil && (found.Report.Run.ID != "base-run" || found.Commit != "m2") {
			return fmt.Sprintf("a baseline of %s", found.Commit), nil
		}
		where, err := api.Comment(ctx, 7, "digits", bot, text("new"))
		if err != nil {
			return "", err
		}
		if strings.HasSuffix(where, "-9") {
			return "the comment of somebody else was edited", nil
		}
		return "right or none", nil
	}
	testkit.BreakReplies(t, "broken reply of GitHub", right, talk, func(err error) string {
		if strings.Contains(err.Error(), "secret") {
			return "a secret in an error"
		}
		return ""
	})
}

// The artifact service answers wrongly: what was not stored whole is an error.
func TestBrokenRepliesOfTheArtifactService(t *testing.T) {
	path := filepath.Join(t.TempDir(), "report.json")
	if err := os.WriteFile(path, []byte(`{"a": 1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	items, err := github.Collect(filepath.Dir(path), "")
	if err != nil {
		t.Fatal(err)
	}
	var fake *githubtest.Results
	right := func() http.Handler {
		fake = &githubtest.Results{Run: "run-1", Job: "job-1"}
		return fake
	}
	talk := func(ctx context.Context, address string) (string, error) {
		client := &http.Client{Timeout: 400 * time.Millisecond, Transport: &http.Transport{}}
		defer client.CloseIdleConnections()
		e := github.Env{ServerURL: "https://github.com", ResultsURL: "http://" + address + "/", RuntimeToken: github.Secret(fake.Token())}
		a, err := github.NewArtifacts(e, client, (&clock{}).Clock(), github.NewConsole(&strings.Builder{}), 9)
		if err != nil {
			return "", err
		}
		up, err := a.Upload(ctx, "report", items)
		if err != nil {
			return "", err
		}
		if up.ID == "" || up.Digest == "" {
			return "stored without an id", nil
		}
		return "stored", nil
	}
	testkit.BreakReplies(t, "broken reply of GitHub's artifact service", right, talk, nil)
}
