package dataset

import (
	"image"
	"image/color"
	"io"
	"regexp"

	"github.com/bep/imagemeta"
)

// PictureReader is raised when the same picture file gives other pixels than
// before. Version 2 applies the orientation.
const PictureReader = "2"

// upright is the orientation of a picture that is stored as it is shown.
const upright = 1

// metadataOf are the formats whose metadata are read, by their names in package image.
var metadataOf = map[string]imagemeta.ImageFormat{
	"jpeg": imagemeta.JPEG, "png": imagemeta.PNG, "webp": imagemeta.WebP, "tiff": imagemeta.TIFF,
}

// xmpOrientation is how Pillow looks for the orientation in an XMP packet.
var xmpOrientation = regexp.MustCompile(`tiff:Orientation(?:="|>)([0-9])`)

// orientation returns the EXIF orientation of a picture, 1 to 8: that of its
// first image directory, else the one in its XMP packet. A camera's metadata
// decide how a picture is turned and never whether it can be read, so what is
// damaged or out of range counts as upright.
func orientation(format string, r io.ReadSeeker) int {
	kind, ok := metadataOf[format]
	if !ok {
		return upright
	}
	found, exif := 0, false
	wanted := func(t imagemeta.TagInfo) bool { return t.Namespace == "IFD0" && t.Tag == "Orientation" }
	// An error is no matter: what was found before it counts.
	_, _ = imagemeta.Decode(imagemeta.Options{
		R: r, ImageFormat: kind, Sources: imagemeta.EXIF | imagemeta.XMP, ShouldHandleTag: wanted,
		HandleTag: func(t imagemeta.TagInfo) error {
			found, exif = whole(t.Value), true
			return imagemeta.ErrStopWalking
		},
		HandleXMP: func(r io.Reader) error {
			packet, err := io.ReadAll(r)
			if m := xmpOrientation.FindSubmatch(packet); m != nil && !exif {
				found = int(m[1][0] - '0')
			}
			return err
		},
	})
	if found < 1 || found > 8 {
		return upright
	}
	return found
}

// whole returns a metadata value that is one integer; -1 for any other.
func whole(v any) int {
	switch v := v.(type) {
	case uint16:
		return int(v)
	case uint32:
		return int(v)
	case int32:
		return int(v)
	}
	return -1
}

// turn returns a picture as it is shown, given its orientation, without alpha.
func turn(img image.Image, orientation int) image.Image {
	if orientation <= upright || orientation > 8 {
		return img
	}
	src := opaque(img)
	b := src.Bounds()
	width, height := b.Dx(), b.Dy()
	if orientation >= 5 { // mirrored at a diagonal, or turned by a quarter
		width, height = height, width
	}
	pixel := pixels(src)
	out := image.NewRGBA(image.Rect(0, 0, width, height))
	for y := range height {
		row := out.Pix[y*out.Stride:]
		for x := range width {
			sx, sy := stored(orientation, x, y, b.Dx(), b.Dy())
			row[4*x], row[4*x+1], row[4*x+2] = pixel(b.Min.X+sx, b.Min.Y+sy)
			row[4*x+3] = 0xff
		}
	}
	return out
}

// stored returns where the pixel that is shown at x, y lies in a stored picture
// of the given size.
func stored(orientation, x, y, width, height int) (sx, sy int) {
	right, bottom := width-1, height-1
	switch orientation {
	case 2: // mirrored left to right
		return right - x, y
	case 3: // turned by 180 degrees
		return right - x, bottom - y
	case 4: // mirrored top to bottom
		return x, bottom - y
	case 5: // mirrored at the diagonal from the top left
		return y, x
	case 6: // to be turned clockwise
		return y, bottom - x
	case 7: // mirrored at the diagonal from the top right
		return right - y, bottom - x
	case 8: // to be turned counterclockwise
		return right - y, x
	}
	return x, y
}

// pixels returns a reader of a picture's colours, the same ones that drawing it
// gives.
func pixels(img image.Image) func(x, y int) (r, g, b uint8) {
	switch src := img.(type) {
	case *image.YCbCr:
		return func(x, y int) (r, g, b uint8) {
			i, c := src.YOffset(x, y), src.COffset(x, y)
			return color.YCbCrToRGB(src.Y[i], src.Cb[c], src.Cr[c])
		}
	case *image.Gray:
		return func(x, y int) (r, g, b uint8) {
			v := src.Pix[src.PixOffset(x, y)]
			return v, v, v
		}
	case *image.RGBA:
		return func(x, y int) (r, g, b uint8) {
			i := src.PixOffset(x, y)
			return src.Pix[i], src.Pix[i+1], src.Pix[i+2]
		}
	}
	return func(x, y int) (uint8, uint8, uint8) {
		r, g, b, _ := img.At(x, y).RGBA()
		return uint8(r >> 8), uint8(g >> 8), uint8(b >> 8)
	}
}
