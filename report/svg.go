package report

import (
	"fmt"
	"html"
	"math"
	"strconv"
	"strings"
)

// canvas builds one inline SVG picture. Colours are classes of style.css, so a
// picture follows the page's light or dark scheme.
type canvas struct {
	b      strings.Builder
	width  float64
	height float64
	title  string
}

func newCanvas(width, height float64, title string) *canvas {
	return &canvas{width: width, height: height, title: title}
}

func (c *canvas) String() string {
	return fmt.Sprintf(`<svg viewBox="0 0 %s %s" role="img" aria-label="%s">%s</svg>`, px(c.width), px(c.height), attr(c.title), c.b.String())
}

func (c *canvas) line(class string, x1, y1, x2, y2 float64) {
	c.b.WriteString(`<line class="` + class + `" x1="` + px(x1) + `" y1="` + px(y1) + `" x2="` + px(x2) + `" y2="` + px(y2) + `"/>`)
}

func (c *canvas) rect(class string, x, y, w, h float64) {
	c.b.WriteString(`<rect class="` + class + `" x="` + px(x) + `" y="` + px(y) + `" width="` + px(w) + `" height="` + px(h) + `"/>`)
}

// text writes s at x, y; anchor is start, middle or end.
func (c *canvas) text(class, anchor string, x, y float64, s string) {
	c.b.WriteString(`<text class="` + class + `" text-anchor="` + anchor + `" x="` + px(x) + `" y="` + px(y) + `">` + attr(s) + `</text>`)
}

func (c *canvas) path(class, d string) {
	c.b.WriteString(`<path class="` + class + `" d="` + d + `"/>`)
}

// marker draws the n-th kind of point, with a tooltip.
func (c *canvas) marker(n int, class string, x, y float64, tip string) {
	const r = 5
	shape := ""
	switch n % 6 {
	case 0:
		shape = fmt.Sprintf(`<circle class="%s" cx="%s" cy="%s" r="%d">`, class, px(x), px(y), r)
	case 1:
		shape = fmt.Sprintf(`<rect class="%s" x="%s" y="%s" width="9" height="9">`, class, px(x-4.5), px(y-4.5))
	case 2:
		shape = fmt.Sprintf(`<path class="%s" d="M%s %sl6 10h-12z">`, class, px(x), px(y-6))
	case 3:
		shape = fmt.Sprintf(`<path class="%s" d="M%s %sl6 6l-6 6l-6-6z">`, class, px(x), px(y-6))
	case 4:
		shape = fmt.Sprintf(`<path class="%s" d="M%s %sl6-10h-12z">`, class, px(x), px(y+6))
	default:
		shape = fmt.Sprintf(`<path class="%s" d="M%s %sh4v4h4v4h-4v4h-4v-4h-4v-4h4z">`, class, px(x-2), px(y-6))
	}
	name := shape[1:strings.IndexByte(shape, ' ')]
	c.b.WriteString(shape + "<title>" + attr(tip) + "</title></" + name + ">")
}

func px(f float64) string { return strconv.FormatFloat(math.Round(f*10)/10, 'f', -1, 64) }

func attr(s string) string { return html.EscapeString(oneLine(s)) }

// scale maps values to places on an axis.
type scale struct {
	low, high   float64 // in values, or in powers of ten if log
	left, right float64
	log         bool
}

func (s scale) at(v float64) float64 {
	if s.log {
		v = math.Log10(v)
	}
	if s.high == s.low {
		return (s.left + s.right) / 2
	}
	t := (v - s.low) / (s.high - s.low)
	return s.left + math.Max(0, math.Min(1, t))*(s.right-s.left)
}

// logScale spans whole powers of ten around the positive values.
func logScale(values []float64, left, right float64) (scale, bool) {
	low, high := math.Inf(1), math.Inf(-1)
	for _, v := range values {
		if v > 0 && !math.IsInf(v, 0) {
			low, high = math.Min(low, v), math.Max(high, v)
		}
	}
	if math.IsInf(low, 1) {
		return scale{}, false
	}
	s := scale{low: math.Floor(math.Log10(low)), high: math.Ceil(math.Log10(high)), left: left, right: right, log: true}
	if s.high == s.low {
		s.high++
	}
	return s, true
}

// ticks returns round values inside a linear scale.
func (s scale) ticks(n int) []float64 {
	if s.log {
		step := math.Max(1, math.Ceil((s.high-s.low)/float64(n)))
		var out []float64
		for e := s.low; e <= s.high; e += step {
			out = append(out, math.Pow(10, e))
		}
		return out
	}
	span := s.high - s.low
	if span <= 0 {
		return []float64{s.low}
	}
	step := math.Pow(10, math.Floor(math.Log10(span/float64(n))))
	for _, m := range []float64{1, 2, 5, 10} {
		if span/(step*m) <= float64(n) {
			step *= m
			break
		}
	}
	var out []float64
	for i := math.Ceil(s.low / step); i*step <= s.high+step*1e-9; i++ {
		out = append(out, i*step)
	}
	return out
}

func formatTick(v float64) string {
	if v != 0 && (math.Abs(v) < 1e-3 || math.Abs(v) >= 1e5) {
		return strconv.FormatFloat(v, 'e', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 4, 64)
}
