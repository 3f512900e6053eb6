package cli

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/pipeline"
	"github.com/trtship/trtship/internal/provenance"
	"github.com/trtship/trtship/internal/store"
	"github.com/trtship/trtship/internal/triton"
	"github.com/trtship/trtship/report"
)

func newVerifyCmd(a *app) *cobra.Command {
	var root string
	c := &cobra.Command{
		Use:   "verify [RUN|PATH]",
		Short: "Hash what a run or a model repository is made of, and say what changed, is missing or is extra",
		Long: `verify holds files to what was written down about them, and changes nothing:

  a run's folder or id   every artifact to manifest.json, and both to report.json and provenance.json
  report.json alone      every artifact that it names to the store (--store)
  a statement            an in-toto statement's subjects to the files below --root (its own folder by default)
  a model repository     every model to its trtship-manifest.json, and to trtship-provenance.json if it is there

Of a run, logs and the renderings below reports/ are not held to anything: trtship report makes them
again from report.json.

Digests prove that files are those that were written down, not who wrote them down: no statement is
signed. Compare the digest of provenance.json with one that you got another way.

Any problem is exit 11.`,
		Example: "  trtship verify\n  trtship verify model_repository --json\n  trtship verify provenance.json --root .",
		GroupID: "pipeline",
		Args:    positional(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			which := ""
			if len(args) == 1 {
				which = args[0]
			}
			return a.verifyFiles(cmd.Context(), which, root)
		},
	}
	c.Flags().StringVar(&root, "root", "", "`folder` that the names of a statement's subjects start from")
	return c
}

// verified is what verify found, for --json.
type verified struct {
	What string `json:"what"` // run, report, statement or repository
	Path string `json:"path"`
	provenance.Found
}

// remedy says what to do about problems.
func (v verified) remedy() string {
	if v.What == "run" || v.What == "report" {
		return "run the pipeline again, or restore the files from an intact copy"
	}
	return "restore the files from an intact copy"
}

func (a *app) verifyFiles(ctx context.Context, which, root string) error {
	path, err := a.findVerifiable(which)
	if err != nil {
		return err
	}
	if info, err := os.Stat(root); root != "" && (err != nil || !info.IsDir()) {
		return failure.New(failure.Usage, "--root %s is no folder", root)
	}
	v, err := a.verifyPath(ctx, path, root)
	if err != nil {
		if ctx.Err() != nil {
			return failure.New(failure.Interrupted, "verify: %w", context.Cause(ctx))
		}
		return err
	}
	v.Path = a.rel(path)
	if a.json {
		err = a.printJSON(v)
	} else {
		for _, p := range v.Problems {
			a.print("%-10s  %s\n", p.What, p)
		}
		a.print("%s %s: %s, %s, %s\n", v.What, v.Path, report.Count(v.Files, "file"), report.FormatBytes(v.Bytes), report.Count(len(v.Problems), "problem"))
	}
	if err == nil && len(v.Problems) > 0 {
		return failure.New(failure.Artifact, "verify %s %s: %s", v.What, v.Path, report.Count(len(v.Problems), "problem")).
			WithHint("%s", v.remedy())
	}
	return err
}

// findVerifiable returns the path that is meant: an existing one, or a run's
// folder by its id.
func (a *app) findVerifiable(which string) (string, error) {
	if which != "" {
		if _, err := os.Stat(which); err == nil || !errors.Is(err, fs.ErrNotExist) {
			return which, nil
		}
	}
	if strings.ContainsRune(which, filepath.Separator) {
		return "", failure.New(failure.Artifact, "verify %s: it is not there", which)
	}
	return a.findRun(which)
}

func (a *app) verifyPath(ctx context.Context, path, root string) (verified, error) {
	info, err := os.Stat(path)
	if err != nil {
		return verified{}, failure.New(failure.Artifact, "verify: %w", err)
	}
	noStatement := failure.New(failure.Usage, "--root is for a statement, and %s is none", path)
	if info.IsDir() && root != "" {
		return verified{}, noStatement
	}
	if info.IsDir() {
		return verifyFolder(ctx, path)
	}
	text, err := provenance.ReadFile(path, report.MaxBytes)
	if err != nil {
		return verified{}, failure.New(failure.Artifact, "verify: %w", err)
	}
	if s, serr := provenance.Decode(text); serr == nil {
		if root == "" {
			root = filepath.Dir(path)
		}
		return verifyStatement(ctx, s, root)
	}
	rep, err := report.Decode(text)
	if err != nil {
		return verified{}, failure.New(failure.Artifact, "verify: it is neither a report nor an in-toto statement: %w", err).At(path)
	}
	if root != "" {
		return verified{}, noStatement
	}
	if dir := filepath.Dir(path); isRun(dir) {
		found, err := pipeline.VerifyRun(ctx, dir)
		return verified{What: "run", Found: found}, err
	}
	found, err := a.verifyInStore(ctx, rep)
	return verified{What: "report", Found: found}, err
}

// isRun reports whether a folder is that of a run, also of one that lost its
// manifest.
func isRun(dir string) bool {
	has := func(name string) bool {
		_, err := os.Lstat(filepath.Join(dir, name))
		return err == nil
	}
	return has("manifest.json") || has("artifacts") && (has("report.json") || has(provenance.FileName))
}

func verifyFolder(ctx context.Context, dir string) (verified, error) {
	if isRun(dir) {
		found, err := pipeline.VerifyRun(ctx, dir)
		return verified{What: "run", Found: found}, err
	}
	v := verified{What: "repository", Found: provenance.Found{Problems: []provenance.Problem{}}}
	if _, err := os.Lstat(filepath.Join(dir, triton.ManifestFile)); err == nil {
		v.What = "model"
		v.Found, err = triton.Verify(ctx, dir)
		return v, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return v, failure.New(failure.Artifact, "verify: %w", err)
	}
	models := 0
	for _, e := range entries {
		model := filepath.Join(dir, e.Name())
		if _, err := os.Lstat(filepath.Join(model, triton.ManifestFile)); err != nil || !e.IsDir() {
			v.Say(provenance.Extra, e.Name(), "it has no %s", triton.ManifestFile)
			continue
		}
		models++
		found, err := triton.Verify(ctx, model)
		if ctx.Err() != nil {
			return v, err
		}
		if err != nil {
			v.Say(provenance.Invalid, e.Name()+"/"+triton.ManifestFile, "%s", err)
		}
		v.Add(found, e.Name())
	}
	if models == 0 {
		return v, failure.New(failure.Artifact, "verify %s: it is no run and no model repository that trtship wrote", dir)
	}
	return v, nil
}

// verifyStatement holds subjects and byproducts to files below root. Subjects
// of a run go through its links: root/artifacts/NAME is followed, once.
func verifyStatement(ctx context.Context, s *provenance.Statement, root string) (verified, error) {
	v := verified{What: "statement", Found: provenance.Found{Problems: []provenance.Problem{}}}
	below := map[string][]provenance.Want{}
	for _, w := range append(slices.Clone(s.Subjects), s.Byproducts...) {
		dir := ""
		if parts := strings.SplitN(w.Path, "/", 3); len(parts) == 3 && parts[0] == "artifacts" && artifact.CheckPath(w.Path) == nil {
			dir, w.Path = "artifacts/"+parts[1], parts[2]
		}
		below[dir] = append(below[dir], w)
	}
	dirs := make([]string, 0, len(below))
	for dir := range below {
		dirs = append(dirs, dir)
	}
	slices.Sort(dirs)
	for _, dir := range dirs {
		found, err := provenance.CheckFiles(ctx, filepath.Join(root, filepath.FromSlash(dir)), below[dir], dir != "")
		v.Add(found, dir)
		if err != nil {
			return v, err
		}
	}
	return v, nil
}

// verifyInStore holds what a report names to the store, without opening it for
// use.
func (a *app) verifyInStore(ctx context.Context, rep *report.Report) (provenance.Found, error) {
	found := provenance.Found{Problems: []provenance.Problem{}}
	items, err := store.Look(a.storeDir())
	if err != nil {
		return found, err
	}
	for _, s := range rep.Artifacts {
		at := slices.IndexFunc(items, func(it store.Item) bool {
			return it.Err == nil && string(it.Digest) == s.Digest && string(it.Kind) == s.Kind && len(it.Files) == s.Files
		})
		if at < 0 {
			found.Say(provenance.Missing, s.ID, "the store at %s does not have it", a.storeDir())
			continue
		}
		want := make([]provenance.Want, 0, len(items[at].Files))
		for _, f := range items[at].Files {
			want = append(want, provenance.Want{Path: f.Path, Digest: string(f.Digest), Size: f.Size})
		}
		got, err := provenance.CheckFiles(ctx, items[at].Dir, want, true)
		found.Add(got, s.ID)
		if err != nil {
			return found, err
		}
	}
	return found, nil
}
