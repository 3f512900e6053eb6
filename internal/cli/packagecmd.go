package cli

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/triton"
)

func newPackageCmd(a *app) *cobra.Command {
	var output string
	c := &cobra.Command{
		Use:   "package CONFIG [MODEL.onnx|ENGINE.plan]",
		Short: "Write a Triton model repository, or add a version to one",
		Long: `package writes config.pbtxt from the model's real tensors, reads it back and judges it with the
linter. With -o, the model goes into that repository as its next version (triton.version names
another); a version that is there is never overwritten.`,
		GroupID: "serving",
		Args:    positional(1, 2),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.packageModel(cmd.Context(), args, output) },
	}
	c.Flags().StringVarP(&output, "output", "o", "", "model repository to write to (`folder`); versions that it has stay")
	return c
}

func (a *app) packageModel(ctx context.Context, args []string, output string) error {
	if info, err := os.Stat(output); output != "" && err == nil && !info.IsDir() {
		return failure.New(failure.Artifact, "%s is no folder; a model repository is one", output).At(output)
	}
	s, err := a.step(ctx, args[0])
	if err != nil {
		return err
	}
	defer s.session.Close()
	if len(args) == 2 {
		if err := s.giveModel(ctx, args[1]); err != nil {
			return err
		}
	}
	rep, arts, err := s.run(ctx, "package")
	if err != nil || output == "" {
		return err
	}
	if rep.ExitCode != int(failure.OK) {
		a.say("wrote nothing to %s: a check does not hold", output)
		return nil
	}
	for _, art := range arts {
		if art.Kind == artifact.Repository {
			return s.addTo(output, art.Dir)
		}
	}
	return nil
}

// giveModel puts a plan or a graph in place of what stages would make, as the
// configuration's target asks.
func (s *step) giveModel(ctx context.Context, path string) error {
	cfg := s.session.cfg
	if filepath.Ext(path) != ".plan" {
		if cfg.Target != "onnxruntime" {
			return failure.New(failure.Usage, "target is %s, which packages plans, not %s", cfg.Target, filepath.Base(path)).
				At(cfg.Where("target")).WithHint("give a .plan, or say --set target=onnxruntime")
		}
		return s.giveONNX(ctx, artifact.OptimizedONNX, "", path)
	}
	if cfg.Target != "tensorrt" {
		return failure.New(failure.Usage, "target is %s, which packages ONNX, not %s", cfg.Target, filepath.Base(path)).
			At(cfg.Where("target")).WithHint("give an .onnx, or say --set target=tensorrt")
	}
	plan, err := parsePlan(path)
	if err != nil {
		return err
	}
	if cfg.Triton.Precision != "" && cfg.Triton.Precision != plan.precision {
		return failure.New(failure.Usage, "the plan is %s, triton.precision says %s", plan.precision, cfg.Triton.Precision).At(cfg.Where("triton.precision"))
	}
	cfg.Triton.Precision = plan.precision
	_, err = s.giveEngine(ctx, plan)
	return err
}

// addTo adds the only version of the repository at from to the one at output.
func (s *step) addTo(output, from string) error {
	model, err := triton.OnlyModel(from)
	if err != nil {
		return err
	}
	manifest, err := triton.ReadManifest(model.Dir)
	if err != nil {
		return err
	}
	content := triton.Content{
		Config: model.Config, Version: s.session.cfg.Triton.Version, Files: map[string]string{}, Beside: map[string]string{},
		Record: manifest.Versions[model.Newest()],
	}
	folder := filepath.Join(model.Dir, model.Newest())
	err = filepath.WalkDir(folder, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		rel, err := filepath.Rel(folder, path)
		content.Files[filepath.ToSlash(rel)] = path
		return err
	})
	if err != nil {
		return failure.New(failure.Artifact, "read repository: %w", err)
	}
	for name := range manifest.Files {
		content.Beside[name] = filepath.Join(model.Dir, filepath.FromSlash(name))
	}
	version, err := triton.Add(output, content)
	if err != nil {
		return err
	}
	s.session.a.say("wrote %s", filepath.Join(output, model.Name, strconv.Itoa(version)))
	return nil
}
