package measure

import (
	"math"
	"slices"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/report"
)

// Summarize returns the statistics of samples in milliseconds, in any order.
// Percentiles are those of report.Stats. The deviation of a single sample is
// not defined (NaN). No sample at all is a failure with code Benchmark.
func Summarize(samples []float64) (report.Stats, error) {
	n := len(samples)
	if n == 0 {
		return report.Stats{}, failure.New(failure.Benchmark, "summarize samples: there are none")
	}
	sorted := slices.Clone(samples)
	slices.Sort(sorted)
	sum := 0.0
	for _, x := range sorted {
		if x != x || x < 0 || math.IsInf(x, 0) {
			return report.Stats{}, failure.New(failure.Benchmark, "summarize samples: %v is no time", x)
		}
		sum += x
	}
	mean := sum / float64(n)
	squares := 0.0
	for _, x := range sorted {
		squares += (x - mean) * (x - mean)
	}
	at := func(thousandths int) report.Number { return report.Number(quantile(sorted, thousandths)) }
	return report.Stats{
		Count: n, Min: report.Number(sorted[0]), Max: report.Number(sorted[n-1]), Mean: report.Number(mean),
		Stdev: report.Number(math.Sqrt(squares / float64(n-1))), // 0/0 for one sample
		P50:   at(500), P90: at(900), P95: at(950), P99: at(990),
	}, nil
}

// quantile interpolates between order statistics (R type 7) of sorted samples.
func quantile(sorted []float64, thousandths int) float64 {
	p := thousandths * (len(sorted) - 1)
	lo := p / 1000
	if lo+1 >= len(sorted) {
		return sorted[lo]
	}
	return sorted[lo] + float64(p%1000)/1000*(sorted[lo+1]-sorted[lo])
}

// Median returns the middle of samples in any order; NaN if there are none.
func Median(samples []float64) float64 {
	if len(samples) == 0 {
		return math.NaN()
	}
	sorted := slices.Clone(samples)
	slices.Sort(sorted)
	return quantile(sorted, 500)
}
