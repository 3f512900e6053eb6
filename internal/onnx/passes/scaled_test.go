package passes

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/trtship/trtship/internal/onnx/onnxtest"
	"github.com/trtship/trtship/internal/tensor"
)

func TestScaledElementsAreTheSameHoweverTheyAreRead(t *testing.T) {
	for _, d := range []tensor.DType{tensor.Float32, tensor.Float64} {
		in := tensor.FromFloat64s(d, []int64{12}, []float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12})
		want := tensor.FromFloat64s(d, []int64{12}, []float64{1, 2, 3, -4, -5, -6, 3.5, 4, 4.5, 0, 0, 0}).Data
		r := &scaledReader{
			open: func() (*io.SectionReader, error) {
				return io.NewSectionReader(bytes.NewReader(in.Data), 0, int64(len(in.Data))), nil
			},
			width: int64(d.Size()), double: d == tensor.Float64, run: 3, factors: []float64{1, -1, 0.5, 0},
		}
		for off := range len(want) + 3 {
			for n := range len(want) + 3 {
				got := make([]byte, n)
				count, err := r.ReadAt(got, int64(off))
				rest := want[min(off, len(want)):]
				if exp := min(n, len(rest)); count != exp || (count < n) != (err == io.EOF && count < n) {
					t.Fatalf("%s: ReadAt(%d bytes, %d) = %d, %v, want %d", d, n, off, count, err, exp)
				}
				if !bytes.Equal(got[:count], rest[:count]) {
					t.Fatalf("%s: ReadAt(%d bytes, %d) = %x, want %x", d, n, off, got[:count], rest[:count])
				}
			}
		}
	}
	broken := errors.New("gone")
	r := &scaledReader{open: func() (*io.SectionReader, error) { return nil, broken }, width: 4, run: 1, factors: []float64{1}}
	for _, off := range []int64{0, 1} {
		if _, err := r.ReadAt(make([]byte, 4), off); !errors.Is(err, broken) {
			t.Errorf("error is %v", err)
		}
	}
}

func TestFactorsThatCouldOverflowAreNotFolded(t *testing.T) {
	for name, variance := range map[string]float32{"a vanishing variance": 1e-38, "a negative one": -2, "a huge one": 3e38} {
		b := onnxtest.New(17).Input("x", tensor.Float32, "n", 1, 4, 4).Floats("w", []int64{1, 1, 1, 1}, 2).Floats("s", []int64{1}, 1).Floats("z", []int64{1}, 0).Floats("v", []int64{1}, variance).
			Node("Conv", "x w", "c").Node("BatchNormalization", "c s z z v", "y", onnxtest.Float("epsilon", 0)).Output("y", tensor.Float32)
		if got := counts(optimize(t, b.Model(t))); got["BatchNormalization"] != 1 {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestFoldedWeightsOfAClosedModelCanStillBeRead(t *testing.T) {
	b := onnxtest.New(17).Input("x", tensor.Float32, "n", 1, 4, 4).Floats("w", []int64{2, 1, 1, 1}, 2, 3).Floats("s", []int64{2}, 1, 2).Floats("z", []int64{2}, 0, 1).Floats("v", []int64{2}, 1, 4).
		Node("Conv", "x w", "c").Node("BatchNormalization", "c s z z v", "y", onnxtest.Float("epsilon", 0)).Output("y", tensor.Float32)
	m := b.Model(t)
	got := optimize(t, m)
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	for _, w := range got.Graph().Initializer {
		d, err := got.TensorData(w)
		if err != nil {
			t.Fatal(err)
		}
		if v := d.Float64s(); len(w.Dims) == 4 && (v[0] != 2 || v[1] != 3) {
			t.Errorf("weights are %v", v)
		}
	}
	if len(got.DataFiles()) != 0 {
		t.Errorf("data files are %v", got.DataFiles())
	}
}
