package gate

import (
	"fmt"
	"math"

	"github.com/trtship/trtship/report"
)

// ComparePairs judges two engines that took turns: base[i] and head[i] are
// medians of blocks that ran one right after the other. The interval is that of
// the median of head[i]/base[i]: what moves both of a pair (clocks, heat, other
// load) cancels, where the two medians of Compare would each carry it.
func ComparePairs(base, head []float64, margin, confidence float64) report.Delta {
	d := report.Delta{Margin: report.Number(margin), Change: report.Unclear, Confidence: report.Number(confidence)}
	if len(base) != len(head) || len(base) < minSamples {
		d.Detail = fmt.Sprintf("%d and %d blocks are too few or do not pair, want %d of each", len(base), len(head), minSamples)
		return d
	}
	if n := invalid(base) + invalid(head); n > 0 {
		d.Detail = fmt.Sprintf("%d blocks are not positive numbers", n)
		return d
	}
	ratios := make([]float64, len(base))
	for i := range base {
		ratios[i] = head[i] / base[i]
	}
	s := summary(thin(ratios), confidence)
	ratio := median(ratios)
	d.Base, d.Head, d.Ratio = number(median(base)), number(median(head)), number(ratio)
	if math.IsInf(s.Lo, 0) || math.IsInf(s.Hi, 0) || math.IsNaN(s.Lo) || math.IsNaN(s.Hi) {
		d.Detail = "too few independent blocks for an interval"
		return d
	}
	low, high := math.Min(s.Lo, ratio), math.Max(s.Hi, ratio)
	d.Low, d.High = number(low), number(high)
	d.Change, d.Detail = place(low, high, margin)
	return d
}

// place says where an interval of the ratio lies against the margin.
func place(low, high, margin float64) (report.Change, string) {
	switch {
	case low > 1+margin:
		return report.Regressed, ""
	case high < 1-margin:
		return report.Improved, ""
	case high <= 1+margin && low >= 1-margin:
		return report.Same, ""
	case high <= 1+margin:
		// Certainly no regression; whether it is an improvement is unclear.
		return report.Same, "faster or the same"
	}
	return report.Unclear, "the interval reaches over the margin"
}
