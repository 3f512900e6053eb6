package github

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/trtship/trtship/internal/provenance"
	"github.com/trtship/trtship/report"
)

// publish writes everything that people and later steps read. The verdict
// stands; nothing in here can change it.
func (s *session) publish(ctx context.Context) {
	s.summary()
	s.upload(ctx)
	s.comment(ctx)
	s.console.Annotate(Annotations(s.view(), s.places(ctx)))
	reports := filepath.Join(s.outcome.Dir, "reports")
	for name, value := range map[string]string{
		"verdict":    string(s.gate.Verdict),
		"run-id":     s.report.Run.ID,
		"report":     s.env.relative(s.outcome.Report),
		"html":       s.env.relative(filepath.Join(reports, "report.html")),
		"junit":      s.env.relative(filepath.Join(reports, "junit.xml")),
		"repository": s.env.relative(s.outcome.Repository),
	} {
		s.outputs[name] = value
	}
	if b := s.gate.Baseline; b != nil {
		s.outputs["baseline"] = b.RunID
	}
}

func (s *session) summary() {
	err := WriteSummary(s.env.SummaryPath, func(limit int) string {
		return report.Markdown(s.view(), report.MarkdownOptions{Limit: limit})
	})
	if err != nil {
		s.console.Warning("the summary was not written: %s", short(err))
	}
}

// upload puts the report and the chosen kinds into artifacts of the run.
func (s *session) upload(ctx context.Context) {
	kinds := s.in.Lines("upload")
	if len(kinds) == 0 || slices.Contains(kinds, "none") {
		return
	}
	a, err := NewArtifacts(s.env, s.Client, s.Clock, s.console, s.in.Int("retention-days"))
	if err != nil {
		s.console.Notice("artifacts stay in the workspace at %s: %s", s.env.relative(s.outcome.Dir), short(err))
		return
	}
	for _, set := range s.sets(kinds) {
		done, err := a.Upload(ctx, set.name, set.items)
		if err != nil {
			s.console.Warning("artifact %s was not uploaded: %s", set.name, short(err))
			if errors.Is(err, ErrQuota) {
				return
			}
			continue
		}
		s.console.Print("uploaded artifact %s, %s, %s", done.Name, report.FormatBytes(done.Size), done.Digest)
	}
}

type artifactSet struct {
	name  string
	items []Item
}

func (s *session) sets(kinds []string) []artifactSet {
	var out []artifactSet
	if slices.Contains(kinds, "report") {
		reports := filepath.Join(s.outcome.Dir, "reports")
		set := artifactSet{name: ArtifactName(s.key(), "report"), items: []Item{{Name: "report.json", Path: s.outcome.Report}}}
		for _, f := range []string{"gate.json", "report.html", "report.md", "junit.xml"} {
			set.items = append(set.items, Item{Name: f, Path: filepath.Join(reports, f)})
		}
		// A run that made nothing has no statement.
		statement := filepath.Join(s.outcome.Dir, provenance.FileName)
		if _, err := os.Lstat(statement); err == nil {
			set.items = append(set.items, Item{Name: provenance.FileName, Path: statement})
		}
		out = append(out, set)
	}
	for _, kind := range kinds {
		set := artifactSet{name: ArtifactName(s.key(), kind)}
		for _, x := range s.outcome.Artifacts {
			if x.Kind != kind {
				continue
			}
			items, err := Collect(x.Dir, CleanKey(x.Label+"-"+kind))
			if err != nil {
				s.console.Warning("artifact %s: %s", set.name, short(err))
				continue
			}
			set.items = append(set.items, items...)
		}
		if len(set.items) > 0 {
			out = append(out, set)
		}
	}
	return out
}

// comment posts the result to the pull request.
func (s *session) comment(ctx context.Context) {
	if !s.in.Bool("comment") || !s.event.PullRequest() {
		return
	}
	address, err := PostComment(ctx, s.env, s.event, s.key(), s.in["comment-author"], s.view(), s.Action)
	if err != nil {
		s.console.Notice("no comment was posted: %s", explain(err, "{pull-requests: write}", s.event.Fork))
		return
	}
	s.outputs["comment-url"] = address
}

// PostComment posts a view to the pull request of ev.
func PostComment(ctx context.Context, e Env, ev Event, key, author string, v report.View, a Action) (string, error) {
	api, err := NewAPI(e, a.Client, a.Clock)
	if err != nil {
		return "", err
	}
	number, err := api.FindPullRequest(ctx, ev)
	if err != nil {
		return "", err
	}
	if number == 0 {
		return "", errors.New("there is no open pull request with this commit as its head")
	}
	return api.Comment(ctx, number, key, author, func(marker string, limit int) string {
		return report.Markdown(v, report.MarkdownOptions{Marker: marker, Limit: limit})
	})
}

// sections name the part of the configuration that a stage is about.
var sections = map[string]string{
	"inspect": "model", "export": "export", "validate": "validation", "optimize": "optimize", "validate_optimized": "validation",
	"calibrate": "calibration", "quantize": "quantize", "build": "tensorrt", "validate_engine": "validation", "benchmark": "benchmark",
	"package": "triton", "served": "triton", "gate": "gate",
}

// places asks what the pull request changed, if anything has to be shown there.
func (s *session) places(ctx context.Context) Places {
	p := Places{Config: s.env.relative(s.in["config"]), Lines: s.outcome.Lines}
	for _, f := range s.outcome.Sources {
		p.Sources = append(p.Sources, s.env.relative(f))
	}
	if len(s.gate.Reasons) == 0 || !s.event.PullRequest() {
		return p
	}
	api, err := NewAPI(s.env, s.Client, s.Clock)
	if err == nil {
		p.Changed, err = api.ChangedLines(ctx, s.event.Number)
	}
	if err != nil {
		s.console.Print("annotations are at the configuration, for what the pull request changed is not known: %s", short(err))
	}
	return p
}

// Annotations are the reasons of a view, the worst first, at the lines that the
// pull request changed in the model, at the line of the configuration that
// decides them, or at the section of their stage.
func Annotations(v report.View, p Places) []Annotation {
	reasons := slices.Clone(v.Gate.Reasons)
	slices.SortStableFunc(reasons, func(a, b report.Reason) int {
		switch {
		case a.Verdict == b.Verdict:
			return 0
		case report.Worst(a.Verdict, b.Verdict) == a.Verdict:
			return -1
		}
		return 1
	})
	var out []Annotation
	for _, r := range reasons {
		a := Annotation{Level: "error", Title: strings.TrimSpace(r.Check + " " + r.Subject.String()), Text: r.Text}
		if r.Hint != "" {
			a.Text += "\n" + r.Hint
		}
		line := r.Line
		if line == 0 {
			stage, _, _ := strings.Cut(r.Check, "/")
			line = max(1, p.Lines[sections[stage]], modelLine(p.Lines, sections[stage]))
		}
		p.at(&a, r.Check, line)
		out = append(out, a)
	}
	for _, n := range v.Gate.Notes {
		out = append(out, Annotation{Level: "notice", Text: n})
	}
	return out
}

// modelLine stands in where the configuration leaves a section to its defaults.
func modelLine(lines map[string]int, section string) int {
	if lines[section] > 0 {
		return 0
	}
	return lines["model"]
}
