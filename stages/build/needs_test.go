package build

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/engine"
	"github.com/trtship/trtship/internal/engine/enginetest"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/testkit"
	"github.com/trtship/trtship/internal/worker"
	"github.com/trtship/trtship/report"
)

// That the parser took every operator is known only of a build that had it asked.
func TestTheOperatorsAreSupportedOnlyIfTheParserAnswered(t *testing.T) {
	crash := func(reached ...string) error {
		return &worker.Crash{Method: "trt.build", Err: errors.New("crashed (SIGABRT)"), Reached: reached}
	}
	refusal := func(reached ...string) error {
		e := failure.New(failure.Build, "cuInit: CUDA_ERROR_UNKNOWN")
		e.Err = &worker.Refusal{Kind: "build", Reached: reached}
		return e
	}
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"the child died before":          {crash(), "fp32 engine-built broken\nfp32 operators-supported broken\n"},
		"the child died behind":          {crash(engine.Parsed), "fp32 operators-supported pass\nfp32 engine-built broken\n"},
		"the build was refused before":   {refusal(), "fp32 engine-built fail\nfp32 operators-supported broken\n"},
		"the build was refused behind":   {refusal(engine.Parsed), "fp32 operators-supported pass\nfp32 engine-built fail\n"},
		"the parser refused, of no node": {failure.New(failure.Build, "the ONNX parser refused the graph").With("parser_errors", "[]"), "fp32 engine-built fail\nfp32 operators-supported broken\n"},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := newStage(settings("strong", "fp32"), &enginetest.Child{Fail: map[string]error{"trt.build": c.err}})
			checks, err := s.Run(context.Background(), inputs(t), testkit.NewOutputs(t))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, verdicts(checks)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if report.Of(checks) == report.Pass {
				t.Error("the stage passes")
			}
		})
	}
}

func TestWhatTheMachineLacksNamesTheDriver(t *testing.T) {
	missing := failure.New(failure.Missing, "TensorRT 11.2 cannot start its Builder")
	s, _ := newStage(settings("strong", "fp32"), &enginetest.Child{Fail: map[string]error{"trt.build": missing}})
	_, err := s.Run(context.Background(), inputs(t), testkit.NewOutputs(t))
	e, ok := errors.AsType[*failure.Error](err)
	if !ok || len(e.Details) != 1 || e.Details[0] != (failure.Detail{Label: "NVIDIA driver", Value: "580.1"}) {
		t.Errorf("%+v, want the driver's version", err)
	}
}

// Without what a precision is built from the stage could not run, as quantize
// could not: it is not broken.
func TestAStageNeedsWhatItsPrecisionsAreBuiltFrom(t *testing.T) {
	for name, c := range map[string]struct {
		typing     string
		precisions []string
		want       []artifact.Kind
	}{
		"float32 alone":        {"strong", []string{"fp32"}, nil},
		"float32, weak":        {"weak", []string{"fp32"}, nil},
		"a precision's graph":  {"strong", []string{"fp32", "int8"}, []artifact.Kind{artifact.PrecisionONNX}},
		"flags need no graph":  {"weak", []string{"fp16"}, nil},
		"flags need the cache": {"weak", []string{"fp16", "int8"}, []artifact.Kind{artifact.CalibrationData}},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := newStage(settings(c.typing, c.precisions...), &enginetest.Child{})
			got := map[artifact.Kind]bool{}
			for _, in := range s.Spec().In {
				if !in.Optional && in.Kind != artifact.OptimizedONNX {
					got[in.Kind] = true
				}
			}
			if diff := cmp.Diff(c.want, slices.Sorted(maps.Keys(got))); diff != "" {
				t.Errorf("needs (-want +got):\n%s", diff)
			}
		})
	}
}
