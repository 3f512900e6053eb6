package cli

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"oras.land/oras-go/v2/registry/remote/credentials"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/github"
	"github.com/trtship/trtship/internal/provenance"
	"github.com/trtship/trtship/internal/triton"
	"github.com/trtship/trtship/internal/triton/registry"
	"github.com/trtship/trtship/report"
)

func newPublishCmd(a *app) *cobra.Command {
	var f publishFlags
	c := &cobra.Command{
		Use:   "publish REPOSITORY REFERENCE",
		Short: "Put a model into an OCI registry, a layout on disk or a GitHub release",
		Long: `publish puts one model of a repository, with all its versions and its manifest, at REFERENCE:
HOST/NAME:TAG in a registry, oci:FOLDER:TAG on disk, or release:TAG (release:OWNER/NAME@TAG) for the
files of a GitHub release, which must be there: MODEL-model-repository.tar.gz and its .sha256. Every
file is held to the manifest before. What is released is never replaced; equal bytes are left alone,
and an upload that broke off is made again. GitHub takes files below 2 GiB, with GITHUB_TOKEN.
The statement of provenance of the run that made the model goes with it, as what refers to it: that
of the run's folder, or the trtship-provenance.json that a pulled model has, or --provenance.
Registry passwords are those of docker login.`,
		Example: "  trtship publish model_repository ghcr.io/team/digits:v1\n  trtship publish model_repository oci:layout:v1\n  trtship publish model_repository release:team/digits@v1",
		GroupID: "serving",
		Args:    positional(2, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if strings.HasPrefix(args[1], github.ReleasePrefix) {
				return a.publishRelease(cmd.Context(), args, f)
			}
			return a.publish(cmd.Context(), args, f)
		},
	}
	c.Flags().StringVar(&f.model, "model", "", "`name` of the model, if the repository holds several")
	c.Flags().StringVar(&f.provenance, "provenance", "", "in-toto statement (`file`) to publish with the model; it must speak of every file")
	c.Flags().BoolVar(&f.plain, "plain-http", false, "talk to the registry without TLS")
	return c
}

func newPullCmd(a *app) *cobra.Command {
	var output, model string
	var verify, plain bool
	c := &cobra.Command{
		Use:   "pull REFERENCE -o REPOSITORY",
		Short: "Bring a published model into a model repository",
		Long: `pull writes the model at REFERENCE into the repository, every file held to its digest. With --verify it
is held to the manifest that was packaged with it, too, and to the statement of provenance that
refers to it, which then lies beside the manifest as trtship-provenance.json. A model that is there is never overwritten.
A release's file (release:OWNER/NAME@TAG) is held to its .sha256, and always to the model's manifest.`,
		Example: "  trtship pull ghcr.io/team/digits:v1 -o model_repository --verify\n  trtship pull oci:layout:v1 -o model_repository\n  trtship pull release:team/digits@v1 -o model_repository",
		GroupID: "serving",
		Args:    positional(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch release := strings.HasPrefix(args[0], github.ReleasePrefix); {
			case release && plain:
				return failure.New(failure.Usage, "--plain-http is for registries")
			case release:
				return a.pullRelease(cmd.Context(), args[0], output, model)
			case model != "":
				return failure.New(failure.Usage, "--model is for releases; a tag of a registry or a layout has one model")
			}
			return a.pull(cmd.Context(), args[0], output, verify, plain)
		},
	}
	c.Flags().StringVarP(&output, "output", "o", "", "model repository to write to (`folder`)")
	c.Flags().StringVar(&model, "model", "", "`name` of the model, if a release has several")
	c.Flags().BoolVar(&verify, "verify", false, "hold the model to its own manifest")
	c.Flags().BoolVar(&plain, "plain-http", false, "talk to the registry without TLS")
	return c
}

// registryOptions reaches registries with the passwords of docker login.
func (a *app) registryOptions(plain bool) registry.Options {
	return registry.Options{PlainHTTP: plain, Credential: func(ctx context.Context, host string) (string, string, error) {
		path := a.io.Getenv("DOCKER_CONFIG")
		if path == "" {
			path = filepath.Join(a.io.Getenv("HOME"), ".docker")
		}
		store, err := credentials.NewStore(filepath.Join(path, "config.json"), credentials.StoreOptions{})
		if err != nil {
			return "", "", failure.New(failure.Artifact, "read registry passwords: %w", err)
		}
		c, err := store.Get(ctx, credentials.ServerAddressFromHostname(host))
		if err != nil {
			return "", "", failure.New(failure.Artifact, "read the password of %s: %w", host, err)
		}
		return c.Username, c.Password, nil
	}}
}

// publishFlags are the flags of publish.
type publishFlags struct {
	model, provenance string
	plain             bool
}

// statement reads the provenance to publish: the one that is named, or that of
// the run whose folder the repository is named in.
func (f publishFlags) statement(repository string) ([]byte, error) {
	path := f.provenance
	if path == "" {
		path = filepath.Join(filepath.Dir(filepath.Dir(filepath.Clean(repository))), provenance.FileName)
		if filepath.Base(filepath.Dir(filepath.Clean(repository))) != "artifacts" {
			return nil, nil
		}
	}
	text, err := provenance.ReadFile(path, provenance.MaxBytes)
	if errors.Is(err, fs.ErrNotExist) && f.provenance == "" {
		return nil, nil
	}
	if err != nil {
		return nil, failure.New(failure.Artifact, "read provenance: %w", err)
	}
	return text, nil
}

// findPublished returns the folder of a repository and the model that is meant:
// the one that is named, or the only one.
func (a *app) findPublished(path, name string) (repository, model string, err error) {
	if repository, err = a.findRepository(path); err != nil {
		return "", "", err
	}
	if name == "" {
		m, err := triton.OnlyModel(repository)
		return repository, m.Name, err
	}
	models, err := triton.Models(repository)
	if err != nil {
		return "", "", err
	}
	names := make([]string, len(models))
	for i, m := range models {
		names[i] = m.Name
	}
	if !slices.Contains(names, name) {
		return "", "", failure.New(failure.Artifact, "%s holds no model %s", path, name).WithHint("it has %s", strings.Join(names, ", "))
	}
	return repository, name, nil
}

func (a *app) publish(ctx context.Context, args []string, f publishFlags) error {
	ref, err := registry.ParseReference(args[1])
	if err != nil {
		return err
	}
	repository, model, err := a.findPublished(args[0], f.model)
	if err != nil {
		return err
	}
	o := a.registryOptions(f.plain)
	if o.Provenance, err = f.statement(args[0]); err != nil {
		return err
	}
	o.Progress = func(file string, size int64) { a.say("%s  %s", file, report.FormatBytes(size)) }
	p, err := registry.Publish(ctx, repository, model, ref, o)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(p)
	}
	a.print("%s\n%s  %d files, %s\n", p.Reference, p.Digest, p.Files, report.FormatBytes(p.Bytes))
	if p.Provenance != "" {
		a.print("%s  provenance\n", p.Provenance)
	}
	return nil
}

func (a *app) pull(ctx context.Context, reference, output string, verify, plain bool) error {
	if output == "" {
		return failure.New(failure.Usage, "pull needs -o REPOSITORY, the folder to write to")
	}
	ref, err := registry.ParseReference(reference)
	if err != nil {
		return err
	}
	model, err := registry.Pull(ctx, ref, output, verify, a.registryOptions(plain))
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(map[string]string{"model": model, "folder": filepath.Join(output, model)})
	}
	a.say("wrote %s", filepath.Join(output, model))
	return nil
}
