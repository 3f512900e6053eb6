package github_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/github"
	"github.com/trtship/trtship/internal/github/githubtest"
	"github.com/trtship/trtship/report"
	"github.com/trtship/trtship/report/reporttest"
)

// step is a workflow step with everything around it.
type step struct {
	env      map[string]string
	api      *githubtest.API
	results  *githubtest.Results
	out      bytes.Buffer
	dir      string
	pipeline github.Pipeline
	request  github.Request
	before   *report.Report // what is known of the report before the run; nil looks for no baseline then
	found    *report.Report // that baseline
	fetch    func(github.Base)
}

const pullRequestEvent = `{"action":"synchronize","number":7,"pull_request":{"number":7,"head":{"sha":"head","ref":"f","repo":{"full_name":"%s"}},"base":{"sha":"m3","ref":"main"}},"repository":{"full_name":"owner/model"}}`

func newStep(t *testing.T, r *report.Report) *step {
	t.Helper()
	s := &step{api: history(), results: &githubtest.Results{Run: "r", Job: "j"}, dir: t.TempDir()}
	s.api.Repository, s.api.Token = "owner/model", "tok"
	event := filepath.Join(s.dir, "event.json")
	write(t, event, fmt.Sprintf(pullRequestEvent, "owner/model"))
	write(t, filepath.Join(s.dir, "trtship.yaml"), "model:\n  name: digits\n")
	s.env = map[string]string{
		"GITHUB_ACTIONS": "true", "GITHUB_REPOSITORY": "owner/model", "GITHUB_SHA": "merge", "GITHUB_EVENT_NAME": "pull_request", "GITHUB_EVENT_PATH": event,
		"GITHUB_WORKSPACE": s.dir, "GITHUB_JOB": "gate", "GITHUB_RUN_ID": "99", "GITHUB_SERVER_URL": "https://github.com", "GITHUB_API_URL": s.api.Start(t),
		"GITHUB_OUTPUT": filepath.Join(s.dir, "output"), "GITHUB_STEP_SUMMARY": filepath.Join(s.dir, "summary"), "GITHUB_RETENTION_DAYS": "0",
		"ACTIONS_RESULTS_URL": s.results.Start(t) + "/", "ACTIONS_RUNTIME_TOKEN": s.results.Token(), "INPUT_TOKEN": "tok",
	}
	s.pipeline = func(_ context.Context, req github.Request) (github.Outcome, error) {
		s.request = req
		if s.before != nil {
			base := req.Baseline(context.Background(), s.before)
			if s.found = base.Report; s.fetch != nil {
				s.fetch(base)
			}
		}
		fmt.Fprintln(req.Logs, "::error::printed by the model's code")
		run := filepath.Join(s.dir, ".trtship", "runs", r.Run.ID)
		engine := filepath.Join(s.dir, ".trtship", "store", "engine")
		write(t, filepath.Join(engine, "model.plan"), "plan")
		if err := os.MkdirAll(run, 0o755); err != nil {
			return github.Outcome{}, err
		}
		path := filepath.Join(run, "report.json")
		return github.Outcome{
			Report: path, Dir: run, Repository: engine, Created: []string{filepath.Join(s.dir, ".trtship")},
			Lines:     map[string]int{"model": 1, "validation": 12, "tensorrt": 20},
			Artifacts: []github.Artifact{{Kind: "engine", Label: "fp16", Dir: engine}},
		}, r.Write(path)
	}
	t.Cleanup(func() {
		for _, v := range append(s.api.Snapshot().Violations, s.results.Violations...) {
			t.Errorf("contract: %s", v)
		}
	})
	return s
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func (s *step) run(t *testing.T) (failure.Code, error) {
	t.Helper()
	return github.RunAction(context.Background(), github.Action{Getenv: func(k string) string { return s.env[k] }, Stdout: &s.out, Pipeline: s.pipeline, Clock: (&clock{}).Clock(), Root: s.dir})
}

func (s *step) outputs(t *testing.T) map[string]string {
	t.Helper()
	b, err := os.ReadFile(s.env["GITHUB_OUTPUT"])
	if err != nil {
		t.Fatal(err)
	}
	return parseOutputs(t, string(b))
}

func (s *step) summary(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(s.env["GITHUB_STEP_SUMMARY"])
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestAGoodPullRequest(t *testing.T) {
	s := newStep(t, reporttest.Full())
	s.api.Artifacts = []githubtest.Artifact{{ID: 10, Name: artifactName, HeadSHA: "m2", RunID: 1, Contents: packed(t, report.Pass, nil)}}
	code, err := s.run(t)
	if err != nil || code != 0 {
		t.Fatalf("code %d, %v\n%s", code, err, s.out.String())
	}
	o := s.outputs(t)
	run := ".trtship/runs/2026-03-01_1a2b3c"
	for k, want := range map[string]string{
		"verdict": "pass", "exit-code": "0", "run-id": "2026-03-01_1a2b3c", "report": run + "/report.json", "html": run + "/reports/report.html",
		"junit": run + "/reports/junit.xml", "repository": ".trtship/store/engine", "baseline": "base-run",
	} {
		if o[k] != want {
			t.Errorf("output %s is %q, want %q", k, o[k], want)
		}
	}
	if !strings.Contains(s.summary(t), "digits: every check held") || !strings.Contains(s.summary(t), "`base-run` at `m2` (merge base)") {
		t.Errorf("summary: %s", s.summary(t))
	}
	comments := s.api.Snapshot().Comments[7]
	if len(comments) != 1 || !strings.HasPrefix(comments[0].Body, "<!-- trtship-report:digits/gate -->\n### ✅ digits") || !strings.Contains(comments[0].Body, "`head`") {
		t.Errorf("comments %+v", comments)
	}
	if len(s.results.Stored) != 2 || s.results.Stored["trtship-digits-gate-report"] == nil || s.results.Stored["trtship-digits-gate-engine"] == nil {
		t.Errorf("artifacts %v", s.results.Owner)
	}
	for _, f := range []string{"gate.json", "report.md", "report.html", "junit.xml"} {
		if _, err := os.Stat(filepath.Join(s.dir, run, "reports", f)); err != nil {
			t.Error(err)
		}
	}
	if strings.Contains(s.out.String(), "::error ") {
		t.Errorf("annotations on a good run: %s", s.out.String())
	}
	// The artifact can serve as the next run's baseline.
	g, err := report.ReadGate(filepath.Join(s.dir, run, "reports", "gate.json"))
	if err != nil || g.Verdict != report.Pass {
		t.Errorf("%v, %v", g, err)
	}
}

func TestABadPullRequestIsAnnotatedWhereItIsDecided(t *testing.T) {
	s := newStep(t, reporttest.Cases()[1].Report)
	code, err := s.run(t)
	if err != nil || code != failure.Tolerance {
		t.Fatalf("code %d, %v", code, err)
	}
	if !strings.Contains(s.out.String(), "::error file=trtship.yaml,line=23,title=validate_engine/tolerance fp16 logits max::") {
		t.Errorf("%s", s.out.String())
	}
	if s.outputs(t)["verdict"] != "fail" || !strings.Contains(s.summary(t), "exit 6") {
		t.Error("the failure is not said")
	}
}

func TestAnnotationsFallBackToTheSectionOfTheStage(t *testing.T) {
	v := report.View{Report: reporttest.Full(), Gate: &report.Gate{Reasons: []report.Reason{
		{Check: "build/operators", Verdict: report.Missing, Text: "a"}, {Check: "served/x", Verdict: report.Broken, Text: "b", Hint: "do"}, {Check: "gate/vanished", Verdict: report.Fail, Text: "c"},
	}}}
	got := github.Annotations(v, github.Places{Config: "c.yaml", Lines: map[string]int{"model": 2, "tensorrt": 20}})
	want := []string{"served/x 2", "gate/vanished 2", "build/operators 20"}
	for i, w := range want {
		if g := fmt.Sprint(got[i].Title, " ", got[i].Line); g != w {
			t.Errorf("%d: %q, want %q (the worst first)", i, g, w)
		}
	}
}

func TestPublishingNeverChangesTheVerdict(t *testing.T) {
	for name, change := range map[string]func(s *step){
		"a fork's token": func(s *step) {
			s.api.ReadOnly = true
		},
		"no permission to look for the baseline": func(s *step) {
			s.api.Fail = func(w http.ResponseWriter, r *http.Request, _ int) bool {
				if r.Method == http.MethodGet && !strings.Contains(r.URL.Path, "comments") {
					githubtest.Error(w, 403, "Resource not accessible by integration")
					return true
				}
				return false
			}
		},
		"nothing answers": func(s *step) {
			s.api.Fail = func(w http.ResponseWriter, _ *http.Request, _ int) bool {
				githubtest.Error(w, 503, "down")
				return true
			}
			s.results.Fail = func(w http.ResponseWriter, _ string, _ int) bool { githubtest.Twirp(w, 503, "down"); return true }
		},
		"a full artifact storage": func(s *step) {
			s.results.Fail = func(w http.ResponseWriter, _ string, _ int) bool {
				githubtest.Twirp(w, 403, "insufficient usage to create artifact")
				return true
			}
		},
		"no token":             func(s *step) { delete(s.env, "INPUT_TOKEN") },
		"no artifact service":  func(s *step) { delete(s.env, "ACTIONS_RUNTIME_TOKEN") },
		"an enterprise server": func(s *step) { s.env["GITHUB_SERVER_URL"] = "https://git.example.com" },
		"no summary file":      func(s *step) { s.env["GITHUB_STEP_SUMMARY"] = s.dir },
		"no output file":       func(s *step) { s.env["GITHUB_OUTPUT"] = s.dir },
		"no limit on requests": func(s *step) {
			s.api.Fail = func(w http.ResponseWriter, r *http.Request, _ int) bool {
				githubtest.SecondaryLimited(w, 3600e9)
				return true
			}
		},
	} {
		for _, c := range []reporttest.Case{reporttest.Cases()[0], reporttest.Cases()[1]} {
			t.Run(name+", "+c.Name, func(t *testing.T) {
				s := newStep(t, c.Report)
				change(s)
				code, err := s.run(t)
				if err != nil || int(code) != c.ExitCode {
					t.Errorf("code %d, %v; want %d\n%s", code, err, c.ExitCode, s.out.String())
				}
				if !strings.Contains(s.out.String(), "::notice::") && !strings.Contains(s.out.String(), "::warning::") {
					t.Errorf("nothing is said: %s", s.out.String())
				}
				for _, secret := range []string{"tok", s.results.Token()} {
					if strings.Contains(strings.ReplaceAll(s.out.String(), "token", ""), secret) {
						t.Errorf("the log holds a secret: %s", s.out.String())
					}
				}
			})
		}
	}
}

func TestAForkIsToldWhyThereIsNoComment(t *testing.T) {
	s := newStep(t, reporttest.Full())
	write(t, s.env["GITHUB_EVENT_PATH"], fmt.Sprintf(pullRequestEvent, "stranger/model"))
	s.api.ReadOnly = true
	if code, err := s.run(t); err != nil || code != 0 {
		t.Fatalf("code %d, %v", code, err)
	}
	if !strings.Contains(s.out.String(), "::notice::no comment was posted: the token of a fork's pull request can only read") {
		t.Errorf("%s", s.out.String())
	}
	if !strings.Contains(s.summary(t), "stranger/model") {
		t.Error("the summary does not say that the code is a fork's")
	}
}

func TestEventsWithoutAPullRequestPostNothing(t *testing.T) {
	for name, ev := range map[string]string{"push": `{"before":"m2","after":"m3"}`, "schedule": `{}`, "merge_group": `{"merge_group":{"head_sha":"q","base_sha":"m2","head_ref":"refs/heads/gh-readonly-queue/main/pr-7-b"}}`, "release": `{"action":"published"}`, "workflow_dispatch": `{}`} {
		t.Run(name, func(t *testing.T) {
			s := newStep(t, reporttest.Full())
			s.env["GITHUB_EVENT_NAME"] = name
			write(t, s.env["GITHUB_EVENT_PATH"], ev)
			s.env["GITHUB_SHA"] = "m3"
			if code, err := s.run(t); err != nil || code != 0 {
				t.Fatalf("code %d, %v", code, err)
			}
			if n := len(s.api.Snapshot().Comments); n != 0 {
				t.Errorf("%d comments", n)
			}
			if s.outputs(t)["comment-url"] != "" {
				t.Error("an address of no comment")
			}
		})
	}
}

func TestTheInputsReachThePipelineAndTheGate(t *testing.T) {
	s := newStep(t, reporttest.Full())
	for k, v := range map[string]string{"CONFIG": "trtship.yaml", "UNTIL": "optimize", "SET": "a.b=c", "HARDWARE": "optional", "PYTHON": "/py", "COMMENT": "false", "UPLOAD": "none", "BASELINE": "none", "JUNIT": "results/*.xml", "KEY": "my key"} {
		s.env["INPUT_"+k] = v
	}
	code, err := s.run(t)
	if err != nil || code != failure.Incomplete {
		t.Fatalf("code %d, %v: the JUnit pattern matches nothing, want 13", code, err)
	}
	if s.request.Until != "optimize" || s.request.Python != "/py" || strings.Join(s.request.Set, " ") != "a.b=c gate.hardware=optional" || s.request.Config != filepath.Join(s.dir, "trtship.yaml") {
		t.Errorf("request %+v", s.request)
	}
	// The lines that the pull request changes are asked for, to annotate them.
	if seen := s.api.Snapshot().Seen; len(seen) != 1 || !strings.HasPrefix(seen[0].Path, "/repos/owner/model/pulls/7/files") || len(s.results.Stored) != 0 {
		t.Errorf("requests %v, artifacts %d; want none for baseline, comment and artifacts", seen, len(s.results.Stored))
	}
}

func TestABaselineThatIsNamed(t *testing.T) {
	s := newStep(t, reporttest.Cases()[2].Report) // a regression
	if err := reporttest.Full().Write(filepath.Join(s.dir, "base.json")); err != nil {
		t.Fatal(err)
	}
	s.env["INPUT_BASELINE"] = "base.json"
	if code, err := s.run(t); err != nil || code != failure.Regression {
		t.Errorf("code %d, %v; want 12", code, err)
	}
	s = newStep(t, reporttest.Full())
	s.env["INPUT_BASELINE"] = "none.json"
	if code, err := s.run(t); err != nil || code != failure.Incomplete {
		t.Errorf("code %d, %v; want 13 for a named baseline that is not there", code, err)
	}
}

func TestTheBaselineIsLookedForOnceAndBeforeTheRun(t *testing.T) {
	looked := func(before *report.Report) (*step, int) {
		s := newStep(t, reporttest.Full())
		s.before = before
		s.api.Artifacts = []githubtest.Artifact{{ID: 10, Name: artifactName, HeadSHA: "m2", RunID: 1, Contents: packed(t, report.Pass, nil)}}
		if code, err := s.run(t); err != nil || code != 0 {
			t.Fatalf("code %d, %v\n%s", code, err, s.out.String())
		}
		if o := s.outputs(t); o["baseline"] != "base-run" {
			t.Errorf("the gate's baseline is %q", o["baseline"])
		}
		return s, len(s.api.Snapshot().Seen)
	}
	_, after := looked(nil)
	full := reporttest.Full()
	known := &report.Report{Run: report.Run{Config: full.Run.Config}, Model: report.Model{Name: full.Model.Name}, Environment: full.Environment}
	s, before := looked(known)
	if s.found == nil || s.found.Run.ID != "base-run" {
		t.Errorf("before the run the baseline is %+v", s.found)
	}
	if before != after {
		t.Errorf("%d requests, and %d where the baseline is looked for after the run", before, after)
	}
}

func TestARunThatComesToNoReport(t *testing.T) {
	for name, c := range map[string]struct {
		change func(s *step)
		want   failure.Code
		says   string
	}{
		"a wrong configuration": {func(s *step) {
			s.pipeline = func(context.Context, github.Request) (github.Outcome, error) {
				return github.Outcome{}, failure.New(failure.Usage, "two mistakes").At(filepath.Join(s.dir, "trtship.yaml")+":4:2").WithHint("mend them").With("line 4", "x")
			}
		}, failure.Usage, "::error file=trtship.yaml,line=4,title=trtship usage::two mistakes%0Ahint: mend them%0Aline 4: x"},
		"nothing at all": {func(s *step) {
			s.pipeline = func(context.Context, github.Request) (github.Outcome, error) { return github.Outcome{}, nil }
		}, failure.Bug, "no report and no reason"},
		"a damaged report": {func(s *step) {
			s.pipeline = func(context.Context, github.Request) (github.Outcome, error) {
				p := filepath.Join(s.dir, "report.json")
				return github.Outcome{Report: p}, os.WriteFile(p, []byte("{"), 0o644)
			}
		}, failure.Artifact, "not JSON"},
		"wrong inputs":     {func(s *step) { s.env["INPUT_COMMENT"] = "yes" }, failure.Usage, "input comment"},
		"a damaged event":  {func(s *step) { _ = os.WriteFile(s.env["GITHUB_EVENT_PATH"], []byte("{"), 0o644) }, failure.Usage, "read event"},
		"a misused target": {func(s *step) { s.env["GITHUB_EVENT_NAME"] = "pull_request_target" }, failure.Usage, "workflow_run"},
		"an unknown error": {func(s *step) {
			s.pipeline = func(context.Context, github.Request) (github.Outcome, error) {
				return github.Outcome{}, errors.New("boom")
			}
		}, failure.Bug, "boom"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStep(t, reporttest.Full())
			c.change(s)
			code, err := s.run(t)
			if err == nil || code != c.want {
				t.Errorf("code %d, %v; want %d", code, err, c.want)
			}
			if !strings.Contains(s.out.String(), c.says) {
				t.Errorf("log %q does not say %q", s.out.String(), c.says)
			}
			if o := s.outputs(t); o["exit-code"] != fmt.Sprint(int(c.want)) || o["verdict"] != "broken" {
				t.Errorf("outputs %v", o)
			}
			if !strings.Contains(s.summary(t), "no result") {
				t.Error("the summary does not say that there is no result")
			}
		})
	}
}

func TestAnInterruptPublishesNothing(t *testing.T) {
	s := newStep(t, reporttest.Full())
	ctx, cancel := context.WithCancel(context.Background())
	inner := s.pipeline
	s.pipeline = func(c context.Context, r github.Request) (github.Outcome, error) {
		o, err := inner(c, r)
		cancel()
		return o, err
	}
	code, err := github.RunAction(ctx, github.Action{Getenv: func(k string) string { return s.env[k] }, Stdout: io.Discard, Pipeline: s.pipeline, Root: s.dir})
	if err == nil || code != failure.Terminated {
		t.Errorf("code %d, %v", code, err)
	}
	if len(s.api.Snapshot().Seen) != 0 {
		t.Error("something was published after the interrupt")
	}
}

func TestAGPUThatIsNotSeenIsExplained(t *testing.T) {
	c := reporttest.Cases()[4] // missing hardware
	for name, x := range map[string]struct {
		files []string
		says  string
	}{
		"on a machine":             {nil, "runs-on: [self-hosted, gpu]"},
		"in a container":           {[]string{".dockerenv"}, "set-as-default"},
		"in a container of podman": {[]string{"run/.containerenv"}, "--gpus all"},
		"with a driver":            {[]string{"dev/nvidiactl"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStep(t, c.Report)
			for _, f := range x.files {
				write(t, filepath.Join(s.dir, f), "")
			}
			if code, err := s.run(t); err != nil || code != failure.Incomplete {
				t.Fatalf("code %d, %v", code, err)
			}
			text := strings.NewReplacer(`\`, "", "\u200b", "").Replace(s.summary(t))
			if got := strings.Contains(text, "No GPU was seen here"); got != (x.says != "") || !strings.Contains(text, x.says) {
				t.Errorf("the summary does not say %q", x.says)
			}
		})
	}
}

func TestFilesAreHandedBack(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("this test hands files to another user and must run as root, as the container action does")
	}
	s := newStep(t, reporttest.Full())
	if err := os.Chown(s.dir, 1234, 2345); err != nil {
		t.Fatal(err)
	}
	foreign := filepath.Join(s.dir, ".trtship", "theirs")
	write(t, foreign, "")
	if err := os.Chown(foreign, 77, 77); err != nil {
		t.Fatal(err)
	}
	untouched := filepath.Join(s.dir, "event.json")
	secret := filepath.Join(t.TempDir(), "outside")
	write(t, secret, "")
	if err := os.Symlink(secret, filepath.Join(s.dir, ".trtship", "link")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.run(t); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		filepath.Join(s.dir, ".trtship"): "1234:2345", filepath.Join(s.dir, ".trtship/runs/2026-03-01_1a2b3c/reports/gate.json"): "1234:2345",
		filepath.Join(s.dir, ".trtship", "link"): "1234:2345", foreign: "77:77", untouched: "0:0", secret: "0:0",
	} {
		if got := owner(t, path); got != want {
			t.Errorf("%s belongs to %s, want %s", path, got, want)
		}
	}
	// After a failure and an interrupt as well.
	s = newStep(t, reporttest.Full())
	if err := os.Chown(s.dir, 1234, 2345); err != nil {
		t.Fatal(err)
	}
	inner := s.pipeline
	s.pipeline = func(c context.Context, r github.Request) (github.Outcome, error) {
		o, _ := inner(c, r)
		o.Report = ""
		return o, context.Canceled
	}
	if _, err := s.run(t); err == nil {
		t.Fatal("no error")
	}
	if got := owner(t, filepath.Join(s.dir, ".trtship", "store", "engine", "model.plan")); got != "1234:2345" {
		t.Errorf("after a failure: %s", got)
	}
}

func TestFilesOfTheRunnerThatWouldBeWaitedFor(t *testing.T) {
	s := newStep(t, reporttest.Full())
	for _, name := range []string{"GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY"} {
		if err := syscall.Mkfifo(s.env[name], 0o600); err != nil {
			t.Fatal(err)
		}
	}
	code, err := s.run(t)
	if err != nil || code != 0 || strings.Count(s.out.String(), "::warning::") != 2 {
		t.Errorf("code %d, %v, %s", code, err, s.out.String())
	}
}
