package github_test

import (
	"archive/zip"
	"bytes"
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/trtship/trtship/internal/github"
	"github.com/trtship/trtship/internal/github/githubtest"
	"github.com/trtship/trtship/report"
	"github.com/trtship/trtship/report/reporttest"
)

// packed is the artifact of a run: a report and the gate's verdict on it.
func packed(t *testing.T, verdict report.Verdict, change func(r *report.Report)) []byte {
	t.Helper()
	r := reporttest.Full()
	r.Run.ID = "base-run"
	if change != nil {
		change(r)
	}
	files := map[string]any{"report.json": r, "gate.json": report.Gate{Format: report.GateFormat, Verdict: verdict}}
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, name := range []string{"report.json", "gate.json"} {
		text, err := report.Encode(files[name])
		if err != nil {
			t.Fatal(err)
		}
		w, err := z.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(text); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

const artifactName = "trtship-digits-gate-report"

// history: m0 <- m1 <- m2 <- m3 on main; m2 merges s1; the head forked at m2.
func history() *githubtest.API {
	return &githubtest.API{
		Parents:    map[string][]string{"m3": {"m2"}, "m2": {"m1", "s1"}, "m1": {"m0"}, "s1": {"m0"}, "m0": nil},
		MergeBases: map[string]string{"m3...head": "m2"},
		Runs:       map[int64]githubtest.Run{1: {ID: 1, Event: "push"}, 2: {ID: 2, Event: "push"}, 3: {ID: 3, Event: "pull_request"}, 4: {ID: 4, Event: "schedule"}},
	}
}

var pullRequest = github.Event{Name: "pull_request", Number: 7, HeadSHA: "head", BaseSHA: "m3", HeadRepo: "owner/model"}

func TestTheBaselineIsTheNearestGoodRunBeforeTheChange(t *testing.T) {
	type want struct{ commit, source, why string }
	for name, c := range map[string]struct {
		ev        github.Event
		artifacts func() []githubtest.Artifact
		want      want
	}{
		"the merge base, not the tip of the base branch": {pullRequest, func() []githubtest.Artifact {
			return []githubtest.Artifact{{ID: 10, HeadSHA: "m3", RunID: 1, Contents: packed(t, report.Pass, nil)}, {ID: 11, HeadSHA: "m2", RunID: 2, Contents: packed(t, report.Pass, nil)}}
		}, want{"m2", "merge base", ""}},
		"a first parent, not a merged branch": {pullRequest, func() []githubtest.Artifact {
			return []githubtest.Artifact{{ID: 10, HeadSHA: "s1", RunID: 1, Contents: packed(t, report.Pass, nil)}, {ID: 11, HeadSHA: "m1", RunID: 2, Contents: packed(t, report.Pass, nil)}}
		}, want{"m1", "parent 1 of the merge base", ""}},
		"not a run that the gate refused: a regression stays one": {pullRequest, func() []githubtest.Artifact {
			return []githubtest.Artifact{{ID: 10, HeadSHA: "m2", RunID: 1, Contents: packed(t, report.Fail, nil)}, {ID: 11, HeadSHA: "m0", RunID: 2, Contents: packed(t, report.Pass, nil)}}
		}, want{"m0", "parent 2 of the merge base", "run 1 on m2 is not used: its gate said fail"}},
		"never a fork's, though its branch has the name": {pullRequest, func() []githubtest.Artifact {
			return []githubtest.Artifact{{ID: 10, HeadSHA: "m2", RunID: 1, Fork: true, Contents: packed(t, report.Pass, nil)}}
		}, want{}},
		"never a pull request's run": {pullRequest, func() []githubtest.Artifact {
			return []githubtest.Artifact{{ID: 10, HeadSHA: "m2", RunID: 3, Contents: packed(t, report.Pass, nil)}}
		}, want{why: "it ran for pull_request"}},
		"not one that has expired": {pullRequest, func() []githubtest.Artifact {
			return []githubtest.Artifact{{ID: 10, HeadSHA: "m2", RunID: 1, Expired: true, Contents: packed(t, report.Pass, nil)}}
		}, want{}},
		"not one of another GPU, which is named": {pullRequest, func() []githubtest.Artifact {
			return []githubtest.Artifact{{ID: 10, HeadSHA: "m2", RunID: 1, Contents: packed(t, report.Pass, func(r *report.Report) { r.Environment.GPUs[0].Name = "NVIDIA A100" })}}
		}, want{why: "GPU: NVIDIA A100 then, NVIDIA H200 now"}},
		"not one of another model": {pullRequest, func() []githubtest.Artifact {
			return []githubtest.Artifact{{ID: 10, HeadSHA: "m2", RunID: 1, Contents: packed(t, report.Pass, func(r *report.Report) { r.Model.Name = "other" })}}
		}, want{why: "it is of model other"}},
		"the newest of several on one commit": {pullRequest, func() []githubtest.Artifact {
			return []githubtest.Artifact{{ID: 10, HeadSHA: "m2", RunID: 1, Contents: packed(t, report.Fail, nil)}, {ID: 12, HeadSHA: "m2", RunID: 4, Contents: packed(t, report.Pass, nil)}}
		}, want{"m2", "merge base", ""}},
		"not what is no zip file": {pullRequest, func() []githubtest.Artifact {
			return []githubtest.Artifact{{ID: 10, HeadSHA: "m2", RunID: 1, Contents: []byte("x")}}
		}, want{why: "no zip file"}},
		"not this run's own": {github.Event{Name: "workflow_dispatch", HeadSHA: "m3"}, func() []githubtest.Artifact {
			return []githubtest.Artifact{{ID: 10, HeadSHA: "m3", RunID: 99, Contents: packed(t, report.Pass, nil)}}
		}, want{}},
		"for a nightly run, an earlier one on the same commit": {github.Event{Name: "schedule", HeadSHA: "m3"}, func() []githubtest.Artifact {
			return []githubtest.Artifact{{ID: 10, HeadSHA: "m3", RunID: 4, Contents: packed(t, report.Pass, nil)}}
		}, want{"m3", "same commit", ""}},
		"for a push, the commit before": {github.Event{Name: "push", HeadSHA: "m3", BaseSHA: "m2"}, func() []githubtest.Artifact {
			return []githubtest.Artifact{{ID: 10, HeadSHA: "m2", RunID: 1, Contents: packed(t, report.Pass, nil)}}
		}, want{"m2", "commit before", ""}},
		"for a merge queue, its base": {github.Event{Name: "merge_group", HeadSHA: "x", BaseSHA: "m2"}, func() []githubtest.Artifact {
			return []githubtest.Artifact{{ID: 10, HeadSHA: "m2", RunID: 1, Contents: packed(t, report.Pass, nil)}}
		}, want{"m2", "merge base", ""}},
		"when the fork is gone, the base": {github.Event{Name: "pull_request", HeadSHA: "gone", BaseSHA: "m3", Fork: true}, func() []githubtest.Artifact {
			return []githubtest.Artifact{{ID: 10, HeadSHA: "m3", RunID: 1, Contents: packed(t, report.Pass, nil)}}
		}, want{"m3", "merge base", ""}},
	} {
		t.Run(name, func(t *testing.T) {
			fake := history()
			for _, x := range c.artifacts() {
				x.Name = artifactName
				fake.Artifacts = append(fake.Artifacts, x)
			}
			api, _ := newAPI(t, fake)
			got, err := api.Baseline(context.Background(), c.ev, artifactName, 30, "99", reporttest.Full())
			if err != nil {
				t.Fatal(err)
			}
			if got.Commit != c.want.commit || got.Source != c.want.source || (got.Report != nil) != (c.want.commit != "") {
				t.Errorf("%q (%s), report %v; want %q (%s); %q", got.Commit, got.Source, got.Report != nil, c.want.commit, c.want.source, got.Why)
			}
			if !strings.Contains(strings.Join(got.Why, "\n"), c.want.why) {
				t.Errorf("said %q, want %q", got.Why, c.want.why)
			}
		})
	}
}

func TestTheSearchForABaselineHasADepth(t *testing.T) {
	fake := history()
	fake.Artifacts = []githubtest.Artifact{{ID: 1, Name: artifactName, HeadSHA: "m0", RunID: 1, Contents: packed(t, report.Pass, nil)}}
	api, _ := newAPI(t, fake)
	if got, err := api.Baseline(context.Background(), pullRequest, artifactName, 1, "99", reporttest.Full()); err != nil || got.Report != nil {
		t.Errorf("%+v, %v; m0 is two parents away", got, err)
	}
}

func TestABaselineThatMayNotBeRead(t *testing.T) {
	for name, path := range map[string]string{"comparing": "/compare/", "listing commits": "/commits", "listing artifacts": "/actions/artifacts", "reading the run": "/actions/runs/1", "downloading": "/zip", "the storage": "/signed/"} {
		t.Run(name, func(t *testing.T) {
			fake := history()
			fake.Artifacts = []githubtest.Artifact{{ID: 1, Name: artifactName, HeadSHA: "m2", RunID: 1, Contents: packed(t, report.Pass, nil)}}
			if path == "/signed/" {
				fake.Artifacts[0].Contents = nil
				fake.Fail = func(w http.ResponseWriter, r *http.Request, _ int) bool {
					if strings.HasSuffix(r.URL.Path, "/zip") {
						http.Redirect(w, r, "/signed/77", http.StatusFound)
						return true
					}
					return false
				}
			} else {
				fake.Fail = func(w http.ResponseWriter, r *http.Request, _ int) bool {
					if strings.Contains(r.URL.Path, path) {
						githubtest.Error(w, http.StatusForbidden, "Resource not accessible by integration")
						return true
					}
					return false
				}
			}
			api, _ := newAPI(t, fake)
			if got, err := api.Baseline(context.Background(), pullRequest, artifactName, 30, "99", reporttest.Full()); err == nil {
				t.Errorf("%+v and no error", got)
			} else if strings.Contains(err.Error(), "sig=") {
				t.Errorf("error %v holds a signature", err)
			}
		})
	}
}
