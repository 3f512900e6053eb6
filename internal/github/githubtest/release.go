package githubtest

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// MaxAsset is what a file of a release must be below.
const MaxAsset = 2 << 30

// Release is a release of the repository.
type Release struct {
	ID     int64
	Tag    string
	Draft  bool // not found by its tag
	Assets []ReleaseAsset
	// NoDigest leaves the digests out, as older servers do.
	NoDigest bool
}

// ReleaseAsset is a file of a release.
type ReleaseAsset struct {
	ID       int64
	Name     string
	State    string // uploaded, or starter of an upload that broke off
	Contents []byte
}

func (a *API) assetJSON(r *Release, x ReleaseAsset) map[string]any {
	out := map[string]any{
		"id": x.ID, "name": x.Name, "state": x.State, "size": len(x.Contents),
		"browser_download_url": fmt.Sprintf("https://github.com/%s/releases/download/%s/%s", a.Repository, r.Tag, x.Name),
	}
	if !r.NoDigest && x.State == "uploaded" {
		sum := sha256.Sum256(x.Contents)
		out["digest"] = "sha256:" + hex.EncodeToString(sum[:])
	}
	return out
}

// releases answers what begins with releases/; it reports whether there is such
// a route.
func (a *API) releases(w http.ResponseWriter, r *http.Request, part []string) bool {
	switch {
	case len(part) >= 3 && part[1] == "tags" && r.Method == http.MethodGet:
		tag := strings.Join(part[2:], "/")
		for _, rel := range a.Releases {
			if rel.Tag == tag && !rel.Draft {
				answer(w, http.StatusOK, map[string]any{
					"id": rel.ID, "tag_name": rel.Tag,
					"upload_url": fmt.Sprintf("%s/uploads/repos/%s/releases/%d/assets{?name,label}", a.base, a.Repository, rel.ID),
				})
				return true
			}
		}
		Error(w, http.StatusNotFound, "Not Found")
	case len(part) == 3 && part[2] == "assets" && r.Method == http.MethodGet:
		rel := a.release(int64(number(part[1])))
		if rel == nil {
			Error(w, http.StatusNotFound, "Not Found")
			return true
		}
		out := []map[string]any{}
		for _, x := range page(w, r, a.base, rel.Assets) {
			out = append(out, a.assetJSON(rel, x))
		}
		answer(w, http.StatusOK, out)
	case len(part) == 3 && part[1] == "assets" && r.Method == http.MethodGet:
		if r.Header.Get("Accept") != "application/octet-stream" {
			a.Violations = append(a.Violations, "a release's file was asked for, but not its bytes")
		}
		http.Redirect(w, r, a.base+"/signed/asset/"+part[2]+"?sig=secret", http.StatusFound)
	case len(part) == 3 && part[1] == "assets" && r.Method == http.MethodDelete:
		a.deleteAsset(w, int64(number(part[2])))
	default:
		return false
	}
	return true
}

func (a *API) release(id int64) *Release {
	for _, rel := range a.Releases {
		if rel.ID == id {
			return rel
		}
	}
	return nil
}

func (a *API) deleteAsset(w http.ResponseWriter, id int64) {
	for _, rel := range a.Releases {
		for i, x := range rel.Assets {
			if x.ID != id {
				continue
			}
			if x.State == "uploaded" {
				a.Violations = append(a.Violations, "a released file was deleted: "+x.Name)
			}
			rel.Assets = append(rel.Assets[:i], rel.Assets[i+1:]...)
			w.WriteHeader(http.StatusNoContent)
			return
		}
	}
	Error(w, http.StatusNotFound, "Not Found")
}

// uploadAsset answers the upload address of a release.
func (a *API) uploadAsset(w http.ResponseWriter, r *http.Request, id int64) {
	rel, name := a.release(id), r.URL.Query().Get("name")
	switch {
	case a.ReadOnly:
		w.Header().Set("X-Accepted-GitHub-Permissions", "contents=write")
		Error(w, http.StatusForbidden, "Resource not accessible by integration")
		return
	case rel == nil:
		Error(w, http.StatusNotFound, "Not Found")
		return
	case name == "" || r.Header.Get("Content-Type") == "" || r.ContentLength <= 0 || r.ContentLength >= MaxAsset:
		a.Violations = append(a.Violations, fmt.Sprintf("upload of %q, %q, %d bytes", name, r.Header.Get("Content-Type"), r.ContentLength))
		Error(w, http.StatusBadRequest, "Bad Content-Length")
		return
	}
	for _, x := range rel.Assets {
		if x.Name == name { // also one that broke off: it has to be deleted first
			w.Header().Set("Content-Type", "application/json; charset=utf-8")
			w.WriteHeader(http.StatusUnprocessableEntity)
			_ = json.NewEncoder(w).Encode(map[string]any{
				"message": "Validation Failed", "errors": []any{map[string]any{"resource": "ReleaseAsset", "code": "already_exists", "field": "name"}},
			})
			return
		}
	}
	a.next++
	x := ReleaseAsset{ID: 7000 + a.next, Name: name, State: "starter"}
	if a.BreakUploads > 0 {
		a.BreakUploads--
		rel.Assets = append(rel.Assets, x)
		Error(w, http.StatusBadGateway, "Server Error")
		return
	}
	b, err := io.ReadAll(r.Body)
	if err != nil || int64(len(b)) != r.ContentLength {
		rel.Assets = append(rel.Assets, x)
		Error(w, http.StatusBadRequest, "Bad Size")
		return
	}
	x.State, x.Contents = "uploaded", b
	rel.Assets = append(rel.Assets, x)
	answer(w, http.StatusCreated, a.assetJSON(rel, x))
}

// signedAsset serves the bytes of a released file.
func (a *API) signedAsset(w http.ResponseWriter, r *http.Request, id int64) {
	for _, rel := range a.Releases {
		for _, x := range rel.Assets {
			if x.ID == id && r.URL.Query().Get("sig") == "secret" {
				w.Header().Set("Content-Type", "application/octet-stream")
				_, _ = w.Write(x.Contents)
				return
			}
		}
	}
	http.Error(w, "no such blob", http.StatusNotFound)
}
