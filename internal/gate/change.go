package gate

import (
	"fmt"
	"math"
	"slices"
	"sort"
	"strings"

	"golang.org/x/perf/benchmath"
	"gonum.org/v1/gonum/stat"

	"github.com/trtship/trtship/report"
)

// minSamples is how many independent samples of each side a judgement needs.
const minSamples = 20

// changes compares the latency of every row that both reports have.
func (j *judge) changes() {
	if j.head.Benchmark == nil {
		return
	}
	base := map[string]report.Measurement{}
	if j.base != nil && j.base.Benchmark != nil && j.gate.Baseline.Comparable {
		for _, m := range j.base.Benchmark.Rows {
			base[m.Row()] = m
		}
	}
	for _, m := range j.head.Benchmark.Rows {
		if d, ok := j.inTurns(m); ok {
			j.change(m, d, true)
		} else if b, ok := base[m.Row()]; ok {
			j.change(m, j.apart(m, b), false)
		} else if j.base != nil && j.gate.Baseline.Comparable {
			j.gate.Deltas = append(j.gate.Deltas, report.Delta{Row: m.Row(), Metric: "latency_p50_ms", Unit: "ms", Better: "lower", Head: p50(m), Change: report.New})
		}
	}
	sort.SliceStable(j.gate.Deltas, func(a, b int) bool {
		return slices.Index(report.Changes, j.gate.Deltas[a].Change) < slices.Index(report.Changes, j.gate.Deltas[b].Change)
	})
}

// apart compares two measurements that were made at different times.
func (j *judge) apart(head, base report.Measurement) report.Delta {
	d := Compare(floats(base.Samples), floats(head.Samples), j.margin(head), j.o.Confidence)
	d.Metric = "latency_p50_ms"
	if d.Base == nil {
		d.Base, d.Head = p50(base), p50(head)
	}
	return d
}

// change holds a row to what was found of it, by blocks in turns or by samples of
// two runs.
func (j *judge) change(head report.Measurement, d report.Delta, inTurns bool) {
	d.Row, d.Unit, d.Better = head.Row(), "ms", "lower"
	if !j.judgesSpeedOf(head) {
		// Said, and not judged. Processors are shared and change their clocks: a
		// team that wants to be held to one says by how much with a budget.
		d.Detail = strings.TrimPrefix(d.Detail+"; a processor's speed is judged where a budget names the row", "; ")
		j.gate.Deltas = append(j.gate.Deltas, d)
		return
	}
	j.gate.Deltas = append(j.gate.Deltas, d)
	c := report.Check{
		ID: "gate/latency", Subject: report.Subject{Node: d.Row}, Verdict: report.Pass,
		Want: fmt.Sprintf("no rise of the median beyond %s", percent(float64(d.Margin))), Detail: d.Detail,
	}
	if d.Ratio != nil {
		c.Got = signed(float64(*d.Ratio) - 1)
		c.Metrics = map[string]report.Number{"ratio": *d.Ratio}
	}
	if d.Low != nil && d.High != nil {
		c.Got += fmt.Sprintf(", %s confidence interval %s to %s", percent(float64(d.Confidence)), signed(float64(*d.Low)-1), signed(float64(*d.High)-1))
	}
	switch d.Change {
	case report.Regressed:
		c.Verdict = report.Fail
		c.Hint = "raise benchmark.margin or give the row a max_rise budget if this is accepted"
		if !inTurns {
			c.Hint = "to be sure, " + measureInTurns + c.Hint
		}
	case report.Unclear:
		c.Verdict = report.Inconclusive
		c.Hint = measureInTurns + "raise benchmark.iters or lock the clocks"
		if inTurns {
			c.Hint = "measure again with trtship run --against, on a machine that does nothing else; raise benchmark.max_seconds if there are too few blocks"
		}
	}
	j.own(c)
}

// measureInTurns begins the hint of a row that was measured apart from its baseline.
const measureInTurns = "let trtship run --against the baseline measure both in turns; "

// judgesSpeedOf reports whether a change of a row's latency can stop a change:
// always on a GPU, and on a processor where a budget asks for it.
func (j *judge) judgesSpeedOf(m report.Measurement) bool {
	if !strings.EqualFold(m.Device, cpuDevice) {
		return true
	}
	for _, b := range j.head.Settings.Budgets {
		if b.Metric == "latency_p50_ms" && b.MaxRise != nil && matches(b.Where, m) {
			return true
		}
	}
	return false
}

// margin is the rise of the median that is accepted for a row: that of a
// budget made for it, else the report's.
func (j *judge) margin(m report.Measurement) float64 {
	margin := float64(j.head.Settings.Margin)
	for _, b := range j.head.Settings.Budgets {
		if b.Metric == "latency_p50_ms" && b.MaxRise != nil && matches(b.Where, m) {
			margin = float64(*b.MaxRise)
		}
	}
	return margin
}

// Compare judges the ratio of the medians of two sets of samples, in the order
// in which they were measured. The confidence interval of the ratio comes from
// those of the two medians (order statistics, no assumption about the
// distribution), each at a level that makes the pair hold at the level asked
// for. Samples that depend on their predecessors are thinned first, for they
// count as fewer than they are. The change is certain only if the whole
// interval lies on one side of the margin.
func Compare(base, head []float64, margin, confidence float64) report.Delta {
	d := report.Delta{Margin: report.Number(margin), Change: report.Unclear}
	if n := invalid(base) + invalid(head); n > 0 {
		d.Detail = fmt.Sprintf("%d samples are not positive numbers", n)
		return d
	}
	if len(base) == 0 || len(head) == 0 {
		d.Detail = "there are no raw samples to compare"
		return d
	}
	b, h := thin(base), thin(head)
	each := 1 - (1-confidence)/2
	sb, sh := summary(b, each), summary(h, each)
	// The centres are those of all samples; thinning serves the interval only.
	mb, mh := median(base), median(head)
	ratio := mh / mb
	d.Base, d.Head, d.Ratio = number(mb), number(mh), number(ratio)
	low, high := sh.Lo/sb.Hi, sh.Hi/sb.Lo
	d.Confidence = report.Number(confidence)
	if len(b) < minSamples || len(h) < minSamples || math.IsInf(low, 0) || math.IsInf(high, 0) || math.IsNaN(low) || math.IsNaN(high) || sb.Lo <= 0 {
		d.Detail = fmt.Sprintf("%d and %d independent samples are too few, want %d", len(b), len(h), minSamples)
		return d
	}
	low, high = math.Min(low, ratio), math.Max(high, ratio)
	d.Low, d.High = number(low), number(high)
	d.Change, d.Detail = place(low, high, margin)
	return d
}

func summary(values []float64, confidence float64) benchmath.Summary {
	t := benchmath.DefaultThresholds
	return benchmath.AssumeNothing.Summary(benchmath.NewSample(slices.Clone(values), &t), confidence)
}

func median(values []float64) float64 {
	v := slices.Clone(values)
	slices.Sort(v)
	if len(v)%2 == 1 {
		return v[len(v)/2]
	}
	return (v[len(v)/2-1] + v[len(v)/2]) / 2
}

// thin keeps every k-th sample, where k makes the rest about independent: a
// series with correlation r between neighbours is worth (1-r)/(1+r) of its
// length. Ranks are used, so that one outlier does not hide the dependence.
func thin(values []float64) []float64 {
	if len(values) < 3 {
		return values
	}
	r := stat.Correlation(ranks(values[:len(values)-1]), ranks(values[1:]), nil)
	if math.IsNaN(r) || r <= 0.1 {
		return values
	}
	k := int(math.Ceil((1 + r) / math.Max(1e-3, 1-r)))
	out := make([]float64, 0, len(values)/k+1)
	for i := 0; i < len(values); i += k {
		out = append(out, values[i])
	}
	return out
}

// ranks replaces values by their ranks; equal values share their mean rank.
func ranks(values []float64) []float64 {
	order := make([]int, len(values))
	for i := range order {
		order[i] = i
	}
	sort.Slice(order, func(a, b int) bool { return values[order[a]] < values[order[b]] })
	out := make([]float64, len(values))
	for i := 0; i < len(order); {
		k := i
		for k < len(order) && values[order[k]] == values[order[i]] {
			k++
		}
		for _, o := range order[i:k] {
			out[o] = float64(i+k-1) / 2
		}
		i = k
	}
	return out
}

// mostMs is more than any request takes: more than thirty years.
const mostMs = 1e12

func invalid(values []float64) int {
	n := 0
	for _, v := range values {
		if !(v > 0) || v > mostMs {
			n++
		}
	}
	return n
}

func floats(ns []report.Number) []float64 {
	out := make([]float64, len(ns))
	for i, n := range ns {
		out[i] = float64(n)
	}
	return out
}

func number(f float64) *report.Number {
	n := report.Number(f)
	return &n
}

func percent(f float64) string { return fmt.Sprintf("%.4g %%", f*100) }

func signed(f float64) string { return fmt.Sprintf("%+.1f %%", f*100) }
