package precision

import (
	"strings"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
)

// Selection is a list of nodes by name, by op:Type, or by a pattern in which *
// stands for anything, slashes included.
type Selection struct {
	key     string // configuration key, for errors
	entries []string
	hits    []bool
}

// NewSelection returns the selection of a configuration key.
func NewSelection(key string, entries []string) *Selection {
	return &Selection{key: key, entries: entries, hits: make([]bool, len(entries))}
}

// Has reports whether n, which lies at p, is selected.
func (s *Selection) Has(p onnx.Place, n *onnxpb.NodeProto) bool {
	if s == nil {
		return false
	}
	found := false
	for i, e := range s.entries {
		if matchesNode(e, p, n) {
			s.hits[i], found = true, true
		}
	}
	return found
}

func matchesNode(entry string, p onnx.Place, n *onnxpb.NodeProto) bool {
	if op, ok := strings.CutPrefix(entry, "op:"); ok {
		return op == n.GetOpType() || op == onnx.Operator(n)
	}
	if glob(entry, onnx.NodeName(n)) || glob(entry, p.Name(n)) {
		return true
	}
	if n.GetName() != "" { // "Add -> y" also names a node that has a name
		return false
	}
	for _, o := range n.GetOutput() {
		if o != "" && glob(entry, o) {
			return true
		}
	}
	return false
}

// glob matches text against a pattern whose * stands for any characters.
func glob(pattern, text string) bool {
	parts := strings.Split(pattern, "*")
	if len(parts) == 1 {
		return pattern == text
	}
	first, last := parts[0], parts[len(parts)-1]
	if len(text) < len(first)+len(last) || !strings.HasPrefix(text, first) || !strings.HasSuffix(text, last) {
		return false
	}
	text = text[len(first) : len(text)-len(last)]
	for _, p := range parts[1 : len(parts)-1] {
		i := strings.Index(text, p)
		if i < 0 {
			return false
		}
		text = text[i+len(p):]
	}
	return true
}

// Check refuses entries that no node of m matches: a typing mistake would leave
// the node in the precision that it must not have.
func (s *Selection) Check(m *onnx.Model) error {
	if s == nil {
		return nil
	}
	m.Walk(func(p onnx.Place, n *onnxpb.NodeProto) bool {
		s.Has(p, n)
		return true
	})
	var unused []string
	for i, hit := range s.hits {
		if !hit {
			unused = append(unused, s.entries[i])
		}
	}
	if len(unused) == 0 {
		return nil
	}
	return failure.New(failure.Usage, "%s matches no node: %s", s.key, strings.Join(unused, ", ")).
		WithHint("list node names (`trtship inspect`), op:Type, or patterns with *")
}
