package report

import (
	"fmt"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// TextOptions say how a terminal is written to.
type TextOptions struct {
	Color bool
	Width int // columns; 0 is no limit
}

// Text renders a report as tables for a terminal.
func Text(v View, o TextOptions) string {
	var b strings.Builder
	paint := painter(o.Color)
	fmt.Fprintf(&b, "%s\n", paint(v.verdict(), clean(oneLine(v.Title()))))
	fmt.Fprintf(&b, "run %s, %s", oneLine(v.Report.Run.ID), countsLine(v.Counts()))
	if code := v.exitCode(); code != 0 {
		fmt.Fprintf(&b, ", exit %d", code)
	}
	b.WriteString("\n\n")
	b.WriteString(v.textStages(o, paint))
	b.WriteString(v.textValidations(o, paint))
	b.WriteString(v.textBenchmark(o, paint))
	b.WriteString(v.textDeltas(o))
	b.WriteString(v.textGateNotes())
	b.WriteString(v.textReasons(paint))
	return b.String()
}

func painter(color bool) func(Verdict, string) string {
	if !color {
		return func(_ Verdict, s string) string { return oneLine(s) }
	}
	return func(v Verdict, s string) string {
		c := text.Colors{text.FgRed}
		switch v {
		case Pass:
			c = text.Colors{text.FgGreen}
		case Skip, NotAsked:
			c = text.Colors{text.Faint}
		case Inconclusive, Missing:
			c = text.Colors{text.FgYellow}
		}
		return c.EscapeSeq() + oneLine(s) + text.Reset.EscapeSeq()
	}
}

func newTable(o TextOptions, title string, header table.Row) table.Writer {
	t := table.NewWriter()
	style := table.StyleLight
	style.Title.Align = text.AlignLeft
	style.Format.Header = text.FormatDefault
	t.SetStyle(style)
	t.SetTitle(title)
	t.AppendHeader(header)
	if o.Width > 0 {
		t.Style().Size.WidthMax = o.Width
	}
	return t
}

func (v View) textStages(o TextOptions, paint func(Verdict, string) string) string {
	if len(v.Report.Stages) == 0 {
		return ""
	}
	t := newTable(o, "Stages", table.Row{"stage", "verdict", "checks", "time", ""})
	for _, s := range v.Report.Stages {
		note := clip(oneLine(firstLine(s.Reason)), 80)
		if s.Cached {
			note = strings.TrimSpace("from the store " + note)
		}
		t.AppendRow(table.Row{oneLine(s.Name), paint(s.Verdict, string(s.Verdict)), len(s.Checks), formatSeconds(s.Seconds), note})
	}
	return t.Render() + "\n\n"
}

func (v View) textValidations(o TextOptions, paint func(Verdict, string) string) string {
	if len(v.Report.Validations) == 0 {
		return ""
	}
	t := newTable(o, "Numerical validation (the worst row of each output)", table.Row{"stage", "output", "point", "elements", "breaches", "max abs", "cosine", "tolerance", "verdict"})
	for i := range v.Report.Validations {
		val := &v.Report.Validations[i]
		seen := map[string]bool{}
		for _, row := range worstRows(val.Rows) {
			if seen[row.Output] {
				continue
			}
			seen[row.Output] = true
			t.AppendRow(table.Row{
				oneLine(val.Label()), clip(oneLine(row.Output), 40), oneLine(row.Point), row.Elements, row.Breaches,
				formatMetric(row, "max_abs"), formatMetric(row, "cosine_min"), formatTolerance(row.Tolerance), paint(row.Verdict, string(row.Verdict)),
			})
		}
	}
	return t.Render() + "\n\n"
}

func (v View) textBenchmark(o TextOptions, paint func(Verdict, string) string) string {
	bench := v.Report.Benchmark
	if bench == nil || len(bench.Rows)+len(bench.Skipped) == 0 {
		return ""
	}
	t := newTable(o, "Benchmark", table.Row{"row", "device", "p50 ms", "p99 ms", "samples/s", "requests"})
	for _, m := range bench.Rows {
		p50, p99 := "", ""
		if s, ok := m.Latency(); ok {
			p50, p99 = formatNumber(float64(s.P50)), formatNumber(float64(s.P99))
		}
		t.AppendRow(table.Row{oneLine(m.Row()), oneLine(m.Device), p50, p99, formatNumber(float64(m.Throughput)), m.Requests})
	}
	for _, s := range bench.Skipped {
		t.AppendRow(table.Row{oneLine(s.Name), paint(s.Verdict, string(s.Verdict)), clip(oneLine(s.Reason), 60), "", "", ""})
	}
	var notes textNotes
	for _, m := range bench.Rows {
		for _, n := range m.Notes {
			notes.add(m.Row(), n)
		}
	}
	return t.Render() + "\n" + notes.String() + "\n"
}

// textNotes are what was noted of the rows of a table, every note once: a terminal
// has no room for them in the table.
type textNotes struct {
	order []string
	rows  map[string][]string
}

func (t *textNotes) add(row, note string) {
	if t.rows == nil {
		t.rows = map[string][]string{}
	}
	note = clip(oneLine(note), 300)
	if len(t.rows[note]) == 0 {
		t.order = append(t.order, note)
	}
	t.rows[note] = append(t.rows[note], oneLine(row))
}

func (t *textNotes) String() string {
	var b strings.Builder
	for _, n := range t.order {
		whose := t.rows[n][0]
		if len(t.rows[n]) > 1 {
			whose = fmt.Sprintf("%d rows", len(t.rows[n]))
		}
		fmt.Fprintf(&b, "note: %s (%s)\n", n, whose)
	}
	return b.String()
}

func (v View) textDeltas(o TextOptions) string {
	if v.Gate == nil || len(v.Gate.Deltas) == 0 {
		return ""
	}
	var notes textNotes
	t := newTable(o, "Against the baseline", table.Row{"row", "metric", "baseline", "now", "change", ""})
	for i := range v.Gate.Deltas {
		d := &v.Gate.Deltas[i]
		t.AppendRow(table.Row{oneLine(d.Row), oneLine(d.Metric), formatQuantity(d.Base, oneLine(d.Unit)), formatQuantity(d.Head, oneLine(d.Unit)), oneLine(formatChange(d)), oneLine(string(d.Change))})
		if d.Detail != "" {
			notes.add(d.Row, d.Detail)
		}
	}
	return t.Render() + "\n" + notes.String() + "\n"
}

// textGateNotes is what the gate has to say beside its checks.
func (v View) textGateNotes() string {
	if v.Gate == nil || len(v.Gate.Notes) == 0 {
		return ""
	}
	var b strings.Builder
	for _, n := range v.Gate.Notes {
		fmt.Fprintf(&b, "note: %s\n", clip(oneLine(n), 300))
	}
	return b.String() + "\n"
}

func (v View) textReasons(paint func(Verdict, string) string) string {
	reasons := v.reasons()
	if len(reasons) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString("What stands in the way:\n")
	for _, r := range reasons {
		fmt.Fprintf(&b, "  %s %s", paint(r.Verdict, string(r.Verdict)), oneLine(r.Check))
		if s := r.Subject.String(); s != "" {
			fmt.Fprintf(&b, " (%s)", oneLine(s))
		}
		if r.Text != "" {
			fmt.Fprintf(&b, ": %s", oneLine(firstLine(r.Text)))
		}
		if r.ExitCode != 0 {
			fmt.Fprintf(&b, " [exit %d]", r.ExitCode)
		}
		b.WriteString("\n")
		if r.Hint != "" {
			fmt.Fprintf(&b, "      hint: %s\n", oneLine(r.Hint))
		}
	}
	return b.String()
}
