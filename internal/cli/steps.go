package cli

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/pipeline"
	"github.com/trtship/trtship/internal/store"
	"github.com/trtship/trtship/report"
)

// step is one stage run by hand: `trtship export` and the like. It reuses what
// the store has, makes what the stage needs, and leaves no run behind.
type step struct {
	session *session
	given   pipeline.Given
}

// step opens a session for one stage.
func (a *app) step(ctx context.Context, config string) (*step, error) {
	s, err := a.open(ctx, config)
	if err != nil {
		return nil, err
	}
	return &step{session: s, given: pipeline.Given{}}, nil
}

// giveONNX puts a model file in place of what stages would make.
func (s *step) giveONNX(ctx context.Context, kind artifact.Kind, label, path string) error {
	sources, err := onnxSources(path)
	if err != nil {
		return err
	}
	a, err := pipeline.Adopt(ctx, s.session.store, kind, label, sources...)
	if err != nil {
		return err
	}
	s.given[kind] = append(s.given[kind], a)
	return nil
}

// onnxSources lists a model and its external data files, the model as model.onnx.
func onnxSources(path string) ([]store.Source, error) {
	m, err := onnx.Open(path)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	sources := []store.Source{{Path: path, As: "model.onnx"}}
	for _, f := range m.DataFiles() {
		sources = append(sources, store.Source{Path: filepath.Join(filepath.Dir(path), filepath.FromSlash(f)), As: f})
	}
	return sources, nil
}

// run runs the stage and prints its checks. It returns the report and the
// stage's artifacts.
func (s *step) run(ctx context.Context, name string) (*report.Report, []artifact.Artifact, error) {
	a := s.session.a
	o, err := s.session.options(ctx)
	if err != nil {
		return nil, nil, err
	}
	watch := a.observer()
	o.Observer = watch
	rep, arts, err := pipeline.RunOne(ctx, o, name, s.given)
	watch.Close()
	if err != nil {
		return rep, arts, err
	}
	a.done = failure.Code(rep.ExitCode)
	if a.json {
		return rep, arts, a.printReport(rep)
	}
	a.printChecks(rep, name)
	return rep, arts, nil
}

// printChecks writes the checks of a stage, and what does not hold in those
// before it.
func (a *app) printChecks(rep *report.Report, stage string) {
	t := a.table("stage", "check", "subject", "verdict", "got", "want")
	var bad []report.Check
	for _, s := range rep.Stages {
		if s.Verdict == report.NotAsked || s.Verdict == report.Skip {
			continue
		}
		for _, c := range s.Checks {
			if s.Name != stage && c.Verdict.Good() {
				continue
			}
			_, id, _ := strings.Cut(c.ID, "/")
			t.AppendRow([]any{s.Name, id, c.Subject.String(), c.Verdict, c.Got, c.Want})
			if !c.Verdict.Good() {
				bad = append(bad, c)
			}
		}
		if s.Reason != "" {
			t.AppendRow([]any{s.Name, "", "", s.Verdict, s.Reason, ""})
		}
	}
	a.printTable(t)
	for _, c := range bad {
		a.say("%s: %s", c.Verdict, c.Summary())
		if c.Detail != "" {
			a.say("  %s", strings.ReplaceAll(c.Detail, "\n", "\n  "))
		}
		if c.Hint != "" {
			a.say("  hint: %s", c.Hint)
		}
	}
}

// copyOut writes the artifact of a kind and label to dest. main is the file
// that dest names; empty makes dest a folder.
func (s *step) copyOut(ctx context.Context, arts []artifact.Artifact, kind artifact.Kind, dest, main string) error {
	for _, art := range arts {
		if art.Kind != kind {
			continue
		}
		if err := s.session.store.CopyOut(ctx, art, dest, main); err != nil {
			return err
		}
		s.session.a.say("wrote %s", dest)
		return nil
	}
	return nil
}

// refuseExisting refuses an output path that is taken, before any work is done.
func refuseExisting(path string) error {
	if path == "" {
		return nil
	}
	if _, err := os.Lstat(path); err == nil {
		return failure.New(failure.Artifact, "write %s: it is already there", path).At(path).WithHint("nothing is overwritten; choose another path or remove it")
	}
	return nil
}
