package github_test

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/github"
	"github.com/trtship/trtship/internal/github/githubtest"
	"github.com/trtship/trtship/report/reporttest"
)

func TestLinesOfAPatch(t *testing.T) {
	for name, c := range map[string]struct {
		patch string
		want  []github.Span
	}{
		"lines added in the middle":          {"@@ -10,3 +10,5 @@ def build():\n a\n+b\n+c\n d\n e", []github.Span{{First: 11, Last: 12}}},
		"a line replaced":                    {"@@ -10,3 +10,3 @@\n a\n-b\n+B\n c", []github.Span{{First: 11, Last: 11}}},
		"lines taken away":                   {"@@ -10,4 +10,2 @@\n a\n-b\n-c\n d", []github.Span{{First: 11, Last: 11}}},
		"taken away at the end of the hunk":  {"@@ -10,3 +10,1 @@\n a\n-b\n-c", []github.Span{{First: 11, Last: 11}}},
		"two hunks":                          {"@@ -1,2 +1,3 @@\n+x\n a\n b\n@@ -40 +41,2 @@\n c\n+d", []github.Span{{First: 1, Last: 1}, {First: 42, Last: 42}}},
		"two places of one hunk":             {"@@ -1,4 +1,6 @@\n+x\n a\n b\n+y\n c", []github.Span{{First: 1, Last: 1}, {First: 4, Last: 4}}},
		"a new file without a final newline": {"@@ -0,0 +1,2 @@\n+a\n+b\n\\ No newline at end of file", []github.Span{{First: 1, Last: 2}}},
		"a file that was emptied":            {"@@ -1,2 +0,0 @@\n-a\n-b", []github.Span{{First: 1, Last: 1}}},
		"an added line that looks like one":  {"@@ -1 +1,2 @@\n a\n+@@ -9 +9 @@", []github.Span{{First: 2, Last: 2}}},
		"no patch":                           {"", nil},
		"what is no patch":                   {"Binary files differ\n+oops", nil},
	} {
		t.Run(name, func(t *testing.T) {
			api := &githubtest.API{Repository: "owner/model", Files: map[int][]githubtest.File{7: {{Name: "model.py", Status: "modified", Patch: c.patch}}}}
			got, err := client(t, api).ChangedLines(context.Background(), 7)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(github.Changes{"model.py": c.want}, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestChangedFilesAreReadOverAllPages(t *testing.T) {
	api := &githubtest.API{Repository: "owner/model", Files: map[int][]githubtest.File{}}
	for i := range 250 {
		api.Files[7] = append(api.Files[7], githubtest.File{Name: fmt.Sprint("f", i), Status: "modified"})
	}
	api.Files[7] = append(api.Files[7], githubtest.File{Name: "gone.py", Status: "removed", Patch: "@@ -1 +0,0 @@\n-a"})
	got, err := client(t, api).ChangedLines(context.Background(), 7)
	if err != nil || len(got) != 250 {
		t.Errorf("%d files, %v", len(got), err)
	}
}

// client talks to a stand-in.
func client(t *testing.T, api *githubtest.API) *github.API {
	t.Helper()
	a, err := github.NewAPI(github.Env{Repository: api.Repository, Token: "tok", APIURL: api.Start(t)}, nil, (&clock{}).Clock())
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

func TestABreachIsShownAtWhatThePullRequestChanged(t *testing.T) {
	const model, yaml = "@@ -30,3 +30,5 @@\n a\n+b\n+c\n d", "@@ -22,3 +22,3 @@\n a\n-    fp16: {atol: 1}\n+    fp16: {atol: 0.001}\n c"
	for name, c := range map[string]struct {
		files  []githubtest.File
		forbid bool
		want   string
	}{
		"the model":                               {files: []githubtest.File{{Name: "README.md", Status: "modified", Patch: model}, {Name: "net/model.py", Status: "modified", Patch: model}}, want: "endLine=32,file=net/model.py,line=31,"},
		"a module that the model imports":         {files: []githubtest.File{{Name: "net/layers.py", Status: "modified", Patch: model}}, want: "endLine=32,file=net/layers.py,line=31,"},
		"the tolerance":                           {files: []githubtest.File{{Name: "trtship.yaml", Status: "modified", Patch: yaml}}, want: "file=trtship.yaml,line=23,"},
		"both: the line that decides":             {files: []githubtest.File{{Name: "trtship.yaml", Status: "modified", Patch: yaml}, {Name: "net/model.py", Status: "modified", Patch: model}}, want: "file=trtship.yaml,line=23,"},
		"both, but another line of the YAML":      {files: []githubtest.File{{Name: "trtship.yaml", Status: "modified", Patch: "@@ -1,2 +1,3 @@\n a\n+b\n c"}, {Name: "net/model.py", Status: "modified", Patch: model}}, want: "endLine=32,file=net/model.py,line=31,"},
		"the weights, of which no lines are told": {files: []githubtest.File{{Name: "weights.pt", Status: "modified"}}, want: "file=weights.pt,line=1,"},
		"neither":                   {files: []githubtest.File{{Name: "README.md", Status: "modified", Patch: model}}, want: "file=trtship.yaml,line=23,"},
		"the token may not list it": {files: []githubtest.File{{Name: "net/model.py", Status: "modified", Patch: model}}, forbid: true, want: "file=trtship.yaml,line=23,"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStep(t, reporttest.Cases()[1].Report)
			run := s.pipeline
			s.pipeline = func(ctx context.Context, r github.Request) (github.Outcome, error) {
				o, err := run(ctx, r)
				for _, f := range []string{"net/model.py", "net/layers.py", "weights.pt"} {
					o.Sources = append(o.Sources, filepath.Join(s.dir, f))
				}
				return o, err
			}
			s.api.Files = map[int][]githubtest.File{7: c.files}
			if c.forbid {
				s.api.Fail = func(w http.ResponseWriter, r *http.Request, _ int) bool {
					if strings.HasSuffix(r.URL.Path, "/files") {
						githubtest.Error(w, http.StatusForbidden, "Resource not accessible by integration")
						return true
					}
					return false
				}
			}
			if code, err := s.run(t); err != nil || code != failure.Tolerance {
				t.Fatalf("code %d, %v", code, err)
			}
			if !strings.Contains(s.out.String(), "::error "+c.want+"title=validate_engine/tolerance fp16 logits max::") {
				t.Errorf("want %s in\n%s", c.want, s.out.String())
			}
		})
	}
}

func TestARepositoryInAFolderOfTheWorkspace(t *testing.T) {
	s := newStep(t, reporttest.Cases()[1].Report)
	run := s.pipeline
	s.pipeline = func(ctx context.Context, r github.Request) (github.Outcome, error) {
		o, err := run(ctx, r)
		o.Sources = []string{filepath.Join(s.dir, "checkout", "net", "model.py")}
		return o, err
	}
	s.api.Files = map[int][]githubtest.File{7: {{Name: "net/model.py", Status: "modified", Patch: "@@ -1 +1,2 @@\n a\n+b"}}}
	if _, err := s.run(t); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(s.out.String(), "::error file=checkout/net/model.py,line=2,title=") {
		t.Errorf("%s", s.out.String())
	}
}

func TestEachMistakeOfAConfigurationIsShownAtItsLine(t *testing.T) {
	s := newStep(t, reporttest.Full())
	s.pipeline = func(context.Context, github.Request) (github.Outcome, error) {
		file := filepath.Join(s.dir, "trtship.yaml")
		return github.Outcome{}, failure.New(failure.Usage, "%s has 2 mistakes", file).
			With(file+":3:7", "model.kidn: unknown key").With(file+":5:9", "target: \"x\" is not one of a, b").WithHint("see")
	}
	if code, err := s.run(t); err == nil || code != failure.Usage {
		t.Fatalf("code %d, %v", code, err)
	}
	for _, want := range []string{"::error file=trtship.yaml,line=3,title=trtship usage::model.kidn: unknown key", "::error file=trtship.yaml,line=5,title=trtship usage::target: "} {
		if !strings.Contains(s.out.String(), want) {
			t.Errorf("want %s in\n%s", want, s.out.String())
		}
	}
	if !strings.Contains(s.summary(t), "has 2 mistakes") || !strings.Contains(s.summary(t), "hint: see") {
		t.Errorf("summary %s", s.summary(t))
	}
}
