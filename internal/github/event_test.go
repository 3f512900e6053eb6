package github_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/trtship/trtship/internal/github"
	"github.com/trtship/trtship/internal/testkit"
)

const eventCases = "../../testdata/cases/g01-fork-and-events/"

func TestEventsOfTheField(t *testing.T) {
	testkit.HoldsCase(t, "g01-fork-and-events")
	a, b, c, d, e := strings.Repeat("a", 40), strings.Repeat("b", 40), strings.Repeat("c", 40), strings.Repeat("d", 40), strings.Repeat("e", 40)
	_ = b
	for file, c := range map[string]struct {
		name string
		want github.Event
		pr   bool
	}{
		"pull_request_fork": {"pull_request", github.Event{Name: "pull_request", Action: "synchronize", Repository: "owner/model", Number: 7, HeadSHA: a, HeadRepo: "stranger/model", BaseSHA: b, Fork: true}, true},
		"deleted_fork":      {"pull_request", github.Event{Name: "pull_request", Action: "synchronize", Repository: "owner/model", Number: 8, HeadSHA: a, BaseSHA: b, Fork: true}, true},
		"push":              {"push", github.Event{Name: "push", Repository: "owner/model", HeadSHA: c}, false},
		"merge_group":       {"merge_group", github.Event{Name: "merge_group", Action: "checks_requested", Repository: "owner/model", HeadSHA: d}, false},
		"workflow_run_fork": {"workflow_run", github.Event{Name: "workflow_run", Action: "completed", Repository: "owner/model", HeadSHA: a, HeadRepo: "stranger/model", Fork: true, RunEvent: "pull_request"}, false},
	} {
		t.Run(file, func(t *testing.T) {
			ev, err := github.ReadEvent(github.Env{EventName: c.name, EventPath: eventCases + file + ".json", SHA: e, Repository: "owner/model"})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, ev); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if ev.PullRequest() != c.pr {
				t.Errorf("has a pull request to write to: %v, want %v", ev.PullRequest(), c.pr)
			}
		})
	}
}

func event(t *testing.T, name, text string) github.Event {
	t.Helper()
	path := filepath.Join(t.TempDir(), "event.json")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	ev, err := github.ReadEvent(github.Env{EventName: name, EventPath: path, SHA: "merge", Repository: "owner/model"})
	if err != nil {
		t.Fatal(err)
	}
	return ev
}

func TestEventsThatHoldLittle(t *testing.T) {
	for name, text := range map[string]string{"schedule": "{}", "workflow_dispatch": `{"inputs": null, "ref": "refs/heads/main"}`, "release": `{"action":"published","release":{"tag_name":"v1"}}`, "push": ""} {
		ev := event(t, name, text)
		if ev.HeadSHA != "merge" || ev.Number != 0 || ev.Fork || ev.PullRequest() {
			t.Errorf("%s: %+v", name, ev)
		}
	}
	ev, err := github.ReadEvent(github.Env{EventName: "schedule", EventPath: filepath.Join(t.TempDir(), "none"), SHA: "x"})
	if err != nil || ev.HeadSHA != "x" {
		t.Errorf("%+v, %v", ev, err)
	}
	bad := filepath.Join(t.TempDir(), "bad")
	if err := os.WriteFile(bad, []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := github.ReadEvent(github.Env{EventPath: bad}); err == nil {
		t.Error("half an event was read")
	}
}

func TestThePushBefore(t *testing.T) {
	if ev := event(t, "push", `{"before":"1234","after":"5678"}`); ev.BaseSHA != "1234" || ev.HeadSHA != "5678" {
		t.Errorf("%+v", ev)
	}
	if ev := event(t, "push", `{"before":"0000000000000000000000000000000000000000","after":"5678"}`); ev.BaseSHA != "" {
		t.Errorf("a new branch has a commit before it: %+v", ev)
	}
}

func TestAPullRequestOfTheSameRepositoryIsNoFork(t *testing.T) {
	ev := event(t, "pull_request", `{"pull_request":{"number":3,"head":{"sha":"h","repo":{"full_name":"Owner/Model"}},"base":{"sha":"b","ref":"main"}}}`)
	if ev.Fork || ev.Number != 3 || ev.BaseRef != "main" {
		t.Errorf("%+v", ev)
	}
}

func TestAWorkflowRunNamesItsPullRequestOnlyForTheRepositoryItself(t *testing.T) {
	run := func(repo string) github.Event {
		return event(t, "workflow_run", `{"repository":{"full_name":"owner/model"},"workflow_run":{"id":9,"head_sha":"h","head_branch":"f","head_repository":{"full_name":"`+repo+`"},"pull_requests":[{"number":4,"head":{"sha":"other"}},{"number":5,"head":{"sha":"h"}}]}}`)
	}
	if ev := run("owner/model"); ev.Number != 5 || ev.RunID != 9 || !ev.PullRequest() {
		t.Errorf("%+v", ev)
	}
	if ev := run("stranger/model"); ev.Number != 0 || !ev.Fork {
		t.Errorf("%+v", ev)
	}
}

// tree makes a working tree whose HEAD is written in one of git's ways.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		p := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestPullRequestTargetRunsTheBaseBranchOnly(t *testing.T) {
	ev := github.Event{Name: "pull_request_target", Number: 7, Fork: true}
	for name, c := range map[string]struct {
		files   map[string]string
		refused bool
	}{
		"the base is checked out, detached":    {map[string]string{".git/HEAD": "base\n"}, false},
		"the base is checked out, on a branch": {map[string]string{".git/HEAD": "ref: refs/heads/main\n", ".git/refs/heads/main": "base\n"}, false},
		"the base is checked out, packed":      {map[string]string{".git/HEAD": "ref: refs/heads/main\n", ".git/packed-refs": "# pack\nbase refs/heads/main\n"}, false},
		"the head is checked out":              {map[string]string{".git/HEAD": "head\n"}, true},
		"a ref that leads elsewhere":           {map[string]string{".git/HEAD": "ref: ../../secret\n"}, true},
		"nothing is known":                     {nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			why, hint := ev.Refusal(tree(t, c.files), "base", "")
			if (why != "") != c.refused {
				t.Errorf("refused: %q, want %v", why, c.refused)
			}
			if c.refused && !strings.Contains(hint, "workflow_run") {
				t.Errorf("the hint %q does not name the safe way", hint)
			}
		})
	}
}

func TestAForkNeedsAFreshApproval(t *testing.T) {
	for name, c := range map[string]struct {
		ev      github.Event
		refused bool
	}{
		"the label was just added":                      {github.Event{Number: 7, Fork: true, Action: "labeled", Label: "gpu-ok"}, false},
		"a push after the label":                        {github.Event{Number: 7, Fork: true, Action: "synchronize"}, true},
		"another label":                                 {github.Event{Number: 7, Fork: true, Action: "labeled", Label: "bug"}, true},
		"a pull request of the repository needs none":   {github.Event{Number: 7, Action: "synchronize"}, false},
		"a push has no pull request and needs none too": {github.Event{Name: "push"}, false},
	} {
		if why, _ := c.ev.Refusal("", "", "gpu-ok"); (why != "") != c.refused {
			t.Errorf("%s: refused: %q, want %v", name, why, c.refused)
		}
		if why, _ := c.ev.Refusal("", "", ""); why != "" {
			t.Errorf("%s: refused without the input: %q", name, why)
		}
	}
}

func TestAnEventThatIsNoneIsToldInWordsOfJSON(t *testing.T) {
	for text, want := range map[string]string{
		`[]`: "it is a JSON array", `{"pull_request":"x"}`: "pull_request is a JSON string", `{"pull_request":{"number":"7"}}`: "pull_request.number is a JSON string", `{"a":`: "it is not JSON",
	} {
		path := filepath.Join(t.TempDir(), "event.json")
		write(t, path, text)
		if _, err := github.ReadEvent(github.Env{EventPath: path}); err == nil || !strings.Contains(err.Error(), path+": "+want) || strings.Contains(err.Error(), "Go ") {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

func TestAnApprovalIsNotSkippedWhereTheEventSaysNothing(t *testing.T) {
	if why, hint := (github.Event{Name: "pull_request"}).Refusal("", "", "gpu-ok"); why == "" || !strings.Contains(hint, "GITHUB_EVENT_PATH") {
		t.Errorf("%q, %q", why, hint)
	}
	if why, _ := (github.Event{Name: "schedule"}).Refusal("", "", "gpu-ok"); why != "" {
		t.Errorf("a schedule was refused: %s", why)
	}
}
