package validation

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/trtship/trtship/internal/ort"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/internal/testkit"
	"github.com/trtship/trtship/report"
)

func TestMain(m *testing.M) {
	ort.RunChildIfAsked()
	testkit.Main(m)
}

func library(t testing.TB) ort.Library {
	t.Helper()
	lib, err := ort.Find(t.Context(), ort.Places{File: testkit.ORTLibrary(t)})
	if err != nil {
		t.Fatal(err)
	}
	return lib
}

func caseFile(t testing.TB, parts ...string) string {
	t.Helper()
	return filepath.Join(append([]string{testkit.Root(t), "testdata", "cases"}, parts...)...)
}

// answer is a model in Go: a reference or a candidate.
type answer func(feed []tensor.Named) ([]tensor.Named, error)

func (a answer) Infer(_ context.Context, feed []tensor.Named) ([]tensor.Named, error) { return a(feed) }

// single is a model of one input and one output of floats.
func single(f func(x tensor.Tensor) tensor.Tensor) answer {
	return func(feed []tensor.Named) ([]tensor.Named, error) {
		return []tensor.Named{{Name: "y", Tensor: f(feed[0].Tensor)}}, nil
	}
}

// rowMeans is x.mean(1, keepdim=True) of a matrix.
var rowMeans = single(func(x tensor.Tensor) tensor.Tensor {
	n, width := int(x.Shape[0]), int(x.Shape[1])
	v, y := x.Float64s(), make([]float64, n)
	for i := range y {
		for _, e := range v[i*width : (i+1)*width] {
			y[i] += e / float64(width)
		}
	}
	return tensor.FromFloat64s(tensor.Float32, []int64{int64(n), 1}, y)
})

// batches are the points min, opt, max and off-profile of a model with one
// input x of a dynamic batch.
func batches(width int64, sizes ...int64) Plan {
	names := []string{"min", "opt", "max", "off-profile"}
	p := Plan{Inputs: []Input{{Name: "x", DType: tensor.Float32, Batch: true, Rank: 2}}, Samples: 2, Seed: 1, MinBatch: sizes[0]}
	for i, n := range sizes {
		p.Points = append(p.Points, Point{Name: names[i], Shapes: map[string][]int64{"x": {n, width}}})
	}
	return p
}

// reference lets a model in Go answer the feeds of a plan.
func reference(t testing.TB, p Plan, model answer) *Reference {
	t.Helper()
	ref, err := WriteFeeds(t.TempDir(), p)
	if err != nil {
		t.Fatal(err)
	}
	var outputs []Array
	for i, f := range ref.Feeds() {
		feed, err := tensor.ReadNPZ(f.In)
		if err != nil {
			t.Fatal(err)
		}
		out, err := model(feed)
		if err != nil {
			t.Fatal(err)
		}
		if err := tensor.WriteNPZ(f.Out, out); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			for _, o := range out {
				outputs = append(outputs, Array{Name: o.Name, DType: o.DType})
			}
		}
	}
	if err := ref.Save("a model in Go", outputs); err != nil {
		t.Fatal(err)
	}
	opened, err := OpenReference(ref.Dir)
	if err != nil {
		t.Fatal(err)
	}
	return opened
}

func options(t testing.TB) Options {
	t.Helper()
	cosine := report.Number(0.9999)
	return Options{Stage: "validate", Precision: "onnx", Dir: t.TempDir(), Tolerance: func(string) report.Tolerance {
		return report.Tolerance{Atol: 1e-5, Rtol: 1e-4, CosineMin: &cosine}
	}}
}

// verdicts sums up checks as "id[ output@point] verdict", without the passes.
func verdicts(checks []report.Check) []string {
	out := []string{}
	for _, c := range checks {
		if c.Verdict == report.Pass {
			continue
		}
		s := strings.TrimPrefix(c.ID, "validate/")
		if c.Subject.Output != "" || c.Subject.Point != "" {
			s += fmt.Sprintf(" %s@%s", c.Subject.Output, c.Subject.Point)
		}
		out = append(out, s+" "+string(c.Verdict))
	}
	return out
}

func find(t testing.TB, checks []report.Check, id string) report.Check {
	t.Helper()
	for _, c := range checks {
		if c.ID == "validate/"+id && c.Verdict != report.Pass {
			return c
		}
	}
	for _, c := range checks {
		if c.ID == "validate/"+id {
			return c
		}
	}
	t.Fatalf("there is no check %s", id)
	return report.Check{}
}
