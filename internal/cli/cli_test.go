package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/pipeline"
	"github.com/trtship/trtship/internal/testkit"
	"github.com/trtship/trtship/report"
)

// bench is one user at one terminal: a store, an environment, captured streams.
type bench struct {
	t      *testing.T
	env    map[string]string
	stdout bytes.Buffer
	stderr bytes.Buffer
}

func newBench(t *testing.T) *bench {
	t.Helper()
	return &bench{t: t, env: map[string]string{
		"TRTSHIP_STORE": filepath.Join(t.TempDir(), "store"), "TRTSHIP_PYTHON": os.Getenv("TRTSHIP_PYTHON"),
		"TRTSHIP_ORT_LIB": os.Getenv("TRTSHIP_ORT_LIB"),
		"PATH":            os.Getenv("PATH"), "HOME": os.Getenv("HOME"), "XDG_CACHE_HOME": os.Getenv("XDG_CACHE_HOME"), "NO_COLOR": "1",
	}}
}

// run runs a command and demands its exit code.
func (b *bench) run(want failure.Code, args ...string) (stdout, stderr string) {
	b.t.Helper()
	return b.runIn(b.t.Context(), want, args...)
}

func (b *bench) runIn(ctx context.Context, want failure.Code, args ...string) (stdout, stderr string) {
	b.t.Helper()
	code, stdout, stderr := b.main(ctx, args)
	if code != int(want) {
		b.t.Fatalf("trtship %s exits with %d, want %d\nstdout: %s\nstderr: %s", strings.Join(args, " "), code, want, stdout, stderr)
	}
	return stdout, stderr
}

// main runs a command and returns what came of it.
func (b *bench) main(ctx context.Context, args []string) (code int, stdout, stderr string) {
	b.stdout.Reset()
	b.stderr.Reset()
	var environ []string
	for k, v := range b.env {
		environ = append(environ, k+"="+v)
	}
	code = Main(ctx, args, IO{
		Stdin: strings.NewReader(""), Stdout: &b.stdout, Stderr: &b.stderr,
		Getenv: func(name string) string { return b.env[name] }, Environ: func() []string { return environ },
	})
	return code, b.stdout.String(), b.stderr.String()
}

func example(t *testing.T, name string) string {
	t.Helper()
	return filepath.Join(testkit.Root(t), "examples", name, "trtship.yaml")
}

func contains(t *testing.T, text string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(text, w) {
			t.Errorf("no %q in\n%s", w, text)
		}
	}
}

func TestErrorsOfEveryKind(t *testing.T) {
	for name, tc := range map[string]struct {
		err  error
		done failure.Code
		code failure.Code
		want []string
	}{
		"nothing":            {nil, failure.OK, failure.OK, nil},
		"a bad check":        {nil, failure.Tolerance, failure.Tolerance, nil},
		"a failure":          {failure.New(failure.Model, "load x: gone").At("a.yaml:3").WithHint("look").With("want", "1"), 0, failure.Model, []string{"trtship: a.yaml:3: load x: gone", "want  1", "hint: look"}},
		"a wrapped failure":  {fmt.Errorf("run y: %w", failure.New(failure.Export, "no")), 0, failure.Export, []string{"trtship: run y: no"}},
		"a bug":              {fmt.Errorf("do: %w", errors.New("odd")), 0, failure.Bug, []string{"trtship: do: odd", "trace:", "*errors.errorString: odd", "This is a bug"}},
		"a reader that left": {fmt.Errorf("write: %w", syscall.EPIPE), 0, failure.OK, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var stderr bytes.Buffer
			a := &app{io: IO{Stderr: &stderr}}
			if tc.done != failure.OK {
				a.doesNotHold(tc.done, "the check does not hold")
			}
			if got := a.exit(t.Context(), tc.err); got != int(tc.code) {
				t.Errorf("exit %d, want %d", got, tc.code)
			}
			contains(t, stderr.String(), tc.want...)
			if tc.want == nil && stderr.Len() > 0 {
				t.Errorf("stderr: %s", stderr.String())
			}
		})
	}
}

func TestErrorsAreJSONWhereThatIsAsked(t *testing.T) {
	for _, err := range []error{failure.New(failure.Model, "gone").With("a", "b"), errors.New("odd")} {
		var stderr bytes.Buffer
		a := &app{io: IO{Stderr: &stderr}, json: true}
		code := a.exit(t.Context(), err)
		var got jsonError
		if jerr := json.Unmarshal(stderr.Bytes(), &got); jerr != nil || got.Code != code || got.Message != err.Error() || got.Name == "" {
			t.Errorf("%v: %+v from %s", jerr, got, stderr.String())
		}
		if strings.Count(strings.TrimSpace(stderr.String()), "\n") != 0 {
			t.Errorf("more than one line: %s", stderr.String())
		}
	}
}

func TestSignalsDecideTheExitCode(t *testing.T) {
	for sig, want := range map[syscall.Signal]failure.Code{syscall.SIGINT: failure.Interrupted, syscall.SIGTERM: failure.Terminated} {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(SignalError{sig})
		var stderr bytes.Buffer
		a := &app{io: IO{Stderr: &stderr}}
		if got := a.exit(ctx, context.Cause(ctx)); got != int(want) {
			t.Errorf("%v: exit %d, want %d", sig, got, want)
		}
		// A command that was done before the signal arrived has succeeded.
		if got := a.exit(ctx, nil); got != 0 {
			t.Errorf("%v after the end: exit %d", sig, got)
		}
	}
}

func TestAPanicIsABugWithATrace(t *testing.T) {
	b := newBench(t)
	code := func() (code int) {
		var stderr bytes.Buffer
		code = Main(t.Context(), []string{"version"}, IO{Stdout: &b.stdout, Stderr: &stderr}) // no Getenv
		contains(t, stderr.String(), "nil pointer", "goroutine", "This is a bug")
		return code
	}()
	if code != int(failure.Bug) {
		t.Errorf("exit %d", code)
	}
}

func TestColoursOnlyOnTerminals(t *testing.T) {
	var w bytes.Buffer
	writeFailure(&w, failure.New(failure.Model, "x").WithHint("y").With("label", "two\nlines"), true)
	contains(t, w.String(), "\x1b[31;1mtrtship:\x1b[0m x", "\x1b[36mhint:\x1b[0m y", "two\n")
	a := &app{io: IO{Stdout: &w, Getenv: func(string) string { return "" }}}
	if a.color(&w) || a.terminal(&w) || a.width(&w) != 0 || a.paint(1, "x") != "x" {
		t.Error("a buffer is taken for a terminal")
	}
}

func TestStoreAndRunsLieWhereTheyAreAskedFor(t *testing.T) {
	a := &app{io: IO{Getenv: func(string) string { return "" }}}
	if a.storeDir() != ".trtship/store" || a.runsDir() != ".trtship/runs" {
		t.Errorf("%s %s", a.storeDir(), a.runsDir())
	}
	a.io.Getenv = func(string) string { return "/data/store" }
	if a.storeDir() != "/data/store" || a.runsDir() != "/data/runs" {
		t.Errorf("%s %s", a.storeDir(), a.runsDir())
	}
	a.store = "/other/s"
	if a.storeDir() != "/other/s" || a.runsDir() != "/other/runs" {
		t.Errorf("%s %s", a.storeDir(), a.runsDir())
	}
}

func TestToleranceArguments(t *testing.T) {
	for text, want := range map[string]struct {
		precision, output string
		tol               report.Tolerance
	}{
		"atol=1,rtol=2":             {"", "", report.Tolerance{Atol: 1, Rtol: 2}},
		"fp16:cosine_min=0.5":       {"fp16", "", report.Tolerance{CosineMin: num(ptr(0.5))}},
		"logits:top1_min=1":         {"", "logits", report.Tolerance{TopK: num(ptr(1.0))}},
		"int8/logits:allow_nan=1":   {"int8", "logits", report.Tolerance{AllowNaN: true}},
		"/out:0:max_breaches=0.125": {"", "/out:0", report.Tolerance{MaxBreaches: 0.125}},
	} {
		got, err := parseTolerance(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		var tol report.Tolerance
		for _, set := range got.set {
			set(&tol)
		}
		if got.precision != want.precision || got.output != want.output || cmp.Diff(want.tol, tol) != "" {
			t.Errorf("%s: %q %q %s", text, got.precision, got.output, cmp.Diff(want.tol, tol))
		}
	}
	for _, bad := range []string{"", "atol", "atol=x", "atol=NaN", "volume=11", "allow_nan=perhaps", "atol=1,"} {
		if _, err := parseTolerance(bad); failure.CodeOf(err) != failure.Usage {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func ptr[T any](v T) *T { return &v }

func TestObserversSayTheSame(t *testing.T) {
	var out bytes.Buffer
	a := &app{io: IO{Stderr: &out, Getenv: func(string) string { return "" }}}
	if err := a.prepare(); err == nil {
		t.Error("an empty log level is accepted")
	}
	a.logLevel = "warn"
	if err := a.prepare(); err != nil {
		t.Fatal(err)
	}
	for name, o := range map[string]observer{"lines": &lines{a: a}, "bars": &bars{a: a, out: &out}, "quiet": &quiet{a: a}} {
		t.Run(name, func(t *testing.T) {
			out.Reset()
			dir := t.TempDir()
			o.RunStarted("id-1", dir)
			o.StageStarted(pipeline.StageInfo{Name: "export", Title: "Export to ONNX", Total: 2})
			o.StageProgress("export", 1, 4, "half")
			o.StageProgress("export", 1, 0, "unknown")
			if l, ok := o.(*lines); ok {
				l.last["export"] = time.Time{}
				o.StageProgress("export", 3, 4, "tensors")
				l.last["export"] = time.Time{}
				o.StageProgress("export", 3, 0, "waiting")
				contains(t, out.String(), "[1/2] export: tensors 3/4", "[1/2] export: waiting")
			}
			o.StageFinished(report.Stage{Name: "export", Verdict: report.Pass, Seconds: 1.25, Cached: true})
			o.StageFinished(report.Stage{Name: "build", Verdict: report.Skip, Reason: "target is onnxruntime"})
			o.StageStarted(pipeline.StageInfo{Name: "served", Title: "Serve", Index: 1, Total: 2})
			o.Note("by the way")
			o.Close()
			if o.Dir() != dir {
				t.Errorf("dir %q", o.Dir())
			}
			if name != "quiet" {
				contains(t, out.String(), "run id-1 in", "[1/2] export: pass, reused (1.2 s)")
			}
		})
	}
	if _, ok := a.observer().(*lines); !ok {
		t.Error("a pipe gets something else than lines")
	}
	a.json = true
	if _, ok := a.observer().(*quiet); !ok {
		t.Error("--json in a pipe is not quiet")
	}
}

func TestInitEnvAndMan(t *testing.T) {
	b, dir := newBench(t), t.TempDir()
	file := filepath.Join(dir, "new", "trtship.yaml")
	out, _ := b.run(0, "init", file, "--json")
	contains(t, out, `"configuration"`)
	b.run(0, "config", "validate", file, "--json")
	_, errs := b.run(failure.Usage, "config", "validate", file, filepath.Join(dir, "none.yaml"), dir)
	contains(t, errs, "no configuration at")
	out, _ = b.run(0, "config", "show", file, "--json")
	contains(t, out, `"yaml"`)
	_, errs = b.run(0, "man", "-o", filepath.Join(dir, "man"))
	contains(t, errs, "manual pages")
	out, _ = b.run(0, "man", "-o", filepath.Join(dir, "man"), "--json")
	contains(t, out, "trtship-run.1")
	out, _ = b.run(0, "env", "list")
	contains(t, out, "base", "triton")
	out, _ = b.run(0, "env", "list", "--json")
	contains(t, out, `"packages"`)
	b.env["XDG_CACHE_HOME"] = filepath.Join(dir, "cache")
	_, errs = b.run(failure.Missing, "env", "path")
	contains(t, errs, "trtship env install base")
	b.run(failure.Usage, "env", "path", "no-such")
	b.run(failure.Missing, "env", "install", "base", "--base-python", filepath.Join(dir, "no-python"))
	b.run(0, "completion", "bash")
}

func TestEnvironmentsThatAreInstalled(t *testing.T) {
	b := newBench(t)
	out, _ := b.run(0, "env", "path", "base")
	contains(t, out, "bin/python")
	out, _ = b.run(0, "env", "path", "--json")
	contains(t, out, `"site_packages"`)
	out, _ = b.run(0, "env", "install", "base", "triton")
	contains(t, out, "base: ", "triton: ")
	out, _ = b.run(0, "env", "install", "base", "--json")
	contains(t, out, `"python"`)
}

func TestDoctor(t *testing.T) {
	b := newBench(t)
	out, _ := b.run(0, "doctor")
	contains(t, out, "python", "onnxruntime", "tritonserver", "package")
	b.env["PATH"] = ""
	_, errs := b.run(failure.Missing, "doctor", "--require", "torch", "--python", "no-such-python")
	contains(t, errs, "--require", "torch")
	out, _ = b.run(0, "doctor", "--json")
	var d diagnosis
	if err := json.Unmarshal([]byte(out), &d); err != nil || len(d.Findings) != len(required) {
		t.Errorf("%v: %+v", err, d)
	}
	for i, f := range d.Findings {
		if f.Name != required[i] {
			t.Errorf("finding %d is %s, --require knows %s", i, f.Name, required[i])
		}
		if !f.OK && f.Detail == "" {
			t.Errorf("%s is missing without a cause", f.Name)
		}
	}
	_, errs = b.run(failure.Missing, "doctor", "--require", "store", "--store", "/proc/no/store")
	contains(t, errs, "store")
}

func TestARunFromFileToRepository(t *testing.T) {
	b, dir := newBench(t), t.TempDir()
	cfg := example(t, "onnx")
	out, errs := b.run(0, "run", cfg, "--until", "package")
	contains(t, out, "every check held", "package")
	contains(t, errs, "[1/7] inspect", "report: ", "artifacts: ")
	out, _ = b.run(0, "run", cfg, "--until", "optimize", "--json")
	rep, err := report.Decode([]byte(out))
	if err != nil {
		t.Fatal(err)
	}
	if rep.Settings.Hardware != "optional" || rep.Tool.Name != "trtship" || len(rep.Stages) != 12 || rep.Environment.Tools["onnxruntime"] == "" {
		t.Errorf("report %+v", rep.Settings)
	}
	if strings.Contains(out, dir) || strings.Contains(out, os.Getenv("HOME")+"/") {
		t.Error("the report holds an absolute path")
	}
	b.env["CI"] = "true"
	out, _ = b.run(0, "run", cfg, "--until", "inspect", "--json")
	contains(t, out, `"hardware": "required"`)
	delete(b.env, "CI")
	out, _ = b.run(0, "inspect", cfg)
	contains(t, out, "parameters", "input   x", "operators:")
	out, _ = b.run(0, "inspect", cfg, "--json")
	contains(t, out, `"inspection"`)
	exported := filepath.Join(dir, "model.onnx")
	b.run(0, "export", cfg, "-o", exported)
	b.run(failure.Artifact, "export", cfg, "-o", exported)
	out, _ = b.run(0, "validate", "onnx", cfg, exported)
	contains(t, out, "cosine min")
	b.run(0, "optimize", cfg, exported, "-o", filepath.Join(dir, "opt.onnx"))
	b.run(0, "package", cfg, filepath.Join(dir, "opt.onnx"), "-o", filepath.Join(dir, "repository"))
	b.run(0, "lint", filepath.Join(dir, "repository"))
	b.run(0, "lint", filepath.Join(dir, "repository", "classifier", "config.pbtxt"), "--gpus", "0", "--strict")
	b.run(failure.Usage, "package", cfg, filepath.Join(dir, "opt.onnx"), "--set", "target=tensorrt")
	b.run(failure.Artifact, "package", cfg, filepath.Join(dir, "no.fp16.plan"), "--set", "target=tensorrt", "--set", "tensorrt.precisions=[fp16]")
	b.run(0, "quantize", cfg, "--set", "tensorrt.precisions=[fp16, bf16]", "-o", filepath.Join(dir, "q"))
	b.run(0, "run", cfg, "--until", "validate")
	out, _ = b.run(0, "recheck", "--json")
	contains(t, out, `"validations"`)
	b.run(0, "artifacts", "ls")
	b.run(0, "artifacts", "show", "onnx-optimized", "--json")
	b.run(0, "artifacts", "verify", "--json")
	b.run(0, "artifacts", "gc", "--json", "--keep-younger", "0s")
	b.run(0, "artifacts", "gc", "--dry-run")
	b.run(0, "report", "--json")
	b.run(failure.Artifact, "report", "1999")
}

func TestWhatAnEarlierStageDidNotMakeIsNamed(t *testing.T) {
	b, cfg := newBench(t), example(t, "onnx")
	for flag, hint := range map[string]string{
		"--from build":                 "hint: Run without --from, or with `--from export`.",
		"--from package":               "hint: Run without --from, or with `--from export`.",
		"--only benchmark":             "hint: Run without --only, or with `--only export,validate,optimize,benchmark`.",
		"--only served --from inspect": "hint: Run without --from and --only.",
	} {
		_, errs := b.run(failure.Missing, append([]string{"run", cfg, "--until", "served"}, strings.Fields(flag)...)...)
		contains(t, errs, "which is not in the store", "the store has none under its present key", hint)
		if strings.Contains(errs, "broken") {
			t.Errorf("%s: what is missing is called broken:\n%s", flag, errs)
		}
	}
	out, _ := b.run(failure.Missing, "run", cfg, "--from", "benchmark", "--allow-missing")
	contains(t, out, "missing benchmark/inputs: there is no onnx: export is not asked for (before --from benchmark)")

	junk := filepath.Join(t.TempDir(), "junk.onnx")
	if err := os.WriteFile(junk, []byte("no model\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	model := filepath.Join(filepath.Dir(cfg), "model.onnx")
	for _, tt := range [][]string{
		{"there is no onnx-optimized", "trtship optimize", "benchmark", "onnx", cfg},
		{"there is no onnx-optimized", "trtship optimize", "locate", cfg, "--cpu"},
		{"there is no reference", "trtship validate onnx", "locate", cfg, model, "--cpu"},
	} {
		_, errs := b.run(failure.Export, append(tt[2:], "--set", "model.path="+junk)...)
		contains(t, errs, tt[0], "broken: "+junk, "hint: `"+tt[1]+"` says more")
	}
}

func TestAModelFileThatDeclaresItsInputs(t *testing.T) {
	b, dir := newBench(t), t.TempDir()
	text := fmt.Sprintf(`model: {name: classifier, kind: onnx, path: %s}
target: onnxruntime
tensorrt:
  profiles:
    - inputs:
        x: {min: [1, 16], opt: [8, 16], max: [64, 16]}
gate:
  budgets:
    - {metric: nodes, max: 100}
`, filepath.Join(testkit.Root(t), "examples", "onnx", "model.onnx"))
	file := filepath.Join(dir, "trtship.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	out, _ := b.run(0, "run", file, "--until", "optimize", "--json")
	contains(t, out, `"metric": "nodes"`, `"line": 9`)
	rep, err := report.Decode([]byte(out))
	if err != nil || len(rep.Model.Inputs) != 1 || rep.Model.Inputs[0].Name != "x" {
		t.Errorf("%v %+v", err, rep.Model)
	}
	_, errs := b.run(failure.Usage, "run", file, "--set", "tensorrt.profiles.0.inputs.x.max=[64, 17]")
	contains(t, errs, "dimension 1 is 17, but x is fixed to 16 there")
	_, errs = b.run(failure.Model, "run", file, "--set", "model.path="+file)
	contains(t, errs, "trtship.yaml")
}

func TestBenchmarksByHand(t *testing.T) {
	b, dir := newBench(t), t.TempDir()
	cfg := example(t, "onnx")
	base, head := filepath.Join(dir, "base.json"), filepath.Join(dir, "head.json")
	b.run(0, "benchmark", "onnx", cfg, "--set", "benchmark.iters=100", "-o", base)
	out, _ := b.run(0, "benchmark", "onnx", cfg, "--set", "benchmark.iters=100", "-o", head, "--json")
	contains(t, out, `"samples_ms"`)
	out, _ = b.run(0, "benchmark", "compare", base, head)
	contains(t, out, "latency_p50_ms")
	b.run(failure.Usage, "benchmark", "overhead", base, head)
	b.run(failure.Artifact, "benchmark", "compare", base, filepath.Join(dir, "none"))
	stranger, err := report.Read(head)
	if err != nil {
		t.Fatal(err)
	}
	stranger.Model.Name = "stranger"
	if err := stranger.Write(filepath.Join(dir, "stranger.json")); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"compare", "overhead"} {
		_, errs := b.run(failure.Usage, "benchmark", command, base, filepath.Join(dir, "stranger.json"))
		contains(t, errs, "they are of different models", "model  classifier in base, stranger in head")
	}
	served := servedReport(t, base)
	out, _ = b.run(0, "benchmark", "overhead", base, served)
	contains(t, out, "triton")
	out, _ = b.run(0, "benchmark", "overhead", base, served, "--json")
	contains(t, out, `"pairs"`)
}

// servedReport turns a direct measurement into one through a server.
func servedReport(t *testing.T, path string) string {
	t.Helper()
	r, err := report.Read(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := range r.Benchmark.Rows {
		r.Benchmark.Rows[i].Backend = "triton"
	}
	out := path + ".served.json"
	if err := r.Write(out); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestEveryNeedHasAName(t *testing.T) {
	for need, name := range needNames {
		found := false
		for _, r := range required {
			found = found || r == name
		}
		if !found {
			t.Errorf("%s is %s, which --require does not know", need, name)
		}
	}
	m := (&app{io: IO{Getenv: func(string) string { return "" }}}).machine()
	if err := m.Has(t.Context(), config.Defaults(), "telepathy"); failure.CodeOf(err) != failure.Bug {
		t.Errorf("an unknown need: %v", err)
	}
}
