// Package calibrate is the stage that gathers the ranges of activations over a
// data set and writes them as a TensorRT calibration cache, with a sidecar that
// says what it was made from; or that judges a cache which the configuration
// names.
package calibrate

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/calibration"
	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/dataset"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/ort"
	"github.com/trtship/trtship/internal/precision"
	"github.com/trtship/trtship/internal/stage"
	"github.com/trtship/trtship/report"
)

// The checks of this stage.
const (
	checkData           = "calibrate/data"
	checkCoverage       = "calibrate/coverage"
	checkRepresentative = "calibrate/representative"
	checkCache          = "calibrate/cache"
)

const modelFile = "model.onnx"

// DefaultTensorRT is the version in a cache's header where neither the
// configuration nor this machine has one.
const DefaultTensorRT = "10.6.0"

// Tools are what the stage works with.
type Tools struct {
	ORT ort.Library
	// TensorRT returns the version that the target's build uses; empty if there
	// is none here. It may be nil.
	TensorRT func(ctx context.Context) string
	// State is a folder for what makes an interrupted calibration go on; empty is none.
	State string
	// Threads of ONNX Runtime; 0 is one a core.
	Threads int
}

// Stage calibrates.
type Stage struct {
	cfg   *config.Config
	tools Tools
}

// New returns the stage.
func New(cfg *config.Config, tools Tools) *Stage { return &Stage{cfg: cfg, tools: tools} }

// Spec describes the stage.
func (*Stage) Spec() stage.Spec {
	return stage.Spec{
		Name: "calibrate", Version: 2, Title: "Gather the ranges of activations for INT8",
		In:    []stage.In{{Kind: artifact.OptimizedONNX}},
		Out:   []artifact.Kind{artifact.CalibrationData},
		Needs: []stage.Need{stage.NeedORT},
		Checks: []stage.CheckDoc{
			{ID: checkData, Title: "The data set gave enough different samples, all finite, of the model's shape and in the declared range.", Remedy: "Add data, mend the loader that repeats or spoils samples, or the declared preprocessing."},
			{ID: checkCoverage, Title: "Every activation of the graph has a finite, positive scale.", Remedy: "Look at the listed tensors: a NaN or an infinity in one of them comes from the model or from a sample."},
			{ID: checkRepresentative, Title: "The data are real ones, not drawn at random.", Remedy: "Set calibration.dataset and calibration.path to data like those that the model will serve."},
			{ID: checkCache, Title: "The cache that calibration.cache names belongs to this graph, these data and these settings.", Remedy: "Mend every listed mismatch, or leave calibration.cache out and calibrate anew."},
		},
		Cacheable: true,
	}
}

// pictureReader is what a proof calls the version of the reader of pictures.
const pictureReader = "picture reader"

// settings is what decides the cache.
type settings struct {
	Calibration config.Calibration
	Inputs      []config.Input
	Profile     config.Profile
}

// Settings is the calibration section without its paths: contents count, not places.
func (s *Stage) Settings() any {
	c := s.cfg.Calibration
	c.Path, c.Cache = "", ""
	v := settings{Calibration: c, Inputs: s.cfg.Model.Inputs}
	if len(s.cfg.TensorRT.Profiles) > 0 {
		v.Profile = s.cfg.TensorRT.Profiles[0]
	}
	return v
}

// Sources are the data, or the given cache and its sidecar.
func (s *Stage) Sources() []string {
	c := s.cfg.Calibration
	var out []string
	if c.Path != "" && c.Dataset != "synthetic" {
		out = append(out, c.Path)
	}
	if c.Cache != "" {
		out = append(out, c.Cache)
		if p := sidecarOf(c.Cache); p != "" {
			out = append(out, p)
		}
	}
	return out
}

// Tools are the versions of ONNX Runtime and of the cache's header.
func (s *Stage) Tools(ctx context.Context) (map[string]string, error) {
	version, _ := s.version(ctx)
	return map[string]string{"onnxruntime": s.tools.ORT.Version, "tensorrt-header": version}, nil
}

// version returns the TensorRT version of the header, and where it comes from.
func (s *Stage) version(ctx context.Context) (version, from string) {
	if v := s.cfg.Calibration.TensorRTVersion; v != "" {
		return v, "configuration"
	}
	if s.tools.TensorRT != nil {
		if v := s.tools.TensorRT(ctx); v != "" {
			return v, "build"
		}
	}
	return DefaultTensorRT, "default"
}

// Run calibrates, or takes the given cache.
func (s *Stage) Run(ctx context.Context, in stage.Inputs, out stage.Outputs) ([]report.Check, error) {
	a, err := in.One(artifact.OptimizedONNX)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(a.Dir, modelFile)
	m, err := onnx.Open(path)
	if err != nil {
		return nil, err
	}
	defer m.Close() //nolint:errcheck // read only
	w := &work{Stage: s, out: out, model: m, path: path, digest: string(a.Digest)}
	if err := w.prepare(ctx); err != nil {
		return nil, err
	}
	if s.cfg.Calibration.Cache != "" {
		return w.take(ctx)
	}
	return w.calibrate(ctx)
}

// work is one run of the stage.
type work struct {
	*Stage
	out    stage.Outputs
	model  *onnx.Model
	path   string
	digest string

	tensors []precision.Activation
	names   []string
	makers  map[string]string
	proof   calibration.Proof
	number  int // of the header
}

// prepare finds the activations and everything of the proof that needs no data.
func (w *work) prepare(ctx context.Context) error {
	w.tensors = precision.Activations(w.model)
	w.makers = map[string]string{}
	for _, t := range w.tensors {
		if strings.ContainsAny(t.Name, "\r\n") {
			return failure.New(failure.Calibration, "calibrate: tensor %q of node %s has a line break in its name, which a calibration cache cannot hold", t.Name, t.Node).
				WithHint("rename it in the model")
		}
		w.names = append(w.names, t.Name)
		w.makers[t.Name] = t.Node
	}
	if len(w.names) == 0 {
		return failure.New(failure.Calibration, "calibrate: the graph has no floating-point activation")
	}
	method, err := calibration.ParseMethod(w.cfg.Calibration.Method)
	if err != nil {
		return failure.New(failure.Usage, "calibrate: %w", err)
	}
	version, from := w.version(ctx)
	if w.number, err = calibration.VersionNumber(version); err != nil {
		return failure.New(failure.Usage, "calibrate: %w", err).WithHint("set calibration.tensorrt_version to a version such as 10.6.0")
	}
	c := w.cfg.Calibration
	rule := calibration.Rule{Method: method}
	if method == calibration.Percentile {
		rule.Percentile = c.Percentile
	}
	w.proof = calibration.Proof{
		Rule: rule, Seed: c.Seed, Model: w.digest, Graph: calibration.Structure(w.model), Synthetic: c.Dataset == "synthetic",
		Versions: map[string]string{"onnxruntime": w.tools.ORT.Version}, TensorRT: version, TensorRTFrom: from,
	}
	if c.Dataset == "images" {
		if w.proof.Preprocess, err = json.Marshal(c.Preprocess); err != nil {
			return fmt.Errorf("calibrate: %w", err)
		}
		w.proof.Versions[pictureReader] = dataset.PictureReader
	}
	return nil
}

// open opens the data set for the graph's inputs.
func (w *work) open(ctx context.Context) (*dataset.Set, error) {
	inputs, err := Inputs(w.cfg, w.model)
	if err != nil {
		return nil, err
	}
	return dataset.Open(ctx, dataset.Options{Calibration: w.cfg.Calibration, Inputs: inputs, Progress: w.out.Progress})
}

// calibrate runs the graph over the data.
func (w *work) calibrate(ctx context.Context) ([]report.Check, error) {
	started := time.Now()
	set, err := w.open(ctx)
	if err != nil {
		return nil, err
	}
	defer set.Close() //nolint:errcheck // read only
	if w.proof.Data, err = set.Digest(ctx); err != nil {
		return nil, err
	}
	checkpoint := w.checkpoint()
	got, err := calibration.Collect(ctx, calibration.CollectOptions{
		Library: w.tools.ORT, Model: w.path, Tensors: w.names, Interface: ends(w.model), Feeds: set, Samples: set.Samples, RangeOnly: w.proof.Rule.RangeOnly(),
		Threads: w.threads(), Timeout: time.Duration(w.cfg.Validation.TimeoutS) * time.Second, LimitMB: w.cfg.Validation.MemoryMB,
		Checkpoint: checkpoint, Key: w.key(), Every: time.Second, Progress: w.out.Progress, Log: w.out.Log(),
	})
	if err != nil {
		return nil, err
	}
	if err := got.Audit.Check(w.cfg.Calibration.MinSamples); err != nil {
		return nil, err
	}
	w.proof.Samples, w.proof.Distinct, w.proof.Feeds, w.proof.Batch = got.Audit.Samples, got.Audit.Distinct(), got.Audit.Feeds(), set.Batch
	if got.Resumed > 0 {
		fmt.Fprintf(w.out.Log(), "went on after %d samples\n", got.Resumed)
	}
	ranges, err := calibration.Ranges(got.Observers, w.proof.Rule, w.makers)
	if err != nil {
		return nil, failure.New(failure.Usage, "calibrate: %w", err)
	}
	side := w.sidecar(ranges)
	side.Notes = append(side.Notes, set.Notes...)
	if err := w.publish(side); err != nil {
		return nil, err
	}
	calibration.Discard(checkpoint)
	return w.checks(side, set, time.Since(started).Seconds()), nil
}

// checkpoint returns the file that an interrupted calibration goes on from.
func (w *work) checkpoint() string {
	if w.tools.State == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(w.key()))
	return filepath.Join(w.tools.State, "calibrate-"+hex.EncodeToString(sum[:6])+".json")
}

// key identifies a calibration: everything but what its observations do not
// depend on, the method and the header.
func (w *work) key() string {
	p := w.proof
	rangeOnly := p.Rule.RangeOnly()
	p.Rule, p.TensorRT, p.TensorRTFrom = calibration.Rule{}, "", ""
	c := w.cfg.Calibration
	b, err := json.Marshal([]any{p, w.names, c.NumSamples, c.BatchSize, c.Input, rangeOnly})
	if err != nil {
		return ""
	}
	return string(b)
}

func (w *work) sidecar(ranges []calibration.TensorRange) *calibration.Sidecar {
	s := &calibration.Sidecar{Format: calibration.SidecarFormat, Representative: !w.proof.Synthetic, Proof: w.proof, Tensors: ranges}
	if w.proof.TensorRTFrom == "default" {
		s.Notes = append(s.Notes, fmt.Sprintf("the header names TensorRT %s, for none is installed here: set calibration.tensorrt_version to that of the build", w.proof.TensorRT))
	}
	if w.proof.Synthetic {
		s.Notes = append(s.Notes, "synthetic data: the scales do not represent real inputs")
	}
	return s
}

func ends(m *onnx.Model) []string {
	var out []string
	for _, v := range append(m.Inputs(), m.Outputs()...) {
		out = append(out, v.Name)
	}
	return out
}

// threads returns how many threads ONNX Runtime gets: all there are by default,
// for a value does not depend on how an operator is divided among them.
func (w *work) threads() int {
	if w.tools.Threads > 0 {
		return w.tools.Threads
	}
	return runtime.NumCPU()
}
