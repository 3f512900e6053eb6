package export_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/testkit"
)

func TestEveryExampleExports(t *testing.T) {
	dirs, err := filepath.Glob(filepath.Join(testkit.Root(t), "examples", "*", "trtship.yaml"))
	if err != nil || len(dirs) < 6 {
		t.Fatalf("examples %v, %v", dirs, err)
	}
	want := map[string]string{
		"digits":      "image float32[batch,1,8,8] -> logits float32[batch,10]",
		"encoder":     "input_ids int64[batch,seq], attention_mask int64[batch,seq] -> hidden float32[batch,seq,64], pooled float32[batch,64]",
		"onnx":        "x float32[batch,16] -> y float32[batch,4]",
		"torchscript": "x float32[batch,12], scale float32[batch,1] -> scores float32[batch,6], label int64[batch]",
		"checkpoint":  "x float32[batch,8] -> y float32[batch,3]",
		"baked":       "x float32[batch,4] -> y float32[batch,1]",
	}
	for _, path := range dirs {
		name := filepath.Base(filepath.Dir(path))
		t.Run(name, func(t *testing.T) {
			cfg, err := config.Load(path, config.Options{})
			if err != nil {
				t.Fatal(err)
			}
			checks, out := run(t, cfg)
			allPass(t, checks)
			m := open(t, out)
			var in, outs []string
			for _, v := range m.Inputs() {
				in = append(in, v.String())
			}
			for _, v := range m.Outputs() {
				outs = append(outs, v.String())
			}
			if d := cmp.Diff(want[name], strings.Join(in, ", ")+" -> "+strings.Join(outs, ", ")); d != "" {
				t.Errorf("signature (-want +got):\n%s", d)
			}
			if name == "digits" && !strings.Contains(strings.Join(out.Depends, "\n"), "weights.pt") {
				t.Errorf("dependencies %v lack the weights that the factory reads", out.Depends)
			}
			left, err := filepath.Glob(filepath.Join(filepath.Dir(path), "__pycache__"))
			if err != nil || len(left) > 0 {
				t.Errorf("left behind: %v, %v", left, err)
			}
		})
	}
}

func TestExamplesAreSmall(t *testing.T) {
	err := filepath.WalkDir(filepath.Join(testkit.Root(t), "examples"), func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if err == nil && info.Size() > 200<<10 {
			t.Errorf("%s has %d bytes", path, info.Size())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
