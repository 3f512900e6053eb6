package validation

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/regular"
	"github.com/trtship/trtship/internal/tensor"
)

// ReferenceFormat is the tag of reference.json.
const ReferenceFormat = "trtship-reference/1"

const referenceFile = "reference.json"

// Array is the name and element type of an input or output.
type Array struct {
	Name  string       `json:"name"`
	DType tensor.DType `json:"dtype"`
}

// Point is one set of input shapes, with its samples.
type Point struct {
	Name    string             `json:"name"`
	Profile int                `json:"profile"` // -1: none
	Shapes  map[string][]int64 `json:"shapes"`
	Batch   int64              `json:"batch,omitempty"` // size of the batch; 0 if there is no dynamic batch
	Samples []Sample           `json:"samples"`
}

// Sample names the files of one feed and of the reference's answer, relative to
// the reference's folder.
type Sample struct {
	In  string `json:"in"`
	Out string `json:"out"`
	// Rows is how many rows count, from the first on, where a last batch was
	// filled up; 0 means all.
	Rows int64 `json:"rows,omitempty"`
	// Source is the user's own file; empty for generated feeds.
	Source string `json:"source,omitempty"`
}

// Manifest is reference.json.
type Manifest struct {
	Format  string  `json:"format"`
	Source  string  `json:"source"` // what answered, e.g. "PyTorch 2.11.0, eval mode"
	Seed    int64   `json:"seed"`
	Inputs  []Array `json:"inputs"`
	Outputs []Array `json:"outputs"`
	Points  []Point `json:"points"`
	// BatchInputs are the inputs whose first axis is the batch, if it is dynamic.
	BatchInputs []string `json:"batch_inputs,omitempty"`
	MinBatch    int64    `json:"min_batch,omitempty"` // smallest batch that a profile allows
	// Different are outputs that differed between two runs of one feed, and
	// Random the operators that are to blame, if known.
	Different []string `json:"different,omitempty"`
	Random    []string `json:"random,omitempty"`
	Task      *Task    `json:"task,omitempty"`
	Notes     []string `json:"notes,omitempty"`
}

// Task is labelled data: feeds with the reference's answers, and the labels.
type Task struct {
	Metric         string   `json:"metric"`
	Output         string   `json:"output"`
	MaxDegradation float64  `json:"max_degradation"`
	Labels         string   `json:"labels"` // .npz file with the array "labels"
	Count          int64    `json:"count"`
	Samples        []Sample `json:"samples"`
}

// Reference is a folder of feeds and the reference's outputs.
type Reference struct {
	Dir string
	Manifest
}

// OpenReference reads the folder of a reference artifact.
func OpenReference(dir string) (*Reference, error) {
	r := &Reference{Dir: dir}
	if err := readJSON(filepath.Join(dir, referenceFile), &r.Manifest); err != nil {
		return nil, failure.New(failure.Artifact, "open reference: %w", err).At(dir)
	}
	if r.Format != ReferenceFormat {
		return nil, failure.New(failure.Artifact, "open reference: format %q, expected %q", r.Format, ReferenceFormat).At(dir)
	}
	for _, s := range r.samples() {
		for _, name := range []string{s.In, s.Out} {
			if !filepath.IsLocal(name) {
				return nil, failure.New(failure.Artifact, "open reference: file %q leaves the folder", name).At(dir)
			}
		}
	}
	return r, nil
}

func (r *Reference) samples() []Sample {
	var all []Sample
	for _, p := range r.Points {
		all = append(all, p.Samples...)
	}
	if r.Task != nil {
		all = append(all, r.Task.Samples...)
	}
	return all
}

// Feed is one feed to be answered: absolute paths of an .npz file that exists
// and of one to be written.
type Feed struct{ In, Out string }

// Feeds lists all feeds, those of the task at the end.
func (r *Reference) Feeds() []Feed {
	var all []Feed
	for _, s := range r.samples() {
		all = append(all, Feed{In: filepath.Join(r.Dir, s.In), Out: filepath.Join(r.Dir, s.Out)})
	}
	return all
}

// Save writes reference.json, once the outputs are there. outputs are their
// names and true element types, in the model's order.
func (r *Reference) Save(source string, outputs []Array) error {
	r.Format, r.Source, r.Outputs = ReferenceFormat, source, outputs
	for _, f := range r.Feeds() {
		if _, err := os.Stat(f.Out); err != nil {
			return fmt.Errorf("save reference: %w", err)
		}
	}
	return writeJSON(filepath.Join(r.Dir, referenceFile), r.Manifest)
}

// In reads the feed of a sample.
func (r *Reference) In(s Sample) ([]tensor.Named, error) {
	return readArrays(filepath.Join(r.Dir, s.In), r.Inputs)
}

// Out reads the reference's outputs for a sample.
func (r *Reference) Out(s Sample) ([]tensor.Named, error) {
	return readArrays(filepath.Join(r.Dir, s.Out), r.Outputs)
}

// readArrays reads an .npz file and gives arrays of raw integers their true type.
func readArrays(path string, types []Array) ([]tensor.Named, error) {
	got, err := tensor.ReadNPZ(path)
	if err != nil {
		return nil, failure.New(failure.Artifact, "read stored arrays: %w", err).At(path)
	}
	for i := range got {
		for _, a := range types {
			if a.Name == got[i].Name && got[i].DType != a.DType && got[i].DType != tensor.String && a.DType.Size() == got[i].DType.Size() && !isNumpy(a.DType) {
				got[i].DType = a.DType
			}
		}
	}
	return got, nil
}

// isNumpy reports whether NumPy has the type, so that a file tells it itself.
func isNumpy(d tensor.DType) bool {
	return d != tensor.BFloat16 && d != tensor.Float8E4 && d != tensor.Float8E5
}

func readJSON(path string, v any) error {
	b, err := regular.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	return nil
}

func writeJSON(path string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o644)
}

// folder makes a folder's name of a point's: its number keeps names apart that
// differ only in characters that files cannot have.
func folder(i int, name string) string {
	clean := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' {
			return r
		}
		return '-'
	}, name)
	return fmt.Sprintf("%d-%.40s", i, clean)
}
