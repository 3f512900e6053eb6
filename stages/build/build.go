// Package build is the stage that makes TensorRT plans: one for each
// precision, from the precision graphs (strongly typed) or from the optimized
// graph, builder flags and the calibration cache (typing: weak). Every plan is
// published with the description that was read from it.
package build

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/engine"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/stage"
	"github.com/trtship/trtship/internal/worker"
	"github.com/trtship/trtship/report"
)

// The checks of this stage.
const (
	checkSupported = "build/operators-supported"
	checkBuilt     = "build/engine-built"
	checkTensors   = "build/tensors-match"
	checkPrecision = "build/precision-in-layers"
)

// Child is a Python child that can be ended.
type Child interface {
	engine.Caller
	io.Closer
}

// Tools are what the stage needs from outside.
type Tools struct {
	// Start starts a Python child that sees the GPU.
	Start func(ctx context.Context, log io.Writer, progress func(done, total int64, label string)) (Child, error)
	// Versions of the tools that decide a plan, by name.
	Versions func(ctx context.Context) (map[string]string, error)
	// Driver is the NVIDIA driver's version, for the description.
	Driver func() string
}

// Stage builds the engines.
type Stage struct {
	config   config.TensorRT
	tools    Tools
	declared []string // names of the model's outputs; empty if not declared
}

// New returns the stage.
func New(c *config.Config, tools Tools) *Stage {
	return &Stage{config: c.TensorRT, tools: tools, declared: c.Model.OutputNames}
}

// Spec describes the stage.
func (s *Stage) Spec() stage.Spec {
	strong := s.config.Typing != "weak"
	lower := slices.ContainsFunc(s.config.Precisions, func(p string) bool { return p != "fp32" })
	return stage.Spec{
		Name: "build", Version: 2, Title: "Build TensorRT engines",
		In: []stage.In{
			{Kind: artifact.OptimizedONNX},
			{Kind: artifact.PrecisionONNX, Optional: !strong || !lower},
			{Kind: artifact.CalibrationData, Optional: strong || !slices.Contains(s.config.Precisions, "int8")},
		},
		Out:   []artifact.Kind{artifact.Engine},
		Needs: []stage.Need{stage.NeedGPU, stage.NeedTensorRT},
		Checks: []stage.CheckDoc{
			{ID: checkSupported, Title: "TensorRT's parser takes every operator of the graph.", Remedy: "Rewrite the listed operators, or export another operator set.", Hardware: true},
			{ID: checkBuilt, Title: "An engine was built for the precision.", Remedy: "Read the builder's last lines in the check and in the stage's log.", Hardware: true},
			{ID: checkTensors, Title: "The plan has the model's inputs and outputs, by name.", Remedy: "Declare model.output_names as the export names them.", Hardware: true},
			{ID: checkPrecision, Title: "Layers of the plan compute in the precision that was asked for.", Remedy: "Look at the layer list in engine.json; quantize.keep_fp32 and int8_exclude may cover too much.", Hardware: true},
		},
		Cacheable: true, Hardware: true,
	}
}

// Settings is the tensorrt section without the device: the key holds the GPU itself.
func (s *Stage) Settings() any {
	c := s.config
	c.Device = ""
	return c
}

// Sources is the timing cache, if one is given.
func (s *Stage) Sources() []string {
	if s.config.TimingCache == "" {
		return nil
	}
	return []string{s.config.TimingCache}
}

// Tools are TensorRT's version and what else decides a plan.
func (s *Stage) Tools(ctx context.Context) (map[string]string, error) { return s.tools.Versions(ctx) }

// Run builds one engine after the other in one child, and in a fresh one after a
// crash. A precision that fails does not stop the rest.
func (s *Stage) Run(ctx context.Context, in stage.Inputs, out stage.Outputs) ([]report.Check, error) {
	var checks []report.Check
	var child Child
	defer func() {
		if child != nil {
			_ = child.Close()
		}
	}()
	precision := ""
	for _, precision = range s.config.Precisions {
		if child == nil {
			var err error
			child, err = s.tools.Start(ctx, out.Log(), func(done, total int64, label string) {
				out.Progress(done, total, precision+": "+label)
			})
			if err != nil {
				child = nil
				return checks, err
			}
		}
		got, err := s.one(precision, child, in, out)
		if err != nil {
			return checks, err
		}
		checks = append(checks, got...)
		if report.Of(got) == report.Broken {
			_ = child.Close()
			child = nil
		}
	}
	return checks, nil
}

// graph returns the ONNX file and, for weak INT8, the calibration cache.
func (s *Stage) graph(precision string, in stage.Inputs) (onnx, cache string, parent artifact.Artifact, err error) {
	if s.config.Typing == "weak" {
		parent, err = in.One(artifact.OptimizedONNX)
		if err == nil && precision == "int8" {
			var c artifact.Artifact
			c, err = in.One(artifact.CalibrationData)
			cache = filepath.Join(c.Dir, "calibration.cache")
		}
		return filepath.Join(parent.Dir, "model.onnx"), cache, parent, err
	}
	for _, a := range in.All(artifact.PrecisionONNX) {
		if a.Label == precision {
			return filepath.Join(a.Dir, "model.onnx"), "", a, nil
		}
	}
	if precision == "fp32" {
		parent, err = in.One(artifact.OptimizedONNX)
		return filepath.Join(parent.Dir, "model.onnx"), "", parent, err
	}
	return "", "", parent, failure.New(failure.Artifact, "there is no %s graph to build from", precision).
		WithHint("run the quantize stage, which writes one graph for each precision")
}

func (s *Stage) one(precision string, child Child, in stage.Inputs, out stage.Outputs) ([]report.Check, error) {
	onnx, cache, parent, err := s.graph(precision, in)
	if err != nil {
		return nil, err
	}
	dir, err := out.Scratch("engine-" + precision)
	if err != nil {
		return nil, err
	}
	started, subject := time.Now(), report.Subject{Precision: precision}
	request := engine.RequestOf(s.config, precision, onnx, filepath.Join(dir, engine.PlanFile))
	request.CalibrationCache = cache
	request.TimingOut = filepath.Join(dir, engine.TimingFile)
	d, err := engine.Build(child, request)
	if refused := engine.Refused(err); len(refused) > 0 {
		return []report.Check{unsupported(refused, subject, started)}, nil
	}
	if err != nil {
		failed, ours := broken(checkBuilt, subject, err, started)
		if ours != nil {
			return nil, s.onDriver(ours)
		}
		c := supported(err, subject)
		if c.Verdict != report.Pass {
			return append(failed, c), nil // the cause first
		}
		return append([]report.Check{c}, failed...), nil
	}
	d.Driver = s.tools.Driver()
	if err := d.Write(filepath.Join(dir, engine.DescriptionFile)); err != nil {
		failed, err := broken(checkBuilt, subject, err, started)
		return append([]report.Check{supported(nil, subject)}, failed...), err
	}
	if _, err := out.Publish(artifact.Engine, precision, dir, map[string]string{
		"tensorrt": d.TensorRT, "gpu": d.GPU, "precision": precision, "graph": parent.ID(),
	}); err != nil {
		return nil, err
	}
	return []report.Check{supported(nil, subject), built(d, subject, started), s.tensors(d, subject), inLayers(d, subject)}, nil
}

// onDriver adds the driver's version where something is missing on this machine:
// the child knows only its CUDA version.
func (s *Stage) onDriver(err error) error {
	if e, ok := errors.AsType[*failure.Error](err); ok && e.Code == failure.Missing && s.tools.Driver() != "" {
		e.With("NVIDIA driver", "%s", s.tools.Driver())
	}
	return err
}

// supported is the check of a graph that the parser did not refuse. It passes
// only if the parser has answered: behind a fault before that nobody knows.
func supported(err error, subject report.Subject) report.Check {
	c := report.Check{ID: checkSupported, Subject: subject, Verdict: report.Pass, Want: "no refused operator", Got: "none", Hardware: true}
	if err == nil || worker.Reached(err, engine.Parsed) {
		return c
	}
	c.Verdict, c.Got = report.Broken, "the build ended before the parser had answered"
	return c
}

// broken turns a fault into a check where it is TensorRT's, and passes it on
// where it is ours.
func broken(id string, subject report.Subject, err error, started time.Time) ([]report.Check, error) {
	if c, ok := worker.BrokenCheck(id, err); ok {
		c.Subject, c.Hardware, c.Seconds = subject, true, time.Since(started).Seconds()
		return []report.Check{c}, nil
	}
	if failure.CodeOf(err) != failure.Build {
		return nil, err
	}
	c := report.Check{
		ID: id, Subject: subject, Verdict: report.Fail, Want: "an engine", Got: err.Error(), Hardware: true,
		Seconds: time.Since(started).Seconds(), Detail: details(err),
	}
	return []report.Check{c}, nil
}

func details(err error) string {
	e, ok := err.(*failure.Error) //nolint:errorlint // details belong to the outermost error
	if !ok {
		return ""
	}
	var lines []string
	for _, d := range e.Details {
		lines = append(lines, d.Label+": "+d.Value)
	}
	return strings.Join(lines, "\n")
}

// unsupported is one check for all refused operators, with counts and nodes.
func unsupported(refused []engine.Unsupported, subject report.Subject, started time.Time) report.Check {
	nodes := map[string][]string{}
	for _, u := range refused {
		node := u.Node
		if node == "" {
			node = fmt.Sprintf("node %d", u.Index)
		}
		nodes[u.Operator] = append(nodes[u.Operator], node)
	}
	ops := make([]string, 0, len(nodes))
	for op := range nodes {
		ops = append(ops, op)
	}
	sort.Strings(ops)
	var lines []string
	for _, op := range ops {
		lines = append(lines, fmt.Sprintf("%s (%d): %s", op, len(nodes[op]), strings.Join(nodes[op], ", ")))
	}
	for _, u := range refused {
		lines = append(lines, u.Text)
	}
	return report.Check{
		ID: checkSupported, Subject: subject, Verdict: report.Fail, Want: "no refused operator",
		Got: fmt.Sprintf("%d refused: %s", len(refused), strings.Join(ops, ", ")), Detail: strings.Join(lines, "\n"),
		Hint: "rewrite these operators, or export another operator set", Hardware: true, Seconds: time.Since(started).Seconds(),
	}
}

func built(d *engine.Description, subject report.Subject, started time.Time) report.Check {
	c := report.Check{
		ID: checkBuilt, Subject: subject, Verdict: report.Pass, Want: "an engine",
		Got:      fmt.Sprintf("%.1f MiB in %.1f s by TensorRT %s on %s", float64(d.PlanBytes)/(1<<20), d.BuildSeconds, d.TensorRT, d.GPU),
		Hardware: true, Seconds: time.Since(started).Seconds(),
		Metrics: map[string]report.Number{
			"plan_bytes": report.Number(d.PlanBytes), "build_seconds": report.Number(d.BuildSeconds),
			"device_memory_bytes": report.Number(d.DeviceMemory), "layers": report.Number(len(d.Layers)),
		},
	}
	var notes []string
	for _, w := range d.Warnings {
		notes = append(notes, fmt.Sprintf("%d times: %s", w.Count, w.Text))
	}
	if subject.Precision == "fp16" && d.FastFP16 != nil && !*d.FastFP16 {
		notes = append(notes, "this GPU reports no fast FP16: the engine may be no faster than fp32")
	}
	if d.ConstrainedLayers != nil {
		c.Metrics["constrained_layers"] = report.Number(*d.ConstrainedLayers)
	}
	if d.CacheReads != nil {
		c.Metrics["calibration_cache_reads"] = report.Number(*d.CacheReads)
	}
	c.Detail = strings.Join(notes, "\n")
	return c
}

func (s *Stage) tensors(d *engine.Description, subject report.Subject) report.Check {
	var names []string
	for _, t := range d.Outputs() {
		names = append(names, t.Name)
	}
	c := report.Check{ID: checkTensors, Subject: subject, Verdict: report.Pass, Got: strings.Join(names, ", "), Want: strings.Join(s.declared, ", "), Hardware: true}
	if len(s.declared) == 0 {
		c.Want = "the graph's outputs"
		return c
	}
	want := append([]string(nil), s.declared...)
	got := append([]string(nil), names...)
	sort.Strings(want)
	sort.Strings(got)
	if strings.Join(want, "\n") != strings.Join(got, "\n") {
		c.Verdict = report.Fail
	}
	return c
}

// inLayers asks the built engine whether the precision arrived: a cache that
// names nothing of the graph still builds, in float32.
func inLayers(d *engine.Description, subject report.Subject) report.Check {
	counts := d.LayersByPrecision()
	var parts []string
	for _, p := range []string{"int8", "fp8", "fp16", "bf16", "fp32"} {
		if counts[p] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", counts[p], p))
		}
	}
	c := report.Check{
		ID: checkPrecision, Subject: subject, Verdict: report.Pass, Want: "layers in " + subject.Precision,
		Got: strings.Join(parts, ", "), Hardware: true, Metrics: map[string]report.Number{},
	}
	for p, n := range counts {
		c.Metrics["layers_"+p] = report.Number(n)
	}
	// With weak typing the builder may choose a wider type where that is faster;
	// not so for int8, where a cache that names nothing of the graph does it too.
	switch {
	case counts[subject.Precision] > 0:
	case d.Typing == "weak" && subject.Precision != "int8":
		c.Detail = "weak typing: TensorRT found other types to be faster; tensorrt.precision_constraints asks for the precision"
	case d.Typing == "weak" && d.ConstrainedLayers == nil:
		c.Verdict = report.Fail
		c.Hint = "TensorRT found other types to be faster, or the cache names nothing of the graph; with tensorrt.precision_constraints: prefer the builder keeps to int8 where it can"
	default:
		c.Verdict = report.Fail
		c.Hint = "the engine computes in other types: look at the layer list in " + engine.DescriptionFile
	}
	if len(d.Layers) == 0 {
		c.Verdict, c.Got = report.Missing, "TensorRT gave no layer information"
	}
	return c
}
