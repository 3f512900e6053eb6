package dataset

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"image"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	_ "image/gif"  // decoders register themselves
	_ "image/jpeg" //
	_ "image/png"  //

	_ "golang.org/x/image/bmp"  //
	_ "golang.org/x/image/tiff" //
	_ "golang.org/x/image/webp" //

	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/regular"
	"github.com/trtship/trtship/internal/tensor"
)

// maxPixels bounds a picture, so that a small file cannot take all memory.
const maxPixels = 1 << 28

var pictureTypes = []string{".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".gif"}

// images is a folder of pictures, in the order of their paths.
type images struct {
	files   fileList
	ignored int
	pre     *preprocessor
	shape   []int64
}

func openImages(ctx context.Context, c config.Calibration, inputs []Input) (source, error) {
	in, err := imageInput(c, inputs)
	if err != nil {
		return nil, err
	}
	pre, err := newPreprocessor(c.Preprocess, in)
	if err != nil {
		return nil, err
	}
	s := &images{files: fileList{root: c.Path}, pre: pre, shape: pre.shape()}
	st, err := os.Stat(c.Path)
	if err != nil {
		return nil, refuse("find calibration pictures: %w", err).At(c.Path).WithHint("mend calibration.path")
	}
	if !st.IsDir() {
		return nil, refuse("calibration pictures are expected in a folder").At(c.Path)
	}
	if err := s.list(ctx, c.Path); err != nil {
		return nil, err
	}
	return s, nil
}

// imageInput finds the one input that pictures go to.
func imageInput(c config.Calibration, inputs []Input) (Input, error) {
	if len(inputs) > 1 {
		return Input{}, refuse("the model has %d inputs (%s), pictures feed one", len(inputs), names(inputs)).
			WithHint("store the inputs as .npz files, one array an input, and set calibration.dataset: numpy")
	}
	in := inputs[0]
	if c.Input != "" && c.Input != in.Name {
		return Input{}, refuse("calibration.input is %q, the model's input %q", c.Input, in.Name)
	}
	if !in.DType.Floating() && in.DType != tensor.UInt8 {
		return Input{}, refuse("pictures cannot feed input %s of type %s", in.Name, in.DType)
	}
	if len(in.Shape) != 4 {
		return Input{}, refuse("pictures cannot feed input %s of shape %s; expected 4 axes", in.Name, describe(in.Shape))
	}
	return in, nil
}

func (s *images) list(ctx context.Context, dir string) error {
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return refuse("list calibration pictures: %w", err).At(path)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if strings.HasPrefix(d.Name(), ".") && path != dir {
			if d.IsDir() {
				return filepath.SkipDir
			}
			return nil
		}
		switch {
		case d.IsDir():
		case slices.Contains(pictureTypes, strings.ToLower(filepath.Ext(path))):
			s.files.add(path)
		default:
			s.ignored++
		}
		return nil
	})
	if err != nil {
		return err
	}
	if s.files.len() == 0 {
		return refuse("no picture found (%s); %d other files", strings.Join(pictureTypes, " "), s.ignored).At(dir).
			WithHint("put pictures there, or mend calibration.path")
	}
	return nil
}

func (s *images) len() int { return s.files.len() }

func (s *images) shapes(int) ([][]int64, error) { return [][]int64{s.shape}, nil }

func (s *images) place(i int) string { return s.files.at(i) }

func (s *images) close() error { return nil }

func (s *images) notes() []string {
	if s.ignored == 0 {
		return nil
	}
	return []string{fmt.Sprintf("%d files that are no pictures were ignored", s.ignored)}
}

func (s *images) digest(ctx context.Context, progress func(done, total int64)) (string, error) {
	return hashFiles(ctx, &s.files, progress)
}

func (s *images) read(i int, dst [][]byte) error {
	img, err := decode(s.files.at(i))
	if err != nil {
		return refuse("decode calibration picture: %w", err).At(s.files.at(i)).WithHint("mend or remove this file")
	}
	if err := s.pre.apply(img, dst[0]); err != nil {
		return refuse("preprocess calibration picture: %w", err).At(s.files.at(i))
	}
	return nil
}

// lfsPointer begins what Git LFS puts in a file's place until it is fetched.
const lfsPointer = "version https://git-lfs"

var errPointer = errors.New("is a Git LFS pointer, its contents were not fetched (git lfs pull)")

// decode reads a picture and turns it as it is shown.
func decode(path string) (image.Image, error) {
	f, err := regular.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // read only
	if fileSize(f) == 0 {
		return nil, errors.New("the file is empty")
	}
	r := bufio.NewReader(f)
	if b, _ := r.Peek(len(lfsPointer)); string(b) == lfsPointer {
		return nil, errPointer
	}
	head, _, err := image.DecodeConfig(r)
	if err != nil {
		return nil, err
	}
	if int64(head.Width)*int64(head.Height) > maxPixels || head.Width < 1 || head.Height < 1 {
		return nil, fmt.Errorf("%d x %d pixels are not accepted", head.Width, head.Height)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	img, format, err := image.Decode(bufio.NewReader(f))
	if err != nil {
		return nil, err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	return turn(img, orientation(format, f)), nil
}

// put stores v as element i of type d.
func put(d tensor.DType, dst []byte, i int, v float32) {
	if d == tensor.Float32 {
		binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(v))
		return
	}
	tensor.Tensor{DType: d, Data: dst}.SetFloat64(i, float64(v))
}
