package dataset

import (
	"bytes"
	"encoding/json"
	"image"
	"image/color"
	"image/draw"
	"image/jpeg"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/internal/testkit"
	"github.com/trtship/trtship/internal/worker"
)

// orientations are pictures of one scene: three columns and two rows of squares,
// stored in every orientation and format by Pillow.
const orientations = "testdata/orientation"

// middles returns the colour in the middle of each square of 16 pixels.
func middles(img image.Image) [][][3]int {
	const side = 16
	b := img.Bounds()
	var rows [][][3]int
	for y := b.Min.Y + side/2; y < b.Max.Y; y += side {
		var row [][3]int
		for x := b.Min.X + side/2; x < b.Max.X; x += side {
			r, g, b, _ := img.At(x, y).RGBA()
			row = append(row, [3]int{int(r >> 8), int(g >> 8), int(b >> 8)})
		}
		rows = append(rows, row)
	}
	return rows
}

func TestPicturesAreTurnedAsPillowTurnsThem(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(orientations, "expect.json"))
	if err != nil {
		t.Fatal(err)
	}
	var want map[string][][][3]int
	if err := json.Unmarshal(text, &want); err != nil {
		t.Fatal(err)
	}
	t.Run("as it was written down", func(t *testing.T) { turnsAs(t, want) })
	if home, err := worker.CacheHome(os.Getenv); err == nil {
		if env, err := worker.LockedEnv(home, worker.GroupBench); err == nil { // the environment with Pillow, of the peers, is seldom there
			t.Run("as Pillow does it now", func(t *testing.T) {
				out, err := exec.CommandContext(t.Context(), env.Python, filepath.Join(orientations, "make.py"), "--show").Output()
				if err != nil {
					t.Fatal(err)
				}
				var now map[string][][][3]int
				if err := json.Unmarshal(out, &now); err != nil {
					t.Fatal(err)
				}
				turnsAs(t, now)
			})
		}
	}
}

func turnsAs(t *testing.T, want map[string][][][3]int) {
	t.Helper()
	if len(want) != 4*8+8 {
		t.Fatalf("%d pictures", len(want))
	}
	near := cmp.Comparer(func(a, b int) bool { return max(a-b, b-a) <= 4 }) // decoders of JPEG round as they like
	for name, squares := range want {
		img, err := decode(filepath.Join(orientations, name))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if d := cmp.Diff(squares, middles(img), near); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
}

// TestEveryOrientationByHand holds each pixel to what the standard says of the
// stored row and column 0.
func TestEveryOrientationByHand(t *testing.T) {
	shown := map[int][]string{
		0: {"abc", "def"},
		1: {"abc", "def"},
		2: {"cba", "fed"},     // row 0 is the top, column 0 the right side
		3: {"fed", "cba"},     // the bottom, the right side
		4: {"def", "abc"},     // the bottom, the left side
		5: {"ad", "be", "cf"}, // the left side, the top
		6: {"da", "eb", "fc"}, // the right side, the top
		7: {"fc", "eb", "da"}, // the right side, the bottom
		8: {"cf", "be", "ad"}, // the left side, the bottom
		9: {"abc", "def"},
	}
	// A picture that does not begin at 0, 0 and is part of a larger one.
	whole := image.NewRGBA(image.Rect(0, 0, 9, 9))
	stored, _ := whole.SubImage(image.Rect(4, 5, 7, 7)).(*image.RGBA)
	for i := range 6 {
		stored.SetRGBA(4+i%3, 5+i/3, color.RGBA{R: uint8('a' + i), G: 1, B: 2, A: 255})
	}
	for o, want := range shown {
		img := turn(stored, o)
		b := img.Bounds()
		var got []string
		for y := b.Min.Y; y < b.Max.Y; y++ {
			row := ""
			for x := b.Min.X; x < b.Max.X; x++ {
				c, _ := color.RGBAModel.Convert(img.At(x, y)).(color.RGBA)
				row += string(rune(c.R))
				if c.G != 1 || c.B != 2 || c.A != 255 {
					t.Errorf("%d: colour %v", o, c)
				}
			}
			got = append(got, row)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("orientation %d (-want +got):\n%s", o, d)
		}
	}
}

func TestTurningGivesTheColoursOfDrawing(t *testing.T) {
	source := noise(7, 10, 6)
	var buf bytes.Buffer
	if err := jpeg.Encode(&buf, source, nil); err != nil {
		t.Fatal(err)
	}
	ycc, err := jpeg.Decode(&buf)
	if err != nil {
		t.Fatal(err)
	}
	pictures := map[string]image.Image{"ycbcr": ycc, "rgba": source}
	for name, to := range map[string]draw.Image{
		"gray": image.NewGray(source.Rect), "gray16": image.NewGray16(source.Rect), "cmyk": image.NewCMYK(source.Rect),
		"nrgba": image.NewNRGBA(source.Rect), "nrgba64": image.NewNRGBA64(source.Rect),
	} {
		draw.Draw(to, source.Rect, source, image.Point{}, draw.Src)
		pictures[name] = to
	}
	for name, img := range pictures {
		drawn := image.NewRGBA(img.Bounds())
		draw.Draw(drawn, drawn.Rect, opaque(img), img.Bounds().Min, draw.Src)
		if d := cmp.Diff(turn(drawn, 6), turn(img, 6)); d != "" {
			t.Errorf("%s (-drawn first +turned first):\n%s", name, d)
		}
	}
}

// TestATurnedPictureIsResizedAsItIsShown has the crop and the shorter side be
// those of the picture upright.
func TestATurnedPictureIsResizedAsItIsShown(t *testing.T) {
	pre := config.Preprocess{Order: "rgb", Layout: "nchw", Scale: 1, Resize: 32, Crop: []int{48, 32}, Filter: "nearest"}
	p, err := newPreprocessor(pre, Input{Name: "i", DType: tensor.Float32, Shape: []int64{Any, 3, 48, 32}})
	if err != nil {
		t.Fatal(err)
	}
	img, err := decode(filepath.Join(orientations, "6.png")) // 48x32 stored, 32x48 shown
	if err != nil {
		t.Fatal(err)
	}
	out := tensor.Zeros(tensor.Float32, p.shape()...)
	if err := p.apply(img, out.Data); err != nil {
		t.Fatal(err)
	}
	if red := out.Float64s()[:2]; red[0] != 220 || red[1] != 220 {
		t.Errorf("the first pixels are %v, want the yellow square that is stored at the bottom left", red)
	}
}

// metadata puts a segment APP1 behind the beginning of a JPEG file.
func metadata(t testing.TB, tiff []byte) []byte {
	t.Helper()
	var buf bytes.Buffer
	if err := jpeg.Encode(&buf, noise(1, 8, 8), nil); err != nil {
		t.Fatal(err)
	}
	body := append([]byte("Exif\x00\x00"), tiff...)
	n := len(body) + 2
	return append(append([]byte{0xff, 0xd8, 0xff, 0xe1, byte(n >> 8), byte(n)}, body...), buf.Bytes()[2:]...)
}

// entry is a TIFF header and a directory with one entry.
func entry(tag, kind uint16, count uint32, value ...byte) []byte {
	out := []byte{'M', 'M', 0, 42, 0, 0, 0, 8, 0, 1, byte(tag >> 8), byte(tag), byte(kind >> 8), byte(kind), byte(count >> 24), byte(count >> 16), byte(count >> 8), byte(count)}
	return append(append(out, value...), 0, 0, 0, 0)
}

func TestBadMetadataAreAnUprightPicture(t *testing.T) {
	tests := map[string]struct {
		tiff []byte
		want int
	}{
		"a short":                         {entry(0x112, 3, 1, 0, 6, 0, 0), 6},
		"a long":                          {entry(0x112, 4, 1, 0, 0, 0, 8), 8},
		"zero":                            {entry(0x112, 3, 1, 0, 0, 0, 0), 1},
		"nine":                            {entry(0x112, 3, 1, 0, 9, 0, 0), 1},
		"a large one":                     {entry(0x112, 4, 1, 0xff, 0xff, 0xff, 6), 1},
		"a byte":                          {entry(0x112, 1, 1, 6, 0, 0, 0), 1},
		"a text":                          {entry(0x112, 2, 2, '6', 0, 0, 0), 1},
		"two of them":                     {entry(0x112, 3, 2, 0, 6, 0, 6), 1},
		"as many as no file holds":        {entry(0x112, 3, 0xffffffff, 0, 6, 0, 0), 1},
		"a value outside of the file":     {entry(0x112, 3, 9, 0xff, 0xff, 0xff, 0xf0), 1},
		"an unknown type":                 {entry(0x112, 99, 1, 0, 6, 0, 0), 1},
		"another tag":                     {entry(0x113, 3, 1, 0, 6, 0, 0), 1},
		"a directory outside of the file": {[]byte{'M', 'M', 0, 42, 0xff, 0xff, 0xff, 0xff}, 1},
		"a directory that is cut off":     {entry(0x112, 3, 1, 0, 6, 0, 0)[:13], 1},
		"neither byte order":              {append([]byte("XX"), entry(0x112, 3, 1, 0, 6, 0, 0)[2:]...), 1},
		"nothing":                         {nil, 1},
		"that of the thumbnail alone":     {append(append([]byte{'M', 'M', 0, 42, 0, 0, 0, 8, 0, 0, 0, 0, 0, 14}, entry(0x112, 3, 1, 0, 6, 0, 0)[8:]...), 0), 1},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			file := metadata(t, tt.tiff)
			if got := orientation("jpeg", bytes.NewReader(file)); got != tt.want {
				t.Errorf("orientation %d, want %d", got, tt.want)
			}
			path := filepath.Join(t.TempDir(), "a.jpg")
			if err := os.WriteFile(path, file, 0o644); err != nil {
				t.Fatal(err)
			}
			if _, err := decode(path); err != nil {
				t.Errorf("the picture cannot be read: %v", err)
			}
		})
	}
	if got := orientation("gif", bytes.NewReader(metadata(t, entry(0x112, 3, 1, 0, 6, 0, 0)))); got != 1 {
		t.Errorf("a format without such metadata has the orientation %d", got)
	}
}

// FuzzOrientation demands an orientation that there is of any file, and that it
// is the same one whatever follows the metadata.
func FuzzOrientation(f *testing.F) {
	for format, kind := range map[string]byte{"jpg": 0, "png": 1, "webp": 2, "tiff": 3} {
		for _, o := range []string{"1", "6", "8"} {
			b, err := os.ReadFile(filepath.Join(testkit.Root(f), "internal/dataset", orientations, o+"."+format))
			if err != nil {
				f.Fatal(err)
			}
			f.Add(kind, b)
		}
	}
	f.Add(byte(0), metadata(f, entry(0x112, 3, 1, 0, 5, 0, 0)))
	f.Add(byte(0), metadata(f, entry(0x112, 4, 1, 0, 0, 0, 7)))
	f.Fuzz(func(t *testing.T, kind byte, file []byte) {
		format := []string{"jpeg", "png", "webp", "tiff"}[kind%4]
		o := orientation(format, bytes.NewReader(file))
		if o < 1 || o > 8 {
			t.Fatalf("orientation %d", o)
		}
		b := turn(image.NewGray(image.Rect(0, 0, 3, 2)), o).Bounds()
		if turned := b.Dx() == 2 && b.Dy() == 3; turned != (o >= 5) || b.Dx()*b.Dy() != 6 {
			t.Fatalf("orientation %d gives %v", o, b)
		}
	})
}
