package export

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/onnx/facts"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/report"
)

// compare holds the graph against the declaration and the model's forward.
func (s *Stage) compare(m *onnx.Model, from origin) []report.Check {
	return []report.Check{s.inputSet(m.Inputs()), s.outputSet(m.Outputs(), from), s.opsetCheck(m), s.dynamic(m, from), s.training(m)}
}

// inputSet compares by name, never by position: two inputs of one type and
// shape may be in the other order.
func (s *Stage) inputSet(found []onnx.Value) report.Check {
	c := report.Check{ID: checkInputs, Verdict: report.Pass, Got: names(found), Line: s.line("model.inputs", "model")}
	declared := s.cfg.Model.Inputs
	if len(declared) == 0 && s.given() {
		c.Want = "any: model.inputs is not given"
		return c
	}
	var wrong, want, notes []string
	for _, d := range declared {
		want = append(want, d.Name)
		i := slices.IndexFunc(found, func(v onnx.Value) bool { return v.Name == d.Name })
		switch {
		case i >= 0:
			wrong = append(wrong, differences(found[i], d.DType, dimsOf(d.Shape))...)
		case d.Optional:
			notes = append(notes, fmt.Sprintf("missing in ONNX: %s (optional)", d.Name))
		default:
			wrong = append(wrong, fmt.Sprintf("missing in ONNX: %s (unused in forward?)", d.Name))
		}
	}
	for _, v := range found {
		if !slices.Contains(want, v.Name) {
			wrong = append(wrong, "only in ONNX: "+v.Name)
		}
	}
	c.Want = strings.Join(want, ", ")
	c.Detail = strings.Join(append(wrong, notes...), "\n")
	if len(wrong) > 0 {
		c.Verdict = report.Fail
		c.Detail += "\n" + sideBySide(declaredRows(s.cfg.Model.Inputs), foundRows(found))
		c.Hint = "declare in model.inputs what forward uses; an input that no output depends on vanishes: take it out or mark it optional"
	}
	return c
}

// outputSet compares in order: output_names says which output is which.
func (s *Stage) outputSet(found []onnx.Value, from origin) report.Check {
	c := report.Check{ID: checkOutputs, Verdict: report.Pass, Got: names(found), Line: s.line("model.output_names", "model")}
	want := s.cfg.Model.OutputNames
	if len(want) == 0 {
		for _, o := range from.outputs {
			want = append(want, o.Name)
		}
	}
	if len(want) == 0 {
		c.Want = "any: model.output_names is not given"
		return c
	}
	c.Want = strings.Join(want, ", ")
	var wrong []string
	for i := range max(len(want), len(found)) {
		switch {
		case i >= len(found):
			wrong = append(wrong, fmt.Sprintf("output %d is missing, config says %s", i, want[i]))
		case i >= len(want):
			wrong = append(wrong, fmt.Sprintf("output %d is %s, config has no name for it", i, found[i].Name))
		case found[i].Name != want[i]:
			wrong = append(wrong, fmt.Sprintf("output %d is %s, config says %s", i, found[i].Name, want[i]))
		case i < len(from.outputs):
			wrong = append(wrong, typeAndRank(found[i], from.outputs[i].DType, len(from.outputs[i].Dims), "forward gives")...)
		}
	}
	c.Detail = strings.Join(wrong, "\n")
	if len(wrong) > 0 {
		c.Verdict = report.Fail
		c.Hint = "list in model.output_names what forward returns, in its order"
	}
	return c
}

func (s *Stage) opsetCheck(m *onnx.Model) report.Check {
	got := m.Opset("")
	c := report.Check{ID: checkOpset, Verdict: report.Pass, Want: fmt.Sprintf("opset %d", s.opset()), Got: fmt.Sprintf("opset %d", got), Line: s.line("export.opset", "export")}
	if s.given() && !s.cfg.Given("export.opset") {
		c.Want = "any: the file is given"
		return c
	}
	if got != int64(s.opset()) {
		c.Verdict = report.Fail
		c.Hint = fmt.Sprintf("set export.opset: %d, or use the other exporter", got)
	}
	return c
}

// dynamic finds dimensions that are declared dynamic and fixed in the graph.
func (s *Stage) dynamic(m *onnx.Model, from origin) report.Check {
	c := report.Check{ID: checkDynamic, Verdict: report.Pass, Want: "every symbolic dimension is symbolic in the graph", Line: s.line("model.inputs", "model")}
	var wrong []string
	symbols := 0
	for _, d := range s.cfg.Model.Inputs {
		i := slices.IndexFunc(m.Inputs(), func(v onnx.Value) bool { return v.Name == d.Name })
		if i < 0 {
			continue
		}
		in := m.Inputs()[i]
		for axis, dim := range d.Shape {
			if dim.Symbol == "" || axis >= len(in.Dims) {
				continue
			}
			symbols++
			if in.Dims[axis].Fixed() {
				wrong = append(wrong, fmt.Sprintf("input %s axis %d is %d in the graph, config says %s", d.Name, axis, in.Dims[axis].Size, dim.Symbol))
			}
		}
	}
	for i, v := range m.Outputs() {
		if !from.confirmed || i >= len(from.outputs) {
			break
		}
		for axis, dim := range from.outputs[i].Dims {
			if !isSize(dim) && axis < len(v.Dims) && v.Dims[axis].Fixed() {
				wrong = append(wrong, fmt.Sprintf("output %s axis %d is %d in the graph, and follows %s in forward", v.Name, axis, v.Dims[axis].Size, dim))
			}
		}
	}
	c.Got = fmt.Sprintf("%d symbolic dimensions, %d of them fixed", symbols, len(wrong))
	if len(wrong) > 0 {
		c.Verdict, c.Detail = report.Fail, strings.Join(wrong, "\n")
		c.Hint = "look for sizes that forward turns into Python numbers, such as int(x.shape[0])"
	}
	return c
}

// training finds operators that were exported in training mode.
func (s *Stage) training(m *onnx.Model) report.Check {
	c := report.Check{ID: checkTraining, Verdict: report.Pass, Want: "no operator in training mode", Got: "none", Line: s.line("model.allow_training_mode", "model")}
	var wrong, allowed []string
	for _, node := range facts.Training(m) {
		if matchesAny(s.cfg.Model.AllowTrain, node) {
			allowed = append(allowed, node)
		} else {
			wrong = append(wrong, node)
		}
	}
	if len(allowed) > 0 {
		c.Detail = "allowed by model.allow_training_mode: " + strings.Join(allowed, ", ")
	}
	if len(wrong) > 0 {
		c.Verdict, c.Got = report.Fail, strings.Join(wrong, ", ")
		c.Hint = "call eval() on the module before it is returned, or list the nodes in model.allow_training_mode"
	}
	return c
}

func matchesAny(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		ok, err := path.Match(strings.ReplaceAll(p, "/", "\x00"), strings.ReplaceAll(name, "/", "\x00"))
		return err == nil && ok
	})
}

// differences compares one input of the graph with its declaration. A size that
// is symbolic in the graph and fixed in the configuration is a use of a more
// general graph.
func differences(v onnx.Value, dtype string, dims []string) []string {
	wrong := typeAndRank(v, dtype, len(dims), "config says")
	for i, d := range dims {
		if v.HasShape && i < len(v.Dims) && len(dims) == len(v.Dims) && isSize(d) && v.Dims[i].Fixed() && v.Dims[i].String() != d {
			wrong = append(wrong, fmt.Sprintf("%s: axis %d is %s in ONNX, config says %s", v.Name, i, v.Dims[i], d))
		}
	}
	return wrong
}

func typeAndRank(v onnx.Value, dtype string, rank int, who string) []string {
	var wrong []string
	if want, err := tensor.ParseDType(dtype); err == nil && v.DType != "" && v.DType != want {
		wrong = append(wrong, fmt.Sprintf("%s: is %s in ONNX, %s %s", v.Name, v.DType, who, want))
	}
	if v.HasShape && len(v.Dims) != rank {
		wrong = append(wrong, fmt.Sprintf("%s: has %d dimensions in ONNX, %s %d", v.Name, len(v.Dims), who, rank))
	}
	return wrong
}

func names(values []onnx.Value) string {
	out := make([]string, len(values))
	for i, v := range values {
		out[i] = v.Name
	}
	return strings.Join(out, ", ")
}
