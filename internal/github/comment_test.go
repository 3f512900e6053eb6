package github_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/trtship/trtship/internal/github"
	"github.com/trtship/trtship/internal/github/githubtest"
	"github.com/trtship/trtship/internal/testkit"
)

// clock remembers how long it should have waited, and waits only if it is real.
type clock struct {
	waited []time.Duration
	real   bool
}

func (c *clock) Clock() github.Clock {
	return github.Clock{Now: func() time.Time { return time.Unix(1_700_000_000, 0) }, Sleep: func(_ context.Context, d time.Duration) error {
		c.waited = append(c.waited, d)
		if c.real {
			time.Sleep(d)
		}
		return nil
	}}
}

func newAPI(t *testing.T, fake *githubtest.API) (*github.API, *clock) {
	t.Helper()
	if fake.Repository == "" {
		fake.Repository = "owner/model"
	}
	fake.Token = "secret-token"
	c := &clock{}
	api, err := github.NewAPI(github.Env{APIURL: fake.Start(t), Repository: fake.Repository, Token: "secret-token"}, nil, c.Clock())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, v := range fake.Snapshot().Violations {
			t.Errorf("contract: %s", v)
		}
	})
	return api, c
}

func text(s string) func(string, int) string {
	return func(marker string, _ int) string { return marker + "\n" + s }
}

const bot = "github-actions[bot]"

func TestTheStickyCommentOfTheField(t *testing.T) {
	testkit.HoldsCase(t, "g02-comment")
	b, err := os.ReadFile("../../testdata/cases/g02-comment/pages.json")
	if err != nil {
		t.Fatal(err)
	}
	var pages struct {
		Page1, Page2 []struct {
			ID   int64
			User struct{ Login string }
			Body string
		}
	}
	if err := json.Unmarshal(b, &pages); err != nil {
		t.Fatal(err)
	}
	fake := &githubtest.API{Comments: map[int][]githubtest.Comment{}}
	// Enough comments that they take two pages of a hundred, too.
	for i := range 100 {
		fake.Comments[7] = append(fake.Comments[7], githubtest.Comment{ID: int64(5000 + i), Login: "u", Body: "hi"})
	}
	for _, c := range append(pages.Page1, pages.Page2...) {
		fake.Comments[7] = append(fake.Comments[7], githubtest.Comment{ID: c.ID, Login: c.User.Login, Body: c.Body})
	}
	fake.Comments[7] = append(fake.Comments[7], githubtest.Comment{ID: 77, Login: "attacker", Body: github.Marker("resnet") + "\nforged"})
	api, _ := newAPI(t, fake)
	if _, err := api.Comment(context.Background(), 7, "resnet", bot, text("new")); err != nil {
		t.Fatal(err)
	}
	byID := map[int64]string{}
	for _, c := range fake.Snapshot().Comments[7] {
		byID[c.ID] = c.Body
	}
	if byID[4242] != github.Marker("resnet")+"\nnew" {
		t.Errorf("comment 4242 is %q", byID[4242])
	}
	if byID[31] != "<!-- trtship-report --> fake" || !strings.HasSuffix(byID[77], "forged") {
		t.Error("somebody else's comment was edited")
	}
	before := len(byID)
	address, err := api.Comment(context.Background(), 7, "bert", bot, text("other model"))
	if err != nil {
		t.Fatal(err)
	}
	if n := len(fake.Snapshot().Comments[7]); n != before+1 || !strings.Contains(address, "#issuecomment-") {
		t.Errorf("%d comments, address %q; want one more for another model", n, address)
	}
}

func TestASecondPushEditsTheSameComment(t *testing.T) {
	fake := &githubtest.API{}
	api, _ := newAPI(t, fake)
	for i := range 3 {
		if _, err := api.Comment(context.Background(), 7, "digits/gate", bot, text(fmt.Sprint("run ", i))); err != nil {
			t.Fatal(err)
		}
	}
	got := fake.Snapshot().Comments[7]
	if len(got) != 1 || !strings.HasSuffix(got[0].Body, "run 2") {
		t.Errorf("comments %+v, want one with the last run", got)
	}
}

func TestABodyThatIsTooLongIsShortenedAndPostedAgain(t *testing.T) {
	fake := &githubtest.API{}
	api, _ := newAPI(t, fake)
	var limits []int
	_, err := api.Comment(context.Background(), 7, "k", bot, func(marker string, limit int) string {
		limits = append(limits, limit)
		return marker + strings.Repeat("x", limit*2) // a renderer that counts otherwise than GitHub
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(limits) != 2 || limits[0] != 60000 || limits[1] != 30000 {
		t.Errorf("limits %v", limits)
	}
	if _, err := api.Comment(context.Background(), 8, "k", bot, func(string, int) string { return strings.Repeat("x", 70000) }); err == nil {
		t.Error("a body that stays too long was posted")
	}
}

func TestACommentThatWasDeletedMeanwhileIsMadeAnew(t *testing.T) {
	fake := &githubtest.API{Comments: map[int][]githubtest.Comment{7: {{ID: 5, Login: bot, Body: github.Marker("k")}}}}
	fake.Fail = func(w http.ResponseWriter, r *http.Request, _ int) bool {
		if r.Method == http.MethodPatch {
			githubtest.Error(w, http.StatusNotFound, "Not Found")
			return true
		}
		return false
	}
	api, _ := newAPI(t, fake)
	if _, err := api.Comment(context.Background(), 7, "k", bot, text("x")); err != nil {
		t.Fatal(err)
	}
	if n := len(fake.Snapshot().Comments[7]); n != 2 {
		t.Errorf("%d comments, want a new one", n)
	}
}

func TestLimitsAreWaitedForWhenTheyAreShort(t *testing.T) {
	for name, c := range map[string]struct {
		fail func(w http.ResponseWriter)
		wait time.Duration
		ok   bool
	}{
		"a primary limit that ends in 20 s":  {func(w http.ResponseWriter) { githubtest.RateLimited(w, time.Unix(1_700_000_020, 0)) }, 20 * time.Second, true},
		"a primary limit that ends in 1 h":   {func(w http.ResponseWriter) { githubtest.RateLimited(w, time.Unix(1_700_003_600, 0)) }, 0, false},
		"a secondary limit":                  {func(w http.ResponseWriter) { githubtest.SecondaryLimited(w, time.Second) }, time.Second, true},
		"too many requests":                  {func(w http.ResponseWriter) { w.Header().Set("Retry-After", "7"); githubtest.Error(w, 429, "slow") }, 7 * time.Second, true},
		"too many requests without a time":   {func(w http.ResponseWriter) { githubtest.Error(w, 429, "slow") }, time.Minute, true},
		"a server that is out of order once": {func(w http.ResponseWriter) { githubtest.Error(w, 502, "bad gateway") }, 2 * time.Second, true},
	} {
		t.Run(name, func(t *testing.T) {
			fake := &githubtest.API{}
			fake.Fail = func(w http.ResponseWriter, _ *http.Request, n int) bool {
				if n == 0 { // the look-up of comments
					c.fail(w)
					return true
				}
				return false
			}
			api, clk := newAPI(t, fake)
			clk.real = c.wait == time.Second // the library itself keeps the secondary limit
			_, err := api.Comment(context.Background(), 7, "k", bot, text("x"))
			if (err == nil) != c.ok {
				t.Fatalf("error %v, want none: %v", err, c.ok)
			}
			if c.ok && (len(clk.waited) != 1 || clk.waited[0] != c.wait) {
				t.Errorf("waited %v, want %v", clk.waited, c.wait)
			}
			if !c.ok && !strings.Contains(err.Error(), "too long to wait") {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestPostingIsNotRepeatedAfterAServerError(t *testing.T) {
	fake := &githubtest.API{}
	posts := 0
	fake.Fail = func(w http.ResponseWriter, r *http.Request, _ int) bool {
		if r.Method != http.MethodPost {
			return false
		}
		posts++
		githubtest.Error(w, http.StatusBadGateway, "bad gateway")
		return true
	}
	api, _ := newAPI(t, fake)
	if _, err := api.Comment(context.Background(), 7, "k", bot, text("x")); err == nil || posts != 1 {
		t.Errorf("%d posts, error %v; a comment may have been made, so one and an error are right", posts, err)
	}
}

func TestThePullRequestOfAForkIsFoundByCommitAndRepository(t *testing.T) {
	fake := &githubtest.API{}
	for i := range 130 {
		fake.Pulls = append(fake.Pulls, githubtest.Pull{Number: i + 1, HeadSHA: fmt.Sprint("sha", i), HeadRef: "f", HeadRepo: "other/model"})
	}
	fake.Pulls = append(fake.Pulls,
		githubtest.Pull{Number: 500, HeadSHA: "aaaa", HeadRef: "f", HeadRepo: "copycat/model"},
		githubtest.Pull{Number: 501, HeadSHA: "aaaa", HeadRef: "f", HeadRepo: ""},
		githubtest.Pull{Number: 502, HeadSHA: "aaaa", HeadRef: "f", HeadRepo: "stranger/model"})
	api, _ := newAPI(t, fake)
	for name, c := range map[string]struct {
		ev   github.Event
		want int
	}{
		"by commit and repository":        {github.Event{HeadSHA: "aaaa", HeadRepo: "stranger/model"}, 502},
		"by branch, too":                  {github.Event{HeadSHA: "aaaa", HeadRepo: "stranger/model", HeadBranch: "f"}, 502},
		"a commit of no pull request":     {github.Event{HeadSHA: "bbbb", HeadRepo: "stranger/model"}, 0},
		"a repository that is gone":       {github.Event{HeadSHA: "aaaa"}, 0},
		"the event names it, so no calls": {github.Event{Number: 3}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := api.FindPullRequest(context.Background(), c.ev)
			if err != nil || got != c.want {
				t.Errorf("%d, %v; want %d", got, err, c.want)
			}
		})
	}
}

func TestKeysAndMarkersCannotEscape(t *testing.T) {
	for key, want := range map[string]string{
		"digits/gate":         "<!-- trtship-report:digits/gate -->",
		"a --> <b> -- c":      "<!-- trtship-report:a-b-c -->",
		"":                    "<!-- trtship-report:trtship -->",
		"näh (gpu: A100, x2)": "<!-- trtship-report:n-h-gpu-A100-x2 -->",
	} {
		if got := github.Marker(key); got != want {
			t.Errorf("%q: %q, want %q", key, got, want)
		}
	}
	if n := github.ArtifactName("digits/gate", "report"); n != "trtship-digits-gate-report" {
		t.Errorf("artifact name %q", n)
	}
}

func TestAnAPINeedsATokenAndARepository(t *testing.T) {
	for _, e := range []github.Env{{Repository: "o/r"}, {Token: "x", Repository: "o"}, {Token: "x", Repository: "o/r", APIURL: ":"}} {
		if _, err := github.NewAPI(e, nil, github.Clock{}); err == nil {
			t.Errorf("%+v was accepted", e)
		}
	}
}

func TestSecretsDoNotPrint(t *testing.T) {
	s := github.Secret("hunter2")
	b, err := json.Marshal(map[string]any{"s": s})
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{fmt.Sprint(s), fmt.Sprintf("%v %+v %#v %q", s, s, s, s), string(b), fmt.Sprintf("%+v", github.Env{Token: s}), errors.New(s.String()).Error()} {
		if strings.Contains(text, "hunter2") {
			t.Errorf("%q holds the secret", text)
		}
	}
}
