package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/content/memory"

	"github.com/trtship/trtship/internal/failure"
)

// FuzzManifest lets a registry hold any manifest: what is taken for a model
// names only files in a folder of the model's name.
func FuzzManifest(f *testing.F) {
	for _, name := range []string{"m/config.pbtxt", "m/../../etc/passwd", "/etc/passwd"} {
		b, err := json.Marshal(v1.Manifest{
			MediaType: v1.MediaTypeImageManifest, ArtifactType: ArtifactType, Annotations: map[string]string{modelAnnotation: "m"},
			Layers: []v1.Descriptor{{MediaType: "application/octet-stream", Size: 3, Annotations: map[string]string{v1.AnnotationTitle: name}}},
		})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, v1.MediaTypeImageManifest, "latest")
	}
	// A short one, in which a byte that is changed or lost anywhere matters.
	short := `{"artifactType":"` + ArtifactType + `","annotations":{"` + modelAnnotation + `":"mmmm"},"layers":[`
	for _, name := range "abcdefgh" {
		short += `{"annotations":{"` + v1.AnnotationTitle + `":"mmmm/` + string(name) + `"}},`
	}
	f.Add([]byte(strings.TrimSuffix(short, ",")+"]}"), v1.MediaTypeImageManifest, "v1")
	f.Add([]byte(`{"artifactType":"application/vnd.cncf.helm"}`), v1.MediaTypeImageManifest, "v1")
	f.Add([]byte(`<html>`), "text/html", "v1")
	f.Fuzz(func(t *testing.T, b []byte, media, tag string) {
		ctx := context.Background()
		ref, err := ParseReference("registry.example/a/b:" + tag)
		if err != nil {
			return
		}
		store := memory.New()
		d := content.NewDescriptorFromBytes(media, b)
		// The memory store looks into manifests of the types it knows, and may refuse.
		if store.Push(ctx, d, bytes.NewReader(b)) != nil || store.Tag(ctx, d, ref.Tag) != nil {
			return
		}
		model, err := look(ctx, store, ref)
		if err != nil {
			if failure.CodeOf(err) != failure.Artifact {
				t.Errorf("code %d: %v", failure.CodeOf(err), err)
			}
			return
		}
		if media != v1.MediaTypeImageManifest || model == "" || strings.ContainsAny(model, `/\`) || model == "." || model == ".." {
			t.Errorf("model %q of %s", model, media)
		}
		var m v1.Manifest
		if err := json.Unmarshal(b, &m); err != nil {
			t.Fatal(err)
		}
		for _, l := range m.Layers {
			at := filepath.Join("/models", filepath.FromSlash(l.Annotations[v1.AnnotationTitle]))
			if !strings.HasPrefix(at, filepath.Join("/models", model)+"/") {
				t.Errorf("a file of %q would go to %s", model, at)
			}
		}
	})
}
