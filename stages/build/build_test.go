package build

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/engine"
	"github.com/trtship/trtship/internal/engine/enginetest"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/testkit"
	"github.com/trtship/trtship/internal/worker"
	"github.com/trtship/trtship/report"
)

func folder(t *testing.T, files ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, f := range files {
		if err := os.WriteFile(filepath.Join(dir, f), []byte(f), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func settings(typing string, precisions ...string) *config.Config {
	return &config.Config{
		Model: config.Model{OutputNames: []string{"y"}},
		TensorRT: config.TensorRT{Typing: typing, Precisions: precisions, Profiles: []config.Profile{
			{Inputs: map[string]config.ShapeRange{"x": {Min: []int64{1, 4}, Opt: []int64{2, 4}, Max: []int64{4, 4}}}},
		}},
	}
}

func inputs(t *testing.T) enginetest.Inputs {
	t.Helper()
	in := enginetest.Inputs{}
	in.Add(artifact.OptimizedONNX, "", folder(t, "model.onnx"))
	in.Add(artifact.PrecisionONNX, "fp16", folder(t, "model.onnx"))
	in.Add(artifact.CalibrationData, "", folder(t, "calibration.cache"))
	return in
}

// newStage returns the stage with fake children, and counts how many were started.
func newStage(c *config.Config, children ...*enginetest.Child) (*Stage, *int) {
	started := new(int)
	return New(c, Tools{
		Start: func(context.Context, io.Writer, func(done, total int64, label string)) (Child, error) {
			child := children[min(*started, len(children)-1)]
			*started++
			return child, nil
		},
		Versions: func(context.Context) (map[string]string, error) { return map[string]string{"tensorrt": "10.6.0"}, nil },
		Driver:   func() string { return "580.1" },
	}), started
}

func verdicts(checks []report.Check) string {
	var b strings.Builder
	for _, c := range checks {
		b.WriteString(c.Subject.Precision + " " + strings.TrimPrefix(c.ID, "build/") + " " + string(c.Verdict) + "\n")
	}
	return b.String()
}

func TestOneEngineIsMadeOfEachPrecisionGraph(t *testing.T) {
	child := &enginetest.Child{}
	s, started := newStage(settings("strong", "fp32", "fp16"), child)
	in, out := inputs(t), testkit.NewOutputs(t)
	checks, err := s.Run(context.Background(), in, out)
	if err != nil {
		t.Fatal(err)
	}
	want := "fp32 operators-supported pass\nfp32 engine-built pass\nfp32 tensors-match pass\nfp32 precision-in-layers pass\n" +
		"fp16 operators-supported pass\nfp16 engine-built pass\nfp16 tensors-match pass\nfp16 precision-in-layers pass\n"
	if got := verdicts(checks); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if *started != 1 || !child.Closed {
		t.Errorf("%d children, closed: %v; want one that is closed", *started, child.Closed)
	}
	if len(out.Published) != 2 || out.Published[1].Label != "fp16" {
		t.Fatalf("published %v, want two engines", out.Published)
	}
	d, err := engine.ReadDescription(out.Published[1].Dir)
	if err != nil || d.Driver != "580.1" || d.Precision != "fp16" {
		t.Errorf("description %+v, %v", d, err)
	}
	if got := child.Builds[0]["onnx"]; got != filepath.Join(in[artifact.OptimizedONNX][0].Dir, "model.onnx") {
		t.Errorf("fp32 was built from %v, want the optimized graph", got)
	}
	if got := child.Builds[1]["onnx"]; got != filepath.Join(in[artifact.PrecisionONNX][0].Dir, "model.onnx") {
		t.Errorf("fp16 was built from %v, want its precision graph", got)
	}
	if c := checks[5]; !strings.Contains(c.Detail, "12 times: clamped N values") || !strings.Contains(c.Detail, "no fast FP16") {
		t.Errorf("the check says %q, want the grouped warning and the note on FP16", c.Detail)
	}
}

func TestWeakTypingUsesTheOptimizedGraphAndTheCache(t *testing.T) {
	child := &enginetest.Child{}
	s, _ := newStage(settings("weak", "int8"), child)
	in := inputs(t)
	if _, err := s.Run(context.Background(), in, testkit.NewOutputs(t)); err != nil {
		t.Fatal(err)
	}
	b := child.Builds[0]
	if b["calibration_cache"] != filepath.Join(in[artifact.CalibrationData][0].Dir, "calibration.cache") ||
		b["onnx"] != filepath.Join(in[artifact.OptimizedONNX][0].Dir, "model.onnx") || b["typing"] != "weak" {
		t.Errorf("asked for %v", b)
	}
	delete(in, artifact.CalibrationData)
	if _, err := s.Run(context.Background(), in, testkit.NewOutputs(t)); err == nil {
		t.Error("int8 was built without a cache")
	}
}

func TestAnInt8EngineWithoutInt8LayersFailsAndSaysWhatWouldAskForThem(t *testing.T) {
	for _, constraints := range []string{"none", "prefer"} {
		c := settings("weak", "int8")
		c.TensorRT.Constraints = constraints
		child := &enginetest.Child{Layers: map[string]int{"fp32": 7}}
		s, _ := newStage(c, child)
		checks, err := s.Run(context.Background(), inputs(t), testkit.NewOutputs(t))
		if err != nil {
			t.Fatal(err)
		}
		last := checks[len(checks)-1]
		if last.ID != checkPrecision || last.Verdict != report.Fail {
			t.Fatalf("%s: got %s %s", constraints, last.ID, last.Verdict)
		}
		if says := strings.Contains(last.Hint, "precision_constraints"); says != (constraints == "none") {
			t.Errorf("%s: hint %q", constraints, last.Hint)
		}
		if got := child.Builds[0]["precision_constraints"]; got != constraints {
			t.Errorf("the builder was asked for %v, want %s", got, constraints)
		}
	}
}

func TestAPrecisionWithoutAGraphIsRefused(t *testing.T) {
	s, _ := newStage(settings("strong", "int8"), &enginetest.Child{})
	_, err := s.Run(context.Background(), inputs(t), testkit.NewOutputs(t))
	if failure.CodeOf(err) != failure.Artifact || !strings.Contains(err.Error(), "int8") {
		t.Errorf("got %v, want exit code 11 naming int8", err)
	}
}

func TestAllRefusedOperatorsAreInOneCheck(t *testing.T) {
	refused := failure.New(failure.Build, "the ONNX parser refused the graph").With("parser_errors", "%s",
		`[{"text": "no plugin", "index": 0, "node_name": "foo1", "node_operator": "Foo"}, {"text": "no plugin", "index": 2, "node_operator": "Bar"},
		  {"text": "no plugin", "index": 3, "node_name": "foo2", "node_operator": "Foo"}]`)
	s, _ := newStage(settings("strong", "fp32"), &enginetest.Child{Fail: map[string]error{"trt.build": refused}})
	out := testkit.NewOutputs(t)
	checks, err := s.Run(context.Background(), inputs(t), out)
	if err != nil {
		t.Fatal(err)
	}
	if got := verdicts(checks); got != "fp32 operators-supported fail\n" {
		t.Fatalf("got %s", got)
	}
	c := checks[0]
	for _, want := range []string{"3 refused: Bar, Foo", "Bar (1): node 2", "Foo (2): foo1, foo2"} {
		if !strings.Contains(c.Got+"\n"+c.Detail, want) {
			t.Errorf("the check does not say %q: %s\n%s", want, c.Got, c.Detail)
		}
	}
	if len(out.Published) != 0 {
		t.Errorf("published %v", out.Published)
	}
}

func TestABuildThatDiesIsBrokenAndTheNextPrecisionGetsAFreshChild(t *testing.T) {
	crash := &worker.Crash{Subject: "digits", Method: "trt.build", Err: errors.New("crashed (SIGSEGV)"), Tail: "last words"}
	first, second := &enginetest.Child{Fail: map[string]error{"trt.build": crash}}, &enginetest.Child{}
	s, started := newStage(settings("strong", "fp32", "fp16"), first, second)
	out := testkit.NewOutputs(t)
	checks, err := s.Run(context.Background(), inputs(t), out)
	if err != nil {
		t.Fatal(err)
	}
	if *started != 2 || !first.Closed || !second.Closed {
		t.Errorf("%d children were started, closed %v and %v", *started, first.Closed, second.Closed)
	}
	if report.Of(checks) != report.Broken || !strings.Contains(checks[0].Detail, "last words") {
		t.Errorf("got %s %q, want broken with the last words", verdicts(checks), checks[0].Detail)
	}
	if len(out.Published) != 1 || out.Published[0].Label != "fp16" {
		t.Errorf("published %v, want the fp16 engine alone", out.Published)
	}
}

func TestFaultsThatAreNotTheEnginesArePassedOn(t *testing.T) {
	missing := failure.New(failure.Missing, "no tensorrt")
	s, _ := newStage(settings("strong", "fp32"), &enginetest.Child{Fail: map[string]error{"trt.build": missing}})
	if _, err := s.Run(context.Background(), inputs(t), testkit.NewOutputs(t)); failure.CodeOf(err) != failure.Missing {
		t.Errorf("got %v, want exit code 3", err)
	}
	refuses := failure.New(failure.Build, "TensorRT could not build the engine").With("logged", "out of memory")
	refuses.Err = &worker.Refusal{Kind: "build", Reached: []string{engine.Parsed}}
	s, _ = newStage(settings("strong", "fp32"), &enginetest.Child{Fail: map[string]error{"trt.build": refuses}})
	checks, err := s.Run(context.Background(), inputs(t), testkit.NewOutputs(t))
	if err != nil || report.Of(checks) != report.Fail || !strings.Contains(checks[1].Detail, "out of memory") {
		t.Errorf("got %s, %v; want a failed check with what TensorRT logged", verdicts(checks), err)
	}
}

func TestAPrecisionThatDidNotArriveFails(t *testing.T) {
	for name, tt := range map[string]struct {
		typing, precision string
		layers            map[string]int
		want              report.Verdict
	}{
		"int8 by a cache that names nothing": {"weak", "int8", map[string]int{"fp32": 4}, report.Fail},
		"fp16 that a weak build passed over": {"weak", "fp16", map[string]int{"fp32": 4}, report.Pass},
		"a strong graph in other types":      {"strong", "fp16", map[string]int{"fp32": 4}, report.Fail},
		"no layer information":               {"strong", "fp16", map[string]int{}, report.Missing},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := newStage(settings(tt.typing, tt.precision), &enginetest.Child{Layers: tt.layers})
			checks, err := s.Run(context.Background(), inputs(t), testkit.NewOutputs(t))
			if err != nil {
				t.Fatal(err)
			}
			if c := checks[len(checks)-1]; c.ID != checkPrecision || c.Verdict != tt.want {
				t.Errorf("%s is %s, want %s", c.ID, c.Verdict, tt.want)
			}
		})
	}
}

func TestOutputsOfOtherNamesFail(t *testing.T) {
	c := settings("strong", "fp32")
	c.Model.OutputNames = []string{"logits"}
	s, _ := newStage(c, &enginetest.Child{})
	checks, err := s.Run(context.Background(), inputs(t), testkit.NewOutputs(t))
	if err != nil || checks[2].Verdict != report.Fail || checks[2].Want != "logits" || checks[2].Got != "y" {
		t.Errorf("got %+v, %v; want a failed comparison of logits and y", checks, err)
	}
}

func TestTheDeviceIsNoPartOfTheKey(t *testing.T) {
	c := settings("strong", "fp32")
	c.TensorRT.Device, c.TensorRT.TimingCache = "1", "timing.cache"
	s, _ := newStage(c, &enginetest.Child{})
	if s.Settings().(config.TensorRT).Device != "" {
		t.Error("two GPUs of one kind would build twice")
	}
	if got := s.Sources(); len(got) != 1 || got[0] != "timing.cache" {
		t.Errorf("sources are %v, want the timing cache", got)
	}
	if v, err := s.Tools(context.Background()); err != nil || v["tensorrt"] != "10.6.0" {
		t.Errorf("tools are %v, %v", v, err)
	}
}

func TestAChildThatDoesNotStartIsAnErrorAndNoPanic(t *testing.T) {
	s := New(settings("strong", "fp32"), Tools{
		Start: func(context.Context, io.Writer, func(done, total int64, label string)) (Child, error) {
			var none *worker.Worker
			return none, context.Canceled
		},
	})
	if _, err := s.Run(context.Background(), inputs(t), testkit.NewOutputs(t)); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the reason why it did not start", err)
	}
}
