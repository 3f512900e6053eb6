package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/github"
	"github.com/trtship/trtship/internal/measure"
	"github.com/trtship/trtship/internal/pipeline"
	"github.com/trtship/trtship/internal/store"
	"github.com/trtship/trtship/report"
	"github.com/trtship/trtship/stages/benchmark"
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
	base, err := s.a.readReport(path)
	if err != nil {
		return err
	}
	if err := measure.SameModel("run against "+which, base.Model, report.Model{Name: s.cfg.Model.Name}); err != nil {
		return err
	}
	if !s.cfg.Benchmark.Enabled {
		return failure.New(failure.Usage, "--against %s: benchmark.enabled is false, and it is the benchmark that measures in turns", which).At(s.cfg.Where("benchmark.enabled"))
	}
	if base.Verdict != report.Pass {
		s.a.say("note: the verdict of the baseline, run %s, is %s", base.Run.ID, base.Verdict)
	}
	s.baseline = &baseline{Base: github.Base{Report: base, Dir: filepath.Dir(path)}}
	return nil
}

// noteUnused says that a baseline was given to a run whose benchmark was not
// asked for.
func (s *session) noteUnused(rep *report.Report) {
	if s.baseline == nil || rep == nil {
		return
	}
	for _, st := range rep.Stages {
		if st.Name == "benchmark" && (st.Verdict == report.NotAsked || st.Verdict == report.Skip) {
			s.a.say("note: --against changed nothing: the benchmark was not asked for (%s)", st.Reason)
		}
	}
}

// rivals finds what the baseline had in the place of an artifact: in this store,
// beside the baseline's report, or among what its run uploaded.
func (s *session) rivals(ctx context.Context, a artifact.Artifact) (found *artifact.Artifact, run string, err error) {
	if s.baseline == nil || s.baseline.Report == nil {
		return nil, "", nil
	}
	run = s.baseline.Report.Run.ID
	named, err := s.baseline.named(a)
	if err != nil {
		return nil, run, err
	}
	if named.Digest == string(a.Digest) {
		return &a, run, nil
	}
	if item, err := s.store.Find(named.Digest); err == nil {
		// A damaged copy is moved aside; a good one may lie elsewhere.
		if found, err := s.store.Open(ctx, item.Record); err == nil {
			return &found, run, nil
		}
	}
	found, err = s.bring(ctx, a, named)
	return found, run, err
}

// named is what the baseline's report says of the artifact of a's kind and label.
func (b *baseline) named(a artifact.Artifact) (report.ArtifactSummary, error) {
	for _, x := range b.Report.Artifacts {
		if x.Kind != string(a.Kind) || x.Label != a.Label {
			continue
		}
		if _, err := artifact.ParseDigest(x.Digest); err != nil {
			return x, fmt.Errorf("the report of run %s: %w", b.Report.Run.ID, err)
		}
		return x, nil
	}
	what := string(a.Kind)
	if a.Label != "" {
		what += " " + a.Label
	}
	return report.ArtifactSummary{}, fmt.Errorf("run %s made no %s", b.Report.Run.ID, what)
}

// place is a folder that may hold an artifact of the baseline.
type place struct{ dir, text string }

// bring puts an artifact of the baseline into this store: from the folder of its
// report, which may be a run's or hold what the action uploaded, else from where
// the action's baseline was found. What is not byte for byte what the report names
// is refused, before anything is copied.
func (s *session) bring(ctx context.Context, a artifact.Artifact, named report.ArtifactSummary) (*artifact.Artifact, error) {
	places, err := s.places(ctx, a)
	missing := fmt.Errorf("%s of run %s is neither in this store nor %s", named.ID, s.baseline.Report.Run.ID, texts(places))
	if err != nil {
		missing = fmt.Errorf("%s of run %s is not in this store, and what its run uploaded cannot be had: %w", named.ID, s.baseline.Report.Run.ID, err)
	}
	for _, p := range places {
		if info, err := os.Stat(p.dir); err != nil || !info.IsDir() {
			continue
		}
		sum, err := s.store.Sum(ctx, p.dir, named.Size)
		if err != nil {
			return nil, fmt.Errorf("%s of run %s, %s: %w", named.ID, s.baseline.Report.Run.ID, p.text, relative(err))
		}
		if string(sum) != named.Digest {
			return nil, fmt.Errorf("what lies %s is not %s of run %s: it has %s, the report says %s", p.text, named.ID, s.baseline.Report.Run.ID, sum, named.Digest)
		}
		found, err := s.store.Put(ctx, store.Draft{Kind: a.Kind, Label: a.Label, Stage: named.Stage}, store.Source{Path: p.dir})
		if err != nil {
			return nil, err
		}
		return &found, nil
	}
	return nil, missing
}

// places are where the files of an artifact of the baseline may be; an error says
// why what its run uploaded cannot be had.
func (s *session) places(ctx context.Context, a artifact.Artifact) ([]place, error) {
	b, kind := s.baseline, uploads[a.Kind]
	if kind == "" {
		kind = "onnx" // the exported graph, where there is no optimized one
	}
	uploaded, linked := github.CleanKey(a.Label+"-"+kind), filepath.Join("artifacts", pipeline.LinkName(a.Kind, a.Label))
	var out []place
	if b.Dir != "" {
		for _, sub := range []string{linked, uploaded} {
			out = append(out, place{filepath.Join(b.Dir, sub), "in " + sub + " beside the baseline's report"})
		}
	}
	if b.Fetch == nil {
		return out, nil
	}
	dir, err := s.fetch(ctx, kind)
	if err != nil {
		return out, err
	}
	return append(out, place{filepath.Join(dir, uploaded), "in " + uploaded + " of what the baseline's run uploaded"}), nil
}

func texts(places []place) string {
	all := make([]string, len(places))
	for i, p := range places {
		all[i] = p.text
	}
	if len(all) == 0 {
		return "anywhere else"
	}
	return strings.Join(all, ", nor ")
}

// relative leaves the path out of a file system's error: a report holds none of
// this machine's.
func relative(err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return p.Err
	}
	return err
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
	if benchmark.OnCPU(c) {
		rep.Benchmark.Rows = append(rep.Benchmark.Rows, report.Measurement{Device: "cpu"})
	}
	if gpus := rep.Environment.GPUs; c.Target == "tensorrt" && len(gpus) > 0 {
		rep.Benchmark.Rows = append(rep.Benchmark.Rows, report.Measurement{Device: gpus[0].Name})
	}
	return &rep
}
