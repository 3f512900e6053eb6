package engine

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/jsonfile"
	"github.com/trtship/trtship/internal/tensor"
)

// What TensorRT itself allows: nvinfer1::Dims::MAX_DIMS, and sizes of a
// dimension below 2^31.
const (
	maxRank = 8
	maxSize = math.MaxInt32
)

var (
	releaseForm    = regexp.MustCompile(`^\d{1,4}(\.\d{1,6}){1,3}([-+.]?[a-z][0-9a-z.]*)?$`)
	capabilityForm = regexp.MustCompile(`^\d{1,2}\.\d$`)
)

// Precisions are those that an engine can be of.
func Precisions() []string { return allowed("precisions") }

// allowed returns what the table of settings allows for a key of tensorrt.
func allowed(key string) []string {
	for _, f := range config.Table() {
		if f.Path == "tensorrt."+key {
			return f.Enum
		}
	}
	panic("engine: no setting tensorrt." + key)
}

// checker gathers what a description says that cannot be true.
type checker struct {
	d        *Description
	lines    jsonfile.Lines
	problems []jsonfile.Problem
}

func (c *checker) wrong(path, format string, args ...any) {
	c.problems = append(c.problems, jsonfile.Problem{Line: c.lines.At(path), Path: path, Text: fmt.Sprintf(format, args...)})
}

// failure is one error with every mistake.
func (c *checker) failure(file string) *failure.Error {
	at := func(p jsonfile.Problem) string {
		if p.Line == 0 {
			return file
		}
		return fmt.Sprintf("%s:%d", file, p.Line)
	}
	slices.SortStableFunc(c.problems, func(a, b jsonfile.Problem) int { return a.Line - b.Line })
	first := c.problems[0]
	e := failure.New(failure.Artifact, "engine description: %s", first).At(at(first))
	if len(c.problems) > 1 {
		e = failure.New(failure.Artifact, "%s has %d mistakes", file, len(c.problems))
		for _, p := range c.problems[:min(len(c.problems), 20)] {
			e.With(at(p), "%s", p)
		}
	}
	return e.WithHint("a plan and its description belong together as trtship build wrote them: copy both again, or build the engine again")
}

func (c *checker) check() {
	d := c.d
	c.release("tensorrt", d.TensorRT, true)
	c.release("driver", d.Driver, false)
	c.release("cuda_driver", d.CUDADriver, false)
	c.given("gpu", d.GPU)
	if !capabilityForm.MatchString(d.ComputeCapability) && c.given("compute_capability", d.ComputeCapability) {
		c.wrong("compute_capability", "%q is none; want major.minor, such as 9.0", d.ComputeCapability)
	}
	c.oneOf("precision", d.Precision, Precisions())
	c.oneOf("typing", d.Typing, allowed("typing"))
	if d.HardwareCompat != "" {
		c.oneOf("hardware_compatibility", d.HardwareCompat, allowed("hardware_compatibility"))
	}
	if _, err := artifact.ParseDigest(string(d.PlanDigest)); err != nil && c.lines.Has("plan_digest") && c.given("plan_digest", string(d.PlanDigest)) {
		c.wrong("plan_digest", "%q is no digest; want sha256: and 64 hexadecimal digits", d.PlanDigest)
	}
	c.counts()
	c.tensors()
	c.profiles()
}

// counts checks what cannot be below 0.
func (c *checker) counts() {
	d := c.d
	counts := map[string]float64{
		"device_memory_bytes": float64(d.DeviceMemory), "build_seconds": d.BuildSeconds, "workspace_mb": float64(d.WorkspaceMB),
		"timing_cache.bytes_in": float64(d.TimingCache.BytesIn), "timing_cache.bytes_out": float64(d.TimingCache.BytesOut),
	}
	if d.CacheReads != nil {
		counts["calibration_cache_reads"] = float64(*d.CacheReads)
	}
	if d.ConstrainedLayers != nil {
		counts["constrained_layers"] = float64(*d.ConstrainedLayers)
	}
	for i, w := range d.Warnings {
		counts[fmt.Sprintf("warnings.%d.count", i)] = float64(w.Count)
	}
	for path, n := range counts {
		if n < 0 {
			c.wrong(path, "%g is below 0", n)
		}
	}
}

// given checks that a text is there and is one line of plain characters, since
// it is shown.
func (c *checker) given(path, text string) bool {
	switch {
	case text == "" && !c.lines.Has(path):
		c.wrong(path, "is missing")
	case text == "":
		c.wrong(path, "is empty")
	case hasControl(text):
		c.wrong(path, "%q holds a control character", text)
	default:
		return true
	}
	return false
}

func hasControl(s string) bool {
	return strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r >= 0x7f && r < 0xa0 })
}

func (c *checker) release(path, text string, needed bool) {
	if text == "" && !needed || !c.given(path, text) || releaseForm.MatchString(text) {
		return
	}
	c.wrong(path, "%q is no release; want numbers such as 10.6.0", text)
}

func (c *checker) oneOf(path, text string, names []string) {
	if c.given(path, text) && !slices.Contains(names, text) {
		c.wrong(path, "%q is not one of %s", text, strings.Join(names, ", "))
	}
}

func (c *checker) tensors() {
	if len(c.d.Tensors) == 0 {
		c.wrong("tensors", "lists no tensors")
		return
	}
	seen := map[string]int{}
	for i, t := range c.d.Tensors {
		at := fmt.Sprintf("tensors.%d.", i)
		if c.given(at+"name", t.Name) {
			if before, twice := seen[t.Name]; twice {
				c.wrong(at+"name", "%q is also the name of tensors.%d", t.Name, before)
			} else {
				seen[t.Name] = i
			}
		}
		c.oneOf(at+"io", t.IO, []string{"input", "output"})
		if c.given(at+"dtype", t.DType) {
			if _, err := tensor.ParseDType(t.DType); err != nil {
				c.wrong(at+"dtype", "%q is no data type that is known", t.DType)
			}
		}
		if t.Location != "" {
			c.oneOf(at+"location", t.Location, []string{"device", "host"})
		}
		c.dims(at+"dims", t.Dims)
	}
	if len(c.d.Outputs()) == 0 && !slices.ContainsFunc(c.problems, func(p jsonfile.Problem) bool { return strings.HasSuffix(p.Path, ".io") }) {
		c.wrong("tensors", "lists no output; every plan has one")
	}
}

func (c *checker) dims(path string, dims []int64) {
	switch {
	case dims == nil && !c.lines.Has(path):
		c.wrong(path, "is missing")
	case dims == nil: // a scalar has [], not null
		c.wrong(path, "want a list, got null")
	case len(dims) > maxRank:
		c.wrong(path, "has %d dimensions; TensorRT has at most %d", len(dims), maxRank)
	}
	for i, d := range dims {
		if d < -1 || d > maxSize {
			c.wrong(fmt.Sprintf("%s.%d", path, i), "%d is no size; want -1 (not fixed) or 0 to %d", d, maxSize)
		}
	}
}

// ranged are the inputs that every profile must name: those whose shape is not
// fixed. The profile of a shape tensor in host memory bounds its values, which
// are not described.
func ranged(t Tensor) bool { return t.IO == "input" && slices.Contains(t.Dims, -1) && !hostValues(t) }

func hostValues(t Tensor) bool { return t.ShapeTensor && t.Location == "host" }

func (c *checker) profiles() {
	inputs := map[string]Tensor{}
	for _, t := range c.d.Inputs() {
		inputs[t.Name] = t
		if ranged(t) && len(c.d.Profiles) == 0 {
			c.wrong("profiles", "is empty, but %s is dynamic: every plan with a dynamic input has a profile", t.Name)
		}
	}
	for i, p := range c.d.Profiles {
		at := fmt.Sprintf("profiles.%d", i)
		for _, t := range c.d.Inputs() {
			if _, named := p[t.Name]; ranged(t) && !named {
				c.wrong(at, "does not name %s, which is dynamic", t.Name)
			}
		}
		for _, name := range sortedNames(p) {
			if t, ok := inputs[name]; ok {
				c.shapes(at+"."+name, t, p[name])
			} else {
				c.wrong(at+"."+name, "no input of the plan has this name")
			}
		}
	}
}

// shapes checks the range of one input of a profile.
func (c *checker) shapes(at string, t Tensor, r Range) {
	sane := true
	for _, end := range []struct {
		name  string
		shape []int64
	}{{"min", r.Min}, {"opt", r.Opt}, {"max", r.Max}} {
		path := at + "." + end.name
		switch {
		case !c.lines.Has(path):
			c.wrong(path, "is missing")
			sane = false
			continue
		case len(end.shape) != len(t.Dims):
			c.wrong(path, "has %d dimensions, but %s has %d", len(end.shape), t.Name, len(t.Dims))
			sane = false
			continue
		}
		for i, size := range end.shape {
			switch fixed := t.Dims[i]; {
			case size < 0 || size > maxSize:
				c.wrong(fmt.Sprintf("%s.%d", path, i), "%d is no size; want 0 to %d", size, maxSize)
				sane = false
			case fixed >= 0 && size != fixed:
				c.wrong(fmt.Sprintf("%s.%d", path, i), "%d is not the size %d that %s is fixed to there", size, fixed, t.Name)
				sane = false
			}
		}
	}
	if !sane {
		return
	}
	for i := range r.Min {
		if r.Min[i] > r.Opt[i] {
			c.wrong(fmt.Sprintf("%s.min.%d", at, i), "min %d is above opt %d", r.Min[i], r.Opt[i])
		}
		if r.Opt[i] > r.Max[i] {
			c.wrong(fmt.Sprintf("%s.opt.%d", at, i), "opt %d is above max %d", r.Opt[i], r.Max[i])
		}
	}
}

// plan holds the description to the plan's size.
func (c *checker) plan(name string, size int64) {
	switch {
	case size == 0:
		c.wrong("", "%s, which it describes, is empty", name)
	case !c.lines.Has("plan_bytes"):
		c.wrong("plan_bytes", "is missing")
	case c.d.PlanBytes != size:
		c.wrong("plan_bytes", "is %d, but %s has %d bytes: it is not the plan that was described", c.d.PlanBytes, name, size)
	}
}

// digest holds the description to the plan's bytes.
func (c *checker) digest(name string, have artifact.Digest) {
	if c.d.PlanDigest != have {
		c.wrong("plan_digest", "is %s, but %s has %s: it is not the plan that was described", c.d.PlanDigest, name, have)
	}
}
