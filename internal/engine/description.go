// Package engine builds, describes, runs and measures TensorRT plans through
// the Python child of package worker. A plan never travels without its
// description (engine.json), which was read from the plan itself when it was
// built: packaging, linting and the refusal of a plan on the wrong machine need
// no GPU.
package engine

import (
	"fmt"
	"sort"
	"strings"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/failure"
)

// The files of an engine artifact.
const (
	PlanFile        = "model.plan"
	DescriptionFile = "engine.json"
	TimingFile      = "timing.cache"
)

// Description is what a plan says about itself.
type Description struct {
	TensorRT          string           `json:"tensorrt"`
	GPU               string           `json:"gpu"`
	ComputeCapability string           `json:"compute_capability"`
	Driver            string           `json:"driver,omitempty"`
	CUDADriver        string           `json:"cuda_driver"`
	Precision         string           `json:"precision"`
	Typing            string           `json:"typing"` // strong or weak
	PlanBytes         int64            `json:"plan_bytes"`
	PlanDigest        artifact.Digest  `json:"plan_digest,omitempty"` // sha256 of the plan; empty in one of an older release
	DeviceMemory      int64            `json:"device_memory_bytes"`   // activations, as TensorRT says
	BuildSeconds      float64          `json:"build_seconds"`
	WorkspaceMB       int              `json:"workspace_mb"`
	FastFP16          *bool            `json:"fast_fp16"`
	FastINT8          *bool            `json:"fast_int8"`
	Tensors           []Tensor         `json:"tensors"`
	Profiles          []Profile        `json:"profiles"`
	Layers            []Layer          `json:"layers"`
	TimingCache       TimingCache      `json:"timing_cache"`
	CacheReads        *int             `json:"calibration_cache_reads"`
	ConstrainedLayers *int             `json:"constrained_layers"` // layers asked to keep the precision; null where none were
	Warnings          []GroupedWarning `json:"warnings"`
	HardwareCompat    string           `json:"hardware_compatibility"`
	VersionCompatible bool             `json:"version_compatible"`
}

// Tensor is an input or output of a plan. A dynamic dimension is -1.
type Tensor struct {
	Name        string  `json:"name"`
	IO          string  `json:"io"` // input or output
	DType       string  `json:"dtype"`
	Dims        []int64 `json:"dims"`
	Format      string  `json:"format,omitempty"`
	ShapeTensor bool    `json:"shape_tensor,omitempty"`
	Location    string  `json:"location,omitempty"` // device or host
}

// Profile is the shape range of each input.
type Profile map[string]Range

// Range is min, opt and max of one input's shape.
type Range struct {
	Min []int64 `json:"min"`
	Opt []int64 `json:"opt"`
	Max []int64 `json:"max"`
}

// Layer is one layer of the built engine, as the engine inspector shows it.
type Layer struct {
	Name      string   `json:"name"`
	Type      string   `json:"type"`
	Precision string   `json:"precision"` // narrowest type that it reads or writes
	ONNX      []string `json:"onnx,omitempty"`
}

// TimingCache is what the build did with the timing cache.
type TimingCache struct {
	BytesIn  int64 `json:"bytes_in"`
	BytesOut int64 `json:"bytes_out"`
	Grew     bool  `json:"grew"` // some tactic was not in the cache
}

// GroupedWarning is a message of TensorRT with its numbers replaced by N.
type GroupedWarning struct {
	Text  string `json:"text"`
	Count int    `json:"count"`
}

// Inputs returns the plan's inputs in order.
func (d *Description) Inputs() []Tensor { return d.tensors("input") }

// Outputs returns the plan's outputs in order.
func (d *Description) Outputs() []Tensor { return d.tensors("output") }

func (d *Description) tensors(io string) []Tensor {
	var out []Tensor
	for _, t := range d.Tensors {
		if t.IO == io {
			out = append(out, t)
		}
	}
	return out
}

// LayersByPrecision counts layers.
func (d *Description) LayersByPrecision() map[string]int {
	out := map[string]int{}
	for _, l := range d.Layers {
		if l.Precision != "" {
			out[l.Precision]++
		}
	}
	return out
}

// ProfileFor returns the first profile that all shapes lie in.
func (d *Description) ProfileFor(shapes map[string][]int64) (int, error) {
	var why []string
	for i, p := range d.Profiles {
		reason := p.refuses(shapes)
		if reason == "" {
			return i, nil
		}
		why = append(why, fmt.Sprintf("profile %d: %s", i, reason))
	}
	return 0, failure.New(failure.Usage, "no profile of the engine takes these shapes: %s", strings.Join(why, "; ")).
		WithHint("add a profile below tensorrt.profiles, or stay within min and max")
}

func sortedNames(p Profile) []string {
	names := make([]string, 0, len(p))
	for n := range p {
		names = append(names, n)
	}
	sort.Strings(names)
	return names
}

func (p Profile) refuses(shapes map[string][]int64) string {
	for _, n := range sortedNames(p) {
		shape, r := shapes[n], p[n]
		if len(shape) != len(r.Min) {
			return fmt.Sprintf("%s has rank %d, expected %d", n, len(shape), len(r.Min))
		}
		for i, size := range shape {
			if size < r.Min[i] || size > r.Max[i] {
				return fmt.Sprintf("%s: dimension %d is %d, expected %d to %d", n, i, size, r.Min[i], r.Max[i])
			}
		}
	}
	return ""
}

// Machine is where a plan is to be loaded.
type Machine struct {
	TensorRT          string
	GPU               string
	ComputeCapability string
}

// LoadsOn refuses a machine whose TensorRT or GPU the plan was not built for, in
// words of releases and GPUs. An empty field of m is not compared.
func (d *Description) LoadsOn(m Machine) error {
	if m.TensorRT != "" && !d.VersionCompatible && release(m.TensorRT) != release(d.TensorRT) {
		return failure.New(failure.Build, "this plan was built by TensorRT %s and this machine has %s", d.TensorRT, m.TensorRT).
			WithHint("a plan loads only in the release that built it: build it again here, or set tensorrt.version_compatible")
	}
	if m.ComputeCapability == "" || m.ComputeCapability == d.ComputeCapability {
		return nil
	}
	if d.HardwareCompat == "ampere_plus" && !before(m.ComputeCapability, "8.0") {
		return nil
	}
	return failure.New(failure.Build, "this plan was built on %s (compute capability %s) and this machine has %s (%s)",
		d.GPU, d.ComputeCapability, m.GPU, m.ComputeCapability).
		WithHint("build it again on this GPU, or set tensorrt.hardware_compatibility")
}

// release is the part of a version that plans are bound to: major.minor.patch.
func release(version string) string {
	parts := strings.Split(version, ".")
	if len(parts) > 3 {
		parts = parts[:3]
	}
	return strings.Join(parts, ".")
}
