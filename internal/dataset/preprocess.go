package dataset

import (
	"fmt"
	"image"
	"image/color"
	"math"

	"golang.org/x/image/draw"

	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/tensor"
)

// preprocessor turns a picture into one sample: resize, centre crop, channel
// order, scale, mean, standard deviation, layout.
type preprocessor struct {
	c             config.Preprocess
	height, width int
	channels      int
	dtype         tensor.DType
	scaler        draw.Scaler
	mean, std     []float32
}

func newPreprocessor(c config.Preprocess, in Input) (*preprocessor, error) {
	p := &preprocessor{c: c, channels: 3, dtype: in.DType}
	if c.Order == "gray" {
		p.channels = 1
	}
	channelAxis, rows, columns := 1, in.Shape[2], in.Shape[3]
	if c.Layout == "nhwc" {
		channelAxis, rows, columns = 3, in.Shape[1], in.Shape[2]
	}
	if have := in.Shape[channelAxis]; have >= 0 && have != int64(p.channels) {
		return nil, refuse("input %s of shape %s has %d channels at axis %d, channel_order %s and layout %s give %d", in.Name,
			describe(in.Shape), have, channelAxis, c.Order, c.Layout, p.channels).
			WithHint("mend calibration.preprocess.channel_order or layout")
	}
	if len(c.Crop) != 0 && len(c.Crop) != 2 {
		return nil, refuse("calibration.preprocess.crop has %d values, expected [height, width]", len(c.Crop))
	}
	p.height, p.width = int(rows), int(columns)
	if len(c.Crop) == 2 {
		p.height, p.width = c.Crop[0], c.Crop[1]
	}
	if p.height < 1 || p.width < 1 {
		return nil, refuse("the size of pictures is open: input %s has the shape %s", in.Name, describe(in.Shape)).
			WithHint("set calibration.preprocess.crop, or an opt shape in tensorrt.profiles")
	}
	if rows >= 0 && int64(p.height) != rows || columns >= 0 && int64(p.width) != columns {
		return nil, refuse("calibration.preprocess.crop is %dx%d, input %s has the shape %s", p.height, p.width, in.Name, describe(in.Shape))
	}
	if c.Resize > 0 && c.Resize < min(p.height, p.width) {
		return nil, refuse("calibration.preprocess.resize is %d, smaller than the crop of %dx%d", c.Resize, p.height, p.width)
	}
	if err := p.setStatistics(c); err != nil {
		return nil, err
	}
	table := p.table()
	for channel, values := range table[:p.channels] {
		for v, x := range values {
			if math.IsInf(float64(x), 0) || math.IsNaN(float64(x)) {
				return nil, refuse("calibration.preprocess turns the value %d of channel %d into %g", v, channel, x).
					WithHint("mend calibration.preprocess.scale, mean or std")
			}
		}
	}
	return p, p.setFilter(c.Filter)
}

func (p *preprocessor) setFilter(filter string) error {
	switch filter {
	case "nearest":
		p.scaler = draw.NearestNeighbor
	case "bilinear", "":
		p.scaler = draw.BiLinear
	case "bicubic":
		p.scaler = draw.CatmullRom
	default:
		return refuse("unknown calibration.preprocess.filter %q (nearest, bilinear, bicubic)", filter)
	}
	return nil
}

func (p *preprocessor) setStatistics(c config.Preprocess) error {
	p.mean, p.std = make([]float32, p.channels), make([]float32, p.channels)
	for i := range p.std {
		p.std[i] = 1
	}
	for _, s := range []struct {
		name string
		from []float64
		to   []float32
	}{{"mean", c.Mean, p.mean}, {"std", c.Std, p.std}} {
		if len(s.from) != 0 && len(s.from) != p.channels {
			return refuse("calibration.preprocess.%s has %d values, pictures have %d channels", s.name, len(s.from), p.channels)
		}
		for i, v := range s.from {
			if s.name == "std" && !(v > 0) {
				return refuse("calibration.preprocess.std holds %g, expected positive values", v)
			}
			s.to[i] = float32(v)
		}
	}
	return nil
}

// shape returns the shape of a sample.
func (p *preprocessor) shape() []int64 {
	h, w, c := int64(p.height), int64(p.width), int64(p.channels)
	if p.c.Layout == "nhwc" {
		return []int64{h, w, c}
	}
	return []int64{c, h, w}
}

// apply fills dst with the sample of a picture.
func (p *preprocessor) apply(img image.Image, dst []byte) error {
	b := img.Bounds()
	width, height := p.width, p.height
	if p.c.Resize > 0 {
		width, height = shorterSide(b.Dx(), b.Dy(), p.c.Resize)
	}
	if width < p.width || height < p.height {
		return fmt.Errorf("%dx%d pixels become %dx%d, smaller than the crop of %dx%d", b.Dx(), b.Dy(), width, height, p.width, p.height)
	}
	if int64(width)*int64(height) > maxPixels/4 {
		return fmt.Errorf("%dx%d pixels become %dx%d, more than can be resized (calibration.preprocess.resize)", b.Dx(), b.Dy(), width, height)
	}
	full := image.NewRGBA(image.Rect(0, 0, width, height))
	src := opaque(img)
	if b.Dx() == width && b.Dy() == height {
		draw.Draw(full, full.Bounds(), src, src.Bounds().Min, draw.Src)
	} else {
		p.scaler.Scale(full, full.Bounds(), src, src.Bounds(), draw.Src, nil)
	}
	left, top := half(width-p.width), half(height-p.height)
	return p.fill(full, left, top, dst)
}

// fill converts the crop's pixels.
func (p *preprocessor) fill(full *image.RGBA, left, top int, dst []byte) error {
	low, high := math.Inf(-1), math.Inf(1)
	if len(p.c.Range) == 2 {
		low, high = p.c.Range[0], p.c.Range[1]
	}
	table := p.table()
	plane := p.height * p.width
	for y := range p.height {
		row := full.Pix[full.PixOffset(left, top+y):]
		for x := range p.width {
			r, g, b := row[4*x], row[4*x+1], row[4*x+2]
			values := [3]uint8{r, g, b}
			switch p.c.Order {
			case "bgr":
				values = [3]uint8{b, g, r}
			case "gray":
				values[0] = luma(r, g, b)
			}
			for c := range p.channels {
				v := table[c][values[c]]
				if !(float64(v) >= low && float64(v) <= high) {
					return fmt.Errorf("a value of %g lies outside of the declared range [%g, %g]", v, low, high)
				}
				at := c*plane + y*p.width + x
				if p.c.Layout == "nhwc" {
					at = (y*p.width+x)*p.channels + c
				}
				put(p.dtype, dst, at, v)
			}
		}
	}
	return nil
}

// table holds (v*scale - mean) / std of each channel and 8-bit value.
func (p *preprocessor) table() [3][256]float32 {
	var t [3][256]float32
	for c := range p.channels {
		for v := range 256 {
			t[c][v] = (float32(v)*float32(p.c.Scale) - p.mean[c]) / p.std[c]
		}
	}
	return t
}

// luma is the ITU-R 601 brightness, with the rounding of Pillow.
func luma(r, g, b uint8) uint8 {
	return uint8((uint32(r)*19595 + uint32(g)*38470 + uint32(b)*7471 + 0x8000) >> 16)
}

// shorterSide scales so that the shorter side gets size pixels, as torchvision does.
func shorterSide(width, height, size int) (w, h int) {
	if width <= height {
		return size, max(size, size*height/width)
	}
	return max(size, size*width/height), size
}

// half is the offset of a centre crop: half the rest, rounded to even.
func half(rest int) int { return int(math.RoundToEven(float64(rest) / 2)) }

// opaque drops the alpha channel without blending, as a conversion to RGB does.
func opaque(img image.Image) image.Image {
	switch src := img.(type) {
	case *image.YCbCr, *image.Gray, *image.Gray16, *image.CMYK:
		return img
	case *image.NRGBA:
		out := image.NewRGBA(src.Bounds())
		b := src.Bounds()
		for y := b.Min.Y; y < b.Max.Y; y++ {
			from, to := src.Pix[src.PixOffset(b.Min.X, y):], out.Pix[out.PixOffset(b.Min.X, y):]
			for x := 0; x < 4*b.Dx(); x += 4 {
				to[x], to[x+1], to[x+2], to[x+3] = from[x], from[x+1], from[x+2], 0xff
			}
		}
		return out
	case *image.RGBA:
		if src.Opaque() {
			return img
		}
	}
	b := img.Bounds()
	out := image.NewRGBA(b)
	for y := b.Min.Y; y < b.Max.Y; y++ {
		for x := b.Min.X; x < b.Max.X; x++ {
			c := color.NRGBAModel.Convert(img.At(x, y)).(color.NRGBA) //nolint:errcheck,forcetypeassert // that model returns nothing else
			out.SetRGBA(x, y, color.RGBA{R: c.R, G: c.G, B: c.B, A: 0xff})
		}
	}
	return out
}

// withDeclaredRange limits floating-point inputs to what the declared
// preprocessing can give, so that data it was not applied to are refused.
func withDeclaredRange(c config.Calibration, inputs []Input) []Input {
	low, high, ok := declaredRange(c.Preprocess)
	if !ok {
		return inputs
	}
	out := append([]Input(nil), inputs...)
	for i, in := range out {
		if !in.DType.Floating() || c.Input != "" && c.Input != in.Name || in.Range != nil {
			continue
		}
		out[i].Range = &[2]float64{low, high}
	}
	return out
}

// declaredRange returns the interval of preprocessed 8-bit values; ok is false
// where no preprocessing is declared.
func declaredRange(p config.Preprocess) (low, high float64, ok bool) {
	if len(p.Range) == 2 {
		return p.Range[0], p.Range[1], true
	}
	if len(p.Mean) == 0 && len(p.Std) == 0 {
		return 0, 0, false
	}
	low, high = math.Inf(1), math.Inf(-1)
	for i := range max(len(p.Mean), len(p.Std)) {
		mean, std := 0.0, 1.0
		if i < len(p.Mean) {
			mean = p.Mean[i]
		}
		if i < len(p.Std) {
			std = p.Std[i]
		}
		low, high = min(low, -mean/std), max(high, (255*p.Scale-mean)/std)
	}
	margin := 0.01 * (high - low)
	return low - margin, high + margin, true
}
