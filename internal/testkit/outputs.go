package testkit

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"sort"
	"sync"
	"testing"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/stage"
)

// Outputs is stage.Outputs without a store, for tests of one stage: what is
// published stays where the stage made it.
type Outputs struct {
	t    testing.TB
	root string

	mu        sync.Mutex
	log       bytes.Buffer
	Published []artifact.Artifact
	Documents map[artifact.Kind][]byte // by kind, as JSON
	Depends   []string                 // of DependOn, sorted
}

var _ stage.Outputs = (*Outputs)(nil)

// NewOutputs returns empty outputs in a folder of the test.
func NewOutputs(t testing.TB) *Outputs {
	t.Helper()
	return &Outputs{t: t, root: t.TempDir(), Documents: map[artifact.Kind][]byte{}}
}

// Scratch makes a folder.
func (o *Outputs) Scratch(name string) (string, error) {
	return os.MkdirTemp(o.root, name+"-")
}

// Publish records dir's files.
func (o *Outputs) Publish(kind artifact.Kind, label, dir string, meta map[string]string) (artifact.Artifact, error) {
	a := artifact.Artifact{Record: artifact.Record{Kind: kind, Label: label, Meta: meta}, Dir: dir}
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		a.Files = append(a.Files, artifact.File{Path: filepath.ToSlash(rel), Size: info.Size()})
		return err
	})
	o.mu.Lock()
	defer o.mu.Unlock()
	o.Published = append(o.Published, a)
	return a, err
}

// PublishDocument keeps v as JSON.
func (o *Outputs) PublishDocument(kind artifact.Kind, v any) (artifact.Artifact, error) {
	text, err := json.Marshal(v)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.Documents[kind] = text
	return artifact.Artifact{Record: artifact.Record{Kind: kind}}, err
}

// DependOn records path.
func (o *Outputs) DependOn(path string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.Depends = append(o.Depends, path)
	sort.Strings(o.Depends)
}

// Log keeps what is written.
func (o *Outputs) Log() io.Writer { return (*outputsLog)(o) }

// Progress is not kept.
func (o *Outputs) Progress(int64, int64, string) {}

// LogText returns what was logged.
func (o *Outputs) LogText() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.log.String()
}

// Document decodes the published document of a kind into v.
func (o *Outputs) Document(kind artifact.Kind, v any) {
	o.t.Helper()
	text, ok := o.Documents[kind]
	if !ok {
		o.t.Fatalf("no %s was published", kind)
	}
	if err := json.Unmarshal(text, v); err != nil {
		o.t.Fatal(err)
	}
}

type outputsLog Outputs

func (l *outputsLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.log.Write(b)
}
