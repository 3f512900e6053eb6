package registry_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/triton"
	"github.com/trtship/trtship/internal/triton/registry"
	"github.com/trtship/trtship/internal/triton/tritonpb"
	"github.com/trtship/trtship/internal/triton/tritontest"
)

// repository holds the model m with two versions.
func repository(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, text := range []string{"weights one", "weights two"} {
		src := filepath.Join(t.TempDir(), "m")
		tritontest.Write(t, filepath.Dir(src), "m", text)
		if _, err := triton.Add(dir, triton.Content{Config: &tritonpb.ModelConfig{Name: "m", Backend: "onnxruntime"}, Files: map[string]string{"model.onnx": src}, Data: map[string][]byte{"warmup/input-0": {1, 2}}}); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func parse(t *testing.T, text string) registry.Reference {
	t.Helper()
	r, err := registry.ParseReference(text)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// equal compares two folders.
func equal(t *testing.T, a, b string) {
	t.Helper()
	read := func(dir string) map[string]string {
		out := map[string]string{}
		_ = filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
			if err == nil && !e.IsDir() {
				text, _ := os.ReadFile(path)
				rel, _ := filepath.Rel(dir, path)
				out[rel] = string(text)
			}
			return err
		})
		return out
	}
	x, y := read(a), read(b)
	if len(x) == 0 || len(x) != len(y) {
		t.Errorf("%d and %d files", len(x), len(y))
	}
	for name, text := range x {
		if y[name] != text {
			t.Errorf("%s differs", name)
		}
	}
}

func TestAModelGoesIntoALayoutAndComesBack(t *testing.T) {
	from, layout := repository(t), filepath.Join(t.TempDir(), "layout")
	first, err := registry.Publish(t.Context(), from, "m", parse(t, "oci:"+layout+":v1"), registry.Options{})
	if err != nil || first.Files != 5 || first.Bytes == 0 {
		t.Fatalf("%+v %v", first, err)
	}
	to := t.TempDir()
	name, err := registry.Pull(t.Context(), parse(t, "oci:"+layout+":v1"), to, true, registry.Options{})
	if err != nil || name != "m" {
		t.Fatalf("%q %v", name, err)
	}
	equal(t, from, to)
	again, err := registry.Publish(t.Context(), to, "m", parse(t, "oci:"+filepath.Join(t.TempDir(), "l")+":v1"), registry.Options{})
	if err != nil || again.Digest != first.Digest {
		t.Errorf("equal models gave %s and %s, %v", first.Digest, again.Digest, err)
	}
	if _, err := registry.Pull(t.Context(), parse(t, "oci:"+layout+"@"+first.Digest), t.TempDir(), true, registry.Options{}); err != nil {
		t.Errorf("by digest: %v", err)
	}
	_, err = registry.Pull(t.Context(), parse(t, "oci:"+layout+":v1"), to, true, registry.Options{})
	if failure.CodeOf(err) != failure.Artifact || !strings.Contains(err.Error(), "already there") {
		t.Errorf("over a model that is there: %v", err)
	}
	_, err = registry.Pull(t.Context(), parse(t, "oci:"+layout+":v2"), t.TempDir(), true, registry.Options{})
	if failure.CodeOf(err) != failure.Artifact || !strings.Contains(err.Error(), "not there") {
		t.Errorf("an unknown tag: %v", err)
	}
}

func TestAFlippedByteIsFoundAndNothingIsLeft(t *testing.T) {
	from, layout := repository(t), filepath.Join(t.TempDir(), "layout")
	if _, err := registry.Publish(t.Context(), from, "m", parse(t, "oci:"+layout+":v1"), registry.Options{}); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte("weights two"))
	blob := filepath.Join(layout, "blobs", "sha256", hex.EncodeToString(sum[:]))
	if err := os.Chmod(blob, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(blob, []byte("weights twO"), 0o644); err != nil {
		t.Fatal(err)
	}
	to := t.TempDir()
	if _, err := registry.Pull(t.Context(), parse(t, "oci:"+layout+":v1"), to, false, registry.Options{}); failure.CodeOf(err) != failure.Artifact {
		t.Errorf("got %v", err)
	}
	if entries, _ := os.ReadDir(to); len(entries) != 0 {
		t.Errorf("%d entries are left", len(entries))
	}
	// And a repository that was changed is not published.
	if err := os.WriteFile(filepath.Join(from, "m", "1", "model.onnx"), []byte("weights onE"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := registry.Publish(t.Context(), from, "m", parse(t, "oci:"+layout+":v2"), registry.Options{}); failure.CodeOf(err) != failure.Artifact || !strings.Contains(err.Error(), "1/model.onnx differs") {
		t.Errorf("got %v", err)
	}
}

// remote is as much of a registry as pushing and pulling takes, with a password.
type remote struct {
	mu        sync.Mutex
	blobs     map[string][]byte
	manifests map[string][]byte
}

var zero time.Time

func digestOf(b []byte) string { s := sha256.Sum256(b); return "sha256:" + hex.EncodeToString(s[:]) }

func (r *remote) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	if user, pass, ok := q.BasicAuth(); !ok || user != "u" || pass != "p" {
		w.Header().Set("WWW-Authenticate", `Basic realm="r"`)
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	path := strings.TrimPrefix(q.URL.Path, "/v2/team/m/")
	switch {
	case q.Method == http.MethodPost:
		w.Header().Set("Location", "/v2/team/m/uploads/1")
		w.WriteHeader(http.StatusAccepted)
	case q.Method == http.MethodPut && strings.HasPrefix(path, "uploads/"):
		b, _ := io.ReadAll(q.Body)
		r.blobs[digestOf(b)] = b
		w.WriteHeader(http.StatusCreated)
	case q.Method == http.MethodPut:
		b, _ := io.ReadAll(q.Body)
		r.manifests[strings.TrimPrefix(path, "manifests/")], r.manifests[digestOf(b)] = b, b
		w.Header().Set("Docker-Content-Digest", digestOf(b))
		w.WriteHeader(http.StatusCreated)
	default:
		b, ok := r.blobs[strings.TrimPrefix(path, "blobs/")]
		if strings.HasPrefix(path, "manifests/") {
			b, ok = r.manifests[strings.TrimPrefix(path, "manifests/")]
			var m struct {
				MediaType string `json:"mediaType"`
			}
			_ = json.Unmarshal(b, &m)
			w.Header().Set("Content-Type", m.MediaType)
		}
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		w.Header().Set("Docker-Content-Digest", digestOf(b))
		http.ServeContent(w, q, "", zero, bytes.NewReader(b))
	}
}

func TestAModelGoesIntoARegistryAndComesBack(t *testing.T) {
	r := &remote{blobs: map[string][]byte{}, manifests: map[string][]byte{}}
	s := httptest.NewServer(r)
	defer s.Close()
	host := strings.TrimPrefix(s.URL, "http://")
	o := registry.Options{PlainHTTP: true, Credential: func(context.Context, string) (string, string, error) { return "u", "p", nil }}
	from, to := repository(t), t.TempDir()
	p, err := registry.Publish(t.Context(), from, "m", parse(t, host+"/team/m:v1"), o)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := registry.Pull(t.Context(), parse(t, host+"/team/m:v1"), to, true, o); err != nil {
		t.Fatal(err)
	}
	equal(t, from, to)
	if _, err := registry.Pull(t.Context(), parse(t, host+"/team/m@"+p.Digest), t.TempDir(), true, o); err != nil {
		t.Errorf("by digest: %v", err)
	}
	if _, err := registry.Pull(t.Context(), parse(t, host+"/team/m:v1"), t.TempDir(), true, registry.Options{PlainHTTP: true}); failure.CodeOf(err) != failure.Artifact {
		t.Errorf("without a password: %v", err)
	}
	o.Credential = func(context.Context, string) (string, string, error) { return "", "", errors.New("no store") }
	if _, err := registry.Publish(t.Context(), from, "m", parse(t, host+"/team/m:v1"), o); err == nil {
		t.Error("a broken credential store was passed over")
	}
}

// Manifests that others wrote must not lead out of the repository.
func TestForeignManifestsAreRefused(t *testing.T) {
	for name, c := range map[string]struct{ kind, model, file, want string }{
		"another type":       {"application/x", "m", "m/a", "not a model published by trtship"},
		"a name with ..":     {registry.ArtifactType, "..", "../a", `called ".."`},
		"a file that leaves": {registry.ArtifactType, "m", "m/../../a", "leaves the model's folder"},
		"an absolute file":   {registry.ArtifactType, "m", "/etc/passwd", "leaves the model's folder"},
		"another folder":     {registry.ArtifactType, "m", "n/a", "leaves the model's folder"},
	} {
		t.Run(name, func(t *testing.T) {
			r := &remote{blobs: map[string][]byte{}, manifests: map[string][]byte{}}
			data := []byte("x")
			r.blobs[digestOf(data)] = data
			m, _ := json.Marshal(map[string]any{
				"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "artifactType": c.kind,
				"config":      map[string]any{"mediaType": "application/vnd.oci.empty.v1+json", "digest": digestOf([]byte("{}")), "size": 2},
				"layers":      []any{map[string]any{"mediaType": "application/octet-stream", "digest": digestOf(data), "size": 1, "annotations": map[string]string{"org.opencontainers.image.title": c.file}}},
				"annotations": map[string]string{"com.github.trtship.model": c.model},
			})
			r.blobs[digestOf([]byte("{}"))] = []byte("{}")
			r.manifests["v1"] = m
			s := httptest.NewServer(r)
			defer s.Close()
			to := t.TempDir()
			_, err := registry.Pull(t.Context(), parse(t, strings.TrimPrefix(s.URL, "http://")+"/team/m:v1"), to, true, registry.Options{PlainHTTP: true, Credential: func(context.Context, string) (string, string, error) { return "u", "p", nil }})
			if failure.CodeOf(err) != failure.Artifact || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestReferences(t *testing.T) {
	for text, want := range map[string]string{
		"oci:/a/b":        "oci:/a/b:latest",
		"oci:/a/b:v1":     "oci:/a/b:v1",
		"oci:dir":         "oci:dir:latest",
		"ghcr.io/o/m:1.0": "ghcr.io/o/m:1.0",
		"oci:/a/b@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef": "oci:/a/b@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
	} {
		if got := parse(t, text).String(); got != want {
			t.Errorf("%s: %s", text, got)
		}
	}
	for _, text := range []string{"", "-o", "--help", "oci:", "oci:-x", "oci::v1", "oci:x:v 1", "oci:x:-v", "oci:x@sha256:12", "host/name", "a b/c:d", "no-slash"} {
		if _, err := registry.ParseReference(text); failure.CodeOf(err) != failure.Usage {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := registry.Publish(t.Context(), repository(t), "m", parse(t, "oci:"+t.TempDir()+"@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"), registry.Options{}); failure.CodeOf(err) != failure.Usage {
		t.Errorf("published to a digest: %v", err)
	}
}
