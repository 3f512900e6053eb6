package pipeline

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/stage"
)

// keyOf describes a stage's work completely.
func (r *runner) keyOf(ctx context.Context, s *step, inputs []artifact.Artifact) (*artifact.Key, error) {
	k := artifact.NewKey(s.spec.Name, s.spec.Version)
	if err := k.AddSettings(s.Settings()); err != nil {
		return nil, err
	}
	for _, a := range inputs {
		name := "input " + string(a.Kind)
		if a.Label != "" {
			name += " " + a.Label
		}
		k.Add(name, string(a.Digest))
	}
	for _, source := range s.Sources() {
		path, code := stage.CutCode(source)
		path = r.absolute(path)
		d, err := r.o.Store.HashSource(ctx, path, code)
		if err != nil {
			return nil, err
		}
		k.Add("source "+r.sourceName(path), string(d))
	}
	tools, err := s.Tools(ctx)
	if err != nil {
		return nil, fmt.Errorf("ask for the tools of %s: %w", s.spec.Name, err)
	}
	k.AddMap("tool", tools)
	if s.spec.Hardware && r.o.Machine != nil {
		machine, err := r.o.Machine(ctx)
		if err != nil {
			return nil, fmt.Errorf("describe the machine for %s: %w", s.spec.Name, err)
		}
		k.AddMap("machine", machine)
	}
	return k, nil
}

// sourceName is a source's path from the project's folder, or its last element
// if it lies elsewhere: where a checkout lies decides nothing.
func (r *runner) sourceName(path string) string {
	if rel := r.relative(path); !filepath.IsAbs(rel) {
		return rel
	}
	return filepath.Base(path)
}
