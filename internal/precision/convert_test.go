package precision

import (
	"strings"
	"testing"

	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/failure"
)

func TestConvertMakesTheGraphAndItsPreview(t *testing.T) {
	m := residual(17)
	x := picture(2)
	scales := calibrated(t, m, x)
	want := run(t, m, x)
	for name, r := range map[string]Request{
		"fp16": {Precision: "fp16"}, "bf16": {Precision: "bf16"}, "int8": {Precision: "int8"}, "int8 with float16": {Precision: "int8", Fallback: true},
	} {
		r.Settings, r.Scales = config.Quantize{PerChannel: true, KeepIO: true}, scales
		g, err := Convert(m, r)
		if err != nil {
			t.Fatal(err)
		}
		if (g.Preview == nil) != (name == "int8") || (len(g.Notes) == 0) != (name == "int8") {
			t.Errorf("%s: preview %t, notes %q", name, g.Preview != nil, g.Notes)
		}
		graph := g.Preview
		if graph == nil {
			graph = g.Model
		}
		if d := farthest(want[0].Tensor, run(t, graph, x)[0].Tensor); !(d < 0.3) || d == 0 {
			t.Errorf("%s differs by %g", name, d)
		}
	}
	if _, err := Convert(m, Request{Precision: "int4"}); failure.CodeOf(err) != failure.Usage {
		t.Errorf("int4: %v", err)
	}
	bad := config.Quantize{KeepFP32: []string{"/nobody"}}
	for _, p := range []string{"fp16", "int8"} {
		if _, err := Convert(m, Request{Precision: p, Settings: bad, Scales: scales}); failure.CodeOf(err) != failure.Usage {
			t.Errorf("%s: %v", p, err)
		}
	}
	if _, err := Convert(build(12, m.Graph().Input, m.Graph().Output, m.Graph().Initializer, m.Graph().Node...), Request{Precision: "int8", Scales: scales}); failure.CodeOf(err) != failure.Model || !strings.Contains(err.Error(), "opset 12") {
		t.Errorf("opset 12: %v", err)
	}
}
