package cli

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/trtship/trtship/internal/failure"
)

func TestFilesOfAConfigurationAreLookedForBeforeTheFirstStage(t *testing.T) {
	b := newBench(t)
	dir := t.TempDir()
	t.Chdir(dir)
	cfg := filepath.Join(dir, "trtship.yaml")
	text := `model: {name: small, kind: onnx, path: model.onnx, inputs: [{name: x, dtype: float32, shape: [batch, 4]}]}
tensorrt:
  timing_cache: timing.cache
  profiles: [{inputs: {x: {min: [1, 4], opt: [2, 4], max: [4, 4]}}}]
triton: {labels: {y: labels.txt}}
`
	if err := os.WriteFile(cfg, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	_, errs := b.run(failure.Artifact, "config", "validate", cfg)
	contains(t, errs, cfg+":1", "model.path: ", cfg+":3", "tensorrt.timing_cache: "+filepath.Join(dir, "timing.cache")+" is not there", cfg+":5", "triton.labels.y: ")
	out, _ := b.run(failure.Artifact, "config", "validate", cfg, "--json")
	contains(t, out, `"path": "tensorrt.timing_cache"`, `"line": 3`, `"valid": false`)
	// A run looks for what its stages read, and for nothing else.
	_, errs = b.run(failure.Artifact, "run", cfg, "--until", "inspect")
	contains(t, errs, cfg+":1: model.path: "+filepath.Join(dir, "model.onnx")+" is not there", "hint: input paths are relative")
	_, errs = b.run(failure.Artifact, "run", cfg, "--allow-missing")
	contains(t, errs, "names 3 files that cannot be read")
	if err := os.Mkdir(filepath.Join(dir, "timing.cache"), 0o700); err != nil {
		t.Fatal(err)
	}
	_, errs = b.run(failure.Usage, "config", "validate", cfg)
	contains(t, errs, cfg+":3: tensorrt.timing_cache: "+filepath.Join(dir, "timing.cache")+" is a folder; name the file")
	b.run(failure.Artifact, "config", "validate", cfg, "--set", "tensorrt.timing_cache=")
}
