package github

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/trtship/trtship/report"
)

// FuzzEvent reads event files and holds what decides about tokens and untrusted
// code to a second reading of the same text.
func FuzzEvent(f *testing.F) {
	files, err := filepath.Glob("../../testdata/cases/g01-fork-and-events/*.json")
	if err != nil || len(files) < 5 {
		f.Fatalf("%d seeds, %v", len(files), err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, "pull_request")
		f.Add(b, "workflow_run")
	}
	f.Fuzz(func(t *testing.T, b []byte, name string) {
		ev, err := decodeEvent(Env{EventName: name, Repository: "owner/model", SHA: "merge"}, b)
		if err != nil {
			return
		}
		if ev.PullRequest() && ev.Number <= 0 {
			t.Errorf("a pull request without a number: %+v", ev)
		}
		if name == "pull_request_target" {
			if why, _ := ev.Refusal(t.TempDir(), "base", ""); why == "" {
				t.Error("a workspace that is no base branch was taken for one")
			}
		}
		why, _ := ev.Refusal("", "", "approved")
		if ev.Fork && ev.Number != 0 && why == "" && (ev.Action != "labeled" || ev.Label != "approved") {
			t.Errorf("a fork without an approval is not refused: %+v", ev)
		}
		fork, known := headIsElsewhere(b)
		if known && fork != ev.Fork {
			t.Errorf("fork %v, want %v: %s", ev.Fork, fork, b)
		}
	})
}

// headIsElsewhere reads by its own means whether the code of a pull request or
// of a run is from another repository.
func headIsElsewhere(b []byte) (fork, known bool) {
	var doc struct {
		Repository struct {
			Name string `json:"full_name"`
		}
		Pull *struct {
			Head struct {
				Repo struct {
					Name string `json:"full_name"`
				}
			}
		} `json:"pull_request"`
		Group *struct{} `json:"merge_group"`
		Run   *struct {
			Repo struct {
				Name string `json:"full_name"`
			} `json:"head_repository"`
		} `json:"workflow_run"`
	}
	if json.Unmarshal(b, &doc) != nil {
		return false, false
	}
	own := doc.Repository.Name
	if own == "" {
		own = "owner/model"
	}
	switch {
	case doc.Pull != nil:
		return !strings.EqualFold(doc.Pull.Head.Repo.Name, own), true
	case doc.Group != nil:
		return false, true
	case doc.Run != nil:
		return !strings.EqualFold(doc.Run.Repo.Name, own), true
	}
	return false, true
}

// scripted answers every request with the next of some replies, the last one
// for ever.
type scripted struct {
	replies [][]byte
	status  int
	link    string
	asked   int
}

var errTooMany = errors.New("the client does not stop asking")

func (s *scripted) RoundTrip(r *http.Request) (*http.Response, error) {
	s.asked++
	if s.asked > 20_000 {
		return nil, errTooMany
	}
	body := s.replies[min(s.asked, len(s.replies))-1]
	header := http.Header{"Content-Type": {"application/json"}}
	if s.link != "" {
		header.Set("Link", s.link)
	}
	return &http.Response{
		StatusCode: s.status, Status: http.StatusText(s.status), Header: header, Request: r,
		Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)),
	}, nil
}

// FuzzReplies lets GitHub answer anything: nothing may panic or go on for ever,
// and a comment that is edited is one that the bot wrote under our marker.
// Slow: each input is the answer in four conversations of up to 20,000 requests.
func FuzzReplies(f *testing.F) {
	ours := `[{"id":5,"user":{"login":"bot"},"body":"` + Marker("m") + `\nold"}]`
	f.Add([]byte(ours), uint16(200), "")
	f.Add([]byte(`[{"id":5,"user":{"login":"stranger"},"body":"`+Marker("m")+`\nforged"}]`+"\x00"+ours), uint16(200), `<https://api/x?page=2>; rel="next"`)
	f.Add([]byte(`[{"number":3,"head":{"sha":"abc","repo":{"full_name":"a/b"}}}]`), uint16(200), "")
	f.Add([]byte(`{"merge_base_commit":{"sha":"abc"}}`+"\x00"+`[{"sha":"abc","parents":[{"sha":"def"}]}]`+"\x00"+`{"artifacts":[{"id":1,"name":"r","size_in_bytes":9,"workflow_run":{"id":2,"repository_id":1,"head_repository_id":1,"head_sha":"abc"}}]}`+"\x00"+`{"event":"push"}`), uint16(200), "")
	f.Add([]byte(`[{"filename":"m.py","status":"modified","patch":"@@ -1,2 +1,3 @@\n a\n+b\n c\n@@ -9 +10,2 @@\n-x\n+y\n+z"}]`), uint16(200), "")
	f.Add([]byte(`[{"filename":"m","patch":"@@ -1,5 +1,9 @@\n+\n+\n \n-\n+\n+\n \n+\n+\n-\n+\n "}]`), uint16(200), "")
	f.Add([]byte(`[{"filename":"m","patch":"@@ -1 +1 @@\n+"}]`), uint16(200), "")
	f.Add([]byte(`[{"filename":"m","patch":"@@ -9 +9 @@\n-\n+"}]`), uint16(200), "")
	f.Add([]byte(`{"message":"Resource not accessible by integration"}`), uint16(403), "")
	f.Add([]byte(`{"message":"body is too long (maximum is 65536 characters)"}`), uint16(422), "")
	f.Fuzz(func(t *testing.T, b []byte, code uint16, link string) {
		if code < 100 || code > 999 || strings.ContainsAny(link, "\r\n") || len(link) > 200 {
			return
		}
		for i, ask := range conversations {
			s := &scripted{replies: bytes.Split(b, []byte{0}), status: int(code), link: link}
			api, err := NewAPI(Env{Token: "t", Repository: "o/n", APIURL: "https://api"}, &http.Client{Transport: s}, Clock{
				Now: func() time.Time { return time.Unix(1, 0) }, Sleep: func(context.Context, time.Duration) error { return nil },
			})
			if err != nil {
				t.Fatal(err)
			}
			if problem := ask(t.Context(), api); problem != "" {
				t.Error(problem)
			}
			if s.asked > 20_000 {
				t.Errorf("conversation %d does not stop", i)
			}
		}
	})
}

// conversations are what is asked of GitHub; each says what is wrong with what
// it took from the replies.
var conversations = []func(ctx context.Context, a *API) string{
	func(ctx context.Context, a *API) string {
		asked, limit := 0, 0
		_, err := a.Comment(ctx, 7, "m", "bot", func(_ string, most int) string { asked++; limit = most; return "x" })
		if err == nil && (asked == 0 || limit < minComment) {
			return "a comment was written that was not made"
		}
		return ""
	},
	func(ctx context.Context, a *API) string {
		n, err := a.FindPullRequest(ctx, Event{HeadSHA: "abc", HeadRepo: "a/b", HeadBranch: "x"})
		if err != nil && n != 0 {
			return "a pull request beside an error"
		}
		return ""
	},
	func(ctx context.Context, a *API) string {
		found, err := a.Baseline(ctx, Event{Name: "pull_request", BaseSHA: "abc", HeadSHA: "def"}, "r", 3, "1", &report.Report{})
		if err == nil && found.Report != nil && found.Report.Validate() != nil {
			return "a baseline that is no report"
		}
		return ""
	},
	func(ctx context.Context, a *API) string {
		changes, err := a.ChangedLines(ctx, 7)
		if err != nil && changes != nil {
			return "changes beside an error"
		}
		for file, spans := range changes {
			last := 0
			for _, s := range spans {
				if s.First <= last || s.Last < s.First {
					return fmt.Sprintf("%q: the lines %v are out of order", file, spans)
				}
				last = s.Last
			}
		}
		return ""
	},
}
