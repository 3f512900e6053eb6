package onnx

import (
	"fmt"
	"slices"
	"strings"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
)

// Check tells whether the model holds together: versions and operator sets,
// data of every tensor, and in each graph that every value is defined once and
// before it is read. It puts nodes that are out of order into topological
// order and adds a note that says so.
func (m *Model) Check() error {
	for _, step := range []func() error{m.checkHeader, m.checkDepth, m.checkTensors, m.checkDomains, m.checkFunctions, m.checkValues} {
		if err := step(); err != nil {
			if m.Path == "" {
				return err
			}
			return located(err, m.Path)
		}
	}
	m.noteNames()
	return nil
}

func errTooDeep() error {
	return failure.New(failure.Model, "read model: graphs are nested too deep: more than %d in each other", MaxDepth)
}

func (m *Model) checkHeader() error {
	if m.Proto.GetGraph() == nil {
		return failure.New(failure.Model, "check model: has no graph")
	}
	if m.Proto.GetIrVersion() <= 0 {
		return failure.New(failure.Model, "check model: has no ir_version")
	}
	if len(m.Proto.GetOpsetImport()) == 0 {
		return failure.New(failure.Model, "check model: imports no operator set (opset_import is empty)").
			WithHint("the file may be cut off, or was written by a tool that left it out; export it again")
	}
	_, err := Opsets(m.Proto.GetOpsetImport())
	if err != nil {
		return failure.New(failure.Model, "check model: %w", err)
	}
	return nil
}

// Opsets returns the imported version of each domain (ai.onnx is the empty
// string). A domain that is imported twice is an error.
func Opsets(imports []*onnxpb.OperatorSetIdProto) (map[string]int64, error) {
	out := map[string]int64{}
	for _, o := range imports {
		d := Domain(o.GetDomain())
		if old, ok := out[d]; ok {
			name := d
			if name == "" {
				name = "ai.onnx"
			}
			return nil, fmt.Errorf("domain %s is imported twice, as version %d and as %d", name, old, o.GetVersion())
		}
		out[d] = o.GetVersion()
	}
	return out, nil
}

func (m *Model) checkDepth() error {
	var err error
	m.Walk(func(p Place, n *onnxpb.NodeProto) bool {
		if p.Depth < MaxDepth {
			return true
		}
		for range Subgraphs(n) {
			err = errTooDeep()
		}
		return err == nil
	})
	return err
}

func (m *Model) checkTensors() error {
	return m.walkTensors(m.checkData)
}

// checkDomains wants every node's domain to be imported where the node is.
func (m *Model) checkDomains() error {
	main, err := Opsets(m.Proto.GetOpsetImport())
	if err != nil {
		return failure.New(failure.Model, "check model: %w", err)
	}
	inFunction := map[*onnxpb.FunctionProto]map[string]int64{}
	for _, f := range m.Proto.GetFunctions() {
		if inFunction[f], err = Opsets(f.GetOpsetImport()); err != nil {
			return failure.New(failure.Model, "check function %s: %w", functionName(f), err)
		}
	}
	m.Walk(func(p Place, n *onnxpb.NodeProto) bool {
		sets, where := main, "the model"
		if p.Function != nil {
			sets, where = inFunction[p.Function], "function "+functionName(p.Function)
		}
		d := Domain(n.GetDomain())
		if _, ok := sets[d]; ok {
			return true
		}
		if d == "" {
			d = "ai.onnx"
		}
		err = failure.New(failure.Model, "check node %s: its domain %q is not imported by %s", p.Name(n), d, where).
			WithHint("add an opset_import for %q, or export again with a tool that does", d)
		return false
	})
	return err
}

// checkFunctions refuses a function whose body means another operator set than
// the model imports.
func (m *Model) checkFunctions() error {
	main, _ := Opsets(m.Proto.GetOpsetImport())
	seen := map[FunctionKey]bool{}
	for _, f := range m.Proto.GetFunctions() {
		if seen[KeyOf(f)] {
			return failure.New(failure.Model, "check model: function %s is defined twice", functionName(f))
		}
		seen[KeyOf(f)] = true
		own, _ := Opsets(f.GetOpsetImport())
		if err := sameMeaning(f, f.GetNode(), own, main, 0); err != nil {
			return err
		}
	}
	return m.checkRecursion()
}

func sameMeaning(f *onnxpb.FunctionProto, nodes []*onnxpb.NodeProto, own, main map[string]int64, depth int) error {
	if depth > MaxDepth {
		return errTooDeep()
	}
	for _, n := range nodes {
		d := Domain(n.GetDomain())
		a, b := own[d], main[d]
		if _, imported := main[d]; imported && a != b {
			va, oka := SinceVersion(d, n.GetOpType(), a)
			vb, okb := SinceVersion(d, n.GetOpType(), b)
			if oka != okb || va != vb {
				return failure.New(failure.Model, "check function %s: its body is written for opset %d, the model imports opset %d, and %s means something else in them",
					functionName(f), a, b, n.GetOpType()).
					WithHint("export again, or inline the function with the tool that wrote it")
			}
		}
		for _, g := range Subgraphs(n) {
			if err := sameMeaning(f, g.GetNode(), own, main, depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkRecursion refuses functions that call each other in a circle.
func (m *Model) checkRecursion() error {
	functions := m.Functions()
	calls := map[FunctionKey][]FunctionKey{}
	m.Walk(func(p Place, n *onnxpb.NodeProto) bool {
		if p.Function != nil {
			if _, ok := functions[CallKey(n)]; ok {
				calls[KeyOf(p.Function)] = append(calls[KeyOf(p.Function)], CallKey(n))
			}
		}
		return true
	})
	// Functions that call only finished ones are finished; what is left over
	// lies on or behind a circle. No recursion: a chain may be long.
	callers, open := map[FunctionKey][]FunctionKey{}, map[FunctionKey]int{}
	for from, to := range calls {
		open[from] = len(to)
		for _, k := range to {
			callers[k] = append(callers[k], from)
		}
	}
	var ready []FunctionKey
	for k := range functions {
		if open[k] == 0 {
			ready = append(ready, k)
		}
	}
	done := 0
	for ; len(ready) > 0; done++ {
		k := ready[len(ready)-1]
		ready = ready[:len(ready)-1]
		for _, c := range callers[k] {
			if open[c]--; open[c] == 0 {
				ready = append(ready, c)
			}
		}
	}
	if done == len(functions) {
		return nil
	}
	var names []string
	for _, f := range m.Proto.GetFunctions() {
		if open[KeyOf(f)] > 0 {
			names = append(names, functionName(f))
		}
	}
	return failure.New(failure.Model, "check model: functions call each other in a circle: %s", strings.Join(names, ", "))
}

// SinceVersion returns the version at which the meaning that op has in version
// of domain began. ok is false if that operator set has no such operator, or
// the domain is not one of the published ones.
func SinceVersion(domain, op string, version int64) (since int64, ok bool) {
	for _, v := range sinceVersions[Domain(domain)][op] {
		if v <= version {
			since, ok = v, true
		}
	}
	return since, ok
}

// noteNames notes node names that several nodes have: ONNX Runtime refuses them.
func (m *Model) noteNames() {
	names := m.DuplicateNodeNames()
	if len(names) == 0 {
		return
	}
	more := ""
	if len(names) > 1 {
		more = fmt.Sprintf(" (and %d other names are used more than once)", len(names)-1)
	}
	m.note("several nodes are named %q%s: ONNX Runtime refuses such a model; optimize renames them", names[0], more)
}

// note adds a note once.
func (m *Model) note(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(m.Notes, text) {
		m.Notes = append(m.Notes, text)
	}
}

// DuplicateNodeNames returns node names that more than one node of the main
// graph and its nested graphs has, sorted.
func (m *Model) DuplicateNodeNames() []string {
	seen, twice := map[string]bool{}, map[string]bool{}
	m.Walk(func(p Place, n *onnxpb.NodeProto) bool {
		if p.Function != nil || n.GetName() == "" {
			return true
		}
		if seen[n.GetName()] {
			twice[n.GetName()] = true
		}
		seen[n.GetName()] = true
		return true
	})
	return sortedKeys(twice)
}
