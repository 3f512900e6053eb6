package calibration

import "math"

// SignedHistogram is onnxruntime.quantization's histogram of one tensor:
// equal bins from -Threshold to Threshold in float32 arithmetic. Its range
// must be known before the first value, so it needs a second pass over the
// data.
type SignedHistogram struct {
	Min, Max  float32 // of the data
	Threshold float32 // max(|Min|, |Max|)
	Edges     []float32
	Counts    []int64
}

// NewSignedHistogram returns an empty histogram for values in [low, high].
func NewSignedHistogram(low, high float32, bins int) *SignedHistogram {
	t := max(float32(math.Abs(float64(low))), float32(math.Abs(float64(high))))
	first, last := -t, t
	if first == last { // numpy widens an empty range
		first, last = -0.5, 0.5
	}
	return &SignedHistogram{
		Min: low, Max: high, Threshold: t,
		Edges:  linspace(first, last, bins),
		Counts: make([]int64, bins),
	}
}

// linspace is numpy.linspace in float32 with bins+1 points.
func linspace(first, last float32, bins int) []float32 {
	edges := make([]float32, bins+1)
	step := float32(last-first) / float32(bins)
	for i := range edges {
		edges[i] = float32(float32(i)*step) + first
	}
	edges[bins] = last
	return edges
}

// Add counts values. Those outside of the range are left out, as by numpy.
func (h *SignedHistogram) Add(values []float32) {
	n := len(h.Counts)
	first, last := h.Edges[0], h.Edges[n]
	norm := float64(n) / (float64(last) - float64(first))
	for _, v := range values {
		if !(v >= first && v <= last) {
			continue
		}
		i := min(int((float64(v)-float64(first))*norm), n-1)
		for i > 0 && v < h.Edges[i] {
			i--
		}
		for i < n-1 && v >= h.Edges[i+1] {
			i++
		}
		h.Counts[i]++
	}
}

// Entropy returns the range [low, high] with the least divergence, by the
// search of onnxruntime.quantization (HistogramCollector), its integer
// truncations and smoothing included.
func (h *SignedHistogram) Entropy(quantizedBins int) (low, high float32) {
	n := len(h.Counts)
	zero := n / 2
	half := quantizedBins / 2
	best := math.Inf(1)
	low, high = h.Edges[0], h.Edges[n]
	found := false
	for i := half; i <= zero; i++ {
		start, end := zero-i, min(zero+i+1, n)
		d := h.divergence(start, end, quantizedBins)
		if !found || d < best {
			best, low, high, found = d, h.Edges[start], h.Edges[end], true
		}
	}
	return max(low, h.Min), min(high, h.Max)
}

func (h *SignedHistogram) divergence(start, end, quantizedBins int) float64 {
	slice := h.Counts[start:end]
	p := append([]int64(nil), slice...)
	for _, c := range h.Counts[:start] {
		p[0] += c
	}
	for _, c := range h.Counts[end:] {
		p[len(p)-1] += c
	}
	q := make([]int64, len(p))
	merged := len(slice) / quantizedBins
	for k := range quantizedBins {
		a := k * merged
		b := a + merged
		var mass, occupied int64
		for j := a; j < b; j++ {
			mass += slice[j]
			if p[j] != 0 {
				occupied++
			}
		}
		if k == quantizedBins-1 {
			for _, c := range slice[quantizedBins*merged:] {
				mass += c
			}
		}
		if occupied == 0 {
			continue
		}
		for j := a; j < b; j++ {
			q[j] = int64(float64(mass) / float64(occupied))
		}
	}
	return relativeEntropy(smooth(p), smooth(q))
}

// smooth moves a little mass from the occupied bins to the empty ones; nil if
// all are empty. It and relativeEntropy compute in float32 and add in the order
// of numpy, since the curve is flat around its minimum and a rounding decides.
func smooth(counts []int64) []float32 {
	const eps = 0.0001
	zeros := 0
	for _, c := range counts {
		if c == 0 {
			zeros++
		}
	}
	occupied := len(counts) - zeros
	if occupied == 0 {
		return nil
	}
	eps1 := eps * float64(zeros) / float64(occupied)
	out := make([]float32, len(counts))
	for i, c := range counts {
		if c == 0 {
			out[i] = float32(eps)
		} else {
			out[i] = float32(c) + float32(-eps1)
		}
	}
	return out
}

func relativeEntropy(p, q []float32) float64 {
	if p == nil || q == nil {
		return math.Inf(1)
	}
	sp, sq := pairwise(p), pairwise(q)
	terms := make([]float32, len(p))
	for i := range p {
		a, b := p[i]/sp, q[i]/sq
		terms[i] = a * float32(math.Log(float64(a/b)))
	}
	return float64(pairwise(terms))
}

// pairwise adds as numpy does.
func pairwise(v []float32) float32 {
	n := len(v)
	switch {
	case n < 8:
		var s float32
		for _, x := range v {
			s += x
		}
		return s
	case n <= 128:
		var r [8]float32
		copy(r[:], v)
		i := 8
		for ; i < n-n%8; i += 8 {
			for k := range r {
				r[k] += v[i+k]
			}
		}
		s := ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]))
		for ; i < n; i++ {
			s += v[i]
		}
		return s
	}
	half := n / 2
	half -= half % 8
	return pairwise(v[:half]) + pairwise(v[half:])
}
