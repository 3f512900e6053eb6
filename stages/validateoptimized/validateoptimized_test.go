package validateoptimized_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/ort"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/internal/testkit"
	"github.com/trtship/trtship/internal/validation"
	"github.com/trtship/trtship/report"
	"github.com/trtship/trtship/stages/validateoptimized"
)

func TestMain(m *testing.M) {
	ort.RunChildIfAsked()
	testkit.Main(m)
}

type inputs map[artifact.Kind]string

func (i inputs) One(kind artifact.Kind) (artifact.Artifact, error) {
	dir, ok := i[kind]
	if !ok {
		return artifact.Artifact{}, fmt.Errorf("there is no %s", kind)
	}
	return artifact.Artifact{Record: artifact.Record{Kind: kind}, Dir: dir}, nil
}

func (inputs) All(artifact.Kind) []artifact.Artifact { return nil }

// reference answers with row means at batch 1 and 8.
func reference(t *testing.T) string {
	t.Helper()
	plan := validation.Plan{
		Inputs: []validation.Input{{Name: "x", DType: tensor.Float32, Batch: true, Rank: 2}}, Samples: 1, MinBatch: 1,
		Points: []validation.Point{{Name: "min", Shapes: map[string][]int64{"x": {1, 8}}}, {Name: "max", Shapes: map[string][]int64{"x": {8, 8}}}},
	}
	ref, err := validation.WriteFeeds(t.TempDir(), plan)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range ref.Feeds() {
		feed, err := tensor.ReadNPZ(f.In)
		if err != nil {
			t.Fatal(err)
		}
		v, y := feed[0].Float64s(), tensor.Zeros(tensor.Float32, feed[0].Shape[0], 1)
		for i := range int(feed[0].Shape[0]) {
			sum := 0.0
			for _, x := range v[8*i : 8*i+8] {
				sum += x / 8
			}
			y.SetFloat64(i, sum)
		}
		if err := tensor.WriteNPZ(f.Out, []tensor.Named{{Name: "y", Tensor: y}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := ref.Save("a model in Go", []validation.Array{{Name: "y", DType: tensor.Float32}}); err != nil {
		t.Fatal(err)
	}
	return ref.Dir
}

func TestTheOptimizedGraphIsComparedWithTheReference(t *testing.T) {
	lib, err := ort.Find(t.Context(), ort.Places{File: testkit.ORTLibrary(t)})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	b, err := os.ReadFile(filepath.Join(testkit.Root(t), "testdata", "cases", "e01-baked-batch", "firstfour.onnx"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "model.onnx"), b, 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := &config.Config{Target: "onnxruntime"}
	s := validateoptimized.New(cfg, lib)
	in := inputs{artifact.OptimizedONNX: dir, artifact.Reference: reference(t)}
	out := testkit.NewOutputs(t)
	checks, err := s.Run(t.Context(), in, out)
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, d := range s.Spec().Checks {
		ids = append(ids, d.ID)
	}
	text := ""
	for _, c := range checks {
		if !slices.Contains(ids, c.ID) {
			t.Errorf("check %s is not in the Spec", c.ID)
		}
		if c.Verdict != report.Pass {
			text += fmt.Sprintf("%s %s@%s: %s\n", c.ID, c.Subject.Output, c.Subject.Point, c.Detail)
		}
	}
	if !strings.Contains(text, "validate_optimized/within-tolerance y@max: y: batch 8 gives [4,1], expected [8,1]") || strings.Contains(text, "y@min") {
		t.Errorf("failed checks:\n%s", text)
	}
	var v report.Validation
	if err := json.Unmarshal(out.Documents[artifact.OptimizedReport], &v); err != nil || len(v.Rows) != 2 || v.Stored.Candidate == "" {
		t.Errorf("the report: %+v, %v", v, err)
	}
	for _, lacking := range []artifact.Kind{artifact.OptimizedONNX, artifact.Reference} {
		some := inputs{}
		for k, d := range in {
			if k != lacking {
				some[k] = d
			}
		}
		if _, err := s.Run(t.Context(), some, testkit.NewOutputs(t)); err == nil {
			t.Errorf("ran without %s", lacking)
		}
	}
	if tools, err := s.Tools(t.Context()); err != nil || tools["onnxruntime"] != lib.Version || s.Sources() != nil {
		t.Errorf("tools %v, %v", tools, err)
	}
	if _, err := json.Marshal(s.Settings()); err != nil {
		t.Error(err)
	}
}
