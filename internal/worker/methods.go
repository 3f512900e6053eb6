package worker

import (
	"context"
	"time"

	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/report"
)

// Model is what the child needs to load a PyTorch model and to call it.
type Model struct {
	Name        string         `json:"name"`
	Kind        string         `json:"kind"` // module, checkpoint, torchscript
	Factory     string         `json:"factory,omitempty"`
	FactoryArgs map[string]any `json:"factory_args,omitempty"`
	Path        string         `json:"path,omitempty"` // absolute
	TrustSource bool           `json:"trust_source"`
	Inputs      []Input        `json:"inputs"`
	OutputNames []string       `json:"output_names,omitempty"`
	Device      string         `json:"device"` // cpu or cuda
}

// Input is one declared input.
type Input struct {
	Name     string   `json:"name"`
	DType    string   `json:"dtype"`
	Shape    []any    `json:"shape"` // int64 sizes and string symbols
	Range    []string `json:"range,omitempty"`
	Argument string   `json:"argument,omitempty"`
	Optional bool     `json:"optional,omitempty"`
}

// ModelOf returns the model of a configuration.
func ModelOf(cfg *config.Config) Model {
	m := Model{
		Name: cfg.Model.Name, Kind: cfg.Model.Kind, Factory: cfg.Model.Factory, FactoryArgs: cfg.Model.FactoryArgs,
		Path: cfg.Model.Path, TrustSource: cfg.Model.TrustSource, OutputNames: cfg.Model.OutputNames, Device: cfg.Export.Device,
		Inputs: []Input{},
	}
	for _, in := range cfg.Model.Inputs {
		x := Input{Name: in.Name, DType: in.DType, Argument: in.Argument, Optional: in.Optional, Shape: []any{}}
		for _, d := range in.Shape {
			if d.Symbol != "" {
				x.Shape = append(x.Shape, d.Symbol)
			} else {
				x.Shape = append(x.Shape, d.Size)
			}
		}
		for _, r := range in.Range {
			x.Range = append(x.Range, string(r))
		}
		m.Inputs = append(m.Inputs, x)
	}
	return m
}

// OptionsFor returns the options of a child that works for a configuration. Log
// and Progress are left to the caller.
func OptionsFor(cfg *config.Config, python string) Options {
	o := Options{
		Python: python, Subject: cfg.Model.Name, Timeout: time.Duration(cfg.Export.TimeoutS) * time.Second, TimeoutSetting: "export.timeout_s",
		MemoryMB: cfg.Export.MemoryMB, Threads: cfg.Validation.Threads, CUDA: cfg.Export.Device == "cuda",
	}
	if cfg.Dir != "" {
		o.Path = append(o.Path, cfg.Dir)
	}
	o.Path = append(o.Path, cfg.Model.PythonPath...)
	return o
}

// Sizes gives each symbolic dimension a size.
type Sizes map[string]int64

// Origin says what a result came from.
type Origin struct {
	// Torch is the version of torch, from its metadata.
	Torch string `json:"torch"`
	// Sources are the files below Options.Path that were imported or read, and
	// the RECORD files of installed packages that the model imports (torchvision,
	// say), absolute: what stage.Outputs.DependOn wants to know.
	Sources []string `json:"sources"`
}

// InspectRequest asks for the facts about a model.
type InspectRequest struct {
	Model Model `json:"model"`
	// Sizes are tried in order until a forward runs; see TraceSizes.
	Sizes []Sizes `json:"sizes"`
}

// InspectResult is the facts. Dims of outputs are symbols where they follow a
// symbolic dimension over two forwards of different sizes.
type InspectResult struct {
	Origin
	Inspection report.Inspection `json:"inspection"`
	Sizes      Sizes             `json:"sizes"` // that the forward ran with
	Notes      []string          `json:"notes,omitempty"`
}

// Versions returns the versions of the packages that decide what the torch
// half makes, and the digest of its own sources: stage.Tools.
func Versions(ctx context.Context, python string) (map[string]string, error) {
	versions, err := PackageVersions(ctx, python, "torch", "onnx", "onnxscript", "onnx-ir", "numpy")
	if err != nil {
		return nil, err
	}
	versions["python sources"] = SourcesDigest()
	return versions, nil
}

// Inspect loads the model, runs it, and reports what it is made of.
func (w *Worker) Inspect(req InspectRequest) (InspectResult, error) {
	var out InspectResult
	err := w.Call("torch.inspect", req, &out)
	return out, err
}

// ExportRequest asks for an ONNX file.
type ExportRequest struct {
	Model Model `json:"model"`
	// Sizes are tried in order until a forward runs; the model is traced there.
	Sizes        []Sizes `json:"sizes"`
	Dir          string  `json:"dir"` // empty; gets RawModel and its data files
	Opset        int     `json:"opset"`
	Dynamo       bool    `json:"dynamo"`
	ConstantFold bool    `json:"constant_folding"`
}

// ExportResult says what was written. Inputs and Outputs are those of the
// model's own forward, to be compared with those of the file.
type ExportResult struct {
	Origin
	Files []string `json:"files"` // names below Dir
	Sizes Sizes    `json:"sizes"` // that the model was traced with
	// Confirmed says that a forward ran at two different sizes, so that a dim of
	// an output which is a number really is fixed.
	Confirmed bool            `json:"confirmed"`
	Inputs    []report.Tensor `json:"inputs"`
	Outputs   []report.Tensor `json:"outputs"`
	Notes     []string        `json:"notes,omitempty"`
}

// RawModel is the file that Export writes. It is what torch's exporter wrote:
// it may hold paths and stack traces, and have any number of data files beside
// it. Package stages/export makes the artifact from it.
const RawModel = "raw.onnx"

// Export writes the model as ONNX.
func (w *Worker) Export(req ExportRequest) (ExportResult, error) {
	var out ExportResult
	err := w.Call("torch.export", req, &out)
	return out, err
}

// Feed is one sample: In is an .npz file with one array for each declared
// input, Out is the .npz file to write with one array for each output.
type Feed struct {
	In  string `json:"in"`
	Out string `json:"out"`
}

// ForwardRequest asks for the model's outputs for a set of feeds.
type ForwardRequest struct {
	Model Model  `json:"model"`
	Feeds []Feed `json:"feeds"`
	// Twice runs each feed a second time in the same child and names the outputs
	// that differ in any bit.
	Twice bool `json:"twice"`
}

// ForwardResult describes the outputs of each feed, in order.
type ForwardResult struct {
	Origin
	Feeds []FeedResult `json:"feeds"`
	// RandomOperators are the operators that drew random numbers.
	RandomOperators []string `json:"random_operators,omitempty"`
}

// FeedResult is the outputs of one feed.
type FeedResult struct {
	Outputs   []TensorInfo `json:"outputs"`
	Different []string     `json:"different,omitempty"` // outputs that differ between the two runs
}

// TensorInfo is the type and shape of one array in an .npz file. DType is the
// true element type where the file holds raw unsigned integers.
type TensorInfo struct {
	Name  string  `json:"name"`
	DType string  `json:"dtype"`
	Shape []int64 `json:"shape"`
}

// Forward runs the model in eval mode over feeds and writes the outputs.
func (w *Worker) Forward(req ForwardRequest) (ForwardResult, error) {
	var out ForwardResult
	err := w.Call("torch.forward", req, &out)
	return out, err
}
