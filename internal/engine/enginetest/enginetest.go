// Package enginetest has a stand-in for the Python child with TensorRT, for
// machines without a GPU. It answers as the real child was seen to; what the
// real one does is shown by bench/gpucheck on a GPU.
package enginetest

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"sync"
)

// Child pretends to build and run the model y = Factor·x, float32 [batch, 4].
type Child struct {
	Factor float32
	// Fail gives the error of a method; Kill the error of a child that is gone.
	Fail map[string]error
	// Layers are those of the built engine by precision; the precision that was
	// asked for if nil.
	Layers map[string]int
	// Phases are what a benchmark answers, in milliseconds.
	Phases map[string][]float64
	// Loads are the loadings of that benchmark.
	Loads []map[string]any
	// Blocks are what two engines in turns answer: the medians of "base" and "head".
	Blocks map[string][]float64
	// Turns are the plans of those engines.
	Turns map[string]string

	mu      sync.Mutex
	Asked   []string
	Builds  []map[string]any
	Closed  bool
	Started int
	opened  []string
}

// Close marks the child as ended.
func (c *Child) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.Closed = true
	return nil
}

// Call answers one request.
func (c *Child) Call(method string, params, result any) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.Asked = append(c.Asked, method)
	if err := c.Fail[method]; err != nil {
		return err
	}
	text, err := json.Marshal(params)
	if err != nil {
		return err
	}
	var p map[string]any
	if err := json.Unmarshal(text, &p); err != nil {
		return err
	}
	answer, err := c.answer(method, p)
	if err != nil {
		return err
	}
	if text, err = json.Marshal(answer); err != nil {
		return err
	}
	return json.Unmarshal(text, result)
}

func (c *Child) answer(method string, p map[string]any) (any, error) {
	switch method {
	case "trt.build":
		c.Builds = append(c.Builds, p)
		return c.build(p)
	case "trt.open":
		c.opened = append(c.opened, fmt.Sprint(p["plan"]))
		return map[string]any{"engine": strconv.Itoa(len(c.opened)), "load_ms": 7.5, "memory_bytes": 1 << 20}, nil
	case "trt.close":
		return map[string]any{}, nil
	case "trt.infer":
		return c.infer(p)
	case "trt.compare":
		return c.Blocks, c.turns(p)
	case "trt.benchmark":
		return map[string]any{
			"cold_ms": 3.0, "load_ms": 7.5, "gpu_memory_bytes": 2 << 20, "wall_seconds": 0.5, "phases": c.Phases,
			"warmup": map[string]any{"requests": 30, "steady": true}, "loads": c.Loads,
		}, nil
	}
	return nil, errors.New("no answer to " + method)
}

// turns notes which plans were set against each other.
func (c *Child) turns(p map[string]any) error {
	c.Turns = map[string]string{}
	for _, side := range []string{"base", "head"} {
		handle, err := strconv.Atoi(fmt.Sprint(p[side].(map[string]any)["engine"]))
		if err != nil || handle < 1 || handle > len(c.opened) {
			return fmt.Errorf("no engine %v: %w", p[side], err)
		}
		c.Turns[side] = c.opened[handle-1]
	}
	return nil
}

// build writes a plan and describes it.
func (c *Child) build(p map[string]any) (any, error) {
	plan, _ := p["plan"].(string)
	precision, _ := p["precision"].(string)
	if _, err := os.Stat(p["onnx"].(string)); err != nil {
		return nil, err
	}
	text := []byte("plan of " + precision)
	for _, path := range []any{plan, p["timing_cache_out"]} {
		if err := os.WriteFile(path.(string), text, 0o600); err != nil {
			return nil, err
		}
	}
	layers := []map[string]any{}
	counts := c.Layers
	if counts == nil {
		counts = map[string]int{precision: 3}
	}
	for name, n := range counts {
		for i := range n {
			layers = append(layers, map[string]any{"name": fmt.Sprintf("%s%d", name, i), "precision": name})
		}
	}
	var constrained any
	if how, _ := p["precision_constraints"].(string); how == "prefer" || how == "obey" {
		constrained = 2
	}
	return map[string]any{
		"constrained_layers": constrained,
		"tensorrt":           "10.6.0", "gpu": "NVIDIA H200", "compute_capability": "9.0", "precision": precision, "typing": p["typing"],
		"plan_bytes": len(text), "build_seconds": 2.5, "hardware_compatibility": "none", "layers": layers, "profiles": p["profiles"],
		"tensors": []map[string]any{
			{"name": "x", "io": "input", "dtype": "float32", "dims": []int{-1, 4}},
			{"name": "y", "io": "output", "dtype": "float32", "dims": []int{-1, 4}},
		},
		"warnings": []map[string]any{{"text": "clamped N values", "count": 12}}, "fast_fp16": false,
	}, nil
}

func (c *Child) infer(p map[string]any) (any, error) {
	in := p["inputs"].([]any)[0].(map[string]any)
	data, err := os.ReadFile(in["file"].(string))
	if err != nil {
		return nil, err
	}
	for i := 0; i+4 <= len(data); i += 4 {
		v := math.Float32frombits(binary.LittleEndian.Uint32(data[i:]))
		binary.LittleEndian.PutUint32(data[i:], math.Float32bits(c.Factor*v))
	}
	path := filepath.Join(p["out_dir"].(string), "out.bin")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		return nil, err
	}
	return map[string]any{"outputs": []any{map[string]any{"name": "y", "dtype": "float32", "shape": in["shape"], "file": path}}}, nil
}
