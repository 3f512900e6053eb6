package testkit

import (
	"os"
	"strings"
	"testing"
	"testing/fstest"
)

func TestImportWallOfTheModule(t *testing.T) {
	bad, err := CheckWall(os.DirFS(Root(t)))
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range bad {
		t.Error(b)
	}
}

func TestImportWall(t *testing.T) {
	ours := func(p string) string { return `"` + modulePath + "/" + p + `"` }
	tests := map[string]struct {
		file, imports, body string
		want                string // part of the only line; empty if allowed
	}{
		"report imports nothing of ours":           {"report/a.go", ours("internal/artifact"), "", "report imports nothing of ours"},
		"a stage does not import another":          {"stages/build/a.go", ours("stages/export"), "", "do not import each other"},
		"a stage may import a package below it":    {"stages/build/a.go", ours("stages/build/plan"), "", ""},
		"the list of stages imports stages":        {"stages/stages.go", ours("stages/export"), "", ""},
		"a stage does not import the list":         {"stages/build/a.go", ours("stages"), "", "imports point down"},
		"a tool does not import a stage":           {"internal/onnx/a.go", ours("stages/build"), "", "imports point down"},
		"the pipeline does not import the cli":     {"internal/pipeline/a.go", ours("internal/cli"), "", "imports point down"},
		"the store does not import the pipeline":   {"internal/store/a.go", ours("internal/pipeline"), "", "imports point down"},
		"proc does not import the store":           {"internal/proc/a.go", ours("internal/store"), "", "imports point down"},
		"the cli imports stages":                   {"internal/cli/a.go", ours("stages"), "", ""},
		"a tool imports the tensor package":        {"internal/ort/a.go", ours("internal/tensor"), "", ""},
		"os/exec lies behind proc":                 {"internal/worker/a.go", `"os/exec"`, "", "only internal/proc may"},
		"proc imports os/exec":                     {"internal/proc/a.go", `"os/exec"`, "", ""},
		"onnxruntime_go lies behind ort":           {"stages/validate/a.go", `"github.com/yalue/onnxruntime_go"`, "", "only internal/ort may"},
		"a package of go-nvml lies behind gpu":     {"internal/cli/a.go", `"github.com/NVIDIA/go-nvml/pkg/nvml"`, "", "only internal/gpu may"},
		"a package with a longer name is another":  {"internal/cli/a.go", `"os/execute"`, "", ""},
		"testkit is for tests":                     {"internal/onnx/a.go", ours("internal/testkit"), "", "for tests"},
		"a test imports what it likes":             {"internal/onnx/a_test.go", ours("internal/testkit"), "", ""},
		"the environment is read in cli":           {"internal/cli/a.go", `"os"`, `var _ = os.Getenv("A")`, ""},
		"the environment is not read elsewhere":    {"internal/ort/a.go", `"os"`, `var _ = os.Getenv("A")`, "read the environment"},
		"LookupEnv reads it too":                   {"stages/x/a.go", `"os"`, `var _, _ = os.LookupEnv("A")`, "read the environment"},
		"only cmd ends the program":                {"internal/cli/a.go", `"os"`, `func f() { os.Exit(1) }`, "only cmd does"},
		"cmd ends the program":                     {"cmd/trtship/main.go", `"os"`, `func f() { os.Exit(1) }`, ""},
		"nobody prints to a stream that is global": {"internal/cli/a.go", `"fmt"`, `func f() { fmt.Println() }`, "streams are passed down"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			text := "package x\nimport " + tt.imports + "\n" + tt.body + "\n"
			bad, err := CheckWall(fstest.MapFS{tt.file: &fstest.MapFile{Data: []byte(text)}})
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case tt.want == "" && len(bad) > 0:
				t.Errorf("refused: %v", bad)
			case tt.want != "" && (len(bad) != 1 || !strings.Contains(bad[0], tt.want)):
				t.Errorf("got %q, want one line with %q", bad, tt.want)
			}
		})
	}
}

func TestAFileThatDoesNotParseIsAnError(t *testing.T) {
	_, err := CheckWall(fstest.MapFS{"internal/x/a.go": &fstest.MapFile{Data: []byte("package")}})
	if err == nil {
		t.Fatal("no error")
	}
}
