package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// String returns the parts of a subject that apply, e.g. "fp16 logits opt".
func (s Subject) String() string {
	parts := make([]string, 0, 5)
	for _, p := range []string{s.Precision, s.Protocol, s.Output, s.Point, s.Node} {
		if p != "" {
			parts = append(parts, p)
		}
	}
	return strings.Join(parts, " ")
}

// Summary says in one line what a check found: what was wanted, what came, or why
// nothing came.
func (c Check) Summary() string {
	switch {
	case c.Want != "" && c.Got != "":
		return "want " + c.Want + ", got " + c.Got
	case c.Got != "":
		return c.Got
	case c.Detail != "":
		return firstLine(c.Detail)
	case c.Want != "":
		return "want " + c.Want
	}
	return string(c.Verdict)
}

// Counts is the number of checks by verdict, the checks of a gate included.
func (v View) Counts() map[Verdict]int {
	n := map[Verdict]int{}
	for _, s := range v.Report.Stages {
		for _, c := range s.Checks {
			n[c.Verdict]++
		}
		if len(s.Checks) == 0 {
			n[s.Verdict]++
		}
	}
	if v.Gate != nil {
		for _, c := range v.Gate.Checks {
			n[c.Verdict]++
		}
	}
	return n
}

// reasons returns what stands in the way: the gate's reasons, or the checks of
// the report that are not good.
func (v View) reasons() []Reason {
	if v.Gate != nil {
		return v.Gate.Reasons
	}
	var out []Reason
	for _, s := range v.Report.Stages {
		bad := false
		for _, c := range s.Checks {
			if !c.Verdict.Good() && c.Verdict != NotAsked {
				bad = true
				out = append(out, Reason{Check: c.ID, Subject: c.Subject, Verdict: c.Verdict, Text: c.Summary(), Hint: c.Hint, Line: c.Line})
			}
		}
		if !bad && !s.Verdict.Good() && s.Verdict != NotAsked {
			out = append(out, Reason{Check: s.Name, Verdict: s.Verdict, Text: s.Reason})
		}
	}
	return out
}

// Title is the outcome in a few words.
func (v View) Title() string {
	name := v.Report.Model.Name
	if name == "" {
		name = "model"
	}
	switch v.verdict() {
	case Pass:
		if absent := v.absent(); len(absent) > 0 {
			return name + ": every check that ran held; missing: " + strings.Join(absent, ", ")
		}
		return name + ": every check held"
	case Skip, NotAsked:
		return name + ": nothing was asked"
	case Inconclusive:
		return name + ": inconclusive"
	case Missing:
		return name + ": not everything that was asked for ran"
	case Broken:
		return name + ": broken"
	}
	return name + ": does not hold"
}

// absent names the stages that were asked for and did not run, or not whole.
// The gate lets that pass where hardware is optional.
func (v View) absent() []string {
	var out []string
	for _, s := range v.Report.Stages {
		if s.Verdict == Missing || slices.ContainsFunc(s.Checks, func(c Check) bool { return c.Verdict == Missing }) {
			out = append(out, s.Name)
		}
	}
	return out
}

// worstRows returns the rows of a validation, worst first: verdict, then how
// much of the tolerance is used up, then name.
func worstRows(rows []Comparison) []*Comparison {
	type key struct {
		bad        int
		share, abs float64
		at         int
	}
	keys := make([]key, len(rows))
	for i := range rows {
		keys[i] = key{rank(rows[i].Verdict), rows[i].breachShare(), rows[i].metric("max_abs"), i}
	}
	slices.SortFunc(keys, func(a, b key) int {
		return cmp.Or(cmp.Compare(b.bad, a.bad), cmp.Compare(b.share, a.share), cmp.Compare(b.abs, a.abs), cmp.Compare(a.at, b.at))
	})
	out := make([]*Comparison, len(rows))
	for i, k := range keys {
		out[i] = &rows[k.at]
	}
	return out
}

func (c *Comparison) breachShare() float64 {
	if c.Elements == 0 {
		return 1
	}
	return float64(c.Breaches) / float64(c.Elements)
}

// metric returns a metric, or NaN where it was not measured.
func (c *Comparison) metric(name string) float64 {
	if m, ok := c.Metrics[name]; ok {
		return float64(m)
	}
	return math.NaN()
}

// outputs returns the distinct outputs of a validation in order of appearance.
func (v *Validation) outputs() []string {
	seen := make(map[string]bool, len(v.Rows))
	var out []string
	for i := range v.Rows {
		if o := v.Rows[i].Output; !seen[o] {
			seen[o] = true
			out = append(out, o)
		}
	}
	return out
}

// Verdict is the worst verdict of the rows; no row is Broken.
func (v *Validation) Verdict() Verdict {
	if len(v.Rows) == 0 {
		return Broken
	}
	worst := Pass
	for i := range v.Rows {
		worst = Worst(worst, v.Rows[i].Verdict)
	}
	return worst
}

// Label names a validation: its stage, its precision, and how a server was
// asked, e.g. "served fp16 over grpc".
func (v *Validation) Label() string {
	s := v.Stage
	if v.Precision != "" {
		s += " " + v.Precision
	}
	if i := strings.LastIndex(v.Candidate, " over "); i >= 0 {
		s += v.Candidate[i:]
	}
	if v.Preview {
		s += " (preview)"
	}
	return s
}

// Row names a measurement in words; two measurements with the same row may be
// compared if their machines may.
func (m Measurement) Row() string {
	parts := []string{m.Backend}
	if m.Precision != "" {
		parts = append(parts, m.Precision)
	}
	parts = append(parts, fmt.Sprintf("batch %d", m.Batch), fmt.Sprintf("concurrency %d", m.Concurrency))
	if m.Mode != "" {
		parts = append(parts, m.Mode)
	}
	return strings.Join(parts, " ")
}

// Latency returns the statistics of a request from end to end, or of what
// comes nearest to it.
func (m Measurement) Latency() (Stats, bool) {
	for _, phase := range []string{"end_to_end", "execute", "compute"} {
		if s, ok := m.Phases[phase]; ok {
			return s, true
		}
	}
	return Stats{}, false
}

// formatNumber prints three significant digits.
func formatNumber(f float64) string {
	switch {
	case math.IsNaN(f):
		return "NaN"
	case math.IsInf(f, 1):
		return "+Inf"
	case math.IsInf(f, -1):
		return "-Inf"
	case f == math.Trunc(f) && math.Abs(f) < 1e6:
		return strconv.FormatFloat(f, 'f', -1, 64)
	case math.Abs(f) >= 100 && math.Abs(f) < 1e6:
		return strconv.FormatFloat(f, 'f', 0, 64)
	}
	return strconv.FormatFloat(f, 'g', 3, 64)
}

func formatMetric(c *Comparison, name string) string {
	m, ok := c.Metrics[name]
	if !ok {
		return ""
	}
	if name == "cosine_min" || name == "top1" {
		return strconv.FormatFloat(float64(m), 'f', 6, 64)
	}
	return formatNumber(float64(m))
}

func formatOptional(n *Number) string {
	if n == nil {
		return ""
	}
	return formatNumber(float64(*n))
}

// formatTolerance prints a tolerance as people write it.
func formatTolerance(t Tolerance) string {
	var parts []string
	switch {
	case t.Atol == 0 && t.Rtol == 0:
		parts = append(parts, "exact")
	default:
		parts = append(parts, "atol "+formatNumber(float64(t.Atol))+", rtol "+formatNumber(float64(t.Rtol)))
	}
	if t.CosineMin != nil {
		parts = append(parts, "cos ≥ "+strconv.FormatFloat(float64(*t.CosineMin), 'g', 6, 64))
	}
	if t.TopK != nil {
		parts = append(parts, "top-1 ≥ "+formatNumber(float64(*t.TopK)))
	}
	return strings.Join(parts, ", ")
}

func formatShape(shape []int64) string {
	parts := make([]string, len(shape))
	for i, d := range shape {
		parts[i] = strconv.FormatInt(d, 10)
	}
	return "[" + strings.Join(parts, ",") + "]"
}

func formatSeconds(s float64) string {
	switch {
	case s == 0:
		return ""
	case s < 0.01:
		return "<0.01 s"
	case s < 10:
		return strconv.FormatFloat(s, 'f', 2, 64) + " s"
	case s < 120:
		return strconv.FormatFloat(s, 'f', 0, 64) + " s"
	}
	return (time.Duration(s) * time.Second).String()
}

// FormatBytes prints a size with a binary unit.
func FormatBytes(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	f, i := float64(n), 0
	for f >= 1024 && i < len(units)-1 {
		f /= 1024
		i++
	}
	if i == 0 {
		return strconv.FormatInt(n, 10) + " B"
	}
	return strconv.FormatFloat(f, 'f', 1, 64) + " " + units[i]
}

// formatChange prints a ratio with its interval as a change, e.g. "+3.1 % [+2.0, +4.4]".
func formatChange(d *Delta) string {
	if d.Ratio == nil {
		return ""
	}
	s := percent(*d.Ratio) + " %"
	if d.Low != nil && d.High != nil {
		s += " [" + percent(*d.Low) + ", " + percent(*d.High) + "]"
	}
	return s
}

func percent(ratio Number) string {
	p := (float64(ratio) - 1) * 100
	if math.IsNaN(p) || math.IsInf(p, 0) {
		return formatNumber(p)
	}
	s := strconv.FormatFloat(p, 'f', 1, 64)
	if s == "-0.0" {
		s = "0.0"
	}
	if p > 0 && s != "0.0" {
		s = "+" + s
	}
	return s
}

// Count prints a number of things, in the singular where there is one.
func Count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return strconv.Itoa(n) + " " + thing + "s"
}

func firstLine(s string) string {
	s = strings.TrimSpace(s)
	if i := strings.IndexByte(s, '\n'); i >= 0 {
		return s[:i]
	}
	return s
}

// clip shortens s to at most n bytes, at a character boundary.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	n = max(0, n-len("…"))
	for n > 0 && s[n]&0xC0 == 0x80 {
		n--
	}
	return s[:n] + "…"
}

func short(commit string) string {
	if len(commit) > 10 {
		return commit[:10]
	}
	return commit
}

func countsLine(n map[Verdict]int) string {
	total := 0
	var parts []string
	for _, v := range Verdicts {
		total += n[v]
		if n[v] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n[v], v))
		}
	}
	return fmt.Sprintf("%d checks: %s", total, strings.Join(parts, ", "))
}

// toolsLine lists tools by name.
func toolsLine(tools map[string]string) string {
	names := make([]string, 0, len(tools))
	for n := range tools {
		names = append(names, n)
	}
	slices.Sort(names)
	for i, n := range names {
		names[i] = n + " " + tools[n]
	}
	return strings.Join(names, ", ")
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
