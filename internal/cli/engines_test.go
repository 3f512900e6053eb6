package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/trtship/trtship/internal/engine"
	"github.com/trtship/trtship/internal/engine/enginetest"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
	"github.com/trtship/trtship/internal/pipeline"
	"github.com/trtship/trtship/internal/proc"
	"github.com/trtship/trtship/internal/testkit"
	"github.com/trtship/trtship/internal/triton/tritontest"
	"github.com/trtship/trtship/report"
)

// tensorrtModule is what a Python child imports in place of TensorRT 10.6: it has
// what the first steps of a build and of loading ask for, and builds nothing.
const tensorrtModule = `
import os, time
__version__ = "10.6.0"
class ILogger:
    class Severity: INTERNAL_ERROR, ERROR, WARNING = 0, 1, 2
class NetworkDefinitionCreationFlag: EXPLICIT_BATCH, STRONGLY_TYPED = 0, 1
class BuilderFlag: TF32 = 7
class Runtime:
    def __init__(self, logger): self.logger = logger
    def deserialize_cuda_engine(self, data):
        self.logger.log(1, f"no plan of {len(data)} bytes")
        return None
class Builder:
    def __init__(self, logger): pass
    def reset(self): pass
    def create_network(self, flags): return None
    def create_builder_config(self): os.abort()
class OnnxParser:
    def __init__(self, network, logger): pass
    def parse_from_file(self, path): return True
`

// gpuBench is a user at a machine whose driver shows a GPU that computes nothing.
func gpuBench(t *testing.T, tensorrt string) *bench {
	t.Helper()
	b := newBench(t)
	b.env["LD_LIBRARY_PATH"] = standInDriver(t)
	b.env["TRTSHIP_ORT_LIB"] = testkit.ORTLibrary(t)
	b.env["TRTSHIP_PYTHON"] = pythonWith(t, tensorrtModule+tensorrt)
	return b
}

// standInDriver compiles the libraries of a driver and returns their folder.
func standInDriver(t *testing.T) string {
	t.Helper()
	cc, err := proc.Look("cc", os.Getenv("PATH"))
	if err != nil {
		t.Fatal(err, ": run make setup")
	}
	dir := t.TempDir()
	for source, library := range map[string]string{"nvml.c": "libnvidia-ml.so.1", "cuda.c": "libcuda.so.1"} {
		args := []string{"-shared", "-fPIC", "-o", filepath.Join(dir, library), filepath.Join(testkit.Root(t), "internal", "gpu", "testdata", source)}
		if out, err := proc.Output(t.Context(), proc.Command{Path: cc, Args: args, Env: os.Environ(), Dir: dir}); err != nil {
			t.Fatal(out, err)
		}
	}
	return dir
}

// pythonWith makes a virtual environment with a tensorrt package of this text.
func pythonWith(t *testing.T, module string) string {
	t.Helper()
	locked := testkit.Python(t)
	base, err := filepath.EvalSymlinks(locked)
	if err != nil {
		t.Fatal(err)
	}
	libs, err := filepath.Glob(filepath.Join(filepath.Dir(filepath.Dir(locked)), "lib", "python3*"))
	if err != nil || len(libs) == 0 {
		t.Fatalf("%s is in no environment: %v", locked, err)
	}
	dir := t.TempDir()
	packages := filepath.Join(dir, "lib", filepath.Base(libs[0]), "site-packages")
	files := map[string]string{
		filepath.Join(dir, "pyvenv.cfg"):                                  "home = " + filepath.Dir(base) + "\n",
		filepath.Join(packages, "tensorrt", "__init__.py"):                module,
		filepath.Join(packages, "tensorrt-10.6.0.dist-info", "METADATA"):  "Metadata-Version: 2.1\nName: tensorrt\nVersion: 10.6.0\n",
		filepath.Join(packages, "tensorrt-10.6.0.dist-info", "INSTALLER"): "",
	}
	for path, text := range files {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	python := filepath.Join(dir, "bin", "python")
	if err := errors.Join(os.Mkdir(filepath.Dir(python), 0o700), os.Symlink(base, python)); err != nil {
		t.Fatal(err)
	}
	return python
}

// noTrace demands that a message is for people.
func noTrace(t *testing.T, text string) {
	t.Helper()
	for _, bad := range []string{"goroutine", "panic:", "Traceback", "This is a bug"} {
		if strings.Contains(text, bad) {
			t.Errorf("%q in\n%s", bad, text)
		}
	}
}

func TestEnginesThatDoNotLoadAreMeasuredAsBroken(t *testing.T) {
	b := gpuBench(t, "")
	dir := t.TempDir()
	config := smallConfig(t)
	enginetest.WriteEngine(t, filepath.Join(dir, "p"), nil)
	t.Chdir(dir) // plans may be named by relative paths
	stdout, stderr := b.run(failure.Benchmark, "benchmark", "engine", config, "--engine", "p/model.plan", "--set", "benchmark.batch_sizes=[1]")
	contains(t, stdout+stderr, "[1/1] benchmark: Measure engines", "the plan cannot be loaded")
	noTrace(t, stderr)
	_, stderr = b.run(failure.Benchmark, "benchmark", "ab", config, "p/model.plan", "p/model.plan")
	contains(t, stderr, "load p/model.plan: the plan cannot be loaded", "no plan of 4 bytes")
	noTrace(t, stderr)
	stdout, _ = b.run(failure.Tolerance, "validate", "engine", config, "p/model.plan")
	contains(t, stdout, "the plan cannot be loaded")
}

// The child that runs TensorRT may die at any time. That is no bug of trtship, and
// it says nothing about what was not reached.
func TestAChildThatDiesHasTheCodeOfTheCommand(t *testing.T) {
	const atLoad = "def die(self, data): os.abort()\nRuntime.deserialize_cuda_engine = die\n"
	dir := t.TempDir()
	plan := filepath.Join(dir, engine.PlanFile)
	config := smallConfig(t)
	enginetest.WriteEngine(t, dir, nil)
	for name, c := range map[string]struct {
		tensorrt string
		args     []string
		code     failure.Code
		want     []string
	}{
		"ab, killed":        {atLoad, []string{"benchmark", "ab", config, plan, plan}, failure.Benchmark, []string{"crashed (SIGABRT)"}},
		"ab, gone":          {strings.ReplaceAll(atLoad, "abort()", "_exit(0)"), []string{"benchmark", "ab", config, plan, plan}, failure.Benchmark, []string{"ended without an answer"}},
		"ab, exit status":   {strings.ReplaceAll(atLoad, "abort()", "_exit(5)"), []string{"benchmark", "ab", config, plan, plan}, failure.Benchmark, []string{"exit status 5"}},
		"locate":            {"", []string{"locate", config}, failure.Build, []string{"run the first 1 nodes in the lower precision", "crashed (SIGABRT)"}},
		"benchmark engine":  {atLoad, []string{"benchmark", "engine", config, "--engine", plan}, failure.Benchmark, []string{"crashed (SIGABRT)"}},
		"validate engine":   {atLoad, []string{"validate", "engine", config, plan}, failure.Tolerance, []string{"crashed (SIGABRT)"}},
		"a module of words": {"del Builder\n", []string{"locate", config}, failure.Missing, []string{"the tensorrt module, release 10.6.0, has no Builder", "hint: install TensorRT"}},
		"a builder that does not start": {
			"def fail(self, logger):\n    logger.log(1, 'the driver is too old')\n    raise TypeError('pybind11::init(): factory function returned nullptr')\nBuilder.__init__ = fail\n",
			[]string{"locate", config},
			failure.Missing,
			[]string{"TensorRT 10.6.0 cannot start its Builder with this driver, which is of CUDA 13.0", "the driver is too old", "hint: install a driver"},
		},
		"a build whose builder does not start": {
			"def fail(self, logger): raise TypeError('pybind11::init(): factory function returned nullptr')\nBuilder.__init__ = fail\n",
			[]string{"build", config},
			failure.Missing,
			[]string{"cannot start its Builder", "NVIDIA driver: 580.1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := gpuBench(t, c.tensorrt)
			stdout, stderr := b.run(c.code, c.args...)
			contains(t, stdout+stderr, c.want...)
			noTrace(t, stdout+stderr)
		})
	}
}

func TestABuildSaysOfTheOperatorsOnlyWhatTheParserSaid(t *testing.T) {
	config := smallConfig(t)
	for name, c := range map[string]struct {
		tensorrt, supported, built string
		set                        []string
		want                       string
	}{
		"the parser took all":     {"", "pass", "broken", nil, "crashed (SIGABRT)"},
		"dead before the parser":  {"def die(self, logger): os._exit(0)\nBuilder.__init__ = die\n", "broken", "broken", nil, "ended without an answer"},
		"dead within the parser":  {"def die(self, path): os.abort()\nOnnxParser.parse_from_file = die\n", "broken", "broken", nil, "crashed (SIGABRT)"},
		"out of time before it":   {"def hang(self, logger): time.sleep(100)\nBuilder.__init__ = hang\n", "broken", "broken", []string{"--set", "tensorrt.build_timeout_s=3"}, "out of time after 3s (tensorrt.build_timeout_s)"},
		"no network to parse for": {"def fail(self, flags): raise build_error\nBuilder.create_network = fail\nclass BuildError(RuntimeError): details = {}\nbuild_error = BuildError('no network')\n", "broken", "fail", nil, "no network"},
	} {
		t.Run(name, func(t *testing.T) {
			b := gpuBench(t, c.tensorrt)
			stdout, stderr := b.run(failure.Build, append([]string{"build", config, "--json"}, c.set...)...)
			var rep struct {
				Stages []struct {
					Checks []struct{ ID, Verdict string }
				}
			}
			if err := json.Unmarshal([]byte(stdout), &rep); err != nil {
				t.Fatal(err)
			}
			verdicts := map[string]string{}
			for _, s := range rep.Stages {
				for _, k := range s.Checks {
					verdicts[k.ID] = k.Verdict
				}
			}
			if verdicts["build/operators-supported"] != c.supported || verdicts["build/engine-built"] != c.built {
				t.Errorf("got %v, want %s and %s", verdicts, c.supported, c.built)
			}
			contains(t, stdout+stderr, c.want)
		})
	}
}

func TestEnginesThatAreNoMatchAreRefusedBeforeAnythingIsLoaded(t *testing.T) {
	b := gpuBench(t, "def die(self, data): os.abort()\nRuntime.deserialize_cuda_engine = die\n")
	config, dir := smallConfig(t), t.TempDir()
	plan := func(name string, change func(*engine.Description)) string {
		enginetest.WriteEngine(t, filepath.Join(dir, name), change)
		return filepath.Join(dir, name, engine.PlanFile)
	}
	good := plan("good", nil)
	other := plan("other", func(d *engine.Description) { d.TensorRT = "8.6.1" })
	gpu := plan("gpu", func(d *engine.Description) { d.ComputeCapability, d.GPU = "7.5", "NVIDIA T4" })
	half := plan("half", func(d *engine.Description) { d.Tensors[0].DType = "float16" })
	for name, c := range map[string]struct {
		args []string
		code failure.Code
		want string
	}{
		"another release":              {[]string{"benchmark", "ab", config, good, other}, failure.Build, other + ": this plan was built by TensorRT 8.6.1 and this machine has 10.6.0"},
		"another release, measured":    {[]string{"benchmark", "engine", config, "--engine", other}, failure.Build, "this plan was built by TensorRT 8.6.1"},
		"another GPU":                  {[]string{"benchmark", "ab", config, gpu, good}, failure.Build, "compute capability 7.5"},
		"another GPU, measured":        {[]string{"benchmark", "engine", config, "--engine", gpu}, failure.Build, "compute capability 7.5"},
		"other tensors":                {[]string{"benchmark", "ab", config, good, half}, failure.Usage, "input x is float32 in " + good + " and float16 in " + half},
		"a batch outside":              {[]string{"benchmark", "ab", config, good, good, "--batch", "5"}, failure.Usage, "dimension 0 is 5, expected 1 to 4"},
		"the last batch, measured":     {[]string{"benchmark", "engine", config, "--engine", good, "--set", "benchmark.batch_sizes=[1,4]", "--set", "tensorrt.profiles=[{inputs: {x: {min: [1, 4], opt: [2, 4], max: [9, 4]}}}]"}, failure.Benchmark, "crashed"},
		"a precision that it has not":  {[]string{"validate", "engine", config, good, "--precision", "fp16"}, failure.Usage, "hint: leave the precision out, or name the fp16 engine"},
		"an unknown precision":         {[]string{"validate", "engine", config, good, "--precision", "fp7"}, failure.Usage, "--precision fp7 is unknown"},
		"a precision of nothing":       {[]string{"validate", "engine", config, "--precision", "fp16"}, failure.Usage, "--precision is of ENGINE.plan"},
		"an unknown prefix":            {[]string{"benchmark", "engine", config, "--engine", "fp7:" + good}, failure.Usage, `"fp7" in front of ` + good + " is no precision"},
		"a prefix that is not its own": {[]string{"benchmark", "engine", config, "--engine", "int8:" + good}, failure.Usage, "the engine is fp32 by its description, int8 was said"},
	} {
		t.Run(name, func(t *testing.T) {
			b.t = t
			stdout, stderr := b.run(c.code, c.args...)
			contains(t, stdout+stderr, c.want)
			noTrace(t, stdout+stderr)
		})
	}
}

// What went wrong is told in the log line and whole below the table, not in every
// column as well.
func TestAFaultOfTheDeviceIsToldOnce(t *testing.T) {
	const text = "the device is not able to do what was asked of it, for a reason that takes more than one column of a table to tell"
	config := smallConfig(t)
	for name, c := range map[string]struct {
		tensorrt string
		code     failure.Code
		most     int
	}{
		"something is missing": {"def fail(self, logger): raise TypeError('" + text + "')\nBuilder.__init__ = fail\n", failure.Missing, 2},
		"the child dies":       {"import sys\ndef die(self, logger): print('" + text + "', file=sys.stderr); os.abort()\nBuilder.__init__ = die\n", failure.Build, 2},
	} {
		t.Run(name, func(t *testing.T) {
			b := gpuBench(t, c.tensorrt)
			stdout, stderr := b.run(c.code, "build", config)
			if n := strings.Count(stdout+stderr, text); n < 1 || n > c.most {
				t.Errorf("told %d times, want at most %d:\n%s%s", n, c.most, stdout, stderr)
			}
		})
	}
}

// What stands in the place of a plan is said of the plan, and never waited for.
func TestWhatIsNoPlanIsNamed(t *testing.T) {
	config, dir := smallConfig(t), t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	enginetest.WriteEngine(t, at("engine"), nil)
	description, err := os.ReadFile(filepath.Join(at("engine"), engine.DescriptionFile))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"pipe", "dangling", "folder", "absent"} {
		if err := os.WriteFile(at(name+".json"), description, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(syscall.Mkfifo(at("pipe.plan"), 0o600), os.Symlink("nothing", at("dangling.plan")), os.Mkdir(at("folder.plan"), 0o700)); err != nil {
		t.Fatal(err)
	}
	for plan, want := range map[string]string{"pipe.plan": "a named pipe", "dangling.plan": "there is no", "folder.plan": "is a folder", "absent.plan": "there is no"} {
		path := at(plan)
		for _, args := range [][]string{
			{"benchmark", "engine", config, "--engine", path},
			{"benchmark", "engine", config, "--engine", "fp32:" + path},
			{"benchmark", "ab", config, path, path},
			{"validate", "engine", config, path},
			{"package", config, path, "--set", "target=tensorrt", "-o", at("repository")},
		} {
			t.Run(fmt.Sprint(plan, ": ", args[:2]), func(t *testing.T) {
				code, _, stderr := mainWithin(t, args)
				if code != int(failure.Artifact) {
					t.Errorf("exit %d", code)
				}
				contains(t, stderr, want, plan)
				if strings.Contains(stderr, "engine.json") {
					t.Errorf("the description is said to be at fault: %s", stderr)
				}
			})
		}
	}
	for _, args := range [][]string{{"benchmark", "engine", config, "--engine", ""}, {"benchmark", "engine", config, "--engine", "fp32:"}, {"validate", "engine", config, ""}, {"benchmark", "ab", config, "", ""}} {
		if code, _, stderr := mainWithin(t, args); code != int(failure.Usage) || !strings.Contains(stderr, "is empty") {
			t.Errorf("%q: exit %d: %s", args, code, stderr)
		}
	}
}

// A cache that does not match is the one fault: what is built from it is missing.
func TestABuildWithoutItsCacheIsMissing(t *testing.T) {
	b := gpuBench(t, "")
	dir := t.TempDir()
	tritontest.WriteModel(t, filepath.Join(dir, "m.onnx"), []*onnxpb.ValueInfoProto{tritontest.Value("x", onnxpb.TensorProto_FLOAT, "batch", 4)},
		[]*onnxpb.ValueInfoProto{tritontest.Value("y", onnxpb.TensorProto_FLOAT, "batch", 4)}, tritontest.Node("Relu", []string{"x"}, []string{"y"}, nil))
	config, cache := filepath.Join(dir, "c.yaml"), filepath.Join(dir, "bad.cache")
	put(t, cache, "TRT-100600-EntropyCalibration2\nother: 3c23d70a\n")
	put(t, config, "target: tensorrt\nmodel:\n  name: m\n  kind: onnx\n  path: m.onnx\ncalibration: {cache: bad.cache}\ntensorrt:\n  typing: weak\n  precisions: [int8]\n"+
		"  profiles:\n    - inputs: {x: {min: [1, 4], opt: [2, 4], max: [4, 4]}}\n")
	stdout, stderr := b.run(failure.Calibration, "build", config)
	contains(t, stdout+stderr, "not in the model: other")
	if strings.Contains(stdout+stderr, "there are 0 of them") || strings.Contains(stdout, "broken") {
		t.Errorf("build is broken:\n%s%s", stdout, stderr)
	}
}

// A measurement by hand has no run, and its child may tell of progress before
// anything else.
func TestObserversNeedNoRun(t *testing.T) {
	var out bytes.Buffer
	a := &app{io: IO{Stderr: &out, Getenv: func(string) string { return "" }}, logLevel: "warn"}
	if err := a.prepare(); err != nil {
		t.Fatal(err)
	}
	for _, begin := range []func(observer){
		func(o observer) {
			o.StageStarted(pipeline.StageInfo{Name: "benchmark", Title: "Measure engines", Total: 1})
		},
		func(o observer) { o.StageProgress("benchmark", 1, 2, "round") },
		func(o observer) { o.StageFinished(report.Stage{Name: "benchmark", Verdict: report.Pass}) },
	} {
		for _, o := range []observer{&lines{a: a}, &bars{a: a, out: &out}, &quiet{a: a}} {
			begin(o)
			o.Close()
		}
	}
	contains(t, out.String(), "[1/1] benchmark: Measure engines", "benchmark: round 1/2")
}
