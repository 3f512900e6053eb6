package calibration

import (
	"fmt"
	"math"
)

// Method says how a tensor's range is chosen from its observed values.
type Method string

// The methods.
const (
	MinMax     Method = "minmax"      // the largest magnitude
	Percentile Method = "percentile"  // the magnitude that a given share of the values stays within
	Entropy    Method = "entropy"     // least Kullback-Leibler divergence to 128 levels, as TensorRT describes it
	EntropyORT Method = "entropy-ort" // onnxruntime.quantization's entropy calibrator
)

// ParseMethod checks the name of a method.
func ParseMethod(s string) (Method, error) {
	switch m := Method(s); m {
	case MinMax, Percentile, Entropy, EntropyORT:
		return m, nil
	}
	return "", fmt.Errorf("unknown calibration method %q (minmax, percentile, entropy, entropy-ort)", s)
}

// Levels is the number of magnitudes of a signed 8-bit value.
const Levels = 128

// Rule is a method with its parameters.
type Rule struct {
	Method     Method  `json:"method"`
	Percentile float64 `json:"percentile,omitempty"` // for Percentile, in percent
}

// RangeOnly reports whether the rule needs the ends of the values alone.
func (r Rule) RangeOnly() bool { return r.Method == MinMax || r.Method == EntropyORT }

// Threshold returns the magnitude at which values saturate. It is never
// larger than the largest observed one; 0 means that only zeros were seen.
func (r Rule) Threshold(o *Observer) (float32, error) {
	switch r.Method {
	case MinMax:
		return o.AbsMax(), nil
	case Percentile:
		if !(r.Percentile > 0 && r.Percentile <= 100) {
			return 0, fmt.Errorf("percentile %g is not in (0, 100]", r.Percentile)
		}
		return percentile(o, r.Percentile/100), nil
	case Entropy:
		return entropy(o), nil
	case EntropyORT:
		// With its defaults (128 bins, 128 quantized bins) the calibrator of
		// onnxruntime has one candidate, the whole range. See SignedHistogram
		// for other numbers of bins.
		return o.AbsMax(), nil
	}
	return 0, fmt.Errorf("unknown calibration method %q", r.Method)
}

// Scale returns the step of symmetric int8 quantization for a threshold: a
// value v becomes round(v/scale), clamped to [-128, 127]. A tensor of zeros
// only, or one whose step would be subnormal, gets 1, as in onnxruntime.
func Scale(threshold float32) float32 {
	s := float64(threshold) * 2 / 254
	if s < smallestNormal {
		return 1
	}
	return float32(s)
}

const smallestNormal = 1.1754943508222875e-38

// percentile returns the lower edge of the bin in which the share p of the
// finite values is reached, as onnxruntime.quantization does; the upper edge of
// the first bin, since a threshold of 0 would quantize everything to 0.
func percentile(o *Observer, p float64) float32 {
	want := p * float64(o.Finite())
	var sum float64
	for i, c := range o.bins() {
		if sum += float64(c); sum >= want && c > 0 {
			return min(float32(float64(max(i, 1))*o.Width()), o.AbsMax())
		}
	}
	return o.AbsMax()
}

const (
	// maxOutliers is the largest share of values other than zero that entropy
	// lets saturate.
	maxOutliers = 0.1
	// sameDivergence is the difference that rounding makes.
	sameDivergence = 1e-9
)

// entropy returns the threshold whose quantized distribution diverges least
// from the observed one, by TensorRT's description: for each candidate number
// of bins i the reference P is the first i bins with everything beyond added
// to the last, Q is the first i bins merged into 128 levels and spread evenly
// over the bins that P has values in. The bin of zero is left out, since zero
// is exact at every scale and a ReLU would drown everything else in it. Values
// of which there are few different ones (pictures) fit equally well at several
// thresholds, at absurd ones too: of equal candidates the largest is taken, and
// none that cuts off more than maxOutliers of the values.
//
// Within a level Q is constant, so its share of the sum P·log(P/Q) follows
// from prefix sums, and a candidate costs 128 logarithms instead of i.
func entropy(o *Observer) float32 {
	hist := o.bins()
	if len(hist) <= Levels {
		return o.AbsMax()
	}
	s := newPrefix(hist)
	best, bestAt := math.Inf(1), len(hist)
	for i := Levels; i <= len(hist); i++ {
		if s.count[i] < (1-maxOutliers)*s.count[len(hist)] {
			continue
		}
		if d := s.divergence(i); d <= best+sameDivergence {
			best, bestAt = min(d, best), i
		}
	}
	return min(float32(float64(bestAt)*o.Width()), o.AbsMax())
}

// prefix holds sums over the first i bins: of counts, of occupied bins, and of
// c·log c.
type prefix struct {
	count    []float64
	occupied []float64
	plogp    []float64
	last     []float64 // the counts themselves
}

func newPrefix(hist []int64) *prefix {
	n := len(hist)
	p := &prefix{make([]float64, n+1), make([]float64, n+1), make([]float64, n+1), make([]float64, n)}
	for i, h := range hist {
		c := float64(h)
		if i == 0 {
			c = 0
		}
		p.last[i] = c
		p.count[i+1] = p.count[i] + c
		p.occupied[i+1], p.plogp[i+1] = p.occupied[i], p.plogp[i]
		if c > 0 {
			p.occupied[i+1]++
			p.plogp[i+1] += c * math.Log(c)
		}
	}
	return p
}

// divergence returns KL(P||Q) for the first n bins.
func (s *prefix) divergence(n int) float64 {
	total := s.count[len(s.count)-1]
	inside := s.count[n]
	if inside == 0 || total == 0 {
		return math.Inf(1)
	}
	outliers := total - inside
	tail := s.last[n-1] + outliers // P's last bin
	// sum of P log P over the bins, then minus P log Q level by level.
	sum := s.plogp[n-1]
	if tail > 0 {
		sum += tail * math.Log(tail)
	}
	for k := range Levels {
		a, b := n*k/Levels, n*(k+1)/Levels
		mass := s.count[b] - s.count[a]
		occupied := s.occupied[b] - s.occupied[a]
		p := mass
		if k == Levels-1 {
			p += outliers
			if s.last[n-1] == 0 && outliers > 0 {
				occupied++ // P has values in the last bin, all of them outliers
			}
		}
		if p == 0 {
			continue
		}
		if mass == 0 {
			return math.Inf(1) // Q has nothing where P has something
		}
		sum -= p * math.Log(mass/occupied)
	}
	// P sums to total, Q to inside.
	return sum/total - math.Log(total) + math.Log(inside)
}
