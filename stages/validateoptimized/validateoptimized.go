// Package validateoptimized is the stage that compares the optimized graph with
// the reference, by the method of validate.
package validateoptimized

import (
	"context"
	"path/filepath"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/ort"
	"github.com/trtship/trtship/internal/stage"
	"github.com/trtship/trtship/internal/validation"
	"github.com/trtship/trtship/report"
)

const (
	name      = "validate_optimized"
	modelFile = "model.onnx"
)

// Stage validates the optimized graph.
type Stage struct {
	cfg *config.Config
	lib ort.Library
}

// New returns the stage.
func New(cfg *config.Config, lib ort.Library) *Stage { return &Stage{cfg: cfg, lib: lib} }

// Spec describes the stage.
func (*Stage) Spec() stage.Spec {
	return stage.Spec{
		Name: name, Version: 1, Title: "Validate the optimized graph",
		In:     []stage.In{{Kind: artifact.OptimizedONNX}, {Kind: artifact.Reference}},
		Out:    []artifact.Kind{artifact.OptimizedReport, artifact.Outputs},
		Needs:  []stage.Need{stage.NeedORT},
		Checks: validation.GraphDocs(name), Cacheable: true,
	}
}

// Settings are the tolerances and how sessions run.
func (s *Stage) Settings() any {
	v := s.cfg.Validation
	return struct {
		Tolerances  map[string]config.Tolerance
		Outputs     map[string]config.OutputLimits
		AllowRandom bool
		Threads     int
		Target      string
	}{v.Tolerances, v.Outputs, v.AllowRandom, v.Threads, s.cfg.Target}
}

// Sources are none: everything comes from artifacts.
func (*Stage) Sources() []string { return nil }

// Tools is the version of ONNX Runtime.
func (s *Stage) Tools(context.Context) (map[string]string, error) {
	return map[string]string{"onnxruntime": s.lib.Version}, nil
}

// Run compares the optimized graph with the reference.
func (s *Stage) Run(ctx context.Context, in stage.Inputs, out stage.Outputs) ([]report.Check, error) {
	a, err := in.One(artifact.OptimizedONNX)
	if err != nil {
		return nil, err
	}
	r, err := in.One(artifact.Reference)
	if err != nil {
		return nil, err
	}
	ref, err := validation.OpenReference(r.Dir)
	if err != nil {
		return nil, err
	}
	dir, err := out.Scratch("outputs")
	if err != nil {
		return nil, err
	}
	v, checks, err := validation.JudgeGraph(ctx, s.lib, filepath.Join(a.Dir, modelFile), ref,
		validation.SessionOptions(s.cfg.Validation, out.Log()), validation.Options{
			Stage: name, Precision: "onnx", Dir: dir, AllowRandom: s.cfg.Validation.AllowRandom, DeploysONNX: s.cfg.Target == "onnxruntime",
			Tolerance: func(output string) report.Tolerance { return s.cfg.Tolerance("onnx", output) },
			Progress:  out.Progress,
		})
	if err != nil {
		return nil, err
	}
	v.Stored.Reference = r.ID()
	if len(v.Rows) > 0 {
		kept, err := out.Publish(artifact.Outputs, name, dir, nil)
		if err != nil {
			return nil, err
		}
		v.Stored.Candidate = kept.ID()
	}
	_, err = out.PublishDocument(artifact.OptimizedReport, v)
	return checks, err
}
