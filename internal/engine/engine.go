package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/regular"
	"github.com/trtship/trtship/internal/tensor"
)

// Caller is the Python child: worker.Worker.
type Caller interface {
	Call(method string, params, result any) error
}

// onlyDevice is the device of a child that sees no other: who starts the child
// chooses the GPU, by its UUID in CUDA_VISIBLE_DEVICES.
const onlyDevice = "0"

// BuildRequest says what to build. Paths may be relative to the working directory.
type BuildRequest struct {
	ONNX             string         `json:"onnx"`
	Plan             string         `json:"plan"`
	Precision        string         `json:"precision"`
	Typing           string         `json:"typing"`
	Constraints      string         `json:"precision_constraints"` // none, prefer or obey
	Profiles         []Profile      `json:"profiles"`
	WorkspaceMB      int            `json:"workspace_mb"`
	MemoryPools      map[string]int `json:"memory_pools_mb"`
	Level            int            `json:"optimization_level"`
	TF32             bool           `json:"tf32"`
	HardwareCompat   string         `json:"hardware_compatibility"`
	VersionCompat    bool           `json:"version_compatible"`
	Refittable       bool           `json:"refittable"`
	StripWeights     bool           `json:"strip_weights"`
	FP16Fallback     bool           `json:"int8_fp16_fallback"`
	CalibrationCache string         `json:"calibration_cache,omitempty"`
	TimingIn         string         `json:"timing_cache_in,omitempty"`
	TimingOut        string         `json:"timing_cache_out,omitempty"`
	Device           string         `json:"device"`
}

// RequestOf fills a request from the tensorrt section.
func RequestOf(c config.TensorRT, precision, onnx, plan string) BuildRequest {
	r := BuildRequest{
		ONNX: onnx, Plan: plan, Precision: precision, Typing: c.Typing, Constraints: c.Constraints, WorkspaceMB: c.WorkspaceMB,
		MemoryPools: c.MemoryPoolMB, Level: c.OptimizationLevel, TF32: c.TF32, HardwareCompat: c.HardwareCompat,
		VersionCompat: c.VersionCompatible, Refittable: c.Refittable, StripWeights: c.StripWeights,
		FP16Fallback: c.Int8FP16Fallback, TimingIn: c.TimingCache, Device: onlyDevice, Profiles: []Profile{},
	}
	for _, p := range c.Profiles {
		profile := Profile{}
		for name, s := range p.Inputs {
			profile[name] = Range(s)
		}
		r.Profiles = append(r.Profiles, profile)
	}
	if r.MemoryPools == nil {
		r.MemoryPools = map[string]int{}
	}
	return r
}

// Build builds one plan and returns its description.
func Build(w Caller, r BuildRequest) (*Description, error) {
	for _, path := range []*string{&r.ONNX, &r.Plan, &r.CalibrationCache, &r.TimingIn, &r.TimingOut} {
		if err := absolute(path); err != nil {
			return nil, err
		}
	}
	var d Description
	if err := w.Call("trt.build", r, &d); err != nil {
		return nil, err
	}
	return &d, nil
}

// absolute makes a path independent of the working directory: the child has
// another one.
func absolute(path *string) (err error) {
	if *path != "" {
		if *path, err = filepath.Abs(*path); err != nil {
			return fmt.Errorf("find file: %w", err)
		}
	}
	return nil
}

// Parsed is the milestone of a build behind which the parser has taken the whole
// graph; see worker.Reached.
const Parsed = "parsed"

// Unsupported is a node that the parser refuses.
type Unsupported struct {
	Text     string `json:"text"`
	Code     string `json:"code"`
	Index    int    `json:"index"`
	Node     string `json:"node_name"`
	Operator string `json:"node_operator"`
}

// parserErrors is the label of the detail in which the child lists the nodes
// that the parser refused, as JSON.
const parserErrors = "parser_errors"

// Refused returns every node that the parser refused, if that is why a build
// failed: the parser goes on behind the first one.
func Refused(err error) []Unsupported {
	e, ok := errors.AsType[*failure.Error](err)
	if !ok {
		return nil
	}
	var nodes []Unsupported
	for _, d := range e.Details {
		if d.Label == parserErrors && json.Unmarshal([]byte(d.Value), &nodes) == nil {
			return nodes
		}
	}
	return nil
}

// GPUs is what the child sees.
type GPUs struct {
	CUDADriver string `json:"cuda_driver"`
	Devices    []struct {
		Index             int    `json:"index"`
		Name              string `json:"name"`
		ComputeCapability string `json:"compute_capability"`
		MemoryBytes       uint64 `json:"memory_bytes"`
	} `json:"devices"`
	TensorRT struct {
		Version  string          `json:"version"`
		Error    string          `json:"error"`
		Features map[string]bool `json:"features"`
	} `json:"tensorrt"`
}

// Ask returns the devices and what the loaded TensorRT can do.
func Ask(w Caller) (GPUs, error) {
	var g GPUs
	err := w.Call("trt.gpus", struct{}{}, &g)
	return g, err
}

// Session is a loaded plan. It is a validation.Candidate.
type Session struct {
	w       Caller
	handle  string
	desc    *Description
	scratch string
	// LoadMs is the time to deserialise the plan and make a context; Memory is
	// by how much that lowered the device's free memory.
	LoadMs float64
	Memory int64
}

// Open loads a plan on the device that the child sees. scratch is a folder for tensors.
func Open(w Caller, plan string, d *Description, scratch string) (*Session, error) {
	var reply struct {
		Engine string  `json:"engine"`
		LoadMs float64 `json:"load_ms"`
		Memory int64   `json:"memory_bytes"`
	}
	for _, path := range []*string{&plan, &scratch} {
		if err := absolute(path); err != nil {
			return nil, err
		}
	}
	params := map[string]any{"plan": plan, "device": onlyDevice, "version_compatible": d.VersionCompatible}
	if err := w.Call("trt.open", params, &reply); err != nil {
		return nil, err
	}
	return &Session{w: w, handle: reply.Engine, desc: d, scratch: scratch, LoadMs: reply.LoadMs, Memory: reply.Memory}, nil
}

// Close unloads the plan.
func (s *Session) Close() error {
	return s.w.Call("trt.close", map[string]string{"engine": s.handle}, &struct{}{})
}

type wireTensor struct {
	Name  string  `json:"name"`
	DType string  `json:"dtype"`
	Shape []int64 `json:"shape"`
	File  string  `json:"file"`
}

// feeds writes inputs as raw little-endian files.
func (s *Session) feeds(inputs []tensor.Named) ([]wireTensor, map[string][]int64, error) {
	rows := make([]wireTensor, 0, len(inputs))
	shapes := map[string][]int64{}
	for i, in := range inputs {
		path := filepath.Join(s.scratch, fmt.Sprintf("in-%s-%d.bin", s.handle, i))
		if err := os.WriteFile(path, in.Data, 0o600); err != nil {
			return nil, nil, fmt.Errorf("write input %s: %w", in.Name, err)
		}
		rows = append(rows, wireTensor{in.Name, string(in.DType), nonNil(in.Shape), path})
		shapes[in.Name] = in.Shape
	}
	return rows, shapes, nil
}

func nonNil(shape []int64) []int64 {
	if shape == nil {
		return []int64{}
	}
	return shape
}

// Infer runs one request in the first profile that takes its shapes.
func (s *Session) Infer(_ context.Context, inputs []tensor.Named) ([]tensor.Named, error) {
	rows, shapes, err := s.feeds(inputs)
	if err != nil {
		return nil, err
	}
	profile, err := s.desc.ProfileFor(shapes)
	if err != nil {
		return nil, err
	}
	var reply struct {
		Outputs []wireTensor `json:"outputs"`
	}
	params := map[string]any{"engine": s.handle, "profile": profile, "inputs": rows, "out_dir": s.scratch}
	if err := s.w.Call("trt.infer", params, &reply); err != nil {
		return nil, err
	}
	out := make([]tensor.Named, 0, len(reply.Outputs))
	for _, o := range reply.Outputs {
		data, err := regular.ReadFile(o.File)
		if err != nil {
			return nil, fmt.Errorf("read output %s: %w", o.Name, err)
		}
		out = append(out, tensor.Named{Name: o.Name, Tensor: tensor.Tensor{DType: tensor.DType(o.DType), Shape: o.Shape, Data: data}})
	}
	return out, nil
}

// Load is how an engine is measured.
type Load struct {
	Inputs      []tensor.Named
	Streams     int
	CUDAGraph   bool
	WarmupIters int
	Iters       int // requests of each stream
	Loads       int // how often the plan is loaded for them, each time elsewhere in memory
	MaxSeconds  int
}

// Timing is what a measurement gave. Phases are in milliseconds, a value a
// request: h2d, compute and d2h from events on the stream, enqueue and
// end_to_end by the host's clock. Those of the first loading come first.
type Timing struct {
	ColdMs      float64              `json:"cold_ms"`
	LoadMs      float64              `json:"load_ms"`
	GPUMemory   int64                `json:"gpu_memory_bytes"`
	WallSeconds float64              `json:"wall_seconds"`
	Phases      map[string][]float64 `json:"phases"`
	Warmup      struct {
		Requests int  `json:"requests"`
		Steady   bool `json:"steady"`
	} `json:"warmup"`
	Loads []Loading `json:"loads"`
}

// Loading is what one loading of the plan was like; compute and enqueue are
// medians in milliseconds.
type Loading struct {
	LoadMs    float64 `json:"load_ms"`
	Requests  int     `json:"requests"` // in the end_to_end phase, of all streams
	ComputeMs float64 `json:"compute_ms"`
	EnqueueMs float64 `json:"enqueue_ms"`
}

// Benchmark measures the engine.
func (s *Session) Benchmark(l Load) (Timing, error) {
	var t Timing
	rows, shapes, err := s.feeds(l.Inputs)
	if err != nil {
		return t, err
	}
	profile, err := s.desc.ProfileFor(shapes)
	if err != nil {
		return t, err
	}
	err = s.w.Call("trt.benchmark", map[string]any{
		"engine": s.handle, "profile": profile, "inputs": rows, "streams": l.Streams, "cuda_graph": l.CUDAGraph,
		"warmup_iters": l.WarmupIters, "iters": l.Iters, "loads": l.Loads, "max_seconds": l.MaxSeconds,
	}, &t)
	return t, err
}

// Alternation is how two engines are set against each other.
type Alternation struct {
	Rounds      int // each engine runs one block a round, in ABBA order, with a new context and new tensors
	Block       int // requests of a block
	Loads       int // how often both plans are loaded, so many rounds apart
	CUDAGraph   bool
	WarmupIters int
}

// Alternate runs two engines of one child alternately on one GPU and returns
// the median compute time of every block, in milliseconds.
func Alternate(base, head *Session, baseIn, headIn []tensor.Named, a Alternation) (baseMs, headMs []float64, err error) {
	side := func(s *Session, in []tensor.Named) (map[string]any, error) {
		rows, shapes, err := s.feeds(in)
		if err != nil {
			return nil, err
		}
		profile, err := s.desc.ProfileFor(shapes)
		return map[string]any{"engine": s.handle, "profile": profile, "inputs": rows}, err
	}
	b, err := side(base, baseIn)
	if err != nil {
		return nil, nil, err
	}
	h, err := side(head, headIn)
	if err != nil {
		return nil, nil, err
	}
	var reply struct{ Base, Head []float64 }
	err = base.w.Call("trt.compare", map[string]any{
		"base": b, "head": h, "rounds": a.Rounds, "block": a.Block, "loads": a.Loads, "cuda_graph": a.CUDAGraph, "warmup_iters": a.WarmupIters,
	}, &reply)
	return reply.Base, reply.Head, err
}
