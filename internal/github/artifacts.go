package github

import (
	"archive/zip"
	"bytes"
	"compress/flate"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/trtship/trtship/internal/regular"
)

// Limits and times of the artifact service.
const (
	blockSize     = 8 << 20
	artifactTries = 5
	firstDelay    = 3 * time.Second
	blobVersion   = "2024-08-04" // of Azure's storage interface
	maxRetention  = 90
	maxReply      = 1 << 20
)

// ErrNoArtifacts is why artifacts cannot be uploaded from here.
var ErrNoArtifacts = errors.New("no artifact service")

// ErrQuota is a full artifact storage.
var ErrQuota = errors.New("the account's artifact storage is full")

// Artifacts uploads artifacts to the run that the step belongs to (version 4
// of the protocol).
type Artifacts struct {
	origin    string
	token     Secret
	run, job  string // backend ids
	client    *http.Client
	clock     Clock
	retention int
	console   *Console
}

// NewArtifacts reads identity and address from the step's environment. Only
// container and JavaScript actions get them: a `run:` step does not.
func NewArtifacts(e Env, client *http.Client, clock Clock, console *Console, retentionDays int) (*Artifacts, error) {
	if e.EnterpriseServer() {
		return nil, fmt.Errorf("%w: %s has no artifacts of version 4; upload the files with actions/upload-artifact@v3", ErrNoArtifacts, e.ServerURL)
	}
	if e.RuntimeToken == "" || e.ResultsURL == "" {
		return nil, fmt.Errorf("%w: a `run:` step gets no ACTIONS_RUNTIME_TOKEN; follow it with actions/upload-artifact", ErrNoArtifacts)
	}
	run, job, err := backendIDs(string(e.RuntimeToken))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoArtifacts, err)
	}
	u, err := url.Parse(e.ResultsURL)
	if err != nil || u.Host == "" {
		return nil, fmt.Errorf("%w: ACTIONS_RESULTS_URL %q is no address", ErrNoArtifacts, e.ResultsURL)
	}
	if client == nil {
		client = &http.Client{Timeout: 5 * time.Minute}
	}
	days := retentionDays
	if days > maxRetention {
		days = maxRetention
	}
	if e.RetentionDays > 0 && days > e.RetentionDays {
		days = e.RetentionDays
	}
	return &Artifacts{origin: u.Scheme + "://" + u.Host, token: e.RuntimeToken, run: run, job: job, client: client, clock: clock.filled(), retention: days, console: console}, nil
}

// backendIDs reads the run's and the job's id from the token's scope.
func backendIDs(token string) (run, job string, err error) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return "", "", errors.New("ACTIONS_RUNTIME_TOKEN is no JWT")
	}
	body, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(parts[1], "="))
	if err != nil {
		return "", "", fmt.Errorf("ACTIONS_RUNTIME_TOKEN: %w", err)
	}
	var claims struct {
		Scope string `json:"scp"`
	}
	if err := json.Unmarshal(body, &claims); err != nil {
		return "", "", fmt.Errorf("ACTIONS_RUNTIME_TOKEN: %w", err)
	}
	for _, s := range strings.Fields(claims.Scope) {
		if f := strings.Split(s, ":"); f[0] == "Actions.Results" {
			if len(f) != 3 {
				return "", "", fmt.Errorf("ACTIONS_RUNTIME_TOKEN: scope %q has %d fields, want 3", s, len(f))
			}
			return f[1], f[2], nil
		}
	}
	return "", "", errors.New("ACTIONS_RUNTIME_TOKEN has no scope Actions.Results")
}

// Item is one file of an artifact.
type Item struct {
	Name string // slash-separated path inside the artifact
	Path string // where it lies
}

// Uploaded describes an artifact that was uploaded.
type Uploaded struct {
	ID     string
	Name   string
	Size   int64
	Digest string // sha256:…, of the zip file
}

// Upload packs items into the artifact name. An artifact of that name, left by
// an earlier attempt, is replaced; if another job has taken the name, a number
// is added to it.
func (a *Artifacts) Upload(ctx context.Context, name string, items []Item) (Uploaded, error) {
	if err := checkName(name); err != nil {
		return Uploaded{}, err
	}
	if len(items) == 0 {
		return Uploaded{}, fmt.Errorf("artifact %s: there are no files", name)
	}
	for _, i := range items {
		if err := checkPath(i.Name); err != nil {
			return Uploaded{}, fmt.Errorf("artifact %s: %w", name, err)
		}
	}
	target, final, err := a.create(ctx, name)
	if err != nil {
		return Uploaded{}, fmt.Errorf("create artifact %s: %w", name, err)
	}
	a.maskSignature(target)
	size, sum, err := a.send(ctx, target, items)
	if err != nil {
		return Uploaded{}, fmt.Errorf("upload artifact %s: %w", final, err)
	}
	var reply struct {
		OK  bool        `json:"ok"`
		ID  json.Number `json:"artifact_id"`
		ID2 json.Number `json:"artifactId"`
	}
	err = a.call(ctx, "FinalizeArtifact", map[string]any{"name": final, "size": fmt.Sprint(size), "hash": "sha256:" + sum}, &reply)
	if err == nil && !reply.OK {
		err = errors.New("the service did not accept it")
	}
	if err != nil {
		return Uploaded{}, fmt.Errorf("finalize artifact %s: %w", final, err)
	}
	id := reply.ID.String()
	if id == "" {
		id = reply.ID2.String()
	}
	return Uploaded{ID: id, Name: final, Size: size, Digest: "sha256:" + sum}, nil
}

// create reserves a name and returns the address to send the bytes to.
func (a *Artifacts) create(ctx context.Context, name string) (target, final string, err error) {
	for try, candidate := 0, name; ; try++ {
		target, err = a.createOnce(ctx, candidate)
		if !isStatus(err, http.StatusConflict) || try == 6 {
			return target, candidate, err
		}
		if try == 0 && a.deleteOwn(ctx, candidate) == nil {
			continue
		}
		candidate = fmt.Sprintf("%s-%d", name, try+1)
	}
}

func (a *Artifacts) createOnce(ctx context.Context, name string) (string, error) {
	// Version 4 without a MIME type is understood by every server of the protocol.
	body := map[string]any{"name": name, "version": 4}
	if a.retention > 0 {
		body["expires_at"] = a.clock.Now().UTC().Add(time.Duration(a.retention) * 24 * time.Hour).Format(time.RFC3339)
	}
	var reply struct {
		OK   bool   `json:"ok"`
		URL  string `json:"signed_upload_url"`
		URL2 string `json:"signedUploadUrl"`
	}
	if err := a.call(ctx, "CreateArtifact", body, &reply); err != nil {
		return "", err
	}
	if reply.URL == "" {
		reply.URL = reply.URL2
	}
	if !reply.OK || reply.URL == "" {
		return "", errors.New("the service gave no address to upload to")
	}
	return reply.URL, nil
}

// deleteOwn deletes this job's artifact of a name.
func (a *Artifacts) deleteOwn(ctx context.Context, name string) error {
	type entry struct {
		Run  string `json:"workflow_run_backend_id"`
		Job  string `json:"workflow_job_run_backend_id"`
		Run2 string `json:"workflowRunBackendId"`
		Job2 string `json:"workflowJobRunBackendId"`
		Name string `json:"name"`
	}
	var list struct {
		Artifacts []entry `json:"artifacts"`
	}
	if err := a.call(ctx, "ListArtifacts", map[string]any{"name_filter": name}, &list); err != nil {
		return err
	}
	for _, x := range list.Artifacts {
		run, job := x.Run+x.Run2, x.Job+x.Job2
		if x.Name != name || run != a.run || job != a.job {
			continue
		}
		return a.call(ctx, "DeleteArtifact", map[string]any{"name": name}, &struct{}{})
	}
	return errors.New("the artifact is another job's")
}

// statusError is an HTTP status that is no success.
type statusError struct {
	code int
	text string
}

func (e *statusError) Error() string { return fmt.Sprintf("HTTP %d: %s", e.code, e.text) }

func isStatus(err error, code int) bool {
	e, ok := errors.AsType[*statusError](err)
	return ok && e.code == code
}

// call makes one remote call, with retries on what passes.
func (a *Artifacts) call(ctx context.Context, method string, body map[string]any, reply any) error {
	body["workflow_run_backend_id"], body["workflow_job_run_backend_id"] = a.run, a.job
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	address := a.origin + "/twirp/github.actions.results.api.v1.ArtifactService/" + method
	return a.retry(ctx, func() error {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(text))
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", "Bearer "+string(a.token))
		b, err := a.do(req, http.StatusOK)
		if err != nil {
			return err
		}
		return json.Unmarshal(b, reply)
	})
}

// do sends a request and returns the body of a reply with the status wanted.
func (a *Artifacts) do(req *http.Request, want int) ([]byte, error) {
	resp, err := a.client.Do(req)
	if err != nil {
		if e, ok := errors.AsType[*url.Error](err); ok {
			return nil, e.Err // without the address, which is signed
		}
		return nil, err
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxReply))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == want {
		return b, nil
	}
	var e struct {
		Message string `json:"msg"`
	}
	_ = json.Unmarshal(b, &e) // Azure answers in XML
	if strings.Contains(e.Message, "insufficient usage") {
		return nil, fmt.Errorf("%w: %s", ErrQuota, clip(plain(e.Message), 200))
	}
	if e.Message == "" {
		e.Message = clip(plain(string(b)), 200)
	}
	return nil, &statusError{resp.StatusCode, clip(plain(e.Message), 300)}
}

// retry repeats f on network errors and on statuses that pass.
func (a *Artifacts) retry(ctx context.Context, f func() error) error {
	delay := firstDelay
	for try := 1; ; try++ {
		err := f()
		if err == nil || try == artifactTries || errors.Is(err, ErrQuota) || ctx.Err() != nil {
			return err
		}
		if e, ok := errors.AsType[*statusError](err); ok && !slices.Contains([]int{429, 500, 502, 503, 504}, e.code) {
			return err
		}
		jitter := time.Duration(rand.Int64N(int64(delay / 2))) //nolint:gosec // no secret
		if serr := a.clock.Sleep(ctx, delay+jitter); serr != nil {
			return errors.Join(err, serr)
		}
		delay += delay / 2
	}
}

// maskSignature keeps the signature of an upload address out of the log.
func (a *Artifacts) maskSignature(address string) {
	u, err := url.Parse(address)
	if err != nil || a.console == nil {
		return
	}
	if sig := u.Query().Get("sig"); sig != "" {
		a.console.Mask(sig)
		a.console.Mask(url.QueryEscape(sig))
	}
}

// send zips items and uploads the bytes block by block, one after another: a
// server that ignores the block list puts them together in order of arrival.
func (a *Artifacts) send(ctx context.Context, target string, items []Item) (size int64, sum string, err error) {
	r, w := io.Pipe()
	go func() { w.CloseWithError(writeZip(w, items)) }()
	defer r.Close() //nolint:errcheck // ends the writer
	h := sha256.New()
	var ids []string
	buf := make([]byte, blockSize)
	for {
		n, rerr := io.ReadFull(r, buf)
		if rerr != nil && !errors.Is(rerr, io.EOF) && !errors.Is(rerr, io.ErrUnexpectedEOF) {
			return 0, "", rerr
		}
		if n > 0 {
			id := base64.StdEncoding.EncodeToString(fmt.Appendf(nil, "block-%08d", len(ids)))
			if err := a.block(ctx, target, id, buf[:n], h); err != nil {
				return 0, "", err
			}
			ids = append(ids, id)
			size += int64(n)
		}
		if rerr != nil {
			break
		}
	}
	return size, hex.EncodeToString(h.Sum(nil)), a.commit(ctx, target, ids)
}

func (a *Artifacts) block(ctx context.Context, target, id string, b []byte, h hash.Hash) error {
	h.Write(b)
	return a.retry(ctx, func() error {
		return a.putBlob(ctx, target+separator(target)+"comp=block&blockid="+url.QueryEscape(id), b, nil)
	})
}

func (a *Artifacts) commit(ctx context.Context, target string, ids []string) error {
	var b bytes.Buffer
	b.WriteString(`<?xml version="1.0" encoding="utf-8"?><BlockList>`)
	for _, id := range ids {
		b.WriteString("<Latest>" + id + "</Latest>")
	}
	b.WriteString("</BlockList>")
	return a.retry(ctx, func() error {
		return a.putBlob(ctx, target+separator(target)+"comp=blocklist", b.Bytes(), map[string]string{"x-ms-blob-content-type": "application/zip"})
	})
}

func separator(address string) string {
	if strings.Contains(address, "?") {
		return "&"
	}
	return "?"
}

func (a *Artifacts) putBlob(ctx context.Context, address string, b []byte, header map[string]string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, address, bytes.NewReader(b))
	if err != nil {
		return errors.New("the upload address is malformed")
	}
	req.Header.Set("x-ms-version", blobVersion)
	for k, v := range header {
		req.Header.Set(k, v)
	}
	_, err = a.do(req, http.StatusCreated)
	return err
}

// writeZip writes items as a zip file whose bytes depend on their contents
// alone. Data that is compressed already is stored.
func writeZip(w io.Writer, items []Item) error {
	z := zip.NewWriter(w)
	z.RegisterCompressor(zip.Deflate, func(out io.Writer) (io.WriteCloser, error) { return flate.NewWriter(out, 6) })
	for _, item := range items {
		if err := addFile(z, item); err != nil {
			return err
		}
	}
	return z.Close()
}

func addFile(z *zip.Writer, item Item) error {
	f, err := regular.Open(item.Path)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // only read
	method := zip.Deflate
	if slices.Contains([]string{".gz", ".zip", ".zst", ".png", ".npz"}, strings.ToLower(filepath.Ext(item.Name))) {
		method = zip.Store
	}
	h := &zip.FileHeader{Name: item.Name, Method: method}
	h.SetMode(0o644)
	out, err := z.CreateHeader(h)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, f)
	return err
}

// Collect lists the files below dir for an artifact, under prefix, in order.
func Collect(dir, prefix string) ([]Item, error) {
	root, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, err
	}
	var items []Item
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := os.Stat(path) // links are resolved
		if err != nil || !info.Mode().IsRegular() {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		items = append(items, Item{Name: strings.TrimPrefix(prefix+"/"+filepath.ToSlash(rel), "/"), Path: path})
		return nil
	})
	return items, err
}

// forbidden characters of artifact names; paths inside may have slashes.
const forbidden = "\":<>|*?\r\n"

func checkName(name string) error {
	if name == "" || strings.ContainsAny(name, forbidden+`\/`) {
		return fmt.Errorf("artifact name %q is empty or holds one of %s", name, `" : < > | * ? \ /`)
	}
	return nil
}

func checkPath(path string) error {
	if path == "" || strings.ContainsAny(path, forbidden) || !filepath.IsLocal(filepath.FromSlash(path)) {
		return fmt.Errorf("file name %q cannot be part of an artifact", path)
	}
	return nil
}

// ArtifactName makes the artifact name of a key.
func ArtifactName(key, what string) string {
	return strings.ReplaceAll("trtship-"+CleanKey(key)+"-"+what, "/", "-")
}
