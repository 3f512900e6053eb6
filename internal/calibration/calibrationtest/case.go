// Package calibrationtest makes what the tests of calibration and precision
// start from: a small model with its artifact, a configuration, and a reference
// answered in ONNX Runtime.
package calibrationtest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/ort"
	"github.com/trtship/trtship/internal/stage"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/internal/testkit"
	"github.com/trtship/trtship/internal/validation"
)

// Case is a model and everything that a stage reads.
type Case struct {
	Config    *config.Config
	Library   ort.Library
	Model     artifact.Artifact // of kind onnx-optimized
	Reference *validation.Reference
	Data      string // .npz with labels
}

// shapes are the inputs of the models of testdata/calibration.
var shapes = map[string]string{"cnn": "3, 8, 8", "overflow": "6"}

// New makes the case of a model of testdata/calibration: "cnn" or "overflow".
// more is YAML for further top-level keys.
func New(t testing.TB, model, more string) *Case {
	t.Helper()
	dir, source := t.TempDir(), filepath.Join(testkit.Root(t), "testdata", "calibration")
	c := &Case{Library: ort.Library{Path: testkit.ORTLibrary(t), Version: "test"}, Data: filepath.Join(source, model+"_data.npz")}
	graph, err := os.ReadFile(filepath.Join(source, model+".onnx"))
	if err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(dir, "graph")
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(folder, "model.onnx")
	s := shapes[model]
	text := fmt.Sprintf(`model: {name: %s, kind: onnx, path: %s, inputs: [{name: x, shape: [batch, %s]}], output_names: [logits]}
tensorrt: {precisions: [fp32, fp16, bf16, int8], profiles: [{inputs: {x: {min: [1, %s], opt: [4, %s], max: [8, %s]}}}]}
validation: {num_samples: 2, task: {data: %q}}
calibration: {path: %q, num_samples: 40, batch_size: 8}
%s
`, model, path, s, s, s, s, c.Data, c.Data, more)
	yaml := filepath.Join(dir, "trtship.yaml")
	for name, b := range map[string][]byte{path: graph, yaml: []byte(text)} {
		if err := os.WriteFile(name, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if c.Config, err = config.Load(yaml, config.Options{}); err != nil {
		t.Fatal(err)
	}
	c.Model = artifact.Artifact{Dir: folder, Record: artifact.Record{Kind: artifact.OptimizedONNX, Digest: "sha256:" + artifact.Digest(fmt.Sprintf("%064x", len(graph)))}}
	c.answer(t, path)
	return c
}

// answer makes the reference.
func (c *Case) answer(t testing.TB, path string) {
	t.Helper()
	ctx := context.Background()
	s, err := ort.Open(ctx, c.Library, path, ort.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close() //nolint:errcheck // it has answered
	plan, err := validation.PlanOf(c.Config, s.Inputs(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if c.Reference, err = validation.WriteFeeds(t.TempDir(), plan); err != nil {
		t.Fatal(err)
	}
	for _, f := range c.Reference.Feeds() {
		in, err := tensor.ReadNPZ(f.In)
		if err != nil {
			t.Fatal(err)
		}
		out, err := s.Infer(ctx, in)
		if err != nil {
			t.Fatal(err)
		}
		if err := tensor.WriteNPZ(f.Out, out); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Reference.Save("float32 in ONNX Runtime", []validation.Array{{Name: "logits", DType: tensor.Float32}}); err != nil {
		t.Fatal(err)
	}
}

// Inputs are the artifacts of a case and others, as a stage gets them.
func (c *Case) Inputs(others ...artifact.Artifact) stage.Inputs {
	reference := artifact.Artifact{Dir: c.Reference.Dir, Record: artifact.Record{Kind: artifact.Reference, Digest: c.Model.Digest}}
	return inputs(append(others, c.Model, reference))
}

type inputs []artifact.Artifact

func (in inputs) All(kind artifact.Kind) []artifact.Artifact {
	var out []artifact.Artifact
	for _, a := range in {
		if a.Kind == kind {
			out = append(out, a)
		}
	}
	return out
}

func (in inputs) One(kind artifact.Kind) (artifact.Artifact, error) {
	all := in.All(kind)
	if len(all) != 1 {
		return artifact.Artifact{}, fmt.Errorf("%d artifacts of kind %s", len(all), kind)
	}
	return all[0], nil
}
