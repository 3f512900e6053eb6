package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/provenance"
	"github.com/trtship/trtship/internal/triton"
)

// mostReferrers is how many statements about one model are looked at.
const mostReferrers = 64

// referrerBytes bounds the manifest over a statement.
const referrerBytes = 4 << 20

// Statement returns the statement to publish with the model in dir: given, or
// that which lies beside its manifest, nil if there is none. It must speak of
// every file of the model.
func Statement(dir string, given []byte) ([]byte, error) {
	return provenanceOf(dir, Options{Provenance: given})
}

// provenanceOf returns the statement to publish with a model, nil if there is
// none. It must speak of every file of the model.
func provenanceOf(dir string, o Options) ([]byte, error) {
	text := o.Provenance
	if text == nil {
		var err error
		text, err = provenance.ReadFile(filepath.Join(dir, triton.ProvenanceFile), provenance.MaxBytes)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		if err != nil {
			return nil, failure.New(failure.Artifact, "read provenance: %w", err)
		}
	}
	m, err := triton.ReadManifest(dir)
	if err != nil {
		return nil, err
	}
	s, err := provenance.Decode(text)
	if err != nil {
		return nil, failure.New(failure.Artifact, "read provenance: %w", err)
	}
	if lacking := s.Covers(m.Wants()); len(lacking) > 0 {
		return nil, failure.New(failure.Artifact, "publish %s: the provenance does not speak of %s", m.Model, strings.Join(lacking, ", ")).At(dir).
			WithHint("give the provenance.json of the run that made the model")
	}
	return text, nil
}

// attach pushes a statement as a referrer of a model.
func attach(ctx context.Context, to oras.Target, model v1.Descriptor, statement []byte) (digest string, err error) {
	layer, err := oras.PushBytes(ctx, to, provenance.MediaType, statement)
	if errors.Is(err, errdef.ErrAlreadyExists) { // a layout says so of equal bytes
		layer, err = content.NewDescriptorFromBytes(provenance.MediaType, statement), nil
	}
	if err != nil {
		return "", err
	}
	d, err := oras.PackManifest(ctx, to, oras.PackManifestVersion1_1, provenance.MediaType, oras.PackManifestOptions{
		Subject: &model, Layers: []v1.Descriptor{layer},
		ManifestAnnotations: map[string]string{v1.AnnotationCreated: "1970-01-01T00:00:00Z"},
	})
	return d.Digest.String(), err
}

// fetchProvenance writes the statement that refers to a model beside the model's
// manifest. Of several it takes the first that covers the model, else the first;
// triton.Verify then judges it. A model without one is none the worse.
func fetchProvenance(ctx context.Context, from oras.Target, ref Reference, dir string) error {
	graph, ok := from.(content.ReadOnlyGraphStorage)
	if !ok {
		return nil
	}
	model, err := from.Resolve(ctx, ref.Tag)
	if err != nil {
		return failure.New(failure.Artifact, "pull %s: %w", ref, err)
	}
	list, err := registry.Referrers(ctx, graph, model, provenance.MediaType)
	if err != nil {
		return failure.New(failure.Artifact, "list what refers to %s: %w", ref, err)
	}
	m, err := triton.ReadManifest(dir)
	if err != nil {
		return err
	}
	var first, covers []byte
	for _, d := range list[:min(len(list), mostReferrers)] {
		text, err := statementOf(ctx, graph, d)
		if err != nil {
			return failure.New(failure.Artifact, "pull the provenance of %s: %w", ref, err)
		}
		if first == nil {
			first = text
		}
		if s, err := provenance.Decode(text); err == nil && len(s.Covers(m.Wants())) == 0 {
			covers = text
			break
		}
	}
	if covers == nil {
		covers = first
	}
	if covers == nil {
		return nil
	}
	if err := os.WriteFile(filepath.Join(dir, triton.ProvenanceFile), covers, 0o644); err != nil {
		return failure.New(failure.Artifact, "write provenance: %w", err)
	}
	return nil
}

// statementOf fetches the only layer of a referrer, held to its digest.
func statementOf(ctx context.Context, from content.ReadOnlyGraphStorage, d v1.Descriptor) ([]byte, error) {
	if d.Size > referrerBytes {
		return nil, fmt.Errorf("the manifest %s has %d bytes", d.Digest, d.Size)
	}
	text, err := content.FetchAll(ctx, from, d)
	if err != nil {
		return nil, err
	}
	var m v1.Manifest
	if err := json.Unmarshal(text, &m); err != nil {
		return nil, fmt.Errorf("read manifest %s: %w", d.Digest, err)
	}
	if len(m.Layers) != 1 || m.Layers[0].Size > provenance.MaxBytes {
		return nil, fmt.Errorf("the manifest %s does not hold one statement", d.Digest)
	}
	return content.FetchAll(ctx, from, m.Layers[0])
}
