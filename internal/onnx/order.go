package onnx

import (
	"container/heap"
	"fmt"
	"slices"
	"strings"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
)

// checkValues checks definitions and uses in every graph and sorts nodes.
func (m *Model) checkValues() error {
	c := &valueChecker{model: m}
	g := m.Graph()
	if _, err := c.graph(scope{path: "", graph: g}, nil); err != nil {
		return err
	}
	for _, f := range m.Proto.GetFunctions() {
		if err := c.function(f); err != nil {
			return err
		}
	}
	return nil
}

type valueChecker struct{ model *Model }

// scope is what a list of nodes can see.
type scope struct {
	path   string
	graph  *onnxpb.GraphProto // nil for a function
	outer  *scope
	byName map[string]int // -1: defined from the start; else index of the node that makes it
	depth  int
}

func (s *scope) place() string {
	if s.path == "" {
		return "the graph"
	}
	return s.path
}

// visible reports whether an enclosing scope defines name.
func (s *scope) visible(name string) bool {
	for o := s; o != nil; o = o.outer {
		if _, ok := o.byName[name]; ok {
			return true
		}
	}
	return false
}

// graph checks one graph and returns the names that it reads from outside.
func (c *valueChecker) graph(s scope, outer *scope) (free []string, err error) {
	if s.depth > MaxDepth {
		return nil, errTooDeep()
	}
	s.outer, s.byName = outer, map[string]int{}
	if err := defineStart(&s); err != nil {
		return nil, err
	}
	free, err = c.nodes(&s, s.graph.Node, func(sorted []*onnxpb.NodeProto) { s.graph.Node = sorted })
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	for _, o := range s.graph.GetOutput() {
		switch name := o.GetName(); {
		case name == "":
			return nil, failure.New(failure.Model, "check %s: an output has no name", s.place())
		case seen[name]:
			return nil, failure.New(failure.Model, "check %s: output %q is listed twice", s.place(), name)
		default:
			seen[name] = true
			if _, ok := s.byName[name]; !ok {
				return nil, failure.New(failure.Model, "check %s: output %q is never made", s.place(), name)
			}
		}
	}
	return free, nil
}

// defineStart enters inputs and initializers.
func defineStart(s *scope) error {
	for _, in := range s.graph.GetInput() {
		if _, ok := s.byName[in.GetName()]; ok {
			return failure.New(failure.Model, "check %s: input %q is listed twice", s.place(), in.GetName())
		}
		if in.GetName() == "" {
			return failure.New(failure.Model, "check %s: an input has no name", s.place())
		}
		s.byName[in.GetName()] = -1
	}
	initial := map[string]bool{}
	add := func(name string) error {
		if name == "" {
			return failure.New(failure.Model, "check %s: an initializer has no name", s.place())
		}
		if initial[name] {
			return failure.New(failure.Model, "check %s: initializer %q is defined twice", s.place(), name)
		}
		initial[name] = true
		s.byName[name] = -1
		return nil
	}
	for _, t := range s.graph.GetInitializer() {
		if err := add(t.GetName()); err != nil {
			return err
		}
	}
	for _, t := range s.graph.GetSparseInitializer() {
		if err := add(t.GetValues().GetName()); err != nil {
			return err
		}
	}
	return nil
}

func (c *valueChecker) function(f *onnxpb.FunctionProto) error {
	s := scope{path: "function " + functionName(f), byName: map[string]int{}}
	for _, name := range f.GetInput() {
		if _, ok := s.byName[name]; ok {
			return failure.New(failure.Model, "check %s: input %q is listed twice", s.place(), name)
		}
		s.byName[name] = -1
	}
	if _, err := c.nodes(&s, f.Node, func(sorted []*onnxpb.NodeProto) { f.Node = sorted }); err != nil {
		return err
	}
	for _, o := range f.GetOutput() {
		if _, ok := s.byName[o]; !ok {
			return failure.New(failure.Model, "check %s: output %q is never made", s.place(), o)
		}
	}
	return nil
}

// nodes checks a list of nodes and returns the names that they read from
// outside of s.
func (c *valueChecker) nodes(s *scope, nodes []*onnxpb.NodeProto, store func([]*onnxpb.NodeProto)) ([]string, error) {
	for i, n := range nodes {
		for _, o := range n.GetOutput() {
			if o == "" {
				continue // left out
			}
			if _, ok := s.byName[o]; ok {
				return nil, failure.New(failure.Model, "check %s: value %q is defined twice, the second time by node %s", s.place(), o, NodeName(n))
			}
			s.byName[o] = i
		}
	}
	reads := make([][]string, len(nodes))
	ordered := true
	freeSeen := map[string]bool{}
	var free []string
	for i, n := range nodes {
		var err error
		if reads[i], err = c.reads(s, n); err != nil {
			return nil, err
		}
		for _, name := range reads[i] {
			made, ok := s.byName[name]
			switch {
			case ok && made >= i:
				ordered = false
			case ok:
			case s.outer != nil && s.outer.visible(name):
				if !freeSeen[name] {
					freeSeen[name] = true
					free = append(free, name)
				}
			default:
				return nil, failure.New(failure.Model, "check %s: node %s reads %q, which nothing defines", s.place(), NodeName(n), name)
			}
		}
	}
	if ordered {
		return free, nil
	}
	sorted, err := s.sort(nodes, reads)
	if err != nil {
		return nil, err
	}
	store(sorted)
	c.model.note("the nodes of %s were not in topological order and were sorted", s.place())
	return free, nil
}

// reads returns the names that n reads, itself or in its graphs, without
// repetition.
func (c *valueChecker) reads(s *scope, n *onnxpb.NodeProto) ([]string, error) {
	names := make([]string, 0, len(n.GetInput()))
	for _, in := range n.GetInput() {
		if in != "" && !slices.Contains(names, in) {
			names = append(names, in)
		}
		if len(names) > 32 { // many inputs: compare them in linear time
			break
		}
	}
	if len(names) > 32 {
		names = unique(n.GetInput())
	}
	for attr, g := range Subgraphs(n) {
		path := NodeName(n) + "/" + attr
		if s.path != "" {
			path = s.path + "/" + path
		}
		free, err := c.graph(scope{path: path, graph: g, depth: s.depth + 1}, s)
		if err != nil {
			return nil, err
		}
		names = unique(append(names, free...))
	}
	return names, nil
}

func unique(names []string) []string {
	seen := make(map[string]bool, len(names))
	var out []string
	for _, n := range names {
		if n != "" && !seen[n] {
			seen[n] = true
			out = append(out, n)
		}
	}
	return out
}

// sort returns nodes in topological order; of nodes that are ready the one that
// was first comes first.
func (s *scope) sort(nodes []*onnxpb.NodeProto, reads [][]string) ([]*onnxpb.NodeProto, error) {
	waits := make([]int, len(nodes))
	readers := make([][]int, len(nodes))
	for i, names := range reads {
		for _, name := range names {
			if made, ok := s.byName[name]; ok && made >= 0 {
				waits[i]++
				readers[made] = append(readers[made], i)
			}
		}
	}
	ready := &intHeap{}
	for i, w := range waits {
		if w == 0 {
			heap.Push(ready, i)
		}
	}
	out := make([]*onnxpb.NodeProto, 0, len(nodes))
	for ready.Len() > 0 {
		i := heap.Pop(ready).(int)
		out = append(out, nodes[i])
		for _, r := range readers[i] {
			if waits[r]--; waits[r] == 0 {
				heap.Push(ready, r)
			}
		}
	}
	if len(out) == len(nodes) {
		return out, nil
	}
	return nil, failure.New(failure.Model, "check %s: nodes read each other's outputs in a circle: %s", s.place(), cycle(nodes, reads, s.byName, waits))
}

// cycle names one circle: from a waiting node back to a waiting producer until
// one comes up again.
func cycle(nodes []*onnxpb.NodeProto, reads [][]string, byName map[string]int, waits []int) string {
	at := slices.IndexFunc(waits, func(w int) bool { return w > 0 })
	var path []int
	pos := map[int]int{}
	var values []string
	for {
		if from, ok := pos[at]; ok {
			path, values = path[from:], values[from:]
			break
		}
		pos[at] = len(path)
		path = append(path, at)
		for _, name := range reads[at] {
			if made, ok := byName[name]; ok && made >= 0 && waits[made] > 0 {
				values = append(values, name)
				at = made
				break
			}
		}
	}
	var b strings.Builder
	for i, n := range path {
		if i == 8 {
			fmt.Fprintf(&b, "... (%d nodes)", len(path))
			return b.String()
		}
		fmt.Fprintf(&b, "%s reads %q of ", NodeName(nodes[n]), values[i])
	}
	b.WriteString(NodeName(nodes[path[0]]))
	return b.String()
}

type intHeap []int

func (h intHeap) Len() int           { return len(h) }
func (h intHeap) Less(i, j int) bool { return h[i] < h[j] }
func (h intHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *intHeap) Push(x any)        { *h = append(*h, x.(int)) }
func (h *intHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}
