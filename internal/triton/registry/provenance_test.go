package registry_test

import (
	"context"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/provenance"
	"github.com/trtship/trtship/internal/triton"
	"github.com/trtship/trtship/internal/triton/registry"
)

// statement speaks of every file of the model m in a repository but those of skip.
func statement(t *testing.T, repository, skip string) []byte {
	t.Helper()
	m, err := triton.ReadManifest(filepath.Join(repository, "m"))
	if err != nil {
		t.Fatal(err)
	}
	r := provenance.Run{Config: artifact.Digest(m.Config), Stages: map[string]artifact.Digest{}}
	for _, w := range m.Wants() {
		if w.Path != skip {
			r.Subjects = append(r.Subjects, provenance.File{Path: "artifacts/model_repository/m/" + w.Path, Digest: artifact.Digest(w.Digest)})
		}
	}
	text, err := provenance.Encode(r)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestProvenanceGoesWithTheModel(t *testing.T) {
	s := httptest.NewServer(&remote{blobs: map[string][]byte{}, manifests: map[string][]byte{}})
	defer s.Close()
	for name, reference := range map[string]string{
		"a layout":   "oci:" + filepath.Join(t.TempDir(), "layout") + ":v1",
		"a registry": strings.TrimPrefix(s.URL, "http://") + "/team/m:v1",
	} {
		t.Run(name, func(t *testing.T) {
			from := repository(t)
			o := registry.Options{PlainHTTP: true, Credential: userAndPassword}
			bare, err := registry.Publish(t.Context(), from, "m", parse(t, reference), o)
			if err != nil || bare.Provenance != "" {
				t.Fatalf("%+v %v", bare, err)
			}
			o.Provenance = statement(t, from, "")
			p, err := registry.Publish(t.Context(), from, "m", parse(t, reference), o)
			if err != nil || p.Provenance == "" || p.Digest != bare.Digest {
				t.Fatalf("%+v %v, the model alone %s", p, err, bare.Digest)
			}
			if again, err := registry.Publish(t.Context(), from, "m", parse(t, reference), o); err != nil || again != p {
				t.Fatalf("again: %+v %v, want %+v", again, err, p)
			}
			to := t.TempDir()
			if _, err := registry.Pull(t.Context(), parse(t, reference), to, true, o); err != nil {
				t.Fatal(err)
			}
			text, err := os.ReadFile(filepath.Join(to, "m", triton.ProvenanceFile))
			if err != nil || string(text) != string(o.Provenance) {
				t.Errorf("the statement came back as %q, %v", text, err)
			}
			// A pulled model is published with what came with it, as the same model.
			o.Provenance = nil
			again, err := registry.Publish(t.Context(), to, "m", parse(t, "oci:"+filepath.Join(t.TempDir(), "l")+":v1"), o)
			if err != nil || again.Digest != p.Digest || again.Provenance != p.Provenance {
				t.Errorf("again %+v %v, first %+v", again, err, p)
			}
		})
	}
}

func TestProvenanceOfOtherBytesIsRefused(t *testing.T) {
	from, layout := repository(t), filepath.Join(t.TempDir(), "layout")
	o := registry.Options{Provenance: statement(t, from, "2/model.onnx")}
	_, err := registry.Publish(t.Context(), from, "m", parse(t, "oci:"+layout+":v1"), o)
	if failure.CodeOf(err) != failure.Artifact || !strings.Contains(err.Error(), "does not speak of 2/model.onnx") {
		t.Errorf("one that lacks a file: %v", err)
	}
	o.Provenance = []byte("{}")
	if _, err := registry.Publish(t.Context(), from, "m", parse(t, "oci:"+layout+":v1"), o); failure.CodeOf(err) != failure.Artifact {
		t.Errorf("one that is none: %v", err)
	}
	if err := os.WriteFile(filepath.Join(from, "m", triton.ProvenanceFile), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	o.Provenance = nil
	if _, err := registry.Publish(t.Context(), from, "m", parse(t, "oci:"+layout+":v1"), o); failure.CodeOf(err) != failure.Artifact {
		t.Errorf("one in the folder that is none: %v", err)
	}
	if entries, _ := os.ReadDir(layout); len(entries) != 0 {
		t.Error("something was published")
	}
}

// A registry can say what it likes about a model: what refers to it must cover it.
func TestAForeignStatementFailsThePull(t *testing.T) {
	from, other := repository(t), t.TempDir()
	reference := parse(t, "oci:"+filepath.Join(t.TempDir(), "layout")+":v1")
	if _, err := registry.Publish(t.Context(), from, "m", reference, registry.Options{}); err != nil {
		t.Fatal(err)
	}
	if err := registry.AttachForTest(t.Context(), reference, statement(t, from, "config.pbtxt")); err != nil {
		t.Fatal(err)
	}
	_, err := registry.Pull(t.Context(), reference, other, true, registry.Options{})
	if failure.CodeOf(err) != failure.Artifact || !strings.Contains(err.Error(), "config.pbtxt") {
		t.Errorf("got %v", err)
	}
	if entries, _ := os.ReadDir(other); len(entries) != 0 {
		t.Error("something is left")
	}
	// A right one beside it is found.
	if err := registry.AttachForTest(t.Context(), reference, statement(t, from, "")); err != nil {
		t.Fatal(err)
	}
	if _, err := registry.Pull(t.Context(), reference, other, true, registry.Options{}); err != nil {
		t.Errorf("with a right one beside it: %v", err)
	}
}

func userAndPassword(context.Context, string) (string, string, error) { return "u", "p", nil }
