package cli

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
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
		"tensorrt: {profiles: [{inputs: {x: {min: [1, 64], opt: [8, 64], max: [16, 64]}}}]}\n" +
		"gate: {budgets: [{metric: latency_p50_ms, max_rise: 0.5}]}\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return config
}

// against is a baseline and what a run is set against it with.
type against struct {
	*bench
	fast, slow string // configurations
	base       string // report of the fast one
}

func newAgainst(t *testing.T) *against {
	a := &against{bench: newBench(t), fast: model(t, 2), slow: model(t, 300)}
	a.base = a.report(a.bench, a.fast)
	return a
}

// report runs a configuration up to the benchmark and keeps the report.
func (a *against) report(b *bench, config string, more ...string) string {
	a.t.Helper()
	out, _ := b.run(0, append([]string{"run", config, "--until", "benchmark", "--json"}, more...)...)
	r, err := report.Decode([]byte(out))
	if err != nil {
		a.t.Fatal(err)
	}
	path := filepath.Join(a.t.TempDir(), "report.json")
	if err := r.Write(path); err != nil {
		a.t.Fatal(err)
	}
	return path
}

// downloaded is the baseline's report with its graph beside it, as the action
// uploads them.
func (a *against) downloaded() (dir, graph string) {
	a.t.Helper()
	dir = a.t.TempDir()
	b, err := os.ReadFile(a.base)
	if err != nil {
		a.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "report.json"), b, 0o600); err != nil {
		a.t.Fatal(err)
	}
	if err := os.CopyFS(filepath.Join(dir, "onnx"), os.DirFS(filepath.Join(a.runFolder(), "artifacts", "onnx-optimized"))); err != nil {
		a.t.Fatal(err)
	}
	graph = filepath.Join(dir, "onnx", "model.onnx")
	if err := os.Chmod(graph, 0o600); err != nil {
		a.t.Fatal(err)
	}
	return dir, graph
}

func (a *against) runFolder() string {
	a.t.Helper()
	r, err := report.Read(a.base)
	if err != nil {
		a.t.Fatal(err)
	}
	return filepath.Join(filepath.Dir(a.env["TRTSHIP_STORE"]), "runs", r.Run.ID)
}

func TestAChangeIsJudgedInTurnsWithTheBaseline(t *testing.T) {
	a := newAgainst(t)
	same := a.report(a.bench, a.fast, "--against", a.base)
	out, _ := a.run(0, "gate", same, "--until", "benchmark", "--baseline", a.base)
	contains(t, out, "onnx-optimized-", "byte for byte")

	slower := a.report(a.bench, a.slow, "--against", a.base)
	out, _ = a.run(failure.Regression, "gate", slower, "--until", "benchmark", "--baseline", a.base)
	contains(t, out, "measured in turns with onnx-optimized-")
	// Held to another run than it was measured in turns with, it is compared with that run's samples.
	_, out, _ = a.main(t.Context(), []string{"gate", slower, "--until", "benchmark", "--baseline", slower})
	contains(t, out, "which is not this baseline's; it is compared with what the baseline's run measured")
	if strings.Contains(out, "measured in turns") {
		t.Errorf("blocks of another baseline were judged:\n%s", out)
	}
	out, _ = a.run(0, "run", a.slow, "--until", "benchmark", "--against", a.base)
	contains(t, out, "note: in turns with onnx-optimized-", "the baseline's")
	_, errs := a.run(0, "benchmark", "compare", a.base, slower)
	contains(t, errs, "note: the blocks that ran in turns are the gate's to judge")
}

func TestTheBaselinesFilesAreFoundOrTheRowSaysWhere(t *testing.T) {
	a := newAgainst(t)
	downloaded, graph := a.downloaded()
	for _, folder := range []string{downloaded, a.runFolder()} {
		out, _ := newBench(t).run(0, "run", a.slow, "--until", "benchmark", "--against", filepath.Join(folder, "report.json"), "--json")
		contains(t, out, `"metric": "latency_p50_ms"`, `"base_ms": [`)
	}
	out, _ := newBench(t).run(0, "run", a.slow, "--until", "benchmark", "--against", a.base)
	contains(t, out, "not measured in turns with the baseline's: onnx-optimized-", "is neither in this store nor in artifacts/onnx-optimized beside the baseline's report, nor in onnx beside")

	whole, err := os.ReadFile(graph)
	if err != nil {
		t.Fatal(err)
	}
	flipped := bytes.Clone(whole)
	flipped[len(flipped)-1] ^= 1
	for want, content := range map[string][]byte{"the report says sha256:": flipped, "want " + strconv.Itoa(len(whole)): whole[:7], "more than the": append(bytes.Clone(whole), 0)} {
		if err := os.WriteFile(graph, content, 0o600); err != nil {
			t.Fatal(err)
		}
		elsewhere := newBench(t)
		out, _ = elsewhere.run(0, "run", a.slow, "--until", "benchmark", "--against", downloaded)
		contains(t, out, "in onnx beside the baseline's report", want)
		if strings.Contains(out, downloaded) {
			t.Errorf("the report names a path of this machine:\n%s", out)
		}
		if list, _ := elsewhere.run(0, "artifacts", "ls"); strings.Count(list, "onnx-optimized-") != 1 {
			t.Errorf("what was refused is in the store:\n%s", list)
		}
	}

	// A damaged copy in the store does not hide a good one.
	if err := os.WriteFile(graph, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	found, err := filepath.Glob(filepath.Join(a.env["TRTSHIP_STORE"], "onnx-optimized", "*", "files", "model.onnx"))
	if err != nil || len(found) != 1 {
		t.Fatalf("%v, %v", found, err)
	}
	if err := errors.Join(os.Chmod(found[0], 0o600), os.WriteFile(found[0], flipped, 0o600)); err != nil {
		t.Fatal(err)
	}
	out, _ = a.run(0, "run", a.slow, "--until", "benchmark", "--against", downloaded, "--json")
	contains(t, out, `"base_ms": [`)
}

func TestABaselineThatIsOfNoUseIsSaid(t *testing.T) {
	a := newAgainst(t)
	_, errs := a.run(failure.Usage, "run", example(t, "onnx"), "--against", a.base)
	contains(t, errs, "they are of different models", "products in base, classifier in head")
	a.run(failure.Artifact, "run", a.fast, "--against", filepath.Join(t.TempDir(), "none"))
	_, errs = a.run(failure.Usage, "run", a.fast, "--against", a.base, "--set", "benchmark.enabled=false")
	contains(t, errs, "benchmark.enabled is false")
	_, errs = a.run(0, "run", a.fast, "--against", a.base, "--until", "optimize")
	contains(t, errs, "note: --against changed nothing", "after --until optimize")
	_, errs = a.run(0, "run", a.fast, "--against", a.edited(func(r *report.Report) { r.Verdict = report.Fail }), "--until", "optimize")
	contains(t, errs, "the verdict of the baseline", "is fail")
	out, _ := a.run(0, "run", a.slow, "--until", "benchmark", "--against", a.edited(func(r *report.Report) {
		for i := range r.Artifacts {
			r.Artifacts[i].Digest = "sha256:../../../../etc"
		}
	}))
	contains(t, out, "not measured in turns with the baseline's: the report of run", `digest "sha256:../../../../etc" is not sha256`)
}

// edited is the baseline's report, changed by hand.
func (a *against) edited(change func(*report.Report)) string {
	a.t.Helper()
	r, err := report.Read(a.base)
	if err != nil {
		a.t.Fatal(err)
	}
	change(r)
	path := filepath.Join(a.t.TempDir(), "edited.json")
	if err := r.Write(path); err != nil {
		a.t.Fatal(err)
	}
	return path
}
