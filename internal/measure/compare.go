package measure

import (
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/report"
)

// Side is one of two reports to be compared.
type Side struct {
	Name      string // as the user gave it
	Model     report.Model
	Benchmark report.Benchmark
	Tools     map[string]string
	Weights   string // digest of the graph
	CPU       string
	GPUs      []report.GPU
}

// SideOf takes from a report what matters to a comparison.
func SideOf(name string, r *report.Report) (Side, error) {
	if r.Benchmark == nil || len(r.Benchmark.Rows) == 0 {
		return Side{}, failure.New(failure.Usage, "compare benchmarks: %s holds no measurement", name).
			WithHint("run the benchmark stage first")
	}
	s := Side{
		Name: name, Model: r.Model, Benchmark: *r.Benchmark, Tools: r.Environment.Tools, GPUs: r.Environment.GPUs,
		CPU: fmt.Sprintf("%s with %d cores", r.Environment.CPU, r.Environment.Cores),
	}
	for _, a := range r.Artifacts {
		if a.Kind == "onnx" {
			s.Weights = a.Digest
		}
	}
	return s, nil
}

// Comparison is what changed from one benchmark to another.
type Comparison struct {
	Deltas   []report.Delta `json:"deltas"`
	Refused  []string       `json:"refused,omitempty"` // rows that must not be compared, and why
	OnlyBase []string       `json:"only_base,omitempty"`
	OnlyHead []string       `json:"only_head,omitempty"`
	Warnings []string       `json:"warnings,omitempty"`
}

// Judge says what the samples of two rows mean for the ratio of their medians.
type Judge func(base, head []float64) report.Delta

// SameModel refuses reports of different models, by name or by inputs and
// outputs, with code Usage. What a report does not say of its model is not held
// against it. what is attempted, such as "compare a with b".
func SameModel(what string, base, head report.Model) error {
	e := failure.New(failure.Usage, "%s: they are of different models", what).WithHint("give two reports of the same model; its weights may differ")
	if base.Name != "" && head.Name != "" && base.Name != head.Name {
		e.With("model", "%s in base, %s in head", base.Name, head.Name)
	}
	for _, part := range []struct {
		label      string
		base, head []report.Tensor
	}{{"inputs", base.Inputs, head.Inputs}, {"outputs", base.Output, head.Output}} {
		then, now := Signature(part.base), Signature(part.head)
		if then != "" && now != "" && then != now {
			e.With(part.label, "%s in base, %s in head", then, now)
		}
	}
	if len(e.Details) == 0 {
		return nil
	}
	return e
}

// Signature is a list of tensors as text. What a dynamic dimension is called
// says nothing about the model.
func Signature(tensors []report.Tensor) string {
	var all []string
	for _, t := range tensors {
		dims := make([]string, len(t.Dims))
		for i, d := range t.Dims {
			if dims[i] = d; strings.Trim(d, "0123456789") != "" {
				dims[i] = "?"
			}
		}
		all = append(all, fmt.Sprintf("%s %s[%s]", t.Name, t.DType, strings.Join(dims, ",")))
	}
	return strings.Join(all, ", ")
}

// Compare compares rows of the same name. Reports of different models are
// refused, and rows of another device, driver or mode by name, for the numbers
// would say nothing about the model; other weights or tools are a warning. If
// nothing at all can be compared, that is a failure with code Usage that names
// every row and what stands in the way.
func Compare(base, head Side, judge Judge) (Comparison, error) {
	var c Comparison
	what := fmt.Sprintf("compare %s with %s", base.Name, head.Name)
	if err := SameModel(what, base.Model, head.Model); err != nil {
		return c, err
	}
	c.Warnings = differences(base, head)
	rows := map[string]report.Measurement{}
	for _, m := range base.Benchmark.Rows {
		rows[key(m)] = m
	}
	seen := map[string]bool{}
	var onlyBase, onlyHead []report.Measurement
	for _, m := range head.Benchmark.Rows {
		b, ok := rows[key(m)]
		if !ok {
			onlyHead = append(onlyHead, m)
			continue
		}
		seen[key(m)] = true
		if why := refuse(b, m, base, head); why != "" {
			c.Refused = append(c.Refused, m.Row()+": "+why)
			continue
		}
		c.Deltas = append(c.Deltas, deltas(b, m, judge)...)
	}
	for _, m := range base.Benchmark.Rows {
		if !seen[key(m)] {
			onlyBase = append(onlyBase, m)
		}
	}
	// With nothing to compare, what comes nearest is more than a list of rows.
	onlyBase, onlyHead = c.pair(onlyBase, onlyHead, len(c.Deltas) == 0)
	for _, m := range onlyBase {
		c.OnlyBase = append(c.OnlyBase, m.Row())
	}
	for _, m := range onlyHead {
		c.OnlyHead = append(c.OnlyHead, m.Row())
	}
	if len(c.Deltas) == 0 {
		return c, c.nothing(what)
	}
	return c, nil
}

// pair refuses rows that differ in nothing but the mode, and with sizes also
// those that differ in batch or concurrency. It returns the rows without any
// such partner.
func (c *Comparison) pair(base, head []report.Measurement, sizes bool) (onlyBase, onlyHead []report.Measurement) {
	onlyBase = slices.Clone(base)
	for _, h := range head {
		at, fewest := -1, 0
		for i, b := range onlyBase {
			if b.Backend != h.Backend || b.Precision != h.Precision || !sizes && (b.Batch != h.Batch || b.Concurrency != h.Concurrency) {
				continue
			}
			if n := len(unlike(b, h)); at < 0 || n < fewest {
				at, fewest = i, n
			}
		}
		if at < 0 {
			onlyHead = append(onlyHead, h)
			continue
		}
		c.Refused = append(c.Refused, h.Row()+": "+strings.Join(unlike(onlyBase[at], h), "; "))
		onlyBase = slices.Delete(onlyBase, at, at+1)
	}
	return onlyBase, onlyHead
}

// unlike says in what the settings of two rows differ.
func unlike(b, h report.Measurement) []string {
	var why []string
	for _, part := range []struct{ what, base, head string }{
		{"mode", b.Mode, h.Mode},
		{"batch", strconv.Itoa(b.Batch), strconv.Itoa(h.Batch)},
		{"concurrency", strconv.Itoa(b.Concurrency), strconv.Itoa(h.Concurrency)},
	} {
		why = differ(why, part.what, part.base, part.head)
	}
	return why
}

// differ adds to why what is one thing in base and another in head.
func differ(why []string, what, base, head string) []string {
	if base == head {
		return why
	}
	return append(why, fmt.Sprintf("%s is %s in base, %s in head", what, orNone(base), orNone(head)))
}

// nothing is the failure of a comparison without a row.
func (c *Comparison) nothing(what string) error {
	f := failure.New(failure.Usage, "%s: there is no row that both have and that may be compared", what).
		WithHint("measure both on the same machine with the same precisions, batch_sizes and concurrency")
	for _, part := range []struct {
		label string
		rows  []string
	}{{"refused", c.Refused}, {"only in base", c.OnlyBase}, {"only in head", c.OnlyHead}} {
		for _, r := range part.rows {
			f.With(part.label, "%s", r)
		}
	}
	return f
}

// key is the row without what is refused when it differs.
func key(m report.Measurement) string {
	return fmt.Sprint(m.Backend, "/", m.Precision, "/", m.Batch, "/", m.Concurrency, "/", graphMode(m.Mode))
}

// graphMode keeps apart the rows that one report has twice: with and without a
// CUDA graph, and by protocol.
func graphMode(mode string) string {
	var keep []string
	for part := range strings.FieldsSeq(mode) {
		if strings.HasPrefix(part, "cuda-graph") || part == "http" || part == "grpc" || part == "no-cuda-graph" {
			keep = append(keep, part)
		}
	}
	return strings.Join(keep, " ")
}

func refuse(b, h report.Measurement, base, head Side) string {
	why := differ(nil, "device", b.Device, h.Device)
	why = differ(why, "mode", b.Mode, h.Mode)
	if h.Device != "cpu" {
		why = differ(why, "driver", drivers(base.GPUs), drivers(head.GPUs))
		why = differ(why, "TensorRT", base.Tools["tensorrt"], head.Tools["tensorrt"])
	} else {
		why = differ(why, "processor", base.CPU, head.CPU)
	}
	return strings.Join(why, "; ")
}

func drivers(gpus []report.GPU) string {
	var all []string
	for _, g := range gpus {
		all = append(all, g.Driver)
	}
	sort.Strings(all)
	return strings.Join(all, ", ")
}

// differences are what a reader must know though the rows may be compared.
func differences(base, head Side) []string {
	var out []string
	switch {
	case base.Weights == "" || head.Weights == "":
		out = append(out, "whether the weights are the same is not known: a report of measurements made by hand names no graph")
	case base.Weights != head.Weights:
		out = append(out, "the weights differ: the two runs measured different graphs")
	}
	if slices.ContainsFunc(head.Benchmark.Rows, func(m report.Measurement) bool { return m.Interleaved != nil }) {
		out = append(out, "the blocks that ran in turns are the gate's to judge; this compares the samples of two runs")
	}
	names := map[string]bool{}
	for n := range base.Tools {
		names[n] = true
	}
	for n := range head.Tools {
		names[n] = true
	}
	sorted := make([]string, 0, len(names))
	for n := range names {
		sorted = append(sorted, n)
	}
	sort.Strings(sorted)
	for _, n := range sorted {
		out = differ(out, n, base.Tools[n], head.Tools[n])
	}
	return out
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// deltas compares the median by its samples, and the other figures plainly.
func deltas(b, h report.Measurement, judge Judge) []report.Delta {
	first := judge(Floats(b.Samples), Floats(h.Samples))
	first.Row, first.Metric, first.Unit, first.Better = h.Row(), "latency_p50_ms", "ms", "lower"
	out := []report.Delta{first}
	plain := func(metric, unit, better string, base, head report.Number) {
		d := report.Delta{
			Row: h.Row(), Metric: metric, Unit: unit, Better: better, Base: &base, Head: &head, Change: report.Unclear,
			Detail: "one figure a side: no interval",
		}
		if base > 0 {
			ratio := head / base
			d.Ratio = &ratio
		}
		out = append(out, d)
	}
	bs, ok1 := b.Latency()
	hs, ok2 := h.Latency()
	if ok1 && ok2 {
		plain("latency_p99_ms", "ms", "lower", bs.P99, hs.P99)
	}
	plain("throughput", "1/s", "higher", b.Throughput, h.Throughput)
	if b.PeakRSS > 0 && h.PeakRSS > 0 {
		plain("peak_rss_bytes", "B", "lower", report.Number(b.PeakRSS), report.Number(h.PeakRSS))
	}
	return out
}

// Floats converts samples of the report.
func Floats(ns []report.Number) []float64 {
	out := make([]float64, len(ns))
	for i, n := range ns {
		out[i] = float64(n)
	}
	return out
}

// Overhead is what a server adds to a request, for one batch and concurrency.
type Overhead struct {
	Row        string        `json:"row"` // of the served measurement
	Direct     string        `json:"direct"`
	DirectP50  report.Number `json:"direct_p50_ms"`
	ServedP50  report.Number `json:"served_p50_ms"`
	Added      report.Number `json:"added_ms"`
	Ratio      report.Number `json:"ratio"`
	DirectRate report.Number `json:"direct_throughput"`
	ServedRate report.Number `json:"served_throughput"`
}

// Overheads sets every served row against the direct rows of its precision,
// batch and concurrency: an engine's if there is one, else ONNX Runtime's. Rows
// without a partner are named. It fails with code Usage if there is no pair.
func Overheads(direct, served report.Benchmark) (pairs []Overhead, alone []string, err error) {
	for _, s := range served.Rows {
		if s.Backend != "triton" {
			continue
		}
		found := false
		for _, backend := range []string{"tensorrt", "onnxruntime"} {
			for _, d := range direct.Rows {
				if d.Backend != backend || d.Batch != s.Batch || d.Concurrency != s.Concurrency || (d.Precision != s.Precision && s.Precision != "") {
					continue
				}
				if o, ok := overhead(d, s); ok {
					pairs, found = append(pairs, o), true
				}
			}
			if found {
				break
			}
		}
		if !found {
			alone = append(alone, s.Row())
		}
	}
	if len(pairs) == 0 {
		f := failure.New(failure.Usage, "measure overhead: no served row has a direct row of its precision, batch and concurrency").
			WithHint("measure both with the same batch_sizes and concurrency")
		for _, a := range alone {
			f.With("served", "%s", a)
		}
		return nil, alone, f
	}
	return pairs, alone, nil
}

func overhead(d, s report.Measurement) (Overhead, bool) {
	ds, ok1 := d.Latency()
	ss, ok2 := s.Latency()
	if !ok1 || !ok2 || ds.P50 <= 0 {
		return Overhead{}, false
	}
	return Overhead{
		Row: s.Row(), Direct: d.Row(), DirectP50: ds.P50, ServedP50: ss.P50, Added: ss.P50 - ds.P50, Ratio: ss.P50 / ds.P50,
		DirectRate: d.Throughput, ServedRate: s.Throughput,
	}, true
}
