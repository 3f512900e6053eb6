// Package registry puts model repositories into OCI registries and layouts and
// brings them back, verified.
package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content/file"
	"oras.land/oras-go/v2/content/oci"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/retry"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/httpbound"
	"github.com/trtship/trtship/internal/triton"
)

// ArtifactType is the type of a published model.
const ArtifactType = "application/vnd.trtship.triton.model.v1"

// modelAnnotation names the model in the manifest.
const modelAnnotation = "com.github.trtship.model"

// fileType is the media type of each file.
const fileType = "application/octet-stream"

// Reference is where an artifact lies: "oci:FOLDER[:TAG]" for a layout on disk,
// else "HOST/NAME:TAG" or "HOST/NAME@DIGEST".
type Reference struct {
	Layout string // folder; empty for a registry
	Remote registry.Reference
	Tag    string // tag or digest
}

// ParseReference reads a reference. One that starts with a dash is none.
func ParseReference(text string) (Reference, error) {
	bad := func(err error) (Reference, error) {
		return Reference{}, failure.New(failure.Usage, "%q is no reference: %w", text, err).WithHint("write HOST/NAME:TAG, oci:FOLDER:TAG, or release:OWNER/NAME@TAG")
	}
	if strings.HasPrefix(text, "-") || text == "" {
		return bad(errors.New("it is empty or starts with a dash"))
	}
	if rest, ok := strings.CutPrefix(text, "oci:"); ok {
		r := Reference{Layout: rest, Tag: "latest"}
		if at := strings.LastIndexAny(rest, ":@"); at > strings.LastIndexByte(rest, '/') && at >= 0 {
			r.Layout, r.Tag = rest[:at], rest[at+1:]
			if strings.HasSuffix(r.Layout, "@sha256") {
				r.Layout, r.Tag = strings.TrimSuffix(r.Layout, "@sha256"), "sha256:"+r.Tag
			}
		}
		if r.Layout == "" || strings.HasPrefix(r.Layout, "-") || r.Tag == "" {
			return bad(errors.New("the folder or the tag is missing"))
		}
		tag := registry.Reference{Registry: "localhost", Repository: "layout", Reference: r.Tag} // a layout takes any words
		if err := tag.ValidateReference(); err != nil {
			return bad(err)
		}
		return r, nil
	}
	ref, err := registry.ParseReference(text)
	if err != nil {
		return bad(err)
	}
	if ref.Reference == "" {
		return bad(errors.New("the tag is missing"))
	}
	return Reference{Remote: ref, Tag: ref.Reference}, nil
}

// Options say how a registry is reached.
type Options struct {
	PlainHTTP bool
	// Credential returns the user and the password or token for a host; nil or
	// empty is anonymous.
	Credential func(ctx context.Context, host string) (user, secret string, err error)
	Progress   func(file string, size int64)
	// Provenance is the statement to publish with the model; nil takes the one
	// that lies beside the model's manifest, if there is one.
	Provenance []byte
	// Silence is how long a registry may send nothing; 0: a minute.
	Silence time.Duration
	// Once leaves out that requests are repeated which a registry could not serve.
	Once bool
}

// maxBlob bounds one reply of a registry: the largest file of a model.
const maxBlob = 64 << 30

// client repeats requests that a registry could not serve, and waits for none
// without end.
func (o Options) client() *http.Client {
	silence := o.Silence
	if silence == 0 {
		silence = time.Minute
	}
	transport := httpbound.Transport(http.DefaultTransport, maxBlob, silence)
	if o.Once {
		return &http.Client{Transport: transport}
	}
	return &http.Client{Transport: retry.NewTransport(transport)}
}

// Published is what became of a publication.
type Published struct {
	Reference string `json:"reference"`
	Digest    string `json:"digest"`
	// Provenance is the digest of the manifest that refers to the model's and
	// holds the statement; empty if there is none.
	Provenance string `json:"provenance,omitempty"`
	Files      int    `json:"files"`
	Bytes      int64  `json:"bytes"`
}

func (r Reference) target(o Options) (oras.Target, error) {
	if r.Layout != "" {
		s, err := oci.New(r.Layout)
		if err != nil {
			return nil, failure.New(failure.Artifact, "open OCI layout: %w", err).At(r.Layout)
		}
		return s, nil
	}
	repo := &remote.Repository{Reference: r.Remote, PlainHTTP: o.PlainHTTP, Client: &auth.Client{
		Client: o.client(), Cache: auth.NewCache(),
		Credential: func(ctx context.Context, host string) (auth.Credential, error) {
			if o.Credential == nil {
				return auth.EmptyCredential, nil
			}
			user, secret, err := o.Credential(ctx, host)
			if err != nil || secret == "" {
				return auth.EmptyCredential, err
			}
			return auth.Credential{Username: user, Password: secret}, nil
		},
	}}
	return repo, nil
}

// Publish puts one model of a repository, with all its versions, at ref. Every
// file is checked against the model's manifest before. Equal models give equal
// digests.
func Publish(ctx context.Context, repository, model string, ref Reference, o Options) (Published, error) {
	dir := filepath.Join(repository, model)
	found, err := triton.Verify(ctx, dir)
	if err != nil {
		return Published{}, err
	}
	if len(found.Problems) > 0 {
		return Published{}, failure.New(failure.Artifact, "publish %s: %s", model, triton.Problems(found)).At(dir).WithHint("package the model again")
	}
	statement, err := provenanceOf(dir, o)
	if err != nil {
		return Published{}, err
	}
	to, err := ref.target(o)
	if err != nil {
		return Published{}, err
	}
	// The store hashes what lies in the folder and copies nothing.
	scratch, err := os.MkdirTemp("", "trtship-publish-*")
	if err != nil {
		return Published{}, failure.New(failure.Artifact, "publish: %w", err)
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	src, err := file.New(scratch)
	if err != nil {
		return Published{}, failure.New(failure.Artifact, "publish: %w", err)
	}
	defer func() { _ = src.Close() }()
	p := Published{}
	root, err := pack(ctx, src, repository, model, &p, o)
	if err != nil {
		return p, failure.New(failure.Artifact, "publish %s: %w", model, err)
	}
	if err := src.Tag(ctx, root, ref.Tag); err != nil {
		return p, failure.New(failure.Artifact, "publish %s: %w", model, err)
	}
	tag := ref.Tag
	if strings.HasPrefix(tag, "sha256:") {
		return p, failure.New(failure.Usage, "publish to a tag, not to the digest %s", tag)
	}
	if _, err := oras.Copy(ctx, src, tag, to, tag, oras.DefaultCopyOptions); err != nil {
		return p, failure.New(failure.Artifact, "publish %s to %s: %w", model, ref, err)
	}
	p.Reference, p.Digest = ref.String(), root.Digest.String()
	if statement != nil {
		if p.Provenance, err = attach(ctx, to, root, statement); err != nil {
			return p, failure.New(failure.Artifact, "publish the provenance of %s: %w", model, err)
		}
	}
	return p, nil
}

// String writes the reference as ParseReference reads it.
func (r Reference) String() string {
	if r.Layout != "" {
		sep := ":"
		if strings.HasPrefix(r.Tag, "sha256:") {
			sep = "@"
		}
		return "oci:" + r.Layout + sep + r.Tag
	}
	return r.Remote.String()
}

// pack adds the files of a model and the manifest over them.
func pack(ctx context.Context, src *file.Store, repository, model string, p *Published, o Options) (v1.Descriptor, error) {
	var layers []v1.Descriptor
	root, err := filepath.Abs(filepath.Join(repository, model))
	if err != nil {
		return v1.Descriptor{}, err
	}
	if root, err = filepath.EvalSymlinks(root); err != nil {
		return v1.Descriptor{}, err
	}
	err = filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		if !e.Type().IsRegular() {
			return fmt.Errorf("%s is no regular file", path)
		}
		if path == filepath.Join(root, triton.ProvenanceFile) {
			return nil // it refers to the model, and is no part of it
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		name := model + "/" + filepath.ToSlash(rel)
		d, err := src.Add(ctx, name, fileType, path)
		if err != nil {
			return err
		}
		if o.Progress != nil {
			o.Progress(name, d.Size)
		}
		p.Files++
		p.Bytes += d.Size
		layers = append(layers, d)
		return nil
	})
	if err != nil {
		return v1.Descriptor{}, err
	}
	slices.SortFunc(layers, func(a, b v1.Descriptor) int {
		return strings.Compare(a.Annotations[v1.AnnotationTitle], b.Annotations[v1.AnnotationTitle])
	})
	return oras.PackManifest(ctx, src, oras.PackManifestVersion1_1, ArtifactType, oras.PackManifestOptions{
		Layers: layers,
		ManifestAnnotations: map[string]string{
			v1.AnnotationCreated: "1970-01-01T00:00:00Z", // the library would put the time of day here
			modelAnnotation:      model,                  // not the title: the file store would make a file of it
		},
	})
}

// Pull brings a published model into a repository and returns its name. Every
// file is held to the digest in the manifest while it is written, and with
// verify to the model's own manifest. A model that is there is refused, and
// nothing half-written is left.
func Pull(ctx context.Context, ref Reference, repository string, verify bool, o Options) (model string, err error) {
	from, err := ref.target(o)
	if err != nil {
		return "", err
	}
	if ref.Layout != "" {
		if _, err := os.Stat(filepath.Join(ref.Layout, "index.json")); err != nil {
			return "", failure.New(failure.Artifact, "pull %s: %w", ref, err)
		}
	}
	if model, err = look(ctx, from, ref); err != nil {
		return "", err
	}
	dest := filepath.Join(repository, model)
	if _, err := os.Lstat(dest); err == nil {
		return "", failure.New(failure.Artifact, "pull %s: %s is already there", ref, dest).At(dest).WithHint("nothing is overwritten; choose another repository or remove it")
	}
	if err := os.MkdirAll(repository, 0o755); err != nil {
		return "", failure.New(failure.Artifact, "pull: %w", err)
	}
	scratch, err := os.MkdirTemp(repository, ".pull-*")
	if err != nil {
		return "", failure.New(failure.Artifact, "pull: %w", err)
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	into, err := file.New(scratch)
	if err != nil {
		return "", failure.New(failure.Artifact, "pull: %w", err)
	}
	into.DisableOverwrite = true
	_, err = oras.Copy(ctx, from, ref.Tag, into, ref.Tag, oras.DefaultCopyOptions)
	if cerr := into.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return "", failure.New(failure.Artifact, "pull %s: %w", ref, err)
	}
	if verify {
		if err := fetchProvenance(ctx, from, ref, filepath.Join(scratch, model)); err != nil {
			return "", err
		}
		found, err := triton.Verify(ctx, filepath.Join(scratch, model))
		if err != nil {
			return "", err
		}
		if len(found.Problems) > 0 {
			return "", failure.New(failure.Artifact, "pull %s: it is not what its manifest and its provenance say: %s", ref, triton.Problems(found))
		}
	}
	if err := os.Rename(filepath.Join(scratch, model), dest); err != nil {
		return "", failure.New(failure.Artifact, "pull: %w", err)
	}
	return model, nil
}

// look reads the manifest and refuses what is no model of ours: another type, or
// files that would leave the model's folder.
func look(ctx context.Context, from oras.Target, ref Reference) (string, error) {
	d, b, err := oras.FetchBytes(ctx, from, ref.Tag, oras.DefaultFetchBytesOptions)
	if errors.Is(err, errdef.ErrNotFound) {
		return "", failure.New(failure.Artifact, "pull %s: it is not there", ref)
	}
	if err != nil {
		return "", failure.New(failure.Artifact, "pull %s: %w", ref, err)
	}
	var m v1.Manifest
	if err := json.Unmarshal(b, &m); err != nil || d.MediaType != v1.MediaTypeImageManifest {
		return "", failure.New(failure.Artifact, "pull %s: it is no manifest (%s)", ref, d.MediaType)
	}
	if m.ArtifactType != ArtifactType {
		return "", failure.New(failure.Artifact, "pull %s: it is %q, not a model published by trtship", ref, m.ArtifactType)
	}
	model := m.Annotations[modelAnnotation]
	if model == "" || model != filepath.Base(model) || strings.HasPrefix(model, ".") {
		return "", failure.New(failure.Artifact, "pull %s: the model is called %q", ref, model)
	}
	for _, l := range m.Layers {
		name := l.Annotations[v1.AnnotationTitle]
		if name != path.Clean(name) || !filepath.IsLocal(filepath.FromSlash(name)) || !strings.HasPrefix(name, model+"/") {
			return "", failure.New(failure.Artifact, "pull %s: the file %q leaves the model's folder", ref, name)
		}
	}
	return model, nil
}
