package report

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// Sizes of the plots, in units of the view box.
const (
	plotWidth  = 1000.0
	plotLeft   = 250.0 // room for names
	plotRight  = 940.0
	plotRows   = 24 // most rows in one picture; the rest is in the table
	histBins   = 60
	zeroColumn = 64.0 // where errors of exactly zero are drawn, left of the axis
	zeroPlace  = plotLeft + 16
)

// errorPlot shows the largest absolute error of each output at each point of
// one validation, on a logarithmic axis, with the absolute tolerance. It
// returns "" when there is nothing to draw.
func errorPlot(val *Validation) string {
	outputs := worstOutputs(val)
	if len(outputs) == 0 {
		return ""
	}
	var values []float64
	points := pointIndex(val)
	byOutput := map[string][]*Comparison{}
	for i := range val.Rows {
		row := &val.Rows[i]
		byOutput[row.Output] = append(byOutput[row.Output], row)
		values = append(values, row.metric("max_abs"), float64(row.Tolerance.Atol))
	}
	left := plotLeft + zeroColumn
	s, ok := logScale(values, left, plotRight)
	if !ok {
		s = scale{low: -8, high: 0, left: left, right: plotRight, log: true}
	}
	const top, step = 30.0, 26.0
	height := top + step*float64(len(outputs)) + 46
	c := newCanvas(plotWidth, height, "largest absolute error by output and point, "+val.Label())
	bottom := top + step*float64(len(outputs))
	drawLegend(c, points)
	for _, t := range s.ticks(10) {
		c.line("grid", s.at(t), top, s.at(t), bottom)
		c.text("s", "middle", s.at(t), bottom+16, formatTick(t))
	}
	c.line("grid", zeroPlace, top, zeroPlace, bottom)
	c.text("s", "middle", zeroPlace, bottom+16, "0")
	c.text("s", "middle", (left+plotRight)/2, bottom+36, "largest absolute error (red bar: absolute tolerance)")
	for i, o := range outputs {
		y := top + step*(float64(i)+0.5)
		c.text("", "end", plotLeft-12, y+4, clipMiddle(o, 34))
		c.line("grid", plotLeft, y, plotRight, y)
		for _, row := range byOutput[o] {
			drawError(c, s, row, points[row.Point], y)
		}
	}
	return c.String()
}

func drawError(c *canvas, s scale, row *Comparison, n int, y float64) {
	if a := float64(row.Tolerance.Atol); a > 0 {
		c.line("tol", s.at(a), y-9, s.at(a), y+9)
	}
	v := row.metric("max_abs")
	x := s.right + 24
	switch {
	case v == 0:
		x = zeroPlace
	case v > 0 && !math.IsInf(v, 0):
		x = s.at(v)
	}
	class := fmt.Sprintf("c%d", n%6)
	if !row.Verdict.Good() {
		class += " bad"
	}
	c.marker(n, class, x, y, fmt.Sprintf("%s at %s: %s (%s)", row.Output, row.Point, formatNumber(v), row.Verdict))
}

// drawLegend names the points at the top.
func drawLegend(c *canvas, points map[string]int) {
	names := make([]string, len(points))
	for p, i := range points {
		names[i] = p
	}
	x := plotLeft
	for i, p := range names {
		if i == 6 {
			c.text("s", "start", x, 16, fmt.Sprintf("and %d more", len(names)-i))
			return
		}
		p = clipMiddle(p, 16)
		c.marker(i, fmt.Sprintf("c%d", i%6), x, 12, p)
		c.text("", "start", x+10, 16, p)
		x += 34 + 7.2*float64(len(p))
	}
}

func pointIndex(val *Validation) map[string]int {
	points := map[string]int{}
	for i := range val.Rows {
		if _, ok := points[val.Rows[i].Point]; !ok {
			points[val.Rows[i].Point] = len(points)
		}
	}
	return points
}

// worstOutputs returns the outputs that are drawn, the worst ones first.
func worstOutputs(val *Validation) []string {
	seen := map[string]bool{}
	var out []string
	for _, row := range worstRows(val.Rows) {
		if !seen[row.Output] && len(out) < plotRows {
			seen[row.Output] = true
			out = append(out, row.Output)
		}
	}
	return out
}

// latencyPlot shows the distribution of the raw samples of each measurement,
// with the median and the 99th percentile, and the baseline's below in grey.
func latencyPlot(rows []Measurement, base map[string]Measurement) string {
	drawn := make([]Measurement, 0, len(rows))
	var all []float64
	for _, m := range rows {
		if len(m.Samples) > 1 && len(drawn) < plotRows {
			drawn = append(drawn, m)
			all = append(all, finite(m.Samples)...)
			all = append(all, finite(base[m.Row()].Samples)...)
		}
	}
	s, ok := latencyScale(all)
	if !ok {
		return ""
	}
	const top, step = 12.0, 58.0
	bottom := top + step*float64(len(drawn))
	c := newCanvas(plotWidth, bottom+44, "distribution of latency")
	for _, t := range s.ticks(8) {
		c.line("grid", s.at(t), top, s.at(t), bottom)
		c.text("s", "middle", s.at(t), bottom+16, formatTick(t))
	}
	c.text("s", "middle", (plotLeft+plotRight)/2, bottom+36, "latency of one request, ms (dark bar: median, orange bar: 99th percentile)")
	for i, m := range drawn {
		y := top + step*float64(i)
		lines := wrapName(m.Row(), 36)
		for j, l := range lines {
			c.text("", "end", plotLeft-12, y+20+15*float64(j), l)
		}
		drawDistribution(c, s, finite(m.Samples), "dist", y+6, 26)
		if b, ok := base[m.Row()]; ok && len(b.Samples) > 1 {
			drawDistribution(c, s, finite(b.Samples), "base", y+34, 18)
		}
		c.line("axis", plotLeft, y+step-4, plotRight, y+step-4)
	}
	return c.String()
}

func latencyScale(all []float64) (scale, bool) {
	if len(all) == 0 {
		return scale{}, false
	}
	slices.Sort(all)
	low, high := all[0], all[len(all)-1]
	if low > 0 && high/low > 20 {
		return logScale(all, plotLeft, plotRight)
	}
	pad := (high - low) * 0.04
	if pad == 0 {
		pad = math.Max(high*0.05, 1e-6)
	}
	return scale{low: math.Max(0, low-pad), high: high + pad, left: plotLeft, right: plotRight}, true
}

// drawDistribution draws a histogram over the scale's pixels, so that it is
// right on a logarithmic axis too.
func drawDistribution(c *canvas, s scale, samples []float64, class string, y, h float64) {
	if len(samples) == 0 {
		return
	}
	slices.Sort(samples)
	var bins [histBins]int
	most := 0
	w := (plotRight - plotLeft) / histBins
	for _, v := range samples {
		i := min(histBins-1, max(0, int((s.at(v)-plotLeft)/w)))
		bins[i]++
		most = max(most, bins[i])
	}
	var d strings.Builder
	for i, n := range bins {
		if n == 0 {
			continue
		}
		bar := math.Max(1.5, h*float64(n)/float64(most))
		d.WriteString("M" + px(plotLeft+w*float64(i)) + " " + px(y+h) + "v" + px(-bar) + "h" + px(w-1) + "v" + px(bar) + "z")
	}
	c.path(class, d.String())
	p50, p99 := s.at(quantile(samples, 0.5)), s.at(quantile(samples, 0.99))
	c.line("mark", p50, y, p50, y+h+2)
	c.line("mark2", p99, y, p99, y+h+2)
}

// deltaPlot shows the change of each row against the baseline with its
// confidence interval; the band is the margin inside which rows are the same.
func deltaPlot(deltas []Delta) string {
	var rows []*Delta
	var all []float64
	margin := 0.0
	for i := range deltas {
		d := &deltas[i]
		if d.Ratio == nil || d.Low == nil || d.High == nil || len(rows) == plotRows {
			continue
		}
		low, high := (float64(*d.Low)-1)*100, (float64(*d.High)-1)*100
		if math.IsNaN(low+high) || math.IsInf(low, 0) || math.IsInf(high, 0) {
			continue
		}
		rows = append(rows, d)
		margin = math.Max(margin, float64(d.Margin)*100)
		all = append(all, low, high)
	}
	if len(rows) == 0 {
		return ""
	}
	all = append(all, -margin*1.5, margin*1.5, -1, 1)
	low, high := slices.Min(all), slices.Max(all)
	pad := (high - low) * 0.06
	s := scale{low: low - pad, high: high + pad, left: plotLeft + 60, right: plotRight}
	const top, step = 10.0, 38.0
	bottom := top + step*float64(len(rows))
	c := newCanvas(plotWidth, bottom+44, "change against the baseline")
	c.rect("band", s.at(-margin), top, s.at(margin)-s.at(-margin), bottom-top)
	for _, t := range s.ticks(10) {
		c.line("grid", s.at(t), top, s.at(t), bottom)
		c.text("s", "middle", s.at(t), bottom+16, formatTick(t)+" %")
	}
	c.line("axis", s.at(0), top, s.at(0), bottom)
	c.text("s", "middle", (s.left+s.right)/2, bottom+36, "change against the baseline (bar: confidence interval, band: margin)")
	for i, d := range rows {
		y := top + step*(float64(i)+0.5)
		for j, l := range wrapName(d.Row+" · "+d.Metric, 44) {
			c.text("", "end", s.left-12, y-3+14*float64(j), l)
		}
		x1, x2 := s.at((float64(*d.Low)-1)*100), s.at((float64(*d.High)-1)*100)
		c.line("ci "+string(d.Change), x1, y, math.Max(x2, x1+2), y)
		c.marker(0, string(d.Change), s.at((float64(*d.Ratio)-1)*100), y, d.Row+": "+formatChange(d)+", "+string(d.Change))
	}
	return c.String()
}

// quantile is the q-quantile of sorted samples, linear between order statistics.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return math.NaN()
	}
	p := q * float64(len(sorted)-1)
	i := int(p)
	if i+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	return sorted[i] + (p-float64(i))*(sorted[i+1]-sorted[i])
}

func finite(ns []Number) []float64 {
	out := make([]float64, 0, len(ns))
	for _, n := range ns {
		if f := float64(n); !math.IsNaN(f) && !math.IsInf(f, 0) {
			out = append(out, f)
		}
	}
	return out
}

// clipMiddle shortens a name in its middle: both ends of a tensor's name tell it apart.
func clipMiddle(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	return string(r[:n/2]) + "…" + string(r[len(r)-(n-n/2-1):])
}

// wrapName breaks a row's name into at most two lines of about n characters.
func wrapName(s string, n int) []string {
	if len([]rune(s)) <= n {
		return []string{s}
	}
	words := strings.Fields(s)
	first := ""
	for i, w := range words {
		if first != "" && len(first)+1+len(w) > n {
			return []string{first, clipMiddle(strings.Join(words[i:], " "), n)}
		}
		first = strings.TrimSpace(first + " " + w)
	}
	return []string{clipMiddle(first, n)}
}
