package passes

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/trtship/trtship/internal/onnx/graph"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
	"google.golang.org/protobuf/proto"
)

// SameConstants makes readers of equal constants read one of them.
type SameConstants struct{}

// Name returns "duplicate-initializers".
func (SameConstants) Name() string { return "duplicate-initializers" }

// Apply implements Pass.
func (SameConstants) Apply(m *graph.Module) (int, error) { return sameConstants(m.Main, nil) }

// constantTable holds the constants that a graph can see, by a key that equal
// ones share.
type constantTable struct {
	outer *constantTable
	byKey map[string][]*graph.Value
}

func (t *constantTable) find(key string, equal func(*graph.Value) (bool, error)) (*graph.Value, error) {
	for ; t != nil; t = t.outer {
		for _, v := range t.byKey[key] {
			if ok, err := equal(v); ok || err != nil {
				return v, err
			}
		}
	}
	return nil, nil
}

func sameConstants(g *graph.Graph, outer *constantTable) (int, error) {
	t := &constantTable{outer: outer, byKey: map[string][]*graph.Value{}}
	changed := 0
	for _, v := range g.Inits {
		if !v.Constant() || !v.Used() {
			continue
		}
		key, err := constantKey(g.Module, v)
		if err != nil {
			return changed, err
		}
		first, err := t.find(key, func(o *graph.Value) (bool, error) { return equalConstants(g.Module, o, v) })
		if err != nil {
			return changed, err
		}
		if first == nil {
			t.byKey[key] = append(t.byKey[key], v)
		} else if v.Readers() > 0 {
			v.ReplaceReaders(first)
			changed++
		}
	}
	for _, n := range g.Nodes {
		for _, s := range n.Subs {
			if n.Removed {
				continue
			}
			c, err := sameConstants(s.Graph, t)
			changed += c
			if err != nil {
				return changed, err
			}
		}
	}
	return changed, nil
}

// sampled is how much of a large constant enters its key.
const sampled = 4 << 10

// constantKey is type, shape and contents; of a large constant beginning, middle
// and end.
func constantKey(m *graph.Module, v *graph.Value) (string, error) {
	t := v.Init
	key := binary.AppendVarint(nil, int64(t.GetDataType()))
	for _, d := range t.GetDims() {
		key = binary.AppendVarint(key, d)
	}
	if len(t.GetStringData()) > 0 {
		for _, s := range t.GetStringData() {
			key = binary.AppendVarint(key, int64(len(s)))
			key = append(key, s...)
		}
		return string(key), nil
	}
	if t.GetDataType() == int32(onnxpb.TensorProto_STRING) {
		return string(key), nil
	}
	if raw := t.GetRawData(); len(raw) > 0 && len(raw) <= 3*sampled {
		return string(append(key, raw...)), nil
	}
	r, err := m.Source.TensorReader(t)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	for _, off := range []int64{0, r.Size()/2 - sampled/2, r.Size() - sampled} {
		n := min(int64(sampled), r.Size())
		off = min(max(off, 0), r.Size()-n)
		if _, err := io.Copy(h, io.NewSectionReader(r, off, n)); err != nil {
			return "", err
		}
	}
	return string(h.Sum(append(key, 0xff))), nil
}

// equalConstants compares two constants that have the same key.
func equalConstants(m *graph.Module, a, b *graph.Value) (bool, error) {
	if a.Init.GetDataType() == int32(onnxpb.TensorProto_STRING) {
		return slices.EqualFunc(a.Init.GetStringData(), b.Init.GetStringData(), bytes.Equal), nil
	}
	x, err := m.Source.TensorReader(a.Init)
	if err != nil {
		return false, err
	}
	y, err := m.Source.TensorReader(b.Init)
	if err != nil {
		return false, err
	}
	if x.Size() != y.Size() {
		return false, nil
	}
	p, q := make([]byte, 256<<10), make([]byte, 256<<10)
	for off := int64(0); off < x.Size(); off += int64(len(p)) {
		n := min(int64(len(p)), x.Size()-off)
		if _, err := x.ReadAt(p[:n], off); err != nil && err != io.EOF {
			return false, fmt.Errorf("read %s: %w", a.Name, err)
		}
		if _, err := y.ReadAt(q[:n], off); err != nil && err != io.EOF {
			return false, fmt.Errorf("read %s: %w", b.Name, err)
		}
		if !bytes.Equal(p[:n], q[:n]) {
			return false, nil
		}
	}
	return true, nil
}

// SameExpressions makes readers of equal pure nodes read the first of them.
// Nodes that draw random numbers, contain such nodes, hold graphs or are of
// unknown domains are never merged.
type SameExpressions struct{}

// Name returns "common-subexpressions".
func (SameExpressions) Name() string { return "common-subexpressions" }

// Apply implements Pass.
func (SameExpressions) Apply(m *graph.Module) (int, error) {
	return sameExpressions(m.Main, nil), nil
}

type expressionTable struct {
	outer *expressionTable
	byKey map[string]*graph.Node
}

func (t *expressionTable) find(key string) *graph.Node {
	for ; t != nil; t = t.outer {
		if n := t.byKey[key]; n != nil && !n.Removed {
			return n
		}
	}
	return nil
}

func sameExpressions(g *graph.Graph, outer *expressionTable) int {
	t := &expressionTable{outer: outer, byKey: map[string]*graph.Node{}}
	changed := 0
	var key strings.Builder
	for _, n := range g.Nodes {
		if n.Removed {
			continue
		}
		for _, s := range n.Subs {
			changed += sameExpressions(s.Graph, t)
		}
		if len(n.Subs) > 0 || !n.Pure() {
			continue
		}
		key.Reset()
		expressionKey(&key, n)
		first := t.find(key.String())
		if first == nil {
			t.byKey[key.String()] = n
		} else if mergeNodes(first, n) {
			changed++
		}
	}
	return changed
}

// expressionKey writes what two nodes must share to be equal.
func expressionKey(b *strings.Builder, n *graph.Node) {
	fmt.Fprintf(b, "%q %q %q", n.Domain, n.Op, n.Overload)
	ids := make([]int, len(n.In))
	for i, v := range n.In {
		if v != nil {
			ids[i] = v.ID
		}
	}
	if n.Standard("Add", "Mul", "And", "Or", "Xor", "Equal") && len(ids) == 2 {
		slices.Sort(ids)
	}
	fmt.Fprint(b, ids)
	for _, o := range n.Out {
		if o == nil {
			b.WriteByte('_')
		} else {
			b.WriteByte('o')
		}
	}
	attrs := slices.Clone(n.Attrs)
	slices.SortFunc(attrs, func(x, y *onnxpb.AttributeProto) int { return strings.Compare(x.GetName(), y.GetName()) })
	for _, a := range attrs {
		if a.DocString != nil {
			a = proto.Clone(a).(*onnxpb.AttributeProto)
			a.DocString = nil
		}
		raw, _ := proto.MarshalOptions{Deterministic: true}.Marshal(a)
		fmt.Fprintf(b, "%d:", len(raw))
		b.Write(raw)
	}
}

func mergeNodes(first, n *graph.Node) bool {
	for i, o := range n.Out {
		if o != nil && !graph.CanMerge(first.Out[i], o) {
			return false
		}
	}
	for i, o := range n.Out {
		if o != nil {
			graph.Merge(first.Out[i], o)
		}
	}
	n.Remove()
	return true
}
