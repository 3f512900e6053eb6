package sensitivity

import (
	"bytes"
	"fmt"
	"image/color"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// mostBars is how many nodes a plot shows.
const mostBars = 30

// Plot draws the most sensitive nodes as horizontal bars of their ratio of
// signal to noise: short bars are sensitive nodes. Nodes that spoil an output
// have no bar, those that change nothing are left out.
func (r *Result) Plot() ([]byte, error) {
	var values plotter.Values
	var names []string
	for _, row := range r.Rows {
		v := float64(row.SQNR)
		if math.IsInf(v, 1) || len(values) == mostBars {
			break
		}
		values, names = append(values, max(v, 0)), append(names, shorten(row.Node))
	}
	p := plot.New()
	p.Title.Text = fmt.Sprintf("%s: signal to noise of the outputs with one node in the precision", r.Precision)
	p.X.Label.Text = "dB"
	p.X.Min = 0
	if len(values) > 0 {
		reverse(values, names) // the worst on top
		bars, err := plotter.NewBarChart(values, vg.Points(9))
		if err != nil {
			return nil, fmt.Errorf("plot sensitivity: %w", err)
		}
		bars.Horizontal, bars.Color, bars.LineStyle.Width = true, color.RGBA{R: 0x2b, G: 0x6c, B: 0xb0, A: 0xff}, 0
		p.Add(bars)
		p.NominalY(names...)
	}
	canvas := vgsvg.New(vg.Points(640), vg.Points(80+float64(14*len(values))))
	p.Draw(draw.New(canvas))
	var b bytes.Buffer
	if _, err := canvas.WriteTo(&b); err != nil {
		return nil, fmt.Errorf("plot sensitivity: %w", err)
	}
	return b.Bytes(), nil
}

func reverse(values plotter.Values, names []string) {
	for i, j := 0, len(values)-1; i < j; i, j = i+1, j-1 {
		values[i], values[j] = values[j], values[i]
		names[i], names[j] = names[j], names[i]
	}
}

// shorten keeps the end of a long name, which tells nodes apart.
func shorten(name string) string {
	const most = 40
	if r := []rune(name); len(r) > most {
		return "…" + string(r[len(r)-most+1:])
	}
	return name
}
