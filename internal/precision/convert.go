package precision

import (
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
	Emulate   bool       // the model itself is a graph that rounds in float32
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
	Preview *onnx.Model // for ONNX Runtime, if that is another one
}

// Convert makes the graph of a precision.
func Convert(m *onnx.Model, r Request) (*Graph, error) {
	keep := NewSelection("quantize.keep_fp32", r.Settings.KeepFP32)
	half := HalfOptions{DType: tensor.Float16, KeepIO: r.Settings.KeepIO, Keep: keep, Observed: r.Observed, Only: r.Only, Emulate: r.Emulate}
	switch r.Precision {
	case "fp16":
		return halfGraph(m, r, half, "ONNX Runtime computes float16 in float32 on a CPU and rounds between operators: the preview says nothing about overflow inside of them")
	case "bf16":
		half.DType = tensor.BFloat16
		g, err := halfGraph(m, r, half, "ONNX Runtime has no bfloat16 kernels: the preview computes in float32 and rounds every value to bfloat16")
		if err != nil {
			return nil, err
		}
		if r.Emulate {
			return g, nil
		}
		half.Emulate = true
		emulated, err := ToHalf(m, half)
		if err != nil {
			return nil, err
		}
		g.Preview = emulated.Model
		return g, nil
	case "int8":
		return int8Graph(m, r, half)
	}
	return nil, failure.New(failure.Usage, "precision %q is none of fp16, bf16, int8", r.Precision)
}

func halfGraph(m *onnx.Model, r Request, o HalfOptions, note string) (*Graph, error) {
	h, err := ToHalf(m, o)
	if err != nil {
		return nil, err
	}
	g := &Graph{Model: h.Model, Description: Description{Precision: r.Precision}}
	g.addHalf(h)
	g.Notes = append(g.Notes, note)
	return g, nil
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
	raised, err := RaiseOpset(q.Model)
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
	return g, nil
}
