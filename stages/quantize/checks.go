package quantize

import (
	"fmt"
	"slices"
	"strings"

	"github.com/trtship/trtship/internal/precision"
	"github.com/trtship/trtship/report"
)

// checks are those of a graph that was written.
func (w *work) checks(g *precision.Graph, seconds float64) []report.Check {
	var out []report.Check
	if g.Precision != "int8" || w.fallback() {
		out = append(out, w.rangeCheck(g, seconds))
	}
	if g.Precision == "int8" {
		out = append(out, w.coverageCheck(g, seconds))
	}
	return out
}

// rangeCheck names what a 16-bit type cannot hold.
func (w *work) rangeCheck(g *precision.Graph, seconds float64) report.Check {
	c := report.Check{
		ID: checkRange, Subject: report.Subject{Precision: g.Precision}, Verdict: report.Pass, Seconds: seconds, Preview: true,
		Want: "nothing beyond 65504, no constant that vanishes below 6e-8", Line: w.cfg.Lines["quantize.keep_fp32"],
	}
	if g.Precision == "bf16" {
		c.Want = "nothing beyond 3.39e38"
	}
	var serious, harmless, nodes []string
	for _, r := range g.Ranges {
		if !r.Serious() {
			harmless = append(harmless, r.String())
			continue
		}
		serious = append(serious, r.String())
		for _, n := range r.Nodes() {
			if !slices.Contains(nodes, n) {
				nodes = append(nodes, n)
			}
		}
	}
	c.Got = fmt.Sprintf("%d out of range, %d harmless", len(serious), len(harmless))
	c.Metrics = map[string]report.Number{"out_of_range": report.Number(len(serious)), "kept_float32": report.Number(len(g.Kept)), "nodes_16_bit": report.Number(g.Low)}
	c.Detail = strings.Join(append(slices.Clone(serious), harmless...), "\n")
	if len(serious) > 0 {
		c.Verdict = report.Fail
		c.Subject.Node = nodes[0]
		c.Hint = fmt.Sprintf("quantize: {keep_fp32: [%s]}", quoted(append(slices.Clone(w.cfg.Quantize.KeepFP32), nodes...)))
	}
	return c
}

// quoted lists names as YAML.
func quoted(names []string) string {
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = fmt.Sprintf("%q", n)
	}
	return strings.Join(out, ", ")
}

// coverageCheck says how much of the graph computes in int8.
func (w *work) coverageCheck(g *precision.Graph, seconds float64) report.Check {
	c := report.Check{
		ID: checkCoverage, Subject: report.Subject{Precision: g.Precision}, Verdict: report.Pass, Seconds: seconds, Preview: true,
		Want: "every node that can", Got: fmt.Sprintf("%d nodes in int8, %d not", len(g.Quantized), len(g.Skipped)),
		Metrics: map[string]report.Number{"quantized": report.Number(len(g.Quantized)), "skipped": report.Number(len(g.Skipped))},
	}
	var lines []string
	for _, s := range g.Skipped {
		lines = append(lines, s.Node+": "+s.Reason)
		if s.Unwanted {
			c.Verdict = report.Fail
			c.Hint = "calibrate with data that reach these tensors, or list the nodes in quantize.int8_exclude"
		}
	}
	c.Detail = strings.Join(lines, "\n")
	return c
}
