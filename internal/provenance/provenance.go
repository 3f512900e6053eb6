// Package provenance says what a run made and from what, in the words of others:
// an in-toto statement whose subjects are the files of the run's artifacts and
// whose predicate is SLSA provenance. It also holds files to digests, which is
// all that a statement, a run and a model repository need to be verified.
//
// Nothing in a statement names a person, a host or a place on a disk, and but
// for the id, the times and the byproducts of a run, equal inputs give equal
// bytes.
package provenance

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	slsa "github.com/in-toto/attestation/go/predicates/provenance/v1"
	intoto "github.com/in-toto/attestation/go/v1"
	"github.com/package-url/packageurl-go"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/report"
)

// FileName is the statement of a run, beside its report.json.
const FileName = "provenance.json"

// MediaType is that of an unsigned statement in an OCI registry.
const MediaType = "application/vnd.in-toto+json"

// PredicateType is what the statements say: SLSA provenance.
const PredicateType = "https://slsa.dev/provenance/v1"

// BuildType says how to read the parameters; docs/provenance.md is its text.
const BuildType = "https://github.com/trtship/trtship/blob/main/docs/provenance.md#v1"

// BuilderID is the program that made the artifacts. It vouches for itself: a
// statement is not signed.
const BuilderID = "https://github.com/trtship/trtship"

// MaxBytes is the largest statement that is read.
const MaxBytes = 64 << 20

// Run is what is known about a run when it ends.
type Run struct {
	ID         string
	Started    time.Time
	Finished   time.Time
	Model      string
	Config     artifact.Digest // of the configuration as it was resolved
	Until      string
	From       string
	Only       []string
	Tool       report.Tool
	Go         string // version of the compiler
	Env        report.Environment
	Stages     map[string]artifact.Digest // keys of the stages whose artifacts are subjects
	Subjects   []File
	Materials  []Material
	Byproducts []File
}

// File is a file by its path in the run's folder.
type File struct {
	Path     string
	Digest   artifact.Digest
	Artifact string // id; empty for a byproduct
	Stage    string // that made it
}

// Material is something that artifacts were made from.
type Material struct {
	Name   string          // path from the configuration's folder, or what it is
	URI    string          // a package URL; empty for a file
	Digest artifact.Digest // may be empty where there is a URI
	Stage  string          // that used it; empty for the run
}

// Encode writes the statement of a run, with sorted keys. It needs one subject
// at least.
func Encode(r Run) ([]byte, error) {
	predicate, err := predicate(r)
	if err != nil {
		return nil, fmt.Errorf("write provenance: %w", err)
	}
	s := &intoto.Statement{Type: intoto.StatementTypeUri, PredicateType: PredicateType, Predicate: predicate}
	if s.Subject, err = descriptors(r.Subjects); err == nil {
		err = s.Validate()
	}
	var raw []byte
	if err == nil {
		raw, err = protojson.Marshal(s)
	}
	if err == nil {
		raw, err = artifact.Canonical(json.RawMessage(raw)) // protojson varies its white space on purpose
	}
	if err != nil {
		return nil, fmt.Errorf("write provenance: %w", err)
	}
	var b bytes.Buffer
	if err := json.Indent(&b, raw, "", "  "); err != nil {
		return nil, fmt.Errorf("write provenance: %w", err)
	}
	b.WriteByte('\n')
	return b.Bytes(), nil
}

// predicate builds the SLSA provenance.
func predicate(r Run) (*structpb.Struct, error) {
	external, err := structOf(map[string]any{
		"configuration": string(r.Config), "model": r.Model, "until": r.Until, "from": r.From, "only": append([]string{}, r.Only...),
	})
	if err != nil {
		return nil, err
	}
	internal, err := structOf(map[string]any{"environment": r.Env, "stages": r.Stages})
	if err != nil {
		return nil, err
	}
	deps, err := materials(r)
	if err != nil {
		return nil, err
	}
	byproducts, err := descriptors(r.Byproducts)
	if err != nil {
		return nil, err
	}
	version := map[string]string{"trtship": r.Tool.Version, "go": r.Go}
	if r.Tool.Commit != "" {
		version["commit"] = r.Tool.Commit
	}
	p := &slsa.Provenance{
		BuildDefinition: &slsa.BuildDefinition{
			BuildType: BuildType, ExternalParameters: external, InternalParameters: internal, ResolvedDependencies: deps,
		},
		RunDetails: &slsa.RunDetails{
			Builder:    &slsa.Builder{Id: BuilderID, Version: version},
			Metadata:   &slsa.BuildMetadata{InvocationId: r.ID, StartedOn: timestamppb.New(r.Started), FinishedOn: timestamppb.New(r.Finished)},
			Byproducts: byproducts,
		},
	}
	if err := p.Validate(); err != nil {
		return nil, err
	}
	raw, err := protojson.Marshal(p)
	if err != nil {
		return nil, err
	}
	out := &structpb.Struct{}
	return out, protojson.Unmarshal(raw, out)
}

// structOf goes through JSON, so that fields have the names of the report.
func structOf(v any) (*structpb.Struct, error) {
	raw, err := json.Marshal(report.WithLists(v))
	if err != nil {
		return nil, err
	}
	out := &structpb.Struct{}
	return out, protojson.Unmarshal(raw, out)
}

// descriptors lists files by path.
func descriptors(files []File) ([]*intoto.ResourceDescriptor, error) {
	files = slices.Clone(files)
	slices.SortFunc(files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	var out []*intoto.ResourceDescriptor
	for i, f := range files {
		if err := artifact.CheckPath(f.Path); err != nil {
			return nil, err
		}
		if i > 0 && files[i-1].Path == f.Path {
			return nil, fmt.Errorf("file %s is there twice", f.Path)
		}
		d := &intoto.ResourceDescriptor{Name: f.Path, Digest: digestSet(f.Digest)}
		if f.Artifact != "" {
			var err error
			if d.Annotations, err = structpb.NewStruct(map[string]any{"artifact": f.Artifact, "stage": f.Stage}); err != nil {
				return nil, err
			}
		}
		out = append(out, d)
	}
	return out, nil
}

func digestSet(d artifact.Digest) map[string]string {
	if d == "" {
		return nil
	}
	return map[string]string{"sha256": strings.TrimPrefix(string(d), "sha256:")}
}

// materials lists the configuration, the commit, and what the stages used: each
// once, with the stages that did.
func materials(r Run) ([]*intoto.ResourceDescriptor, error) {
	all := slices.Clone(r.Materials)
	all = append(all, Material{Name: "configuration", Digest: r.Config})
	stages := map[Material][]any{}
	for _, m := range all {
		key := Material{Name: m.Name, URI: m.URI, Digest: m.Digest}
		if m.Stage != "" && !slices.Contains(stages[key], any(m.Stage)) {
			stages[key] = append(stages[key], m.Stage)
		} else if _, ok := stages[key]; !ok {
			stages[key] = nil
		}
	}
	keys := make([]Material, 0, len(stages))
	for m := range stages {
		keys = append(keys, m)
	}
	slices.SortFunc(keys, func(a, b Material) int {
		return strings.Compare(a.Name+"\x00"+a.URI+"\x00"+string(a.Digest), b.Name+"\x00"+b.URI+"\x00"+string(b.Digest))
	})
	var out []*intoto.ResourceDescriptor
	for _, m := range keys {
		d := &intoto.ResourceDescriptor{Name: m.Name, Uri: m.URI, Digest: digestSet(m.Digest)}
		if used := stages[m]; len(used) > 0 {
			s, err := structpb.NewStruct(map[string]any{"stages": used})
			if err != nil {
				return nil, err
			}
			d.Annotations = s
		}
		out = append(out, d)
	}
	return commit(out, r.Env.Git)
}

// commit adds the commit that the configuration lies in.
func commit(out []*intoto.ResourceDescriptor, git *report.Git) ([]*intoto.ResourceDescriptor, error) {
	if git == nil || git.Commit == "" {
		return out, nil
	}
	s, err := structpb.NewStruct(map[string]any{"dirty": git.Dirty})
	if err != nil {
		return nil, err
	}
	d := &intoto.ResourceDescriptor{Name: "source repository", Digest: map[string]string{"gitCommit": git.Commit}, Annotations: s}
	if d.Validate() != nil {
		d.Digest = map[string]string{"commit": git.Commit} // a repository of SHA-256, which gitCommit is not
	}
	return append(out, d), nil
}

var record = regexp.MustCompile(`(?:^|/)([A-Za-z0-9_.]+)-([^/-]+)\.dist-info/RECORD$`)

// FileMaterial names a file that a stage read. Of one outside the
// configuration's folder only its own name is told, of an installed package's
// list of files its package URL.
func FileMaterial(name string, digest artifact.Digest, stage string) Material {
	if m := record.FindStringSubmatch(name); m != nil {
		p := PyPI(m[1], m[2])
		p.Digest, p.Stage = digest, stage
		p.Name += " RECORD"
		return p
	}
	if path.IsAbs(name) || artifact.CheckPath(name) != nil {
		name = path.Base(path.Clean("/" + strings.ReplaceAll(name, "\\", "/")))
	}
	return Material{Name: name, Digest: digest, Stage: stage}
}

var separators = regexp.MustCompile(`[-_.]+`)

// PyPI is a package of the Python package index.
func PyPI(name, version string) Material {
	name = strings.ToLower(separators.ReplaceAllString(name, "-"))
	return Material{Name: "python package " + name, URI: packageurl.NewPackageURL(packageurl.TypePyPi, "", name, version, nil, "").ToString()}
}

// ToolMaterial is a tool by the version that decided what a stage made.
func ToolMaterial(name, version, stage string) Material {
	return Material{Name: "tool " + name, URI: packageurl.NewPackageURL(packageurl.TypeGeneric, "", separators.ReplaceAllString(strings.ReplaceAll(name, " ", "-"), "-"), strings.TrimPrefix(version, name+" "), nil, "").ToString(), Stage: stage}
}

// Statement is one that was read: what it names, in its order.
type Statement struct {
	PredicateType string
	Subjects      []Want
	Byproducts    []Want // of SLSA provenance
}

// Decode reads a statement of in-toto's version 1. What it lists is judged when
// it is held to files: a path that leaves its folder is no error here.
func Decode(text []byte) (*Statement, error) {
	if len(text) > MaxBytes {
		return nil, fmt.Errorf("the statement has %d bytes, more than the %d that are read", len(text), MaxBytes)
	}
	s := &intoto.Statement{}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(text, s); err != nil {
		return nil, fmt.Errorf("it is no in-toto statement: %w", plain(err))
	}
	if s.GetType() != intoto.StatementTypeUri {
		return nil, fmt.Errorf("its type is %q, want %q", s.GetType(), intoto.StatementTypeUri)
	}
	if len(s.GetSubject()) == 0 {
		return nil, errors.New("it has no subject")
	}
	out := &Statement{PredicateType: s.GetPredicateType(), Subjects: wants(s.GetSubject())}
	if out.PredicateType != PredicateType {
		return out, nil
	}
	raw, err := protojson.Marshal(s.GetPredicate())
	p := &slsa.Provenance{}
	if err == nil {
		err = (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(raw, p)
	}
	if err != nil {
		return nil, fmt.Errorf("its predicate is no SLSA provenance: %w", plain(err))
	}
	out.Byproducts = wants(p.GetRunDetails().GetByproducts())
	return out, nil
}

// plain makes the library's errors the same every time: it mixes two kinds of
// spaces into them on purpose.
func plain(err error) error {
	text := strings.ReplaceAll(err.Error(), "\u00a0", " ")
	return errors.New(strings.TrimSpace(strings.TrimPrefix(text, "proto:")))
}

func wants(list []*intoto.ResourceDescriptor) []Want {
	out := make([]Want, 0, len(list))
	for _, d := range list {
		w := Want{Path: d.GetName(), Size: -1}
		if hex, ok := d.GetDigest()["sha256"]; ok {
			w.Digest = "sha256:" + hex
		}
		out = append(out, w)
	}
	return out
}
