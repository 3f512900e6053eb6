package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/trtship/trtship/internal/testkit"
	"github.com/trtship/trtship/internal/worker"
)

// elsewhere are documented lines that are not run here, with the reason. A line
// that no document has any more fails the test.
var elsewhere = map[string]string{
	"docs/stages/benchmark.md: trtship benchmark overhead direct.json served.json": "docs/serving.md has what it needs, and it runs there",
	"make demo": "it is run from a fresh clone by CI",
	"make test": "this test is part of it",
	"trtship build examples/digits/trtship.yaml model.opt.onnx --set target=tensorrt -o engines": "needs a GPU",
	"trtship publish model_repository ghcr.io/team/digits:v1":                                    "needs a registry; internal/triton/registry has one in its tests",
	"trtship pull ghcr.io/team/digits:v1 -o model_repository --verify":                           "needs a registry",
	"trtship publish model_repository release:team/digits@v1":                                    "needs GitHub; internal/triton/registry has a stand-in",
	"trtship pull release:team/digits@v1 -o model_repository":                                    "needs GitHub",
	"trtship tune examples/digits/trtship.yaml --p99 5 -o tuned.yaml":                            "searches for minutes; a script of internal/cli runs a smaller search",
	"docker build -t trtship --build-arg BASE=debian:bookworm-slim --build-arg CPU_ONLY=1 .":     "needs Docker: make test-act",
	`docker run --rm --read-only --tmpfs /tmp -v "$PWD:/work" trtship run trtship.yaml`:          "needs Docker: make test-act",
	"trtship gate 2026-03-01_1a2b3c --baseline main/report.json":                                 "the id of a run stands for any",
	"cp -rL ../../.trtship/runs/ID/artifacts/model_repository .":                                 "the id of a run stands for any; make test-act runs the compose example",
}

// before are script lines that come before a line of a document: what the reader
// is taken to have. They are keyed by the line, or by document and line.
var before = map[string]string{
	"trtship config validate trtship.yaml":                                                                "rm trtship.yaml\ncp $WORK/mine/small.yaml trtship.yaml", // the starter names a model that the reader fills in
	"trtship gate --baseline base/report.json":                                                            latest("base/report.json"),
	"trtship run trtship.yaml --against base/report.json":                                                 latest("base/report.json"),
	"trtship run examples/digits/trtship.yaml --against base/report.json":                                 latest("base/report.json"),
	"trtship run examples/digits/trtship.yaml --against main/report.json":                                 "exits 0 trtship run examples/digits/trtship.yaml --until benchmark\n" + latest("main/report.json"),
	"trtship gate --baseline main-report.json":                                                            latest("main-report.json"),
	"trtship gate report.json --junit 'results/*.xml' -o judged":                                          latest("report.json") + "\nmkdir results\ncp $WORK/mine/junit.xml results/junit.xml",
	"trtship verify report.json":                                                                          latest("report.json"),
	"trtship verify provenance.json --root .":                                                             `exec sh -c 'cp -rL $(dirname $(ls -t .trtship/runs/*/provenance.json | head -1))/. .'`,
	"docs/provenance.md: trtship verify":                                                                  "exits 0 trtship package examples/digits/trtship.yaml -o model_repository",
	"docs/cli.md: trtship verify":                                                                         "exits 0 trtship package examples/digits/trtship.yaml -o model_repository",
	"docs/cli.md: trtship infer digits --input image=image.npy":                                           "exits 0 trtship serve examples/digits/trtship.yaml -r model_repository",
	"trtship benchmark compare base.json head.json":                                                       "exits 0 trtship benchmark onnx examples/digits/trtship.yaml -o base.json",
	"docs/stages/optimize.md: trtship optimize examples/digits/trtship.yaml model.onnx -o model.opt.onnx": "exits 0 trtship export examples/digits/trtship.yaml -o model.onnx",
	"docs/stages/validate.md: trtship validate onnx examples/digits/trtship.yaml model.onnx":              "exits 0 trtship export examples/digits/trtship.yaml -o model.onnx",
	"docs/serving.md: trtship serve examples/digits/trtship.yaml":                                         "exits 0 trtship run examples/digits/trtship.yaml --until package",
	"trtship pull oci:layout:v1 -o model_repository":                                                      "exec rm -rf model_repository", // it is brought to another machine
	"trtship models ls":                            "exits 0 trtship package examples/digits/trtship.yaml -o model_repository\nexits 0 trtship serve examples/digits/trtship.yaml -r model_repository --explicit",
	"trtship infer digits --input image=image.npy": "exec $PYTHON $WORK/mine/image.py",
}

func latest(to string) string {
	return "exec sh -c 'mkdir -p $(dirname " + to + ") && cp $(ls -t .trtship/runs/*/report.json | head -1) " + to + "'"
}

var (
	shellRemark  = regexp.MustCompile(`\s+#\s.*$`)
	documentsRun = []string{"README.md", "docs/*.md", "docs/*/*.md", "examples/*.md", "examples/*/*.md"}
)

// documented returns the command lines of a document's shell blocks, in order.
func documented(text string) []string {
	var out []string
	inside, shell := false, false
	for line := range strings.Lines(text) {
		if language, fence := strings.CutPrefix(strings.TrimSpace(line), "```"); fence {
			inside = !inside
			shell = inside && slices.Contains([]string{"", "sh", "bash", "console"}, language)
			continue
		}
		if !shell {
			continue
		}
		line = strings.TrimPrefix(strings.TrimSpace(shellRemark.ReplaceAllString(strings.TrimSpace(line), "")), "$ ")
		line = strings.TrimPrefix(line, "bin/")
		word, _, _ := strings.Cut(line, " ")
		if slices.Contains([]string{"trtship", "make", "docker", "cp"}, word) {
			out = append(out, line)
		}
	}
	return out
}

// TestDocumentedCommandsRun runs the command lines of the documents, each
// document from top to bottom, with the digits example and real tools. All of
// them share one store, as a reader's do.
func TestDocumentedCommandsRun(t *testing.T) {
	script, ran, seen := documentsScript(t)
	if ran < 40 {
		t.Errorf("only %d lines are run; are the blocks read?", ran)
	}
	for line := range elsewhere {
		if !seen[line] {
			t.Errorf("no document has the line %q any more", line)
		}
	}
	file := filepath.Join(t.TempDir(), "documents.txtar")
	if err := os.WriteFile(file, []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Files: []string{file}, ContinueOnError: true, RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			e.Vars = append(e.Vars, "HOME="+e.WorkDir, "XDG_CACHE_HOME="+cacheHome(t), "TRTSHIP_PYTHON="+os.Getenv("TRTSHIP_PYTHON"), "CI=",
				"PYTHON="+python(t), "TRTSHIP__TRITON__HTTP_PORT=0", "TRTSHIP__TRITON__GRPC_PORT=0", "TRTSHIP__TRITON__METRICS_PORT=0", "TRTSHIP__BENCHMARK__MAX_SECONDS=2")
			return os.CopyFS(filepath.Join(e.WorkDir, "examples"), os.DirFS(filepath.Join(testkit.Root(t), "examples")))
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits},
	})
}

// documentsScript makes a script of all documents.
func documentsScript(t *testing.T) (script string, ran int, seen map[string]bool) {
	t.Helper()
	root := testkit.Root(t)
	var b strings.Builder
	b.WriteString("exits 0 trtship run examples/digits/trtship.yaml\n")
	seen = map[string]bool{}
	for _, pattern := range documentsRun {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			name, _ := filepath.Rel(root, f)
			b.WriteString("# " + name + "\n")
			for _, line := range documented(string(text)) {
				here := name + ": " + line
				seen[line], seen[here] = true, true
				if elsewhere[line] != "" || elsewhere[here] != "" {
					continue
				}
				ran++
				for _, key := range []string{line, here} {
					if lines := before[key]; lines != "" {
						b.WriteString(lines + "\n")
					}
				}
				b.WriteString("exits 0 " + line + "\n")
			}
			b.WriteString("exec trtship stop --all\nexec sh -c 'rm -rf trtship.yaml .trtship-config.schema.json model.onnx model.opt.onnx encoder.onnx model_repository engines judged *.json *.npz *.npy *.yaml artifacts logs reports out.npz base results oci quantized calibration'\n")
		}
	}
	b.WriteString(documentsFiles)
	return b.String(), ran, seen
}

// python returns the interpreter with numpy.
func python(t *testing.T) string {
	t.Helper()
	cache, err := worker.CacheHome(os.Getenv)
	if err != nil {
		t.Fatal(err)
	}
	path, err := worker.FindPython("", os.Getenv("TRTSHIP_PYTHON"), cache, os.Getenv("PATH"))
	if err != nil {
		t.Fatalf("%v: run `make setup`", err)
	}
	return path
}

// documentsFiles are the reader's own files.
const documentsFiles = `
-- mine/small.yaml --
target: onnxruntime
model:
  name: classifier
  kind: onnx
  path: examples/onnx/model.onnx
  inputs: [{name: x, dtype: float32, shape: [batch, 16]}]
  output_names: [y]
tensorrt:
  precisions: [fp32]
  profiles: [{inputs: {x: {min: [1, 16], opt: [8, 16], max: [64, 16]}}}]
-- mine/junit.xml --
<testsuite name="own" tests="1"><testcase name="a" classname="b"/></testsuite>
-- mine/image.py --
import numpy as np
x = np.zeros((1, 1, 8, 8), np.float32)
np.save("image.npy", x)
np.savez("test.npz", image=x)
`
