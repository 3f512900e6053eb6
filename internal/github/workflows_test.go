package github_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"github.com/trtship/trtship/internal/github"
	"github.com/trtship/trtship/internal/testkit"
)

type workflow struct {
	Permissions *yaml.Node     `yaml:"permissions"`
	On          map[string]any `yaml:"on"`
	Jobs        map[string]struct {
		Permissions map[string]string `yaml:"permissions"`
		Timeout     int               `yaml:"timeout-minutes"`
		Steps       []struct {
			Uses string            `yaml:"uses"`
			With map[string]string `yaml:"with"`
			Run  string            `yaml:"run"`
		} `yaml:"steps"`
	} `yaml:"jobs"`
}

var pinned = regexp.MustCompile(`^[^@]+@[0-9a-f]{40}$`)

// problems says what is wrong with a workflow of ours or of the examples.
func problems(text []byte) []string {
	var w workflow
	if err := yaml.Unmarshal(text, &w); err != nil {
		return []string{err.Error()}
	}
	var bad []string
	if w.Permissions == nil {
		bad = append(bad, "no permissions at the top, so every job gets all of them")
	}
	if _, ok := w.On["pull_request_target"]; ok {
		bad = append(bad, "pull_request_target")
	}
	for name, job := range w.Jobs {
		if job.Timeout == 0 {
			bad = append(bad, "job "+name+" has no timeout")
		}
		for _, s := range job.Steps {
			bad = append(bad, stepProblems(name, s.Uses, s.With, s.Run)...)
		}
	}
	return bad
}

func stepProblems(job, uses string, with map[string]string, run string) []string {
	var bad []string
	own := uses == "./" || strings.HasPrefix(uses, "trtship/trtship@")
	if uses != "" && !own && !pinned.MatchString(uses) {
		bad = append(bad, "job "+job+": "+uses+" is not pinned by SHA")
	}
	if strings.HasPrefix(uses, "actions/checkout@") && with["persist-credentials"] != "false" {
		bad = append(bad, "job "+job+": the checkout leaves its token behind")
	}
	if own {
		for k := range with {
			if !slices.ContainsFunc(github.Inputs, func(in github.Input) bool { return in.Name == k }) {
				bad = append(bad, "job "+job+": there is no input "+k)
			}
		}
	}
	if strings.Contains(run, "${{ github.event") || strings.Contains(run, "${{ github.head_ref") {
		bad = append(bad, "job "+job+": an expression with foreign text in a script")
	}
	return bad
}

func TestWorkflows(t *testing.T) {
	root := testkit.Root(t)
	var files []string
	for _, p := range []string{".github/workflows/*.yml", "examples/workflows/*.yml"} {
		found, err := filepath.Glob(filepath.Join(root, p))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	if len(files) < 10 {
		t.Fatalf("only %d workflows", len(files))
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range problems(b) {
			t.Errorf("%s: %s", f, p)
		}
	}
}

func TestWorkflowProblemsAreFound(t *testing.T) {
	bad := `
on: {pull_request_target: {}}
jobs:
  a:
    steps:
      - uses: actions/checkout@v4
      - uses: ./
        with: {no-such: x}
      - run: echo ${{ github.event.pull_request.title }}
`
	got := strings.Join(problems([]byte(bad)), "\n")
	for _, want := range []string{"permissions", "pull_request_target", "timeout", "not pinned", "leaves its token", "no input no-such", "foreign text"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not found in:\n%s", want, got)
		}
	}
}
