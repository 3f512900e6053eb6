package onnx

import (
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// hasLarge reports whether a message holds a tensor that is written apart.
func (w *writer) hasLarge(msg proto.Message) bool {
	switch x := msg.(type) {
	case *onnxpb.ModelProto:
		return true
	case *onnxpb.GraphProto:
		return true
	case *onnxpb.FunctionProto, *onnxpb.TrainingInfoProto:
		return true
	case *onnxpb.NodeProto:
		for _, a := range x.GetAttribute() {
			if w.hasLarge(a) {
				return true
			}
		}
	case *onnxpb.AttributeProto:
		if x.T != nil && w.moved(x.T) || x.G != nil || x.SparseTensor != nil || len(x.Graphs)+len(x.SparseTensors) > 0 {
			return true
		}
		for _, t := range x.GetTensors() {
			if w.moved(t) {
				return true
			}
		}
	case *onnxpb.SparseTensorProto:
		return x.Values != nil && w.moved(x.Values) || x.Indices != nil && w.moved(x.Indices)
	case *onnxpb.TensorProto:
		return w.moved(x)
	}
	return false
}

// encodeFields writes a message field by field in the order of their numbers.
// Fields that cannot lead to a tensor are marshalled together, in front.
func (w *writer) encodeFields(msg proto.Message, kind messageKind) ([]piece, error) {
	m := msg.ProtoReflect()
	rest := m.New()
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if _, ok := children[kind][fd.Number()]; !ok {
			rest.Set(fd, v)
		}
		return true
	})
	rest.SetUnknown(m.GetUnknown())
	head, err := proto.MarshalOptions{Deterministic: true}.Marshal(rest.Interface())
	if err != nil {
		return nil, failure.New(failure.Bug, "encode %s: %w", kindNames[kind], err)
	}
	out := pieces{}
	out.add(head)
	fields := m.Descriptor().Fields()
	for _, num := range sortedKeys(children[kind]) {
		fd := fields.ByNumber(num)
		if !m.Has(fd) {
			continue
		}
		child := children[kind][num]
		if !fd.IsList() {
			if err := w.encodeChild(&out, num, m.Get(fd).Message().Interface(), child); err != nil {
				return nil, err
			}
			continue
		}
		list := m.Get(fd).List()
		for i := range list.Len() {
			if err := w.encodeChild(&out, num, list.Get(i).Message().Interface(), child); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

func (w *writer) encodeChild(out *pieces, num protowire.Number, msg proto.Message, kind messageKind) error {
	sub, err := w.encode(msg, kind)
	if err != nil {
		return err
	}
	var size int64
	for _, p := range sub {
		size += p.size
	}
	out.add(nested(num, size))
	for _, p := range sub {
		if p.tensor == nil {
			out.add(p.bytes)
		} else {
			*out = append(*out, p)
		}
	}
	return nil
}

// pieces joins neighbouring runs of bytes, so that a graph of many nodes is not
// a list of many small pieces.
type pieces []piece

func (p *pieces) add(b []byte) {
	if len(b) == 0 {
		return
	}
	if n := len(*p); n > 0 && (*p)[n-1].tensor == nil {
		last := &(*p)[n-1]
		last.bytes = append(last.bytes, b...)
		last.size += int64(len(b))
		return
	}
	*p = append(*p, piece{bytes: append([]byte(nil), b...), size: int64(len(b))})
}
