// Package triton makes Triton model repositories: configurations from what a
// model really takes and gives, version folders that are added and never
// overwritten, and a manifest with digests.
package triton

import (
	"fmt"
	"strings"

	"github.com/trtship/trtship/internal/engine"
	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/tensor"
)

// Format is the kind of a model file.
type Format string

// The formats.
const (
	ONNX Format = "onnx"
	Plan Format = "plan"
)

// Platform returns the configuration's platform.
func (f Format) Platform() string {
	if f == Plan {
		return "tensorrt_plan"
	}
	return "onnxruntime_onnx"
}

// Backend returns the configuration's backend.
func (f Format) Backend() string {
	if f == Plan {
		return "tensorrt"
	}
	return "onnxruntime"
}

// File returns the name that the backend expects in a version folder.
func (f Format) File() string {
	if f == Plan {
		return "model.plan"
	}
	return "model.onnx"
}

// Tensor is an input or output of a model file.
type Tensor struct {
	Name    string
	DType   tensor.DType // empty if it is no tensor or of unknown type
	Type    string       // tensor, or what else it is: sequence, map, optional
	HasRank bool
	Dims    []int64  // -1 where the size is not fixed
	Symbols []string // names of sizes that are not fixed; empty where unnamed
	Shape   bool     // a TensorRT shape tensor: its values are sizes
}

// String returns e.g. "x float32[batch,4]".
func (t Tensor) String() string {
	if !t.HasRank {
		return fmt.Sprintf("%s %s of unknown rank", t.Name, t.DType)
	}
	dims := make([]string, len(t.Dims))
	for i, d := range t.Dims {
		dims[i] = fmt.Sprint(d)
		if d < 0 && i < len(t.Symbols) && t.Symbols[i] != "" {
			dims[i] = t.Symbols[i]
		}
	}
	return fmt.Sprintf("%s %s[%s]", t.Name, t.DType, strings.Join(dims, ","))
}

// Signature is what a model file takes and gives.
type Signature struct {
	Format  Format
	Inputs  []Tensor
	Outputs []Tensor
	// Profiles bound the shapes of a plan's inputs; empty for ONNX.
	Profiles []engine.Profile
	// TensorRT is the release that built a plan.
	TensorRT string
	// GPU and ComputeCapability say what a plan was built for.
	GPU, ComputeCapability string
}

// ReadONNX reads the signature of an ONNX file. Inputs with an initializer are
// weights or have a default: they are not asked for.
func ReadONNX(path string) (Signature, error) {
	m, err := onnx.Open(path)
	if err != nil {
		return Signature{}, err
	}
	defer func() { _ = m.Close() }()
	return FromONNX(m), nil
}

// FromONNX returns the signature of a model.
func FromONNX(m *onnx.Model) Signature {
	convert := func(values []onnx.Value) []Tensor {
		out := make([]Tensor, len(values))
		for i, v := range values {
			t := Tensor{Name: v.Name, DType: v.DType, Type: v.Type, HasRank: v.HasShape}
			for _, d := range v.Dims {
				size := d.Size
				if !d.Fixed() {
					size = -1
				}
				t.Dims = append(t.Dims, size)
				t.Symbols = append(t.Symbols, d.Symbol)
			}
			out[i] = t
		}
		return out
	}
	return Signature{Format: ONNX, Inputs: convert(m.Inputs()), Outputs: convert(m.Outputs())}
}

// FromEngine returns the signature of a plan from its description.
func FromEngine(d *engine.Description) (Signature, error) {
	s := Signature{Format: Plan, Profiles: d.Profiles, TensorRT: d.TensorRT, GPU: d.GPU, ComputeCapability: d.ComputeCapability}
	for _, t := range d.Tensors {
		dtype, err := tensor.ParseDType(t.DType)
		if err != nil {
			return s, fmt.Errorf("tensor %s of the plan: %w", t.Name, err)
		}
		out := Tensor{Name: t.Name, DType: dtype, Type: "tensor", HasRank: true, Dims: t.Dims, Shape: t.ShapeTensor}
		out.Symbols = make([]string, len(t.Dims))
		if t.IO == "output" {
			s.Outputs = append(s.Outputs, out)
		} else {
			s.Inputs = append(s.Inputs, out)
		}
	}
	return s, nil
}

// Batched reports whether the first dimension of everything is the batch: not
// fixed, the same symbol where it is named, and not named as the batch further
// behind. why says what is against it.
func (s Signature) Batched() (why string, ok bool) {
	symbol := ""
	all := append(append([]Tensor{}, s.Inputs...), s.Outputs...)
	if len(s.Inputs) == 0 {
		return "the model has no inputs", false
	}
	for _, t := range all {
		switch {
		case t.Shape:
			continue
		case !t.HasRank:
			return t.Name + " has no shape", false
		case len(t.Dims) == 0:
			return t.Name + " is a scalar", false
		case t.Dims[0] >= 0:
			return fmt.Sprintf("the first dimension of %s is fixed at %d", t, t.Dims[0]), false
		}
		for i, name := range t.Symbols {
			if i > 0 && batchName(name) && !batchName(t.Symbols[0]) {
				return fmt.Sprintf("the batch of %s is dimension %d, not the first", t, i), false
			}
		}
		switch first := t.Symbols[0]; {
		case first == "":
		case symbol == "":
			symbol = first
		case symbol != first && !generated(first) && !generated(symbol):
			return fmt.Sprintf("first dimensions differ: %s has %s, others %s", t, first, symbol), false
		}
	}
	return "", true
}

// batchName reports whether a symbol is what people call a batch.
func batchName(s string) bool {
	l := strings.ToLower(s)
	return l == "n" || l == "b" || l == "bs" || strings.Contains(l, "batch")
}

// generated reports whether a symbol was made up by an exporter or by shape
// inference: it names nothing.
func generated(s string) bool {
	return strings.HasPrefix(s, "unk__") || strings.Contains(s, "_dynamic_axes") || strings.ContainsAny(s, "()+*/ ") ||
		strings.HasPrefix(s, "Concat") || strings.HasPrefix(s, "Reshape") || strings.HasPrefix(s, "Div") || strings.HasPrefix(s, "Mul")
}

// BatchRange returns the smallest and the largest batch that the profiles of a
// plan allow; ok is false without profiles.
func (s Signature) BatchRange() (low, high int64, ok bool) {
	for _, p := range s.Profiles {
		for _, in := range s.Inputs {
			r, found := p[in.Name]
			if !found || in.Shape || len(r.Max) == 0 || len(in.Dims) == 0 || in.Dims[0] >= 0 {
				continue
			}
			if !ok {
				low, high, ok = r.Min[0], r.Max[0], true
			}
			low, high = min(low, r.Min[0]), max(high, r.Max[0])
		}
	}
	return low, high, ok
}
