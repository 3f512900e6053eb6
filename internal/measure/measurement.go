package measure

import (
	"fmt"
	"math"
	"slices"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/report"
)

const (
	fewRequests = 100  // fewer make the upper percentiles a guess
	maxCV       = 0.25 // coefficient of variation from which on times are called unsteady
)

// EndToEnd is the phase that the loop measures itself.
const EndToEnd = "end_to_end"

// Measurement turns a result into a row of the report. batch is the number of
// samples in a request. The caller fills in what was measured: backend, device,
// precision, mode, memory. It fails with code Benchmark if no request succeeded.
func (r Result) Measurement(batch int) (report.Measurement, error) {
	if len(r.Samples) == 0 {
		return report.Measurement{}, failure.New(failure.Benchmark, "measure: none of %d requests succeeded: %s", r.Errors, r.Error)
	}
	all := totals(r.Samples)
	stats, err := Summarize(all)
	if err != nil {
		return report.Measurement{}, err
	}
	cold := report.Number(r.ColdMs)
	m := report.Measurement{
		Batch: batch, Concurrency: r.Workers, Requests: len(all), Errors: r.Errors, Warmup: r.Warmup, ColdMs: &cold,
		Throughput: report.Number(float64(len(all)*batch) / r.WallMs * 1000),
		Phases:     map[string]report.Stats{EndToEnd: stats},
		Samples:    make([]report.Number, len(all)),
	}
	for i, x := range all {
		m.Samples[i] = report.Number(x)
	}
	for i, name := range r.Phases {
		v := make([]float64, 0, len(all))
		for _, s := range r.Samples {
			if i < len(s.Phases) {
				v = append(v, s.Phases[i])
			}
		}
		if m.Phases[name], err = Summarize(v); err != nil {
			return report.Measurement{}, fmt.Errorf("phase %s: %w", name, err)
		}
	}
	m.Notes = append(r.notes(), Notes(all)...)
	return m, nil
}

func (r Result) notes() []string {
	var notes []string
	if r.Errors > 0 {
		notes = append(notes, fmt.Sprintf("%d of %d requests failed, the first with: %s", r.Errors, r.Errors+len(r.Samples), r.Error))
	}
	if !r.Settled {
		notes = append(notes, fmt.Sprintf("the warm-up did not settle: after %d requests the medians of three windows still lay more than %g %% apart", r.Warmup, agree*100))
	}
	if r.Cut {
		notes = append(notes, fmt.Sprintf("stopped by the time limit after %d requests", len(r.Samples)))
	}
	return notes
}

// Notes says what is doubtful about samples in the order in which they were
// taken: too few, unsteady, drifting, or in two modes.
func Notes(samples []float64) []string {
	var notes []string
	if n := len(samples); n < fewRequests {
		notes = append(notes, fmt.Sprintf("%d requests are fewer than %d: p95 and p99 rest on a few of them", n, fewRequests))
	}
	stats, err := Summarize(samples)
	if err != nil {
		return notes
	}
	if cv := float64(stats.Stdev / stats.Mean); cv > maxCV {
		notes = append(notes, fmt.Sprintf("the coefficient of variation is %.2f, above %g", cv, maxCV))
	}
	if text := drift(samples); text != "" {
		notes = append(notes, text)
	}
	if text := modes(samples); text != "" {
		notes = append(notes, text)
	}
	return notes
}

// drift compares the first third with the last: their medians, and by a rank
// test whether the difference can be chance.
func drift(samples []float64) string {
	const least, limit, z = 30, 0.05, 3.3 // z: one in a thousand
	third := len(samples) / 3
	if len(samples) < least {
		return ""
	}
	a, b := samples[:third], samples[len(samples)-third:]
	change := Median(b)/Median(a) - 1
	if math.Abs(change) <= limit || math.Abs(rankZ(a, b)) <= z {
		return ""
	}
	word := "slower"
	if change < 0 {
		word = "faster"
	}
	return fmt.Sprintf("drift: the last third is %.0f %% %s than the first", math.Abs(change)*100, word)
}

// rankZ is the normal score of the Mann-Whitney U test.
func rankZ(a, b []float64) float64 {
	type item struct {
		v     float64
		first bool
	}
	all := make([]item, 0, len(a)+len(b))
	for _, v := range a {
		all = append(all, item{v, true})
	}
	for _, v := range b {
		all = append(all, item{v, false})
	}
	slices.SortFunc(all, func(x, y item) int {
		if x.v < y.v {
			return -1
		} else if x.v > y.v {
			return 1
		}
		return 0
	})
	n, m := float64(len(a)), float64(len(b))
	sum, ties := 0.0, 0.0
	for i := 0; i < len(all); {
		k := i
		for k < len(all) && all[k].v == all[i].v {
			k++
		}
		t := float64(k - i)
		ties += t*t*t - t
		for _, x := range all[i:k] {
			if x.first {
				sum += float64(i+k+1) / 2
			}
		}
		i = k
	}
	u := sum - n*(n+1)/2
	total := n + m
	variance := n * m / 12 * (total + 1 - ties/(total*(total-1)))
	if variance <= 0 {
		return 0
	}
	return (n*m/2 - u) / math.Sqrt(variance)
}

// modes looks for two groups of times: the split that explains most of the
// variance, if it explains far more than it would for one group of any usual
// form, and both groups are more than a few outliers.
func modes(samples []float64) string {
	const least, explained, share, apart = 40, 0.85, 0.1, 1.1
	n := len(samples)
	if n < least {
		return ""
	}
	sorted := slices.Clone(samples)
	slices.Sort(sorted)
	total, squares := 0.0, 0.0
	for _, x := range sorted {
		total += x
	}
	mean := total / float64(n)
	for _, x := range sorted {
		squares += (x - mean) * (x - mean)
	}
	best, at, sum := 0.0, 0, 0.0
	for i := 1; i < n; i++ {
		sum += sorted[i-1]
		low, high := sum/float64(i), (total-sum)/float64(n-i)
		if between := float64(i) * float64(n-i) / float64(n) * (high - low) * (high - low); between > best {
			best, at = between, i
		}
	}
	if squares == 0 || best/squares < explained || float64(min(at, n-at)) < share*float64(n) {
		return ""
	}
	low, high := Median(sorted[:at]), Median(sorted[at:])
	if high < apart*low {
		return ""
	}
	return fmt.Sprintf("two modes: %d requests around %.3g ms and %d around %.3g ms", at, low, n-at, high)
}
