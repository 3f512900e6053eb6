package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
	"github.com/trtship/trtship/internal/triton/server"
	"github.com/trtship/trtship/internal/triton/tritontest"
)

// badProject has models that do not hold: one that is random, one that is no
// longer itself in bfloat16, a configuration that the linter refuses, a cache
// of another model, and the record of a server that is gone.
type badProject struct{ dir, random, rounded, config, cache string }

func newBadProject(t *testing.T, b *bench) badProject {
	t.Helper()
	p := badProject{dir: t.TempDir()}
	write := func(name, text string) string {
		path := filepath.Join(p.dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	project := func(name, more string, nodes ...*onnxpb.NodeProto) string {
		value := func(name string) []*onnxpb.ValueInfoProto {
			return []*onnxpb.ValueInfoProto{tritontest.Value(name, onnxpb.TensorProto_FLOAT, "batch", 4)}
		}
		tritontest.WriteModel(t, filepath.Join(p.dir, name+".onnx"), value("x"), value("y"), nodes...)
		return write(name+".yaml", "target: onnxruntime\nmodel: {name: m, kind: onnx, path: "+name+".onnx}\n"+
			"tensorrt: {precisions: [bf16], profiles: [{inputs: {x: {min: [1, 4], opt: [2, 4], max: [4, 4]}}}]}\n"+more)
	}
	p.random = project("random", "", tritontest.Node("RandomNormalLike", []string{"x"}, []string{"y"}, nil))
	p.rounded = project("rounded", "validation: {tolerances: {bf16: {atol: 0, rtol: 0}}}\n",
		tritontest.Node("Sigmoid", []string{"x"}, []string{"z"}, nil), tritontest.Node("Sigmoid", []string{"z"}, []string{"y"}, nil))
	p.config = write("m/config.pbtxt", "nmae: \"m\"\n")
	p.cache = write("calibration.cache", "TRT-100600-EntropyCalibration2\nother: 3c010a14\n")
	record, err := json.Marshal(server.State{Format: server.StateFormat, Name: "m", HTTP: "127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	servers := filepath.Join(filepath.Dir(b.env["TRTSHIP_STORE"]), "servers")
	if err := os.MkdirAll(servers, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(servers, "m.json"), record, 0o600); err != nil {
		t.Fatal(err)
	}
	return p
}

// failingCall is a command line that ends with a code.
type failingCall struct {
	code failure.Code
	data bool // stdout has what was found, as JSON
	args []string
}

// TestAnExitCodeComesWithAnErrorInJSON lets every command fail, those that make
// checks by a check that does not hold, and reads the last line of stderr.
func TestAnExitCodeComesWithAnErrorInJSON(t *testing.T) {
	b := newBench(t)
	p := newBadProject(t, b)
	b.run(failure.Tolerance, "run", p.random, "--until", "validate")
	calls := map[string]failingCall{
		"run":              {failure.Tolerance, true, []string{p.random, "--until", "validate"}},
		"validate onnx":    {failure.Tolerance, true, []string{p.random}},
		"optimize":         {failure.Tolerance, true, []string{p.random}},
		"quantize":         {failure.Tolerance, true, []string{p.rounded}},
		"build":            {failure.Missing, false, []string{p.rounded, "--set", "target=tensorrt"}},
		"recheck":          {failure.Tolerance, true, nil},
		"gate":             {failure.Tolerance, true, nil},
		"sensitivity":      {failure.Tolerance, true, []string{p.rounded, "--precision", "bf16", "--max-nodes", "1"}},
		"calibrate":        {failure.Calibration, true, []string{filepath.Join(p.dir, "rounded.onnx"), "--check", p.cache}},
		"lint":             {failure.Triton, true, []string{p.config}},
		"status":           {failure.Triton, true, nil},
		"doctor":           {failure.Missing, true, []string{"--require", "gpu"}},
		"config validate":  {failure.Usage, true, []string{p.cache}},
		"artifacts ls":     {failure.Usage, false, []string{"nothing"}},
		"artifacts show":   {failure.Artifact, false, []string{"nothing"}},
		"artifacts verify": {failure.Artifact, false, []string{"--store", p.cache}},
		"artifacts gc":     {failure.Artifact, false, []string{"--store", p.cache}},
		"env list":         {failure.Usage, false, []string{"x"}},
		"action":           {failure.Usage, false, []string{"--print", "nothing"}},
		"init":             {failure.Artifact, false, []string{p.dir}},
		"models ls":        {failure.Triton, false, []string{"--http", "127.0.0.1:1"}},
		"sbom":             {failure.Usage, false, []string{"x"}},
		"man":              {failure.Usage, false, []string{"x"}},
		"env install":      {failure.Usage, false, []string{"nothing"}},
		"version":          {failure.Usage, false, []string{"x"}},
		"config schema":    {failure.Usage, false, []string{"x"}},
		"help":             {failure.Usage, false, []string{"nothing"}},
		"exit-codes":       {},
		"stop":             {failure.Usage, false, nil},
	}
	seen := 0
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			walk(sub)
		}
		path := strings.TrimPrefix(c.CommandPath(), "trtship ")
		call, ok := calls[path]
		if c.HasSubCommands() || strings.HasPrefix(path, "completion") || ok && call.code == failure.OK {
			return
		}
		seen++
		t.Run(path, func(t *testing.T) {
			args := append(append(strings.Fields(path), "--json"), call.args...)
			if !ok { // one of its files is not there
				odd := oddCalls(c, p.rounded, filepath.Join(p.dir, "absent"))
				if len(odd) == 0 {
					t.Fatal("add a call of it that fails to the table")
				}
				args = append(odd[0], "--json")
			}
			code, stdout, stderr := b.main(t.Context(), args)
			if code == int(failure.OK) || code == int(failure.Bug) || ok && code != int(call.code) {
				t.Fatalf("trtship %s: exit %d, want %d\n%s", strings.Join(args, " "), code, call.code, stderr)
			}
			lines := strings.Split(strings.TrimSuffix(stderr, "\n"), "\n")
			var e jsonError
			if err := json.Unmarshal([]byte(lines[len(lines)-1]), &e); err != nil || e.Code != code || e.Name != failure.Code(code).String() || e.Message == "" {
				t.Errorf("trtship %s: exit %d, %v, the last line of stderr is %q", strings.Join(args, " "), code, err, lines[len(lines)-1])
			}
			if ok && (stdout != "") != call.data || stdout != "" && !json.Valid([]byte(stdout)) {
				t.Errorf("trtship %s: stdout is %.300q", strings.Join(args, " "), stdout)
			}
		})
	}
	walk(Commands())
	if seen < 40 {
		t.Errorf("only %d commands", seen)
	}
}
