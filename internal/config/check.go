package config

import (
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/distribution/reference"
	"gopkg.in/yaml.v3"
)

var (
	modelNameForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)
	factoryForm   = regexp.MustCompile(`^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$`)
	argumentForm  = regexp.MustCompile(`^[A-Za-z_]\w*(\.(\d+|[^.\s]+))*$|^\d+(\.(\d+|[^.\s]+))*$`)
	deviceForm    = regexp.MustCompile(`^(\d{1,4}|GPU-[0-9A-Za-z-]+|MIG-[0-9A-Za-z/-]+)$`)
	gpusForm      = regexp.MustCompile(`^(all|none|[A-Za-z0-9-]+(,[A-Za-z0-9-]+)*)$`)
	nodeForm      = &yaml.Node{Line: 1, Column: 1}
)

// check finds what is wrong between keys. It runs after decoding, even of a
// file with mistakes, so that all of them are listed at once.
func (d *decoder) check(c *Config) {
	d.decoded()
	d.checkModel(c)
	d.checkInputs(c)
	d.checkProfiles(c)
	d.checkPoints(c)
	d.checkValidation(c)
	d.checkPrecisions(c)
	d.checkCalibration(c)
	d.checkBenchmark(c)
	d.checkTriton(c)
	d.checkGate(c)
	d.checkEmptyPaths(c)
}

// checkEmptyPaths refuses empty elements of lists and maps of paths. A single
// path that is empty is one that is not set.
func (d *decoder) checkEmptyPaths(c *Config) {
	c.inputPaths(func(in inputPath) string {
		if in.path == "" && in.element && d.known(in.key) {
			d.wrong(in.key, "is empty; name a file, or leave it out")
		}
		return in.path
	})
}

// wrong reports a problem at the key path, or at the nearest key above it that
// is set.
func (d *decoder) wrong(path, format string, args ...any) {
	at := nodeForm
	for p := path; p != ""; {
		if n, ok := d.places[p]; ok {
			at = n
			break
		}
		i := strings.LastIndexByte(p, '.')
		if i < 0 {
			break
		}
		p = p[:i]
	}
	d.bad(at, path, format, args...)
}

// set reports whether the file or an override gives the key.
func (d *decoder) set(path string) bool {
	_, ok := d.places[path]
	return ok
}

func (d *decoder) checkModel(c *Config) {
	m := c.Model
	switch {
	case !d.known("model.name"):
	case m.Name == "":
		d.wrong("model.name", "is missing; every model has a name")
	case !modelNameForm.MatchString(m.Name):
		d.wrong("model.name", "%q is no name; use letters, digits, dot, dash and underscore, and start with a letter or a digit", m.Name)
	}
	if d.known("model.kind") {
		d.checkSource(m)
	}
	if m.Factory != "" && !factoryForm.MatchString(m.Factory) {
		d.wrong("model.factory", "%q is not package.module:callable", m.Factory)
	}
	seen := map[string]bool{}
	for i, name := range m.OutputNames {
		at := fmt.Sprintf("model.output_names.%d", i)
		if !d.known(at) {
			continue
		}
		if text := badTensorName(name); text != "" {
			d.wrong(at, "%s", text)
		}
		if seen[name] {
			d.wrong(at, "%q is listed twice", name)
		}
		seen[name] = true
	}
}

// checkSource checks that the kind has what it is loaded from, and nothing else.
func (d *decoder) checkSource(m Model) {
	needFactory := m.Kind == "module" || m.Kind == "checkpoint"
	needPath := m.Kind != "module"
	switch {
	case needFactory && m.Factory == "" && d.known("model.factory"):
		d.wrong("model.factory", "is missing; kind %s is made by a factory, package.module:callable", m.Kind)
	case !needFactory && m.Factory != "":
		d.wrong("model.factory", "has no meaning for kind %s", m.Kind)
	case !needFactory && len(m.FactoryArgs) > 0:
		d.wrong("model.factory_args", "has no meaning for kind %s", m.Kind)
	}
	switch {
	case needPath && m.Path == "" && d.known("model.path"):
		d.wrong("model.path", "is missing; kind %s is read from a file", m.Kind)
	case !needPath && m.Path != "":
		d.wrong("model.path", "has no meaning for kind module; use kind checkpoint to load weights")
	}
	if m.Kind == "torchscript" && !m.TrustSource && d.known("model.trust_source") {
		d.wrong("model.trust_source", "must be true for kind torchscript; an archive can carry code that runs while it is loaded")
	}
}

func badTensorName(name string) string {
	switch {
	case name == "":
		return "a name is empty"
	case strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == 0x7f }):
		return strconv.Quote(name) + " holds a space or a control character"
	}
	return ""
}

func (d *decoder) checkInputs(c *Config) {
	if len(c.Model.Inputs) == 0 && c.Model.Kind != "onnx" && d.known("model.inputs") && d.known("model.kind") {
		d.wrong("model.inputs", "is missing; kind %s needs its inputs with dtype and shape", c.Model.Kind)
	}
	seen := map[string]bool{}
	for i, in := range c.Model.Inputs {
		at := fmt.Sprintf("model.inputs.%d", i)
		if d.known(at + ".name") {
			d.checkInputName(c, at+".name", in.Name, seen)
		}
		if in.DType == "string" && c.Model.Kind != "onnx" && d.known("model.kind") {
			d.wrong(at+".dtype", "string tensors exist in ONNX only, not in kind %s", c.Model.Kind)
		}
		if in.Argument != "" && !argumentForm.MatchString(in.Argument) {
			d.wrong(at+".argument", "%q is not a parameter such as mask, states.0 or batch.ids", in.Argument)
		}
		if d.known(at+".range") && d.known(at+".dtype") {
			d.checkRange(at+".range", in)
		}
	}
}

func (d *decoder) checkInputName(c *Config, at, name string, seen map[string]bool) {
	if text := badTensorName(name); text != "" {
		d.wrong(at, "%s", text)
	} else if seen[name] {
		d.wrong(at, "%q is declared twice", name)
	}
	seen[name] = true
	if slices.Contains(c.Model.OutputNames, name) {
		d.wrong(at, "%q is also the name of an output", name)
	}
}

func (d *decoder) checkRange(at string, in Input) {
	if len(in.Range) == 0 {
		return
	}
	if len(in.Range) != 2 {
		d.wrong(at, "want [low, high], got %d values", len(in.Range))
		return
	}
	if in.DType == "string" {
		d.wrong(at, "has no meaning for strings")
		return
	}
	low, high := string(in.Range[0]), string(in.Range[1])
	if isFloat(in.DType) {
		l, _ := strconv.ParseFloat(low, 64)
		h, _ := strconv.ParseFloat(high, 64)
		if l > h {
			d.wrong(at, "low %s is above high %s", low, high)
		}
		return
	}
	l, err1 := strconv.ParseInt(low, 0, 64)
	h, err2 := strconv.ParseInt(high, 0, 64)
	lo, hi := integerLimits(in.DType)
	switch {
	case err1 != nil || err2 != nil:
		d.wrong(at, "want integers of 64 bits for %s, got %s and %s", in.DType, low, high)
	case l > h:
		d.wrong(at, "low %d is above high %d", l, h)
	case l < lo || h > hi:
		d.wrong(at, "[%d, %d] does not fit into %s, which holds %d to %d", l, h, in.DType, lo, hi)
	}
}

func isFloat(dtype string) bool {
	return strings.HasPrefix(dtype, "float") || dtype == "bfloat16"
}

func integerLimits(dtype string) (lo, hi int64) {
	switch dtype {
	case "bool":
		return 0, 1
	case "uint8":
		return 0, 255
	case "int8":
		return -128, 127
	case "int16":
		return -1 << 15, 1<<15 - 1
	case "int32":
		return -1 << 31, 1<<31 - 1
	}
	return -1 << 63, 1<<63 - 1
}

func (d *decoder) checkProfiles(c *Config) {
	if len(c.TensorRT.Profiles) == 0 && d.known("tensorrt.profiles") {
		for i, in := range c.Model.Inputs {
			if at := fmt.Sprintf("model.inputs.%d.shape", i); in.Dynamic() && d.known(at) {
				d.wrong(at, "%s is dynamic in %s and tensorrt.profiles is empty; give min, opt and max of it there",
					in.Name, strings.Join(symbolsOf(in), ", "))
			}
		}
	}
	for i, p := range c.TensorRT.Profiles {
		at := fmt.Sprintf("tensorrt.profiles.%d.inputs", i)
		if !d.reached(at) {
			continue
		}
		for k, in := range c.Model.Inputs {
			if _, ok := p.Inputs[in.Name]; !ok && in.Dynamic() && d.declared(k) && d.named(c, at, in.Name, sortedKeys(p.Inputs)) {
				d.wrong(at, "%s is dynamic in %s and has no min, opt and max here", in.Name, strings.Join(symbolsOf(in), ", "))
			}
		}
		for _, name := range c.profileOrder(p) {
			if d.reached(at + "." + name) {
				d.checkShapeRange(c, at+"."+name, name, p.Inputs[name])
			}
		}
		d.checkSymbols(c, at, p)
	}
}

// named reports whether an input that is absent below a key is really absent:
// not meant by one of the names that are there and belong to no input.
func (d *decoder) named(c *Config, at, input string, names []string) bool {
	if !d.known(at + "." + input) {
		return false
	}
	for _, name := range names {
		if _, ok := c.input(name); !ok && nearest(name, []string{input}) == input {
			return false
		}
	}
	return true
}

func symbolsOf(in Input) []string {
	var out []string
	for _, dim := range in.Shape {
		if dim.Symbol != "" && !slices.Contains(out, dim.Symbol) {
			out = append(out, dim.Symbol)
		}
	}
	return out
}

func (c *Config) input(name string) (Input, bool) {
	for _, in := range c.Model.Inputs {
		if in.Name == name {
			return in, true
		}
	}
	return Input{}, false
}

func (c *Config) inputNames() []string {
	var out []string
	for _, in := range c.Model.Inputs {
		out = append(out, in.Name)
	}
	return out
}

// checkShapeRange checks one input of a profile against its declaration.
func (d *decoder) checkShapeRange(c *Config, at, name string, r ShapeRange) {
	in, declared := c.input(name)
	if !declared && len(c.Model.Inputs) > 0 {
		if d.namesKnown(c) {
			d.wrong(at, "no input has this name%s", didYouMean(name, c.inputNames()))
		}
		return
	}
	declared = declared && d.shapeKnown(c, name)
	want := len(r.Min)
	if declared {
		want = len(in.Shape)
	}
	sane := true
	for _, end := range []string{"min", "opt", "max"} {
		shape := r.at(end)
		switch {
		case !d.known(at + "." + end):
			sane = false
		case !declared && !d.known(at+".min"):
		case len(shape) == 0:
			d.wrong(at+"."+end, "is missing")
			sane = false
		case len(shape) != want && declared:
			d.wrong(at+"."+end, "has %d dimensions, but %s has %d: %s", len(shape), name, want, shapeText(in.Shape))
			sane = false
		case len(shape) != want:
			d.wrong(at+"."+end, "has %d dimensions, but min has %d", len(shape), want)
			sane = false
		case declared:
			sane = d.checkFixed(at+"."+end, in, shape) && sane
		}
	}
	if !sane {
		return
	}
	for i := range r.Min {
		if r.Min[i] > r.Opt[i] {
			d.wrong(at+".min", "dimension %d: min %d is above opt %d", i, r.Min[i], r.Opt[i])
		}
		if r.Opt[i] > r.Max[i] {
			d.wrong(at+".opt", "dimension %d: opt %d is above max %d", i, r.Opt[i], r.Max[i])
		}
	}
}

// checkFixed checks that fixed dimensions have their size.
func (d *decoder) checkFixed(at string, in Input, shape []int64) bool {
	ok := true
	for i, dim := range in.Shape {
		if dim.Symbol == "" && shape[i] != dim.Size {
			d.wrong(at, "dimension %d is %d, but %s is fixed to %d there", i, shape[i], in.Name, dim.Size)
			ok = false
		}
	}
	return ok
}

func shapeText(dims []Dim) string {
	parts := make([]string, len(dims))
	for i, dim := range dims {
		parts[i] = dim.String()
	}
	return "[" + strings.Join(parts, ", ") + "]"
}

// checkSymbols checks that equal symbols have equal sizes at each end of a profile.
func (d *decoder) checkSymbols(c *Config, at string, p Profile) {
	for _, end := range []string{"min", "opt", "max"} {
		shapes := map[string][]int64{}
		for name, r := range p.Inputs {
			if d.known(at + "." + name + "." + end) {
				shapes[name] = r.at(end)
			}
		}
		d.checkShared(c, shapes, func(input string) string { return at + "." + input + "." + end })
	}
}

// checkShared checks that a symbol has one size in a set of shapes.
func (d *decoder) checkShared(c *Config, shapes map[string][]int64, at func(input string) string) {
	type use struct {
		input string
		size  int64
	}
	first := map[string]use{}
	for _, in := range c.Model.Inputs {
		shape, ok := shapes[in.Name]
		if !ok || len(shape) != len(in.Shape) || !d.shapeKnown(c, in.Name) {
			continue
		}
		for i, dim := range in.Shape {
			if dim.Symbol == "" {
				continue
			}
			before, seen := first[dim.Symbol]
			if !seen {
				first[dim.Symbol] = use{in.Name, shape[i]}
			} else if before.size != shape[i] {
				d.wrong(at(in.Name), "dimension %d (%s) is %d, but %s is %d for %s; equal names have equal sizes",
					i, dim.Symbol, shape[i], dim.Symbol, before.size, before.input)
			}
		}
	}
}

// checkPoints checks the user's own points.
func (d *decoder) checkPoints(c *Config) {
	for i, shapes := range c.Validation.Points {
		if at := fmt.Sprintf("validation.points.%d", i); d.reached(at) {
			d.checkPoint(c, at, shapes)
		}
	}
}

func (d *decoder) checkPoint(c *Config, at string, shapes map[string][]int64) {
	before := len(d.problems)
	good := map[string][]int64{}
	for _, name := range sortedKeys(shapes) {
		if !d.known(at + "." + name) {
			continue
		}
		shape := shapes[name]
		good[name] = shape
		in, declared := c.input(name)
		fits := declared && d.shapeKnown(c, name)
		switch {
		case !declared && len(c.Model.Inputs) > 0:
			if d.namesKnown(c) {
				d.wrong(at+"."+name, "no input has this name%s", didYouMean(name, c.inputNames()))
			}
		case fits && len(shape) != len(in.Shape):
			d.wrong(at+"."+name, "has %d dimensions, but %s has %d: %s", len(shape), name, len(in.Shape), shapeText(in.Shape))
		case fits:
			d.checkFixed(at+"."+name, in, shape)
		}
		if slices.ContainsFunc(shape, func(v int64) bool { return v < 0 }) {
			d.wrong(at+"."+name, "a size is below 0")
		}
	}
	for k, in := range c.Model.Inputs {
		if _, ok := shapes[in.Name]; !ok && in.Dynamic() && d.declared(k) && d.named(c, at, in.Name, sortedKeys(shapes)) {
			d.wrong(at, "%s is dynamic and has no shape here", in.Name)
		}
	}
	d.checkShared(c, good, func(input string) string { return at + "." + input })
	whole := len(d.problems) == before && len(good) == len(shapes)
	if whole && len(c.TensorRT.Profiles) > 0 && d.shapesKnown(c) && c.ProfileOf(c.complete(shapes)) < 0 {
		d.wrong(at, "lies in no profile: %s", c.outside(shapes))
	}
}

// outside names the first size of shapes that lies outside of profile 0.
func (c *Config) outside(shapes map[string][]int64) string {
	p := c.TensorRT.Profiles[0]
	for _, name := range c.profileOrder(p) {
		r, s := p.Inputs[name], shapes[name]
		for i := range s {
			if i < len(r.Min) && (s[i] < r.Min[i] || s[i] > r.Max[i]) {
				return fmt.Sprintf("dimension %d of %s is %d, profile 0 allows %d to %d", i, name, s[i], r.Min[i], r.Max[i])
			}
		}
	}
	return "its sizes are not together in one profile"
}

func sortedKeys[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

func (d *decoder) checkOutputName(c *Config, at, name string) {
	if len(c.Model.OutputNames) > 0 && d.known("model.output_names") && name != "" && !slices.Contains(c.Model.OutputNames, name) {
		d.wrong(at, "no output has the name %s%s", name, didYouMean(name, c.Model.OutputNames))
	}
}

func (d *decoder) checkValidation(c *Config) {
	for _, name := range sortedKeys(c.Validation.Outputs) {
		d.checkOutputName(c, "validation.outputs."+name, name)
	}
	task := c.Validation.Task
	if task == nil {
		return
	}
	if task.Data == "" && d.known("validation.task.data") {
		d.wrong("validation.task.data", "is missing; the metric needs labelled data")
	}
	d.checkOutputName(c, "validation.task.output", task.Output)
	d.checkBatch(c, "validation.task.batch", task.Batch)
}

// checkBatch checks a batch size against the profiles; 0 is not set.
func (d *decoder) checkBatch(c *Config, at string, batch int) {
	if batch == 0 || !d.known(at) || !d.shapesKnown(c) {
		return
	}
	lo, hi, any := int64(0), int64(0), false
	for i := range c.TensorRT.Profiles {
		l, _, h, ok := c.BatchRange(i)
		if !ok {
			continue
		}
		if int64(batch) >= l && int64(batch) <= h {
			return
		}
		if !any {
			lo, hi, any = l, h, true
		}
		lo, hi = min(lo, l), max(hi, h)
	}
	if any {
		d.wrong(at, "batch %d is outside of the profile, which allows %d to %d", batch, lo, hi)
		return
	}
	if fixed, ok := c.fixedBatch(); ok && fixed != int64(batch) {
		d.wrong(at, "batch %d is not the model's fixed first dimension %d", batch, fixed)
	}
}

// fixedBatch returns the first dimension that all inputs share, if it is fixed.
func (c *Config) fixedBatch() (size int64, ok bool) {
	for _, in := range c.Model.Inputs {
		if len(in.Shape) == 0 {
			continue
		}
		first := in.Shape[0]
		if first.Symbol != "" || (ok && first.Size != size) {
			return 0, false
		}
		size, ok = first.Size, true
	}
	return size, ok
}

func (d *decoder) checkPrecisions(c *Config) {
	if len(c.TensorRT.Precisions) == 0 && d.known("tensorrt.precisions") {
		d.wrong("tensorrt.precisions", "is empty; name at least one of fp32, fp16, bf16, int8")
	}
	if d.known("tensorrt.device") && !deviceForm.MatchString(c.TensorRT.Device) {
		d.wrong("tensorrt.device", "%q is no GPU; give its index, such as 0, or its UUID: GPU-... or MIG-...", c.TensorRT.Device)
	}
	if c.TensorRT.StripWeights && c.TensorRT.VersionCompatible {
		d.wrong("tensorrt.strip_weights", "and tensorrt.version_compatible exclude each other in TensorRT")
	}
	if c.TensorRT.Typing == "strong" && c.TensorRT.Constraints != "none" && d.known("tensorrt.precision_constraints") && d.known("tensorrt.typing") {
		d.wrong("tensorrt.precision_constraints", "needs tensorrt.typing: weak; strongly typed graphs say the precision of every layer themselves")
	}
	if c.TensorRT.Typing == "weak" && c.TensorRT.Refittable && slices.Contains(c.TensorRT.Precisions, "int8") {
		d.wrong("tensorrt.refittable", "and int8 from a calibration cache (typing weak) exclude each other")
	}
}

func (d *decoder) checkCalibration(c *Config) {
	cal := c.Calibration
	if slices.Contains(c.TensorRT.Precisions, "int8") && cal.Path == "" && cal.Cache == "" && cal.Dataset != "synthetic" && d.known("calibration.path") && d.known("calibration.cache") && d.known("calibration.dataset") {
		at := "calibration"
		if !d.set("calibration") {
			at = "tensorrt.precisions"
		}
		d.wrong(at, "int8 needs calibration.path (representative data) or calibration.cache")
	}
	if cal.MinSamples > cal.NumSamples && d.known("calibration.min_samples") && d.known("calibration.num_samples") {
		at := "calibration.num_samples"
		if !d.set(at) {
			at = "calibration.min_samples"
		}
		d.wrong(at, "num_samples %d is below min_samples %d", cal.NumSamples, cal.MinSamples)
	}
	if cal.Input != "" && len(c.Model.Inputs) > 0 && d.namesKnown(c) {
		if _, ok := c.input(cal.Input); !ok {
			d.wrong("calibration.input", "no input has the name %s%s", cal.Input, didYouMean(cal.Input, c.inputNames()))
		}
	}
	if d.set("calibration.batch_size") {
		d.checkBatch(c, "calibration.batch_size", cal.BatchSize)
	} else if hi := c.MaxBatch(); hi > 0 {
		c.Calibration.BatchSize = int(min(int64(cal.BatchSize), hi))
	} else if fixed, ok := c.fixedBatch(); ok {
		c.Calibration.BatchSize = int(fixed)
	}
	d.checkPreprocess(cal.Preprocess)
}

func (d *decoder) checkPreprocess(p Preprocess) {
	at := "calibration.preprocess."
	if d.known(at+"crop") && len(p.Crop) != 0 && len(p.Crop) != 2 {
		d.wrong(at+"crop", "want [height, width], got %d values", len(p.Crop))
	}
	if d.known(at+"mean") && d.known(at+"std") && len(p.Mean) > 0 && len(p.Std) > 0 && len(p.Mean) != len(p.Std) {
		d.wrong(at+"std", "has %d values, but mean has %d", len(p.Std), len(p.Mean))
	}
	if d.known(at+"std") && slices.Contains(p.Std, 0) {
		d.wrong(at+"std", "a value is 0; values are divided by it")
	}
	if d.known(at+"range") && len(p.Range) != 0 && (len(p.Range) != 2 || p.Range[0] > p.Range[1]) {
		d.wrong(at+"range", "want [low, high], got %v", p.Range)
	}
}

func (d *decoder) checkBenchmark(c *Config) {
	b := &c.Benchmark
	if len(b.BatchSizes) == 0 && d.known("benchmark.batch_sizes") {
		d.wrong("benchmark.batch_sizes", "is empty; set benchmark.enabled to false to turn the stage off")
	}
	if len(b.Concurrency) == 0 && d.known("benchmark.concurrency") {
		d.wrong("benchmark.concurrency", "is empty; set benchmark.enabled to false to turn the stage off")
	}
	if d.set("benchmark.batch_sizes") {
		for i, size := range b.BatchSizes {
			d.checkBatch(c, fmt.Sprintf("benchmark.batch_sizes.%d", i), size)
		}
		return
	}
	// The default follows the model where 1 is not among its sizes.
	if lo, opt, _, ok := c.BatchRange(0); ok && lo > 1 {
		b.BatchSizes = []int{int(opt)}
	} else if fixed, ok := c.fixedBatch(); ok {
		b.BatchSizes = []int{int(fixed)}
	}
}

func (d *decoder) checkTriton(c *Config) {
	t := c.Triton
	if t.ModelName != "" && !modelNameForm.MatchString(t.ModelName) {
		d.wrong("triton.model_name", "%q is no name; use letters, digits, dot, dash and underscore", t.ModelName)
	}
	allowed := slices.Clone(c.TensorRT.Precisions)
	if c.Target == "onnxruntime" && !slices.Contains(allowed, "fp32") {
		allowed = append(allowed, "fp32")
	}
	if t.Precision != "" && d.known("tensorrt.precisions") && d.known("target") && !slices.Contains(allowed, t.Precision) {
		d.wrong("triton.precision", "%s is not among tensorrt.precisions (%s)", t.Precision, strings.Join(c.TensorRT.Precisions, ", "))
	}
	d.checkMaxBatch(c)
	d.checkBatching(c)
	d.checkVersionPolicy(t.VersionPolicy)
	for _, name := range sortedKeys(t.Labels) {
		d.checkOutputName(c, "triton.labels."+name, name)
	}
	if len(t.Protocols) == 0 && d.known("triton.protocols") {
		d.wrong("triton.protocols", "is empty; name http, grpc or both")
	}
	d.checkServer(t)
}

// checkMaxBatch holds triton.max_batch_size to the model's own limit.
func (d *decoder) checkMaxBatch(c *Config) {
	asked := c.Triton.MaxBatchSize
	if asked == nil || !d.known("triton.max_batch_size") || !d.shapesKnown(c) || (len(c.Model.Inputs) == 0 && len(c.TensorRT.Profiles) == 0) {
		return
	}
	if limit := c.MaxBatch(); int64(*asked) > limit {
		d.wrong("triton.max_batch_size", "%d is above the model's largest batch %d; it can only lower that", *asked, limit)
	}
}

func (d *decoder) checkBatching(c *Config) {
	b := c.Triton.DynamicBatching
	if b == nil {
		return
	}
	limit, known := c.MaxBatch(), len(c.Model.Inputs) > 0 && d.shapesKnown(c)
	if c.Triton.MaxBatchSize != nil {
		limit, known = int64(*c.Triton.MaxBatchSize), true
	}
	known = known && !d.mistaken("triton.max_batch_size")
	if known && limit == 0 {
		d.wrong("triton.dynamic_batching", "needs a batch dimension; the largest batch is 0")
	}
	for i, size := range b.PreferredSizes {
		if known && limit > 0 && int64(size) > limit && d.known(fmt.Sprintf("triton.dynamic_batching.preferred_batch_size.%d", i)) {
			d.wrong(fmt.Sprintf("triton.dynamic_batching.preferred_batch_size.%d", i), "%d is above the largest batch %d", size, limit)
		}
	}
	at := "triton.dynamic_batching."
	if !d.known(at+"default_priority_level") || !d.known(at+"priority_levels") {
		return
	}
	if b.DefaultLevel > b.PriorityLevels {
		d.wrong("triton.dynamic_batching.default_priority_level", "%d is above priority_levels %d", b.DefaultLevel, b.PriorityLevels)
	}
	if b.PriorityLevels > 0 && b.DefaultLevel == 0 {
		d.wrong("triton.dynamic_batching.priority_levels", "needs default_priority_level, from 1 to %d", b.PriorityLevels)
	}
}

func (d *decoder) checkVersionPolicy(p map[string]any) {
	at := "triton.version_policy"
	if len(p) == 0 || !d.known(at) {
		return
	}
	if len(p) > 1 {
		d.wrong(at, "has %d of latest, all and specific; give one", len(p))
		return
	}
	for kind, body := range p {
		fields, _ := body.(map[string]any)
		switch kind {
		case "latest":
			if n, ok := asInt(fields["num_versions"]); !ok || n < 1 || n > maxDim || len(fields) != 1 {
				d.wrong(at+".latest", "want {num_versions: n} with n from 1 to %d", maxDim)
			}
		case "all":
			if len(fields) != 0 {
				d.wrong(at+".all", "want {}")
			}
		case "specific":
			list, _ := fields["versions"].([]any)
			if len(list) == 0 || len(fields) != 1 || slices.ContainsFunc(list, func(v any) bool { n, ok := asInt(v); return !ok || n < 1 }) {
				d.wrong(at+".specific", "want {versions: [1, 2]} with versions of at least 1")
			}
		default:
			d.wrong(at+"."+kind, "unknown key%s", didYouMean(kind, []string{"latest", "all", "specific"}))
		}
	}
}

func asInt(v any) (int64, bool) {
	switch v := v.(type) {
	case int:
		return int64(v), true
	case int64:
		return v, true
	}
	return 0, false
}

// checkServer keeps everything that reaches a container engine or a socket to
// its own form.
func (d *decoder) checkServer(t Triton) {
	if t.Image != "" {
		if strings.HasPrefix(t.Image, "-") {
			d.wrong("triton.image", "%q starts with a dash; it is no image reference", t.Image)
		} else if _, err := reference.ParseNormalizedNamed(t.Image); err != nil {
			d.wrong("triton.image", "%q is no image reference: %v", t.Image, err)
		}
	}
	if t.Image != "" && t.Server != "" {
		d.wrong("triton.server", "and triton.image exclude each other; name one server")
	}
	if strings.HasPrefix(t.Server, "-") {
		d.wrong("triton.server", "%q starts with a dash; it is no executable", t.Server)
	}
	if net.ParseIP(t.BindAddress) == nil && t.BindAddress != "localhost" && d.known("triton.bind_address") {
		d.wrong("triton.bind_address", "%q is no IP address", t.BindAddress)
	}
	if t.GPUs != "" && !gpusForm.MatchString(t.GPUs) {
		d.wrong("triton.gpus", "%q is not all, none, or indexes and UUIDs with commas", t.GPUs)
	}
	used := map[int]string{}
	for _, p := range []struct {
		key  string
		port int
	}{{"http_port", t.HTTPPort}, {"grpc_port", t.GRPCPort}, {"metrics_port", t.MetricsPort}} {
		if p.port == 0 {
			continue
		}
		if other, taken := used[p.port]; taken {
			d.wrong("triton."+p.key, "%d is already %s", p.port, other)
		}
		used[p.port] = p.key
	}
}

func (d *decoder) checkGate(c *Config) {
	for i, b := range c.Gate.Budgets {
		at := fmt.Sprintf("gate.budgets.%d", i)
		if b.Metric == "" && d.known(at+".metric") {
			d.wrong(at+".metric", "is missing")
		}
		if b.Max == nil && b.Min == nil && b.MaxRise == nil && b.MaxDrop == nil && d.reached(at) && !d.strange[at] && !d.mistaken(at) {
			d.wrong(at, "has no limit; give max, min, max_rise or max_drop")
		}
		if b.Max != nil && b.Min != nil && d.known(at+".max") && d.known(at+".min") && *b.Min > *b.Max {
			d.wrong(at+".min", "%g is above max %g", *b.Min, *b.Max)
		}
	}
}
