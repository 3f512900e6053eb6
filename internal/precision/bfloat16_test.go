package precision

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
	"github.com/trtship/trtship/internal/onnx/onnxtest"
	"github.com/trtship/trtship/internal/ort"
	"github.com/trtship/trtship/internal/proc"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/internal/testkit"
)

// python runs a script in the locked environment and decodes its last line.
func python(t *testing.T, into any, script string, args ...string) {
	t.Helper()
	var out strings.Builder
	path := filepath.Join(t.TempDir(), "script.py")
	if err := os.WriteFile(path, []byte(script), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := proc.Run(context.Background(), proc.Command{Path: testkit.Python(t), Args: append([]string{path}, args...), Stdout: &out}); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), into); err != nil {
		t.Fatalf("%v: %s", err, out.String())
	}
}

const checker = `
import json, pathlib, sys
import onnx
bad = {}
files = sorted(pathlib.Path(sys.argv[1]).glob("*.onnx"))
for f in files:
    try:
        onnx.checker.check_model(str(f), full_check=True)
    except Exception as e:
        bad[f.name] = str(e).strip().splitlines()[0]
print(json.dumps({"checked": len(files), "bad": bad}))
`

// TestBFloat16GraphsPassTheCheckerOfONNX gives every convertible model of the
// repository's cases to onnx.checker with full type inference.
func TestBFloat16GraphsPassTheCheckerOfONNX(t *testing.T) {
	dir := t.TempDir()
	bf16 := func(name string, m *onnx.Model) *Graph {
		g, err := Convert(m, Request{Precision: "bf16", Settings: config.Quantize{KeepIO: true}})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			return nil
		}
		if err := g.Model.Save(filepath.Join(dir, name+".onnx"), onnx.SaveOptions{}); err != nil {
			t.Fatal(err)
		}
		return g
	}
	files, err := filepath.Glob("../../testdata/cases/*/*.onnx")
	if err != nil {
		t.Fatal(err)
	}
	lib := ort.Library{Path: testkit.ORTLibrary(t)}
	for i, path := range files {
		m, err := onnx.Open(path)
		if err != nil {
			continue // another package's case
		}
		t.Cleanup(func() { m.Close() })
		s, err := ort.Open(context.Background(), lib, path, ort.Options{})
		if err != nil {
			continue
		}
		s.Close()
		if m.Opset("") < 13 || filepath.Base(path) == "no_rank.onnx" { // whose input has no shape: the checker refuses the original too
			continue
		}
		bf16(fmt.Sprintf("%d-%s", i, strings.TrimSuffix(filepath.Base(path), ".onnx")), m)
	}
	for _, opset := range []int64{13, 17, 21} {
		g := bf16(fmt.Sprintf("residual-%d", opset), residual(opset))
		if g.Model.Opset("") != 22 || !slices.ContainsFunc(g.Notes, func(n string) bool { return strings.HasSuffix(n, "became 22, from which on Conv takes bfloat16") }) {
			t.Errorf("opset %d became %d: %q", opset, g.Model.Opset(""), g.Notes)
		}
		if slices.ContainsFunc(g.Kept, func(k Kept) bool { return strings.HasPrefix(k.Node, "/conv") }) {
			t.Errorf("kept float32: %+v", g.Kept)
		}
	}
	// The checker can say no: the same graph under the opset that it came with.
	planted := bf16("planted", residual(17)).Model
	for _, o := range planted.Proto.GetOpsetImport() {
		v := int64(17)
		o.Version = &v
	}
	if err := os.Remove(filepath.Join(dir, "planted.onnx")); err != nil {
		t.Fatal(err)
	}
	if err := planted.Save(filepath.Join(dir, "planted.onnx"), onnx.SaveOptions{}); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Checked int
		Bad     map[string]string
	}
	python(t, &got, checker, dir)
	if got.Checked < 40 {
		t.Errorf("only %d graphs were checked", got.Checked)
	}
	if _, ok := got.Bad["planted.onnx"]; !ok {
		t.Error("the checker took a Conv of bfloat16 in opset 17: it shows nothing")
	}
	delete(got.Bad, "planted.onnx")
	if len(got.Bad) > 0 {
		t.Errorf("onnx.checker refuses %d of %d: %v", len(got.Bad), got.Checked, got.Bad)
	}
}

const schemas = `
import json
import onnx.defs
since = {}
for s in sorted(onnx.defs.get_all_schemas_with_history(), key=lambda s: s.since_version):
    if s.domain != "":
        continue
    types = {c.type_param_str: c.allowed_type_strs for c in s.type_constraints}
    forms = [types.get(v.type_str, [v.type_str]) for v in list(s.inputs) + list(s.outputs)]
    forms = [f for f in forms if "tensor(float)" in f]
    if forms and (s.name not in since or since[s.name] == 0):
        since[s.name] = s.since_version if all("tensor(bfloat16)" in f for f in forms) else 0
print(json.dumps(since))
`

func TestTheTableOfBFloat16IsThatOfTheSchemas(t *testing.T) {
	var since map[string]int64
	python(t, &since, schemas)
	want, got := map[string]int64{}, map[string]int64{}
	for op, v := range since {
		if _, never := float32Operators[op]; never || op == "Resize" { // its scales and roi stay float32
			continue
		}
		if op == "If" || op == "Loop" || op == "Scan" || op == "OptionalHasElement" { // never low themselves
			continue
		}
		want[op], got[op] = v, takesBFloat16(op)
		if v != 0 && v < 13 {
			t.Errorf("%s takes bfloat16 in opset %d", op, v)
		}
	}
	if len(want) < 100 {
		t.Fatalf("only %d operators", len(want))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-schemas +table\n%s", diff)
	}
}

func TestWhatTakesNoBFloat16StaysFloat32AndIsNamed(t *testing.T) {
	m := onnxtest.New(17).Input("x", tensor.Float32, "n", 8).Output("y", tensor.Float32, "n", 2)
	m.Ints("k", 2).Node("Celu", "x", "c").Node("Add", "c x", "a").Node("TopK", "a k", "y i")
	g, err := Convert(m.Model(t), Request{Precision: "bf16", Settings: config.Quantize{KeepIO: true}})
	if err != nil {
		t.Fatal(err)
	}
	if g.Model.Opset("") != 17 || g.Low != 1 {
		t.Errorf("opset %d, %d nodes of 16 bits", g.Model.Opset(""), g.Low)
	}
	reasons := map[string]bool{}
	for _, k := range g.Kept {
		reasons[k.Reason] = true
	}
	for _, want := range []string{"Celu takes bfloat16 from opset 28 on, the graph is in opset 17", "TopK takes bfloat16 from opset 24 on, the graph is in opset 17"} {
		if !reasons[want] {
			t.Errorf("%q is not among %v", want, g.Kept)
		}
	}
	if _, err := Convert(residual(12), Request{Precision: "bf16"}); err == nil || !strings.Contains(err.Error(), "opset 12 is too old, 13 is needed") {
		t.Errorf("opset 12: %v", err)
	}
}

// TestAnOpsetThatCannotBeRaisedIsNoted has a function that pins the opset.
func TestAnOpsetThatCannotBeRaisedIsNoted(t *testing.T) {
	m := residual(17)
	domain, name, version := "local", "Twice", int64(17)
	main := ""
	m.Proto.Functions = []*onnxpb.FunctionProto{{
		Domain: &domain, Name: &name, Input: []string{"x"}, Output: []string{"y"},
		OpsetImport: []*onnxpb.OperatorSetIdProto{{Domain: &main, Version: &version}},
		Node:        []*onnxpb.NodeProto{newNode("Add", "add", []string{"x", "x"}, []string{"y"})},
	}}
	g, err := Convert(m, Request{Precision: "bf16", Settings: config.Quantize{KeepIO: true}})
	if err != nil {
		t.Fatal(err)
	}
	if g.Model.Opset("") != 17 || !strings.Contains(strings.Join(g.Notes, "\n"), "function local.Twice is in opset 17") {
		t.Errorf("opset %d, notes %q", g.Model.Opset(""), g.Notes)
	}
	if !slices.ContainsFunc(g.Kept, func(k Kept) bool {
		return k.Node == "/conv1" && k.Reason == "Conv takes bfloat16 from opset 22 on, the graph is in opset 17"
	}) {
		t.Errorf("kept %+v", g.Kept)
	}
}

// TestRaisedGraphsAnswerAlike has what changed between opsets 13 and 22.
func TestRaisedGraphsAnswerAlike(t *testing.T) {
	x := noise(2, 3, 6, 6)
	for name, b := range map[string]*onnxtest.Builder{
		"RoiAlign of opset 10": onnxtest.New(13).Input("x", tensor.Float32, "n", 3, 6, 6).Output("y", tensor.Float32, "r", 3, 2, 2).
			Floats("rois", []int64{2, 4}, 0, 0, 4, 4, 1, 1, 5, 3).Ints("at", 0, 1).
			Node("RoiAlign", "x rois at", "y", onnxtest.Int("output_height", 2), onnxtest.Int("output_width", 2)),
		"GridSample, bicubic": onnxtest.New(16).Input("x", tensor.Float32, 2, 3, 6, 6).Output("y", tensor.Float32, 2, 3, 1, 2).
			Floats("grid", []int64{2, 1, 2, 2}, -0.5, 0.2, 0.7, 0.1, 0, 0, 0.3, -0.9).Node("GridSample", "x grid", "y", onnxtest.String("mode", "bicubic")),
		"GridSample, default": onnxtest.New(16).Input("x", tensor.Float32, 2, 3, 6, 6).Output("y", tensor.Float32, 2, 3, 1, 2).
			Floats("grid", []int64{2, 1, 2, 2}, -0.5, 0.2, 0.7, 0.1, 0, 0, 0.3, -0.9).Node("GridSample", "x grid", "y"),
		"GridSample, nearest": onnxtest.New(16).Input("x", tensor.Float32, 2, 3, 6, 6).Output("y", tensor.Float32, 2, 3, 1, 2).
			Floats("grid", []int64{2, 1, 2, 2}, -0.5, 0.2, 0.7, 0.1, 0, 0, 0.3, -0.9).Node("GridSample", "x grid", "y", onnxtest.String("mode", "nearest")),
		"DFT along axis 1": onnxtest.New(17).Input("x", tensor.Float32, "n", 3, 6, 6).Output("y", tensor.Float32, "n", "a", "b", 2).
			Ints("shape", -1, 6, 6, 1).Node("Reshape", "x shape", "r").Node("DFT", "r", "y"),
		"DFT along axis 2": onnxtest.New(17).Input("x", tensor.Float32, "n", 3, 6, 6).Output("y", tensor.Float32, "n", "a", "b", 2).
			Ints("shape", -1, 6, 6, 1).Node("Reshape", "x shape", "r").Node("DFT", "r", "y", onnxtest.Int("axis", 2)),
		"BatchNormalization and Pad": onnxtest.New(13).Input("x", tensor.Float32, "n", 3, 6, 6).Output("y", tensor.Float32, "n", 3, 8, 8).
			Floats("s", []int64{3}, 1, 2, 3).Ints("pads", 0, 0, 1, 1, 0, 0, 1, 1).Node("BatchNormalization", "x s s s s", "b").Node("Pad", "b pads", "y"),
	} {
		m := b.Model(t)
		r, err := RaiseOpset(m, 21) // ONNX Runtime has no RoiAlign of opset 22
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		feed := tensor.Named{Name: "x", Tensor: x}
		want, got := run(t, m, feed), run(t, r, feed)
		if d := farthest(want[0].Tensor, got[0].Tensor); d != 0 {
			t.Errorf("%s differs by %g", name, d)
		}
	}
	for want, b := range map[string]*onnxtest.Builder{
		"GroupNormalization had a scale for each group": onnxtest.New(18).Input("x", tensor.Float32, "n", 4, 6, 6).Output("y", tensor.Float32, "n", 4, 6, 6).
			Floats("s", []int64{2}, 1, 2).Node("GroupNormalization", "x s s", "y", onnxtest.Int("num_groups", 2)),
		"BatchNormalization of a training graph": onnxtest.New(13).Input("x", tensor.Float32, "n", 3, 6, 6).Output("y", tensor.Float32, "n", 3, 6, 6).
			Floats("s", []int64{3}, 1, 2, 3).Node("BatchNormalization", "x s s s s", "y m v sm sv"),
	} {
		if _, err := RaiseOpset(b.Model(t), 22); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q expected: %v", want, err)
		}
	}
}

func noise(shape ...int64) tensor.Tensor {
	v := make([]float32, tensor.Elements(shape))
	state := uint32(1)
	for i := range v {
		state = state*1664525 + 1013904223
		v[i] = float32(state>>8)/(1<<23) - 1
	}
	return tensor.FromFloat32s(shape, v)
}
