// Package validation compares a candidate (an ONNX graph, an engine, a served
// model) with the reference model, output by output, at every shape point.
//
// A [Reference] is a folder: feeds and the reference's outputs for several
// samples at each point. [Judge] runs a candidate over the feeds, keeps its
// outputs in a second folder, and compares the two. The comparison reads those
// folders only, so that [Recheck] repeats it later with other tolerances and
// without any model.
package validation

import (
	"context"

	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/report"
)

// Candidate is whatever answers feeds: an ONNX Runtime session, an engine, a
// client of a server. Inputs and outputs go by name.
type Candidate interface {
	Infer(ctx context.Context, inputs []tensor.Named) ([]tensor.Named, error)
}

// Options say how a candidate is judged.
type Options struct {
	Stage     string // name of the stage; the first half of every check's id
	Candidate string // what runs, for people, e.g. "ONNX Runtime 1.30.0, graph optimisation off, 1 thread"
	Precision string // onnx, fp32, fp16, bf16, int8; chooses nothing here, only labels
	Protocol  string // http or grpc; labels checks of a served model
	Hardware  bool   // the checks need a GPU
	Preview   bool   // the precision is only approximated

	Tolerance func(output string) report.Tolerance

	// Dir gets the candidate's outputs; it exists and is empty.
	Dir string
	// LooseRepeat lets two runs of one feed differ within the tolerance, for
	// runtimes whose sums have no fixed order. Otherwise they must agree in every bit.
	LooseRepeat bool
	// DeploysONNX says that ONNX Runtime is what serves the model, so that a fault
	// of its optimizer is a failed check and not only a note.
	DeploysONNX bool
	// AllowRandom lets random outputs through without a comparison of values.
	AllowRandom bool
	// RandomNodes are the graph's random operators, to be named.
	RandomNodes []string
	// Skip says why a point cannot be asked of this candidate (outside its
	// profile, say); empty means that it can. Nil asks every point.
	Skip func(Point) string
	// Progress hears how many runs are done; may be nil.
	Progress func(done, total int64, label string)
}

// id returns the id of a check.
func (o Options) id(name string) string { return o.Stage + "/" + name }

// The checks that Judge makes; each id has the stage's name in front.
const (
	checkTolerance     = "within-tolerance"
	checkShapes        = "shapes"
	checkDeterministic = "deterministic"
	checkCosine        = "cosine"
	checkTop1          = "top1"
	checkTask          = "task-metric"
	checkEvidence      = "evidence"
	checkNeighbours    = "batch-independent"
)
