package triton

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/provenance"
	"github.com/trtship/trtship/internal/regular"
	"github.com/trtship/trtship/internal/triton/pbtxt"
	"github.com/trtship/trtship/internal/triton/tritonpb"
)

// ManifestFile lies beside config.pbtxt. Triton ignores it.
const ManifestFile = "trtship-manifest.json"

// ManifestFormat is the tag of the manifest.
const ManifestFormat = "trtship-repository/1"

// manifestBytes is the largest manifest that is read.
const manifestBytes = 64 << 20

// Manifest records what each version of a model is, with the digests of its files.
type Manifest struct {
	Format   string             `json:"format"`
	Model    string             `json:"model"`
	Config   string             `json:"config_digest"` // sha256 of config.pbtxt
	Files    map[string]string  `json:"files"`         // files beside config.pbtxt, with digests
	Versions map[string]Version `json:"versions"`
}

// Version is one version folder.
type Version struct {
	Format    Format            `json:"format"`
	Precision string            `json:"precision,omitempty"`
	From      []string          `json:"from,omitempty"` // ids of the artifacts it was made from
	TensorRT  string            `json:"tensorrt,omitempty"`
	GPU       string            `json:"gpu,omitempty"`
	Files     map[string]string `json:"files"` // relative to the version folder, with digests
}

// Content is a model with one new version.
type Content struct {
	Config *tritonpb.ModelConfig
	Append string // text that is added to config.pbtxt as it is
	// Version is the folder's number; 0 takes the next free one.
	Version int
	Files   map[string]string // file in the version folder: file to copy
	Beside  map[string]string // file beside config.pbtxt: file to copy
	Data    map[string][]byte // file beside config.pbtxt: its bytes
	Record  Version           // without Files
}

// Text returns config.pbtxt.
func (c Content) Text() string {
	text := "# Written by trtship from the model's own tensors.\n" + pbtxt.Write(c.Config)
	if add := strings.TrimSpace(c.Append); add != "" {
		text += "\n# From triton.config_append.\n" + add + "\n"
	}
	return text
}

// Add writes a version of a model into a repository and returns its number. The
// repository may be empty or hold other versions, which stay as they are: a
// version that is there already is refused. All of it is written into a hidden
// folder first and then put in place: whatever fails, nothing of it is left.
func Add(repository string, c Content) (version int, err error) {
	name := c.Config.GetName()
	if err := checkModelName(name); err != nil {
		return 0, err
	}
	dir := filepath.Join(repository, name)
	fresh := absent(dir)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return 0, failure.New(failure.Artifact, "make model folder: %w", err)
	}
	defer func() {
		for i := 0; err != nil && i < len(fresh); i++ {
			_ = os.Remove(fresh[i]) // if it is empty
		}
	}()
	m, err := readManifest(dir, name)
	if err != nil {
		return 0, err
	}
	if version, err = chooseVersion(dir, c.Version); err != nil {
		return 0, err
	}
	if err := m.keep(dir, c); err != nil {
		return 0, err
	}
	temporary, err := os.MkdirTemp(dir, ".new-*")
	if err != nil {
		return 0, failure.New(failure.Artifact, "make version folder: %w", err)
	}
	defer func() { _ = os.RemoveAll(temporary) }()
	beside, err := m.prepare(temporary, version, c)
	if err != nil {
		return 0, err
	}
	return version, place(temporary, dir, version, beside)
}

// absent lists the folders that making dir would make, the innermost first.
func absent(dir string) (out []string) {
	for {
		if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) || dir == filepath.Dir(dir) {
			return out
		}
		out, dir = append(out, dir), filepath.Dir(dir)
	}
}

// versionFolder and besideFolder are the parts of the hidden folder.
const (
	versionFolder = "version"
	besideFolder  = "beside"
)

// prepare writes the version and what lies beside it below temporary, and
// returns the names of the latter in the order in which they are put in place.
func (m *Manifest) prepare(temporary string, version int, c Content) ([]string, error) {
	record := c.Record
	record.Files = map[string]string{}
	if err := os.Mkdir(filepath.Join(temporary, versionFolder), 0o755); err != nil {
		return nil, failure.New(failure.Artifact, "make version folder: %w", err)
	}
	var err error
	for _, n := range sorted(c.Files) {
		if record.Files[n], err = copyFile(c.Files[n], filepath.Join(temporary, versionFolder, filepath.FromSlash(n))); err != nil {
			return nil, failure.New(failure.Artifact, "copy %s: %w", n, err)
		}
	}
	beside := filepath.Join(temporary, besideFolder)
	for _, n := range sorted(c.Beside) {
		if m.Files[n], err = copyFile(c.Beside[n], filepath.Join(beside, filepath.FromSlash(n))); err != nil {
			return nil, failure.New(failure.Artifact, "copy %s: %w", n, err)
		}
	}
	for _, n := range sorted(c.Data) {
		if err := write(filepath.Join(beside, filepath.FromSlash(n)), c.Data[n]); err != nil {
			return nil, failure.New(failure.Artifact, "write %s: %w", n, err)
		}
		m.Files[n] = digest(c.Data[n])
	}
	text := []byte(c.Text())
	m.Config = digest(text)
	m.Versions[strconv.Itoa(version)] = record
	b, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write manifest: %w", err)
	}
	if err := errors.Join(write(filepath.Join(beside, "config.pbtxt"), text), write(filepath.Join(beside, ManifestFile), append(b, '\n'))); err != nil {
		return nil, failure.New(failure.Artifact, "write config.pbtxt and the manifest: %w", err)
	}
	return append(append(sorted(c.Beside), sorted(c.Data)...), "config.pbtxt", ManifestFile), nil
}

// place puts in place what prepare wrote, the manifest last. If that fails the
// version is taken away again; files of ours beside it may be the new ones.
func place(temporary, dir string, version int, beside []string) (err error) {
	final := filepath.Join(dir, strconv.Itoa(version))
	if err := os.Rename(filepath.Join(temporary, versionFolder), final); err != nil {
		return failure.New(failure.Artifact, "place version %d: %w", version, err)
	}
	for _, n := range beside {
		at := filepath.Join(dir, filepath.FromSlash(n))
		if err = os.MkdirAll(filepath.Dir(at), 0o755); err == nil {
			err = os.Rename(filepath.Join(temporary, besideFolder, filepath.FromSlash(n)), at)
		}
		if err != nil {
			_ = os.Rename(final, filepath.Join(temporary, versionFolder))
			return failure.New(failure.Artifact, "place %s: %w", n, err)
		}
	}
	return nil
}

// keep refuses to replace what somebody else wrote: a file beside the versions
// that the manifest does not have as it is, and that is not what is written now
// either (a write that was cut off before the manifest followed).
func (m *Manifest) keep(dir string, c Content) error {
	fresh := map[string]string{"config.pbtxt": digest([]byte(c.Text()))}
	for n, b := range c.Data {
		fresh[n] = digest(b)
	}
	for n, src := range c.Beside {
		var err error
		if fresh[n], err = digestOf(src); err != nil {
			return failure.New(failure.Artifact, "copy %s: %w", n, err)
		}
	}
	for _, n := range sorted(fresh) {
		file := filepath.Join(dir, filepath.FromSlash(n))
		have, err := digestOf(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		ours := m.Files[n]
		if n == "config.pbtxt" {
			ours = m.Config
		}
		if err == nil && (have == ours || have == fresh[n]) {
			continue
		}
		e := failure.New(failure.Artifact, "%s of %s was not written by trtship, or was changed since; it is not overwritten", n, m.Model).At(file)
		if err != nil {
			e = failure.New(failure.Artifact, "%s of %s is not overwritten: %w", n, m.Model, err).At(file)
		}
		return e.WithHint("move it away, or write to another repository; fields of your own belong into triton.config_append")
	}
	return nil
}

// digestOf hashes a file.
func digestOf(file string) (string, error) {
	f, err := regular.Open(file)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
}

// checkModelName refuses names that cannot be a folder or a part of a URL.
func checkModelName(name string) error {
	ok := name != "" && name[0] != '.' && name[0] != '-'
	for _, r := range name {
		ok = ok && (r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '-' || r == '_')
	}
	if !ok {
		return failure.New(failure.Usage, "model name %q: letters, digits, dot, dash and underscore are allowed, the first is a letter or a digit", name).
			WithHint("set triton.model_name")
	}
	return nil
}

func readManifest(dir, name string) (*Manifest, error) {
	m := &Manifest{}
	b, err := provenance.ReadFile(filepath.Join(dir, ManifestFile), manifestBytes)
	if err == nil {
		err = json.Unmarshal(b, m)
	}
	if err == nil && m.Format != ManifestFormat {
		err = fmt.Errorf("its format is %q, want %q", m.Format, ManifestFormat)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, failure.New(failure.Artifact, "read manifest: %w", err).At(filepath.Join(dir, ManifestFile))
	}
	m.Format, m.Model = ManifestFormat, name
	if m.Files == nil {
		m.Files = map[string]string{}
	}
	if m.Versions == nil {
		m.Versions = map[string]Version{}
	}
	return m, nil
}

// ReadManifest reads the manifest of a model's folder.
func ReadManifest(dir string) (*Manifest, error) {
	if _, err := os.Stat(filepath.Join(dir, ManifestFile)); err != nil {
		return nil, failure.New(failure.Artifact, "read manifest: %w", err)
	}
	return readManifest(dir, filepath.Base(dir))
}

// Versions lists the version folders of a model as Triton reads them, ascending.
func Versions(dir string) ([]int64, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var out []int64
	for _, e := range entries {
		if v, err := strconv.ParseInt(e.Name(), 10, 64); err == nil && e.IsDir() && v > 0 && e.Name()[0] != '0' {
			out = append(out, v)
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i] < out[j] })
	return out, nil
}

func chooseVersion(dir string, want int) (int, error) {
	have, err := Versions(dir)
	if err != nil {
		return 0, failure.New(failure.Artifact, "list versions: %w", err)
	}
	next := 1
	if len(have) > 0 && have[len(have)-1] < math.MaxInt {
		next = int(have[len(have)-1]) + 1
	} else if len(have) > 0 {
		next = 0
	}
	if want == 0 && next == 0 {
		return 0, failure.New(failure.Artifact, "%s has version %d, and there is no number behind it", filepath.Base(dir), have[len(have)-1]).At(dir).
			WithHint("name a free one with triton.version")
	}
	if want == 0 {
		return next, nil
	}
	for _, v := range have {
		if int(v) == want {
			return 0, failure.New(failure.Artifact, "version %d of %s is already there and is never overwritten", want, filepath.Base(dir)).
				At(filepath.Join(dir, strconv.Itoa(want))).WithHint("leave triton.version out for the next free one (%d)", next)
		}
	}
	return want, nil
}

// copyFile copies a file, syncs it and returns its digest.
func copyFile(src, dst string) (string, error) {
	in, err := regular.Open(src)
	if err != nil {
		return "", err
	}
	defer func() { _ = in.Close() }()
	if err := os.MkdirAll(filepath.Dir(dst), 0o755); err != nil {
		return "", err
	}
	out, err := os.OpenFile(dst, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o644)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	_, err = io.CopyBuffer(io.MultiWriter(h, out), struct{ io.Reader }{in}, make([]byte, 1<<20))
	if err == nil {
		err = out.Sync()
	}
	if cerr := out.Close(); err == nil {
		err = cerr
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), err
}

func digest(b []byte) string {
	h := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(h[:])
}

// write writes and syncs a file that is not there yet.
func write(path string, b []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

func sorted[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	sort.Strings(out)
	return out
}

// ProvenanceFile is the statement of provenance of the run that a model came
// from, beside its manifest. It is not listed in it.
const ProvenanceFile = "trtship-provenance.json"

// Wants are the files of a model as its manifest has them.
func (m *Manifest) Wants() []provenance.Want {
	want := []provenance.Want{{Path: "config.pbtxt", Digest: m.Config, Size: -1}}
	for _, n := range sorted(m.Files) {
		want = append(want, provenance.Want{Path: n, Digest: m.Files[n], Size: -1})
	}
	for _, v := range sorted(m.Versions) {
		for _, n := range sorted(m.Versions[v].Files) {
			want = append(want, provenance.Want{Path: v + "/" + n, Digest: m.Versions[v].Files[n], Size: -1})
		}
	}
	return want
}

// Verify holds a model's folder to its manifest: every file that it lists, and
// files that it does not list, which Triton would load. If the folder has a
// statement of provenance, that must cover every file.
func Verify(ctx context.Context, dir string) (provenance.Found, error) {
	m, err := ReadManifest(dir)
	if err != nil {
		return provenance.Found{Problems: []provenance.Problem{}}, err
	}
	want := m.Wants()
	found, err := provenance.CheckFiles(ctx, dir, want, true, ManifestFile, ProvenanceFile)
	if err != nil {
		return found, failure.New(failure.Interrupted, "verify %s: %w", filepath.Base(dir), err)
	}
	text, err := provenance.ReadFile(filepath.Join(dir, ProvenanceFile), provenance.MaxBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return found, nil
	}
	if err != nil {
		found.Say(provenance.Unreadable, ProvenanceFile, "%s", err)
		return found, nil
	}
	s, err := provenance.Decode(text)
	if err != nil {
		found.Say(provenance.Invalid, ProvenanceFile, "%s", err)
		return found, nil
	}
	for _, name := range s.Covers(want) {
		found.Say(provenance.Invalid, ProvenanceFile, "it does not speak of the bytes of %s", name)
	}
	return found, nil
}

// Problems joins what was found into one line.
func Problems(found provenance.Found) string {
	lines := make([]string, len(found.Problems))
	for i, p := range found.Problems {
		lines[i] = p.String()
	}
	return strings.Join(lines, ", ")
}

// Model is one model of a repository.
type Model struct {
	Name     string
	Dir      string
	Config   *tritonpb.ModelConfig // as written
	Versions []int64
}

// Newest returns the highest version as text; empty if there is none.
func (m Model) Newest() string {
	if len(m.Versions) == 0 {
		return ""
	}
	return strconv.FormatInt(m.Versions[len(m.Versions)-1], 10)
}

// Models reads the configurations of a repository's models, by name.
func Models(repository string) ([]Model, error) {
	entries, err := os.ReadDir(repository)
	if err != nil {
		return nil, failure.New(failure.Artifact, "open repository: %w", err)
	}
	var out []Model
	for _, e := range entries {
		dir := filepath.Join(repository, e.Name())
		text, err := regular.ReadFile(filepath.Join(dir, "config.pbtxt"))
		if err != nil {
			continue
		}
		m := Model{Name: e.Name(), Dir: dir, Config: pbtxt.Parse(string(text)).Config}
		if m.Versions, err = Versions(dir); err != nil {
			return nil, failure.New(failure.Artifact, "list versions: %w", err)
		}
		out = append(out, m)
	}
	return out, nil
}

// OnlyModel returns the model of a repository that holds exactly one.
func OnlyModel(repository string) (Model, error) {
	models, err := Models(repository)
	if err != nil {
		return Model{}, err
	}
	if len(models) != 1 {
		names := make([]string, len(models))
		for i, m := range models {
			names[i] = m.Name
		}
		return Model{}, failure.New(failure.Artifact, "the repository holds %d models (%s), expected one", len(models), strings.Join(names, ", ")).At(repository)
	}
	return models[0], nil
}
