package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/github"
	"github.com/trtship/trtship/internal/measure"
	"github.com/trtship/trtship/internal/pipeline"
	"github.com/trtship/trtship/internal/store"
	"github.com/trtship/trtship/report"
)

// baseline is a run whose engines and graphs are measured in turns with this run's.
type baseline struct {
	github.Base
	fetched map[string]error // by kind: what came of fetching it
	dir     string           // where it was fetched to
}

// uploads are the kinds of artifacts that the action uploads, as it names them.
var uploads = map[artifact.Kind]string{
	artifact.Engine: "engine", artifact.CalibrationData: "calibration", artifact.Repository: "repository",
	artifact.OptimizedONNX: "onnx", artifact.PrecisionONNX: "onnx",
}

// setAgainst reads the report of the baseline, which must be of the same model.
func (s *session) setAgainst(which string) error {
	path, err := s.a.findReport(which)
	if err != nil {
		return err
	}
	base, err := s.a.readReport(which)
	if err != nil {
		return err
	}
	if err := measure.SameModel("run against "+which, base.Model, report.Model{Name: s.cfg.Model.Name}); err != nil {
		return err
	}
	s.baseline = &baseline{Base: github.Base{Report: base, Dir: filepath.Dir(path)}}
	return nil
}

// rivals finds what the baseline had in the place of an artifact: in this store,
// beside the baseline's report, or among what its run uploaded.
func (s *session) rivals(ctx context.Context, a artifact.Artifact) (*artifact.Artifact, error) {
	if s.baseline == nil || s.baseline.Report == nil {
		return nil, nil //nolint:nilnil // nobody asked, which is no error
	}
	named, err := s.baseline.named(a)
	if err != nil {
		return nil, err
	}
	if named.Digest == string(a.Digest) {
		return &a, nil
	}
	if item, err := s.store.Find(named.Digest); err == nil {
		found, err := s.store.Open(ctx, item.Record)
		if err != nil {
			return nil, err
		}
		return &found, nil
	}
	return s.bring(ctx, a, named)
}

// named is what the baseline's report says of the artifact of a's kind and label.
func (b *baseline) named(a artifact.Artifact) (report.ArtifactSummary, error) {
	for _, x := range b.Report.Artifacts {
		if x.Kind == string(a.Kind) && x.Label == a.Label {
			return x, nil
		}
	}
	what := string(a.Kind)
	if a.Label != "" {
		what += " " + a.Label
	}
	return report.ArtifactSummary{}, fmt.Errorf("run %s made no %s", b.Report.Run.ID, what)
}

// bring puts an artifact of the baseline into this store: from the folder of its
// report, which may be a run's or hold what the action uploaded, else from where
// the action's baseline was found. What is not byte for byte what the report names
// is refused.
func (s *session) bring(ctx context.Context, a artifact.Artifact, named report.ArtifactSummary) (*artifact.Artifact, error) {
	b, kind := s.baseline, uploads[a.Kind]
	uploaded := github.CleanKey(a.Label + "-" + kind)
	var dirs []string
	if b.Dir != "" {
		dirs = append(dirs, filepath.Join(b.Dir, "artifacts", pipeline.LinkName(a.Kind, a.Label)), filepath.Join(b.Dir, uploaded))
	}
	why := fmt.Sprintf("%s of run %s is not in this store; keep the store from run to run, or the files of the run beside its report", named.ID, b.Report.Run.ID)
	if b.Fetch != nil {
		dir, err := s.fetch(ctx, kind)
		if err != nil {
			why = fmt.Sprintf("%s of run %s is not in this store, and what its run uploaded cannot be had: %s", named.ID, b.Report.Run.ID, err)
		} else {
			dirs = append(dirs, filepath.Join(dir, uploaded))
		}
	}
	for _, dir := range dirs {
		if info, err := os.Stat(dir); err != nil || !info.IsDir() {
			continue
		}
		found, err := s.store.Put(ctx, store.Draft{Kind: a.Kind, Label: a.Label, Stage: named.Stage}, store.Source{Path: dir})
		if err != nil {
			return nil, err
		}
		if string(found.Digest) != named.Digest {
			return nil, fmt.Errorf("what lies in the place of %s of run %s is %s", named.ID, b.Report.Run.ID, found.ID())
		}
		return &found, nil
	}
	return nil, errors.New(why)
}

// fetch downloads what the baseline's run uploaded of a kind, once.
func (s *session) fetch(ctx context.Context, kind string) (dir string, err error) {
	b := s.baseline
	if b.dir == "" {
		if b.dir, err = s.store.Scratch("baseline"); err != nil {
			return "", err
		}
		b.fetched = map[string]error{}
	}
	if _, ok := b.fetched[kind]; !ok {
		b.fetched[kind] = b.Fetch(ctx, kind, b.dir)
	}
	return b.dir, b.fetched[kind]
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
