package report

import (
	"fmt"
	"strings"
)

// manyRows is how many rows a table shows before it is folded.
const manyRows = 40

func (p *page) validations() {
	vals := p.Report.Validations
	if len(vals) == 0 {
		return
	}
	p.raw("<h2>Numerical validation</h2>\n<p>Each candidate got the same inputs as the original model, at the smallest, the usual and the largest sizes and at one in between. " +
		"An output element may differ by the tolerance and no more. In the pictures every mark is one output at one size; marks left of the red bar are within the absolute part of the tolerance.</p>\n")
	for i := range vals {
		p.validation(&vals[i])
	}
}

func (p *page) validation(val *Validation) {
	p.raw("<h3>" + escape(val.Label()) + " " + verdictSpan(string(val.Verdict())) + "</h3>\n<p class=\"soft\">" +
		escape(val.Candidate) + " against " + escape(val.Reference))
	if val.Preview {
		p.raw(". This is a preview: the precision is only approximated here")
	}
	p.raw("</p>\n")
	outputs := val.outputs()
	caption := Count(len(outputs), "output") + " at " + Count(len(val.Points), "size")
	if len(outputs) > plotRows {
		caption += fmt.Sprintf(", the %d worst are drawn", plotRows)
	}
	p.figure(errorPlot(val), caption)
	if k := val.Task; k != nil {
		p.raw("<p>On labelled data: " + escape(k.Metric) + fmt.Sprintf(" %s, the original has %s (%d samples, allowed loss %s).</p>\n",
			formatNumber(float64(k.Candidate)), formatNumber(float64(k.Reference)), k.Samples, formatNumber(float64(k.MaxDegradation))))
	}
	open := " open"
	if len(val.Rows) > manyRows {
		open = ""
	}
	p.raw("<details" + open + "><summary>" + Count(len(val.Rows), "row") + ", the worst first</summary>\n")
	p.table("Output", "Size", "Shape", "#Breaches", "#max abs", "#mean abs", "#RMSE", "#Cosine", "Tolerance", "Verdict")
	for _, row := range worstRows(val.Rows) {
		shape := row.DType + " " + formatShape(row.Shape)
		if row.GotShape != nil {
			shape += ", got " + formatShape(row.GotShape)
		}
		verdict := verdictSpan(string(row.Verdict))
		if row.Detail != "" {
			verdict += `<br><span class="soft">` + escape(row.Detail) + "</span>"
		}
		p.row(code(row.Output), escape(row.Point), escape(shape), fmt.Sprintf("#%d of %d", row.Breaches, row.Elements), "#"+formatMetric(row, "max_abs"),
			"#"+formatMetric(row, "mean_abs"), "#"+formatMetric(row, "rmse"), "#"+formatMetric(row, "cosine_min"), escape(formatTolerance(row.Tolerance)), verdict)
	}
	p.endTable()
	p.raw("</details>\n")
	for _, n := range val.Notes {
		p.raw(`<p class="soft">` + escape(n) + "</p>\n")
	}
}

func (p *page) deltas() {
	if p.Gate == nil {
		return
	}
	p.raw("<h2>Against the baseline</h2>\n<p>")
	b := p.Gate.Baseline
	switch {
	case b == nil || b.Source == "" || b.Source == "none":
		p.raw(withoutBaseline(p.Gate))
	default:
		p.raw("Compared with run " + code(b.RunID))
		if b.Commit != "" {
			p.raw(" at " + code(short(b.Commit)))
		}
		p.raw(" (" + escape(b.Source) + ").")
		if !b.Comparable {
			p.raw(" <b>Speeds are not compared</b>: " + escape(strings.Join(b.Differences, "; ")) + ".")
		}
	}
	p.raw("</p>\n")
	if len(p.Gate.Deltas) == 0 {
		return
	}
	p.figure(deltaPlot(p.Gate.Deltas), "A change counts only when its whole confidence interval is outside of the band.")
	p.table("Row", "Metric", "#Baseline", "#Now", "#Change", "")
	for i := range p.Gate.Deltas {
		d := &p.Gate.Deltas[i]
		last := verdictSpan(string(d.Change))
		if d.Detail != "" {
			last += `<br><span class="soft">` + escape(d.Detail) + "</span>"
		}
		p.row(code(d.Row), escape(d.Metric), "#"+formatQuantity(d.Base, d.Unit), "#"+formatQuantity(d.Head, d.Unit), "#"+formatChange(d), last)
	}
	p.endTable()
}

func (p *page) benchmark() {
	b := p.Report.Benchmark
	if b == nil || len(b.Rows)+len(b.Skipped) == 0 {
		return
	}
	p.raw("<h2>Benchmark</h2>\n<p>How long one request takes, measured many times after a warm-up, and how many samples a second come out. Numbers hold for this machine only.</p>\n")
	caption := "distribution of the raw samples"
	base := map[string]Measurement{}
	if p.Baseline != nil && p.Baseline.Benchmark != nil && p.Gate != nil && p.Gate.Baseline != nil && p.Gate.Baseline.Comparable {
		for _, m := range p.Baseline.Benchmark.Rows {
			base[m.Row()] = m
		}
		caption += "; grey: the baseline"
	}
	for _, group := range byDevice(b.Rows) {
		p.figure(latencyPlot(group, base), escape(group[0].Backend+" on "+group[0].Device)+": "+caption)
	}
	p.table("Row", "Device", "#p50 ms", "#p90 ms", "#p99 ms", "#Samples/s", "#Requests", "#Load ms", "#Peak memory", "Notes")
	for _, m := range b.Rows {
		s, _ := m.Latency()
		p.row(code(m.Row()), escape(m.Device), "#"+formatNumber(float64(s.P50)), "#"+formatNumber(float64(s.P90)), "#"+formatNumber(float64(s.P99)), "#"+formatNumber(float64(m.Throughput)),
			fmt.Sprintf("#%d", m.Requests), "#"+formatOptional(m.LoadMs), "#"+FormatBytes(m.PeakRSS), escape(strings.Join(m.Notes, "; ")))
	}
	for _, s := range b.Skipped {
		p.row(code(s.Name), "", "", "", "", "", "", "", "", verdictSpan(string(s.Verdict))+" "+escape(s.Reason))
	}
	p.endTable()
	p.phases(b.Rows)
	for _, n := range b.Notes {
		p.raw(`<p class="soft">` + escape(n) + "</p>\n")
	}
}

// byDevice groups measurements that share an axis: a processor and a GPU are
// orders of magnitude apart.
func byDevice(rows []Measurement) [][]Measurement {
	var groups [][]Measurement
	index := map[string]int{}
	for _, m := range rows {
		key := m.Backend + "\x00" + m.Device
		i, ok := index[key]
		if !ok {
			i = len(groups)
			index[key] = i
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], m)
	}
	return groups
}

func (p *page) phases(rows []Measurement) {
	if len(rows) == 0 {
		return
	}
	p.raw("<details><summary>Phases of a request</summary>\n")
	p.table("Row", "Phase", "#min", "#mean", "#stdev", "#p50", "#p90", "#p95", "#p99", "#max")
	for _, m := range rows {
		for _, name := range sortedKeys(m.Phases) {
			s := m.Phases[name]
			cells := []string{code(m.Row()), escape(name)}
			for _, n := range []Number{s.Min, s.Mean, s.Stdev, s.P50, s.P90, s.P95, s.P99, s.Max} {
				cells = append(cells, "#"+formatNumber(float64(n)))
			}
			p.row(cells...)
		}
	}
	p.endTable()
	p.raw("</details>\n")
}

func (p *page) model() {
	m := p.Report.Model
	if len(m.Inputs)+len(m.Output) == 0 {
		return
	}
	p.raw("<h2>Model</h2>\n")
	p.table("", "Name", "Type", "Dimensions")
	for _, t := range m.Inputs {
		p.row("input", code(t.Name), escape(t.DType), code("["+strings.Join(t.Dims, ", ")+"]"))
	}
	for _, t := range m.Output {
		p.row("output", code(t.Name), escape(t.DType), code("["+strings.Join(t.Dims, ", ")+"]"))
	}
	p.endTable()
	in := p.Report.Inspection
	if in == nil {
		return
	}
	p.raw(fmt.Sprintf("<p>%d parameters, %s.</p>\n", in.Parameters, FormatBytes(in.ParameterBytes)))
	if len(in.Findings) > 0 {
		p.table("Finding", "", "Nodes")
		for _, f := range in.Findings {
			p.row(escape(f.Kind), escape(f.Text), escape(clip(strings.Join(f.Nodes, ", "), 400)))
		}
		p.endTable()
	}
}

func (p *page) optimize() {
	o := p.Report.Optimize
	if o == nil {
		return
	}
	p.raw(fmt.Sprintf("<h2>Graph clean-up</h2>\n<p>%d nodes became %d, %s became %s.</p>\n", o.NodesBefore, o.NodesAfter, FormatBytes(o.BytesBefore), FormatBytes(o.BytesAfter)))
	p.table("Pass", "#Changes", "#Nodes fewer", "")
	for _, x := range o.Passes {
		p.row(escape(x.Name), fmt.Sprintf("#%d", x.Changed), fmt.Sprintf("#%d", x.Removed), escape(x.Dropped))
	}
	p.endTable()
	for _, n := range o.Notes {
		p.raw(`<p class="soft">` + escape(n) + "</p>\n")
	}
}

func (p *page) artifacts() {
	if len(p.Report.Artifacts) == 0 {
		return
	}
	p.raw("<h2>Artifacts</h2>\n")
	p.table("Id", "Label", "Made by", "#Size", "#Files", "Digest")
	for _, a := range p.Report.Artifacts {
		p.row(code(a.ID), escape(a.Label), escape(a.Stage), "#"+FormatBytes(a.Size), fmt.Sprintf("#%d", a.Files), code(a.Digest))
	}
	p.endTable()
}

func (p *page) environment() {
	e := p.Report.Environment
	p.raw("<h2>Where it ran</h2>\n<dl>")
	def := func(k, v string) {
		if v != "" {
			p.raw("<dt>" + escape(k) + "</dt><dd>" + escape(v) + "</dd>")
		}
	}
	def("system", e.OS)
	if e.CPU != "" {
		def("processor", fmt.Sprintf("%s, %d cores", e.CPU, e.Cores))
	}
	for _, g := range e.GPUs {
		def("GPU", fmt.Sprintf("%s, compute capability %s, driver %s, CUDA %s, %s", g.Name, g.ComputeCapability, g.Driver, g.CUDA, FormatBytes(int64(g.MemoryBytes))))
	}
	if len(e.GPUs) == 0 {
		def("GPU", "none")
	}
	for _, k := range sortedKeys(e.Tools) {
		def(k, e.Tools[k])
	}
	if g := e.Git; g != nil {
		dirty := ""
		if g.Dirty {
			dirty = ", with changes that are not committed"
		}
		def("commit", g.Commit+dirty)
	}
	def("configuration", p.Report.Run.Config)
	def("hardware steps", p.Report.Settings.Hardware)
	p.raw("</dl>\n")
}

// glossary explains the words of the page.
func (p *page) glossary() {
	p.raw("<h2>How to read this</h2>\n<dl>")
	for _, e := range [][2]string{
		{"pass", "measured, and holds"},
		{"fail", "measured, and does not hold"},
		{"missing", "was asked for and could not run here, for want of a GPU for example; never counted as good"},
		{"broken", "crashed, ran out of time, or left no evidence"},
		{"inconclusive", "measured, but too noisy to say"},
		{"skip", "turned off in the configuration"},
		{"not-asked", "left out of this run by --until, --from or --only"},
		{"max abs", "largest absolute difference between an element and the original's"},
		{"cosine", "similarity of direction, the smallest over all samples; 1 is equal"},
		{"atol, rtol", "an element may differ by atol, and on top of it by the fraction rtol of the original's value"},
		{"p50, p99", "half, and 99 of 100, of all requests took at most this long"},
		{"confidence interval", "the range in which the true ratio of medians lies; a change counts only if all of it is beyond the margin"},
	} {
		p.raw("<dt>" + escape(e[0]) + "</dt><dd>" + escape(e[1]) + "</dd>")
	}
	p.raw("</dl>\n")
}

func (p *page) foot() {
	t := p.Report.Tool
	p.raw("<footer>Written by " + escape(strings.TrimSpace(t.Name+" "+t.Version)))
	if t.Commit != "" {
		p.raw(" (" + code(short(t.Commit)) + ")")
	}
	p.raw(". The same numbers are in report.json.</footer>\n")
}
