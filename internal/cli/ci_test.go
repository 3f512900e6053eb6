package cli

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/trtship/trtship/internal/github/githubtest"
	"github.com/trtship/trtship/internal/testkit"
	"github.com/trtship/trtship/report"
	"github.com/trtship/trtship/report/reporttest"
)

// invoke runs the program in this process.
func invoke(t *testing.T, env map[string]string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = Main(t.Context(), args, IO{
		Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs,
		Getenv: func(k string) string { return env[k] }, Environ: func() []string { return nil },
	})
	return code, out.String(), errs.String()
}

func put(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// workflowRun is the environment of a workflow that posts the report of a
// fork's run.
func workflowRun(t *testing.T, api *githubtest.API) map[string]string {
	t.Helper()
	api.Repository, api.Token = "owner/model", "tok"
	api.Pulls = []githubtest.Pull{{Number: 12, HeadSHA: "cafe", HeadRef: "f", HeadRepo: "stranger/model"}}
	event := put(t, filepath.Join(t.TempDir(), "event.json"), `{"repository":{"full_name":"owner/model"},"workflow_run":{"id":5,"event":"pull_request","head_sha":"cafe","head_branch":"f","head_repository":{"full_name":"stranger/model"},"pull_requests":[]}}`)
	return map[string]string{"GITHUB_API_URL": api.Start(t), "GITHUB_REPOSITORY": "owner/model", "GITHUB_TOKEN": "tok", "GITHUB_EVENT_NAME": "workflow_run", "GITHUB_EVENT_PATH": event, "GITHUB_RUN_ID": "8"}
}

func TestCommentPostsAForksReport(t *testing.T) {
	path := filepath.Join(t.TempDir(), "report.json")
	if err := reporttest.Cases()[1].Report.Write(path); err != nil { // it does not hold, and is posted all the same
		t.Fatal(err)
	}
	api := &githubtest.API{}
	env := workflowRun(t, api)
	code, stdout, stderr := invoke(t, env, "comment", "--from", path)
	if code != 0 || !strings.Contains(stdout, "#issuecomment-") {
		t.Fatalf("exit %d, %q, %q", code, stdout, stderr)
	}
	s := api.Snapshot()
	if len(s.Comments[12]) != 1 || !strings.HasPrefix(s.Comments[12][0].Body, "<!-- trtship-report:digits -->\n### ❌") || len(s.Violations) > 0 {
		t.Errorf("%+v", s)
	}
	api.ReadOnly = true
	if code, _, stderr := invoke(t, env, "comment", "--from", path); code != 3 || !strings.Contains(stderr, "pull-requests: write") {
		t.Errorf("exit %d, %q; want 3 and the permission that is missing", code, stderr)
	}
	env["GITHUB_EVENT_PATH"] = put(t, filepath.Join(t.TempDir(), "e"), `{}`)
	if code, _, stderr := invoke(t, env, "comment", "--from", path); code != 3 || !strings.Contains(stderr, "no open pull request") {
		t.Errorf("exit %d, %q", code, stderr)
	}
	env["GITHUB_EVENT_PATH"] = put(t, filepath.Join(t.TempDir(), "e"), `{`)
	if code, _, _ := invoke(t, env, "comment", "--from", path); code != 2 {
		t.Errorf("exit %d for a damaged event, want 2", code)
	}
	if code, _, _ := invoke(t, env, "comment", "--from", "none.json"); code != 11 {
		t.Errorf("exit %d for a report that is not there, want 11", code)
	}
	if code, _, _ := invoke(t, env, "comment"); code != 2 {
		t.Errorf("exit %d without --from, want 2", code)
	}
}

func TestCommentPrints(t *testing.T) {
	dir := t.TempDir()
	for i, name := range []string{"head.json", "base.json"} {
		c := reporttest.Cases()[2]
		if err := []*report.Report{c.Report, c.Baseline}[i].Write(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	code, stdout, stderr := invoke(t, nil, "comment", "--from", filepath.Join(dir, "head.json"), "--baseline", filepath.Join(dir, "base.json"), "--key", "k", "--print")
	if code != 0 || !strings.HasPrefix(stdout, "<!-- trtship-report:k -->\n") || !strings.Contains(stdout, "❌ regressed") {
		t.Errorf("exit %d, %q, %q", code, stdout, stderr)
	}
}

func TestActionPrintsItsTables(t *testing.T) {
	want, err := os.ReadFile(filepath.Join(testkit.Root(t), "action.yml"))
	if err != nil {
		t.Fatal(err)
	}
	if code, stdout, _ := invoke(t, nil, "action", "--print", "action.yml"); code != 0 || stdout != string(want) {
		t.Errorf("exit %d; what it prints is not action.yml", code)
	}
	if code, stdout, _ := invoke(t, nil, "action", "--print", "markdown"); code != 0 || !strings.Contains(stdout, "| `config` |") {
		t.Errorf("exit %d, %q", code, stdout)
	}
	if code, _, _ := invoke(t, nil, "action", "--print", "x"); code != 2 {
		t.Errorf("exit %d, want 2", code)
	}
}

// pullRequestStep is the environment of a step of pull request 3 in a new
// workspace, the working directory, that holds an example.
func pullRequestStep(t *testing.T, example string) (dir string, env map[string]string, api *githubtest.API, results *githubtest.Results) {
	t.Helper()
	dir = t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, example), os.DirFS(filepath.Join(testkit.Root(t), "examples", example))); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	api = &githubtest.API{Repository: "owner/model", Token: "tok", Parents: map[string][]string{"b": nil}, MergeBases: map[string]string{"b...h": "b"}}
	results = &githubtest.Results{Run: "r", Job: "j"}
	env = map[string]string{
		"GITHUB_ACTIONS": "true", "CI": "true", "GITHUB_WORKSPACE": dir, "GITHUB_JOB": "gate", "GITHUB_REPOSITORY": "owner/model", "GITHUB_API_URL": api.Start(t), "GITHUB_RUN_ID": "9",
		"GITHUB_EVENT_NAME": "pull_request", "GITHUB_SHA": "merge", "GITHUB_OUTPUT": filepath.Join(dir, "output"), "GITHUB_STEP_SUMMARY": filepath.Join(dir, "summary"),
		"ACTIONS_RESULTS_URL": results.Start(t), "ACTIONS_RUNTIME_TOKEN": results.Token(), "INPUT_TOKEN": "tok", "INPUT_CONFIG": example + "/trtship.yaml", "HOME": os.Getenv("HOME"), "XDG_CACHE_HOME": os.Getenv("XDG_CACHE_HOME"), "PATH": os.Getenv("PATH"),
		"TRTSHIP_PYTHON": os.Getenv("TRTSHIP_PYTHON"), "TRTSHIP_ORT_LIB": os.Getenv("TRTSHIP_ORT_LIB"),
		"GITHUB_EVENT_PATH": put(t, filepath.Join(dir, "event.json"), `{"action":"opened","repository":{"full_name":"owner/model"},"pull_request":{"number":3,"head":{"sha":"h","repo":{"full_name":"owner/model"}},"base":{"sha":"b","ref":"main"}}}`),
	}
	return dir, env, api, results
}

func TestABreachOfTheModelIsShownAtItsChangedLines(t *testing.T) {
	dir, env, api, _ := pullRequestStep(t, "digits")
	put(t, filepath.Join(dir, "digits", "layers.py"), "WIDTH = 1\n")
	model, err := os.ReadFile(filepath.Join(dir, "digits", "model.py"))
	if err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(dir, "digits", "model.py"), "import layers\n"+string(model))
	env["INPUT_UNTIL"], env["INPUT_UPLOAD"], env["INPUT_HARDWARE"] = "validate", "none", "optional"
	env["INPUT_SET"] = "validation.tolerances.onnx.atol=0\nvalidation.tolerances.onnx.rtol=0"
	for _, c := range []struct{ file, want string }{
		{"digits/model.py", "::error endLine=4,file=digits/model.py,line=3,title=validate/within-tolerance"},
		{"digits/layers.py", "::error endLine=4,file=digits/layers.py,line=3,title=validate/within-tolerance"}, // only the run knows that it is imported
		{"digits/train.py", "::error file=digits/trtship.yaml,line="},                                          // it lies beside the model, and is none of it
	} {
		api.Files = map[int][]githubtest.File{3: {{Name: c.file, Status: "modified", Patch: "@@ -2,2 +2,4 @@\n a\n+b\n+c\n d"}}}
		code, stdout, stderr := invoke(t, env, "action")
		if code != 6 || !strings.Contains(stdout, c.want) {
			t.Errorf("%s changed: exit %d, want 6 and %s in\n%s\n%s", c.file, code, c.want, stdout, stderr)
		}
	}
	code, _, stderr := invoke(t, env, "action", "--json")
	var e jsonError
	if err := json.Unmarshal([]byte(stderr[strings.LastIndexByte(strings.TrimSuffix(stderr, "\n"), '\n')+1:]), &e); err != nil || e.Code != code || code != 6 {
		t.Errorf("exit %d, %v in %q", code, err, stderr)
	}
}

func TestActionRunsThePipeline(t *testing.T) {
	dir, env, api, results := pullRequestStep(t, "onnx")
	env["INPUT_UNTIL"], env["INPUT_UPLOAD"] = "package", "report\nrepository\nonnx"
	code, stdout, stderr := invoke(t, env, "action")
	if code != 0 {
		t.Fatalf("exit %d\n%s\n%s", code, stdout, stderr)
	}
	for _, l := range strings.Split(strings.TrimSpace(stdout), "\n") {
		if strings.HasPrefix(l, "::error") || strings.HasPrefix(l, "::warning") {
			t.Errorf("on a good run: %s", l)
		}
	}
	for _, name := range []string{"trtship-classifier-gate-report", "trtship-classifier-gate-repository", "trtship-classifier-gate-onnx"} {
		if results.Stored[name] == nil {
			t.Errorf("no artifact %s", name)
		}
	}
	summary, err := os.ReadFile(filepath.Join(dir, "summary"))
	if err != nil || !strings.Contains(string(summary), "classifier: every check held") {
		t.Errorf("summary %v: %s", err, summary)
	}
	if c := api.Snapshot().Comments[3]; len(c) != 1 || len(api.Snapshot().Violations)+len(results.Violations) > 0 {
		t.Errorf("%d comments, %v, %v", len(c), api.Snapshot().Violations, results.Violations)
	}
	output, err := os.ReadFile(filepath.Join(dir, "output"))
	if err != nil || !strings.Contains(string(output), "\n.trtship/store/repository/") && !strings.Contains(string(output), "\n.trtship/") {
		t.Errorf("outputs %v: %s", err, output)
	}
	put(t, filepath.Join(dir, "onnx", "bad.yaml"), "model:\n  name: x\n  kidn: onnx\ntarget: tensorrtx\n")
	env["INPUT_CONFIG"] = "onnx/bad.yaml"
	if code, stdout, _ := invoke(t, env, "action"); code != 2 || !strings.Contains(stdout, "::error file=onnx/bad.yaml,line=3,title=trtship usage::model.kidn") || !strings.Contains(stdout, "::error file=onnx/bad.yaml,line=4,title=trtship usage::target") {
		t.Errorf("exit %d, %s for a configuration with two mistakes", code, stdout)
	}
	env["INPUT_CONFIG"] = "onnx/none.yaml"
	if code, stdout, _ := invoke(t, env, "action"); code != 2 && code != 11 || !strings.Contains(stdout, "::error") {
		t.Errorf("exit %d, %q for a configuration that is not there", code, stdout)
	}
}
