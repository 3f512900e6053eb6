package quantize

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/calibration"
	"github.com/trtship/trtship/internal/calibration/calibrationtest"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/ort"
	"github.com/trtship/trtship/internal/precision"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/internal/testkit"
	"github.com/trtship/trtship/report"
	"github.com/trtship/trtship/stages/calibrate"
)

func TestMain(m *testing.M) {
	ort.RunChildIfAsked()
	testkit.Main(m)
}

// result is what a run of the stage gave.
type result struct {
	checks    []report.Check
	graphs    map[string]artifact.Artifact // by precision
	list      []report.Validation
	described map[string]precision.Description
}

// of returns the checks of an id and a precision.
func (r *result) of(id, p string) []report.Check {
	var out []report.Check
	for _, c := range r.checks {
		if c.ID == id && c.Subject.Precision == p {
			out = append(out, c)
		}
	}
	return out
}

func run(t *testing.T, c *calibrationtest.Case) (*result, error) {
	t.Helper()
	var more []artifact.Artifact
	if slices.Contains(c.Config.TensorRT.Precisions, "int8") {
		out := testkit.NewOutputs(t)
		if _, err := calibrate.New(c.Config, calibrate.Tools{ORT: c.Library}).Run(context.Background(), c.Inputs(), out); err != nil {
			t.Fatal(err)
		}
		more = append(more, out.Published...)
	}
	out := testkit.NewOutputs(t)
	checks, err := New(c.Config, c.Library).Run(context.Background(), c.Inputs(more...), out)
	r := &result{checks: checks, graphs: map[string]artifact.Artifact{}, described: map[string]precision.Description{}}
	for _, a := range out.Published {
		if a.Kind != artifact.PrecisionONNX {
			continue
		}
		r.graphs[a.Label] = a
		b, err := os.ReadFile(filepath.Join(a.Dir, DescriptionFile))
		if err != nil {
			t.Fatal(err)
		}
		var d precision.Description
		if err := json.Unmarshal(b, &d); err != nil {
			t.Fatal(err)
		}
		r.described[a.Label] = d
	}
	if err == nil {
		out.Document(artifact.PrecisionReport, &r.list)
	}
	return r, err
}

func mustRun(t *testing.T, c *calibrationtest.Case) *result {
	t.Helper()
	r, err := run(t, c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func bad(checks []report.Check) []string {
	var out []string
	for _, c := range checks {
		if !c.Verdict.Good() {
			out = append(out, c.ID+" "+c.Subject.Precision+": "+c.Got+" "+c.Detail)
		}
	}
	return out
}

func TestEveryPrecisionHasAGraphThatHolds(t *testing.T) {
	c := calibrationtest.New(t, "cnn", "")
	c.Config.TensorRT.Int8FP16Fallback = true
	r := mustRun(t, c)
	if b := bad(r.checks); len(b) > 0 {
		t.Errorf("%q", b)
	}
	if len(r.graphs) != 3 || len(r.list) != 3 {
		t.Fatalf("%d graphs, %d validations", len(r.graphs), len(r.list))
	}
	types := map[string]tensor.DType{"fp16": tensor.Float16, "bf16": tensor.BFloat16, "int8": tensor.Int8}
	for p, want := range types {
		m, err := onnx.Open(filepath.Join(r.graphs[p].Dir, modelFile))
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, i := range m.Graph().GetInitializer() {
			d, _ := onnx.DType(i.GetDataType())
			found = found || d == want && len(i.GetDims()) == 4
		}
		if !found {
			t.Errorf("%s: no weight is %s", p, want)
		}
		if v := m.Outputs()[0]; v.Name != "logits" || v.DType != tensor.Float32 {
			t.Errorf("%s: output %s", p, v)
		}
		m.Close()
	}
	for _, v := range r.list {
		if !v.Preview || v.Stage != "quantize" || v.Task == nil || v.Task.Candidate < 0.95 || v.Stored.Candidate == "" || len(v.Notes) == 0 {
			t.Errorf("%s: %+v", v.Precision, v)
		}
	}
	for _, k := range r.checks {
		if !k.Preview || k.Subject.Precision == "" {
			t.Errorf("%s is not marked as a preview of a precision", k.ID)
		}
	}
	if d := r.described["int8"]; len(d.Quantized) != 5 || d.Low == 0 || len(d.Skipped) != 0 {
		t.Errorf("int8: %+v", d)
	}
	if len(r.of("quantize/task-metric", "int8")) != 1 || len(r.of(checkCoverage, "int8")) != 1 || len(r.of(checkRange, "fp16")) != 1 {
		t.Errorf("checks %v", r.checks)
	}
}

func TestTheSameInputsGiveTheSameGraphs(t *testing.T) {
	c := calibrationtest.New(t, "cnn", "")
	a, b := mustRun(t, c), mustRun(t, c)
	for p := range a.graphs {
		x, err := os.ReadFile(filepath.Join(a.graphs[p].Dir, modelFile))
		if err != nil {
			t.Fatal(err)
		}
		y, err := os.ReadFile(filepath.Join(b.graphs[p].Dir, modelFile))
		if err != nil {
			t.Fatal(err)
		}
		if string(x) != string(y) {
			t.Errorf("%s: other bytes", p)
		}
	}
}

func TestANodeThatOverflowsIsNamedAndKeepFP32RepairsIt(t *testing.T) {
	c := calibrationtest.New(t, "overflow", "")
	c.Config.TensorRT.Precisions = []string{"fp32", "fp16"}
	r := mustRun(t, c)
	check := r.of(checkRange, "fp16")[0]
	if check.Verdict != report.Fail || check.Subject.Node != "/big" || !strings.Contains(check.Detail, "/big: b reaches ") || !strings.Contains(check.Detail, "which becomes infinite") {
		t.Errorf("%+v", check)
	}
	if check.Hint != `quantize: {keep_fp32: ["/big", "/small"]}` {
		t.Errorf("hint %s", check.Hint)
	}
	if r.graphs["fp16"].Dir == "" {
		t.Error("the graph is kept back: nobody can look at it")
	}
	if len(bad(r.of("quantize/within-tolerance", "fp16"))) == 0 {
		t.Error("the preview of an overflow holds")
	}
	c.Config.Quantize.KeepFP32 = []string{"/big"}
	r = mustRun(t, c)
	if b := bad(r.checks); len(b) > 0 {
		t.Errorf("after keep_fp32: %q", b)
	}
	kept := map[string]bool{}
	for _, k := range r.described["fp16"].Kept {
		kept[k.Node] = true
	}
	if d := cmp.Diff(map[string]bool{"/big": true, "/small": true}, kept); d != "" {
		t.Error(d)
	}
}

func TestBFloat16HasTheRangeAndIsEmulated(t *testing.T) {
	c := calibrationtest.New(t, "overflow", "")
	c.Config.TensorRT.Precisions = []string{"bf16"}
	r := mustRun(t, c)
	if b := bad(r.of(checkRange, "bf16")); len(b) > 0 {
		t.Errorf("%q", b)
	}
	if !strings.Contains(strings.Join(r.list[0].Notes, " "), "rounds every value to bfloat16") {
		t.Errorf("notes %q", r.list[0].Notes)
	}
}

func TestInt8WithoutFallbackStaysFloat32(t *testing.T) {
	c := calibrationtest.New(t, "cnn", "")
	c.Config.TensorRT.Precisions, c.Config.TensorRT.Int8FP16Fallback = []string{"int8"}, false
	c.Config.Quantize.Exclude = []string{"/conv1"}
	r := mustRun(t, c)
	if b := bad(r.checks); len(b) > 0 {
		t.Errorf("%q", b)
	}
	d := r.described["int8"]
	if d.Low != 0 || len(d.Skipped) != 1 || d.Skipped[0].Reason != "listed in int8_exclude" {
		t.Errorf("%+v", d)
	}
	if len(r.of(checkRange, "int8")) != 0 {
		t.Error("a range of fp16 was checked")
	}
	c.Config.TensorRT.Int8FP16Fallback, c.Config.Target = true, "onnxruntime"
	if d := mustRun(t, c).described["int8"]; d.Low != 0 {
		t.Errorf("a graph for ONNX Runtime is float16: %+v", d)
	}
}

func TestAMissingRangeFailsTheCoverage(t *testing.T) {
	w := &work{Stage: New(calibrationtest.New(t, "cnn", "").Config, ort.Library{})}
	g := &precision.Graph{Description: precision.Description{Precision: "int8", Quantized: []string{"/a"}, Skipped: []precision.Skipped{{Node: "/b", Reason: "no range of q", Unwanted: true}}}}
	check := w.coverageCheck(g, 0)
	if check.Verdict != report.Fail || check.Detail != "/b: no range of q" || check.Got != "1 nodes in int8, 1 not" {
		t.Errorf("%+v", check)
	}
}

func TestATypingMistakeInKeepFP32IsRefused(t *testing.T) {
	c := calibrationtest.New(t, "cnn", "")
	c.Config.TensorRT.Precisions, c.Config.Quantize.KeepFP32 = []string{"fp16"}, []string{"/conv9"}
	if _, err := run(t, c); failure.CodeOf(err) != failure.Usage || !strings.Contains(err.Error(), "quantize.keep_fp32 matches no node: /conv9") {
		t.Errorf("error %v", err)
	}
}

func TestWhatTheStageReads(t *testing.T) {
	c := calibrationtest.New(t, "cnn", "")
	s := New(c.Config, c.Library)
	optional := func() bool {
		for _, in := range s.Spec().In {
			if in.Kind == artifact.CalibrationData {
				return in.Optional
			}
		}
		return false
	}
	if optional() {
		t.Error("int8 without a calibration")
	}
	if _, err := s.Run(context.Background(), c.Inputs(), testkit.NewOutputs(t)); err == nil {
		t.Error("int8 ran without a calibration")
	}
	c.Config.TensorRT.Precisions = []string{"fp16"}
	if !optional() {
		t.Error("fp16 needs a calibration")
	}
	if tools, err := s.Tools(context.Background()); err != nil || tools["onnxruntime"] != "test" || len(s.Sources()) != 0 {
		t.Errorf("%v %v", tools, err)
	}
	before, err := json.Marshal(s.Settings())
	if err != nil {
		t.Fatal(err)
	}
	c.Config.Quantize.KeepFP32 = []string{"/a"}
	after, err := json.Marshal(s.Settings())
	if err != nil || string(before) == string(after) {
		t.Error("keep_fp32 is not among the settings")
	}
	broken := artifact.Artifact{Dir: t.TempDir(), Record: artifact.Record{Kind: artifact.CalibrationData}}
	c.Config.TensorRT.Precisions = []string{"int8"}
	if _, err := s.Run(context.Background(), c.Inputs(broken), testkit.NewOutputs(t)); failure.CodeOf(err) != failure.Artifact {
		t.Errorf("an empty calibration: %v", err)
	}
	if err := os.WriteFile(filepath.Join(broken.Dir, calibration.CacheFile), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Run(context.Background(), c.Inputs(broken), testkit.NewOutputs(t)); failure.CodeOf(err) != failure.Calibration {
		t.Errorf("a broken cache: %v", err)
	}
}
