package github

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	gh "github.com/google/go-github/v62/github"
)

// Limits of a comment: GitHub states characters, and bytes have been seen to
// matter, so bytes are kept below the smaller number.
const (
	maxComment = 60000
	minComment = 2000
)

// Marker is the first line of the sticky comment of a key.
func Marker(key string) string { return "<!-- trtship-report:" + CleanKey(key) + " -->" }

// CleanKey makes a key safe in an HTML comment and in an artifact's name.
func CleanKey(key string) string {
	var b strings.Builder
	for _, r := range key {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '.', r == '_', r == '/':
			b.WriteRune(r)
		case b.Len() > 0 && !strings.HasSuffix(b.String(), "-"):
			b.WriteByte('-')
		}
	}
	s := strings.Trim(b.String(), "-")
	if s == "" {
		return "trtship"
	}
	return clip(s, 100)
}

// Comment puts the sticky comment of a key on a pull request: the one that
// begins with the key's marker and was written by author is edited, else a new
// one is made. render gets the most bytes that the text may have.
func (a *API) Comment(ctx context.Context, number int, key, author string, render func(marker string, limit int) string) (address string, err error) {
	id, err := a.findComment(ctx, number, Marker(key), author)
	if err != nil {
		return "", err
	}
	for limit := maxComment; ; limit /= 2 {
		body := render(Marker(key), limit)
		address, err = a.put(ctx, number, id, body)
		if id != 0 && status(err) == http.StatusNotFound {
			// Somebody deleted it in between.
			id = 0
			address, err = a.put(ctx, number, id, body)
		}
		if !tooLong(err) || limit/2 < minComment {
			return address, err
		}
	}
}

func (a *API) findComment(ctx context.Context, number int, marker, author string) (int64, error) {
	opts := &gh.IssueListCommentsOptions{ListOptions: gh.ListOptions{PerPage: 100}}
	for {
		var page []*gh.IssueComment
		var resp *gh.Response
		err := a.retry(ctx, true, func() (err error) {
			page, resp, err = a.client.Issues.ListComments(ctx, a.owner, a.name, number, opts)
			return err
		})
		if err != nil {
			return 0, fmt.Errorf("list comments: %w", err)
		}
		for _, c := range page {
			if first, _, _ := strings.Cut(c.GetBody(), "\n"); strings.TrimSpace(first) == marker && c.GetUser().GetLogin() == author {
				return c.GetID(), nil
			}
		}
		if !turn(&opts.ListOptions, resp) {
			return 0, nil
		}
	}
}

// maxPages is the most pages of 100 that are read of one list.
const maxPages = 100

// turn goes to the next page of a list, if there is one: a reply that always
// names a next page, or names one that was read, is no reason to ask for ever.
func turn(opts *gh.ListOptions, resp *gh.Response) bool {
	if resp.NextPage <= max(opts.Page, 1) || resp.NextPage > maxPages {
		return false
	}
	opts.Page = resp.NextPage
	return true
}

// put edits comment id, or makes one if id is 0.
func (a *API) put(ctx context.Context, number int, id int64, body string) (string, error) {
	var made *gh.IssueComment
	err := a.retry(ctx, id != 0, func() (err error) {
		if id != 0 {
			made, _, err = a.client.Issues.EditComment(ctx, a.owner, a.name, id, &gh.IssueComment{Body: &body})
		} else {
			made, _, err = a.client.Issues.CreateComment(ctx, a.owner, a.name, number, &gh.IssueComment{Body: &body})
		}
		return err
	})
	if err != nil {
		return "", fmt.Errorf("write comment: %w", err)
	}
	return made.GetHTMLURL(), nil
}

func tooLong(err error) bool {
	e, ok := errors.AsType[*gh.ErrorResponse](err)
	if !ok || e.Response.StatusCode != http.StatusUnprocessableEntity {
		return false
	}
	text := e.Message
	for _, x := range e.Errors {
		text += " " + x.Message + " " + x.Code
	}
	return strings.Contains(text, "too long") || strings.Contains(text, "maximum")
}

// FindPullRequest returns the open pull request whose head is the commit of ev
// in the repository of ev, or 0: for a run that ended and was of a fork, the
// event itself names none.
func (a *API) FindPullRequest(ctx context.Context, ev Event) (int, error) {
	if ev.Number != 0 {
		return ev.Number, nil
	}
	if ev.HeadSHA == "" || ev.HeadRepo == "" {
		return 0, nil
	}
	opts := &gh.PullRequestListOptions{State: "open", ListOptions: gh.ListOptions{PerPage: 100}}
	if owner, _, ok := strings.Cut(ev.HeadRepo, "/"); ok && ev.HeadBranch != "" {
		opts.Head = owner + ":" + ev.HeadBranch
	}
	for {
		var page []*gh.PullRequest
		var resp *gh.Response
		err := a.retry(ctx, true, func() (err error) {
			page, resp, err = a.client.PullRequests.List(ctx, a.owner, a.name, opts)
			return err
		})
		if err != nil {
			return 0, fmt.Errorf("list pull requests: %w", err)
		}
		for _, pr := range page {
			if pr.GetHead().GetSHA() == ev.HeadSHA && strings.EqualFold(pr.GetHead().GetRepo().GetFullName(), ev.HeadRepo) {
				return pr.GetNumber(), nil
			}
		}
		if !turn(&opts.ListOptions, resp) {
			return 0, nil
		}
	}
}
