// Package passes makes an ONNX graph smaller without changing what it computes:
// dead nodes, no-ops, equal constants and expressions, shape arithmetic, and
// BatchNormalization behind a convolution. Names, order and declared shapes of
// inputs and outputs never change.
//
// A pass works on graph.Module and takes time linear in its size. Run applies
// passes until nothing changes; a Verify function, which may run the model, can
// have a pass dropped.
package passes

import (
	"context"
	"fmt"
	"slices"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/onnx/graph"
	"github.com/trtship/trtship/report"
)

// Pass is one kind of change.
type Pass interface {
	// Name is the pass's name in the configuration and the report.
	Name() string
	// Apply changes m and returns how many changes it made.
	Apply(m *graph.Module) (int, error)
}

// Options are the settings of the passes.
type Options struct {
	Skip      []string // names of passes to leave out
	FoldLimit int64    // bytes of the largest constant that folding may make; 0: 16 MiB
}

// All returns the passes in the order in which they run. A name in Skip that no
// pass has is a failure.Usage error.
func All(o Options) ([]Pass, error) {
	if o.FoldLimit == 0 {
		o.FoldLimit = 16 << 20
	}
	all := []Pass{
		UniqueNames{},
		Constants{},
		Fold{Limit: o.FoldLimit},
		Branches{},
		NoOps{},
		Reshapes{},
		Transposes{},
		BatchNorm{},
		SameConstants{},
		SameExpressions{},
		Dead{},
		Cleanup{},
	}
	for _, name := range o.Skip {
		if !slices.ContainsFunc(all, func(p Pass) bool { return p.Name() == name }) {
			e := failure.New(failure.Usage, "choose passes: there is no pass %q", name)
			for _, p := range all {
				e = e.With("pass", "%s", p.Name())
			}
			return nil, e
		}
	}
	return slices.DeleteFunc(all, func(p Pass) bool { return slices.Contains(o.Skip, p.Name()) }), nil
}

// maxRounds bounds the rounds over all passes. Each pass already finishes what
// it can in one application; a round is repeated for what others opened up.
const maxRounds = 10

// maxMade bounds the constants that passes hold in memory, in bytes.
const maxMade = 384 << 20

// Verify judges the model after a pass against the one before. A reason means
// that the pass must be dropped; an error that nothing could be found out.
type Verify func(ctx context.Context, pass string, before, after *onnx.Model) (reason string, err error)

// Run applies passes to m until nothing changes and returns the new model; m
// stays as it is. Without verify the whole pipeline runs at once. With it every
// application of a pass is judged by itself, and a pass that is refused is
// undone, named in the result and not applied again.
func Run(ctx context.Context, m *onnx.Model, all []Pass, verify Verify) (*onnx.Model, report.Optimization, error) {
	r := &runner{model: m, results: make([]report.PassResult, len(all)), passes: all, verify: verify}
	for i, p := range all {
		r.results[i].Name = p.Name()
	}
	before := graph.Load(m)
	sum := report.Optimization{NodesBefore: m.NodeCount(), BytesBefore: m.Bytes()}
	err := r.loop(ctx, before)
	if err != nil {
		return nil, sum, err
	}
	sum.NodesAfter, sum.BytesAfter = r.model.NodeCount(), r.model.Bytes()
	sum.Passes = r.results
	for _, v := range m.Overridable() {
		sum.Notes = append(sum.Notes, fmt.Sprintf("%s has a default and can be overridden; not folded", v.Name))
	}
	return r.model, sum, nil
}

type runner struct {
	model   *onnx.Model
	passes  []Pass
	results []report.PassResult
	verify  Verify
}

func (r *runner) loop(ctx context.Context, mod *graph.Module) error {
	for range maxRounds {
		changed := 0
		for i, p := range r.passes {
			if err := ctx.Err(); err != nil {
				return err
			}
			if r.results[i].Dropped != "" {
				continue
			}
			n, next, err := r.apply(ctx, i, p, mod)
			if err != nil {
				return err
			}
			mod = next
			changed += n
		}
		if changed == 0 {
			break
		}
	}
	if r.verify == nil {
		r.model = mod.Model()
	}
	return nil
}

// apply runs one pass and returns the module to go on with.
func (r *runner) apply(ctx context.Context, i int, p Pass, mod *graph.Module) (int, *graph.Module, error) {
	before := mod.CountNodes()
	n, err := p.Apply(mod)
	if err != nil {
		return 0, nil, fmt.Errorf("apply pass %s: %w", p.Name(), err)
	}
	if n == 0 {
		return 0, mod, nil
	}
	mod.Sweep()
	if r.verify != nil {
		after := mod.Model()
		reason := changedSignature(r.model, after)
		if reason == "" {
			if reason, err = r.verify(ctx, p.Name(), r.model, after); err != nil {
				return 0, nil, fmt.Errorf("verify pass %s: %w", p.Name(), err)
			}
		}
		if reason != "" {
			r.results[i] = report.PassResult{Name: p.Name(), Dropped: reason}
			return 0, graph.Load(r.model), nil
		}
		r.model = after
	}
	r.results[i].Changed += n
	r.results[i].Removed += before - mod.CountNodes()
	return n, mod, nil
}

// changedSignature says how inputs or outputs differ, or nothing.
func changedSignature(before, after *onnx.Model) string {
	for _, c := range []struct {
		what        string
		want, found []onnx.Value
	}{{"inputs", before.Inputs(), after.Inputs()}, {"outputs", before.Outputs(), after.Outputs()}} {
		want, found := fmt.Sprint(c.want), fmt.Sprint(c.found)
		if want != found {
			return fmt.Sprintf("%s were %s and became %s", c.what, want, found)
		}
	}
	return ""
}

// SignatureChange says how names, order, types or shapes of inputs or outputs
// differ between two models; empty if they do not.
func SignatureChange(before, after *onnx.Model) string { return changedSignature(before, after) }
