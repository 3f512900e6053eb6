package onnx

import (
	"fmt"
	"strings"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
)

// Requirement is an IR version and the feature that needs it.
type Requirement struct {
	Version int64
	Reason  string
}

// dtypeIR is the IR version that brought an element type.
var dtypeIR = map[onnxpb.TensorProto_DataType]int64{
	onnxpb.TensorProto_FLOAT8E4M3FN: 9, onnxpb.TensorProto_FLOAT8E4M3FNUZ: 9, onnxpb.TensorProto_FLOAT8E5M2: 9, onnxpb.TensorProto_FLOAT8E5M2FNUZ: 9,
	onnxpb.TensorProto_UINT4: 10, onnxpb.TensorProto_INT4: 10, onnxpb.TensorProto_FLOAT4E2M1: 11, onnxpb.TensorProto_FLOAT8E8M0: 12,
	onnxpb.TensorProto_UINT2: 13, onnxpb.TensorProto_INT2: 13, onnxpb.TensorProto_FLOAT6E2M3: 14, onnxpb.TensorProto_FLOAT6E3M2: 14,
}

// MinimumIR returns the oldest IR version that has everything the model uses.
func (m *Model) MinimumIR() Requirement {
	r := Requirement{Version: 3, Reason: "an ONNX graph"}
	need := func(v int64, reason string) {
		if v > r.Version {
			r = Requirement{v, reason}
		}
	}
	inputs := map[string]bool{}
	for _, in := range m.Graph().GetInput() {
		inputs[in.GetName()] = true
	}
	for _, t := range m.Graph().GetInitializer() {
		if !inputs[t.GetName()] {
			need(4, fmt.Sprintf("initializer %q, which is not an input,", t.GetName()))
			break
		}
	}
	g := m.Graph()
	if len(g.GetQuantizationAnnotation()) > 0 {
		need(5, "a quantization annotation")
	}
	if len(g.GetSparseInitializer()) > 0 {
		need(6, "a sparse initializer")
	}
	if len(m.Proto.GetTrainingInfo()) > 0 {
		need(7, "training info")
	}
	for _, f := range m.Proto.GetFunctions() {
		need(8, "function "+functionName(f))
		if f.GetOverload() != "" {
			need(10, "the overload of function "+functionName(f))
		}
	}
	if len(m.Proto.GetConfiguration()) > 0 {
		need(11, "a device configuration")
	}
	m.walkTensors(func(place string, t *onnxpb.TensorProto) error {
		d := onnxpb.TensorProto_DataType(t.GetDataType())
		need(dtypeIR[d], fmt.Sprintf("%s of type %s", tensorName(place, t), elementTypes[d].dtype))
		return nil
	})
	for _, infos := range [][]*onnxpb.ValueInfoProto{g.GetInput(), g.GetOutput(), g.GetValueInfo()} {
		for _, v := range infos {
			d := onnxpb.TensorProto_DataType(v.GetType().GetTensorType().GetElemType())
			need(dtypeIR[d], fmt.Sprintf("value %q of type %s", v.GetName(), elementTypes[d].dtype))
		}
	}
	return r
}

// Runtime is the newest format that a runtime loads.
type Runtime struct {
	Name  string // e.g. "onnxruntime 1.30.0"
	IR    int64  // 0: unknown
	Opset int64  // of ai.onnx; 0: unknown
}

// Accepts returns a failure.Missing error if the model is newer than what r
// loads, naming both numbers, and nil if it is not.
func (m *Model) Accepts(r Runtime) error {
	ir, opset := m.Proto.GetIrVersion(), m.Opset("")
	if r.IR > 0 && ir > r.IR {
		e := failure.New(failure.Model, "check model: IR %d, %s takes %d", ir, r.Name, r.IR).At(m.Path)
		if least := m.MinimumIR(); least.Version <= r.IR {
			return e.WithHint("nothing in the model needs it: set optimize.ir_version to %d (%d would do)", r.IR, least.Version)
		}
		return e.WithHint("%s needs IR %d: use a newer runtime", m.MinimumIR().Reason, m.MinimumIR().Version)
	}
	if r.Opset > 0 && opset > r.Opset {
		e := failure.New(failure.Model, "check model: opset %d, %s takes %d", opset, r.Name, r.Opset).At(m.Path)
		return e.WithHint("export with opset %d or less", r.Opset)
	}
	return nil
}

// runtimes are the newest IR version and operator set that releases of ONNX
// Runtime load, tried out with each release.
var runtimes = map[string]Runtime{
	"1.19": {IR: 10, Opset: 21}, "1.20": {IR: 10, Opset: 21}, "1.21": {IR: 10, Opset: 22}, "1.22": {IR: 10, Opset: 22},
	"1.23": {IR: 11, Opset: 23}, "1.24": {IR: 13, Opset: 25}, "1.25": {IR: 13, Opset: 26}, "1.26": {IR: 13, Opset: 26},
	"1.27": {IR: 13, Opset: 26}, "1.28": {IR: 13, Opset: 26}, "1.29": {IR: 13, Opset: 26}, "1.30": {IR: 13, Opset: 26},
}

// ONNXRuntime returns what a version of ONNX Runtime loads. Numbers are 0 for a
// version that was not tried.
func ONNXRuntime(version string) Runtime {
	minor := version
	if parts := strings.SplitN(version, ".", 3); len(parts) == 3 {
		minor = parts[0] + "." + parts[1]
	}
	r := runtimes[minor]
	r.Name = "onnxruntime " + version
	return r
}
