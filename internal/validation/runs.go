package validation

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strconv"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/ort"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/report"
)

// runsFormat is the tag of outputs.json.
const runsFormat = "trtship-outputs/1"

const (
	runsFile        = "outputs.json"
	neighbourFolder = "neighbours"
)

// runs is outputs.json: what happened when a candidate was run. The outputs
// themselves lie beside it, under the names that the reference gives them.
type runs struct {
	Format    string `json:"format"`
	Candidate string `json:"candidate"`
	// What Recheck needs to know about how the stage judges.
	Loose       bool   `json:"loose_repeat,omitempty"`
	AllowRandom bool   `json:"allow_random,omitempty"`
	Hardware    bool   `json:"hardware,omitempty"`
	Protocol    string `json:"protocol,omitempty"`

	Failures   []runFailure `json:"failures,omitempty"`
	Skipped    []skipped    `json:"skipped,omitempty"`
	Different  []difference `json:"different,omitempty"` // between two runs of one feed
	Random     []string     `json:"random,omitempty"`
	Neighbours []neighbour  `json:"neighbours,omitempty"`

	dir string
}

// runFailure is a point that the candidate did not answer. Point is the point's
// name, or the folder of the task or of neighbours.
type runFailure struct {
	Point  string `json:"point"`
	Error  string `json:"error"`
	Hint   string `json:"hint,omitempty"`
	Broken bool   `json:"broken,omitempty"` // crashed or ran past its time, instead of refusing
}

func (f runFailure) verdict() report.Verdict {
	if f.Broken {
		return report.Broken
	}
	return report.Fail
}

type skipped struct {
	Point  string `json:"point"`
	Reason string `json:"reason"`
}

// difference is an output that two runs of one feed did not agree on.
type difference struct {
	Output string        `json:"output"`
	Point  string        `json:"point"`
	Sample int           `json:"sample"`
	MaxAbs report.Number `json:"max_abs"`
	Within bool          `json:"within_rule"` // every element within atol and rtol as they were then
}

// neighbour is one row of a feed that was run without the other rows.
type neighbour struct {
	Point int    `json:"point"`
	Row   int64  `json:"row"`
	Out   string `json:"out"`
}

func (r *runs) failed(point string) *runFailure {
	for i := range r.Failures {
		if r.Failures[i].Point == point {
			return &r.Failures[i]
		}
	}
	return nil
}

func (r *runs) skipped(point string) string {
	for _, s := range r.Skipped {
		if s.Point == point {
			return s.Reason
		}
	}
	return ""
}

// out reads the candidate's outputs for a sample.
func (r *runs) out(s Sample) ([]tensor.Named, error) {
	return readArrays(filepath.Join(r.dir, s.Out), nil)
}

// openRuns reads the folder of an outputs artifact.
func openRuns(dir string) (*runs, error) {
	r := &runs{dir: dir}
	if err := readJSON(filepath.Join(dir, runsFile), r); err != nil {
		return nil, failure.New(failure.Artifact, "open outputs: %w", err).At(dir)
	}
	if r.Format != runsFormat {
		return nil, failure.New(failure.Artifact, "open outputs: format %q, expected %q", r.Format, runsFormat).At(dir)
	}
	return r, nil
}

// runner asks a candidate for everything.
type runner struct {
	ref    *Reference
	cand   Candidate
	o      Options
	runs   *runs
	done   int64
	total  int64
	broken string // why nothing more can be asked
}

// run runs the candidate over all feeds and writes outputs.json. An error means
// that nothing can be said about the candidate: bad feeds, a missing capability,
// or the end of ctx.
func run(ctx context.Context, cand Candidate, ref *Reference, o Options) (*runs, error) {
	r := &runner{
		ref: ref, cand: cand, o: o,
		runs: &runs{
			Format: runsFormat, Candidate: o.Candidate, Random: o.RandomNodes, dir: o.Dir,
			Loose: o.LooseRepeat, AllowRandom: o.AllowRandom, Hardware: o.Hardware, Protocol: o.Protocol,
		},
	}
	for _, p := range ref.Points {
		r.total += 2 * int64(len(p.Samples))
	}
	if ref.Task != nil {
		r.total += int64(len(ref.Task.Samples))
	}
	for i, p := range ref.Points {
		if err := r.point(ctx, p); err != nil {
			return nil, err
		}
		if err := r.neighbours(ctx, i); err != nil {
			return nil, err
		}
	}
	if err := r.task(ctx); err != nil {
		return nil, err
	}
	return r.runs, writeJSON(filepath.Join(o.Dir, runsFile), r.runs)
}

func (r *runner) point(ctx context.Context, p Point) error {
	if r.o.Skip != nil {
		if why := r.o.Skip(p); why != "" {
			r.runs.Skipped = append(r.runs.Skipped, skipped{Point: p.Name, Reason: why})
			r.done += 2 * int64(len(p.Samples))
			return nil
		}
	}
	for k, s := range p.Samples {
		feed, err := r.ref.In(s)
		if err != nil {
			return err
		}
		first, ok, err := r.infer(ctx, p.Name, s.Source, feed)
		if err != nil || !ok {
			return err
		}
		second, ok, err := r.infer(ctx, p.Name, s.Source, feed)
		if err != nil || !ok {
			return err
		}
		r.compareRuns(p.Name, k, first, second)
		if err := r.save(s.Out, first); err != nil {
			return err
		}
	}
	return nil
}

// infer runs one feed. ok is false where the candidate did not answer, which has
// been noted.
func (r *runner) infer(ctx context.Context, point, source string, feed []tensor.Named) (out []tensor.Named, ok bool, err error) {
	if r.broken != "" {
		r.fail(runFailure{Point: point, Error: "was not run: " + r.broken, Broken: true})
		return nil, false, nil
	}
	if r.o.Progress != nil {
		r.o.Progress(r.done, r.total, point)
	}
	r.done++
	out, err = r.cand.Infer(ctx, feed)
	if err == nil {
		return out, true, nil
	}
	if ctx.Err() != nil {
		return nil, false, context.Cause(ctx)
	}
	if source != "" {
		err = fmt.Errorf("%s: %w", source, err)
	}
	f, expected := errors.AsType[*failure.Error](err)
	_, crashed := errors.AsType[*ort.CrashError](err)
	switch {
	case ort.BadFeed(err), expected && f.Code == failure.Missing:
		return nil, false, err
	case expected && !crashed:
		r.fail(runFailure{Point: point, Error: describe(f, err), Hint: f.Hint})
	default:
		r.broken = "an earlier run ended the runtime"
		r.fail(runFailure{Point: point, Error: describe(f, err), Broken: true})
	}
	return nil, false, nil
}

// describe puts the details of a failure behind its text, for a check has only one.
func describe(f *failure.Error, err error) string {
	text := err.Error()
	if f == nil {
		return text
	}
	for _, d := range f.Details {
		if d.Label == "feed" || d.Label == "stderr" || d.Label == "node" {
			text += fmt.Sprintf("\n%s: %s", d.Label, d.Value)
		}
	}
	return text
}

func (r *runner) fail(f runFailure) {
	if r.runs.failed(f.Point) == nil {
		r.runs.Failures = append(r.runs.Failures, f)
	}
}

func (r *runner) compareRuns(point string, sample int, first, second []tensor.Named) {
	for _, a := range first {
		b, ok := tensor.Find(second, a.Name)
		if ok && a.Equal(b) {
			continue
		}
		t := r.o.Tolerance(a.Name)
		d := difference{Output: a.Name, Point: point, Sample: sample}
		c, err := tensor.Compare(tensor.Pair(a.Tensor, b), ruleOf(t))
		if err != nil { // another shape, as from a NonZero of noise
			d.MaxAbs = report.Number(c.MaxAbs)
		} else {
			d.MaxAbs, d.Within = report.Number(c.MaxAbs), c.Breaches == 0
		}
		r.runs.Different = append(r.runs.Different, d)
	}
}

func (r *runner) save(name string, out []tensor.Named) error {
	full := filepath.Join(r.o.Dir, name)
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		return err
	}
	return tensor.WriteNPZ(full, out)
}

// neighbours runs the first and the last row of a batch without the others: what
// a row gets must not depend on what it is batched with. Where the model has no
// batch of 1, the row is repeated up to its smallest.
func (r *runner) neighbours(ctx context.Context, point int) error {
	p := r.ref.Points[point]
	if p.Batch < 2 || len(p.Samples) == 0 || r.broken != "" || r.runs.failed(p.Name) != nil || r.runs.skipped(p.Name) != "" {
		return nil
	}
	size := max(r.ref.MinBatch, 1)
	if size >= p.Batch {
		return nil // alone and together would be the same size
	}
	for _, o := range r.ref.Points {
		if o.Batch == size && r.runs.failed(o.Name) != nil {
			return nil // that size does not run, which has been said
		}
	}
	feed, err := r.ref.In(p.Samples[0])
	if err != nil {
		return err
	}
	for _, row := range []int64{0, p.Batch - 1} {
		alone, err := oneRow(feed, r.ref.BatchInputs, row, size)
		if err != nil {
			return err
		}
		r.total++
		out, ok, err := r.infer(ctx, neighbourFolder, "", alone)
		if err != nil || !ok {
			return err
		}
		n := neighbour{Point: point, Row: row, Out: path.Join(neighbourFolder, folder(point, p.Name), strconv.FormatInt(row, 10)+".npz")}
		if err := r.save(n.Out, out); err != nil {
			return err
		}
		r.runs.Neighbours = append(r.runs.Neighbours, n)
	}
	return nil
}

func oneRow(feed []tensor.Named, batchInputs []string, row, size int64) ([]tensor.Named, error) {
	out := make([]tensor.Named, len(feed))
	for i, t := range feed {
		out[i] = t
		for _, name := range batchInputs {
			if name == t.Name {
				out[i].Tensor = rows([]tensor.Named{t}, row, row+1, size)[0].Tensor
			}
		}
	}
	return out, nil
}

func (r *runner) task(ctx context.Context) error {
	if r.ref.Task == nil {
		return nil
	}
	for _, s := range r.ref.Task.Samples {
		feed, err := r.ref.In(s)
		if err != nil {
			return err
		}
		out, ok, err := r.infer(ctx, taskFolder, "", feed)
		if err != nil || !ok {
			return err
		}
		if err := r.save(s.Out, out); err != nil {
			return err
		}
	}
	return nil
}
