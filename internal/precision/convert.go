package precision

import (
	"fmt"

	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/tensor"
)

// Request asks for one graph.
type Request struct {
	Precision string // fp16, bf16, int8
	Settings  config.Quantize
	Fallback  bool               // the floating-point part of int8 is float16
	Scales    map[string]float32 // for int8
	Observed  func(tensor string) (largest float64, ok bool)
	Only      *Selection // if set, all other nodes stay as they are
}

// Description is precision.json: what was done to the graph.
type Description struct {
	Precision string       `json:"precision"`
	Kept      []Kept       `json:"kept_float32,omitempty"`
	Ranges    []OutOfRange `json:"out_of_range,omitempty"`
	Quantized []string     `json:"quantized,omitempty"`
	Skipped   []Skipped    `json:"not_quantized,omitempty"`
	Low       int          `json:"nodes_16_bit"`
	Casts     int          `json:"casts"`
	Notes     []string     `json:"notes,omitempty"`
}

// Graph is a precision's graph.
type Graph struct {
	Description
	Model   *onnx.Model
	Preview *onnx.Model // rounds like Model, in float32; nil where Model has no 16-bit value
}

// Convert makes the graph of a precision, and its preview.
func Convert(m *onnx.Model, r Request) (*Graph, error) {
	half := HalfOptions{
		DType: tensor.Float16, KeepIO: r.Settings.KeepIO, Keep: NewSelection("quantize.keep_fp32", r.Settings.KeepFP32),
		Observed: r.Observed, Only: r.Only,
	}
	switch r.Precision {
	case "fp16":
		return halfGraph(m, r, half)
	case "bf16":
		half.DType = tensor.BFloat16
		return halfGraph(m, r, half)
	case "int8":
		return int8Graph(m, r, half)
	}
	return nil, failure.New(failure.Usage, "precision %q is none of fp16, bf16, int8", r.Precision)
}

// halfGraph converts, and makes the preview that rounds in float32.
func halfGraph(m *onnx.Model, r Request, o HalfOptions) (*Graph, error) {
	h, err := ToHalf(m, o)
	if err != nil {
		return nil, err
	}
	g := &Graph{Model: h.Model, Description: Description{Precision: r.Precision}}
	g.addHalf(h)
	return g, g.emulate(m, o)
}

// emulate adds the preview of a graph with 16-bit values.
func (g *Graph) emulate(m *onnx.Model, o HalfOptions) error {
	o.Emulate, o.KeepIO = true, true
	h, err := ToHalf(m, o)
	if err != nil {
		return err
	}
	g.Preview = h.Model
	g.Notes = append(g.Notes, fmt.Sprintf("the preview computes in float32 and rounds every value to %s: ONNX Runtime leaves the rounding between operators out on a CPU", o.DType))
	return nil
}

func (g *Graph) addHalf(h *Half) {
	g.Kept, g.Ranges, g.Low, g.Casts = h.Kept, h.Ranges, h.Low, h.Casts
	g.Notes = append(g.Notes, h.Notes...)
}

// int8Graph quantizes, and makes the rest float16 if that is asked for.
func int8Graph(m *onnx.Model, r Request, half HalfOptions) (*Graph, error) {
	q, err := ToInt8(m, Int8Options{
		Scales: r.Scales, PerChannel: r.Settings.PerChannel, HalfScales: r.Fallback, Only: r.Only,
		Exclude: NewSelection("quantize.int8_exclude", r.Settings.Exclude),
		Keep:    NewSelection("quantize.keep_fp32", r.Settings.KeepFP32),
	})
	if err != nil {
		return nil, err
	}
	g := &Graph{Model: q.Model, Description: Description{Precision: r.Precision, Quantized: q.Nodes, Skipped: q.Skipped}}
	if !r.Fallback {
		return g, nil
	}
	raised, err := RaiseOpset(q.Model, halfQuantizers)
	if err != nil {
		return nil, err
	}
	h, err := ToHalf(raised, half)
	if err != nil {
		return nil, err
	}
	g.Model = h.Model
	g.addHalf(h)
	g.Notes = append(g.Notes, "the floating-point part is float16 (tensorrt.int8_fp16_fallback)")
	return g, g.emulate(raised, half)
}
