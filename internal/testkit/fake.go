package testkit

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/stage"
	"github.com/trtship/trtship/report"
)

// Fake is a stage for tests: data, and a function to run.
type Fake struct {
	Describe  stage.Spec
	Setting   any
	Source    []string
	Tool      map[string]string
	ToolError error
	Work      func(ctx context.Context, in stage.Inputs, out stage.Outputs) ([]report.Check, error)

	Runs atomic.Int64 // how often Run was called
}

var _ stage.Stage = (*Fake)(nil)

// Spec returns Describe.
func (f *Fake) Spec() stage.Spec { return f.Describe }

// Settings returns Setting.
func (f *Fake) Settings() any { return f.Setting }

// Sources returns Source.
func (f *Fake) Sources() []string { return f.Source }

// Tools returns Tool and ToolError.
func (f *Fake) Tools(context.Context) (map[string]string, error) { return f.Tool, f.ToolError }

// Run counts and calls Work.
func (f *Fake) Run(ctx context.Context, in stage.Inputs, out stage.Outputs) ([]report.Check, error) {
	f.Runs.Add(1)
	return f.Work(ctx, in, out)
}

// Pass returns one passed check.
func Pass(id string) []report.Check { return []report.Check{{ID: id, Verdict: report.Pass}} }

// Text is a cacheable stage that publishes one text file of each kind it makes:
// its name, and the texts of its inputs. Its one check is "<name>/ok".
func Text(name string, in []artifact.Kind, out ...artifact.Kind) *Fake {
	f := &Fake{Describe: stage.Spec{
		Name: name, Version: 1, Title: "Fake " + name, Out: out, Cacheable: true,
		Checks: []stage.CheckDoc{{ID: name + "/ok", Title: "It holds."}},
	}}
	for _, k := range in {
		f.Describe.In = append(f.Describe.In, stage.In{Kind: k})
	}
	f.Work = func(_ context.Context, in stage.Inputs, o stage.Outputs) ([]report.Check, error) {
		return Pass(name + "/ok"), f.PublishText(in, o)
	}
	return f
}

// PublishText publishes what Text says.
func (f *Fake) PublishText(in stage.Inputs, o stage.Outputs) error {
	text := f.Describe.Name + "\n"
	for _, i := range f.Describe.In {
		for _, a := range in.All(i.Kind) {
			for _, file := range a.Files {
				b, err := os.ReadFile(filepath.Join(a.Dir, filepath.FromSlash(file.Path)))
				if err != nil {
					return err
				}
				text += file.Path + ": " + string(b)
			}
		}
	}
	for _, s := range f.Source {
		path, _ := stage.CutCode(s)
		if b, err := os.ReadFile(path); err == nil {
			text += "source: " + string(b) + "\n"
		}
	}
	for _, k := range f.Describe.Out {
		dir, err := o.Scratch(string(k))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, "text"), []byte(text), 0o644); err != nil {
			return fmt.Errorf("write text: %w", err)
		}
		if _, err := o.Publish(k, "", dir, nil); err != nil {
			return err
		}
	}
	return nil
}
