// Package stage is the contract between the pipeline and its stages.
//
// A stage is a struct made by a constructor that takes its settings and tools.
// It has a Spec, which is data, and a Run, which turns input artifacts into
// output artifacts and checks. A check that does not hold is a value; an error
// from Run means that the stage could not find out (the pipeline turns it into
// a broken or missing check and keeps going where it can).
package stage

import (
	"context"
	"io"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/report"
)

// Need is a capability of the machine that a stage cannot do without.
type Need string

// The capabilities. Preflight asks for each of them before the first stage.
const (
	NeedTorch    Need = "torch"
	NeedORT      Need = "onnxruntime"
	NeedGPU      Need = "gpu"
	NeedTensorRT Need = "tensorrt"
	NeedTriton   Need = "triton"
)

// In is one kind of artifact that a stage reads. An optional kind may be absent,
// but not all of them: a stage that reads nothing at all is not run.
type In struct {
	Kind     artifact.Kind
	Optional bool
}

// CheckDoc describes a check of a stage for docs/checks.md.
type CheckDoc struct {
	ID       string // "<stage>/<kebab-case>", stable for ever
	Title    string // what holds when it passes, as a sentence
	Remedy   string // what to do when it does not
	Hardware bool   // needs a GPU
}

// Spec is what the pipeline knows about a stage.
type Spec struct {
	Name      string // as in --until and in check ids
	Version   int    // raised when the stage makes other bytes from the same inputs
	Title     string // one line for people
	In        []In
	Out       []artifact.Kind
	Needs     []Need
	Checks    []CheckDoc
	Cacheable bool // false for measurements of this machine right now
	Hardware  bool // runs on a GPU; the key then holds GPU, driver and TensorRT
}

// Stage is one step of the pipeline.
type Stage interface {
	Spec() Spec
	// Settings is the slice of the configuration that decides what the stage
	// makes. It is marshalled to JSON and enters the cache key.
	Settings() any
	// Sources are the files and folders outside the store that the stage reads
	// (weights, data sets, source code). Their contents enter the cache key.
	Sources() []string
	// Tools are the versions of the tools that decide what the stage makes, by
	// name. They are read from package metadata, never by importing a package.
	Tools(ctx context.Context) (map[string]string, error)
	// Run does the work. Outputs go to out; out.Publish must be called for every
	// artifact. The checks belong to the stage's Spec.
	Run(ctx context.Context, in Inputs, out Outputs) ([]report.Check, error)
}

// Inputs gives a stage the artifacts that it declared, verified.
type Inputs interface {
	// One returns the only artifact of a kind; it fails if there is none or several.
	One(kind artifact.Kind) (artifact.Artifact, error)
	// All returns the artifacts of a kind in label order; none is no error.
	All(kind artifact.Kind) []artifact.Artifact
}

// Outputs takes what a stage makes.
type Outputs interface {
	// Scratch returns a fresh empty folder on the store's file system, removed
	// after the run whatever happens.
	Scratch(name string) (string, error)
	// Publish moves dir's files into the store as one artifact.
	Publish(kind artifact.Kind, label, dir string, meta map[string]string) (artifact.Artifact, error)
	// PublishDocument writes v as canonical JSON into an artifact of a report kind.
	PublishDocument(kind artifact.Kind, v any) (artifact.Artifact, error)
	// DependOn adds a file to the cache entry that was found to matter only
	// while running (an imported Python module, say).
	DependOn(path string)
	// Log is the stage's log file, for the output of children and for detail.
	Log() io.Writer
	// Progress reports work done out of total (total 0: unknown) with a short label.
	Progress(done, total int64, label string)
}
