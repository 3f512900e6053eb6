package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
	"github.com/trtship/trtship/internal/triton/tritontest"
)

// oddInputs makes what may stand where a file is wanted: opening a pipe waits
// for ever, a device has no end.
func oddInputs(t *testing.T) map[string]string {
	t.Helper()
	dir := t.TempDir()
	pipe, socket, folder := filepath.Join(dir, "odd-pipe"), filepath.Join(dir, "odd-socket"), filepath.Join(dir, "odd-folder")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	// A folder whose own files are pipes.
	for _, name := range []string{"report.json", "manifest.json", "config.pbtxt", "gate.json", "index.json", "oci-layout", "m/config.pbtxt", "m/1/model.onnx", "m/1/model.plan", "data.npz", "x.npy"} {
		path := filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Mkfifo(path, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return map[string]string{"a pipe": pipe, "a socket": socket, "a folder of pipes": folder, "a device": "/dev/zero"}
}

// smallConfig writes a configuration whose model is one small ONNX file.
func smallConfig(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	tritontest.WriteModel(t, filepath.Join(dir, "m.onnx"), []*onnxpb.ValueInfoProto{tritontest.Value("x", onnxpb.TensorProto_FLOAT, "batch", 4)},
		[]*onnxpb.ValueInfoProto{tritontest.Value("y", onnxpb.TensorProto_FLOAT, "batch", 4)}, tritontest.Node("Relu", []string{"x"}, []string{"y"}, nil))
	path := filepath.Join(dir, "c.yaml")
	text := "target: onnxruntime\nmodel:\n  name: m\n  kind: onnx\n  path: m.onnx\ntensorrt:\n  profiles:\n    - inputs: {x: {min: [1, 4], opt: [2, 4], max: [4, 4]}}\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

var argument = regexp.MustCompile(`^\[?[A-Z]+`)

// oddCalls lists command lines of a command in which one file is odd.
func oddCalls(c *cobra.Command, config, odd string) [][]string {
	path := strings.Fields(c.CommandPath())[1:]
	var words []string
	for _, w := range strings.Fields(c.Use)[1:] {
		if strings.HasPrefix(w, "-") {
			break
		}
		if argument.MatchString(w) && w != "[KIND]" && w != "ID" {
			words = append(words, w)
		}
	}
	valid := make([]string, len(words))
	for i, w := range words {
		valid[i] = filepath.Join(filepath.Dir(config), "absent")
		switch {
		case strings.Contains(w, "CONFIG"):
			valid[i] = config
		case strings.Contains(w, "MODEL"):
			valid[i] = filepath.Join(filepath.Dir(config), "m.onnx")
		}
	}
	var out [][]string
	for i := range words {
		call := append(append([]string{}, path...), valid[:i+1]...)
		call[len(call)-1] = odd
		out = append(out, call)
	}
	c.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
		value := odd
		switch name, _ := pflag.UnquoteUsage(f); {
		case f.Name == "input":
			value = "x=" + odd
		case f.Name == "engine":
			value = "fp16:" + odd
		case name != "file" && name != "folder" && name != "path":
			return
		}
		required := valid
		if len(required) > 1 && strings.HasPrefix(words[len(words)-1], "[") {
			required = required[:1]
		}
		out = append(out, append(append(append([]string{}, path...), required...), "--"+f.Name, value))
	})
	if f := c.Flag("http"); f != nil && strings.Contains(f.Usage, "host:port") { // a server of somebody else may run here
		for i := range out {
			out[i] = append(out[i], "--http", "127.0.0.1:1")
		}
	}
	return out
}

// TestNoCommandWaitsForAnOddFile puts pipes, devices and sockets into every
// place of every command where a file is wanted.
func TestNoCommandWaitsForAnOddFile(t *testing.T) {
	config := smallConfig(t)
	calls := 0
	for kind := range oddInputs(t) {
		var walk func(c *cobra.Command)
		walk = func(c *cobra.Command) {
			for _, sub := range c.Commands() {
				walk(sub)
			}
			if c.HasSubCommands() || strings.HasPrefix(c.CommandPath(), "trtship completion") || strings.HasPrefix(c.CommandPath(), "trtship env") || c.Name() == "help" {
				return // env takes names, not files
			}
			for i, args := range oddCalls(c, config, "ODD") {
				calls++
				t.Run(kind+": "+strings.Join(args, " "), func(t *testing.T) {
					args := oddCalls(c, config, oddInputs(t)[kind])[i] // new ones: some commands write
					code, stdout, stderr := mainWithin(t, args)
					if code == int(failure.Bug) || code == int(failure.Interrupted) || code == 0 && c.Name() != "man" {
						t.Errorf("exit %d\nstdout: %.500s\nstderr: %.1500s", code, stdout, stderr)
					}
				})
			}
		}
		walk(Commands())
		odd := oddInputs(t)[kind]
		for _, args := range [][]string{{"artifacts", "ls", "--store", odd}, {"run", config, "--store", odd}, {"run", config, "--python", odd, "--until", "inspect"}, {"report", "-C", odd}} {
			t.Run(kind+": "+strings.Join(args, " "), func(t *testing.T) {
				if code, _, stderr := mainWithin(t, args); code == int(failure.Bug) || code == int(failure.Interrupted) {
					t.Errorf("exit %d: %s", code, stderr)
				}
			})
		}
	}
	if calls < 200 {
		t.Errorf("only %d calls were made; is the table of commands read?", calls)
	}
}

// mainWithin runs a command that must end by itself.
func mainWithin(t *testing.T, args []string) (code int, stdout, stderr string) {
	t.Helper()
	b := newBench(t)
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, SignalError{syscall.SIGINT})
	defer cancel()
	var out, errs bytes.Buffer
	a := &app{io: IO{Stderr: &bytes.Buffer{}}}
	code = a.await(ctx, time.Second, func() int {
		return Main(ctx, args, IO{
			Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs, Getenv: func(name string) string { return b.env[name] }, Environ: func() []string { return nil },
		})
	})
	return code, out.String(), errs.String()
}

func TestASignalEndsACommandThatIsStuck(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(SignalError{sig})
		var stderr bytes.Buffer
		a := &app{io: IO{Stderr: &stderr}}
		stuck := make(chan int)
		defer close(stuck)
		if code := a.await(ctx, time.Millisecond, func() int { return <-stuck }); code != 128+int(sig) || !strings.Contains(stderr.String(), "stopped by") {
			t.Errorf("exit %d: %s", code, stderr.String())
		}
	}
}

// TestEveryErrorIsJSONWhereThatIsAsked asks every command without arguments,
// with too many, and with a flag that it does not have.
func TestEveryErrorIsJSONWhereThatIsAsked(t *testing.T) {
	groups := 0
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			walk(sub)
		}
		if strings.HasPrefix(c.CommandPath(), "trtship completion") || c.Name() == "help" || c.Name() == "exit-codes" {
			return
		}
		path := strings.Fields(c.CommandPath())[1:]
		calls := [][]string{{"--no-such-flag"}, {"--log-level", "loud", "a"}}
		if c.HasSubCommands() {
			groups++
			calls = append(calls, nil, []string{"no-such-command"})
		}
		for _, more := range calls {
			for _, args := range [][]string{append(append([]string{"--json"}, path...), more...), append(append(append([]string{}, path...), more...), "--json"), append(append(append([]string{}, path...), "--json=true"), more...)} {
				code, stdout, stderr := mainWithin(t, args)
				var e jsonError
				if err := json.Unmarshal([]byte(stderr), &e); err != nil || e.Code != code || code != int(failure.Usage) || stdout != "" {
					t.Errorf("trtship %s: exit %d, %v\nstdout: %.200s\nstderr: %.200s", strings.Join(args, " "), code, err, stdout, stderr)
				}
			}
		}
	}
	walk(Commands())
	if groups < 6 {
		t.Errorf("only %d groups", groups)
	}
	for _, args := range [][]string{{"artifacts"}, {"artifacts", "--json=false"}, {"artifacts", "--json", "--json=false"}} {
		if code, stdout, _ := mainWithin(t, args); code != 0 || !strings.Contains(stdout, "Available Commands") && !strings.Contains(stdout, "Usage:") {
			t.Errorf("trtship %s: exit %d: %s", strings.Join(args, " "), code, stdout)
		}
	}
}

func TestConfigValidateTellsTheMistakesOfAllFiles(t *testing.T) {
	dir := t.TempDir()
	good := smallConfig(t)
	bad1, bad2 := filepath.Join(dir, "one.yaml"), filepath.Join(dir, "two.yaml")
	for path, text := range map[string]string{bad1: "modle: {}\n", bad2: "model: {name: m, kind: onnx, path: x}\nexport: {opset: x, dynamo: 3}\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b := newBench(t)
	stdout, stderr := b.run(failure.Usage, "config", "validate", "--json", bad1, good, bad2, dir, filepath.Join(dir, "absent.yaml"))
	var got []validated
	if err := json.Unmarshal([]byte(stdout), &got); err != nil {
		t.Fatal(err)
	}
	for i, want := range []int{1, 0, 2, 1, 1} {
		if len(got[i].Problems) != want || got[i].Valid != (want == 0) {
			t.Errorf("%s: %+v, want %d problems", got[i].File, got[i], want)
		}
	}
	var e jsonError
	if err := json.Unmarshal([]byte(stderr), &e); err != nil || len(e.Details) != 5 || e.Message != "4 of 5 configurations are wrong" {
		t.Errorf("%v: %s", err, stderr)
	}
	stdout, stderr = b.run(failure.Usage, "config", "validate", bad1, good, bad2)
	contains(t, stdout, good+": valid")
	contains(t, stderr, "2 of 3 configurations are wrong", "one.yaml:1:1", "did you mean model?", "export.opset: want an integer", "export.dynamo: want true or false")
	_, stderr = b.run(failure.Usage, "config", "validate", bad2)
	contains(t, stderr, "two.yaml has 2 mistakes")
}
