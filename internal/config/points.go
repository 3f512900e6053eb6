package config

import (
	"fmt"
	"slices"

	"github.com/trtship/trtship/report"
)

// Point is one set of input shapes at which things are compared.
type Point struct {
	Name    string             // min, opt, max, off-profile, fixed, "point 1"; "profile N/" in front if there are several profiles (N counts from 0, as TensorRT does)
	Profile int                // index into tensorrt.profiles; -1 if the point lies in none
	Shapes  map[string][]int64 // every declared input, fixed ones too
}

// Points returns where comparisons are made: min, opt and max of every profile,
// a size that is none of them (inside the range where the range has room), and
// the points of validation.points. A model of fixed shapes has the one point
// "fixed".
func (c *Config) Points() []Point {
	var out []Point
	if len(c.TensorRT.Profiles) == 0 || (len(c.Model.Inputs) > 0 && !c.dynamic()) {
		out = append(out, Point{Name: "fixed", Shapes: c.complete(nil)})
	} else {
		for i, p := range c.TensorRT.Profiles {
			out = append(out, c.profilePoints(i, p)...)
		}
	}
	for i, shapes := range c.Validation.Points {
		full := c.complete(shapes)
		out = append(out, Point{Name: fmt.Sprintf("point %d", i+1), Profile: c.ProfileOf(full), Shapes: full})
	}
	return out
}

func (c *Config) dynamic() bool {
	return slices.ContainsFunc(c.Model.Inputs, Input.Dynamic)
}

// profilePoints returns min, opt, max and off-profile of one profile.
func (c *Config) profilePoints(i int, p Profile) []Point {
	prefix := ""
	if len(c.TensorRT.Profiles) > 1 {
		prefix = fmt.Sprintf("profile %d/", i)
	}
	var out []Point
	for _, name := range []string{"min", "opt", "max"} {
		shapes := map[string][]int64{}
		for input, r := range p.Inputs {
			shapes[input] = r.at(name)
		}
		out = append(out, Point{Name: prefix + name, Profile: i, Shapes: c.complete(shapes)})
	}
	if c.Validation.OffProfile {
		if shapes, ok := c.offProfile(p); ok {
			full := c.complete(shapes)
			out = append(out, Point{Name: prefix + "off-profile", Profile: c.ProfileOf(full), Shapes: full})
		}
	}
	return out
}

func (r ShapeRange) at(name string) []int64 {
	switch name {
	case "min":
		return slices.Clone(r.Min)
	case "opt":
		return slices.Clone(r.Opt)
	}
	return slices.Clone(r.Max)
}

// complete adds the declared inputs of fixed shape.
func (c *Config) complete(shapes map[string][]int64) map[string][]int64 {
	out := map[string][]int64{}
	for name, s := range shapes {
		out[name] = slices.Clone(s)
	}
	for _, in := range c.Model.Inputs {
		if _, ok := out[in.Name]; ok || in.Dynamic() {
			continue
		}
		s := make([]int64, len(in.Shape))
		for i, d := range in.Shape {
			s[i] = d.Size
		}
		out[in.Name] = s
	}
	return out
}

// sizes is the range of one symbol in a profile.
type sizes struct{ min, opt, max int64 }

// axis names the symbol of an input's axis; undeclared inputs (kind onnx) have
// one symbol for axis 0, which is nearly always the batch, and one of its own
// for every other axis.
func (c *Config) axis(input string, i int) string {
	for _, in := range c.Model.Inputs {
		if in.Name == input && i < len(in.Shape) {
			return in.Shape[i].Symbol
		}
	}
	if i == 0 {
		return "batch"
	}
	return fmt.Sprintf("%s.%d", input, i)
}

// offProfile chooses for each symbol a size that is none of min, opt and max.
// Symbols get different sizes where that is possible, since an export that
// mixes two of them up passes when they are equal. ok is false where every
// size is fixed.
func (c *Config) offProfile(p Profile) (shapes map[string][]int64, ok bool) {
	ranges, order := c.symbolRanges(p)
	chosen, taken := map[string]int64{}, map[int64]bool{}
	for _, s := range order {
		if v, room := between(ranges[s], taken); room {
			chosen[s], taken[v], ok = v, true, true
		}
	}
	for _, s := range order {
		r := ranges[s]
		if _, done := chosen[s]; done || r.min == r.max {
			continue
		}
		// No room inside. Where another symbol has moved already, opt will do;
		// otherwise the size lies just outside.
		chosen[s] = r.opt
		if !ok {
			chosen[s] = r.max + 1
		}
	}
	if len(chosen) == 0 {
		return nil, false
	}
	shapes = map[string][]int64{}
	for input, r := range p.Inputs {
		s := slices.Clone(r.Opt)
		for i := range s {
			if v, moved := chosen[c.axis(input, i)]; moved {
				s[i] = v
			}
		}
		shapes[input] = s
	}
	return shapes, true
}

// symbolRanges returns the range of each symbol, and the symbols in a stable order.
func (c *Config) symbolRanges(p Profile) (ranges map[string]sizes, order []string) {
	ranges = map[string]sizes{}
	for _, input := range c.profileOrder(p) {
		r := p.Inputs[input]
		// The lengths differ only in a file that is being refused.
		for i := range min(len(r.Min), len(r.Opt), len(r.Max)) {
			symbol := c.axis(input, i)
			if _, seen := ranges[symbol]; symbol == "" || seen {
				continue
			}
			ranges[symbol] = sizes{r.Min[i], r.Opt[i], r.Max[i]}
			order = append(order, symbol)
		}
	}
	return ranges, order
}

// profileOrder lists a profile's inputs: declared ones in their order, then the
// others by name.
func (c *Config) profileOrder(p Profile) []string {
	var out []string
	for _, in := range c.Model.Inputs {
		if _, ok := p.Inputs[in.Name]; ok {
			out = append(out, in.Name)
		}
	}
	var rest []string
	for name := range p.Inputs {
		if !slices.Contains(out, name) {
			rest = append(rest, name)
		}
	}
	slices.Sort(rest)
	return append(out, rest...)
}

// between returns a size strictly inside the range that is not opt: the middle
// of the wider half, then any other, and one that is not taken if possible.
func between(r sizes, taken map[int64]bool) (v int64, room bool) {
	fits := func(v int64) bool { return v > r.min && v < r.max && v != r.opt }
	first := (r.opt + r.max) / 2
	if r.opt-r.min > r.max-r.opt {
		first = (r.min + r.opt) / 2
	}
	for step := int64(0); step <= 64; step++ {
		for _, cand := range []int64{first + step, first - step} {
			if !fits(cand) {
				continue
			}
			if !taken[cand] {
				return cand, true
			}
			if !room {
				v, room = cand, true
			}
		}
	}
	return v, room
}

// ProfileOf returns the index of the first profile that holds shapes, -1 if none does.
func (c *Config) ProfileOf(shapes map[string][]int64) int {
	for i, p := range c.TensorRT.Profiles {
		if p.holds(shapes) {
			return i
		}
	}
	return -1
}

func (p Profile) holds(shapes map[string][]int64) bool {
	for input, r := range p.Inputs {
		s, ok := shapes[input]
		if !ok || len(s) != len(r.Min) {
			return false
		}
		for i := range s {
			if s[i] < r.Min[i] || s[i] > r.Max[i] {
				return false
			}
		}
	}
	return true
}

// BatchSymbol returns the symbol of the first dimension of every input, or ""
// where the inputs have no common dynamic first dimension. Inputs that are
// declared without dimensions are left out.
func (c *Config) BatchSymbol() string {
	symbol := ""
	for _, in := range c.Model.Inputs {
		if len(in.Shape) == 0 {
			continue
		}
		if in.Shape[0].Symbol == "" || (symbol != "" && in.Shape[0].Symbol != symbol) {
			return ""
		}
		symbol = in.Shape[0].Symbol
	}
	return symbol
}

// BatchRange returns the smallest and largest batch size of profile i; ok is
// false where the batch is not dynamic. Undeclared inputs are taken to have the
// batch in front.
func (c *Config) BatchRange(i int) (lo, opt, hi int64, ok bool) {
	if i < 0 || i >= len(c.TensorRT.Profiles) {
		return 0, 0, 0, false
	}
	symbol := c.BatchSymbol()
	if symbol == "" {
		if len(c.Model.Inputs) > 0 {
			return 0, 0, 0, false
		}
		symbol = "batch"
	}
	ranges, _ := c.symbolRanges(c.TensorRT.Profiles[i])
	r, ok := ranges[symbol]
	return r.min, r.opt, r.max, ok
}

// MaxBatch returns the largest batch size of all profiles, 0 where the batch is
// not dynamic.
func (c *Config) MaxBatch() int64 {
	var out int64
	for i := range c.TensorRT.Profiles {
		if _, _, hi, ok := c.BatchRange(i); ok {
			out = max(out, hi)
		}
	}
	return out
}

// ShapesAt returns opt of profile i with the batch size replaced, complete with
// inputs of fixed shape.
func (c *Config) ShapesAt(i int, batch int64) map[string][]int64 {
	if len(c.TensorRT.Profiles) == 0 {
		return c.complete(nil)
	}
	symbol := c.BatchSymbol()
	if symbol == "" && len(c.Model.Inputs) == 0 {
		symbol = "batch"
	}
	shapes := map[string][]int64{}
	for input, r := range c.TensorRT.Profiles[i].Inputs {
		s := slices.Clone(r.Opt)
		for a := range s {
			if batch > 0 && symbol != "" && c.axis(input, a) == symbol {
				s[a] = batch
			}
		}
		shapes[input] = s
	}
	return c.complete(shapes)
}

// defaultTolerances are starting points. onnx and fp32 leave room for another
// order of summation, fp16 and bf16 for their rounding, int8 for quantization,
// where a few elements may lie outside.
var defaultTolerances = map[string]Tolerance{
	"onnx": {Atol: ptr(1e-4), Rtol: ptr(1e-3), CosineMin: ptr(0.9999)},
	"fp32": {Atol: ptr(1e-3), Rtol: ptr(1e-3), CosineMin: ptr(0.9999)},
	"fp16": {Atol: ptr(1e-2), Rtol: ptr(1e-2), CosineMin: ptr(0.999)},
	"bf16": {Atol: ptr(5e-2), Rtol: ptr(5e-2), CosineMin: ptr(0.995)},
	"int8": {Atol: ptr(2e-1), Rtol: ptr(2e-1), CosineMin: ptr(0.98), MaxBreaches: ptr(0.05)},
}

func ptr[T any](v T) *T { return &v }

// Precisions that have a tolerance: onnx is for exported and optimized graphs.
var tolerancePrecisions = []string{"onnx", "fp32", "fp16", "bf16", "int8"}

// Tolerance returns the tolerance of an output at a precision (onnx, fp32,
// fp16, bf16, int8): the default, then validation.tolerances, then
// validation.outputs, then that by precision; each replaces what it sets.
func (c *Config) Tolerance(precision, output string) report.Tolerance {
	t, ok := defaultTolerances[precision]
	if !ok {
		t = defaultTolerances["onnx"]
	}
	t = t.with(c.Validation.Tolerances[precision])
	limits := c.Validation.Outputs[output]
	t = t.with(limits.Tolerance).with(limits.ByPrecision[precision])
	out := report.Tolerance{
		Atol: number(t.Atol), Rtol: number(t.Rtol), CosineMin: numberPtr(t.CosineMin), TopK: numberPtr(t.Top1Min),
		AllowNaN: t.AllowNaN != nil && *t.AllowNaN, MaxBreaches: number(t.MaxBreaches),
	}
	return out
}

// Tolerances returns the tolerance of every precision, without outputs' own.
func (c *Config) Tolerances() map[string]report.Tolerance {
	out := map[string]report.Tolerance{}
	for _, p := range tolerancePrecisions {
		out[p] = c.Tolerance(p, "")
	}
	return out
}

// with returns t with the fields that o sets.
func (t Tolerance) with(o Tolerance) Tolerance {
	pick := func(dst **float64, src *float64) {
		if src != nil {
			*dst = src
		}
	}
	pick(&t.Atol, o.Atol)
	pick(&t.Rtol, o.Rtol)
	pick(&t.CosineMin, o.CosineMin)
	pick(&t.Top1Min, o.Top1Min)
	pick(&t.MaxBreaches, o.MaxBreaches)
	if o.AllowNaN != nil {
		t.AllowNaN = o.AllowNaN
	}
	return t
}

func number(f *float64) report.Number {
	if f == nil {
		return 0
	}
	return report.Number(*f)
}

func numberPtr(f *float64) *report.Number {
	if f == nil {
		return nil
	}
	return ptr(report.Number(*f))
}
