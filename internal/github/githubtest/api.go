// Package githubtest holds stand-ins for GitHub's REST interface and for the
// artifact service, for tests. They hold every request against the documented
// contract and remember what does not keep it.
package githubtest

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf16"
)

// MaxBody is the longest comment, in characters.
const MaxBody = 65536

// Comment is a comment of an issue or pull request.
type Comment struct {
	ID    int64  `json:"id"`
	Login string `json:"login"`
	Body  string `json:"body"`
}

// Pull is an open pull request.
type Pull struct {
	Number   int
	HeadSHA  string
	HeadRef  string
	HeadRepo string // empty: the fork is gone
}

// File is a file that a pull request changes.
type File struct {
	Name   string `json:"filename"`
	Status string `json:"status"` // added, modified, removed, renamed
	Patch  string `json:"patch,omitempty"`
}

// Run is a workflow run.
type Run struct {
	ID    int64
	Event string
}

// Artifact is an artifact as the interface lists it.
type Artifact struct {
	ID       int64
	Name     string
	HeadSHA  string
	RunID    int64
	Expired  bool
	Fork     bool // the head repository is another one
	Contents []byte
}

// Request is one request that the stand-in saw.
type Request struct {
	Method string `json:"method"`
	Path   string `json:"path"`
	Status int    `json:"status"`
}

// API stands in for the REST interface of one repository.
type API struct {
	Repository string // owner/name
	Token      string // what Authorization must hold; empty: any bearer
	Login      string // author of what the token writes
	ReadOnly   bool   // writing answers 403, as for a fork's pull request
	// Fail answers a request in place of the stand-in, if it returns true.
	Fail func(w http.ResponseWriter, r *http.Request, n int) bool

	mu         sync.Mutex
	Comments   map[int][]Comment
	Pulls      []Pull
	Files      map[int][]File      // by pull request
	Parents    map[string][]string // commit to parents
	MergeBases map[string]string   // "base...head" to commit
	Runs       map[int64]Run
	Artifacts  []Artifact
	Releases   []*Release
	// BreakUploads is how many uploads to a release break off, which leaves a
	// file that is not whole.
	BreakUploads int
	// BreakDownloads is how many downloads of artifacts break off in their middle.
	BreakDownloads int
	// Public serves reading requests that have no token, too.
	Public     bool
	Seen       []Request
	Violations []string
	next       int64
	base       string
}

// Start serves the stand-in until the test ends.
func (a *API) Start(t interface{ Cleanup(func()) }) string {
	s := httptest.NewServer(a)
	t.Cleanup(s.Close)
	a.base = s.URL
	return s.URL
}

// Snapshot is the state of the stand-in for people and scripts.
type Snapshot struct {
	Comments   map[int][]Comment `json:"comments"`
	Seen       []Request         `json:"requests"`
	Violations []string          `json:"violations"`
}

// Snapshot returns a copy of the state.
func (a *API) Snapshot() Snapshot {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := Snapshot{Comments: map[int][]Comment{}, Seen: append([]Request{}, a.Seen...), Violations: append([]string{}, a.Violations...)}
	for n, list := range a.Comments {
		s.Comments[n] = append([]Comment{}, list...)
	}
	return s
}

type recorder struct {
	http.ResponseWriter
	status int
}

func (r *recorder) WriteHeader(code int) {
	r.status = code
	r.ResponseWriter.WriteHeader(code)
}

// ServeHTTP answers one request.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.base == "" {
		a.base = "http://" + r.Host
	}
	rec := &recorder{ResponseWriter: w, status: http.StatusOK}
	defer func() {
		a.Seen = append(a.Seen, Request{r.Method, r.URL.RequestURI(), rec.status})
	}()
	if strings.HasPrefix(r.URL.Path, "/signed/") {
		a.signed(rec, r)
		return
	}
	a.contract(r)
	if a.Fail != nil && a.Fail(rec, r, len(a.Seen)) {
		return
	}
	a.route(rec, r)
}

// contract holds a request against what is documented for all of them.
func (a *API) contract(r *http.Request) {
	bad := func(format string, args ...any) {
		a.Violations = append(a.Violations, r.Method+" "+r.URL.Path+": "+fmt.Sprintf(format, args...))
	}
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if r.Header.Get("Authorization") == "" && a.Public && r.Method == http.MethodGet {
		ok, token = true, a.Token
	}
	upload := strings.HasPrefix(r.URL.Path, "/uploads/")
	bytes := strings.Contains(r.URL.Path, "/releases/assets/") && r.Header.Get("Accept") == "application/octet-stream"
	if !ok || token == "" || a.Token != "" && token != a.Token {
		bad("Authorization is not the bearer token")
	}
	if r.Header.Get("User-Agent") == "" {
		bad("there is no User-Agent")
	}
	if !bytes && !strings.HasPrefix(r.Header.Get("Accept"), "application/vnd.github") {
		bad("Accept is %q", r.Header.Get("Accept"))
	}
	if r.Header.Get("X-GitHub-Api-Version") == "" {
		bad("there is no X-GitHub-Api-Version")
	}
	if !upload && r.Method != http.MethodGet && r.Method != http.MethodDelete && !strings.HasPrefix(r.Header.Get("Content-Type"), "application/json") {
		bad("Content-Type is %q", r.Header.Get("Content-Type"))
	}
	if s := r.URL.Query().Get("per_page"); s != "" {
		if n, err := strconv.Atoi(s); err != nil || n < 1 || n > 100 {
			bad("per_page is %q, want 1 to 100", s)
		}
	}
}

func (a *API) route(w http.ResponseWriter, r *http.Request) {
	if rest, ok := strings.CutPrefix(r.URL.Path, "/uploads/repos/"+a.Repository+"/releases/"); ok && r.Method == http.MethodPost {
		a.uploadAsset(w, r, int64(number(strings.TrimSuffix(rest, "/assets"))))
		return
	}
	rest, ok := strings.CutPrefix(r.URL.Path, "/repos/"+a.Repository+"/")
	if !ok {
		a.unknown(w, r)
		return
	}
	part := strings.Split(rest, "/")
	get, post, patch := r.Method == http.MethodGet, r.Method == http.MethodPost, r.Method == http.MethodPatch
	if part[0] == "releases" && a.releases(w, r, part) {
		return
	}
	switch {
	case len(part) == 3 && part[0] == "issues" && part[2] == "comments" && get:
		a.listComments(w, r, number(part[1]))
	case len(part) == 3 && part[0] == "issues" && part[2] == "comments" && post:
		a.createComment(w, r, number(part[1]))
	case len(part) == 3 && part[0] == "issues" && part[1] == "comments" && patch:
		a.editComment(w, r, int64(number(part[2])))
	case len(part) == 1 && part[0] == "pulls" && get:
		a.listPulls(w, r)
	case len(part) == 3 && part[0] == "pulls" && part[2] == "files" && get:
		out := append([]File{}, page(w, r, a.base, a.Files[number(part[1])])...)
		answer(w, http.StatusOK, out)
	case len(part) == 1 && part[0] == "commits" && get:
		a.listCommits(w, r)
	case len(part) == 2 && part[0] == "compare" && get:
		a.compare(w, r, part[1])
	case len(part) == 2 && part[0] == "actions" && part[1] == "artifacts" && get:
		a.listArtifacts(w, r)
	case len(part) == 4 && part[0] == "actions" && part[1] == "artifacts" && part[3] == "zip" && get:
		http.Redirect(w, r, a.base+"/signed/"+part[2]+"?sig=secret", http.StatusFound)
	case len(part) == 3 && part[0] == "actions" && part[1] == "runs" && get:
		a.getRun(w, r, int64(number(part[2])))
	default:
		a.unknown(w, r)
	}
}

func number(s string) int {
	n, _ := strconv.Atoi(s)
	return n
}

func (a *API) unknown(w http.ResponseWriter, r *http.Request) {
	a.Violations = append(a.Violations, r.Method+" "+r.URL.Path+": no such route")
	Error(w, http.StatusNotFound, "Not Found")
}

// Error answers as the interface does.
func Error(w http.ResponseWriter, code int, message string) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]any{"message": message, "documentation_url": "https://docs.github.com/rest"})
}

// RateLimited answers that the primary limit is used up until a time.
func RateLimited(w http.ResponseWriter, reset time.Time) {
	w.Header().Set("X-RateLimit-Limit", "1000")
	w.Header().Set("X-RateLimit-Remaining", "0")
	w.Header().Set("X-RateLimit-Reset", strconv.FormatInt(reset.Unix(), 10))
	Error(w, http.StatusForbidden, "API rate limit exceeded")
}

// SecondaryLimited answers that the secondary limit was hit.
func SecondaryLimited(w http.ResponseWriter, after time.Duration) {
	w.Header().Set("Retry-After", strconv.Itoa(int(after.Seconds())))
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(http.StatusForbidden)
	_ = json.NewEncoder(w).Encode(map[string]any{
		"message":           "You have exceeded a secondary rate limit.",
		"documentation_url": "https://docs.github.com/rest/overview/rate-limits-for-the-rest-api#about-secondary-rate-limits",
	})
}

func answer(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v)
}

// page cuts a list to the page that is asked for, with Link headers.
func page[T any](w http.ResponseWriter, r *http.Request, base string, list []T) []T {
	q := r.URL.Query()
	per, at := 30, 1
	if n := number(q.Get("per_page")); n > 0 {
		per = min(n, 100)
	}
	if n := number(q.Get("page")); n > 0 {
		at = n
	}
	last := max(1, (len(list)+per-1)/per)
	var links []string
	link := func(n int, rel string) {
		q.Set("page", strconv.Itoa(n))
		links = append(links, fmt.Sprintf(`<%s%s?%s>; rel="%s"`, base, r.URL.Path, q.Encode(), rel))
	}
	if at > 1 {
		link(at-1, "prev")
		link(1, "first")
	}
	if at < last {
		link(at+1, "next")
		link(last, "last")
	}
	if len(links) > 0 {
		w.Header().Set("Link", strings.Join(links, ", "))
	}
	start := min(len(list), (at-1)*per)
	return list[start:min(len(list), start+per)]
}

func (a *API) json(c Comment, issue int) map[string]any {
	kind := "User"
	if strings.HasSuffix(c.Login, "[bot]") {
		kind = "Bot"
	}
	return map[string]any{
		"id": c.ID, "body": c.Body, "user": map[string]any{"login": c.Login, "type": kind},
		"html_url": fmt.Sprintf("https://github.com/%s/pull/%d#issuecomment-%d", a.Repository, issue, c.ID),
	}
}

func (a *API) listComments(w http.ResponseWriter, r *http.Request, issue int) {
	out := []map[string]any{}
	for _, c := range page(w, r, a.base, a.Comments[issue]) {
		out = append(out, a.json(c, issue))
	}
	answer(w, http.StatusOK, out)
}

// body reads the text of a comment and refuses what GitHub refuses.
func (a *API) body(w http.ResponseWriter, r *http.Request) (string, bool) {
	if a.ReadOnly {
		w.Header().Set("X-Accepted-GitHub-Permissions", "issues=write; pull_requests=write")
		Error(w, http.StatusForbidden, "Resource not accessible by integration")
		return "", false
	}
	b, err := io.ReadAll(r.Body)
	var in map[string]any
	if err != nil || json.Unmarshal(b, &in) != nil {
		Error(w, http.StatusBadRequest, "Problems parsing JSON")
		return "", false
	}
	text, ok := in["body"].(string)
	if !ok || len(in) != 1 {
		a.Violations = append(a.Violations, fmt.Sprintf("%s %s: the body is not {body: text} alone", r.Method, r.URL.Path))
		Error(w, http.StatusUnprocessableEntity, "Invalid request")
		return "", false
	}
	if len(utf16.Encode([]rune(text))) > MaxBody || text == "" {
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		w.WriteHeader(http.StatusUnprocessableEntity)
		_ = json.NewEncoder(w).Encode(map[string]any{
			"message": "Validation Failed",
			"errors":  []any{map[string]any{"resource": "IssueComment", "code": "unprocessable", "field": "data", "message": "Body is too long (maximum is 65536 characters)"}},
		})
		return "", false
	}
	return text, true
}

func (a *API) createComment(w http.ResponseWriter, r *http.Request, issue int) {
	text, ok := a.body(w, r)
	if !ok {
		return
	}
	if a.Comments == nil {
		a.Comments = map[int][]Comment{}
	}
	a.next++
	c := Comment{ID: 9000 + a.next, Login: a.login(), Body: text}
	a.Comments[issue] = append(a.Comments[issue], c)
	answer(w, http.StatusCreated, a.json(c, issue))
}

func (a *API) login() string {
	if a.Login == "" {
		return "github-actions[bot]"
	}
	return a.Login
}

func (a *API) editComment(w http.ResponseWriter, r *http.Request, id int64) {
	text, ok := a.body(w, r)
	if !ok {
		return
	}
	for issue, list := range a.Comments {
		for i := range list {
			if list[i].ID != id {
				continue
			}
			if list[i].Login != a.login() {
				a.Violations = append(a.Violations, fmt.Sprintf("comment %d of %s is edited by %s", id, list[i].Login, a.login()))
			}
			list[i].Body = text
			answer(w, http.StatusOK, a.json(list[i], issue))
			return
		}
	}
	Error(w, http.StatusNotFound, "Not Found")
}

func (a *API) listPulls(w http.ResponseWriter, r *http.Request) {
	var list []Pull
	for _, p := range a.Pulls {
		owner, _, _ := strings.Cut(p.HeadRepo, "/")
		if h := r.URL.Query().Get("head"); h == "" || h == owner+":"+p.HeadRef {
			list = append(list, p)
		}
	}
	out := []map[string]any{}
	for _, p := range page(w, r, a.base, list) {
		head := map[string]any{"sha": p.HeadSHA, "ref": p.HeadRef, "repo": nil}
		if p.HeadRepo != "" {
			head["repo"] = map[string]any{"full_name": p.HeadRepo}
		}
		out = append(out, map[string]any{"number": p.Number, "state": "open", "head": head})
	}
	answer(w, http.StatusOK, out)
}

func (a *API) listCommits(w http.ResponseWriter, r *http.Request) {
	sha := r.URL.Query().Get("sha")
	out := []map[string]any{}
	per := max(1, number(r.URL.Query().Get("per_page")))
	queue := []string{sha}
	seen := map[string]bool{}
	for len(queue) > 0 && len(out) < per {
		c := queue[0]
		queue = queue[1:]
		if seen[c] {
			continue
		}
		seen[c] = true
		parents := []map[string]any{}
		for _, p := range a.Parents[c] {
			parents = append(parents, map[string]any{"sha": p})
			queue = append(queue, p)
		}
		out = append(out, map[string]any{"sha": c, "parents": parents})
	}
	answer(w, http.StatusOK, out)
}

func (a *API) compare(w http.ResponseWriter, _ *http.Request, spec string) {
	spec, _ = url.PathUnescape(spec)
	base, ok := a.MergeBases[spec]
	if !ok {
		Error(w, http.StatusNotFound, "Not Found")
		return
	}
	answer(w, http.StatusOK, map[string]any{"merge_base_commit": map[string]any{"sha": base}})
}

func (a *API) listArtifacts(w http.ResponseWriter, r *http.Request) {
	var list []Artifact
	for _, x := range a.Artifacts {
		if n := r.URL.Query().Get("name"); n == "" || n == x.Name {
			list = append(list, x)
		}
	}
	total := len(list)
	out := []map[string]any{}
	for _, x := range page(w, r, a.base, list) {
		head := 1
		if x.Fork {
			head = 2
		}
		out = append(out, map[string]any{
			"id": x.ID, "name": x.Name, "size_in_bytes": len(x.Contents), "expired": x.Expired,
			"workflow_run": map[string]any{"id": x.RunID, "repository_id": 1, "head_repository_id": head, "head_branch": "main", "head_sha": x.HeadSHA},
		})
	}
	answer(w, http.StatusOK, map[string]any{"total_count": total, "artifacts": out})
}

func (a *API) getRun(w http.ResponseWriter, _ *http.Request, id int64) {
	run, ok := a.Runs[id]
	if !ok {
		Error(w, http.StatusNotFound, "Not Found")
		return
	}
	answer(w, http.StatusOK, map[string]any{"id": run.ID, "event": run.Event, "status": "completed"})
}

// signed serves the bytes of an artifact; the address itself is the secret.
func (a *API) signed(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Authorization") != "" {
		a.Violations = append(a.Violations, "the token was sent to a signed address")
	}
	if rest, ok := strings.CutPrefix(r.URL.Path, "/signed/asset/"); ok {
		a.signedAsset(w, r, int64(number(rest)))
		return
	}
	id := int64(number(strings.TrimPrefix(r.URL.Path, "/signed/")))
	for _, x := range a.Artifacts {
		if x.ID == id && r.URL.Query().Get("sig") == "secret" {
			w.Header().Set("Content-Type", "application/zip")
			if a.BreakDownloads > 0 {
				a.BreakDownloads--
				w.Header().Set("Content-Length", strconv.Itoa(len(x.Contents)))
				_, _ = w.Write(x.Contents[:len(x.Contents)/2])
				return
			}
			_, _ = w.Write(x.Contents)
			return
		}
	}
	http.Error(w, "no such blob", http.StatusNotFound)
}
