package cli

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"slices"
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
	a.concludes(rep)
	if a.json {
		return rep, arts, a.printReport(rep)
	}
	a.printChecks(rep, name)
	return rep, arts, nil
}

// made runs a stage, and what it needs, and returns its artifact of a kind. If
// there is none the error has the code of what did not hold.
func (s *step) made(ctx context.Context, stage string, kind artifact.Kind) (artifact.Artifact, error) {
	o, err := s.session.options(ctx)
	if err != nil {
		return artifact.Artifact{}, err
	}
	watch := s.session.a.observer()
	o.Observer = watch
	rep, arts, err := pipeline.RunOne(ctx, o, stage, s.given)
	watch.Close()
	if err != nil {
		return artifact.Artifact{}, err
	}
	for _, a := range arts {
		if a.Kind == kind {
			return a, nil
		}
	}
	return artifact.Artifact{}, madeNone(rep, stage, kind)
}

// madeNone says which artifact of which stage is missing, and what stood in the way.
func madeNone(rep *report.Report, stage string, kind artifact.Kind) error {
	code := cmp.Or(failure.Code(rep.ExitCode), failure.Missing)
	e := failure.New(code, "there is no %s: stage %s made none", kind, stage)
	for _, st := range rep.Stages {
		for _, c := range st.Checks {
			if !c.Verdict.Good() {
				e.With(st.Name, "%s: %s", c.Verdict, c.Summary())
				break
			}
		}
	}
	return e.WithHint("`trtship %s` says more", cmp.Or(map[string]string{"validate": "validate onnx"}[stage], stage))
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
			got := c.Got
			if !c.Verdict.Good() {
				bad = append(bad, c)
				got = brief(got) // it is told whole below
			}
			t.AppendRow([]any{s.Name, id, c.Subject.String(), c.Verdict, got, c.Want})
		}
		if s.Reason != "" && !slices.ContainsFunc(s.Checks, func(c report.Check) bool { return !c.Verdict.Good() && c.Summary() == s.Reason }) {
			t.AppendRow([]any{s.Name, "", "", s.Verdict, s.Reason, ""})
		}
	}
	a.printTable(t)
	for _, c := range bad {
		a.say("%s: %s", c.Verdict, c.Summary())
		detail := strings.TrimPrefix(c.Detail+"\n", c.Summary()+"\n") // the summary may be its first line
		if detail = strings.TrimSuffix(detail, "\n"); detail != "" {
			a.say("  %s", strings.ReplaceAll(detail, "\n", "\n  "))
		}
		if c.Hint != "" {
			a.say("  hint: %s", c.Hint)
		}
	}
}

// brief is the beginning of a text that is too long for a column.
func brief(text string) string {
	const most = 60
	if r := []rune(text); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return text
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
