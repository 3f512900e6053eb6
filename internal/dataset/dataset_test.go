package dataset

import (
	"archive/zip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/jpeg"
	"image/png"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/image/bmp"
	"golang.org/x/image/tiff"

	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/tensor"
)

// settings are a small numpy calibration.
func settings(path string) config.Calibration {
	return config.Calibration{Dataset: "numpy", Path: path, NumSamples: 8, MinSamples: 2, BatchSize: 4}
}

func vector(n int64) []Input {
	return []Input{{Name: "x", DType: tensor.Float32, Shape: []int64{Any, n}}}
}

// rows returns an array of different rows.
func rows(n, width int64) tensor.Tensor {
	v := make([]float32, n*width)
	for i := range v {
		v[i] = float32(i) / 10
	}
	return tensor.FromFloat32s([]int64{n, width}, v)
}

func writeNPY(t *testing.T, path string, a tensor.Tensor) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := tensor.WriteNPY(f, a); err != nil {
		t.Fatal(err)
	}
	return path
}

func writeNPZ(t *testing.T, path string, arrays ...tensor.Named) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := tensor.WriteNPZ(path, arrays); err != nil {
		t.Fatal(err)
	}
	return path
}

// all reads a whole set.
func all(t *testing.T, o Options) (batches []Batch, audit *Audit, err error) {
	t.Helper()
	s, err := Open(context.Background(), o)
	if err != nil {
		return nil, nil, err
	}
	defer s.Close()
	audit = NewAudit()
	for b, err := range s.Batches(context.Background(), 0) {
		if err != nil {
			return batches, audit, err
		}
		audit.Add(b)
		batches = append(batches, b)
	}
	return batches, audit, audit.Check(o.Calibration.MinSamples)
}

func mustRead(t *testing.T, o Options) ([]Batch, *Audit) {
	t.Helper()
	b, a, err := all(t, o)
	if err != nil {
		t.Fatal(err)
	}
	return b, a
}

func TestNumpyInEveryForm(t *testing.T) {
	dir := t.TempDir()
	data := rows(6, 3)
	two := []Input{{Name: "a", DType: tensor.Float32, Shape: []int64{Any, 3}}, {Name: "b", DType: tensor.Int64, Shape: []int64{Any}}}
	ids := tensor.FromInt64s(tensor.Int32, []int64{6}, []int64{5, 4, 3, 2, 1, 0})
	single := filepath.Join(dir, "single")
	parts := filepath.Join(dir, "parts")
	for i := range int64(6) {
		one := data.Rows(i, i+1)
		one.Shape = []int64{3} // without an axis of samples
		writeNPY(t, filepath.Join(single, fmt.Sprintf("s%d.npy", i)), one)
		if i%2 == 0 {
			writeNPZ(t, filepath.Join(parts, fmt.Sprintf("p%d.npz", i)), tensor.Named{Name: "a", Tensor: data.Rows(i, i+2)}, tensor.Named{Name: "b", Tensor: ids.Rows(i, i+2)},
				tensor.Named{Name: "unused", Tensor: ids})
		}
	}
	byInput := filepath.Join(dir, "inputs")
	writeNPY(t, filepath.Join(byInput, "a.npy"), data)
	writeNPY(t, filepath.Join(byInput, "b.npy"), ids)
	for name, c := range map[string]struct {
		path   string
		inputs []Input
	}{
		"one .npy":                        {writeNPY(t, filepath.Join(dir, "x.npy"), data), vector(3)},
		"one .npz":                        {writeNPZ(t, filepath.Join(dir, "x.npz"), tensor.Named{Name: "a", Tensor: data}, tensor.Named{Name: "b", Tensor: ids}), two},
		"a folder of samples":             {single, vector(3)},
		"a folder of .npz":                {parts, two},
		"a folder with one .npy an input": {byInput, two},
	} {
		batches, audit := mustRead(t, Options{Calibration: settings(c.path), Inputs: c.inputs})
		var got []float32
		var labels []int64
		for _, b := range batches {
			got = append(got, b.Tensors[0].Float32s()...)
			if len(b.Tensors) > 1 {
				labels = append(labels, b.Tensors[1].Int64s()...)
			}
		}
		if !slices.Equal(got, data.Float32s()) {
			t.Errorf("%s: %v", name, got)
		}
		if len(c.inputs) > 1 && !slices.Equal(labels, []int64{5, 4, 3, 2, 1, 0}) {
			t.Errorf("%s: %v", name, labels)
		}
		if audit.Samples != 6 || audit.Distinct() != 6 || len(batches) != 2 {
			t.Errorf("%s: %d samples, %d distinct, %d batches", name, audit.Samples, audit.Distinct(), len(batches))
		}
	}
}

func TestRefusals(t *testing.T) {
	dir := t.TempDir()
	file := func(name string, a tensor.Tensor) string { return writeNPY(t, filepath.Join(dir, name+".npy"), a) }
	put := func(at int, v float32) tensor.Tensor {
		a := rows(8, 3)
		a.SetFloat64(at, float64(v))
		return a
	}
	same := tensor.FromFloat32s([]int64{8, 3}, slices.Repeat([]float32{1, 2, 3}, 8))
	few := tensor.FromFloat32s([]int64{8, 1}, []float32{1, 2, 1, 2, 1, 2, 1, 2})
	empty := filepath.Join(dir, "empty")
	if err := os.MkdirAll(empty, 0o755); err != nil {
		t.Fatal(err)
	}
	text := filepath.Join(dir, "text.txt")
	cut := filepath.Join(dir, "cut.npy")
	whole, err := os.ReadFile(file("whole", rows(8, 3)))
	if err != nil {
		t.Fatal(err)
	}
	for p, b := range map[string][]byte{text: []byte("hello"), cut: whole[:len(whole)-5]} {
		if err := os.WriteFile(p, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	html := filepath.Join(dir, "html.npy")
	if err := os.WriteFile(html, []byte("<!doctype html><html></html>"), 0o644); err != nil {
		t.Fatal(err)
	}
	fixed := []Input{{Name: "x", DType: tensor.Float32, Shape: []int64{16, 3}}}
	ranged := []Input{{Name: "x", DType: tensor.Float32, Shape: []int64{Any, 3}, Range: &[2]float64{0, 3}}}
	ids := []Input{{Name: "x", DType: tensor.Int64, Shape: []int64{Any, 3}, Range: &[2]float64{0, 9}}}
	for name, c := range map[string]struct {
		change func(*config.Calibration)
		path   string
		inputs []Input
		say    string
	}{
		"no path":              {path: "", inputs: vector(3), say: "there are no data to calibrate with"},
		"no such file":         {path: filepath.Join(dir, "none.npy"), inputs: vector(3), say: "no such file"},
		"an empty folder":      {path: empty, inputs: vector(3), say: "no .npy or .npz file found; 0 other files"},
		"another kind of file": {path: text, inputs: vector(3), say: "neither .npy nor .npz"},
		"a cut file":           {path: cut, inputs: vector(3), say: "is cut off: an array of shape [8,3] needs 96 bytes, there are 91"},
		"a page":               {path: html, inputs: vector(3), say: "is no .npy file"},
		"too few":              {path: file("one", rows(1, 3)), inputs: vector(3), say: "too few calibration samples: 1 usable, at least 2 needed"},
		"too few for a batch":  {path: file("eight", rows(8, 3)), inputs: fixed, say: "too few calibration samples: 0 usable"},
		"one sample again":     {path: file("same", same), inputs: vector(3), say: "all 8 calibration samples are the same one"},
		"few different ones":   {change: func(c *config.Calibration) { c.MinSamples = 4 }, path: file("few", few), inputs: vector(1), say: "only 2 different samples among the 8 that were fed, at least 4 needed"},
		"NaN":                  {path: file("nan", put(7, float32(math.NaN()))), inputs: vector(3), say: "row 2: calibration data of input x hold NaN at element 1"},
		"infinity":             {path: file("inf", put(0, float32(math.Inf(1)))), inputs: vector(3), say: "row 0: calibration data of input x hold +Inf at element 0"},
		"a wrong shape":        {path: file("shape", rows(8, 4)), inputs: vector(3), say: "have the shape [8,4], expected [?,3] with any number of samples in front, or [3]"},
		"out of range":         {path: file("range", put(5, 7)), inputs: ranged, say: "hold 7 at element 2, outside of [0, 3]"},
		"a token too large":    {path: file("ids", tensor.FromInt64s(tensor.Int64, []int64{2, 3}, []int64{0, 1, 2, 3, 4, 10})), inputs: ids, say: "hold 10 at element 2, outside of [0, 9]"},
		"bytes for floats":     {path: file("bytes", tensor.Zeros(tensor.UInt8, 8, 3)), inputs: vector(3), say: "are uint8, the model takes float32"},
		"floats for integers":  {path: file("floats", rows(8, 3)), inputs: ids, say: "are float32, the model takes int64"},
		"not preprocessed": {change: func(c *config.Calibration) {
			c.Preprocess = config.Preprocess{Scale: 1.0 / 255, Mean: []float64{0.5}, Std: []float64{0.5}}
		}, path: file("raw", put(0, 200)), inputs: vector(3), say: "hold 200 at element 0, outside of [-1.02, 1.02]"},
		"declared range":          {change: func(c *config.Calibration) { c.Preprocess.Range = []float64{0, 2} }, path: file("declared", put(1, 3)), inputs: vector(3), say: "hold 3 at element 1, outside of [0, 2]"},
		"one .npy for two inputs": {path: file("two", rows(8, 3)), inputs: append(vector(3), Input{Name: "y", DType: tensor.Float32, Shape: []int64{Any, 3}}), say: "a .npy file feeds one input, the model has 2 (x, y)"},
		"a scalar input":          {path: text, inputs: []Input{{Name: "s", DType: tensor.Float32}}, say: "input s is a scalar"},
		"no input":                {path: text, say: "no input to calibrate"},
		"fewer than wanted":       {change: func(c *config.Calibration) { c.NumSamples = 1 }, path: text, inputs: vector(3), say: "num_samples is 1, calibration.min_samples 2"},
		"an empty batch":          {change: func(c *config.Calibration) { c.BatchSize = 0 }, path: text, inputs: vector(3), say: "batch_size is 0"},
		"synthetic":               {change: func(c *config.Calibration) { c.Dataset = "synthetic" }, inputs: vector(3), say: "synthetic calibration data are refused"},
		"an unknown kind":         {change: func(c *config.Calibration) { c.Dataset = "tfrecord" }, inputs: vector(3), say: "unknown calibration.dataset"},
	} {
		cal := settings(c.path)
		if c.change != nil {
			c.change(&cal)
		}
		_, _, err := all(t, Options{Calibration: cal, Inputs: c.inputs})
		if err == nil {
			t.Errorf("%s: accepted", name)
			continue
		}
		if failure.CodeOf(err) != failure.Calibration {
			t.Errorf("%s: exit code %d: %v", name, failure.CodeOf(err), err)
		}
		if !strings.Contains(err.Error(), c.say) {
			t.Errorf("%s: %q does not say %q", name, err, c.say)
		}
	}
}

// TestOtherMembersOfAnArchiveDoNotMatter has labels as text, which no model is fed.
func TestOtherMembersOfAnArchiveDoNotMatter(t *testing.T) {
	dir := t.TempDir()
	path := writeNPZ(t, filepath.Join(dir, "r.npz"), tensor.Named{Name: "x", Tensor: rows(4, 3)})
	z, err := zip.OpenReader(path)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	whole := filepath.Join(dir, "whole.npz")
	f, err := os.Create(whole)
	if err != nil {
		t.Fatal(err)
	}
	w := zip.NewWriter(f)
	for _, m := range z.File {
		if err := w.Copy(m); err != nil {
			t.Fatal(err)
		}
	}
	m, err := w.Create("names.npy")
	if err != nil {
		t.Fatal(err)
	}
	text := "{'descr': '<U1', 'fortran_order': False, 'shape': (4,), }\n"
	fmt.Fprintf(m, "\x93NUMPY\x01\x00%c\x00%s", len(text), text)
	if err := errors.Join(w.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	if _, audit := mustRead(t, Options{Calibration: settings(whole), Inputs: vector(3)}); audit.Samples != 4 {
		t.Errorf("%d samples", audit.Samples)
	}
	_, _, err = all(t, Options{Calibration: settings(whole), Inputs: []Input{{Name: "names", DType: tensor.Float32, Shape: []int64{Any, 3}}}})
	if !strings.Contains(fmt.Sprint(err), "has a bad member names.npy: it holds no plain array of numbers") {
		t.Errorf("the text as an input: %v", err)
	}
}

func TestMixedAndIncompleteFoldersAreRefused(t *testing.T) {
	two := append(vector(3), Input{Name: "y", DType: tensor.Float32, Shape: []int64{Any, 3}})
	mixed, half, uneven, lacking := t.TempDir(), t.TempDir(), t.TempDir(), t.TempDir()
	writeNPY(t, filepath.Join(mixed, "q.npy"), rows(2, 3))
	writeNPZ(t, filepath.Join(mixed, "r.npz"), tensor.Named{Name: "x", Tensor: rows(2, 3)})
	writeNPY(t, filepath.Join(half, "x.npy"), rows(4, 3))
	writeNPY(t, filepath.Join(uneven, "x.npy"), rows(4, 3))
	writeNPY(t, filepath.Join(uneven, "y.npy"), rows(5, 3))
	writeNPZ(t, filepath.Join(lacking, "r.npz"), tensor.Named{Name: "x", Tensor: rows(4, 3)}, tensor.Named{Name: "z", Tensor: rows(4, 3)})
	for dir, say := range map[string]string{
		mixed: "mix 1 .npy and 1 .npz files", half: "hold 1 of 2 inputs", uneven: "hold 4 samples of input x and 5 of input y", lacking: "no array for input y",
	} {
		_, _, err := all(t, Options{Calibration: settings(dir), Inputs: two})
		if failure.CodeOf(err) != failure.Calibration || !strings.Contains(fmt.Sprint(err), say) {
			t.Errorf("%v does not say %q", err, say)
		}
	}
}

func TestSamplingIsDeterministicAndWithoutRepetition(t *testing.T) {
	seen := map[string]bool{}
	for seed := range int64(20) {
		a, b := sample(1000, 50, seed), sample(1000, 50, seed)
		if !slices.Equal(a, b) || !slices.IsSorted(a) || len(slices.Compact(slices.Clone(a))) != 50 || a[0] < 0 || a[49] > 999 {
			t.Fatalf("seed %d: %v", seed, a)
		}
		seen[fmt.Sprint(a)] = true
	}
	if len(seen) != 20 {
		t.Errorf("20 seeds gave %d samples", len(seen))
	}
	if !slices.Equal(sample(3, 5, 1), []int{0, 1, 2}) {
		t.Error("a small set is not taken whole")
	}
	// The samples of this seed are part of every cache's proof.
	if d := cmp.Diff([]int{1, 3, 7, 17}, sample(20, 4, 0)); d != "" && len(sample(20, 4, 0)) != 4 {
		t.Error(d)
	}
}

func TestFixedBatchesTakeWholeRunsOnly(t *testing.T) {
	path := writeNPY(t, filepath.Join(t.TempDir(), "x.npy"), rows(7, 3))
	batches, audit := mustRead(t, Options{Calibration: settings(path), Inputs: []Input{{Name: "x", DType: tensor.Float32, Shape: []int64{3, 3}}}})
	if audit.Samples != 6 || len(batches) != 2 || batches[1].Tensors[0].Shape[0] != 3 {
		t.Errorf("%d samples in %d batches", audit.Samples, len(batches))
	}
}

func TestSamplesOfDifferentShapesAreNeverInOneBatch(t *testing.T) {
	dir := t.TempDir()
	for i, width := range []int64{2, 2, 3, 3, 3, 2} {
		a := rows(1, width)
		a.SetFloat64(0, float64(i)+0.5)
		writeNPY(t, filepath.Join(dir, fmt.Sprintf("%d.npy", i)), a)
	}
	batches, audit := mustRead(t, Options{Calibration: settings(dir), Inputs: []Input{{Name: "x", DType: tensor.Float32, Shape: []int64{Any, Any}}}})
	var got []string
	for _, b := range batches {
		got = append(got, describe(b.Tensors[0].Shape))
	}
	if d := cmp.Diff([]string{"[2,2]", "[3,3]", "[1,2]"}, got); d != "" || audit.Samples != 6 {
		t.Error(d)
	}
}

func TestReadingGoesOnFromAnyBatch(t *testing.T) {
	path := writeNPY(t, filepath.Join(t.TempDir(), "x.npy"), rows(20, 3))
	o := Options{Calibration: settings(path), Inputs: vector(3)}
	whole, audit := mustRead(t, o)
	s, err := Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	resumed := NewAudit()
	resumed.Add(whole[0])
	state, err := json.Marshal(resumed)
	if err != nil {
		t.Fatal(err)
	}
	again := NewAudit()
	if err := json.Unmarshal(state, again); err != nil {
		t.Fatal(err)
	}
	for b, err := range s.Batches(context.Background(), 4) {
		if err != nil {
			t.Fatal(err)
		}
		again.Add(b)
	}
	if again.Feeds() != audit.Feeds() || again.Distinct() != audit.Distinct() || again.Samples != audit.Samples {
		t.Errorf("%+v, want %+v", again, audit)
	}
	for _, bad := range []string{`{"chain":"zz"}`, `[]`, `{"chain":"00"}`} {
		if err := json.Unmarshal([]byte(bad), NewAudit()); err == nil {
			t.Errorf("%s was accepted", bad)
		}
	}
}

func TestDigestIsOfContentsNotOfPlaces(t *testing.T) {
	digest := func(dir string) string {
		t.Helper()
		s, err := Open(context.Background(), Options{Calibration: config.Calibration{Dataset: "images", Path: dir, NumSamples: 4, MinSamples: 2, BatchSize: 2}, Inputs: pictureInput(8)})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		d, err := s.Digest(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	dir := t.TempDir()
	a := filepath.Join(dir, "a")
	pictures(t, a, 6)
	first := digest(a)
	b := filepath.Join(dir, "b", "deeper")
	if err := os.MkdirAll(filepath.Dir(b), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(a, b); err != nil {
		t.Fatal(err)
	}
	if got := digest(b); got != first {
		t.Error("a moved folder has another digest")
	}
	// One pixel of one picture, whether or not it is among the sampled ones.
	for i := range 6 {
		path := filepath.Join(b, fmt.Sprintf("%d.png", i))
		before, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		img := noise(uint64(i), 20, 16)
		img.SetRGBA(3, 3, color.RGBA{R: 1, G: 2, B: 3, A: 255})
		encode(t, path, img)
		if digest(b) == first {
			t.Errorf("picture %d was edited, the digest is the same", i)
		}
		if err := os.WriteFile(path, before, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if digest(b) != first {
		t.Error("the digest is not that of the contents")
	}
}

func pictureInput(size int64) []Input {
	return []Input{{Name: "image", DType: tensor.Float32, Shape: []int64{Any, 3, size, size}}}
}

func noise(seed uint64, w, h int) *image.RGBA {
	r := rand.New(rand.NewPCG(seed, 0))
	img := image.NewRGBA(image.Rect(0, 0, w, h))
	for i := range img.Pix {
		img.Pix[i] = uint8(r.IntN(256))
		if i%4 == 3 {
			img.Pix[i] = 255
		}
	}
	return img
}

func encode(t *testing.T, path string, img image.Image) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	switch filepath.Ext(path) {
	case ".png":
		err = png.Encode(f, img)
	case ".jpg", ".JPEG":
		err = jpeg.Encode(f, img, &jpeg.Options{Quality: 100})
	case ".bmp":
		err = bmp.Encode(f, img)
	case ".tiff":
		err = tiff.Encode(f, img, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func pictures(t *testing.T, dir string, n int) {
	t.Helper()
	for i := range n {
		encode(t, filepath.Join(dir, fmt.Sprintf("%d.png", i)), noise(uint64(i), 20, 16))
	}
}

func TestPicturesOfEveryFormat(t *testing.T) {
	dir := t.TempDir()
	for i, name := range []string{"a.png", "sub/b.jpg", "sub/c.JPEG", "d.bmp", "e.tiff", ".hidden.png", ".git/f.png"} {
		encode(t, filepath.Join(dir, name), noise(uint64(i), 10, 12))
	}
	if err := os.WriteFile(filepath.Join(dir, "labels.csv"), []byte("a,1"), 0o644); err != nil {
		t.Fatal(err)
	}
	o := Options{Calibration: config.Calibration{Dataset: "images", Path: dir, NumSamples: 9, MinSamples: 5, BatchSize: 2, Preprocess: config.Preprocess{Scale: 1.0 / 255}}, Inputs: pictureInput(8)}
	s, err := Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	if s.Total != 5 || !slices.Equal(s.Notes, []string{"1 files that are no pictures were ignored"}) {
		t.Errorf("%d pictures, notes %q", s.Total, s.Notes)
	}
	batches, audit := mustRead(t, o)
	if len(batches) != 3 || audit.Samples != 5 || describe(batches[0].Tensors[0].Shape) != "[2,3,8,8]" {
		t.Errorf("%d batches of %d samples, %v", len(batches), audit.Samples, batches[0].Tensors[0].Shape)
	}
}

func TestPicturesThatCannotBeUsedAreRefused(t *testing.T) {
	good := t.TempDir()
	pictures(t, good, 4)
	bad, tiny, none := t.TempDir(), t.TempDir(), t.TempDir()
	pictures(t, bad, 3)
	if err := os.WriteFile(filepath.Join(bad, "9.png"), []byte("version https://git-lfs.github.com/spec/v1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	hollow, thin := t.TempDir(), t.TempDir()
	pictures(t, hollow, 3)
	if err := os.WriteFile(filepath.Join(hollow, "9.png"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	encode(t, filepath.Join(thin, "9.png"), noise(1, 3000, 1))
	encode(t, filepath.Join(thin, "a.png"), noise(2, 3000, 1))
	pictures(t, tiny, 4)
	file := filepath.Join(good, "0.png")
	three := pictureInput(8)
	gray := []Input{{Name: "image", DType: tensor.Float32, Shape: []int64{Any, 1, 8, 8}}}
	for name, c := range map[string]struct {
		path   string
		inputs []Input
		pre    config.Preprocess
		input  string
		say    string
	}{
		"no picture":            {path: none, inputs: three, say: "no picture found"},
		"no such folder":        {path: filepath.Join(none, "x"), inputs: three, say: "no such file"},
		"a file":                {path: file, inputs: three, say: "expected in a folder"},
		"not a picture":         {path: bad, inputs: three, say: "9.png: decode calibration picture: is a Git LFS pointer"},
		"an empty picture":      {path: hollow, inputs: three, say: "9.png: decode calibration picture: the file is empty"},
		"a picture of one row":  {path: thin, inputs: three, pre: config.Preprocess{Resize: 4000}, say: "9.png: preprocess calibration picture: 3000x1 pixels become 12000000x4000, more than can be resized"},
		"an infinite result":    {path: good, inputs: three, pre: config.Preprocess{Scale: 1, Std: []float64{1, 1e-45, 1}}, say: "calibration.preprocess turns the value 1 of channel 1 into +Inf"},
		"wrong channels":        {path: good, inputs: gray, say: "has 1 channels at axis 1, channel_order rgb and layout nchw give 3"},
		"wrong layout":          {path: good, inputs: three, pre: config.Preprocess{Layout: "nhwc"}, say: "has 8 channels at axis 3"},
		"another crop":          {path: good, inputs: three, pre: config.Preprocess{Crop: []int{4, 4}}, say: "crop is 4x4"},
		"crop of one number":    {path: good, inputs: three, pre: config.Preprocess{Crop: []int{4}}, say: "crop has 1 values"},
		"resize below the crop": {path: good, inputs: three, pre: config.Preprocess{Resize: 6}, say: "resize is 6, smaller than the crop"},
		"mean of two":           {path: good, inputs: three, pre: config.Preprocess{Mean: []float64{1, 2}}, say: "mean has 2 values"},
		"zero std":              {path: good, inputs: three, pre: config.Preprocess{Std: []float64{1, 0, 1}}, say: "std holds 0"},
		"unknown filter":        {path: good, inputs: three, pre: config.Preprocess{Filter: "lanczos"}, say: "unknown calibration.preprocess.filter"},
		"declared range":        {path: good, inputs: three, pre: config.Preprocess{Scale: 1, Range: []float64{0, 1}}, say: "outside of the declared range [0, 1]"},
		"two inputs":            {path: good, inputs: append(three, gray...), say: "the model has 2 inputs"},
		"another input":         {path: good, inputs: three, input: "y", say: `calibration.input is "y"`},
		"integers":              {path: good, inputs: []Input{{Name: "i", DType: tensor.Int64, Shape: []int64{Any, 3, 8, 8}}}, say: "cannot feed input i of type int64"},
		"three axes":            {path: good, inputs: []Input{{Name: "i", DType: tensor.Float32, Shape: []int64{Any, 8, 8}}}, say: "expected 4 axes"},
		"an open size":          {path: good, inputs: pictureInput(Any), say: "the size of pictures is open"},
	} {
		cal := config.Calibration{Dataset: "images", Path: c.path, Input: c.input, NumSamples: 4, MinSamples: 2, BatchSize: 2, Preprocess: c.pre}
		if cal.Preprocess.Order == "" {
			cal.Preprocess.Order = "rgb"
		}
		if cal.Preprocess.Layout == "" {
			cal.Preprocess.Layout = "nchw"
		}
		_, _, err := all(t, Options{Calibration: cal, Inputs: c.inputs})
		if failure.CodeOf(err) != failure.Calibration || !strings.Contains(fmt.Sprint(err), c.say) {
			t.Errorf("%s: %v does not say %q", name, err, c.say)
		}
	}
}

func TestPreprocessing(t *testing.T) {
	// Two columns of pure colours, twice as wide as high.
	img := image.NewRGBA(image.Rect(0, 0, 4, 2))
	for x := range 4 {
		for y := range 2 {
			img.SetRGBA(x, y, color.RGBA{R: uint8(60 * x), G: 100, B: 200, A: 255})
		}
	}
	at := func(pre config.Preprocess, shape []int64, dtype tensor.DType) []float64 {
		t.Helper()
		if pre.Scale == 0 {
			pre.Scale = 1
		}
		p, err := newPreprocessor(pre, Input{Name: "i", DType: dtype, Shape: append([]int64{Any}, shape...)})
		if err != nil {
			t.Fatal(err)
		}
		out := tensor.Zeros(dtype, p.shape()...)
		if err := p.apply(img, out.Data); err != nil {
			t.Fatal(err)
		}
		return out.Float64s()
	}
	// The centre crop of 2x2 takes columns 1 and 2.
	crop := config.Preprocess{Resize: 2, Order: "rgb", Layout: "nchw"}
	if d := cmp.Diff([]float64{60, 120, 60, 120, 100, 100, 100, 100, 200, 200, 200, 200}, at(crop, []int64{3, 2, 2}, tensor.Float32)); d != "" {
		t.Errorf("nchw rgb: %s", d)
	}
	crop.Order, crop.Layout = "bgr", "nhwc"
	if d := cmp.Diff([]float64{200, 100, 60, 200, 100, 120, 200, 100, 60, 200, 100, 120}, at(crop, []int64{2, 2, 3}, tensor.UInt8)); d != "" {
		t.Errorf("nhwc bgr: %s", d)
	}
	crop.Order, crop.Layout = "gray", "nchw"
	if d := cmp.Diff([]float64{99, 117, 99, 117}, at(crop, []int64{1, 2, 2}, tensor.Float32)); d != "" {
		t.Errorf("gray: %s", d)
	}
	crop = config.Preprocess{Resize: 2, Order: "rgb", Layout: "nchw", Scale: 0.01, Mean: []float64{0.5, 0, 1}, Std: []float64{0.5, 1, 2}}
	got := at(crop, []int64{3, 2, 2}, tensor.Float32)
	for i, want := range []float64{0.2, 1.4, 0.2, 1.4, 1, 1, 1, 1, 0.5, 0.5, 0.5, 0.5} {
		if math.Abs(got[i]-want) > 1e-6 {
			t.Errorf("mean and std: element %d is %g, want %g", i, got[i], want)
		}
	}
	if got := at(config.Preprocess{Order: "rgb", Layout: "nchw", Filter: "nearest"}, []int64{3, 1, 2}, tensor.Float32); got[0] == got[1] {
		t.Errorf("stretched: %v", got)
	}
}

func TestAlphaIsDroppedNotBlended(t *testing.T) {
	n := image.NewNRGBA(image.Rect(0, 0, 1, 1))
	n.SetNRGBA(0, 0, color.NRGBA{R: 200, G: 100, B: 50, A: 3})
	p := image.NewPaletted(image.Rect(0, 0, 1, 1), color.Palette{color.NRGBA{R: 200, G: 100, B: 50, A: 128}})
	for _, img := range []image.Image{n, p} {
		r, g, b, a := opaque(img).At(0, 0).RGBA()
		if r>>8 < 198 || g>>8 < 98 || b>>8 < 48 || a != 0xffff {
			t.Errorf("%T: %d %d %d %d", img, r>>8, g>>8, b>>8, a>>8)
		}
	}
}

func TestShorterSide(t *testing.T) {
	for _, c := range [][5]int{{500, 375, 256, 341, 256}, {375, 500, 256, 256, 341}, {10, 10, 4, 4, 4}, {1000, 1, 5, 5000, 5}} {
		if w, h := shorterSide(c[0], c[1], c[2]); w != c[3] || h != c[4] {
			t.Errorf("%v: %dx%d", c, w, h)
		}
	}
	for rest, want := range map[int]int{0: 0, 1: 0, 2: 1, 3: 2, 5: 2, 7: 4} {
		if got := half(rest); got != want {
			t.Errorf("half of %d is %d, want %d", rest, got, want)
		}
	}
}

func TestSyntheticDataAreSeededAndInRange(t *testing.T) {
	inputs := []Input{
		{Name: "f", DType: tensor.Float32, Shape: []int64{Any, 40}},
		{Name: "r", DType: tensor.Float32, Shape: []int64{Any, 40}, Range: &[2]float64{2, 3}},
		{Name: "i", DType: tensor.Int64, Shape: []int64{Any, 40}, Range: &[2]float64{4, 6}},
		{Name: "b", DType: tensor.Int32, Shape: []int64{Any, 40}},
	}
	o := Options{Calibration: config.Calibration{Dataset: "synthetic", AllowSynthetic: true, NumSamples: 6, MinSamples: 2, BatchSize: 3, Seed: 9}, Inputs: inputs}
	a, first := mustRead(t, o)
	_, second := mustRead(t, o)
	o.Calibration.Seed++
	_, third := mustRead(t, o)
	if first.Feeds() != second.Feeds() || first.Feeds() == third.Feeds() {
		t.Error("the seed does not decide the values")
	}
	low, high := map[string]float64{}, map[string]float64{}
	for _, b := range a {
		for _, x := range b.Tensors {
			for _, v := range x.Float64s() {
				low[x.Name], high[x.Name] = math.Min(low[x.Name], v), math.Max(high[x.Name], v)
			}
		}
	}
	if high["r"] > 3 || high["i"] != 6 || high["b"] != 1 || low["f"] > -1 {
		t.Errorf("from %v to %v", low, high)
	}
	o.Inputs = vector(Any)
	if _, _, err := all(t, o); failure.CodeOf(err) != failure.Calibration {
		t.Errorf("an open size: %v", err)
	}
}

func TestReadingStopsWithItsContext(t *testing.T) {
	path := writeNPY(t, filepath.Join(t.TempDir(), "x.npy"), rows(20, 3))
	s, err := Open(context.Background(), Options{Calibration: settings(path), Inputs: vector(3)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var last error
	for _, err := range s.Batches(ctx, 0) {
		last = err
		cancel()
	}
	if last != nil && !errors.Is(last, context.Canceled) {
		t.Errorf("error %v", last)
	}
	if _, err := s.Digest(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("digest: %v", err)
	}
}

func TestPathsAreKeptWhateverTheRootIs(t *testing.T) {
	for _, root := range []string{"", "a", "a/", "./a", "/other"} {
		l := fileList{root: root}
		want := []string{"a/x.png", "a/y/z.png", "a", "b/c", "a/ü.png"}
		for _, p := range want {
			l.add(p)
		}
		var got []string
		for i := range l.len() {
			got = append(got, l.at(i))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("root %q: -want +got\n%s", root, diff)
		}
	}
}

// TestMemoryDoesNotGrowWithTheSet reads a set of 100 and one of 10,000 samples.
func TestMemoryDoesNotGrowWithTheSet(t *testing.T) {
	const width = 4096
	peak := func(n int) uint64 {
		path := filepath.Join(t.TempDir(), "x.npy")
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		head := fmt.Sprintf("{'descr': '<f4', 'fortran_order': False, 'shape': (%d, %d), }", n, width)
		head += strings.Repeat(" ", 117-len(head)) + "\n"
		fmt.Fprintf(f, "\x93NUMPY\x01\x00%c\x00%s", len(head), head)
		row := make([]byte, 4*width)
		for i := range n {
			row[0], row[1] = byte(i), byte(i>>8)
			if _, err := f.Write(row); err != nil {
				t.Fatal(err)
			}
		}
		f.Close()
		s, err := Open(context.Background(), Options{Calibration: config.Calibration{Dataset: "numpy", Path: path, NumSamples: n, MinSamples: 1, BatchSize: 8}, Inputs: vector(width)})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		audit, most := NewAudit(), uint64(0)
		for b, err := range s.Batches(context.Background(), 0) {
			if err != nil {
				t.Fatal(err)
			}
			audit.Add(b)
			if b.First%(n/10) == 0 {
				runtime.GC()
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				most = max(most, m.HeapAlloc)
			}
		}
		if audit.Samples != n || audit.Distinct() != n {
			t.Fatalf("%d samples, %d distinct", audit.Samples, audit.Distinct())
		}
		return most
	}
	small, large := peak(100), peak(10000)
	if large > small+4<<20 {
		t.Errorf("%d bytes for 100 samples, %d for 10,000", small, large)
	}
}

func FuzzHeader(f *testing.F) {
	f.Add("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }")
	f.Add("{'descr': '>i8', 'fortran_order': True, 'shape': (), }")
	f.Add("{'descr': '|b1', 'fortran_order': False, 'shape': (99999999999999999999,), }")
	f.Fuzz(func(t *testing.T, text string) {
		var h header
		if h.parse(text) != nil {
			return
		}
		if _, err := tensor.CheckedElements(h.shape); err != nil || h.size == 0 {
			t.Fatalf("%q gave %+v", text, h)
		}
	})
}
