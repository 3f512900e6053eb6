package config

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/trtship/trtship/report"
)

func TestPoints(t *testing.T) {
	for name, tc := range map[string]struct {
		text string
		set  []string
		want []Point
	}{
		"min, opt, max and a size that is none of them": {small, nil, []Point{
			{"min", 0, map[string][]int64{"x": {1, 16}}},
			{"opt", 0, map[string][]int64{"x": {4, 16}}},
			{"max", 0, map[string][]int64{"x": {8, 16}}},
			{"off-profile", 0, map[string][]int64{"x": {6, 16}}},
		}},
		"no off-profile when it is turned off": {small, []string{"validation.extra_point=false"}, []Point{
			{"min", 0, map[string][]int64{"x": {1, 16}}}, {"opt", 0, map[string][]int64{"x": {4, 16}}}, {"max", 0, map[string][]int64{"x": {8, 16}}},
		}},
		"a full range goes outside": {small, []string{"tensorrt.profiles.0.inputs.x={min: [1, 16], opt: [2, 16], max: [3, 16]}"}, []Point{
			{"min", 0, map[string][]int64{"x": {1, 16}}},
			{"opt", 0, map[string][]int64{"x": {2, 16}}},
			{"max", 0, map[string][]int64{"x": {3, 16}}},
			{"off-profile", -1, map[string][]int64{"x": {4, 16}}},
		}},
		"a range of one size has no other": {small, []string{"tensorrt.profiles.0.inputs.x={min: [2, 16], opt: [2, 16], max: [2, 16]}"}, []Point{
			{"min", 0, map[string][]int64{"x": {2, 16}}}, {"opt", 0, map[string][]int64{"x": {2, 16}}}, {"max", 0, map[string][]int64{"x": {2, 16}}},
		}},
		"fixed shapes are one point": {small, []string{"model.inputs.0.shape=[4, 16]", "tensorrt.profiles=[]"}, []Point{
			{"fixed", 0, map[string][]int64{"x": {4, 16}}},
		}},
		"several profiles and a point of the user": {small, []string{
			"validation.extra_point=false", "validation.points=[{x: [7, 16]}]",
			"tensorrt.profiles.1.inputs.x={min: [16, 16], opt: [16, 16], max: [32, 16]}",
		}, []Point{
			{"profile 0/min", 0, map[string][]int64{"x": {1, 16}}},
			{"profile 0/opt", 0, map[string][]int64{"x": {4, 16}}},
			{"profile 0/max", 0, map[string][]int64{"x": {8, 16}}},
			{"profile 1/min", 1, map[string][]int64{"x": {16, 16}}},
			{"profile 1/opt", 1, map[string][]int64{"x": {16, 16}}},
			{"profile 1/max", 1, map[string][]int64{"x": {32, 16}}},
			{"point 1", 0, map[string][]int64{"x": {7, 16}}},
		}},
		"symbols get different sizes, fixed inputs are filled in": {two, []string{
			"tensorrt.profiles.0.inputs={ids: {min: [1, 1], opt: [4, 4], max: [16, 16]}, mask: {min: [1, 1], opt: [4, 4], max: [16, 16]}}",
		}, []Point{
			{"min", 0, map[string][]int64{"ids": {1, 1}, "mask": {1, 1}, "scale": {}}},
			{"opt", 0, map[string][]int64{"ids": {4, 4}, "mask": {4, 4}, "scale": {}}},
			{"max", 0, map[string][]int64{"ids": {16, 16}, "mask": {16, 16}, "scale": {}}},
			{"off-profile", 0, map[string][]int64{"ids": {10, 11}, "mask": {10, 11}, "scale": {}}},
		}},
		"one symbol without room stays at opt": {two, []string{
			"tensorrt.profiles.0.inputs={ids: {min: [1, 1], opt: [2, 4], max: [3, 16]}, mask: {min: [1, 1], opt: [2, 4], max: [3, 16]}}", "validation.points=[]",
		}, []Point{
			{"min", 0, map[string][]int64{"ids": {1, 1}, "mask": {1, 1}, "scale": {}}},
			{"opt", 0, map[string][]int64{"ids": {2, 4}, "mask": {2, 4}, "scale": {}}},
			{"max", 0, map[string][]int64{"ids": {3, 16}, "mask": {3, 16}, "scale": {}}},
			{"off-profile", 0, map[string][]int64{"ids": {2, 10}, "mask": {2, 10}, "scale": {}}},
		}},
		"an ONNX file without declared inputs": {small, []string{"model.kind=onnx", "model.factory=", "model.path=m.onnx", "model.inputs=[]"}, []Point{
			{"min", 0, map[string][]int64{"x": {1, 16}}},
			{"opt", 0, map[string][]int64{"x": {4, 16}}},
			{"max", 0, map[string][]int64{"x": {8, 16}}},
			{"off-profile", 0, map[string][]int64{"x": {6, 16}}},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, parse(t, tc.text, tc.set...).Points()); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

func TestBatches(t *testing.T) {
	c := parse(t, two, "model.inputs.2.shape=[1]")
	if c.BatchSymbol() != "" {
		t.Error("scale has no batch, so there is no common one")
	}
	c = parse(t, two)
	if lo, opt, hi, ok := c.BatchRange(0); !ok || lo != 1 || opt != 4 || hi != 16 || c.MaxBatch() != 16 {
		t.Errorf("batch %d %d %d %v", lo, opt, hi, ok)
	}
	if _, _, _, ok := c.BatchRange(3); ok {
		t.Error("a profile that does not exist has a batch")
	}
	if diff := cmp.Diff(map[string][]int64{"ids": {3, 64}, "mask": {3, 64}, "scale": {}}, c.ShapesAt(0, 3)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string][]int64{"ids": {4, 64}, "mask": {4, 64}, "scale": {}}, c.ShapesAt(0, 0)); diff != "" {
		t.Error(diff)
	}
	fixed := parse(t, small, "model.inputs.0.shape=[4, 16]", "tensorrt.profiles=[]")
	if diff := cmp.Diff(map[string][]int64{"x": {4, 16}}, fixed.ShapesAt(0, 9)); diff != "" {
		t.Error(diff)
	}
}

func TestTolerances(t *testing.T) {
	c := parse(t, two, "validation.tolerances={onnx: {atol: 0.5, allow_nan: true}, fp16: {top1_min: 0.9}}",
		"validation.outputs.pooled={rtol: 0.25, tolerances: {fp16: {cosine_min: 0.5, max_breaches: 0.125}}}")
	cos := func(f float64) *report.Number { n := report.Number(f); return &n }
	for name, tc := range map[string]struct {
		precision, output string
		want              report.Tolerance
	}{
		"the default":                    {"bf16", "hidden", report.Tolerance{Atol: 5e-2, Rtol: 5e-2, CosineMin: cos(0.995)}},
		"by precision":                   {"onnx", "hidden", report.Tolerance{Atol: 0.5, Rtol: 1e-3, CosineMin: cos(0.9999), AllowNaN: true}},
		"by output":                      {"onnx", "pooled", report.Tolerance{Atol: 0.5, Rtol: 0.25, CosineMin: cos(0.9999), AllowNaN: true}},
		"by output and precision":        {"fp16", "pooled", report.Tolerance{Atol: 1e-2, Rtol: 0.25, CosineMin: cos(0.5), TopK: cos(0.9), MaxBreaches: 0.125}},
		"an unknown precision is onnx's": {"", "hidden", report.Tolerance{Atol: 1e-4, Rtol: 1e-3, CosineMin: cos(0.9999)}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, c.Tolerance(tc.precision, tc.output)); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
	if len(c.Tolerances()) != 5 {
		t.Errorf("%d tolerances", len(c.Tolerances()))
	}
}

func TestInputsOfAnONNXFileAreHeldToTheProfile(t *testing.T) {
	c := parse(t, small, "model.kind=onnx", "model.factory=", "model.path=m.onnx", "model.inputs=[]")
	dynamic := []Input{{Name: "x", DType: "float32", Shape: []Dim{{Symbol: "N"}, {Size: 16}}}}
	with, err := c.WithInputs(dynamic)
	if err != nil || with.BatchSymbol() != "N" || len(c.Model.Inputs) != 0 {
		t.Fatalf("%v %+v", err, c.Model.Inputs)
	}
	_, err = c.WithInputs([]Input{{Name: "x", DType: "float32", Shape: []Dim{{Symbol: "N"}, {Size: 61}}}})
	expectProblems(t, err, "c.yaml:9:1: tensorrt.profiles.0.inputs.x.min: dimension 1 is 16, but x is fixed to 61 there",
		"opt: dimension 1 is 16", "max: dimension 1 is 16")
	_, err = c.WithInputs(append(dynamic, Input{Name: "y", Shape: []Dim{{Symbol: "M"}}}))
	expectProblems(t, err, "y is dynamic in M and has no min, opt and max here")
}
