package github

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/trtship/trtship/internal/regular"
)

// Event is what started a workflow, as far as it matters here.
type Event struct {
	Name       string // pull_request, pull_request_target, merge_group, push, schedule, workflow_dispatch, release, workflow_run
	Action     string
	Label      string // the label that the action is about
	Repository string
	Number     int    // pull request; 0: none
	HeadSHA    string // what is judged: the head of a pull request, never its merge commit
	HeadRepo   string // owner/name; empty when the fork is gone
	HeadBranch string
	BaseSHA    string // commit that the change is made against; empty if unknown
	BaseRef    string
	Fork       bool // the code is from another repository, or from one that is gone
	RunEvent   string
	RunID      int64 // workflow_run: the run that ended
}

// payload is the part of event files that is read. Every part may be absent.
type payload struct {
	Action     string `json:"action"`
	Number     int    `json:"number"`
	Before     string `json:"before"`
	After      string `json:"after"`
	Repository repo   `json:"repository"`
	Label      struct {
		Name string `json:"name"`
	} `json:"label"`
	PullRequest *struct {
		Number int `json:"number"`
		Head   struct {
			SHA  string `json:"sha"`
			Ref  string `json:"ref"`
			Repo *repo  `json:"repo"`
		} `json:"head"`
		Base struct {
			SHA string `json:"sha"`
			Ref string `json:"ref"`
		} `json:"base"`
	} `json:"pull_request"`
	MergeGroup *struct {
		HeadSHA string `json:"head_sha"`
		BaseSHA string `json:"base_sha"`
		BaseRef string `json:"base_ref"`
	} `json:"merge_group"`
	WorkflowRun *struct {
		ID             int64  `json:"id"`
		Event          string `json:"event"`
		HeadSHA        string `json:"head_sha"`
		HeadBranch     string `json:"head_branch"`
		HeadRepository *repo  `json:"head_repository"`
		PullRequests   []struct {
			Number int `json:"number"`
			Head   struct {
				SHA string `json:"sha"`
			} `json:"head"`
		} `json:"pull_requests"`
	} `json:"workflow_run"`
}

type repo struct {
	FullName string `json:"full_name"`
}

// maxEvent bounds an event file.
const maxEvent = 32 << 20

// ReadEvent reads the event file of e. No file, and an empty object, are what
// a schedule looks like and no error.
func ReadEvent(e Env) (Event, error) {
	var b []byte
	if e.EventPath != "" {
		info, err := os.Stat(e.EventPath)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return Event{}, fmt.Errorf("read event: %w", err)
		case info.Size() > maxEvent:
			return Event{}, fmt.Errorf("read event: %s has %d bytes", e.EventPath, info.Size())
		default:
			if b, err = regular.ReadFile(e.EventPath); err != nil {
				return Event{}, fmt.Errorf("read event: %w", err)
			}
		}
	}
	return decodeEvent(e, b)
}

// decodeEvent reads the text of an event file; nothing but space is a schedule.
func decodeEvent(e Env, b []byte) (Event, error) {
	var p payload
	if len(bytes.TrimSpace(b)) > 0 {
		if err := json.Unmarshal(b, &p); err != nil {
			if t, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
				return Event{}, fmt.Errorf("read event %s: %s is a JSON %s, which is none of GitHub's events", e.EventPath, cmp.Or(strings.TrimPrefix(t.Field, "."), "it"), t.Value)
			}
			return Event{}, fmt.Errorf("read event %s: it is not JSON: %w", e.EventPath, err)
		}
	}
	return p.event(e), nil
}

func (p payload) event(e Env) Event {
	ev := Event{Name: e.EventName, Action: p.Action, Label: p.Label.Name, Repository: e.Repository, HeadSHA: e.SHA}
	if p.Repository.FullName != "" {
		ev.Repository = p.Repository.FullName
	}
	switch {
	case p.PullRequest != nil:
		pr := p.PullRequest
		ev.Number = pr.Number
		if ev.Number == 0 {
			ev.Number = p.Number
		}
		ev.HeadSHA, ev.HeadBranch, ev.BaseSHA, ev.BaseRef = pr.Head.SHA, pr.Head.Ref, pr.Base.SHA, pr.Base.Ref
		ev.setHead(pr.Head.Repo)
	case p.MergeGroup != nil:
		// The number in the queue's branch name is no promise; nothing is posted.
		ev.HeadSHA, ev.BaseSHA, ev.BaseRef = p.MergeGroup.HeadSHA, p.MergeGroup.BaseSHA, strings.TrimPrefix(p.MergeGroup.BaseRef, "refs/heads/")
	case p.WorkflowRun != nil:
		run := p.WorkflowRun
		ev.HeadSHA, ev.HeadBranch, ev.RunEvent, ev.RunID = run.HeadSHA, run.HeadBranch, run.Event, run.ID
		ev.setHead(run.HeadRepository)
		for _, pr := range run.PullRequests {
			if !ev.Fork && pr.Head.SHA == run.HeadSHA {
				ev.Number = pr.Number
			}
		}
	case p.After != "":
		ev.HeadSHA = p.After
		if strings.Trim(p.Before, "0") != "" {
			ev.BaseSHA = p.Before
		}
	}
	return ev
}

// setHead notes where the code is from. A repository that is gone was a fork.
func (ev *Event) setHead(r *repo) {
	if r != nil {
		ev.HeadRepo = r.FullName
	}
	ev.Fork = ev.HeadRepo == "" || !strings.EqualFold(ev.HeadRepo, ev.Repository)
}

// PullRequest reports whether there is a pull request to write to.
func (ev Event) PullRequest() bool {
	return ev.Number > 0 && (ev.Name == "pull_request" || ev.Name == "pull_request_target" || ev.Name == "workflow_run")
}

// Refusal says why the code of this event must not be run, or "".
//
// pull_request_target gives a write token to a workflow of the base branch; a
// workflow that then checks out the head hands that token to the author of the
// pull request. approval is the label that must just have been added before a
// fork's code runs: every push needs a new one.
func (ev Event) Refusal(workspace, sha, approval string) (why, hint string) {
	if ev.Name == "pull_request_target" {
		head := checkedOut(workspace)
		if head == "" || sha == "" || head != sha {
			return fmt.Sprintf("pull_request_target runs with a write token, and the workspace holds %s, which is not the base branch's commit %s", orUnknown(head), orUnknown(sha)),
				"use `on: pull_request` for the run, and post its report from a second workflow `on: workflow_run` with `trtship comment --from report.json` (examples/workflows/fork-run.yml and fork-comment.yml)"
		}
	}
	if approval != "" && ev.Number == 0 && strings.HasPrefix(ev.Name, "pull_request") {
		return "the event does not say whose code this is, and approval-label is set",
			"the step needs GITHUB_EVENT_PATH as the runner sets it, with the pull request in it"
	}
	if approval == "" || !ev.Fork || ev.Number == 0 {
		return "", ""
	}
	if ev.Action != "labeled" || ev.Label != approval {
		return fmt.Sprintf("pull request %d is from a fork, and its present commit has not been approved with the label %q", ev.Number, approval),
			fmt.Sprintf("read the change, then add the label %q; remove and add it again after every push", approval)
	}
	return "", ""
}

func orUnknown(s string) string {
	if s == "" {
		return "an unknown commit"
	}
	return s
}

// checkedOut returns the commit of a working tree, or "" where it cannot be
// told, without running git: the tree is not trusted.
func checkedOut(workspace string) string {
	dir := filepath.Join(workspace, ".git")
	head, err := regular.ReadFile(filepath.Join(dir, "HEAD"))
	if err != nil {
		return ""
	}
	ref, symbolic := strings.CutPrefix(strings.TrimSpace(string(head)), "ref: ")
	if !symbolic {
		return ref
	}
	if !filepath.IsLocal(ref) {
		return ""
	}
	if b, err := regular.ReadFile(filepath.Join(dir, filepath.FromSlash(ref))); err == nil {
		return strings.TrimSpace(string(b))
	}
	packed, err := regular.ReadFile(filepath.Join(dir, "packed-refs"))
	if err != nil {
		return ""
	}
	for _, line := range strings.Split(string(packed), "\n") {
		if sha, name, ok := strings.Cut(line, " "); ok && name == ref {
			return sha
		}
	}
	return ""
}
