package cli

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/store"
	"github.com/trtship/trtship/report"
)

func newArtifactsCmd(a *app) *cobra.Command {
	c := a.group("artifacts", "List, show, verify and clean up artifacts", "setup")
	var o store.GCOptions
	gc := &cobra.Command{
		Use:   "gc",
		Short: "Remove artifacts that no run refers to",
		Long: `gc removes artifacts that no run refers to, and the cache entries that need them. Remove the
folders of runs that are not needed any more, then run it.`,
		Args: positional(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withStore(cmd.Context(), func(st *store.Store) error { return a.gc(st, o) })
		},
	}
	gc.Flags().BoolVar(&o.DryRun, "dry-run", false, "say what would be removed")
	gc.Flags().DurationVar(&o.Younger, "keep-younger", time.Hour, "keep what was made within this `time`")
	gc.Flags().BoolVar(&o.Evidence, "evidence", false, "remove damaged artifacts that were set aside, too")
	c.AddCommand(
		&cobra.Command{
			Use: "ls [KIND]", Short: "List the artifacts", Args: positional(0, 1),
			RunE: func(cmd *cobra.Command, args []string) error {
				return a.withStore(cmd.Context(), func(st *store.Store) error { return a.list(st, args) })
			},
		},
		&cobra.Command{
			Use: "show ID", Short: "Show an artifact: its files, where it came from and who uses it", Args: positional(1, 1),
			RunE: func(cmd *cobra.Command, args []string) error {
				return a.withStore(cmd.Context(), func(st *store.Store) error { return a.show(st, args[0]) })
			},
		},
		&cobra.Command{
			Use: "verify", Short: "Hash every artifact, and list what is damaged or half-written", Args: positional(0, 0),
			RunE: func(cmd *cobra.Command, _ []string) error {
				return a.withStore(cmd.Context(), func(st *store.Store) error { return a.verify(cmd.Context(), st) })
			},
		}, gc)
	return c
}

// withStore opens the store for f.
func (a *app) withStore(ctx context.Context, f func(*store.Store) error) error {
	st, err := store.Open(ctx, a.storeDir())
	if err != nil {
		return err
	}
	defer st.Close()
	return f(st)
}

// listed is one artifact for --json.
type listed struct {
	ID     string            `json:"id"`
	Kind   string            `json:"kind"`
	Label  string            `json:"label,omitempty"`
	Digest string            `json:"digest,omitempty"`
	Size   int64             `json:"size"`
	Files  int               `json:"files"`
	Stage  string            `json:"stage,omitempty"`
	Runs   []string          `json:"runs"`
	Dir    string            `json:"dir"`
	Meta   map[string]string `json:"meta,omitempty"`
	Error  string            `json:"error,omitempty"`
}

func listedOf(it store.Item) listed {
	l := listed{
		ID: it.ID(), Kind: string(it.Kind), Label: it.Label, Digest: string(it.Digest), Size: it.Size, Files: len(it.Files),
		Stage: it.Stage, Runs: append([]string{}, it.Runs...), Dir: it.Dir, Meta: it.Meta,
	}
	if it.Err != nil {
		l.ID, l.Error = it.Meta["name"], it.Err.Error()
	}
	return l
}

func (a *app) list(st *store.Store, kinds []string) error {
	items, err := st.List()
	if err != nil {
		return err
	}
	if len(kinds) > 0 && !slices.Contains(artifact.Kinds, artifact.Kind(kinds[0])) {
		names := make([]string, len(artifact.Kinds))
		for i, k := range artifact.Kinds {
			names[i] = string(k)
		}
		return failure.New(failure.Usage, "artifacts ls: %q is no kind", kinds[0]).WithHint("the kinds are %s", strings.Join(names, ", "))
	}
	out := []listed{}
	for _, it := range items {
		if len(kinds) == 0 || string(it.Kind) == kinds[0] {
			out = append(out, listedOf(it))
		}
	}
	if a.json {
		return a.printJSON(out)
	}
	t := a.table("artifact", "label", "size", "files", "stage", "runs")
	for _, l := range out {
		t.AppendRow([]any{l.ID, l.Label, report.FormatBytes(l.Size), l.Files, l.Stage, strings.Join(l.Runs, " ")})
	}
	a.printTable(t)
	return nil
}

func (a *app) show(st *store.Store, id string) error {
	it, err := st.Find(id)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(struct {
			listed
			Record any `json:"record"`
		}{listedOf(it), it.Record})
	}
	l := listedOf(it)
	a.print("%s\n  digest   %s\n  size     %s\n  stage    %s\n  parents  %s\n  runs     %s\n  folder   %s\n",
		l.ID, l.Digest, report.FormatBytes(l.Size), l.Stage, strings.Join(it.Parents, " "), strings.Join(l.Runs, " "), l.Dir)
	for k, v := range it.Meta {
		a.print("  %-8s %s\n", k, v)
	}
	for _, f := range it.Files {
		a.print("  %10s  %s  %s\n", report.FormatBytes(f.Size), f.Digest.Short(), f.Path)
	}
	return nil
}

func (a *app) verify(ctx context.Context, st *store.Store) error {
	v, err := st.Verify(ctx)
	if err != nil {
		return err
	}
	if a.json {
		if err := a.printJSON(v); err != nil {
			return err
		}
	} else {
		a.print("%d artifacts, %d cache entries, %s: %d problems\n", v.Artifacts, v.Entries, report.FormatBytes(v.Bytes), len(v.Problems))
	}
	if len(v.Problems) == 0 {
		return nil
	}
	e := failure.New(failure.Artifact, "the store at %s has %d problems", st.Root(), len(v.Problems)).
		WithHint("run the stage again: a damaged artifact is set aside and made anew")
	for _, p := range v.Problems {
		e.With(p.Path, "%s", p.Text)
	}
	return e
}

func (a *app) gc(st *store.Store, o store.GCOptions) error {
	c, err := st.GC(o)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(c)
	}
	word := "removed"
	if o.DryRun {
		word = "would remove"
	}
	for _, id := range c.Artifacts {
		a.print("%s\n", id)
	}
	a.say("%s %d artifacts and %d cache entries, %s; kept %d", word, len(c.Artifacts), c.Entries, report.FormatBytes(c.Bytes), c.Kept)
	return nil
}
