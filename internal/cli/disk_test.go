package cli

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/pipeline"
	"github.com/trtship/trtship/internal/stage"
	"github.com/trtship/trtship/internal/store"
	"github.com/trtship/trtship/internal/testkit"
)

func TestTheDiskThatARunNeedsIsAskedForBefore(t *testing.T) {
	st, err := store.Open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	weights := filepath.Join(t.TempDir(), "weights.pt")
	if err := os.WriteFile(weights, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	const size = 1 << 30
	if err := os.Truncate(weights, size); err != nil {
		t.Fatal(err)
	}
	if err := st.SetLastParts("project", "optimize", []artifact.Part{{Name: "stage", Value: "optimize"}}); err != nil {
		t.Fatal(err)
	}
	var all []stage.Planned
	for _, name := range []string{"inspect", "export", "validate", "optimize", "quantize", "build", "package", "served"} {
		all = append(all, stage.Planned{Stage: testkit.Text(name, nil)})
	}
	tests := map[string]struct {
		copies int64
		path   string
		change func(o *pipeline.Options)
	}{
		"a copy for each stage that writes one, two for two precisions": {copies: 3 + 2*2},
		"up to the last stage that is asked for":                        {copies: 2, change: func(o *pipeline.Options) { o.Until = "optimize" }},
		"only what is asked for":                                        {copies: 1, change: func(o *pipeline.Options) { o.Only = []string{"package"} }},
		"a stage that ran before is reused": {copies: 2 + 2*2, change: func(o *pipeline.Options) {
			o.Project = "project"
		}},
		"a factory's weights are not known": {path: "/nothing/here"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			cfg := &config.Config{}
			cfg.Model.Kind, cfg.Model.Path, cfg.TensorRT.Precisions = "checkpoint", weights, []string{"fp32", "fp16"}
			if tt.path != "" {
				cfg.Model.Path = tt.path
			}
			o := pipeline.Options{Stages: all, Store: st, Project: "other"}
			if tt.change != nil {
				tt.change(&o)
			}
			if got := diskNeed(cfg, o); got != leastDisk+tt.copies*size {
				t.Errorf("%d, want %d copies", got, tt.copies)
			}
		})
	}
}
