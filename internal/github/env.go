// Package github is the trtship action: its inputs, the event that it runs on,
// what it writes for people (summary, comment, annotations) and for machines
// (outputs, artifacts), and where a baseline comes from. Publishing never
// changes a verdict: what cannot be written is said and the exit code stays.
package github

import (
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
)

// Secret is text that does not print.
type Secret string

func (Secret) String() string { return "***" }

// GoString keeps %#v from printing the secret.
func (Secret) GoString() string { return "***" }

// MarshalText keeps encoders from writing the secret.
func (Secret) MarshalText() ([]byte, error) { return []byte("***"), nil }

// Env is what a runner tells its steps.
type Env struct {
	Actions       bool   // GITHUB_ACTIONS: inside a workflow
	Repository    string // owner/name
	SHA           string // GITHUB_SHA: a merge commit for pull requests
	Ref           string
	EventName     string
	EventPath     string
	Workspace     string
	Workflow      string
	Job           string
	RunID         string
	RunAttempt    string
	ServerURL     string
	APIURL        string
	OutputPath    string
	SummaryPath   string
	RunnerTemp    string
	ResultsURL    string
	RuntimeToken  Secret
	RetentionDays int // 0: not set
	Token         Secret
}

// ReadEnv reads the environment of a step.
func ReadEnv(getenv func(string) string) Env {
	e := Env{
		Actions:      getenv("GITHUB_ACTIONS") == "true",
		Repository:   getenv("GITHUB_REPOSITORY"),
		SHA:          getenv("GITHUB_SHA"),
		Ref:          getenv("GITHUB_REF"),
		EventName:    getenv("GITHUB_EVENT_NAME"),
		EventPath:    getenv("GITHUB_EVENT_PATH"),
		Workspace:    getenv("GITHUB_WORKSPACE"),
		Workflow:     getenv("GITHUB_WORKFLOW"),
		Job:          getenv("GITHUB_JOB"),
		RunID:        getenv("GITHUB_RUN_ID"),
		RunAttempt:   getenv("GITHUB_RUN_ATTEMPT"),
		ServerURL:    getenv("GITHUB_SERVER_URL"),
		APIURL:       getenv("GITHUB_API_URL"),
		OutputPath:   getenv("GITHUB_OUTPUT"),
		SummaryPath:  getenv("GITHUB_STEP_SUMMARY"),
		RunnerTemp:   getenv("RUNNER_TEMP"),
		ResultsURL:   getenv("ACTIONS_RESULTS_URL"),
		RuntimeToken: Secret(getenv("ACTIONS_RUNTIME_TOKEN")),
		Token:        Secret(getenv("INPUT_TOKEN")),
	}
	if e.Token == "" {
		e.Token = Secret(getenv("GITHUB_TOKEN"))
	}
	if e.ServerURL == "" {
		e.ServerURL = "https://github.com"
	}
	if e.APIURL == "" {
		e.APIURL = "https://api.github.com"
	}
	if e.Workspace == "" {
		e.Workspace = "."
	}
	var n int
	if _, err := fmt.Sscanf(getenv("GITHUB_RETENTION_DAYS"), "%d", &n); err == nil && n > 0 {
		e.RetentionDays = n
	}
	return e
}

// RunURL is the page of the workflow run; empty outside of one.
func (e Env) RunURL() string {
	if e.Repository == "" || e.RunID == "" {
		return ""
	}
	return strings.TrimSuffix(e.ServerURL, "/") + "/" + e.Repository + "/actions/runs/" + url.PathEscape(e.RunID)
}

// EnterpriseServer reports whether the server is a GitHub Enterprise Server,
// which has no artifacts of version 4.
func (e Env) EnterpriseServer() bool {
	u, err := url.Parse(e.ServerURL)
	if err != nil {
		return true
	}
	h := strings.ToLower(u.Hostname())
	return h != "github.com" && h != "localhost" && !strings.HasSuffix(h, ".ghe.com") && !strings.HasSuffix(h, ".localhost")
}

// owner and name of the repository.
func (e Env) owner() (owner, name string) {
	owner, name, _ = strings.Cut(e.Repository, "/")
	return owner, name
}

// relative returns path relative to the workspace where it lies in it: paths
// of a container mean nothing to the steps that follow.
func (e Env) relative(path string) string {
	if path == "" {
		return ""
	}
	root, err := filepath.Abs(e.Workspace)
	if err != nil {
		return path
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return path
	}
	rel, err := filepath.Rel(root, abs)
	if err != nil || rel == ".." || strings.HasPrefix(rel, ".."+string(filepath.Separator)) {
		return path
	}
	return filepath.ToSlash(rel)
}
