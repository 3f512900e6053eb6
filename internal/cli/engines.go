package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/engine"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/gate"
	"github.com/trtship/trtship/internal/pipeline"
	"github.com/trtship/trtship/internal/store"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/internal/worker"
	"github.com/trtship/trtship/report"
	"github.com/trtship/trtship/stages/benchmark"
)

// planArg is an engine on the command line: a precision and a plan, whose
// description lies beside it.
type planArg struct {
	precision, path string
	description     *engine.Description
}

// parsePlan reads fp16:PATH, or a PATH whose description names the precision.
func parsePlan(arg string) (planArg, error) {
	precision, path, ok := strings.Cut(arg, ":")
	if !ok || strings.ContainsRune(precision, '/') {
		return readPlan("", arg)
	}
	if !slices.Contains(engine.Precisions(), precision) {
		return planArg{}, failure.New(failure.Usage, "%q in front of %s is no precision", precision, path).
			WithHint("choose one of %s, or leave it out; a path with a colon begins with ./", strings.Join(engine.Precisions(), ", "))
	}
	return readPlan(precision, path)
}

// readPlan reads the description of a plan. precision is what was said of it,
// empty if nothing was.
func readPlan(precision, path string) (planArg, error) {
	if path == "" {
		return planArg{}, failure.New(failure.Usage, "the path of an engine is empty").WithHint("name a .plan file that trtship build made")
	}
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return planArg{}, failure.New(failure.Artifact, "read plan: %s is a folder", path).WithHint("name the .plan file in it")
	}
	d, err := engine.ReadDescription(path)
	if err != nil {
		return planArg{}, err
	}
	if precision != "" && precision != d.Precision {
		return planArg{}, failure.New(failure.Usage, "the engine is %s by its description, %s was said", d.Precision, precision).At(path).
			WithHint("leave the precision out, or name the %s engine", precision)
	}
	return planArg{precision: d.Precision, path: path, description: d}, nil
}

// parsePlans reads several.
func parsePlans(args []string) ([]planArg, error) {
	plans := make([]planArg, len(args))
	for i, arg := range args {
		var err error
		if plans[i], err = parsePlan(arg); err != nil {
			return nil, err
		}
	}
	return plans, nil
}

// descriptionPath is where the description of a plan lies.
func descriptionPath(plan string) string {
	if filepath.Base(plan) == engine.PlanFile {
		return filepath.Join(filepath.Dir(plan), engine.DescriptionFile)
	}
	return strings.TrimSuffix(plan, filepath.Ext(plan)) + ".json"
}

// give puts an engine in place of what build would make.
func (s *step) giveEngine(ctx context.Context, p planArg) (artifact.Artifact, error) {
	a, err := pipeline.Adopt(ctx, s.session.store, artifact.Engine, p.precision,
		store.Source{Path: p.path, As: engine.PlanFile}, store.Source{Path: descriptionPath(p.path), As: engine.DescriptionFile})
	if err == nil {
		s.given[artifact.Engine] = append(s.given[artifact.Engine], a)
		s.unchecked(p)
	}
	return a, err
}

// unchecked says what of a plan could not be held to its description.
func (s *step) unchecked(p planArg) {
	if text := p.description.Unchecked(); text != "" {
		s.session.a.say("%s: %s", p.path, text)
	}
}

func newValidateEngineCmd(a *app) *cobra.Command {
	var precision, onnx string
	c := &cobra.Command{
		Use:   "engine CONFIG [ENGINE.plan]",
		Short: "Compare TensorRT engines with the reference at every point of every profile (GPU)",
		Long: `validate engine runs the engines that build makes, or ENGINE.plan, on the GPU and compares every
output with the reference. The description that build wrote must lie beside the plan.`,
		Args: positional(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			if cmd.Flags().Changed("precision") {
				if len(args) < 2 {
					return failure.New(failure.Usage, "--precision is of ENGINE.plan, and none is named").WithHint("name the plan, or say --set tensorrt.precisions=[...] for those that build makes")
				}
				if !slices.Contains(engine.Precisions(), precision) {
					return failure.New(failure.Usage, "--precision %s is unknown", precision).WithHint("choose one of %s", strings.Join(engine.Precisions(), ", "))
				}
			}
			s, err := a.step(ctx, args[0])
			if err != nil {
				return err
			}
			defer s.session.Close()
			if onnx != "" {
				if err := s.giveONNX(ctx, artifact.ONNX, "", onnx); err != nil {
					return err
				}
			}
			if len(args) == 2 {
				p, err := readPlan(precision, args[1])
				if err != nil {
					return err
				}
				if _, err := s.giveEngine(ctx, p); err != nil {
					return err
				}
			}
			rep, _, err := s.run(ctx, "validate_engine")
			if err == nil && !a.json {
				a.printValidations(rep)
			}
			return err
		},
	}
	c.Flags().StringVar(&precision, "precision", "", "precision of ENGINE.plan: fp32, fp16, bf16 or int8; that of its description by default")
	c.Flags().StringVar(&onnx, "onnx", "", "use this ONNX `file` in place of an export")
	return c
}

func newBenchmarkEngineCmd(a *app) *cobra.Command {
	var engines []string
	var output string
	c := &cobra.Command{
		Use:   "engine CONFIG --engine [PRECISION:]ENGINE.plan",
		Short: "Measure TensorRT engines without a server: copies, compute, enqueueing (GPU)",
		Long: `benchmark engine measures plans on the GPU for each pair of benchmark.batch_sizes and
benchmark.concurrency (streams), with a CUDA graph and without. Compute and enqueue time are
taken with the inputs on the device; copies and whole requests in a pass of their own.`,
		Args: positional(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.benchmarkEngine(cmd.Context(), args[0], engines, output)
		},
	}
	c.Flags().StringArrayVar(&engines, "engine", nil, "plan to measure, as `PRECISION:PATH`; may be given more than once")
	c.Flags().StringVarP(&output, "output", "o", "", "write the report to this `file`, which must not exist; for benchmark compare")
	return c
}

func (a *app) benchmarkEngine(ctx context.Context, config string, engines []string, output string) error {
	if len(engines) == 0 {
		return failure.New(failure.Usage, "no engine to measure").WithHint("name one with --engine fp16:engines/model.fp16.plan")
	}
	plans, err := parsePlans(engines) // before the GPU: they are wrong on any machine
	if err != nil {
		return err
	}
	if err := refuseExisting(output); err != nil {
		return err
	}
	s, err := a.step(ctx, config)
	if err != nil {
		return err
	}
	defer s.session.Close()
	for _, p := range plans { // all of them before the first is measured
		for _, batch := range s.session.cfg.Benchmark.BatchSizes {
			if _, err := benchmark.EngineFeed(s.session.cfg, p.description, batch); err != nil {
				return fmt.Errorf("%s: %w", p.path, err)
			}
		}
	}
	if err := s.loadable(ctx, plans); err != nil {
		return err
	}
	var arts []artifact.Artifact
	for _, p := range plans {
		art, err := s.giveEngine(ctx, p)
		if err != nil {
			return err
		}
		arts = append(arts, art)
	}
	place, err := newHandWork(a)
	if err != nil {
		return err
	}
	defer place.remove()
	rows, skipped, err := benchmark.NewOnGPU(s.session.cfg, s.gpuTools(ctx)).Measure(ctx, arts, place)
	place.watch.Close()
	if err != nil {
		return err
	}
	snapshot, err := s.session.cfg.Snapshot(s.session.cfg.Dir)
	if err != nil {
		return err
	}
	rep := s.session.report(ctx, snapshot)
	return a.finishBenchmark(&rep, report.Benchmark{Rows: rows, Skipped: skipped}, output)
}

// needGPU refuses to start without a GPU and TensorRT: exit 3.
func (s *step) needGPU(ctx context.Context) error {
	if _, err := s.session.gpuMachine(ctx); err != nil {
		return err
	}
	return nil
}

// loadable refuses plans that were built for another TensorRT or GPU than those
// of this machine, before anything is loaded.
func (s *step) loadable(ctx context.Context, plans []planArg) error {
	m, err := s.session.gpuMachine(ctx)
	if err != nil {
		return err
	}
	for _, p := range plans {
		if err := p.description.LoadsOn(m); err != nil {
			e, ok := errors.AsType[*failure.Error](err)
			if !ok {
				return err
			}
			return e.At(p.path)
		}
	}
	return nil
}

func (s *step) gpuTools(ctx context.Context) benchmark.GPUTools {
	t := s.session.tools(ctx)
	return benchmark.GPUTools{
		Start: func(ctx context.Context, log io.Writer, progress func(done, total int64, label string)) (benchmark.Child, error) {
			w, err := s.child(ctx, 1, log, progress)
			if err != nil {
				return nil, err // no interface around a nil child
			}
			return w, nil
		},
		Versions: t.TensorRT, Read: t.Clocks,
	}
}

// child starts a Python child that sees the GPU, for as long as so many builds
// and the measurement of their engines may take.
func (s *step) child(ctx context.Context, builds int, log io.Writer, progress func(done, total int64, label string)) (*worker.Worker, error) {
	t := s.session.tools(ctx)
	return worker.Start(ctx, worker.Options{
		Python: t.Python, Subject: s.session.cfg.Model.Name, CUDA: true, Log: log, Progress: progress, Env: t.GPUEnv(),
		Path:           []string{s.session.cfg.Dir},
		TimeoutSetting: "tensorrt.build_timeout_s and benchmark.max_seconds",
		Timeout:        time.Duration(builds*(s.session.cfg.TensorRT.BuildTimeoutS+4*s.session.cfg.Benchmark.MaxSeconds)) * time.Second,
	})
}

func newBenchmarkABCmd(a *app) *cobra.Command {
	o := engine.Alternation{Rounds: benchmark.TurnRounds, Block: benchmark.TurnBlock, Loads: 5, CUDAGraph: true, WarmupIters: 20}
	confidence, batch := 0.99, 0
	c := &cobra.Command{
		Use:   "ab CONFIG BASE.plan HEAD.plan",
		Short: "Set two engines against each other in turns on one GPU (GPU)",
		Long: `benchmark ab loads both engines into one process and lets them run in turns, in blocks whose order
alternates. What moves both (clocks, heat, other load) cancels in the ratio of each pair; where an
engine lies in the GPU's memory, which is worth a few percent, changes from round to round. The
verdict is same, regressed, improved or unclear, from the confidence interval of the ratio and
benchmark.margin; regressed is exit 12, unclear exit 13.`,
		Args: positional(3, 3),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.benchmarkAB(cmd.Context(), args, o, confidence, batch)
		},
	}
	c.Flags().IntVar(&o.Rounds, "rounds", o.Rounds, "rounds; each engine runs one block in each")
	c.Flags().IntVar(&o.Block, "block", o.Block, "requests of a block")
	c.Flags().IntVar(&o.Loads, "loads", o.Loads, "how often both plans are loaded")
	c.Flags().BoolVar(&o.CUDAGraph, "cuda-graph", o.CUDAGraph, "run both engines as CUDA graphs")
	c.Flags().Float64Var(&confidence, "confidence", confidence, "level of the interval")
	c.Flags().IntVar(&batch, "batch", batch, "batch size; the profile's opt by default")
	return c
}

func (a *app) benchmarkAB(ctx context.Context, args []string, o engine.Alternation, confidence float64, batch int) error {
	plans, err := parsePlans(args[1:])
	if err != nil {
		return err
	}
	s, err := a.step(ctx, args[0])
	if err != nil {
		return err
	}
	defer s.session.Close()
	for _, p := range plans {
		s.unchecked(p)
	}
	pair, feeds, err := s.pair(plans, batch)
	if err != nil {
		return err
	}
	if err := s.loadable(ctx, plans); err != nil {
		return err
	}
	base, head, err := s.alternate(ctx, pair, feeds, o)
	if err != nil {
		return err
	}
	d := gate.ComparePairs(base, head, s.session.cfg.Benchmark.Margin, confidence)
	d.Row, d.Metric, d.Unit, d.Better = filepath.Base(args[2])+" against "+filepath.Base(args[1]), report.BlockCompute, "ms", "lower"
	switch d.Change {
	case report.Regressed:
		a.doesNotHold(failure.Regression, "%s is slower", d.Row)
	case report.Unclear:
		a.doesNotHold(failure.Incomplete, "whether %s is slower is unclear: %s", d.Row, d.Detail).WithHint("measure longer: --rounds, --loads")
	}
	return a.printAB(d)
}

// pair makes a feed for each of two engines, and refuses those that are no match:
// one could not serve in place of the other.
func (s *step) pair(plans []planArg, batch int) (pair [2]benchmark.Plan, feeds [2][]tensor.Named, err error) {
	if unlike := plans[0].description.TensorsUnlike(plans[1].description, plans[0].path, plans[1].path); len(unlike) > 0 {
		e := failure.New(failure.Usage, "the two engines have other tensors: %s", unlike[0]).WithHint("compare engines of one graph")
		for _, u := range unlike[1:] {
			e.With("and", "%s", u)
		}
		return pair, feeds, e
	}
	for i, p := range plans {
		pair[i] = benchmark.Plan{Name: p.path, Path: p.path, Description: p.description}
	}
	feeds, err = benchmark.Feeds(s.session.cfg, pair, batch)
	return pair, feeds, err
}

// alternate loads two engines into one child and runs them in turns. What it
// cannot do has the code of a benchmark, whatever it was that the child did.
func (s *step) alternate(ctx context.Context, pair [2]benchmark.Plan, feeds [2][]tensor.Named, o engine.Alternation) (base, head []float64, err error) {
	scratch, err := os.MkdirTemp("", "trtship-ab-")
	if err != nil {
		return nil, nil, fmt.Errorf("make scratch folder: %w", err)
	}
	defer os.RemoveAll(scratch)
	watch := s.session.a.observer()
	defer watch.Close()
	watch.StageStarted(pipeline.StageInfo{Name: "benchmark", Title: "Run two engines in turns", Total: 1})
	child, err := s.child(ctx, 2, io.Discard, func(done, total int64, label string) { watch.StageProgress("benchmark", done, total, label) })
	if err != nil {
		return nil, nil, err
	}
	defer child.Close()
	base, head, err = benchmark.InTurns(child, scratch, pair, feeds, o)
	return base, head, asBenchmark(err)
}

// asBenchmark gives what TensorRT, the driver or the death of the child kept a
// benchmark from the code of one.
func asBenchmark(err error) error {
	if c, ok := errors.AsType[*worker.Crash](err); ok {
		f := c.Failure(failure.Benchmark)
		f.Message = err.Error()
		return f
	}
	if f, ok := errors.AsType[*failure.Error](err); ok && f.Code == failure.Build {
		g := *f
		g.Code, g.Message = failure.Benchmark, err.Error()
		return &g
	}
	return err
}

func (a *app) printAB(d report.Delta) error {
	if a.json {
		return a.printJSON(d)
	}
	t := a.table("engines", "base ms", "head ms", "ratio", "interval", "verdict")
	number := func(n *report.Number) string {
		if n == nil {
			return ""
		}
		return fmt.Sprintf("%.4f", float64(*n))
	}
	t.AppendRow([]any{d.Row, number(d.Base), number(d.Head), number(d.Ratio), number(d.Low) + " to " + number(d.High), d.Change})
	a.printTable(t)
	if d.Detail != "" {
		a.say("%s", d.Detail)
	}
	return nil
}

// handWork is the workplace of a measurement made by hand.
type handWork struct {
	dir   string
	watch interface {
		pipeline.Observer
		Close()
	}
}

func newHandWork(a *app) (*handWork, error) {
	dir, err := os.MkdirTemp("", "trtship-")
	if err != nil {
		return nil, fmt.Errorf("make scratch folder: %w", err)
	}
	w := &handWork{dir: dir, watch: a.observer()}
	w.watch.StageStarted(pipeline.StageInfo{Name: "benchmark", Title: "Measure engines", Total: 1})
	return w, nil
}

func (w *handWork) Scratch(name string) (string, error) { return os.MkdirTemp(w.dir, name+"-") }
func (w *handWork) Log() io.Writer                      { return io.Discard }
func (w *handWork) Progress(done, total int64, label string) {
	w.watch.StageProgress("benchmark", done, total, label)
}
func (w *handWork) remove() { _ = os.RemoveAll(w.dir) }
