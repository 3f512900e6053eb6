package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/github"
	"github.com/trtship/trtship/internal/pipeline"
	"github.com/trtship/trtship/internal/regular"
)

func newActionCmd(a *app) *cobra.Command {
	var table string
	c := &cobra.Command{
		Use:   "action",
		Short: "Run as a step of a GitHub workflow",
		Long: `action is the entry point of the container action, and of a "run:" step in a job
that has a GPU. It reads its inputs from INPUT_* (docs/action.md), runs the
pipeline, judges the report against the merge base's, and writes summary, comment,
annotations, artifacts and outputs. Publishing never changes the exit code, which
is the gate's.`,
		GroupID: "ci",
		Args:    positional(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch table {
			case "":
				return a.action(cmd.Context())
			case "action.yml":
				return github.WriteActionYML(a.io.Stdout, github.Image)
			case "markdown":
				return github.WriteInputTable(a.io.Stdout)
			}
			return failure.New(failure.Usage, "--print %q is not action.yml or markdown", table)
		},
	}
	c.Flags().StringVar(&table, "print", "", "print the inputs and outputs instead, as `action.yml` or markdown")
	return c
}

func (a *app) action(ctx context.Context) error {
	code, err := github.RunAction(ctx, github.Action{Getenv: a.io.Getenv, Stdout: a.io.Stdout, Pipeline: a.pipeline})
	if err == nil {
		a.doesNotHold(code, "the gate of the action does not hold").WithHint("gate.json in the run's folder, and the job's summary, say why")
	}
	return err
}

// pipeline runs the pipeline for the action. What this machine lacks is
// reported as missing and left to the gate.
func (a *app) pipeline(ctx context.Context, r github.Request) (out github.Outcome, err error) {
	b := *a
	b.io.Stdout = io.Discard // the action's stdout holds commands only
	b.io.Stderr = r.Logs
	b.set = append(append([]string(nil), a.set...), r.Set...)
	if r.Python != "" {
		b.python = r.Python
	}
	out.Created = []string{b.storeDir(), b.runsDir()}
	if home := filepath.Dir(filepath.Clean(b.storeDir())); filepath.Base(home) == ".trtship" {
		out.Created = []string{home}
	}
	s, err := b.open(ctx, r.Config)
	if err != nil {
		return out, err
	}
	defer s.Close()
	out.Lines = s.cfg.Lines
	o, err := s.options(ctx)
	if err != nil {
		return out, err
	}
	if r.Baseline != nil {
		s.baseline = &baseline{Base: r.Baseline(ctx, planned(s.cfg, o.Report))}
	}
	watch := &lines{a: &b}
	o.RunsDir, o.Until, o.AllowMissing, o.Observer = b.runsDir(), r.Until, true, watch
	rep, err := pipeline.Run(ctx, o)
	watch.Close()
	if rep == nil || watch.Dir() == "" || ctx.Err() != nil {
		return out, err
	}
	out.Dir = watch.Dir()
	out.Report = filepath.Join(out.Dir, "report.json")
	return out, s.collect(ctx, &out)
}

// sources are the files that the model is made of, for annotations: the module
// of the factory, the weights or graph that the configuration names, and what
// the stages that run the model's code found it to import.
func (s *session) sources(ctx context.Context, m pipeline.Manifest) []string {
	var out []string
	add := func(path string) {
		if !slices.Contains(out, path) {
			out = append(out, path)
		}
	}
	if module, _, ok := strings.Cut(s.cfg.Model.Factory, ":"); ok && module != "" {
		file := filepath.Join(strings.Split(module, ".")...)
		for _, dir := range append([]string{s.cfg.Dir}, s.cfg.Model.PythonPath...) {
			for _, name := range []string{file + ".py", filepath.Join(file, "__init__.py")} {
				if info, err := os.Stat(filepath.Join(dir, name)); err == nil && info.Mode().IsRegular() {
					add(filepath.Join(dir, name))
				}
			}
		}
	}
	for _, st := range m.Stages {
		if st.Key == "" || !slices.Contains([]string{"inspect", "export", "validate"}, st.Name) {
			continue
		}
		entry, _, _, err := s.store.Lookup(ctx, st.Name, artifact.Digest(st.Key))
		if entry == nil || err != nil {
			continue // a stage that failed has none
		}
		for _, d := range entry.Deps {
			path := d.Path
			if !filepath.IsAbs(path) {
				path = filepath.Join(s.cfg.Dir, path)
			}
			if filepath.Ext(path) == ".py" {
				add(path)
			}
		}
	}
	if s.cfg.Model.Path != "" {
		add(s.cfg.Model.Path)
	}
	return out
}

// collect finds what the run made in the store, verified once more.
func (s *session) collect(ctx context.Context, out *github.Outcome) error {
	b, err := regular.ReadFile(filepath.Join(out.Dir, "manifest.json"))
	if err != nil {
		return failure.New(failure.Artifact, "read manifest: %w", err)
	}
	var m pipeline.Manifest
	if err := json.Unmarshal(b, &m); err != nil {
		return fmt.Errorf("read manifest: %w", err)
	}
	out.Sources = s.sources(ctx, m)
	for _, st := range m.Stages {
		for _, rec := range st.Artifacts {
			kind, ok := uploads[rec.Kind]
			if !ok {
				continue
			}
			art, err := s.store.Open(ctx, rec)
			if err != nil {
				return err
			}
			out.Artifacts = append(out.Artifacts, github.Artifact{Kind: kind, Label: rec.Label, Dir: art.Dir})
			if rec.Kind == artifact.Repository {
				out.Repository = art.Dir
			}
		}
	}
	return nil
}
