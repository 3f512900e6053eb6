package sensitivity

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"gopkg.in/yaml.v3"

	"github.com/trtship/trtship/internal/calibration"
	"github.com/trtship/trtship/internal/calibration/calibrationtest"
	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/ort"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/internal/testkit"
	"github.com/trtship/trtship/report"
)

func TestMain(m *testing.M) {
	ort.RunChildIfAsked()
	testkit.Main(m)
}

// options are those of a case, observed over its reference.
func options(t *testing.T, c *calibrationtest.Case, p string) Options {
	t.Helper()
	path := filepath.Join(c.Model.Dir, "model.onnx")
	m, err := onnx.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	observed, err := calibration.Observe(context.Background(), calibration.ObserveOptions{Library: c.Library, Path: path, Model: m, Reference: c.Reference})
	if err != nil {
		t.Fatal(err)
	}
	scales := map[string]float32{}
	for name, v := range observed {
		scales[name] = calibration.Scale(float32(v))
	}
	return Options{
		Library: c.Library, Path: path, Model: m, Reference: c.Reference, Config: c.Config, Precision: p, Scales: scales, Scratch: t.TempDir(),
		Observed: func(name string) (float64, bool) { v, ok := observed[name]; return v, ok },
	}
}

func mustAnalyze(t *testing.T, o Options) *Result {
	t.Helper()
	r, err := Analyze(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(o.Scratch)
	if err != nil || len(left) != 0 {
		t.Errorf("%d files are left", len(left))
	}
	return r
}

func TestOverflowRanksFirstAndTheSuggestionHolds(t *testing.T) {
	c := calibrationtest.New(t, "overflow", "")
	r := mustAnalyze(t, options(t, c, "fp16"))
	if r.Whole.Node != "all nodes" || !math.IsInf(float64(r.Whole.SQNR), -1) {
		t.Errorf("all at once: %+v", r.Whole)
	}
	if first := r.Rows[0]; !slices.Contains([]string{"/big", "/small"}, first.Node) || !math.IsInf(float64(first.SQNR), -1) {
		t.Errorf("first: %+v", first)
	}
	if !slices.IsSortedFunc(r.Rows, func(a, b Row) int {
		if a.SQNR < b.SQNR {
			return -1
		}
		return 0
	}) || len(r.Rows) != 5 {
		t.Errorf("rows %+v", r.Rows)
	}
	if !r.Holds || r.Key != "keep_fp32" || len(r.Keep) != 1 || r.Keep[0] != "/big" {
		t.Errorf("keep %q, holds %t: %s", r.Keep, r.Holds, r.Worst)
	}
	// The patch is a configuration that a second analysis finds nothing to add to.
	var patch struct {
		Quantize struct {
			KeepFP32 []string `yaml:"keep_fp32"`
		}
	}
	if err := yaml.Unmarshal([]byte(r.Patch(nil)), &patch); err != nil {
		t.Fatal(err)
	}
	c.Config.Quantize.KeepFP32 = patch.Quantize.KeepFP32
	if again := mustAnalyze(t, options(t, c, "fp16")); !again.Holds || len(again.Keep) != 0 || again.Patch(nil) != "" {
		t.Errorf("with the patch: %+v", again)
	}
}

func TestNodesOfInt8AreMeasuredAlone(t *testing.T) {
	c := calibrationtest.New(t, "cnn", "")
	r := mustAnalyze(t, options(t, c, "int8"))
	var nodes []string
	for _, row := range r.Rows {
		nodes = append(nodes, row.Node)
		if !(row.SQNR > 5 && row.SQNR < 100) || row.Accuracy == nil || row.Output != "logits" || row.MaxAbs <= 0 {
			t.Errorf("%+v", row)
		}
	}
	slices.Sort(nodes)
	if d := cmp.Diff([]string{"/conv1", "/conv2", "/fc", "/pool"}, nodes); d != "" {
		t.Error(d)
	}
	if r.Float == nil || *r.Float != 1 || r.Key != "int8_exclude" {
		t.Errorf("%+v", r)
	}
}

func TestTheSuggestionIsMinimal(t *testing.T) {
	c := calibrationtest.New(t, "cnn", "")
	o := options(t, c, "int8")
	o.Scales["r1"] = 3 // one absurd range: whoever reads it is spoilt
	r := mustAnalyze(t, o)
	if !r.Holds || len(r.Keep) != 1 || r.Keep[0] != "/conv2" {
		t.Errorf("keep %q, holds %t, rows %+v", r.Keep, r.Holds, r.Rows)
	}
	if p := r.Patch([]string{"/mine"}); !strings.Contains(p, "  int8_exclude:\n    - \"/mine\"\n    - \"/conv2\"\n") {
		t.Errorf("patch %s", p)
	}
}

func TestWhatCannotHoldIsSaid(t *testing.T) {
	c := calibrationtest.New(t, "cnn", "")
	zero := 0.0
	c.Config.Validation.Tolerances = map[string]config.Tolerance{"int8": {Atol: &zero, Rtol: &zero, MaxBreaches: &zero}}
	o := options(t, c, "int8")
	o.MostKept = 2
	r := mustAnalyze(t, o)
	if r.Holds || len(r.Keep) != 0 || r.Worst == "" || len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "even with the 2 most sensitive nodes kept") {
		t.Errorf("%+v", r)
	}
	if r.Patch(nil) != "" {
		t.Error("a patch for what does not hold")
	}
}

func TestPlot(t *testing.T) {
	r := &Result{Precision: "int8"}
	inf := report.Number(math.Inf(1))
	for i := range 50 {
		r.Rows = append(r.Rows, Row{Node: strings.Repeat("/layer", i+1) + "/Conv", SQNR: report.Number(i)})
	}
	r.Rows = append(r.Rows, Row{Node: "/unchanged", SQNR: inf})
	svg, err := r.Plot()
	if err != nil || !strings.Contains(string(svg), "<svg") || !strings.Contains(string(svg), "/layer/Conv") || strings.Contains(string(svg), "/unchanged") {
		t.Errorf("%v %.200s", err, svg)
	}
	if _, err := (&Result{}).Plot(); err != nil {
		t.Errorf("an empty plot: %v", err)
	}
}

func TestNoise(t *testing.T) {
	f := func(v ...float32) tensor.Tensor { return tensor.FromFloat32s([]int64{int64(len(v))}, v) }
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for name, c := range map[string]struct {
		want, got tensor.Tensor
		db        float64
	}{
		"equal":         {f(1, 2), f(1, 2), math.Inf(1)},
		"a tenth off":   {f(10, 0), f(11, 0), 20},
		"NaN":           {f(1, 2), f(1, nan), math.Inf(-1)},
		"the same NaN":  {f(1, nan), f(1, nan), math.Inf(1)},
		"infinity":      {f(1, 2), f(inf, 2), math.Inf(-1)},
		"another size":  {f(1, 2), f(1), math.Inf(-1)},
		"the same -Inf": {f(-inf, 1), f(-inf, 1), math.Inf(1)},
	} {
		var n noise
		n.add(c.want, c.got)
		if db := n.decibels(); math.Abs(db-c.db) > 1e-6 && db != c.db {
			t.Errorf("%s: %g dB, want %g", name, db, c.db)
		}
	}
}

func TestARefenceWithoutSamplesIsRefused(t *testing.T) {
	c := calibrationtest.New(t, "cnn", "")
	o := options(t, c, "fp16")
	o.Reference.Points, o.Reference.Task = nil, nil
	if _, err := Analyze(context.Background(), o); failure.CodeOf(err) != failure.Artifact {
		t.Errorf("error %v", err)
	}
}
