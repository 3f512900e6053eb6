package githubtest

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
)

// Results stands in for the artifact service and its blob storage.
type Results struct {
	Run, Job string // backend ids that requests must name
	// Fail answers a request in place of the stand-in, if it returns true; n
	// counts the requests of its kind ("CreateArtifact", "block", …) from 1.
	Fail func(w http.ResponseWriter, kind string, n int) bool

	mu         sync.Mutex
	Stored     map[string][]byte // finished artifacts by name
	Owner      map[string]string // job that made an artifact
	Expires    map[string]string
	Violations []string
	Deleted    []string
	counts     map[string]int
	pending    map[string]string            // upload id to name
	blocks     map[string]map[string][]byte // upload id to block id to bytes
	committed  map[string][]byte
	base       string
}

// Start serves the stand-in until the test ends.
func (s *Results) Start(t interface{ Cleanup(func()) }) string {
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	s.base = server.URL
	return server.URL
}

// Base is the address that Start returned.
func (s *Results) Base() string { return s.base }

// Token makes a runtime token for the ids.
func (s *Results) Token() string {
	claims := fmt.Sprintf(`{"scp":"Actions.GenericRead:x Actions.Results:%s:%s"}`, s.Run, s.Job)
	return "e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".c2ln"
}

func (s *Results) bad(format string, args ...any) {
	s.Violations = append(s.Violations, fmt.Sprintf(format, args...))
}

// ServeHTTP answers one request.
func (s *Results) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	if s.base == "" {
		s.base = "http://" + r.Host
	}
	defer s.mu.Unlock()
	if s.counts == nil {
		s.counts, s.pending, s.blocks, s.committed = map[string]int{}, map[string]string{}, map[string]map[string][]byte{}, map[string][]byte{}
		if s.Stored == nil {
			s.Stored = map[string][]byte{}
		}
		if s.Owner == nil {
			s.Owner = map[string]string{}
		}
		s.Expires = map[string]string{}
	}
	kind := ""
	method, rpc := strings.CutPrefix(r.URL.Path, "/twirp/github.actions.results.api.v1.ArtifactService/")
	switch {
	case rpc:
		kind = method
	case r.URL.Query().Get("comp") == "block":
		kind = "block"
	case r.URL.Query().Get("comp") == "blocklist":
		kind = "blocklist"
	}
	s.counts[kind]++
	if s.Fail != nil && s.Fail(w, kind, s.counts[kind]) {
		return
	}
	switch {
	case rpc:
		s.call(w, r, method)
	case kind != "":
		s.blob(w, r, kind)
	default:
		s.bad("%s %s: no such route", r.Method, r.URL)
		http.Error(w, "no", http.StatusNotFound)
	}
}

// Twirp answers with an error of the service.
func Twirp(w http.ResponseWriter, code int, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]string{"code": "x", "msg": message})
}

func (s *Results) call(w http.ResponseWriter, r *http.Request, method string) {
	if r.Method != http.MethodPost || r.Header.Get("Content-Type") != "application/json" || r.Header.Get("Authorization") != "Bearer "+s.Token() {
		s.bad("%s: method, content type or token is wrong", method)
	}
	var in map[string]any
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		Twirp(w, http.StatusBadRequest, "malformed")
		return
	}
	if in["workflow_run_backend_id"] != s.Run || in["workflow_job_run_backend_id"] != s.Job {
		s.bad("%s: backend ids %v, %v", method, in["workflow_run_backend_id"], in["workflow_job_run_backend_id"])
	}
	name, _ := in["name"].(string)
	switch method {
	case "CreateArtifact":
		s.create(w, in, name)
	case "FinalizeArtifact":
		s.finalize(w, in, name)
	case "ListArtifacts":
		out := []map[string]any{}
		for n, job := range s.Owner {
			if in["name_filter"] == nil || in["name_filter"] == n {
				out = append(out, map[string]any{"workflowRunBackendId": s.Run, "workflowJobRunBackendId": job, "name": n, "databaseId": "7"})
			}
		}
		answer(w, http.StatusOK, map[string]any{"artifacts": out})
	case "DeleteArtifact":
		s.Deleted = append(s.Deleted, name)
		delete(s.Owner, name)
		delete(s.Stored, name)
		answer(w, http.StatusOK, map[string]any{"ok": true, "artifactId": "7"})
	default:
		s.bad("no such method %s", method)
		Twirp(w, http.StatusNotFound, "bad_route")
	}
}

func (s *Results) create(w http.ResponseWriter, in map[string]any, name string) {
	if v, ok := in["version"].(float64); !ok || v != 4 {
		s.bad("CreateArtifact: version %v", in["version"])
	}
	if _, ok := in["mime_type"]; ok {
		s.bad("CreateArtifact: version 4 has no mime_type")
	}
	if name == "" || strings.ContainsAny(name, "\":<>|*?\r\n\\/") {
		s.bad("CreateArtifact: name %q", name)
	}
	if _, taken := s.Owner[name]; taken {
		Twirp(w, http.StatusConflict, "an artifact with this name already exists on the workflow run")
		return
	}
	if e, ok := in["expires_at"].(string); ok {
		s.Expires[name] = e
	}
	id := fmt.Sprint(len(s.pending) + 1)
	s.pending[id] = name
	s.blocks[id] = map[string][]byte{}
	s.Owner[name] = s.Job
	answer(w, http.StatusOK, map[string]any{"ok": true, "signedUploadUrl": s.base + "/blob/" + id + "?sv=1&sig=se%2Fcret"})
}

func (s *Results) blob(w http.ResponseWriter, r *http.Request, kind string) {
	q := r.URL.Query()
	id := strings.TrimPrefix(r.URL.Path, "/blob/")
	if r.Header.Get("Authorization") != "" {
		s.bad("%s: the token was sent to the storage", kind)
	}
	if r.Method != http.MethodPut || r.Header.Get("x-ms-version") == "" || q.Get("sig") != "se/cret" || s.blocks[id] == nil {
		s.bad("%s: method, version or signature is wrong: %s", kind, r.URL)
		http.Error(w, "denied", http.StatusForbidden)
		return
	}
	b, err := io.ReadAll(r.Body)
	if err != nil || int64(len(b)) != r.ContentLength {
		s.bad("%s: %d bytes of %d", kind, len(b), r.ContentLength)
	}
	if kind == "block" {
		block := q.Get("blockid")
		if raw, err := base64.StdEncoding.DecodeString(block); err != nil || len(raw) > 64 {
			s.bad("block id %q", block)
		}
		for other := range s.blocks[id] {
			if len(other) != len(block) {
				s.bad("block ids %q and %q differ in length", other, block)
			}
		}
		s.blocks[id][block] = b
		w.WriteHeader(http.StatusCreated)
		return
	}
	if r.Header.Get("x-ms-blob-content-type") != "application/zip" {
		s.bad("blob content type %q", r.Header.Get("x-ms-blob-content-type"))
	}
	var list struct {
		Latest []string `xml:"Latest"`
	}
	if err := xml.Unmarshal(b, &list); err != nil {
		s.bad("block list: %v", err)
	}
	var whole []byte
	for _, block := range list.Latest {
		part, ok := s.blocks[id][block]
		if !ok {
			http.Error(w, "InvalidBlockList", http.StatusBadRequest)
			return
		}
		whole = append(whole, part...)
	}
	s.committed[s.pending[id]] = whole
	w.WriteHeader(http.StatusCreated)
}

func (s *Results) finalize(w http.ResponseWriter, in map[string]any, name string) {
	b, ok := s.committed[name]
	if !ok {
		Twirp(w, http.StatusNotFound, "no blob")
		return
	}
	sum := sha256.Sum256(b)
	if in["hash"] != "sha256:"+hex.EncodeToString(sum[:]) || in["size"] != fmt.Sprint(len(b)) {
		s.bad("FinalizeArtifact %s: size %v, hash %v of %d bytes", name, in["size"], in["hash"], len(b))
	}
	s.Stored[name] = b
	answer(w, http.StatusOK, map[string]any{"ok": true, "artifactId": "42"})
}
