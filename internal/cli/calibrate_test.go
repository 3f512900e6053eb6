package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/testkit"
)

// calibrationProject writes a configuration for the CNN of testdata/calibration.
func calibrationProject(t *testing.T) (config, model string) {
	t.Helper()
	source := filepath.Join(testkit.Root(t), "testdata", "calibration")
	model = filepath.Join(source, "cnn.onnx")
	data := filepath.Join(source, "cnn_data.npz")
	config = filepath.Join(t.TempDir(), "trtship.yaml")
	text := fmt.Sprintf(`model: {name: cnn, kind: onnx, path: %q, inputs: [{name: x, shape: [batch, 3, 8, 8]}], output_names: [logits]}
tensorrt: {precisions: [int8], profiles: [{inputs: {x: {min: [1, 3, 8, 8], opt: [4, 3, 8, 8], max: [8, 3, 8, 8]}}}]}
validation: {num_samples: 2, task: {data: %q}, tolerances: {int8: {atol: 0.1, rtol: 0}}}
calibration: {path: %q, num_samples: 40, batch_size: 8}
`, model, data, data)
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return config, model
}

func TestCalibrateFromTheCommandLine(t *testing.T) {
	b := newBench(t)
	config, model := calibrationProject(t)
	dir := t.TempDir()
	out := filepath.Join(dir, "out")
	stdout, _ := b.run(failure.OK, "calibrate", config, model, "-o", out)
	contains(t, stdout, "40 samples, 40 different ones", "9 of 9 (100.0%)")
	cache := filepath.Join(out, "calibration.cache")

	_, stderr := b.run(failure.Artifact, "calibrate", config, model, "-o", out)
	contains(t, stderr, out, "it is already there", "nothing is overwritten")
	_, stderr = b.run(failure.Usage, "calibrate", model)
	contains(t, stderr, "calibrate takes a configuration first", "a model alone goes with --check")

	stdout, _ = b.run(failure.OK, "calibrate", config, model, "--check", cache)
	contains(t, stdout, "9 scales, coverage 100.0%")
	stdout, _ = b.run(failure.OK, "calibrate", model, "--check", cache)
	contains(t, stdout, "9 of 9 tensors covered", "matches")
	_, stderr = b.run(failure.Calibration, "calibrate", filepath.Join(filepath.Dir(model), "overflow.onnx"), "--check", cache)
	contains(t, stderr, "7 of 9 names not in the model", "4 of 6 tensors without a scale")
	_, stderr = b.run(failure.Calibration, "calibrate", model, "--check", cache, "--tensorrt-version", "8.6.1")
	contains(t, stderr, "made by TensorRT 10.6.0", "the builder is 8.6.1")
	for _, args := range [][]string{{config, model}, {model}} {
		_, stderr = b.run(failure.Artifact, append([]string{"calibrate", "--check", out}, args...)...)
		contains(t, stderr, out, "is no regular file")
		_, stderr = b.run(failure.Artifact, append([]string{"calibrate", "--check", filepath.Join(dir, "none")}, args...)...)
		contains(t, stderr, "none", "no such file")
	}
	_, stderr = b.run(failure.Usage, "calibrate", model, "--check", cache, "--method", "best")
	contains(t, stderr, `unknown calibration method "best"`)
}

func TestDataThatCannotCalibrateAreExit8(t *testing.T) {
	config, model := calibrationProject(t)
	dir := t.TempDir()
	for name, content := range map[string]string{"pointer.npy": "version https://git-lfs.github.com/spec/v1\n", "junk.npz": "PK no archive"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	empty := filepath.Join(dir, "empty")
	if err := os.Mkdir(empty, 0o755); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		filepath.Join(dir, "pointer.npy"): "is a Git LFS pointer",
		filepath.Join(dir, "junk.npz"):    "is no .npz archive",
		empty:                             "no .npy or .npz file found; 0 other files",
	} {
		b := newBench(t)
		_, stderr := b.run(failure.Calibration, "calibrate", config, model, "--set", "calibration.path="+path)
		contains(t, stderr, path, want)
	}
}

// TestAPatchOfSensitivityIsConfirmedByARun quantizes without and with the patch.
func TestAPatchOfSensitivityIsConfirmedByARun(t *testing.T) {
	b := newBench(t)
	config, model := calibrationProject(t)
	dir := t.TempDir()
	patch, plot := filepath.Join(dir, "patch.yaml"), filepath.Join(dir, "plot.svg")
	_, stderr := b.run(failure.Tolerance, "quantize", config, model, "-o", filepath.Join(dir, "without"))
	contains(t, stderr, "outside")

	stdout, stderr := b.run(failure.OK, "sensitivity", config, model, "--patch", patch, "--plot", plot)
	contains(t, stdout, "all nodes", "/fc", "Gemm", "int8_exclude:", `- "/fc"`)
	contains(t, stderr, "try the graph with 1 node kept")
	svg, err := os.ReadFile(plot)
	if err != nil || !strings.Contains(string(svg), "<svg") {
		t.Errorf("plot: %v", err)
	}
	text, err := os.ReadFile(patch)
	if err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	patched := filepath.Join(dir, "trtship.yaml")
	if err := os.WriteFile(patched, append(whole, text...), 0o644); err != nil {
		t.Fatal(err)
	}
	b.run(failure.OK, "quantize", patched, model, "-o", filepath.Join(dir, "with"))

	// The two judge the same graph, its float16 rest included: where quantize is
	// content, there is nothing to suggest.
	b.run(failure.OK, "quantize", config, model, "-o", filepath.Join(dir, "wider"), "--set", "validation.tolerances.int8.atol=0.13")
	stdout, _ = b.run(failure.OK, "sensitivity", config, model, "--set", "validation.tolerances.int8.atol=0.13")
	contains(t, stdout, "no node has to be kept")

	_, stderr = b.run(failure.Artifact, "sensitivity", config, model, "--patch", patch)
	contains(t, stderr, "it is already there")
	for _, args := range [][]string{{"--precision", "fp8"}, {"--rows", "-1"}, {"--max-nodes", "0"}, {"--set", "quantize.keep_fp32=[nobody]"}} {
		b.run(failure.Usage, append([]string{"sensitivity", config, model}, args...)...)
	}
	_, stderr = b.run(failure.Tolerance, "sensitivity", config, model, "--set", "validation.tolerances.int8.atol=0.0000001")
	contains(t, stderr+b.stdout.String(), "even with the 4 most sensitive nodes kept")
}
