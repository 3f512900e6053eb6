// Package compare holds a served model to the reference: over every protocol,
// alone and among concurrent requests of mixed sizes.
package compare

import (
	"context"
	"fmt"
	"strings"

	"github.com/trtship/trtship/internal/stage"
	"github.com/trtship/trtship/internal/triton"
	"github.com/trtship/trtship/internal/triton/kserve"
	"github.com/trtship/trtship/internal/triton/tritonpb"
	"github.com/trtship/trtship/internal/validation"
	"github.com/trtship/trtship/report"
)

// stageName is the first half of every check's id.
const stageName = "served"

// checkMerged is the check that the server merged requests.
const checkMerged = stageName + "/batches-merged"

// Docs describes the checks that Run makes.
func Docs() []stage.CheckDoc {
	return append([]stage.CheckDoc{
		{ID: checkMerged, Title: "Under concurrent requests the server merged some into one batch.", Remedy: "Raise dynamic_batching.max_queue_delay_us, or look whether requests differ in other sizes than the batch."},
	}, validation.Docs(stageName, false)...)
}

// Options say what is compared and where results go.
type Options struct {
	Server      string // the server's name, for people
	Model       string
	Version     string
	Loaded      *tritonpb.ModelConfig // the configuration as the server has it
	Precision   string                // of the tolerances
	Tolerance   func(output string) report.Tolerance
	AllowRandom bool
	Seed        int64
	Protocols   []kserve.Protocol
	Dial        func(kserve.Protocol) (kserve.Client, error)
	// Scratch makes an empty folder for the outputs of one comparison.
	Scratch func(label string) (string, error)
	// Done takes the outcome of one comparison, with its outputs in dir; may be nil.
	Done     func(label, dir string, v report.Validation) error
	Progress func(done, total int64, label string)
}

// Run makes all comparisons and returns their checks.
func Run(ctx context.Context, ref *validation.Reference, o Options) ([]report.Check, error) {
	r := &runner{o: o, ref: ref}
	for _, p := range o.Protocols {
		client, err := o.Dial(p)
		if err != nil {
			return r.checks, err
		}
		err = r.judge(ctx, string(p), r.served(client))
		_ = client.Close()
		if err != nil {
			return r.checks, err
		}
	}
	return r.checks, r.concurrent(ctx, o.Protocols[len(o.Protocols)-1])
}

type runner struct {
	o      Options
	ref    *validation.Reference
	checks []report.Check
}

func (r *runner) served(c kserve.Client) triton.Served {
	return triton.Served{Model: kserve.Model{Client: c, Name: r.o.Model, Version: r.o.Version}, Config: r.o.Loaded}
}

// judge compares one candidate and hands its outcome on.
func (r *runner) judge(ctx context.Context, protocol string, c validation.Candidate) error {
	dir, err := r.o.Scratch("outputs-" + protocol)
	if err != nil {
		return err
	}
	v, checks, err := validation.Judge(ctx, c, r.ref, validation.Options{
		Stage: stageName, Candidate: fmt.Sprintf("%s over %s", r.o.Server, strings.Replace(protocol, "-", ", ", 1)),
		Precision: r.o.Precision, Protocol: protocol, Tolerance: r.o.Tolerance, Dir: dir,
		LooseRepeat: strings.HasSuffix(protocol, suffix), // merged batches add in another order
		AllowRandom: r.o.AllowRandom, Skip: r.tooLarge, Progress: r.o.Progress,
	})
	if err != nil {
		return err
	}
	r.checks = append(r.checks, checks...)
	if r.o.Done == nil {
		return nil
	}
	return r.o.Done(protocol, dir, v)
}

// tooLarge says why a point cannot be asked of the served model.
func (r *runner) tooLarge(p validation.Point) string {
	if limit := int64(r.o.Loaded.GetMaxBatchSize()); limit > 0 && p.Batch > limit {
		return fmt.Sprintf("batch %d is above max_batch_size %d", p.Batch, limit)
	}
	return ""
}
