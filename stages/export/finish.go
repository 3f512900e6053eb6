package export

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
	"github.com/trtship/trtship/report"
)

// finish makes the exporter's graph fit for an artifact: nothing in it depends
// on where or when it was exported, nodes and weights have the names that the
// user's modules have, and dimensions have the names of the configuration.
func finish(m *onnx.Model, inputs, outputs []report.Tensor) {
	clearNotes(m.Proto.ProtoReflect())
	slices.SortFunc(m.Proto.OpsetImport, func(a, b *onnxpb.OperatorSetIdProto) int {
		return strings.Compare(a.GetDomain(), b.GetDomain())
	})
	stripAdapter(m.Graph())
	nameDims(m.Graph().GetInput(), inputs)
	nameDims(m.Graph().GetOutput(), outputs)
}

// clearNotes empties doc_string and metadata_props everywhere: exporters write
// source paths and stack traces there.
func clearNotes(m protoreflect.Message) {
	for _, name := range []protoreflect.Name{"doc_string", "metadata_props"} {
		if f := m.Descriptor().Fields().ByName(name); f != nil {
			m.Clear(f)
		}
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.Message() == nil:
		case f.IsList():
			for i := range v.List().Len() {
				clearNotes(v.List().Get(i).Message())
			}
		case !f.IsMap():
			clearNotes(v.Message())
		}
		return true
	})
}

// The exporters see the model inside a module that routes inputs, under this
// attribute; its name is in front of every other.
const adapter = "model"

func stripped(name string) string {
	for _, prefix := range []string{"/" + adapter + "/", adapter + "."} {
		if rest, ok := strings.CutPrefix(name, prefix); ok && rest != "" {
			if prefix[0] == '/' {
				return "/" + rest
			}
			return rest
		}
	}
	return name
}

// stripAdapter renames values and nodes of the graph and of those nested in it.
// A name that would meet another stays as it is.
func stripAdapter(g *onnxpb.GraphProto) {
	values, nodes := renaming{}, renaming{}
	eachName(g, values.see, nodes.see)
	eachName(g, values.apply, nodes.apply)
}

// renaming counts who ends at which name: names that do not change count too.
type renaming map[string]map[string]bool // target -> sources

func (r renaming) see(name *string) {
	to := stripped(*name)
	if r[to] == nil {
		r[to] = map[string]bool{}
	}
	r[to][*name] = true
}

func (r renaming) apply(name *string) {
	if to := stripped(*name); len(r[to]) == 1 {
		*name = to
	}
}

// eachName calls value and node for every name of a graph and of those nested
// in it.
func eachName(g *onnxpb.GraphProto, value, node func(*string)) {
	for _, infos := range [][]*onnxpb.ValueInfoProto{g.GetInput(), g.GetOutput(), g.GetValueInfo()} {
		for _, v := range infos {
			if v.Name != nil {
				value(v.Name)
			}
		}
	}
	for _, t := range g.GetInitializer() {
		if t.Name != nil {
			value(t.Name)
		}
	}
	for _, n := range g.GetNode() {
		if n.Name != nil {
			node(n.Name)
		}
		for i := range n.Input {
			value(&n.Input[i])
		}
		for i := range n.Output {
			value(&n.Output[i])
		}
		for _, sub := range onnx.Subgraphs(n) {
			eachName(sub, value, node)
		}
	}
}

// nameDims gives symbolic dimensions their names from the model's own forward.
// A fixed dimension stays fixed: that is for the checks to judge.
func nameDims(infos []*onnxpb.ValueInfoProto, want []report.Tensor) {
	for _, info := range infos {
		i := slices.IndexFunc(want, func(t report.Tensor) bool { return t.Name == info.GetName() })
		if i < 0 {
			continue
		}
		dims := info.GetType().GetTensorType().GetShape().GetDim()
		for axis, d := range dims {
			if axis < len(want[i].Dims) && !isSize(want[i].Dims[axis]) && d.GetDimValue() == 0 {
				d.Value = &onnxpb.TensorShapeProto_Dimension_DimParam{DimParam: want[i].Dims[axis]}
			}
		}
	}
}

func isSize(dim string) bool { return strings.Trim(dim, "0123456789") == "" }
