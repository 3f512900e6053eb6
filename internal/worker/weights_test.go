package worker_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/proc"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/internal/worker"
)

// weights makes the files of testdata/models/weights.py.
func weights(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	err := proc.Run(context.Background(), proc.Command{
		Path: python(t), Args: []string{"-B", filepath.Join(zoo(t), "weights.py"), dir},
		Env: []string{"PATH=/usr/bin:/bin", "HOME=" + dir, "CUDA_VISIBLE_DEVICES="},
	})
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func checkpoint(path string, trust bool) worker.Model {
	m := model("plain", image())
	m.Kind, m.Path, m.TrustSource = "checkpoint", path, trust
	return m
}

func TestEveryFormOfWeightsGivesTheSameOutputs(t *testing.T) {
	w, log := sharedWorker(t)
	dir := weights(t)
	feed := worker.Feed{In: filepath.Join(dir, "in.npz")}
	data := make([]byte, 4*2*3*8*8)
	for i := 0; i < len(data); i += 4 {
		data[i+2], data[i+3] = byte(i%7)<<4, 0x3f // values between 0.5 and 2
	}
	x := tensor.Tensor{DType: tensor.Float32, Shape: []int64{2, 3, 8, 8}, Data: data}
	if err := tensor.WriteNPZ(feed.In, []tensor.Named{{Name: "image", Tensor: x}}); err != nil {
		t.Fatal(err)
	}
	script := checkpoint(filepath.Join(dir, "script.pt"), true)
	script.Kind, script.Factory = "torchscript", ""
	var first []byte
	for _, c := range []struct {
		name  string
		model worker.Model
	}{
		{"a state dict", checkpoint(filepath.Join(dir, "plain.pt"), false)},
		{"a state dict within a checkpoint", checkpoint(filepath.Join(dir, "wrapped.pt"), false)},
		{"a state dict of DataParallel", checkpoint(filepath.Join(dir, "parallel.pt"), false)},
		{"safetensors", checkpoint(filepath.Join(dir, "plain.safetensors"), false)},
		{"npz", checkpoint(filepath.Join(dir, "plain.npz"), false)},
		{"a pickled module, trusted", checkpoint(filepath.Join(dir, "pickled.pt"), true)},
		{"TorchScript, trusted", script},
	} {
		t.Run(c.name, func(t *testing.T) {
			feed.Out = filepath.Join(t.TempDir(), "out.npz")
			if _, err := w.Forward(worker.ForwardRequest{Model: c.model, Feeds: []worker.Feed{feed}}); err != nil {
				t.Fatal(err)
			}
			got := read(t, feed.Out)
			if first == nil {
				first = got
			}
			if !bytes.Equal(got, first) {
				t.Error("outputs differ from those of the state dict")
			}
		})
	}
	if !strings.Contains(log.String(), "may run code") {
		t.Error("trusting a source is not warned of")
	}
}

func TestWeightsThatDoNotFitAreNamed(t *testing.T) {
	w, _ := sharedWorker(t)
	dir := weights(t)
	for name, c := range map[string]struct {
		file, kind string
		texts      []string
	}{
		"names that differ":           {"other.pt", "load", []string{"1 missing, 1 unexpected", "missing in the file: head.bias", "only in the file: extra"}},
		"shapes that differ":          {"wide.pt", "load", []string{"do not fit", "size mismatch for conv.weight"}},
		"no state dict":               {"none.pt", "load", []string{"holds no state dict", "epoch, note"}},
		"a pickled module, untrusted": {"pickled.pt", "trust", []string{"model.trust_source: true", "state_dict()"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := w.Inspect(worker.InspectRequest{Model: checkpoint(filepath.Join(dir, c.file), false), Sizes: threeFive})
			if failure.CodeOf(err) != failure.Model || worker.KindOf(err) != c.kind {
				t.Fatalf("error %v (kind %q), want exit 4 and kind %q", err, worker.KindOf(err), c.kind)
			}
			for _, text := range c.texts {
				if !strings.Contains(whole(err), text) {
					t.Errorf("error lacks %q:\n%s", text, whole(err))
				}
			}
		})
	}
}

func TestTorchScriptIsInspectedWithoutHooks(t *testing.T) {
	w, _ := sharedWorker(t)
	m := checkpoint(filepath.Join(weights(t), "script.pt"), true)
	m.Kind, m.Factory = "torchscript", ""
	got, err := w.Inspect(worker.InspectRequest{Model: m, Sizes: threeFive})
	if err != nil {
		t.Fatal(err)
	}
	if got.Inspection.Operators["Conv2d"] != 1 || got.Inspection.ActivationUpperBound == 0 || !strings.Contains(strings.Join(got.Notes, " "), "TorchScript") {
		t.Errorf("inspection %+v, notes %q", got.Inspection, got.Notes)
	}
}

func TestThePythonSourcesCompileAndAreShort(t *testing.T) {
	files, err := filepath.Glob("python/*.py")
	if err != nil || len(files) == 0 {
		t.Fatalf("sources %v, %v", files, err)
	}
	script := "import sys\nfor f in sys.argv[1:]:\n    compile(open(f, encoding='utf-8').read(), f, 'exec', dont_inherit=True)"
	args := append([]string{"-I", "-W", "error", "-c", script}, files...)
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	if err := proc.Run(context.Background(), proc.Command{Path: python(t), Args: args, Dir: here}); err != nil {
		t.Error(err)
	}
	for _, f := range files {
		for i, line := range strings.Split(string(read(t, f)), "\n") {
			if len(line) > 220 || strings.ContainsRune(line, '\t') || strings.TrimRight(line, " ") != line {
				t.Errorf("%s:%d: too long, a tab, or blanks at the end", f, i+1)
			}
		}
	}
}
