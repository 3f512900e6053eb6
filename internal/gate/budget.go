package gate

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/trtship/trtship/report"
)

// quantity is one measured value that a budget can apply to.
type quantity struct {
	row   string
	value float64
	m     *report.Measurement // nil for what is no row of the benchmark
}

// budgets checks every budget of the report.
func (j *judge) budgets() {
	for _, b := range j.head.Settings.Budgets {
		j.budget(b)
	}
}

func (j *judge) budget(b report.Budget) {
	found, err := quantities(j.head, b)
	if err != nil {
		j.own(report.Check{ID: "gate/budget", Subject: report.Subject{Node: b.Metric}, Verdict: report.Broken, Want: limits(b), Got: err.Error(), Line: b.Line})
		return
	}
	if len(found) == 0 {
		j.own(j.noQuantity(b))
		return
	}
	before := map[string]float64{}
	if j.base != nil {
		old, _ := quantities(j.base, b) // the same error was reported for head
		for _, q := range old {
			before[q.row] = q.value
		}
	}
	for _, q := range found {
		j.absolute(b, q)
		j.relative(b, q, before)
	}
}

// noQuantity is the check of a budget that nothing was measured for. That is a
// gap, unless the run was allowed to do without hardware.
func (j *judge) noQuantity(b report.Budget) report.Check {
	c := report.Check{
		ID: "gate/budget", Subject: report.Subject{Node: strings.TrimSpace(b.Metric + " " + where(b.Where))}, Verdict: report.Missing,
		Want: limits(b), Got: "nothing was measured", Line: b.Line,
		Hint: "correct gate.budgets[].where, or run the stage that measures it",
	}
	if !j.required() && slices.Contains(j.unmeasured, "benchmark") {
		c.Verdict, c.Got = report.Skip, "not measured: hardware is optional in this run"
	}
	if v, ok := j.stageVerdict("benchmark"); ok && v == report.NotAsked && j.ownBound() {
		c.Verdict, c.Got = report.Skip, "not measured: cut off by until: "+j.o.Until
	}
	return c
}

func (j *judge) stageVerdict(name string) (report.Verdict, bool) {
	for _, s := range j.head.Stages {
		if s.Name == name {
			return s.Verdict, true
		}
	}
	return "", false
}

func (j *judge) absolute(b report.Budget, q quantity) {
	if b.Max == nil && b.Min == nil {
		return
	}
	c := report.Check{
		ID: "gate/budget", Subject: report.Subject{Node: b.Metric + " " + q.row}, Verdict: report.Pass, Got: plain(q.value), Line: b.Line,
		Metrics: map[string]report.Number{b.Metric: report.Number(q.value)},
	}
	var want []string
	// Written so that a NaN does not pass.
	if b.Max != nil {
		want = append(want, "at most "+plain(float64(*b.Max)))
		if !(q.value <= float64(*b.Max)) {
			c.Verdict = report.Fail
		}
	}
	if b.Min != nil {
		want = append(want, "at least "+plain(float64(*b.Min)))
		if !(q.value >= float64(*b.Min)) {
			c.Verdict = report.Fail
		}
	}
	c.Want = strings.Join(want, " and ")
	j.own(c)
}

func (j *judge) relative(b report.Budget, q quantity, before map[string]float64) {
	if b.MaxRise == nil && b.MaxDrop == nil {
		return
	}
	if b.Metric == "latency_p50_ms" && b.MaxRise != nil && b.MaxDrop == nil && q.m != nil && j.compared(q.row) {
		return // judged with its confidence interval by gate/latency, whose margin is this limit
	}
	c := report.Check{ID: "gate/budget-relative", Subject: report.Subject{Node: b.Metric + " " + q.row}, Verdict: report.Pass, Line: b.Line}
	old, ok := before[q.row]
	var want []string
	if b.MaxRise != nil {
		want = append(want, "a rise of at most "+percent(float64(*b.MaxRise)))
	}
	if b.MaxDrop != nil {
		want = append(want, "a fall of at most "+percent(float64(*b.MaxDrop)))
	}
	c.Want = strings.Join(want, " and ")
	switch {
	case !ok || j.base == nil:
		c.Verdict, c.Got = j.gap(), "no baseline for this row"
	case q.m != nil && timed(b.Metric) && j.unchanged(q.m):
		c.Got = "the engine or graph is the baseline's, byte for byte"
	case q.m != nil && timed(b.Metric) && !j.gate.Baseline.Comparable:
		c.Verdict, c.Got = j.gap(), "not compared: "+strings.Join(j.gate.Baseline.Differences, "; ")
	default:
		c.Got = fmt.Sprintf("%s then, %s now (%s)", plain(old), plain(q.value), signed(q.value/old-1))
		if b.MaxRise != nil && !(q.value <= old*(1+float64(*b.MaxRise))) || b.MaxDrop != nil && !(q.value >= old*(1-float64(*b.MaxDrop))) {
			c.Verdict = report.Fail
		}
		if timed(b.Metric) && q.m != nil && q.m.Requests < 100 && c.Verdict == report.Pass {
			c.Detail = fmt.Sprintf("from %d requests only", q.m.Requests)
		}
	}
	j.own(c)
}

// gap is the verdict of a comparison that there is no baseline for.
func (j *judge) gap() report.Verdict {
	if j.o.RequireBaseline {
		return report.Missing
	}
	return report.Skip
}

// compared reports whether a row's latency was judged against the baseline.
func (j *judge) compared(row string) bool {
	for _, c := range j.gate.Checks {
		if c.ID == "gate/latency" && c.Subject.Node == row {
			return true
		}
	}
	return false
}

// timed reports whether a metric depends on the speed of the machine.
func timed(metric string) bool {
	return strings.HasPrefix(metric, "latency_") || slices.Contains([]string{"throughput", "load_ms", "cold_ms", "build_seconds"}, metric)
}

// quantities returns what a budget applies to.
func quantities(r *report.Report, b report.Budget) ([]quantity, error) {
	for k := range b.Where {
		if !slices.Contains([]string{"precision", "backend", "batch", "concurrency", "mode", "stage"}, k) {
			return nil, fmt.Errorf("where.%s is not one of precision, backend, batch, concurrency, mode, stage", k)
		}
	}
	switch b.Metric {
	case "accuracy":
		return accuracies(r, b), nil
	case "onnx_bytes", "nodes":
		return graph(r, b), nil
	}
	var out []quantity
	if r.Benchmark == nil {
		return nil, measurable(b.Metric)
	}
	for i := range r.Benchmark.Rows {
		m := &r.Benchmark.Rows[i]
		if !matches(b.Where, *m) {
			continue
		}
		v, ok, err := value(m, b.Metric)
		if err != nil {
			return nil, err
		}
		if ok {
			out = append(out, quantity{row: m.Row(), value: v, m: m})
		}
	}
	return out, measurable(b.Metric)
}

func measurable(metric string) error {
	_, _, err := value(&report.Measurement{}, metric)
	return err
}

// value reads a metric of a measurement; ok is false where it was not measured.
func value(m *report.Measurement, metric string) (v float64, ok bool, err error) {
	if p, found := strings.CutPrefix(metric, "latency_"); found {
		s, ok := m.Latency()
		n, known := map[string]report.Number{"p50_ms": s.P50, "p90_ms": s.P90, "p95_ms": s.P95, "p99_ms": s.P99, "mean_ms": s.Mean}[p]
		if !known {
			return 0, false, fmt.Errorf("unknown metric %q", metric)
		}
		return float64(n), ok, nil
	}
	optional := func(n *report.Number) (float64, bool, error) {
		if n == nil {
			return 0, false, nil
		}
		return float64(*n), true, nil
	}
	bytes := func(n *int64) (float64, bool, error) {
		if n == nil {
			return 0, false, nil
		}
		return float64(*n), true, nil
	}
	switch metric {
	case "throughput":
		return float64(m.Throughput), true, nil
	case "engine_bytes":
		return bytes(m.EngineBytes)
	case "gpu_memory_bytes":
		return bytes(m.GPUMemory)
	case "peak_rss_bytes":
		return float64(m.PeakRSS), m.PeakRSS > 0, nil
	case "load_ms":
		return optional(m.LoadMs)
	case "cold_ms":
		return optional(m.ColdMs)
	case "build_seconds":
		return optional(m.BuildSec)
	}
	return 0, false, fmt.Errorf("unknown metric %q", metric)
}

func accuracies(r *report.Report, b report.Budget) []quantity {
	var out []quantity
	for i := range r.Validations {
		v := &r.Validations[i]
		if v.Task == nil || !matchesField(b.Where, "precision", v.Precision) || !matchesField(b.Where, "stage", v.Stage) {
			continue
		}
		out = append(out, quantity{row: strings.TrimSpace(v.Stage + " " + v.Precision), value: float64(v.Task.Candidate)})
	}
	return out
}

func graph(r *report.Report, b report.Budget) []quantity {
	if r.Optimize == nil {
		return nil
	}
	if b.Metric == "nodes" {
		return []quantity{{row: "optimized graph", value: float64(r.Optimize.NodesAfter)}}
	}
	return []quantity{{row: "optimized graph", value: float64(r.Optimize.BytesAfter)}}
}

// matches reports whether a row is one that where restricts to.
func matches(where map[string]string, m report.Measurement) bool {
	return matchesField(where, "precision", m.Precision) && matchesField(where, "backend", m.Backend) && matchesField(where, "mode", m.Mode) &&
		matchesField(where, "batch", strconv.Itoa(m.Batch)) && matchesField(where, "concurrency", strconv.Itoa(m.Concurrency)) && matchesField(where, "stage", "benchmark")
}

func matchesField(where map[string]string, key, value string) bool {
	want, ok := where[key]
	return !ok || want == value
}

func where(w map[string]string) string {
	var parts []string
	for k, v := range w {
		parts = append(parts, k+"="+v)
	}
	slices.Sort(parts)
	return strings.Join(parts, " ")
}

func limits(b report.Budget) string {
	var parts []string
	add := func(label string, n *report.Number, format func(float64) string) {
		if n != nil {
			parts = append(parts, label+" "+format(float64(*n)))
		}
	}
	add("at most", b.Max, plain)
	add("at least", b.Min, plain)
	add("a rise of at most", b.MaxRise, percent)
	add("a fall of at most", b.MaxDrop, percent)
	return b.Metric + ": " + strings.Join(parts, ", ")
}

func plain(f float64) string { return strconv.FormatFloat(f, 'g', 6, 64) }
