package cli

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/calibration"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/regular"
	"github.com/trtship/trtship/internal/sensitivity"
	"github.com/trtship/trtship/internal/validation"
	"github.com/trtship/trtship/report"
)

// sensitivityOptions are the flags of sensitivity.
type sensitivityOptions struct {
	precision, plot, patch string
	rows, most             int
}

func newSensitivityCmd(a *app) *cobra.Command {
	o := sensitivityOptions{precision: "int8", rows: 20, most: 32}
	c := &cobra.Command{
		Use:     "sensitivity CONFIG [MODEL.onnx]",
		GroupID: "measure",
		Short:   "Rank nodes by what INT8 or FP16 alone costs the outputs, and suggest which to keep out",
		Long: `sensitivity computes the optimized graph, or MODEL.onnx, with one node at a time in the precision and
compares the outputs with float32: the ratio of signal to noise, and the task metric where there is
one. If the whole graph does not hold its tolerances it looks for the shortest list of nodes that have
to be kept out, confirms it by running exactly that graph, and prints it as a patch. Everything runs
in ONNX Runtime on the CPU: a preview.`,
		Args: positional(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error { return a.sensitivity(cmd.Context(), args, o) },
	}
	f := c.Flags()
	f.StringVar(&o.precision, "precision", o.precision, "precision to look at: int8, fp16 or bf16")
	f.StringVar(&o.plot, "plot", "", "draw the ranking into this SVG `file`, which must not exist")
	f.StringVar(&o.patch, "patch", "", "write the patch to this YAML `file`, which must not exist")
	f.IntVar(&o.rows, "rows", o.rows, "rows of the table; 0 is all")
	f.IntVar(&o.most, "max-nodes", o.most, "give up when more nodes would have to be kept")
	return c
}

func (a *app) sensitivity(ctx context.Context, args []string, o sensitivityOptions) error {
	if !slices.Contains([]string{"int8", "fp16", "bf16"}, o.precision) {
		return failure.New(failure.Usage, "--precision is %q", o.precision).WithHint("choose int8, fp16 or bf16")
	}
	for _, p := range []string{o.plot, o.patch} {
		if err := refuseExisting(p); err != nil {
			return err
		}
	}
	if o.precision == "int8" { // or the calibrate stage would be off
		a.set = append(a.set, "tensorrt.precisions=[int8]")
	}
	s, err := a.step(ctx, args[0])
	if err != nil {
		return err
	}
	defer s.session.Close()
	if len(args) == 2 {
		if err := s.giveONNX(ctx, artifact.OptimizedONNX, "", args[1]); err != nil {
			return err
		}
	}
	scratch, err := os.MkdirTemp("", "trtship-sensitivity-")
	if err != nil {
		return fmt.Errorf("make scratch folder: %w", err)
	}
	defer os.RemoveAll(scratch) //nolint:errcheck // temporary
	options, err := s.sensitivityOptions(ctx, o, scratch)
	if err != nil {
		return err
	}
	defer options.Model.Close() //nolint:errcheck // read only
	r, err := sensitivity.Analyze(ctx, options)
	if err != nil {
		return err
	}
	return a.finishSensitivity(r, s, o)
}

// sensitivityOptions makes, or finds in the store, what the analysis reads.
func (s *step) sensitivityOptions(ctx context.Context, o sensitivityOptions, scratch string) (sensitivity.Options, error) {
	out := sensitivity.Options{Config: s.session.cfg, Precision: o.precision, Scratch: scratch, MostKept: o.most}
	var err error
	if out.Library, err = s.session.machine.ORT(ctx); err != nil {
		return out, err
	}
	reference, err := s.made(ctx, "validate", artifact.Reference)
	if err != nil {
		return out, err
	}
	if out.Reference, err = validation.OpenReference(reference.Dir); err != nil {
		return out, err
	}
	graph, err := s.graph(ctx)
	if err != nil {
		return out, err
	}
	out.Path = filepath.Join(graph.Dir, "model.onnx")
	if o.precision == "int8" {
		cache, err := s.made(ctx, "calibrate", artifact.CalibrationData)
		if err != nil {
			return out, err
		}
		text, err := regular.ReadFile(filepath.Join(cache.Dir, calibration.CacheFile))
		if err != nil {
			return out, failure.New(failure.Artifact, "read calibration cache: %w", err)
		}
		parsed, _ := calibration.ParseCache(text)
		out.Scales = parsed.Scales()
	}
	if out.Model, err = onnx.Open(out.Path); err != nil {
		return out, err
	}
	observed, err := calibration.Observe(ctx, calibration.ObserveOptions{
		Library: out.Library, Path: out.Path, Model: out.Model, Reference: out.Reference, Validation: s.session.cfg.Validation,
	})
	if err != nil {
		return out, err
	}
	out.Observed = func(tensor string) (float64, bool) { v, ok := observed[tensor]; return v, ok }
	last := ""
	out.Progress = func(done, total int64, label string) {
		if text := fmt.Sprintf("%d of %d: %s", done+1, total, label); total > 0 && text != last {
			last = text
			s.session.a.log.Info("sensitivity", "node", text)
		} else if total == 0 {
			s.session.a.say("%s", label)
		}
	}
	return out, nil
}

// graph returns the optimized graph: the given one, or what the stages make.
func (s *step) graph(ctx context.Context) (artifact.Artifact, error) {
	if given := s.given[artifact.OptimizedONNX]; len(given) > 0 {
		return given[0], nil
	}
	return s.made(ctx, "optimize", artifact.OptimizedONNX)
}

func (a *app) finishSensitivity(r *sensitivity.Result, s *step, o sensitivityOptions) error {
	q := s.session.cfg.Quantize
	present := q.KeepFP32
	if r.Key == "int8_exclude" {
		present = q.Exclude
	}
	patch := r.Patch(present)
	if o.plot != "" {
		svg, err := r.Plot()
		if err != nil {
			return err
		}
		if err := report.WriteFile(o.plot, svg); err != nil {
			return err
		}
	}
	if o.patch != "" && patch == "" {
		a.say("there is nothing to patch: %s is not written", o.patch)
	}
	if o.patch != "" && patch != "" {
		if err := report.WriteFile(o.patch, []byte(patch)); err != nil {
			return err
		}
	}
	if !r.Holds {
		a.doesNotHold(failure.Tolerance, "no list of at most %d nodes to keep out was found with which %s holds its tolerances: %s", o.most, r.Precision, r.Worst)
	}
	if a.json {
		return a.printJSON(r)
	}
	a.printSensitivity(r, o.rows)
	switch {
	case r.Holds && len(r.Keep) == 0:
		a.print("\nthe whole graph holds its tolerances in %s: no node has to be kept\n", r.Precision)
	case r.Holds:
		a.print("\n%s", patch)
	default:
		for _, n := range r.Notes {
			a.print("\n%s\n", n)
		}
		a.print("last: %s\n", r.Worst)
	}
	return nil
}

func (a *app) printSensitivity(r *sensitivity.Result, rows int) {
	t := a.table("node", "operator", "SQNR dB", "max abs", "output", "accuracy")
	if rows <= 0 {
		rows = len(r.Rows)
	}
	add := func(row sensitivity.Row) {
		accuracy := ""
		if row.Accuracy != nil && r.Float != nil {
			accuracy = fmt.Sprintf("%.4f (%+.4f)", float64(*row.Accuracy), float64(*row.Accuracy-*r.Float))
		}
		t.AppendRow([]any{row.Node, row.Op, decibels(float64(row.SQNR)), fmt.Sprintf("%.3g", float64(row.MaxAbs)), row.Output, accuracy})
	}
	add(r.Whole)
	for _, row := range r.Rows[:min(rows, len(r.Rows))] {
		add(row)
	}
	a.printTable(t)
	if n := len(r.Rows) - rows; n > 0 {
		a.print("and %d nodes that cost less (--rows 0 shows them)\n", n)
	}
}

func decibels(v float64) string {
	switch {
	case math.IsInf(v, 1):
		return "no change"
	case math.IsInf(v, -1):
		return "not finite"
	}
	return fmt.Sprintf("%.1f", v)
}
