package tensor

import (
	"fmt"
	"math"
	"runtime"
	"slices"
)

// Rule says when two elements are equal enough: |got-ref| <= Atol + Rtol*|ref|.
// An infinity equals itself only; NaN equals NaN only if AllowNaN. The rule is
// for floating-point types; integers, bools and strings are compared exactly.
type Rule struct {
	Atol, Rtol float64
	AllowNaN   bool
}

// Pairs gives a reference and a candidate for each sample, as often as it is
// asked: quantiles take a second look.
type Pairs struct {
	Len int
	At  func(i int) (ref, got Tensor, err error)
}

// Pair is Pairs of one sample.
func Pair(ref, got Tensor) Pairs {
	return Pairs{Len: 1, At: func(int) (Tensor, Tensor, error) { return ref, got, nil }}
}

// ShapeError is a candidate of another shape. Shapes are never broadcast.
type ShapeError struct {
	Sample   int
	Ref, Got []int64
}

// Comparison is what comparing found. Metrics are over the Finite elements
// unless they say otherwise.
type Comparison struct {
	RefType, GotType DType
	Elements         int64    // compared: all but NaNs that are allowed to be equal
	Finite           int64    // finite on both sides
	Breaches         int64    // outside the rule, or not equal for exact types
	NonFinite        int64    // breaches where a NaN or infinity has no equal
	First            []int64  // index of the first breach, the sample in front; nil if none
	FirstRef         string   // the reference there
	FirstGot         string   // the candidate there
	NaN, Inf         [2]int64 // reference, candidate
	MaxAbs           float64  // +Inf if NonFinite is not 0
	MeanAbs, RMSE    float64
	MaxRel           float64         // over elements whose reference is not 0
	PeakRef          float64         // largest |ref|
	Quantiles        map[int]float64 // of |got-ref|, exact, by thousandths: 500, 900, 990, 999
	CosineMin        float64         // over Cosines slices
	Cosines          int64           // slices whose cosine is defined
	Top1             float64         // fraction of Rows whose largest element is the same
	Rows             int64           // rows along the last axis, if it has at least two elements
	KL               float64         // mean over KLRows of KL(softmax(ref) || softmax(got)), in nats
	KLRows           int64           // finite rows
	Edges            []float64       // of a histogram of |got-ref|; one more than Counts
	Counts           []int64
}

// quantiles that are reported, in thousandths.
var quantiles = []int{500, 900, 990, 999}

// Exact reports whether elements had to be equal exactly.
func (c Comparison) Exact() bool { return !c.RefType.Floating() }

// PSNR is the peak signal-to-noise ratio in dB, with the largest |ref| as peak:
// +Inf for equal tensors, NaN if all references are 0.
func (c Comparison) PSNR() float64 {
	switch {
	case c.Finite == 0 || c.PeakRef == 0:
		return math.NaN()
	case c.RMSE == 0:
		return math.Inf(1)
	}
	return 20 * math.Log10(c.PeakRef/c.RMSE)
}

// Metrics returns the metrics that are defined, by the names of the report.
func (c Comparison) Metrics() map[string]float64 {
	m := map[string]float64{}
	if c.Elements == 0 || c.RefType == String || c.RefType == Bool {
		return m
	}
	m["max_abs"] = c.MaxAbs
	if c.Rows > 0 {
		m["top1"] = c.Top1
	}
	if c.Finite == 0 {
		return m
	}
	m["mean_abs"] = c.MeanAbs
	if c.Exact() {
		return m
	}
	m["max_rel"], m["rmse"] = c.MaxRel, c.RMSE
	for key, q := range map[string]int{"p50": 500, "p90": 900, "p99": 990, "p999": 999} {
		if v, ok := c.Quantiles[q]; ok {
			m[key] = v
		}
	}
	if v := c.PSNR(); !math.IsNaN(v) {
		m["psnr_db"] = v
	}
	if c.Cosines > 0 {
		m["cosine_min"] = c.CosineMin
	}
	if c.KLRows > 0 {
		m["kl"] = c.KL
	}
	return m
}

func (e *ShapeError) Error() string {
	return fmt.Sprintf("shape %v, expected %v", e.Got, e.Ref)
}

// TypeError is a candidate whose type cannot be compared with the reference's.
type TypeError struct{ Ref, Got DType }

func (e *TypeError) Error() string { return fmt.Sprintf("type %s, expected %s", e.Got, e.Ref) }

// Compare compares every pair. Floating-point types of different widths compare
// by value, as do integers; anything else must have the same type. It takes no
// more than 64 MB of memory besides the tensors. The error is a *ShapeError, a
// *TypeError, or one of p.At.
func Compare(p Pairs, rule Rule) (Comparison, error) {
	c := &comparer{pairs: p, rule: rule, workers: min(runtime.GOMAXPROCS(0), 8)}
	c.CosineMin = math.Inf(1)
	for i := range p.Len {
		ref, got, err := p.At(i)
		if err != nil {
			return Comparison{}, err
		}
		if err := c.admit(i, ref, got); err != nil {
			return Comparison{}, err
		}
		if ref.Elements() == 0 {
			continue
		}
		if ref.DType.Floating() {
			c.floats(i, ref, got)
		} else {
			c.exact(i, ref, got)
		}
	}
	if err := c.finish(); err != nil {
		return Comparison{}, err
	}
	return c.Comparison, nil
}

// admit checks that two tensors can be compared.
func (c *comparer) admit(i int, ref, got Tensor) error {
	if err := ref.Check(); err != nil {
		return fmt.Errorf("reference: %w", err)
	}
	if err := got.Check(); err != nil {
		return fmt.Errorf("candidate: %w", err)
	}
	if class(ref.DType) != class(got.DType) {
		return &TypeError{Ref: ref.DType, Got: got.DType}
	}
	if !slices.Equal(ref.Shape, got.Shape) {
		return &ShapeError{Sample: i, Ref: ref.Shape, Got: got.Shape}
	}
	if i > 0 && (ref.DType != c.RefType || got.DType != c.GotType) {
		return &TypeError{Ref: c.GotType, Got: got.DType}
	}
	c.RefType, c.GotType = ref.DType, got.DType
	return nil
}

func class(d DType) string {
	switch {
	case d.Floating():
		return "float"
	case d == Bool || d == String:
		return string(d)
	}
	return "int"
}

// unravel turns a place in C order into an index, with the sample in front.
func unravel(sample int, at int64, shape []int64) []int64 {
	index := make([]int64, len(shape)+1)
	index[0] = int64(sample)
	for axis := len(shape) - 1; axis >= 0; axis-- {
		index[axis+1] = at % shape[axis]
		at /= shape[axis]
	}
	return index
}
