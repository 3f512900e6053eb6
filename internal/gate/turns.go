package gate

import (
	"fmt"
	"slices"
	"strings"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/report"
)

// blockMetrics are what blocks may be medians of.
var blockMetrics = []string{report.BlockCompute, report.BlockLatency}

// inTurns judges a row by the blocks that ran in alternation with the baseline's;
// false where it has none of this baseline. A change that leaves an engine as it
// is, byte for byte, cannot have made it slower.
func (j *judge) inTurns(head report.Measurement) (report.Delta, bool) {
	il := head.Interleaved
	if il == nil {
		return report.Delta{}, false
	}
	if why := damaged(il); why != "" {
		j.own(report.Check{
			ID: "gate/latency", Subject: report.Subject{Node: head.Row()}, Verdict: report.Inconclusive, Want: "blocks that ran in turns", Got: why,
			Hint: "the report's interleaved is not as trtship writes it: measure again with trtship run --against",
		})
		return report.Delta{}, false
	}
	if why := j.foreign(il); why != "" {
		j.note("%s: %s; it is compared with what the baseline's run measured.", head.Row(), why)
		return report.Delta{}, false
	}
	d := report.Delta{Change: report.Same, Head: p50(head), Margin: report.Number(j.margin(head)), Detail: "it is " + il.Rival() + ", byte for byte"}
	if il.Identical() {
		d.Ratio = number(1)
	} else {
		d = ComparePairs(floats(il.Base), floats(il.Head), j.margin(head), j.o.Confidence)
		d.Detail = strings.TrimPrefix(d.Detail+"; measured in turns with "+il.Rival(), "; ")
	}
	d.Metric = il.Metric
	return d, true
}

// damaged says what no measurement in turns can have been.
func damaged(il *report.Interleaved) string {
	for _, d := range []string{il.BaseDigest, il.HeadDigest} {
		if _, err := artifact.ParseDigest(d); err != nil {
			return err.Error()
		}
	}
	switch bad := invalid(floats(il.Base)) + invalid(floats(il.Head)); {
	case !slices.Contains(blockMetrics, il.Metric):
		return fmt.Sprintf("metric %q, want %s", il.Metric, strings.Join(blockMetrics, " or "))
	case il.Identical() && len(il.Base)+len(il.Head) > 0:
		return "blocks of one artifact set against itself"
	case !il.Identical() && (len(il.Base) == 0 || len(il.Base) != len(il.Head)):
		return fmt.Sprintf("%d blocks of the baseline's and %d of ours", len(il.Base), len(il.Head))
	case bad > 0:
		return fmt.Sprintf("%d blocks are not positive numbers of milliseconds", bad)
	}
	return ""
}

// foreign says why blocks are not of this report's artifact and of this
// baseline's. Without a baseline they are of the one that they name.
func (j *judge) foreign(il *report.Interleaved) string {
	i := slices.IndexFunc(j.head.Artifacts, func(a report.ArtifactSummary) bool { return a.Digest == il.HeadDigest })
	if i < 0 {
		return fmt.Sprintf("what ran in turns is %s, which is none of this run's artifacts", il.HeadDigest)
	}
	if j.base == nil {
		return "" // the delta says which run it was
	}
	mine := j.head.Artifacts[i]
	if !slices.ContainsFunc(j.base.Artifacts, func(a report.ArtifactSummary) bool {
		return a.Digest == il.BaseDigest && a.Kind == mine.Kind && a.Label == mine.Label
	}) {
		return "it ran in turns with " + il.Rival() + ", which is not this baseline's"
	}
	return ""
}

// unchanged reports whether a row's engine or graph is the baseline's own.
func (j *judge) unchanged(m *report.Measurement) bool {
	il := m.Interleaved
	return il != nil && damaged(il) == "" && j.foreign(il) == "" && il.Identical()
}
