package pipeline

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"sync"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/stage"
	"github.com/trtship/trtship/internal/store"
	"github.com/trtship/trtship/report"
)

// inputs implements stage.Inputs over verified artifacts.
type inputs struct{ artifacts []artifact.Artifact }

var _ stage.Inputs = (*inputs)(nil)

func (in *inputs) One(kind artifact.Kind) (artifact.Artifact, error) {
	all := in.All(kind)
	if len(all) != 1 {
		return artifact.Artifact{}, failure.New(failure.Artifact, "take input %s: there are %d of them", kind, len(all))
	}
	return all[0], nil
}

func (in *inputs) All(kind artifact.Kind) []artifact.Artifact {
	var out []artifact.Artifact
	for _, a := range in.artifacts {
		if a.Kind == kind {
			out = append(out, a)
		}
	}
	return out
}

// outputs implements stage.Outputs. A stage may use it from several goroutines.
type outputs struct {
	ctx     context.Context //nolint:containedctx // of the stage's one run
	attempt *attempt
	parents []string

	mu        sync.Mutex
	scratch   []string
	published []artifact.Artifact
	deps      []string
	closed    bool
}

var _ stage.Outputs = (*outputs)(nil)

func newOutputs(ctx context.Context, a *attempt, in *inputs) *outputs {
	o := &outputs{ctx: ctx, attempt: a}
	for _, art := range in.artifacts {
		o.parents = append(o.parents, art.ID())
	}
	slices.Sort(o.parents)
	o.parents = slices.Compact(o.parents)
	return o
}

// close removes the scratch that is left, and refuses what comes late from
// goroutines that the stage forgot.
func (o *outputs) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	for _, dir := range o.scratch {
		_ = o.attempt.o.Store.Discard(dir) // swept by a later run
	}
}

func (o *outputs) artifacts() []artifact.Artifact {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := slices.Clone(o.published)
	slices.SortStableFunc(out, func(a, b artifact.Artifact) int {
		if ka, kb := o.rank(a.Kind), o.rank(b.Kind); ka != kb {
			return ka - kb
		}
		if a.Label < b.Label {
			return -1
		} else if a.Label > b.Label {
			return 1
		}
		return 0
	})
	return out
}

func (o *outputs) rank(k artifact.Kind) int { return slices.Index(o.attempt.step.spec.Out, k) }

func (o *outputs) Scratch(name string) (string, error) {
	if err := o.open(); err != nil {
		return "", err
	}
	dir, err := o.attempt.o.Store.Scratch(o.attempt.step.spec.Name + "-" + name)
	if err != nil {
		return "", err
	}
	o.mu.Lock()
	o.scratch = append(o.scratch, dir)
	o.mu.Unlock()
	return dir, nil
}

func (o *outputs) open() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return failure.New(failure.Bug, "stage %s has ended", o.attempt.step.spec.Name)
	}
	return nil
}

func (o *outputs) Publish(kind artifact.Kind, label, dir string, meta map[string]string) (artifact.Artifact, error) {
	if err := o.admit(kind, label); err != nil {
		return artifact.Artifact{}, err
	}
	d := store.Draft{Kind: kind, Label: label, Stage: o.attempt.step.spec.Name, Parents: o.parents, Meta: meta}
	a, err := o.attempt.o.Store.Publish(o.ctx, d, dir)
	if err != nil {
		return artifact.Artifact{}, err
	}
	o.mu.Lock()
	o.published = append(o.published, a)
	o.mu.Unlock()
	return a, nil
}

// admit refuses a kind that the stage's Spec does not have, and a second
// artifact of one kind and label.
func (o *outputs) admit(kind artifact.Kind, label string) error {
	if err := o.open(); err != nil {
		return err
	}
	name := o.attempt.step.spec.Name
	if o.rank(kind) < 0 {
		return failure.New(failure.Bug, "publish %s: stage %s does not make this kind", kind, name)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, a := range o.published {
		if a.Kind == kind && a.Label == label && !IsDocument(kind) {
			return failure.New(failure.Bug, "publish %s: stage %s has already made one with the label %q", kind, name, label)
		}
	}
	return nil
}

func (o *outputs) PublishDocument(kind artifact.Kind, v any) (artifact.Artifact, error) {
	if !IsDocument(kind) {
		return artifact.Artifact{}, failure.New(failure.Bug, "publish %s: it is no kind of document", kind)
	}
	text, err := json.MarshalIndent(report.WithLists(v), "", "  ")
	if err != nil {
		return artifact.Artifact{}, fmt.Errorf("write %s: %w", kind, err)
	}
	dir, err := o.Scratch(string(kind))
	if err != nil {
		return artifact.Artifact{}, err
	}
	if err := store.WriteFile(o.attempt.o.Store.FS(), filepath.Join(dir, documentFile), append(text, '\n')); err != nil {
		return artifact.Artifact{}, failure.New(failure.Artifact, "write %s: %w", kind, err)
	}
	return o.Publish(kind, "", dir, nil)
}

func (o *outputs) DependOn(path string) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.deps = append(o.deps, abs)
}

func (o *outputs) Log() io.Writer { return o.attempt.log }

func (o *outputs) Progress(done, total int64, label string) {
	o.attempt.o.Observer.StageProgress(o.attempt.step.spec.Name, done, total, label)
}
