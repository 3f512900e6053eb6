// Package stages is the one list of the pipeline's stages.
package stages

import (
	"context"
	"slices"

	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/engine"
	"github.com/trtship/trtship/internal/gpu"
	"github.com/trtship/trtship/internal/ort"
	"github.com/trtship/trtship/internal/stage"
	"github.com/trtship/trtship/internal/triton/server"
	"github.com/trtship/trtship/stages/benchmark"
	"github.com/trtship/trtship/stages/build"
	"github.com/trtship/trtship/stages/calibrate"
	"github.com/trtship/trtship/stages/export"
	"github.com/trtship/trtship/stages/inspect"
	"github.com/trtship/trtship/stages/optimize"
	"github.com/trtship/trtship/stages/packaging"
	"github.com/trtship/trtship/stages/quantize"
	"github.com/trtship/trtship/stages/served"
	"github.com/trtship/trtship/stages/validate"
	"github.com/trtship/trtship/stages/validateengine"
	"github.com/trtship/trtship/stages/validateoptimized"
)

// Tools are what stages work with, found once on this machine. What is not here
// is empty; a stage that needs it does not start.
type Tools struct {
	Python string      // absolute path of the interpreter for torch and TensorRT
	ORT    ort.Library // ONNX Runtime
	// Triton locates the tritonserver.
	Triton func(ctx context.Context) (server.Installation, error)
	// TensorRT returns the versions that decide a plan, from metadata.
	TensorRT func(ctx context.Context) (map[string]string, error)
	// Machine is the GPU that plans are built for and loaded on.
	Machine func(ctx context.Context) (engine.Machine, error)
	// Driver is the NVIDIA driver's version.
	Driver func() string
	// Clocks asks NVML about the GPU that is measured.
	Clocks func() (gpu.Reading, error)
	// GPUEnv is added to the environment of Python children that use the GPU: the
	// GPU that they see, and the loader path under which libcuda and TensorRT's
	// libraries are found. It is asked when one starts.
	GPUEnv func() []string
	// Rivals are what the baseline had; nil without a baseline.
	Rivals benchmark.Rivals
	// State is a folder for what lets interrupted work go on.
	State string
}

// All returns every stage in the order of people. The pipeline orders by the
// kinds of artifacts.
func All(c *config.Config, t Tools) []stage.Planned {
	noEngines := ""
	if c.Target == "onnxruntime" {
		noEngines = "target is onnxruntime"
	}
	noInt8 := ""
	if !slices.Contains(c.TensorRT.Precisions, "int8") {
		noInt8 = "tensorrt.precisions has no int8"
	}
	noReduced := ""
	if !reduced(c) {
		noReduced = "tensorrt.precisions has nothing but fp32"
	}
	noBenchmark := ""
	if !c.Benchmark.Enabled {
		noBenchmark = "benchmark.enabled is false"
	}
	return []stage.Planned{
		{Stage: inspect.New(c, t.Python)},
		{Stage: export.New(c, t.Python)},
		{Stage: validate.New(c, t.Python, t.ORT)},
		{Stage: optimize.New(c, t.ORT)},
		{Stage: validateoptimized.New(c, t.ORT)},
		{Stage: calibrate.New(c, t.calibration()), Off: noInt8},
		{Stage: quantize.New(c, t.ORT), Off: noReduced},
		{Stage: build.New(c, t.building(c)), Off: noEngines},
		{Stage: validateengine.New(c, t.validating(c)), Off: noEngines},
		{Stage: benchmark.New(c, t.ORT, t.measuring(c), t.Rivals), Off: noBenchmark},
		{Stage: packaging.New(c)},
		{Stage: served.New(c, served.Tools{Find: t.Triton})},
	}
}

// calibration is what the calibrate stage works with.
func (t Tools) calibration() calibrate.Tools {
	return calibrate.Tools{
		ORT: t.ORT, State: t.State,
		TensorRT: func(ctx context.Context) string {
			if t.TensorRT == nil {
				return ""
			}
			versions, err := t.TensorRT(ctx)
			if err != nil {
				return "" // there is none here
			}
			return versions["tensorrt"]
		},
	}
}

// reduced reports whether a precision other than fp32 is asked for.
func reduced(c *config.Config) bool {
	return slices.ContainsFunc(c.TensorRT.Precisions, func(p string) bool { return p != "fp32" })
}
