// Package quantize is the stage that writes one graph for each precision, names
// what leaves the range of a 16-bit type before anything is built, and validates
// each graph in ONNX Runtime: a preview of what an engine will answer.
package quantize

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/calibration"
	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/ort"
	"github.com/trtship/trtship/internal/precision"
	"github.com/trtship/trtship/internal/regular"
	"github.com/trtship/trtship/internal/stage"
	"github.com/trtship/trtship/internal/validation"
	"github.com/trtship/trtship/report"
)

const (
	name      = "quantize"
	modelFile = "model.onnx"
	// DescriptionFile says what was done to a precision's graph.
	DescriptionFile = "precision.json"
)

// The checks of this stage besides those of a validation.
const (
	checkRange    = "quantize/fp16-range"
	checkCoverage = "quantize/coverage"
)

// Stage writes precision graphs.
type Stage struct {
	cfg *config.Config
	lib ort.Library
}

// New returns the stage.
func New(cfg *config.Config, lib ort.Library) *Stage { return &Stage{cfg: cfg, lib: lib} }

// Spec describes the stage.
func (s *Stage) Spec() stage.Spec {
	return stage.Spec{
		Name: name, Version: 1, Title: "Write a graph for each precision",
		In: []stage.In{
			{Kind: artifact.OptimizedONNX},
			{Kind: artifact.Reference},
			{Kind: artifact.CalibrationData, Optional: !slices.Contains(s.cfg.TensorRT.Precisions, "int8")},
		},
		Out:   []artifact.Kind{artifact.PrecisionONNX, artifact.PrecisionReport, artifact.Outputs},
		Needs: []stage.Need{stage.NeedORT},
		Checks: append([]stage.CheckDoc{
			{ID: checkRange, Title: "Every constant and every observed value fits into the 16-bit type that it gets.", Remedy: "Add the named nodes to quantize.keep_fp32; trtship sensitivity suggests the smallest list."},
			{ID: checkCoverage, Title: "Nodes that can compute in INT8 do.", Remedy: "Read why the listed nodes do not; a tensor without a range needs a calibration that covers it."},
		}, validation.GraphDocs(name)...),
		Cacheable: true,
	}
}

// settings is what decides the graphs and their verdicts.
type settings struct {
	Quantize    config.Quantize
	Precisions  []string
	Fallback    bool
	Target      string
	Tolerances  map[string]config.Tolerance
	Outputs     map[string]config.OutputLimits
	AllowRandom bool
	Threads     int
}

// Settings is the part of the configuration that decides the graphs.
func (s *Stage) Settings() any {
	v, t := s.cfg.Validation, s.cfg.TensorRT
	return settings{s.cfg.Quantize, t.Precisions, t.Int8FP16Fallback, s.cfg.Target, v.Tolerances, v.Outputs, v.AllowRandom, v.Threads}
}

// Sources is empty: all inputs are artifacts.
func (*Stage) Sources() []string { return nil }

// Tools is ONNX Runtime.
func (s *Stage) Tools(context.Context) (map[string]string, error) {
	return map[string]string{"onnxruntime": s.lib.Version}, nil
}

// Run writes and validates one graph after the other.
func (s *Stage) Run(ctx context.Context, in stage.Inputs, out stage.Outputs) ([]report.Check, error) {
	w, err := s.open(in, out)
	if err != nil {
		return nil, err
	}
	defer w.model.Close() //nolint:errcheck // read only
	if err := w.observe(ctx); err != nil {
		return nil, err
	}
	var checks []report.Check
	list := []report.Validation{}
	for _, p := range s.cfg.TensorRT.Precisions {
		if p == "fp32" {
			continue // the optimized graph is that
		}
		v, got, err := w.one(ctx, p)
		checks = append(checks, got...)
		if err != nil {
			return checks, fmt.Errorf("%s: %w", p, err)
		}
		list = append(list, v)
	}
	_, err = out.PublishDocument(artifact.PrecisionReport, list)
	return checks, err
}

// work is one run of the stage.
type work struct {
	*Stage
	out      stage.Outputs
	model    *onnx.Model
	path     string
	parent   string
	ref      *validation.Reference
	refID    string
	scales   map[string]float32
	observed map[string]float64 // largest magnitudes
}

func (s *Stage) open(in stage.Inputs, out stage.Outputs) (*work, error) {
	a, err := in.One(artifact.OptimizedONNX)
	if err != nil {
		return nil, err
	}
	r, err := in.One(artifact.Reference)
	if err != nil {
		return nil, err
	}
	w := &work{Stage: s, out: out, path: filepath.Join(a.Dir, modelFile), parent: a.ID(), refID: r.ID(), observed: map[string]float64{}}
	if w.ref, err = validation.OpenReference(r.Dir); err != nil {
		return nil, err
	}
	if slices.Contains(s.cfg.TensorRT.Precisions, "int8") {
		c, err := in.One(artifact.CalibrationData)
		if err != nil {
			return nil, err
		}
		if err := w.readCalibration(c.Dir); err != nil {
			return nil, err
		}
	}
	w.model, err = onnx.Open(w.path)
	return w, err
}

// readCalibration reads scales and observed magnitudes.
func (w *work) readCalibration(dir string) error {
	path := filepath.Join(dir, calibration.CacheFile)
	text, err := regular.ReadFile(path)
	if err != nil {
		return failure.New(failure.Artifact, "read calibration cache: %w", err).At(path)
	}
	cache, problems := calibration.ParseCache(text)
	if len(problems) > 0 {
		return failure.New(failure.Calibration, "read calibration cache: %s", problems[0]).At(path)
	}
	w.scales = cache.Scales()
	side, err := calibration.ReadSidecar(filepath.Join(dir, calibration.SidecarFile))
	if err != nil {
		return err
	}
	for _, r := range side.Tensors {
		w.observed[r.Name] = float64(r.AbsMax)
	}
	return nil
}

// observe finds the largest magnitude of every activation over the reference's
// feeds, where a 16-bit precision needs it.
func (w *work) observe(ctx context.Context) error {
	half := func(p string) bool { return p == "fp16" || p == "bf16" || p == "int8" && w.fallback() }
	if !slices.ContainsFunc(w.cfg.TensorRT.Precisions, half) {
		return nil
	}
	got, err := calibration.Observe(ctx, calibration.ObserveOptions{
		Library: w.lib, Path: w.path, Model: w.model, Reference: w.ref, Validation: w.cfg.Validation, Log: w.out.Log(), Progress: w.out.Progress,
	})
	if err != nil {
		return err
	}
	for name, v := range got {
		w.observed[name] = max(w.observed[name], v)
	}
	return nil
}

func (w *work) largest(tensor string) (float64, bool) {
	v, ok := w.observed[tensor]
	return v, ok
}

// fallback reports whether the floating-point part of an int8 graph is float16.
func (w *work) fallback() bool {
	return w.cfg.TensorRT.Int8FP16Fallback && w.cfg.Target != "onnxruntime"
}

// one writes, publishes and validates one graph.
func (w *work) one(ctx context.Context, p string) (report.Validation, []report.Check, error) {
	started := time.Now()
	w.out.Progress(0, 0, p+": write graph")
	g, err := precision.Convert(w.model, precision.Request{
		Precision: p, Settings: w.cfg.Quantize, Fallback: w.fallback(), Scales: w.scales, Observed: w.largest,
	})
	if err != nil {
		return report.Validation{}, nil, err
	}
	dir, err := w.out.Scratch("graph-" + p)
	if err != nil {
		return report.Validation{}, nil, err
	}
	graph := filepath.Join(dir, modelFile)
	if err := g.Model.Save(graph, onnx.SaveOptions{}); err != nil {
		return report.Validation{}, nil, err
	}
	if err := writeDescription(filepath.Join(dir, DescriptionFile), g.Description); err != nil {
		return report.Validation{}, nil, err
	}
	checks := w.checks(g, time.Since(started).Seconds())
	preview, err := w.preview(g, graph)
	if err != nil {
		return report.Validation{}, checks, err
	}
	v, judged, err := w.judge(ctx, p, preview)
	if err != nil {
		return report.Validation{}, checks, err
	}
	if c, ok := w.loads(ctx, g, graph); !ok {
		judged = append(judged, c)
	}
	v.Notes = append(v.Notes, g.Notes...)
	_, err = w.out.Publish(artifact.PrecisionONNX, p, dir, map[string]string{"precision": p, "graph": w.parent})
	return v, append(checks, judged...), err
}

// preview returns the graph that is judged: the one that rounds as an engine
// does, or the real one where ONNX Runtime itself is the target.
func (w *work) preview(g *precision.Graph, graph string) (string, error) {
	if g.Preview == nil || w.cfg.Target == "onnxruntime" && g.Precision != "bf16" {
		return graph, nil
	}
	dir, err := w.out.Scratch("preview-" + g.Precision)
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, modelFile)
	return path, g.Preview.Save(path, onnx.SaveOptions{})
}

// loads makes sure that ONNX Runtime takes the real graph too, where it has the
// types. ok is true where it does.
func (w *work) loads(ctx context.Context, g *precision.Graph, graph string) (c report.Check, ok bool) {
	if g.Precision == "bf16" {
		return c, true // no kernels
	}
	s, err := ort.Open(ctx, w.lib, graph, validation.SessionOptions(w.cfg.Validation, w.out.Log()))
	if err == nil {
		return c, s.Close() == nil
	}
	return report.Check{
		ID: name + "/loads", Subject: report.Subject{Precision: g.Precision}, Verdict: report.Fail, Preview: true,
		Want: "the graph loads", Detail: err.Error(),
	}, false
}

func (w *work) judge(ctx context.Context, p, graph string) (report.Validation, []report.Check, error) {
	dir, err := w.out.Scratch("outputs-" + p)
	if err != nil {
		return report.Validation{}, nil, err
	}
	v, checks, err := validation.JudgeGraph(ctx, w.lib, graph, w.ref, validation.SessionOptions(w.cfg.Validation, w.out.Log()), validation.Options{
		Stage: name, Precision: p, Preview: true, Dir: dir, AllowRandom: w.cfg.Validation.AllowRandom, DeploysONNX: w.cfg.Target == "onnxruntime",
		Tolerance: func(output string) report.Tolerance { return w.cfg.Tolerance(p, output) },
		Progress:  func(done, total int64, label string) { w.out.Progress(done, total, p+": "+label) },
	})
	if err != nil {
		return v, nil, err
	}
	v.Stored.Reference = w.refID
	if len(v.Rows) > 0 {
		kept, err := w.out.Publish(artifact.Outputs, name+"-"+p, dir, nil)
		if err != nil {
			return v, nil, err
		}
		v.Stored.Candidate = kept.ID()
	}
	return v, checks, nil
}

func writeDescription(path string, d precision.Description) error {
	b, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		return fmt.Errorf("write %s: %w", DescriptionFile, err)
	}
	if err := os.WriteFile(path, append(b, '\n'), 0o644); err != nil {
		return failure.New(failure.Artifact, "write %s: %w", DescriptionFile, err).At(path)
	}
	return nil
}
