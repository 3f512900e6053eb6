package graph

import (
	"math"
	"slices"

	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
)

// RandomOps are the operators whose results differ from call to call, by
// domain and name. Dropout and training steps are judged by their attributes.
var randomOps = []string{"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}

// RandomOp reports whether an operator draws random numbers whatever its
// attributes are.
func RandomOp(domain, op string) bool {
	switch onnx.Domain(domain) {
	case "":
		return slices.Contains(randomOps, op)
	case "com.microsoft":
		return slices.Contains([]string{"BiasDropout", "BitmaskBiasDropout", "BitmaskDropout", "Sampling", "RandomNormal"}, op)
	}
	return false
}

// Pure reports whether n gives the same outputs whenever its inputs are the
// same, so that it may be merged with an equal node or computed once. Operators
// of domains that are not known are taken as impure.
func (n *Node) Pure() bool {
	for _, s := range n.Subs {
		for _, inner := range s.Graph.Nodes {
			if !inner.Removed && !inner.Pure() {
				return false
			}
		}
	}
	if _, ok := n.Graph.Module.Functions[n.callKey()]; ok {
		return !n.Graph.Module.impure[n.callKey()]
	}
	if RandomOp(n.Domain, n.Op) {
		return false
	}
	switch n.Domain {
	case "":
		return !n.trains()
	case "ai.onnx.ml", "com.microsoft":
		return true
	}
	return false
}

func (n *Node) callKey() onnx.FunctionKey {
	return onnx.FunctionKey{Domain: n.Domain, Name: n.Op, Overload: n.Overload}
}

// trains reports whether n is a Dropout or BatchNormalization that is not known
// to be in inference mode.
func (n *Node) trains() bool {
	switch n.Op {
	case "Dropout":
		return !n.DropoutOff()
	case "BatchNormalization":
		return !n.InferenceBatchNorm()
	}
	return false
}

// DropoutOff reports whether n, a Dropout, is known to pass its input through.
func (n *Node) DropoutOff() bool {
	switch opset := n.Graph.Module.Opset(); {
	case opset < 7:
		return n.Int("is_test", 0) != 0
	case opset < 12:
		return true
	}
	mode := n.Input(2)
	if mode == nil {
		return true
	}
	if !mode.Constant() {
		return false
	}
	d, err := n.Graph.Module.Source.TensorData(mode.Init)
	return err == nil && len(d.Data) == 1 && d.Data[0] == 0
}

// InferenceBatchNorm reports whether n, a BatchNormalization, uses the given
// statistics and not those of the batch.
func (n *Node) InferenceBatchNorm() bool {
	switch opset := n.Graph.Module.Opset(); {
	case opset < 7:
		return n.Int("is_test", 0) != 0
	case opset < 14:
		for _, o := range n.Out[min(1, len(n.Out)):] {
			if o != nil {
				return false
			}
		}
		return true
	}
	return n.Int("training_mode", 0) == 0
}

// findImpure marks functions that draw random numbers or call something that is
// not known to be pure. Functions cannot call each other in a circle.
func (m *Module) findImpure() {
	m.impure = map[onnx.FunctionKey]bool{}
	callers := map[onnx.FunctionKey][]onnx.FunctionKey{}
	var todo []onnx.FunctionKey
	mark := func(k onnx.FunctionKey) {
		if !m.impure[k] {
			m.impure[k] = true
			todo = append(todo, k)
		}
	}
	m.Source.Walk(func(p onnx.Place, n *onnxpb.NodeProto) bool {
		if p.Function == nil {
			return true
		}
		self := onnx.KeyOf(p.Function)
		if _, ok := m.Functions[onnx.CallKey(n)]; ok {
			callers[onnx.CallKey(n)] = append(callers[onnx.CallKey(n)], self)
		} else if !pureInFunction(n) {
			mark(self)
		}
		return true
	})
	for len(todo) > 0 {
		k := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, c := range callers[k] {
			mark(c)
		}
	}
}

// pureInFunction judges without knowing inputs: a Dropout that can be told to
// train counts as impure.
func pureInFunction(n *onnxpb.NodeProto) bool {
	d := onnx.Domain(n.GetDomain())
	if RandomOp(d, n.GetOpType()) || (d != "" && d != "ai.onnx.ml" && d != "com.microsoft") {
		return false
	}
	switch n.GetOpType() {
	case "Dropout":
		return len(n.GetInput()) < 3 || n.GetInput()[2] == ""
	case "BatchNormalization":
		return onnx.IntAttribute(n, "training_mode", 0) == 0 && len(n.GetOutput()) <= 1
	}
	return true
}

// Attr returns the attribute of that name, or nil.
func (n *Node) Attr(name string) *onnxpb.AttributeProto {
	for _, a := range n.Attrs {
		if a.GetName() == name {
			return a
		}
	}
	return nil
}

// Int returns an integer attribute, or def.
func (n *Node) Int(name string, def int64) int64 {
	if a := n.Attr(name); a != nil {
		return a.GetI()
	}
	return def
}

// TypeAttr returns the element type that an integer attribute names; undefined
// if it is absent, or a number that the format cannot hold. Cutting one off
// would make FLOAT of 1<<32 + 1.
func (n *Node) TypeAttr(name string) onnxpb.TensorProto_DataType {
	v := n.Int(name, 0)
	if v < 0 || v > math.MaxInt32 {
		return onnxpb.TensorProto_UNDEFINED
	}
	return onnxpb.TensorProto_DataType(v)
}

// Float returns a float attribute, or def.
func (n *Node) Float(name string, def float32) float32 {
	if a := n.Attr(name); a != nil {
		return a.GetF()
	}
	return def
}

// Ints returns a list of integers, or nil.
func (n *Node) Ints(name string) []int64 { return n.Attr(name).GetInts() }

// IntAttr makes an integer attribute.
func IntAttr(name string, v int64) *onnxpb.AttributeProto {
	return &onnxpb.AttributeProto{Name: &name, Type: onnxpb.AttributeProto_INT.Enum(), I: &v}
}

// IntsAttr makes a list attribute.
func IntsAttr(name string, v []int64) *onnxpb.AttributeProto {
	return &onnxpb.AttributeProto{Name: &name, Type: onnxpb.AttributeProto_INTS.Enum(), Ints: v}
}

// FloatAttr makes a float attribute.
func FloatAttr(name string, v float32) *onnxpb.AttributeProto {
	return &onnxpb.AttributeProto{Name: &name, Type: onnxpb.AttributeProto_FLOAT.Enum(), F: &v}
}
