package optimize

import (
	"context"
	"fmt"
	"math"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/ort"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/internal/validation"
)

// Tolerance is how far an element of an output may move, as a fraction of the
// larger of 1 and the largest element of that output: what another order of
// float32 additions does. Outputs of half precision get halfTolerance; integers,
// booleans and strings may not move at all.
const (
	Tolerance     = 1e-5
	halfTolerance = 2e-3
)

// prover compares graphs with the exported one on the reference's feeds.
type prover struct {
	lib     ort.Library
	options ort.Options
	ref     *validation.Reference
	before  *ort.Session
	random  map[string]bool // outputs that differ from run to run
	notes   []string
}

func (p *prover) open(ctx context.Context, path string) (err error) {
	p.before, err = ort.Open(ctx, p.lib, path, p.options)
	return err
}

func (p *prover) close() {
	if p.before != nil {
		p.before.Close()
	}
}

// proof is the result of one comparison.
type proof struct {
	feeds    int
	elements int64
	worst    float64 // largest difference, relative to the output's scale
	breach   string  // the first thing that does not hold
}

func (p proof) holds() bool { return p.breach == "" }

func (p proof) text() string {
	return fmt.Sprintf("largest difference %.3g over %d elements of %d feeds", p.worst, p.elements, p.feeds)
}

// judge compares the graph at path with the exported one on every feed. A graph
// that does not load or run is a breach, not an error.
func (p *prover) judge(ctx context.Context, path string) (proof, error) {
	var got proof
	after, err := ort.Open(ctx, p.lib, path, p.options)
	if err != nil {
		return p.refused(ctx, got, err)
	}
	defer after.Close()
	for _, point := range p.ref.Points {
		for i, sample := range point.Samples {
			feed, err := p.ref.In(sample)
			if err != nil {
				return got, err
			}
			where := fmt.Sprintf("point %s, sample %d", point.Name, i)
			if err := p.sample(ctx, &got, after, feed, where); err != nil {
				return p.refused(ctx, got, err)
			}
			if !got.holds() {
				return got, nil
			}
		}
	}
	return got, nil
}

// refused turns an error of the changed graph into a breach. The end of ctx and
// a missing library stay errors.
func (p *prover) refused(ctx context.Context, got proof, err error) (proof, error) {
	if ctx.Err() != nil {
		return got, context.Cause(ctx)
	}
	if e, ok := err.(*beforeError); ok {
		return got, e.error
	}
	if failure.CodeOf(err) == failure.Missing {
		return got, err
	}
	got.breach = err.Error()
	return got, nil
}

// beforeError is an error of the exported graph: there is nothing to compare
// with.
type beforeError struct{ error }

func (p *prover) sample(ctx context.Context, got *proof, after *ort.Session, feed []tensor.Named, where string) error {
	want, err := validation.Fed{Session: p.before}.Infer(ctx, feed)
	if err != nil {
		return &beforeError{fmt.Errorf("run the exported graph: %w", err)}
	}
	if p.random == nil {
		if err := p.findRandom(ctx, feed, want); err != nil {
			return &beforeError{err}
		}
	}
	found, err := validation.Fed{Session: after}.Infer(ctx, feed)
	if err != nil {
		return err
	}
	got.feeds++
	for _, w := range want {
		f, ok := tensor.Find(found, w.Name)
		if !ok {
			got.breach = fmt.Sprintf("output %s is gone", w.Name)
			return nil
		}
		if why := p.compare(got, w, f); why != "" {
			got.breach = fmt.Sprintf("%s: output %s: %s", where, w.Name, why)
			return nil
		}
	}
	return nil
}

// findRandom runs the exported graph a second time and remembers outputs whose
// values are not the same: of them only the shape is compared.
func (p *prover) findRandom(ctx context.Context, feed, first []tensor.Named) error {
	second, err := validation.Fed{Session: p.before}.Infer(ctx, feed)
	if err != nil {
		return fmt.Errorf("run the exported graph again: %w", err)
	}
	p.random = map[string]bool{}
	for _, w := range first {
		if again, ok := tensor.Find(second, w.Name); !ok || !w.Equal(again) {
			p.random[w.Name] = true
			p.notes = append(p.notes, fmt.Sprintf("output %s differs from run to run: passes were proven for its shape only", w.Name))
		}
	}
	return nil
}

// compare says how two arrays differ by more than they may, or nothing.
func (p *prover) compare(got *proof, want tensor.Named, found tensor.Tensor) string {
	if want.DType != found.DType {
		return fmt.Sprintf("type %s became %s", want.DType, found.DType)
	}
	if fmt.Sprint(want.Shape) != fmt.Sprint(found.Shape) {
		return fmt.Sprintf("shape %v became %v", want.Shape, found.Shape)
	}
	got.elements += want.Elements()
	if p.random[want.Name] {
		return ""
	}
	if !want.DType.Floating() {
		if !want.Equal(found) {
			return "values changed"
		}
		return ""
	}
	a, b := want.Float64s(), found.Float64s()
	scale := 1.0
	for _, x := range a {
		if x = math.Abs(x); x > scale && !math.IsInf(x, 0) {
			scale = x
		}
	}
	limit := Tolerance
	if want.DType.Size() < 4 {
		limit = halfTolerance
	}
	for i := range a {
		if a[i] == b[i] || math.IsNaN(a[i]) && math.IsNaN(b[i]) {
			continue
		}
		d := math.Abs(a[i]-b[i]) / scale
		if !(d <= limit) {
			return fmt.Sprintf("element %d was %g and became %g", i, a[i], b[i])
		}
		got.worst = max(got.worst, d)
	}
	return ""
}

// defaultLevel loads and runs the graph as Triton's onnxruntime backend does by
// default, and says what goes wrong there. That is a fault of the runtime at
// that level, not of the graph.
func (p *prover) defaultLevel(ctx context.Context, path string) []string {
	o := p.options
	o.GraphOptimization = ort.OptimizeAll
	note := func(format string, args ...any) []string {
		return []string{fmt.Sprintf("ONNX Runtime %s at its default optimisation level: ", p.lib.Version) + fmt.Sprintf(format, args...) +
			"; the graph is right with optimisation off: deploy it with a lower level"}
	}
	s, err := ort.Open(ctx, p.lib, path, o)
	if err != nil {
		return note("does not load: %v", err)
	}
	defer s.Close()
	for _, point := range p.ref.Points {
		if len(point.Samples) == 0 {
			continue
		}
		feed, err := p.ref.In(point.Samples[0])
		if err != nil {
			return nil // said before
		}
		want, err := validation.Fed{Session: p.before}.Infer(ctx, feed)
		if err != nil {
			return nil // said before
		}
		found, err := validation.Fed{Session: s}.Infer(ctx, feed)
		if err != nil {
			return note("point %s does not run: %v", point.Name, err)
		}
		for _, w := range want {
			f, ok := tensor.Find(found, w.Name)
			if !ok || fmt.Sprint(f.Shape) != fmt.Sprint(w.Shape) {
				return note("point %s: output %s has shape %v, not %v", point.Name, w.Name, f.Shape, w.Shape)
			}
		}
	}
	return nil
}
