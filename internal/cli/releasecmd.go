package cli

import (
	"context"
	"os"
	"path/filepath"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/github"
	"github.com/trtship/trtship/internal/triton/bundle"
	"github.com/trtship/trtship/internal/triton/registry"
	"github.com/trtship/trtship/report"
)

// openRelease finds the release of a reference.
func (a *app) openRelease(ctx context.Context, reference string) (*github.Assets, github.Release, error) {
	env := github.ReadEnv(a.io.Getenv)
	r, err := github.ParseRelease(reference, env.Repository)
	if err != nil {
		return nil, r, err
	}
	assets, err := github.OpenRelease(ctx, env, r, nil, github.Clock{})
	return assets, r, err
}

// publishRelease attaches a model to a GitHub release.
func (a *app) publishRelease(ctx context.Context, args []string, f publishFlags) error {
	if f.plain {
		return failure.New(failure.Usage, "--plain-http is for registries")
	}
	if _, err := github.ParseRelease(args[1], github.ReadEnv(a.io.Getenv).Repository); err != nil {
		return err
	}
	repository, model, err := a.findPublished(args[0], f.model)
	if err != nil {
		return err
	}
	statement, err := f.statement(args[0])
	if err != nil {
		return err
	}
	if statement, err = registry.Statement(filepath.Join(repository, model), statement); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "trtship-publish-*")
	if err != nil {
		return failure.New(failure.Artifact, "publish: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	path := filepath.Join(dir, bundle.Name(model))
	sum, err := bundle.Write(ctx, repository, model, path, statement, func(file string, size int64) { a.say("%s  %s", file, report.FormatBytes(size)) })
	if err != nil {
		return err
	}
	// After the packing: a model that does not hold needs no network to be refused.
	assets, r, err := a.openRelease(ctx, args[1])
	if err != nil {
		return err
	}
	done, err := assets.Attach(ctx, path)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(map[string]any{"reference": r.String(), "model": model, "files": sum.Files, "asset": done})
	}
	if done.Already {
		a.say("%s is there already, with equal bytes", done.Name)
	}
	a.print("%s\n%s  %d files, %s packed\n", done.URL, done.Digest, sum.Files, report.FormatBytes(done.Size))
	return nil
}

// pullRelease brings a model of a GitHub release into a repository.
func (a *app) pullRelease(ctx context.Context, reference, output, model string) error {
	if output == "" {
		return failure.New(failure.Usage, "pull needs -o REPOSITORY, the folder to write to")
	}
	assets, _, err := a.openRelease(ctx, reference)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "trtship-pull-*")
	if err != nil {
		return failure.New(failure.Artifact, "pull: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	name := ""
	if model != "" {
		name = bundle.Name(model)
	}
	path, digest, err := assets.Fetch(ctx, name, bundle.Suffix, dir)
	if err != nil {
		return err
	}
	got, err := bundle.Read(ctx, path, digest, output)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(map[string]string{"model": got, "folder": filepath.Join(output, got), "digest": digest})
	}
	a.say("wrote %s", filepath.Join(output, got))
	return nil
}
