package github

import (
	"archive/zip"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	gh "github.com/google/go-github/v62/github"

	"github.com/trtship/trtship/internal/gate"
	"github.com/trtship/trtship/report"
)

// maxDownload bounds the artifact of a baseline, packed and unpacked.
const maxDownload = 256 << 20

// downloadSlack is by how much a download may exceed the size that was listed.
const downloadSlack = 1 << 20

// Found is a baseline, or the reason why there is none.
type Found struct {
	Report *report.Report // nil: none
	Source string         // "file", "merge base", "parent 2 of the merge base"
	Commit string
	Run    int64    // the workflow run that it is an artifact of
	Dir    string   // the folder of a file
	Why    []string // what was looked at and not taken
}

// listed is an artifact as the interface lists it. The library's type lacks
// the digest and its calls lack the filter by name.
type listed struct {
	ID      int64  `json:"id"`
	Name    string `json:"name"`
	Size    int64  `json:"size_in_bytes"`
	Expired bool   `json:"expired"`
	Digest  string `json:"digest"`
	Run     struct {
		ID       int64  `json:"id"`
		Repo     int64  `json:"repository_id"`
		HeadRepo int64  `json:"head_repository_id"`
		HeadSHA  string `json:"head_sha"`
	} `json:"workflow_run"`
}

// trustedEvents are the events whose runs may serve as a baseline: they ran
// code that is in the repository.
var trustedEvents = []string{"push", "schedule", "workflow_dispatch", "merge_group", "release"}

// Baseline looks for the report to compare head with: an artifact of the given
// name of a run of this repository (never of a fork) on the merge base, else on
// its first parents, nearest first, whose gate let it through. A regression is
// so reported until it is mended, not only against the last push.
func (a *API) Baseline(ctx context.Context, ev Event, name string, depth int, ownRun string, head *report.Report) (Found, error) {
	commits, err := a.candidates(ctx, ev, depth)
	if err != nil {
		return Found{}, err
	}
	arts, err := a.artifacts(ctx, name)
	if err != nil {
		return Found{}, err
	}
	var found Found
	for i, sha := range commits {
		for _, art := range arts[sha] {
			if fmt.Sprint(art.Run.ID) == ownRun {
				continue
			}
			r, why, err := a.usable(ctx, art, head)
			if err != nil {
				return Found{}, err
			}
			if why != "" {
				found.Why = append(found.Why, fmt.Sprintf("run %d on %s is not used: %s", art.Run.ID, clip(sha, 13), why))
				continue
			}
			found.Report, found.Commit, found.Run, found.Source = r, sha, art.Run.ID, place(ev, i)
			return found, nil
		}
	}
	return found, nil
}

func place(ev Event, i int) string {
	start := "merge base"
	if ev.BaseSHA == "" || ev.Name == "push" {
		start = "commit before"
	}
	if ev.Name == "schedule" || ev.Name == "workflow_dispatch" || ev.Name == "release" {
		start = "same commit"
	}
	if i == 0 {
		return start
	}
	return fmt.Sprintf("parent %d of the %s", i, start)
}

// candidates are the commits to look for, nearest first.
func (a *API) candidates(ctx context.Context, ev Event, depth int) ([]string, error) {
	start := ev.BaseSHA
	switch {
	case ev.Name == "pull_request" || ev.Name == "pull_request_target" || ev.Name == "workflow_run" && ev.BaseSHA != "":
		base, err := a.mergeBase(ctx, ev.BaseSHA, ev.HeadSHA)
		if err != nil {
			return nil, err
		}
		start = base
	case start == "":
		start = ev.HeadSHA
	}
	if start == "" {
		return nil, nil
	}
	return a.firstParents(ctx, start, depth)
}

func (a *API) mergeBase(ctx context.Context, base, head string) (string, error) {
	if base == "" || head == "" {
		return base, nil
	}
	var compared *gh.CommitsComparison
	err := a.retry(ctx, true, func() (err error) {
		compared, _, err = a.client.Repositories.CompareCommits(ctx, a.owner, a.name, base, head, &gh.ListOptions{PerPage: 1})
		return err
	})
	if status(err) == http.StatusNotFound {
		return base, nil // the head of a fork that is gone
	}
	if err != nil {
		return "", fmt.Errorf("find merge base: %w", err)
	}
	if sha := compared.GetMergeBaseCommit().GetSHA(); sha != "" {
		return sha, nil
	}
	return base, nil
}

// firstParents walks from a commit along first parents.
func (a *API) firstParents(ctx context.Context, sha string, depth int) ([]string, error) {
	parent := map[string]string{}
	chain := []string{sha}
	for len(chain) <= depth {
		last := chain[len(chain)-1]
		if _, ok := parent[last]; !ok {
			if err := a.loadParents(ctx, last, parent); err != nil {
				return nil, err
			}
		}
		next := parent[last]
		if next == "" {
			break
		}
		chain = append(chain, next)
	}
	return chain, nil
}

// loadParents fills in the first parents of sha and of commits before it.
func (a *API) loadParents(ctx context.Context, sha string, parent map[string]string) error {
	var page []*gh.RepositoryCommit
	err := a.retry(ctx, true, func() (err error) {
		page, _, err = a.client.Repositories.ListCommits(ctx, a.owner, a.name, &gh.CommitsListOptions{SHA: sha, ListOptions: gh.ListOptions{PerPage: 100}})
		return err
	})
	if err != nil {
		return fmt.Errorf("list commits: %w", err)
	}
	parent[sha] = "" // even if the list does not hold it, it is not asked for again
	for _, c := range page {
		if c == nil {
			continue // the list may hold null
		}
		parent[c.GetSHA()] = ""
		if len(c.Parents) > 0 {
			parent[c.GetSHA()] = c.Parents[0].GetSHA()
		}
	}
	return nil
}

// artifacts lists the artifacts of a name by commit, newest first. Those of
// forks and those that have expired are left out.
func (a *API) artifacts(ctx context.Context, name string) (map[string][]listed, error) {
	out := map[string][]listed{}
	for page := 1; page <= 10; page++ {
		var reply struct {
			Artifacts []listed `json:"artifacts"`
		}
		address := fmt.Sprintf("repos/%s/%s/actions/artifacts?name=%s&per_page=100&page=%d", a.owner, a.name, url.QueryEscape(name), page)
		err := a.retry(ctx, true, func() error {
			req, err := a.client.NewRequest(http.MethodGet, address, nil)
			if err != nil {
				return err
			}
			_, err = a.client.Do(ctx, req, &reply)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("list artifacts: %w", err)
		}
		for _, x := range reply.Artifacts {
			if x.Name == name && !x.Expired && x.Run.Repo != 0 && x.Run.Repo == x.Run.HeadRepo {
				out[x.Run.HeadSHA] = append(out[x.Run.HeadSHA], x)
			}
		}
		if len(reply.Artifacts) < 100 {
			break
		}
	}
	for _, list := range out {
		slices.SortFunc(list, func(x, y listed) int { return cmp.Compare(y.ID, x.ID) })
	}
	return out, nil
}

// usable downloads an artifact and says why its report cannot serve, if it cannot.
func (a *API) usable(ctx context.Context, art listed, head *report.Report) (*report.Report, string, error) {
	var run *gh.WorkflowRun
	err := a.retry(ctx, true, func() (err error) {
		run, _, err = a.client.Actions.GetWorkflowRunByID(ctx, a.owner, a.name, art.Run.ID)
		return err
	})
	if err != nil {
		return nil, "", fmt.Errorf("read run %d: %w", art.Run.ID, err)
	}
	if !slices.Contains(trustedEvents, run.GetEvent()) {
		return nil, "it ran for " + run.GetEvent(), nil
	}
	if art.Size > maxDownload {
		return nil, fmt.Sprintf("its artifact has %d bytes", art.Size), nil
	}
	b, err := a.download(ctx, art.ID, min(maxDownload, art.Size+downloadSlack))
	if err != nil {
		return nil, "", err
	}
	r, g, err := readArtifact(b)
	switch {
	case err != nil:
		return nil, err.Error(), nil
	case g.Verdict != report.Pass:
		return nil, fmt.Sprintf("its gate said %s", g.Verdict), nil
	case r.Model.Name != head.Model.Name || r.Run.Config != head.Run.Config:
		return nil, fmt.Sprintf("it is of model %s in %s", r.Model.Name, r.Run.Config), nil
	}
	if diffs := gate.Differences(r, head); len(diffs) > 0 {
		return nil, strings.Join(diffs, "; "), nil
	}
	return r, "", nil
}

// download fetches an artifact into memory.
func (a *API) download(ctx context.Context, id, limit int64) ([]byte, error) {
	var b bytes.Buffer
	err := a.downloadTo(ctx, id, limit, func() (io.Writer, error) {
		b.Reset()
		return &b, nil
	})
	return b.Bytes(), err
}

// downloadTo fetches an artifact. start gives what takes the bytes, empty at every
// attempt. The address that the interface redirects to is signed and gets no token.
func (a *API) downloadTo(ctx context.Context, id, limit int64, start func() (io.Writer, error)) error {
	var target *url.URL
	err := a.retry(ctx, true, func() (err error) {
		target, _, err = a.client.Actions.DownloadArtifact(ctx, a.owner, a.name, id, 3)
		return err
	})
	if err != nil {
		return fmt.Errorf("download artifact %d: %w", id, err)
	}
	err = a.retry(ctx, true, func() error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
		if err != nil {
			return errors.New("the address is malformed")
		}
		resp, err := a.plain.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close() //nolint:errcheck // only read
		if resp.StatusCode != http.StatusOK {
			return &gh.ErrorResponse{Response: resp, Message: "no artifact"}
		}
		to, err := start()
		if err != nil {
			return err
		}
		n, err := io.Copy(to, io.LimitReader(resp.Body, limit+1))
		if err == nil && n > limit {
			err = fmt.Errorf("more than %d bytes", limit)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("download artifact %d: %s", id, short(err))
	}
	return nil
}

// readArtifact reads report.json and gate.json from the zip file of an artifact.
func readArtifact(b []byte) (*report.Report, *report.Gate, error) {
	z, err := zip.NewReader(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		return nil, nil, fmt.Errorf("its artifact is no zip file: %w", err)
	}
	text, err := unpack(z, "report.json")
	if err != nil {
		return nil, nil, err
	}
	r, err := report.Decode(text)
	if err != nil {
		return nil, nil, fmt.Errorf("its report.json: %w", err)
	}
	if text, err = unpack(z, "gate.json"); err != nil {
		return nil, nil, err
	}
	g, err := report.DecodeGate(text)
	if err != nil {
		return nil, nil, fmt.Errorf("its gate.json: %w", err)
	}
	return r, g, nil
}

// unpack returns the one file of a name, however much the zip file claims to hold.
func unpack(z *zip.Reader, name string) ([]byte, error) {
	for _, f := range z.File {
		if f.Name != name {
			continue
		}
		in, err := f.Open()
		if err != nil {
			return nil, err
		}
		defer in.Close() //nolint:errcheck // only read
		b, err := io.ReadAll(io.LimitReader(in, report.MaxBytes+1))
		if err == nil && len(b) > report.MaxBytes {
			err = fmt.Errorf("its %s has more than %d bytes", name, report.MaxBytes)
		}
		return b, err
	}
	return nil, fmt.Errorf("its artifact holds no %s", name)
}
