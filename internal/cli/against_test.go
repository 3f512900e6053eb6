package cli

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/onnx/onnxtest"
	"github.com/trtship/trtship/report"
)

// model writes a graph of so many matrix products and a configuration that ships it.
func model(t *testing.T, n int) (config string) {
	t.Helper()
	dir := t.TempDir()
	if err := onnxtest.Products(n, "x").Model(t).Save(filepath.Join(dir, "model.onnx"), onnx.SaveOptions{}); err != nil {
		t.Fatal(err)
	}
	config = filepath.Join(dir, "trtship.yaml")
	text := "model: {name: products, kind: onnx, path: model.onnx}\ntarget: onnxruntime\nbenchmark: {batch_sizes: [8], iters: 60}\n" +
		"tensorrt: {profiles: [{inputs: {x: {min: [1, 64], opt: [8, 64], max: [16, 64]}}}]}\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return config
}

// A processor's speed is judged only where both sides ran in turns: what ran at
// other times is shown.
func TestAChangeIsJudgedInTurnsWithTheBaseline(t *testing.T) {
	b := newBench(t)
	fast, slow := model(t, 2), model(t, 300)
	run := func(config string, more ...string) string {
		out, _ := b.run(0, append([]string{"run", config, "--until", "benchmark", "--json"}, more...)...)
		r, err := report.Decode([]byte(out))
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "report.json")
		if err := r.Write(path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	base := run(fast)

	same := run(fast, "--against", base)
	out, _ := b.run(0, "gate", same, "--until", "benchmark", "--baseline", base)
	contains(t, out, "it is the baseline's onnx-optimized-")

	slower := run(slow, "--against", base)
	out, _ = b.run(failure.Regression, "gate", slower, "--until", "benchmark", "--baseline", base)
	contains(t, out, "measured in turns with onnx-optimized-")
	// Apart from each other, the processor is not judged.
	out, _ = b.run(0, "gate", run(slow), "--until", "benchmark", "--baseline", base)
	contains(t, out, "a processor's speed is judged where")

	elsewhere := newBench(t)
	out, _ = elsewhere.run(0, "run", slow, "--until", "benchmark", "--against", base)
	contains(t, out, "not measured in turns with the baseline's: onnx-optimized-", "is not in this store")

	// The files of the run lie beside the report: as the action uploads them, and as a run's folder links them.
	r, err := report.Read(base)
	if err != nil {
		t.Fatal(err)
	}
	runFolder := filepath.Join(filepath.Dir(b.env["TRTSHIP_STORE"]), "runs", r.Run.ID)
	downloaded := t.TempDir()
	if err := r.Write(filepath.Join(downloaded, "report.json")); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(filepath.Join(downloaded, "onnx"), os.DirFS(filepath.Join(runFolder, "artifacts", "onnx-optimized"))); err != nil {
		t.Fatal(err)
	}
	for _, folder := range []string{downloaded, runFolder} {
		elsewhere = newBench(t)
		out, _ = elsewhere.run(0, "run", slow, "--until", "benchmark", "--against", filepath.Join(folder, "report.json"), "--json")
		contains(t, out, `"base_ms": [`)
	}
	if err := os.WriteFile(filepath.Join(downloaded, "onnx", "model.onnx"), []byte("another"), 0o600); err != nil {
		t.Fatal(err)
	}
	elsewhere = newBench(t)
	out, _ = elsewhere.run(0, "run", slow, "--until", "benchmark", "--against", filepath.Join(downloaded, "report.json"))
	contains(t, out, "what lies in the place of onnx-optimized-")

	_, errs := b.run(failure.Usage, "run", example(t, "onnx"), "--against", base)
	contains(t, errs, "they are of different models", "products in base, classifier in head")
	b.run(failure.Artifact, "run", fast, "--against", filepath.Join(t.TempDir(), "none"))
}
