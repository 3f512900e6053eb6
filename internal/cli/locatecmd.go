package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/trtship/trtship/internal/engine"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/locate"
	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/precision"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/internal/validation"
	"github.com/trtship/trtship/report"
)

// locateOptions are the flags of locate.
type locateOptions struct {
	precision, point string
	onCPU            bool
	most             int
}

func newLocateCmd(a *app) *cobra.Command {
	o := locateOptions{precision: "fp16", most: 8}
	c := &cobra.Command{
		Use:     "locate CONFIG [MODEL.onnx]",
		GroupID: "measure",
		Short:   "Find the first node that leaves the tolerance in fp16 or bf16, and what repairs it (GPU)",
		Long: `locate bisects over the first nodes of the optimized graph, or of MODEL.onnx: each prefix is built as
a strongly typed engine, run on every sample of one point, and compared with float32. It names the
node, and the fewest nodes that must stay float32, as a patch for quantize.keep_fp32. With --cpu the
rounding and overflow of the precision are emulated in ONNX Runtime: no proof, but no GPU either.`,
		Args: positional(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error { return a.locate(cmd.Context(), args, o) },
	}
	c.Flags().StringVar(&o.precision, "precision", o.precision, "precision to look at: fp16 or bf16")
	c.Flags().StringVar(&o.point, "point", o.point, "point whose samples are run; the first by default")
	c.Flags().BoolVar(&o.onCPU, "cpu", false, "emulate the precision in ONNX Runtime instead of building engines")
	c.Flags().IntVar(&o.most, "max-nodes", o.most, "give up when more nodes would have to stay float32")
	return c
}

func (a *app) locate(ctx context.Context, args []string, o locateOptions) error {
	dtype, ok := map[string]tensor.DType{"fp16": tensor.Float16, "bf16": tensor.BFloat16}[o.precision]
	if !ok {
		return failure.New(failure.Usage, "--precision is %q", o.precision).WithHint("choose fp16 or bf16; for int8 use trtship sensitivity")
	}
	if len(args) == 2 { // before the GPU: it is wrong on any machine
		m, err := onnx.Open(args[1])
		if err != nil {
			return err
		}
		m.Close()
	}
	s, err := a.step(ctx, args[0])
	if err != nil {
		return err
	}
	defer s.session.Close()
	if !o.onCPU {
		if err := s.needGPU(ctx); err != nil {
			return err
		}
	}
	path := ""
	if len(args) == 2 {
		path = args[1]
	} else if path, err = s.optimized(ctx); err != nil {
		return err
	}
	feeds, err := s.feeds(ctx, o.point)
	if err != nil {
		return err
	}
	m, err := onnx.Open(path)
	if err != nil {
		return err
	}
	defer m.Close()
	scratch, err := os.MkdirTemp("", "trtship-locate-")
	if err != nil {
		return fmt.Errorf("make scratch folder: %w", err)
	}
	defer os.RemoveAll(scratch)
	search, release, err := s.search(ctx, o, dtype, scratch)
	if err != nil {
		return err
	}
	defer release()
	search.Feeds = feeds
	r, err := locate.Repair(ctx, m, search, o.most)
	if err != nil && (r == nil || len(r.Found) == 0) {
		return err
	}
	if printed := a.printLocated(o.precision, r); printed != nil {
		return printed
	}
	return err
}

// feeds are the samples of one point of the reference.
func (s *step) feeds(ctx context.Context, point string) ([][]tensor.Named, error) {
	ref, err := s.reference(ctx)
	if err != nil {
		return nil, err
	}
	return feedsOf(ref, point)
}

func feedsOf(ref *validation.Reference, point string) ([][]tensor.Named, error) {
	var names []string
	for _, p := range ref.Points {
		names = append(names, p.Name)
		if point != "" && p.Name != point {
			continue
		}
		var feeds [][]tensor.Named
		for _, sample := range p.Samples {
			feed, err := ref.In(sample)
			if err != nil {
				return nil, err
			}
			feeds = append(feeds, feed)
		}
		return feeds, nil
	}
	return nil, failure.New(failure.Usage, "there is no point %q", point).WithHint("choose one of: %s", strings.Join(names, ", "))
}

// mostBuilds bounds the time of a search's child: locate.Limit of a graph of
// half a million nodes.
const mostBuilds = 42

// search sets up the conversion and the two runners.
func (s *step) search(ctx context.Context, o locateOptions, dtype tensor.DType, scratch string) (locate.Options, func(), error) {
	lib, err := s.session.machine.ORT(ctx)
	if err != nil {
		return locate.Options{}, nil, err
	}
	cfg, a := s.session.cfg, s.session.a
	reference := locate.ORT{Library: lib, Scratch: scratch, Options: validation.SessionOptions(cfg.Validation, io.Discard)}
	search := locate.Options{
		Reference: reference, Candidate: reference, Tolerance: cfg.Tolerance(o.precision, ""),
		Convert: func(m *onnx.Model, keep []string) (*onnx.Model, error) {
			h, err := precision.ToHalf(m, precision.HalfOptions{
				DType: dtype, KeepIO: true, Emulate: o.onCPU, Keep: precision.NewSelection("quantize.keep_fp32", append(keep, present(m, cfg.Quantize.KeepFP32)...)),
			})
			if err != nil {
				return nil, err
			}
			return h.Model, nil
		},
		Progress: func(builds, limit int, label string) { a.say("build %d of at most %d: %s", builds, limit, label) },
	}
	if o.onCPU {
		return search, func() {}, nil
	}
	child, err := s.child(ctx, mostBuilds, io.Discard, nil)
	if err != nil {
		return search, nil, err
	}
	search.Candidate = locate.Engine{Child: child, Request: engine.RequestOf(cfg.TensorRT, o.precision, "", ""), Scratch: scratch}
	return search, func() { _ = child.Close() }, nil
}

// present keeps the entries of keep_fp32 that a prefix still has: names of
// nodes that are cut off would be refused.
func present(m *onnx.Model, entries []string) []string {
	var out []string
	for _, e := range entries {
		if precision.NewSelection("quantize.keep_fp32", []string{e}).Check(m) == nil {
			out = append(out, e)
		}
	}
	return out
}

func (a *app) printLocated(precisionName string, r *locate.Repaired) error {
	if a.json {
		return a.printJSON(r)
	}
	if len(r.Found) == 0 {
		a.print("every node holds in %s (%s)\n", precisionName, report.Count(r.Builds, "build"))
		return nil
	}
	t := a.table("node", "operator", "output", "place", "sample", "max abs", "what happened")
	for _, f := range r.Found {
		t.AppendRow([]any{f.Node, f.Operator, f.Output, fmt.Sprintf("%d of %d", f.Index+1, f.Nodes), f.Sample, float64(f.Row.Metrics["max_abs"]), f.Row.Detail})
	}
	a.printTable(t)
	quoted := make([]string, len(r.Keep))
	for i, k := range r.Keep {
		quoted[i] = fmt.Sprintf("%q", k)
	}
	a.print("\n# repairs it (%s):\nquantize:\n  keep_fp32: [%s]\n", report.Count(r.Builds, "build"), strings.Join(quoted, ", "))
	return nil
}
