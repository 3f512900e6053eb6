package validateengine

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"strings"
	"testing"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/engine"
	"github.com/trtship/trtship/internal/engine/enginetest"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/internal/testkit"
	"github.com/trtship/trtship/internal/validation"
	"github.com/trtship/trtship/internal/worker"
	"github.com/trtship/trtship/report"
)

// reference is the folder of a reference y = 2·x at batches 1, 2 and 9.
func reference(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	shape := func(n int64) map[string][]int64 { return map[string][]int64{"x": {n, 4}} }
	r, err := validation.WriteFeeds(dir, validation.Plan{
		Inputs: []validation.Input{{Name: "x", DType: tensor.Float32, Batch: true, Rank: 2}}, Samples: 2,
		Points: []validation.Point{{Name: "min", Shapes: shape(1)}, {Name: "opt", Shapes: shape(2)}, {Name: "point 1", Profile: -1, Shapes: shape(9)}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range r.Feeds() {
		in, err := tensor.ReadNPZ(f.In)
		if err != nil {
			t.Fatal(err)
		}
		y := in[0]
		y.Name = "y"
		for i := 0; i < len(y.Data); i += 4 {
			v := math.Float32frombits(binary.LittleEndian.Uint32(y.Data[i:]))
			binary.LittleEndian.PutUint32(y.Data[i:], math.Float32bits(2*v))
		}
		if err := tensor.WriteNPZ(f.Out, []tensor.Named{y}); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Save("test", []validation.Array{{Name: "y", DType: tensor.Float32}}); err != nil {
		t.Fatal(err)
	}
	return dir
}

// engineDir is the folder of an engine whose profile takes batches 1 to 4.
func engineDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	enginetest.WriteEngine(t, dir, nil)
	return dir
}

func run(t *testing.T, child *enginetest.Child, machine engine.Machine) ([]report.Check, *testkit.Outputs, error) {
	t.Helper()
	c := &config.Config{TensorRT: config.TensorRT{Precisions: []string{"fp32"}}}
	s := New(c, Tools{
		Start: func(context.Context, io.Writer, func(done, total int64, label string)) (Child, error) {
			return child, nil
		},
		Versions: func(context.Context) (map[string]string, error) { return map[string]string{"tensorrt": "10.6.0"}, nil },
		Machine:  func(context.Context) (engine.Machine, error) { return machine, nil },
	})
	in := enginetest.Inputs{}
	in.Add(artifact.Engine, "fp32", engineDir(t))
	in.Add(artifact.Reference, "", reference(t))
	out := testkit.NewOutputs(t)
	checks, err := s.Run(context.Background(), in, out)
	return checks, out, err
}

var h200 = engine.Machine{TensorRT: "10.6.0", GPU: "NVIDIA H200", ComputeCapability: "9.0"}

func find(checks []report.Check, id, point string) (report.Check, bool) {
	for _, c := range checks {
		if c.ID == id && (point == "" || c.Subject.Point == point) {
			return c, true
		}
	}
	return report.Check{}, false
}

func TestAnEngineThatAnswersLikeTheReferencePasses(t *testing.T) {
	child := &enginetest.Child{Factor: 2}
	checks, out, err := run(t, child, h200)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range checks {
		if c.Verdict != report.Pass && c.Verdict != report.Skip {
			t.Errorf("%s %s: %s %s", c.ID, c.Subject.Point, c.Verdict, c.Detail)
		}
		if !c.Hardware {
			t.Errorf("%s does not say that it needs a GPU", c.ID)
		}
	}
	if !child.Closed {
		t.Error("the child is still there")
	}
	var docs []report.Validation
	out.Document(artifact.EngineReport, &docs)
	if len(docs) != 1 || docs[0].Precision != "fp32" || docs[0].Stored.Candidate == "" || len(docs[0].Rows) != 2 {
		t.Errorf("document %+v, want the points within the profile and stored outputs", docs)
	}
}

func TestAnEngineThatAnswersOtherwiseFailsAtEveryPoint(t *testing.T) {
	checks, _, err := run(t, &enginetest.Child{Factor: 2.1}, h200)
	if err != nil {
		t.Fatal(err)
	}
	for _, point := range []string{"min", "opt"} {
		if c, ok := find(checks, "validate_engine/within-tolerance", point); !ok || c.Verdict != report.Fail {
			t.Errorf("%s: %+v, want a failed check", point, c)
		}
	}
}

func TestAPlanOfAnotherMachineIsRefusedBeforeItIsLoaded(t *testing.T) {
	child := &enginetest.Child{Factor: 2}
	checks, _, err := run(t, child, engine.Machine{TensorRT: "10.15.1", GPU: "NVIDIA H200", ComputeCapability: "9.0"})
	if err != nil {
		t.Fatal(err)
	}
	if len(checks) != 1 || checks[0].Verdict != report.Fail || !strings.Contains(checks[0].Got, "10.15.1") || checks[0].Hint == "" {
		t.Errorf("got %+v, want one failed check that names both releases", checks)
	}
	if len(child.Asked) != 0 {
		t.Errorf("the child was asked for %v", child.Asked)
	}
}

func TestAPlanThatDoesNotLoadFailsAndOneThatCrashesIsBroken(t *testing.T) {
	refused := failure.New(failure.Build, "the plan cannot be loaded")
	checks, _, err := run(t, &enginetest.Child{Fail: map[string]error{"trt.open": refused}}, h200)
	if err != nil || report.Of(checks) != report.Fail {
		t.Errorf("got %+v, %v; want a failed check", checks, err)
	}
	crash := &worker.Crash{Method: "trt.infer", Err: errors.New("crashed (SIGSEGV)"), Tail: "last words"}
	checks, _, err = run(t, &enginetest.Child{Fail: map[string]error{"trt.infer": crash}}, h200)
	if err != nil || report.Of(checks) != report.Broken {
		t.Errorf("got %+v, %v; want a broken check", checks, err)
	}
	missing := failure.New(failure.Missing, "no tensorrt")
	if _, _, err = run(t, &enginetest.Child{Fail: map[string]error{"trt.open": missing}}, h200); failure.CodeOf(err) != failure.Missing {
		t.Errorf("got %v, want exit code 3", err)
	}
}

func TestTheKeyHoldsTolerancesAndTools(t *testing.T) {
	c := &config.Config{TensorRT: config.TensorRT{Precisions: []string{"fp16"}}}
	s := New(c, Tools{Versions: func(context.Context) (map[string]string, error) { return map[string]string{"tensorrt": "11.2"}, nil }})
	if v, err := s.Tools(context.Background()); err != nil || v["tensorrt"] != "11.2" {
		t.Errorf("tools %v, %v", v, err)
	}
	if s.Sources() != nil || s.Settings() == nil || !s.Spec().Hardware {
		t.Errorf("sources %v, settings %v, spec %+v", s.Sources(), s.Settings(), s.Spec())
	}
}
