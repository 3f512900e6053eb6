package cli

import (
	"context"
	"fmt"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/measure"
	"github.com/trtship/trtship/report"
)

// setAgainst reads the report of the baseline, which must be of the same model.
func (s *session) setAgainst(which string) error {
	base, err := s.a.readReport(which)
	if err != nil {
		return err
	}
	if err := measure.SameModel("run against "+which, base.Model, report.Model{Name: s.cfg.Model.Name}); err != nil {
		return err
	}
	s.baseline = base
	return nil
}

// rivals finds what the baseline had in the place of an artifact, as far as it is
// still in this store.
func (s *session) rivals(ctx context.Context, kind artifact.Kind, label string) (*artifact.Artifact, error) {
	if s.baseline == nil {
		return nil, nil //nolint:nilnil // nobody asked, which is no error
	}
	for _, a := range s.baseline.Artifacts {
		if a.Kind != string(kind) || a.Label != label {
			continue
		}
		item, err := s.store.Find(a.Digest)
		if err != nil {
			return nil, fmt.Errorf("%s of run %s is not in this store; keep the store from run to run", a.ID, s.baseline.Run.ID)
		}
		found, err := s.store.Open(ctx, item.Record)
		if err != nil {
			return nil, err
		}
		return &found, nil
	}
	what := string(kind)
	if label != "" {
		what += " " + label
	}
	return nil, fmt.Errorf("run %s made no %s", s.baseline.Run.ID, what)
}

// planned is what is known of a run's report before it: which kinds of devices it
// will measure decides which baselines may be compared.
func planned(c *config.Config, rep report.Report) *report.Report {
	if !c.Benchmark.Enabled {
		return &rep
	}
	rep.Benchmark = &report.Benchmark{}
	if c.Benchmark.Baseline || c.Target != "tensorrt" {
		rep.Benchmark.Rows = append(rep.Benchmark.Rows, report.Measurement{Device: "cpu"})
	}
	if gpus := rep.Environment.GPUs; c.Target == "tensorrt" && len(gpus) > 0 {
		rep.Benchmark.Rows = append(rep.Benchmark.Rows, report.Measurement{Device: gpus[0].Name})
	}
	return &rep
}
