package calibration

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"

	"github.com/trtship/trtship/internal/dataset"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/regular"
)

// checkpoint is the state between two batches.
type checkpoint struct {
	Format    string         `json:"format"`
	Key       string         `json:"key"`
	Groups    [][]string     `json:"groups"`
	Run       int            `json:"run"`
	Group     int            `json:"group"`
	Position  int            `json:"position"`
	Version   string         `json:"version"`
	Audit     *dataset.Audit `json:"audit"`
	Observers []byte         `json:"observers"`
}

const checkpointFormat = "trtship-calibration-checkpoint/1"

// save writes a checkpoint of everything up to position.
func (c *collector) save(ctx context.Context, base *observers) error {
	sum := newObservers()
	for name, o := range c.all.byName {
		sum.of(name).Merge(o)
	}
	for name, o := range base.byName {
		sum.of(name).Merge(o)
	}
	if err := c.settle(); err != nil {
		return err
	}
	state, err := c.session.Reduced(ctx)
	if err != nil {
		return err
	}
	extra := newObservers()
	if err := extra.merge(state); err != nil {
		return err
	}
	for _, name := range c.groups[c.group] {
		if o := extra.byName[name]; o != nil {
			sum.of(name).Merge(o)
		}
	}
	return c.write(sum)
}

func (c *collector) write(all *observers) error {
	state, err := all.State()
	if err != nil {
		return err
	}
	b, err := json.Marshal(checkpoint{checkpointFormat, c.Key, c.groups, c.run, c.group, c.position, c.version, c.audit, state})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(c.Checkpoint), 0o755); err != nil {
		return failure.New(failure.Artifact, "write calibration checkpoint: %w", err).At(c.Checkpoint)
	}
	part := c.Checkpoint + ".part"
	if err := os.WriteFile(part, b, 0o644); err != nil {
		return failure.New(failure.Artifact, "write calibration checkpoint: %w", err).At(part)
	}
	if err := os.Rename(part, c.Checkpoint); err != nil {
		return failure.New(failure.Artifact, "write calibration checkpoint: %w", err).At(c.Checkpoint)
	}
	return checkpointWritten.Hit()
}

// restore goes on from a checkpoint of the same key. A damaged or foreign one is
// as good as none.
func (c *collector) restore() error {
	if c.Checkpoint == "" {
		return nil
	}
	b, err := regular.ReadFile(c.Checkpoint)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return failure.New(failure.Artifact, "read calibration checkpoint: %w", err).At(c.Checkpoint)
	}
	p := checkpoint{Audit: dataset.NewAudit()}
	if json.Unmarshal(b, &p) != nil || p.Format != checkpointFormat || p.Key != c.Key || p.Audit == nil {
		return nil
	}
	if p.Group < 0 || p.Group >= len(p.Groups) || p.Position < 0 {
		return nil
	}
	all := newObservers()
	if all.merge(p.Observers) != nil {
		return nil
	}
	c.all, c.audit, c.groups, c.run, c.group, c.position, c.version = all, p.Audit, p.Groups, p.Run, p.Group, p.Position, p.Version
	return nil
}
