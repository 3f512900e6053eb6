package calibration

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"hash"

	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
	"google.golang.org/protobuf/proto"
)

// Structure returns a digest of a graph without its weights: nodes with their
// names, inputs, outputs and plain attributes, and the shapes of constants. Two
// trainings of one network have the same structure.
func Structure(m *onnx.Model) string {
	h := sha256.New()
	line := func(v ...any) {
		b, err := json.Marshal(v)
		if err == nil {
			h.Write(append(b, '\n'))
		}
	}
	for _, v := range append(m.Inputs(), m.Outputs()...) {
		line("value", v.String())
	}
	for _, t := range m.Graph().GetInitializer() {
		line("constant", t.GetName(), t.GetDataType(), t.GetDims())
	}
	m.Walk(func(p onnx.Place, n *onnxpb.NodeProto) bool {
		line("node", p.Path, n.GetName(), onnx.Operator(n), n.GetInput(), n.GetOutput())
		hashAttributes(h, n)
		return true
	})
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}

func hashAttributes(h hash.Hash, n *onnxpb.NodeProto) {
	for _, a := range n.GetAttribute() {
		if a.G != nil || len(a.Graphs) > 0 { // walked by themselves
			continue
		}
		c := a
		if a.T != nil {
			name, kind := a.GetName(), a.GetType()
			c = &onnxpb.AttributeProto{Name: &name, Type: &kind, Ints: append([]int64{int64(a.T.GetDataType())}, a.T.GetDims()...)}
		}
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(c)
		if err == nil {
			h.Write(b)
		}
	}
}
