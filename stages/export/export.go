// Package export is the stage that turns the model into an ONNX artifact: by
// one of torch's exporters in a Python child, or, for model.kind onnx, by
// taking the given file with its data. The graph is then compared with what
// the configuration declares and with what the model's own forward does.
package export

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/stage"
	"github.com/trtship/trtship/internal/worker"
	"github.com/trtship/trtship/report"
)

// The checks of this stage.
const (
	checkExported = "export/exported"
	checkInputs   = "export/input-set"
	checkOutputs  = "export/output-set"
	checkOpset    = "export/opset"
	checkDynamic  = "export/dynamic-dimensions"
	checkTraining = "export/training-mode"
)

// ModelFile is the graph within an ONNX artifact. Data files lie beside it.
const ModelFile = "model.onnx"

// dynamoOpset is the operator set that the torch.export-based exporter writes
// by itself; older ones it converts to, which does not always work.
const dynamoOpset = 18

// Stage exports the model.
type Stage struct {
	cfg    *config.Config
	python string
}

// New returns the stage. python is the interpreter with torch; it is not used
// for model.kind onnx.
func New(cfg *config.Config, python string) *Stage { return &Stage{cfg: cfg, python: python} }

func (s *Stage) given() bool { return s.cfg.Model.Kind == "onnx" }

// Spec describes the stage.
func (s *Stage) Spec() stage.Spec {
	spec := stage.Spec{
		Name: "export", Version: 1, Title: "Export to ONNX",
		Out: []artifact.Kind{artifact.ONNX},
		Checks: []stage.CheckDoc{
			{ID: checkExported, Title: "The model was exported, or the given file was read.", Remedy: "Read the cause; try the other exporter (`export.dynamo`)."},
			{ID: checkInputs, Title: "The graph's inputs are the declared ones, by name, type and rank.", Remedy: "Compare the two lists in the check: an input that forward does not use vanishes; mark it `optional`, or take it out."},
			{ID: checkOutputs, Title: "The graph's outputs are the declared ones, in order.", Remedy: "Set `model.output_names` to the names and the number in the check."},
			{ID: checkOpset, Title: "The graph has the operator set that was asked for.", Remedy: "Set `export.opset` to the one that the exporter can write."},
			{ID: checkDynamic, Title: "Dimensions that are declared dynamic are dynamic in the graph.", Remedy: "Look for sizes that forward turns into Python numbers, such as `int(x.shape[0])`."},
			{ID: checkTraining, Title: "No operator was exported in training mode.", Remedy: "Call `eval()`; list what may stay in `model.allow_training_mode`."},
		},
		Cacheable: true,
	}
	if !s.given() {
		spec.Needs = []stage.Need{stage.NeedTorch}
	}
	return spec
}

// settings is what decides the graph. Paths are left out: what they name
// enters the key by content.
type settings struct {
	Model        worker.Model
	Allowed      []string
	Sizes        []worker.Sizes
	Opset        int
	Dynamo       bool
	ExternalData bool
	ConstantFold bool
	Threads      int
}

// Settings is the part of the configuration that decides the graph.
func (s *Stage) Settings() any {
	m := worker.ModelOf(s.cfg)
	m.Path = ""
	e := s.cfg.Export
	return settings{
		Model: m, Allowed: s.cfg.Model.AllowTrain, Sizes: worker.TraceSizes(s.cfg), Opset: s.opset(), Dynamo: e.Dynamo,
		ExternalData: e.ExternalData, ConstantFold: e.ConstantFold, Threads: s.cfg.Validation.Threads,
	}
}

// opset returns the operator set to write. The default gives way to what the
// torch.export-based exporter writes by itself.
func (s *Stage) opset() int {
	if s.cfg.Export.Dynamo && !s.cfg.Given("export.opset") {
		return max(s.cfg.Export.Opset, dynamoOpset)
	}
	return s.cfg.Export.Opset
}

// Sources are the weights, or the given ONNX file with its data files.
func (s *Stage) Sources() []string {
	path := s.cfg.Model.Path
	if path == "" {
		return nil
	}
	if s.given() {
		return onnx.Files(path)
	}
	return []string{path}
}

// Tools are the versions of torch and the exporters.
func (s *Stage) Tools(ctx context.Context) (map[string]string, error) {
	if s.given() {
		return map[string]string{}, nil
	}
	return worker.Versions(ctx, s.python)
}

// Run writes the graph and compares it with the declaration.
func (s *Stage) Run(ctx context.Context, _ stage.Inputs, out stage.Outputs) ([]report.Check, error) {
	started := time.Now()
	dir, err := out.Scratch("onnx")
	if err != nil {
		return nil, err
	}
	var from origin
	if s.given() {
		from, err = s.take(dir)
	} else {
		from, err = s.export(ctx, dir, out)
	}
	if err != nil {
		if c, ok := worker.CheckOf(checkExported, err); ok {
			c.Want, c.Seconds, c.Line = "an ONNX graph", time.Since(started).Seconds(), s.line("model.factory", "model.path", "model")
			return []report.Check{c}, nil
		}
		return nil, err
	}
	m, err := onnx.Open(filepath.Join(dir, ModelFile))
	if err != nil {
		return nil, fmt.Errorf("read the exported graph: %w", err)
	}
	defer m.Close()
	checks := []report.Check{{
		ID: checkExported, Verdict: report.Pass, Want: "an ONNX graph", Seconds: time.Since(started).Seconds(),
		Got:     fmt.Sprintf("%d nodes, %d bytes of weights", m.NodeCount(), m.Bytes()),
		Metrics: map[string]report.Number{"nodes": report.Number(m.NodeCount()), "weight_bytes": report.Number(m.Bytes())},
		Detail:  strings.Join(from.notes, "\n"),
	}}
	checks = append(checks, s.compare(m, from)...)
	_, err = out.Publish(artifact.ONNX, "", dir, map[string]string{"exporter": from.exporter, "opset": fmt.Sprint(m.Opset(""))})
	return checks, err
}

// origin is where a graph came from and what it should look like.
type origin struct {
	exporter  string
	inputs    []report.Tensor // of the model's forward; nil for a given file
	outputs   []report.Tensor
	confirmed bool // outputs were seen at two sizes
	notes     []string
}

// export runs torch's exporter and makes the artifact's files from its result.
func (s *Stage) export(ctx context.Context, dir string, out stage.Outputs) (origin, error) {
	raw, err := out.Scratch("raw")
	if err != nil {
		return origin{}, err
	}
	opt := worker.OptionsFor(s.cfg, s.python)
	opt.Log, opt.Progress = out.Log(), out.Progress
	w, err := worker.Start(ctx, opt)
	if err != nil {
		return origin{}, err
	}
	defer w.Close()
	got, err := w.Export(worker.ExportRequest{
		Model: worker.ModelOf(s.cfg), Sizes: worker.TraceSizes(s.cfg), Dir: raw, Opset: s.opset(),
		Dynamo: s.cfg.Export.Dynamo, ConstantFold: s.cfg.Export.ConstantFold,
	})
	for _, path := range got.Sources {
		out.DependOn(path)
	}
	if err != nil {
		return origin{}, err
	}
	from := origin{
		exporter: "torch " + got.Torch + " (TorchScript)", inputs: got.Inputs, outputs: got.Outputs, confirmed: got.Confirmed, notes: got.Notes,
	}
	if s.cfg.Export.Dynamo {
		from.exporter = "torch " + got.Torch + " (torch.export)"
	}
	return from, s.write(filepath.Join(raw, worker.RawModel), dir, from)
}

// write makes the artifact's files from the exporter's.
func (s *Stage) write(raw, dir string, from origin) error {
	m, err := onnx.Open(raw)
	if err != nil {
		return fmt.Errorf("read the exporter's graph: %w", err)
	}
	defer m.Close()
	finish(m, from.inputs, from.outputs)
	o := onnx.SaveOptions{External: onnx.Auto}
	if s.cfg.Export.ExternalData {
		o.External = onnx.Always
	}
	path := filepath.Join(dir, ModelFile)
	if err := m.Save(path, o); err != nil {
		return err
	}
	if info, err := os.Stat(path + ".data"); err == nil && info.Size() == 0 {
		return os.Remove(path + ".data") // no tensor was large enough to go there
	}
	return nil
}

// take copies the given file and its data files, byte for byte.
func (s *Stage) take(dir string) (origin, error) {
	path := s.cfg.Model.Path
	m, err := onnx.Open(path)
	if err != nil {
		return origin{}, err
	}
	defer m.Close()
	if err := copyFile(path, filepath.Join(dir, ModelFile)); err != nil {
		return origin{}, err
	}
	for _, f := range m.DataFiles() {
		if filepath.Clean(f) == ModelFile {
			return origin{}, fmt.Errorf("copy %s: its data file has the name %s", filepath.Base(path), ModelFile)
		}
		to := filepath.Join(dir, filepath.FromSlash(f))
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return origin{}, err
		}
		if err := copyFile(filepath.Join(m.Dir(), filepath.FromSlash(f)), to); err != nil {
			return origin{}, err
		}
	}
	return origin{exporter: "given file", notes: m.Notes}, nil
}

// line returns the first line that the configuration has for one of the keys.
func (s *Stage) line(keys ...string) int {
	for _, k := range keys {
		if n := s.cfg.Lines[k]; n > 0 {
			return n
		}
	}
	return 0
}
