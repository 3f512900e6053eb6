package github

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	gh "github.com/google/go-github/v62/github"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/regular"
	"github.com/trtship/trtship/report"
)

// maxAsset is what GitHub takes: every file of a release must be below 2 GiB.
const maxAsset = 2 << 30

// ReleasePrefix begins the reference of a release's asset:
// release:TAG, or release:OWNER/NAME@TAG.
const ReleasePrefix = "release:"

// Release is a release of a repository, by its tag.
type Release struct {
	Repository string // owner/name
	Tag        string
}

var repositoryName = regexp.MustCompile(`^[A-Za-z0-9-]+/[A-Za-z0-9._-]+$`)

// ParseRelease reads a reference. here is the repository of the workflow, for
// references that name none.
func ParseRelease(text, here string) (Release, error) {
	rest := strings.TrimPrefix(text, ReleasePrefix)
	r := Release{Repository: here, Tag: rest}
	if repo, tag, ok := strings.Cut(rest, "@"); ok && repositoryName.MatchString(repo) {
		r.Repository, r.Tag = repo, tag
	}
	if r.Tag != "" && here == "" && r.Repository == "" {
		return r, failure.New(failure.Usage, "%q names no repository, and GITHUB_REPOSITORY is not set", text).WithHint("write release:OWNER/NAME@TAG")
	}
	if r.Tag != "" && !repositoryName.MatchString(r.Repository) {
		return r, failure.New(failure.Usage, "%q names no repository, and GITHUB_REPOSITORY is %q", text, here).WithHint("write release:OWNER/NAME@TAG")
	}
	if r.Tag == "" || strings.HasPrefix(r.Tag, "-") || strings.ContainsAny(r.Tag, " ~^:?*[\\\x00\n") || strings.Contains(r.Tag, "..") {
		return r, failure.New(failure.Usage, "%q is no tag of a release: %q", text, r.Tag).WithHint("write release:TAG or release:OWNER/NAME@TAG")
	}
	return r, nil
}

// String writes the reference.
func (r Release) String() string { return ReleasePrefix + r.Repository + "@" + r.Tag }

// asset is a file of a release. The library's type lacks the digest.
type asset struct {
	ID     int64  `json:"id"`
	Name   string `json:"name"`
	State  string `json:"state"` // uploaded; starter of an upload that broke off
	Size   int64  `json:"size"`
	Digest string `json:"digest"` // sha256:…; older servers say none
	URL    string `json:"browser_download_url"`
}

// Assets are the files of a release.
type Assets struct {
	api     *API
	release Release
	id      int64
	upload  string // address without its template
}

// OpenRelease finds a release. The token may be empty where nothing is written
// and the repository is public.
func OpenRelease(ctx context.Context, e Env, r Release, client *http.Client, clock Clock) (*Assets, error) {
	if client == nil {
		// An upload takes as long as it takes; an answer must come after it.
		t, ok := http.DefaultTransport.(*http.Transport)
		if !ok {
			t = &http.Transport{Proxy: http.ProxyFromEnvironment}
		}
		t = t.Clone()
		t.ResponseHeaderTimeout = 3 * time.Minute
		client = &http.Client{Transport: t}
	}
	anonymous := e.Token == ""
	if anonymous {
		e.Token = "none"
	}
	e.Repository = r.Repository
	api, err := NewAPI(e, client, clock)
	if err != nil {
		return nil, failure.New(failure.Usage, "open release: %w", err)
	}
	if anonymous {
		c := gh.NewClient(client)
		c.BaseURL, c.UserAgent = api.client.BaseURL, api.client.UserAgent
		api.client = c
	}
	var got *gh.RepositoryRelease
	err = api.retry(ctx, true, func() (err error) {
		got, _, err = api.client.Repositories.GetReleaseByTag(ctx, api.owner, api.name, r.Tag)
		return err
	})
	if err != nil {
		return nil, releaseError("open", r, err)
	}
	a := &Assets{api: api, release: r, id: got.GetID()}
	a.upload, _, _ = strings.Cut(got.GetUploadURL(), "{")
	return a, nil
}

// releaseError says what an answer means for a release.
func releaseError(verb string, r Release, err error) error {
	f := failure.New(failure.Artifact, "%s %s: %s", verb, r, short(err))
	f.Err = err
	switch status(err) {
	case http.StatusNotFound:
		f = f.WithHint("make the release first (`gh release create %s`), published and not as a draft; a private repository needs GITHUB_TOKEN", r.Tag)
	case http.StatusUnauthorized, http.StatusForbidden:
		f = f.WithHint("give the job `permissions: {contents: write}` and GITHUB_TOKEN; a fork's token can only read")
	case http.StatusUnprocessableEntity:
		f = f.WithHint("GitHub refuses the file's name or its size, or the release cannot be changed any more")
	}
	return f
}

// list returns the assets of the release by name.
func (a *Assets) list(ctx context.Context) (map[string]asset, error) {
	out := map[string]asset{}
	for page := 1; page > 0; {
		req, err := a.api.client.NewRequest(http.MethodGet, fmt.Sprintf("repos/%s/%s/releases/%d/assets?per_page=100&page=%d", a.api.owner, a.api.name, a.id, page), nil)
		if err != nil {
			return nil, err
		}
		var list []asset
		var resp *gh.Response
		err = a.api.retry(ctx, true, func() (err error) {
			list = nil
			resp, err = a.api.client.Do(ctx, req, &list)
			return err
		})
		if err != nil {
			return nil, releaseError("list the files of", a.release, err)
		}
		for _, x := range list {
			out[x.Name] = x
		}
		page = resp.NextPage
	}
	return out, nil
}

// Attached is a file of a release.
type Attached struct {
	Name    string `json:"name"`
	Digest  string `json:"digest"`
	Size    int64  `json:"size"`
	URL     string `json:"url"`
	Already bool   `json:"already"` // equal bytes were there
}

// Attach uploads the file at path, and beside it its digest as sha256sum writes
// it. A file of that name that is there with other bytes is refused; an upload
// that broke off earlier is replaced.
func (a *Assets) Attach(ctx context.Context, path string) (Attached, error) {
	name := filepath.Base(path)
	info, err := os.Stat(path)
	if err != nil {
		return Attached{}, failure.New(failure.Artifact, "attach to %s: %w", a.release, err)
	}
	if info.Size() >= maxAsset {
		return Attached{}, failure.New(failure.Artifact, "attach %s to %s: it has %s, and GitHub takes files below 2 GiB", name, a.release, report.FormatBytes(info.Size())).
			WithHint("publish it to an OCI registry: trtship publish REPOSITORY ghcr.io/OWNER/NAME:TAG")
	}
	digest, size, err := hashFile(path)
	if err != nil {
		return Attached{}, failure.New(failure.Artifact, "attach to %s: %w", a.release, err)
	}
	done, err := a.attach(ctx, path, digest, size)
	if err != nil {
		return done, err
	}
	dir, err := os.MkdirTemp("", "trtship-release-*")
	if err != nil {
		return done, failure.New(failure.Artifact, "attach to %s: %w", a.release, err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	sums := filepath.Join(dir, name+".sha256")
	text := strings.TrimPrefix(digest, "sha256:") + "  " + name + "\n"
	if err := os.WriteFile(sums, []byte(text), 0o644); err != nil {
		return done, failure.New(failure.Artifact, "attach to %s: %w", a.release, err)
	}
	sum := sha256.Sum256([]byte(text))
	_, err = a.attach(ctx, sums, "sha256:"+hex.EncodeToString(sum[:]), int64(len(text)))
	return done, err
}

func hashFile(path string) (digest string, size int64, err error) {
	f, err := regular.Open(path)
	if err != nil {
		return "", 0, err
	}
	defer f.Close() //nolint:errcheck // only read
	sum := sha256.New()
	size, err = io.Copy(sum, f)
	return "sha256:" + hex.EncodeToString(sum.Sum(nil)), size, err
}

// attach uploads one file, again if that breaks off.
func (a *Assets) attach(ctx context.Context, path, digest string, size int64) (Attached, error) {
	name := filepath.Base(path)
	const tries = 4
	for i := 1; ; i++ {
		there, err := a.list(ctx)
		if err != nil {
			return Attached{}, err
		}
		if x, ok := there[name]; ok && x.State == "uploaded" {
			return a.equal(ctx, x, digest, size)
		} else if ok {
			if err := a.remove(ctx, x); err != nil {
				return Attached{}, err
			}
		}
		made, err := a.send(ctx, path, size)
		if err == nil {
			if made.State != "uploaded" || made.Size != size || made.Digest != "" && made.Digest != digest {
				return Attached{}, failure.New(failure.Artifact, "attach %s to %s: %d bytes arrived as %d, %s", name, a.release, size, made.Size, made.State)
			}
			return Attached{Name: name, Digest: digest, Size: size, URL: made.URL}, nil
		}
		wait, again := a.api.wait(err, i, true)
		if exists(err) {
			wait, again = time.Second, true // another job was faster: what it left is looked at
		}
		if !again || i == tries || wait > maxWait || ctx.Err() != nil {
			return Attached{}, releaseError("attach "+name+" to", a.release, err)
		}
		if err := a.api.sleep(ctx, wait); err != nil {
			return Attached{}, failure.New(failure.Artifact, "attach %s to %s: %w", name, a.release, err)
		}
	}
}

// exists reports the refusal of a name that is taken.
func exists(err error) bool {
	e, ok := errors.AsType[*gh.ErrorResponse](err)
	if !ok || e.Response.StatusCode != http.StatusUnprocessableEntity {
		return false
	}
	for _, x := range e.Errors {
		if x.Code == "already_exists" {
			return true
		}
	}
	return false
}

func (a *Assets) send(ctx context.Context, path string, size int64) (asset, error) {
	f, err := regular.Open(path)
	if err != nil {
		return asset{}, err
	}
	defer f.Close() //nolint:errcheck // only read
	kind := "application/gzip"
	if strings.HasSuffix(path, ".sha256") {
		kind = "text/plain"
	}
	req, err := a.api.client.NewUploadRequest(a.upload+"?name="+url.QueryEscape(filepath.Base(path)), f, size, kind)
	if err != nil {
		return asset{}, err
	}
	var made asset
	_, err = a.api.client.Do(ctx, req, &made)
	return made, err
}

func (a *Assets) remove(ctx context.Context, x asset) error {
	err := a.api.retry(ctx, true, func() error {
		_, err := a.api.client.Repositories.DeleteReleaseAsset(ctx, a.api.owner, a.api.name, x.ID)
		return err
	})
	if err != nil && status(err) != http.StatusNotFound {
		return releaseError("remove the broken upload of "+x.Name+" from", a.release, err)
	}
	return nil
}

// equal holds a file that is there to the one that should be.
func (a *Assets) equal(ctx context.Context, x asset, digest string, size int64) (Attached, error) {
	got := x.Digest
	if got == "" && x.Size == size {
		var err error
		if got, err = a.save(ctx, x, io.Discard); err != nil {
			return Attached{}, err
		}
	}
	if x.Size != size || got != digest {
		return Attached{}, failure.New(failure.Artifact, "attach %s to %s: another file of that name is there, %d bytes, %s", x.Name, a.release, x.Size, got).
			With("this one", "%d bytes, %s", size, digest).WithHint("a released file is never replaced; make a new tag")
	}
	return Attached{Name: x.Name, Digest: digest, Size: size, URL: x.URL, Already: true}, nil
}

// save downloads a file and returns its digest. Addresses that the interface
// redirects to are signed and get no token.
func (a *Assets) save(ctx context.Context, x asset, w io.Writer) (string, error) {
	var body io.ReadCloser
	err := a.api.retry(ctx, true, func() (err error) {
		body, _, err = a.api.client.Repositories.DownloadReleaseAsset(ctx, a.api.owner, a.api.name, x.ID, a.api.plain)
		return err
	})
	if err != nil {
		return "", releaseError("download "+x.Name+" of", a.release, err)
	}
	defer body.Close() //nolint:errcheck // only read
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(w, sum), io.LimitReader(body, min(x.Size, maxAsset)+1))
	if err == nil && n != x.Size {
		err = fmt.Errorf("%d bytes came of %d", n, x.Size)
	}
	if err != nil {
		return "", failure.New(failure.Artifact, "download %s of %s: %w", x.Name, a.release, err)
	}
	return "sha256:" + hex.EncodeToString(sum.Sum(nil)), nil
}

// Fetch downloads the file whose name ends with suffix (name, if it is not
// empty) into dir, holds it to the digest that lies beside it, and returns its
// path and digest.
func (a *Assets) Fetch(ctx context.Context, name, suffix, dir string) (path, digest string, err error) {
	there, err := a.list(ctx)
	if err != nil {
		return "", "", err
	}
	var names []string
	for n, x := range there {
		if x.State == "uploaded" && (n == name || name == "" && strings.HasSuffix(n, suffix)) {
			names = append(names, n)
		}
	}
	switch {
	case len(names) == 0:
		return "", "", failure.New(failure.Artifact, "%s has no file %s", a.release, orAny(name, suffix)).WithHint("`trtship publish REPOSITORY %s` attaches one", a.release)
	case len(names) > 1:
		return "", "", failure.New(failure.Usage, "%s has %d models", a.release, len(names)).WithHint("name one with --model")
	case filepath.Base(names[0]) != names[0]:
		return "", "", failure.New(failure.Artifact, "%s has a file named %q", a.release, names[0])
	}
	sums, ok := there[names[0]+".sha256"]
	if !ok {
		return "", "", failure.New(failure.Artifact, "%s has no %s.sha256, so that the file cannot be verified", a.release, names[0]).WithHint("run the same `trtship publish` again; it attaches what is missing")
	}
	var text strings.Builder
	if sums.Size > 4096 {
		return "", "", failure.New(failure.Artifact, "%s of %s has %d bytes, which is no digest", sums.Name, a.release, sums.Size)
	}
	if _, err := a.save(ctx, sums, &text); err != nil {
		return "", "", err
	}
	want, _, _ := strings.Cut(strings.TrimSpace(text.String()), " ")
	path = filepath.Join(dir, names[0])
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return "", "", failure.New(failure.Artifact, "download: %w", err)
	}
	digest, err = a.save(ctx, there[names[0]], f)
	if cerr := f.Close(); err == nil && cerr != nil {
		err = failure.New(failure.Artifact, "download: %w", cerr)
	}
	if err == nil && digest != "sha256:"+want {
		err = failure.New(failure.Artifact, "%s of %s is %s, and its .sha256 says %s", names[0], a.release, digest, clip(want, 80)).WithHint("it was changed or damaged; do not use it")
	}
	return path, digest, err
}

func orAny(name, suffix string) string {
	if name != "" {
		return name
	}
	return "*" + suffix
}
