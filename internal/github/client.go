package github

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	gh "github.com/google/go-github/v62/github"

	"github.com/trtship/trtship/internal/httpbound"
)

// maxPage bounds one reply of the interface: the library reads all of it.
const maxPage = 32 << 20

// maxWait is the longest time that a rate limit is waited for.
const maxWait = 90 * time.Second

// API talks to GitHub's REST interface for one repository.
type API struct {
	client *gh.Client
	plain  *http.Client // without the token, for signed addresses
	owner  string
	name   string
	sleep  func(context.Context, time.Duration) error
	now    func() time.Time
}

// Clock is time as it passes; tests replace it.
type Clock struct {
	Now   func() time.Time
	Sleep func(context.Context, time.Duration) error
}

func (c Clock) filled() Clock {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Sleep == nil {
		c.Sleep = sleep
	}
	return c
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}

// NewAPI returns a client for the repository of e.
func NewAPI(e Env, client *http.Client, clock Clock) (*API, error) {
	if e.Token == "" {
		return nil, errors.New("there is no token: give the action `token: ${{ github.token }}`")
	}
	owner, name := e.owner()
	if owner == "" || name == "" {
		return nil, fmt.Errorf("GITHUB_REPOSITORY is %q, want owner/name", e.Repository)
	}
	base, err := url.Parse(strings.TrimSuffix(e.APIURL, "/") + "/")
	if err != nil {
		return nil, fmt.Errorf("GITHUB_API_URL: %w", err)
	}
	if client == nil {
		client = &http.Client{Timeout: time.Minute}
	}
	bounded := *client
	bounded.Transport, bounded.Timeout = httpbound.Transport(client.Transport, maxPage, silence(client.Timeout)), 0
	c := gh.NewClient(&bounded).WithAuthToken(string(e.Token))
	c.BaseURL = base
	c.UserAgent = "trtship"
	clock = clock.filled()
	return &API{client: c, plain: client, owner: owner, name: name, sleep: clock.Sleep, now: clock.Now}, nil
}

// silence is how long nothing may come of a reply, for a client with a time
// limit of its own: on the whole of a request, the library's wrapped transports
// would leave a goroutine behind for each.
func silence(limit time.Duration) time.Duration {
	if limit > 0 {
		return min(limit, time.Minute)
	}
	return time.Minute
}

// retry calls f until it succeeds, fails for good, or has been tried four
// times. Rate limits are waited for when they are short; requests that are not
// idempotent are repeated only when the server says that it did nothing.
func (a *API) retry(ctx context.Context, idempotent bool, f func() error) error {
	const tries = 4
	for i := 1; ; i++ {
		err := f()
		wait, again := a.wait(err, i, idempotent)
		if !again || i == tries {
			return err
		}
		if wait > maxWait {
			return fmt.Errorf("%w (the limit ends in %s, which is too long to wait)", err, wait.Round(time.Second))
		}
		if serr := a.sleep(ctx, wait); serr != nil {
			return errors.Join(err, serr)
		}
	}
}

// wait says whether an error is worth another try, and after how long.
func (a *API) wait(err error, try int, idempotent bool) (time.Duration, bool) {
	if err == nil {
		return 0, false
	}
	backoff := time.Duration(try*try) * 2 * time.Second
	if e, ok := errors.AsType[*gh.RateLimitError](err); ok {
		return max(time.Second, e.Rate.Reset.Sub(a.now())), true
	}
	if e, ok := errors.AsType[*gh.AbuseRateLimitError](err); ok {
		if e.RetryAfter != nil {
			return max(time.Second, *e.RetryAfter), true
		}
		return time.Minute, true
	}
	if e, ok := errors.AsType[*gh.ErrorResponse](err); ok {
		switch code := e.Response.StatusCode; {
		case code == http.StatusTooManyRequests:
			if n, err := strconv.Atoi(e.Response.Header.Get("Retry-After")); err == nil {
				return time.Duration(n) * time.Second, true
			}
			return time.Minute, true
		case code >= 500:
			return backoff, idempotent
		}
		return 0, false
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return 0, false
	}
	return backoff, idempotent
}

// status returns the HTTP status of an error of the interface, or 0.
func status(err error) int {
	if e, ok := errors.AsType[*gh.ErrorResponse](err); ok {
		return e.Response.StatusCode
	}
	return 0
}

// explain says what an error of the interface means and what would help.
func explain(err error, permission string, fork bool) string {
	switch status(err) {
	case http.StatusForbidden, http.StatusNotFound, http.StatusUnauthorized:
		if fork {
			return "the token of a fork's pull request can only read; the result is in the step summary and in the artifact (a second workflow can post it: examples/workflows/fork-comment.yml)"
		}
		return "the token may not do this; give the job `permissions: " + permission + "` (" + short(err) + ")"
	}
	return short(err)
}

// short is an error without the address of the request, which may hold secrets.
func short(err error) string {
	if e, ok := errors.AsType[*gh.ErrorResponse](err); ok {
		return fmt.Sprintf("HTTP %d: %s", e.Response.StatusCode, clip(plain(e.Message), 300))
	}
	if e, ok := errors.AsType[*url.Error](err); ok {
		return clip(plain(e.Err.Error()), 300)
	}
	return clip(plain(err.Error()), 300)
}
