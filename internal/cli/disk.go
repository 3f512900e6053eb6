package cli

import (
	"os"
	"path/filepath"
	"slices"

	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/pipeline"
)

// leastDisk is what every run may write: documents, logs and small artifacts.
const leastDisk = 16 << 20

// diskNeed estimates how much a run writes to the store: a copy of the model for
// each graph, engine and repository that it makes for the first time. A stage
// that ran before is likely to be reused, and counts nothing. Where the size of
// the model is not known beforehand, as with a factory that makes its own
// weights, only little is asked for.
func diskNeed(cfg *config.Config, o pipeline.Options) int64 {
	size, copies := modelBytes(cfg), int64(0)
	precisions := int64(max(1, len(cfg.TensorRT.Precisions)))
	for _, p := range o.Stages {
		name := p.Spec().Name
		asked := p.Off == "" && o.From == "" && (len(o.Only) == 0 || slices.Contains(o.Only, name))
		if asked && (o.Fresh || o.Store.LastParts(o.Project, name) == nil) {
			switch name {
			case "export", "optimize", "package":
				copies++
			case "quantize", "build":
				copies += precisions
			}
		}
		if name == o.Until {
			break
		}
	}
	return leastDisk + copies*size
}

// modelBytes is the size of the model's file, with the external data of an ONNX
// file; 0 if it is not known.
func modelBytes(cfg *config.Config) int64 {
	info, err := os.Stat(cfg.Model.Path)
	if err != nil || !info.Mode().IsRegular() {
		return 0
	}
	size := info.Size()
	if cfg.Model.Kind != "onnx" {
		return size
	}
	m, err := onnx.Open(cfg.Model.Path)
	if err != nil {
		return size // a stage says what is wrong with it
	}
	defer m.Close()
	for _, f := range m.DataFiles() {
		if info, err := os.Stat(filepath.Join(filepath.Dir(cfg.Model.Path), filepath.FromSlash(f))); err == nil {
			size += info.Size()
		}
	}
	return size
}
