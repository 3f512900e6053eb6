package config

import (
	"reflect"
	"slices"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"
)

// EnvPrefix starts the name of every environment variable that sets a key:
// TRTSHIP__EXPORT__OPSET is export.opset.
const EnvPrefix = "TRTSHIP__"

// override is a value that replaces one of the file.
type override struct {
	source string // for errors
	path   []string
	value  string
	fold   bool // keys were folded to lower case and match in any case
}

// overridesOf lists the overrides in the order in which they apply.
func (d *decoder) overridesOf(opts Options) []override {
	var out []override
	env := slices.Clone(opts.Env)
	slices.Sort(env) // the order of an environment means nothing
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		rest, ok := strings.CutPrefix(name, EnvPrefix)
		if !ok {
			continue
		}
		out = append(out, override{source: name, path: strings.Split(strings.ToLower(rest), "__"), value: value, fold: true})
	}
	for _, s := range opts.Set {
		key, value, ok := strings.Cut(s, "=")
		if !ok || key == "" {
			d.problems = append(d.problems, Problem{Where: "--set " + s, Text: "want key=value"})
			continue
		}
		out = append(out, override{source: "--set " + key, path: splitPath(key), value: value})
	}
	return out
}

// splitPath splits at dots outside double quotes.
func splitPath(s string) []string {
	var parts []string
	var b strings.Builder
	quoted := false
	for _, r := range s {
		switch {
		case r == '"':
			quoted = !quoted
		case r == '.' && !quoted:
			parts = append(parts, b.String())
			b.Reset()
		default:
			b.WriteRune(r)
		}
	}
	return append(parts, b.String())
}

// apply puts an override into the tree below root.
func (d *decoder) apply(root *yaml.Node, o override) {
	var doc yaml.Node
	fail := func(path, text string) {
		d.problems = append(d.problems, Problem{Where: o.source, Path: path, Text: text})
	}
	if err := yaml.Unmarshal([]byte(o.value), &doc); err != nil {
		fail("", "value is not YAML: "+strings.TrimPrefix(err.Error(), "yaml: "))
		return
	}
	value := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str"}
	if len(doc.Content) == 1 {
		value = doc.Content[0]
	}
	d.mark(value, o.source, 0)
	w := overrideWalk{d: d, o: o, fail: fail}
	w.set(root, reflect.TypeFor[Config](), 0, value)
}

// mark notes where a tree of nodes came from.
func (d *decoder) mark(n *yaml.Node, source string, depth int) {
	if depth > maxDepth {
		return
	}
	d.sources[n] = source
	for _, c := range n.Content {
		d.mark(c, source, depth+1)
	}
}

type overrideWalk struct {
	d    *decoder
	o    override
	fail func(path, text string)
}

// set walks one part of the path down from node, whose values are of type t.
func (w overrideWalk) set(node *yaml.Node, t reflect.Type, at int, value *yaml.Node) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	for hops := 0; node.Kind == yaml.AliasNode && hops < 8; hops++ {
		node = node.Alias
	}
	part, path := w.o.path[at], strings.Join(w.o.path[:at+1], ".")
	last := at == len(w.o.path)-1
	switch {
	case t.Kind() == reflect.Struct && !isScalar(t):
		names := []string{}
		for _, m := range membersOf(t) {
			names = append(names, m.key)
			if m.key == part {
				w.descend(node, t, m.typ, part, at, last, value)
				return
			}
		}
		w.fail(path, "unknown key"+w.d.hintFor(part, names))
		w.d.unknownKey(strings.Join(w.o.path[:at], "."), part, names)
	case t.Kind() == reflect.Map || t.Kind() == reflect.Interface:
		elem := t
		if t.Kind() == reflect.Map {
			elem = t.Elem()
		}
		w.descend(node, t, elem, w.existing(node, part), at, last, value)
	case t.Kind() == reflect.Slice:
		w.index(node, t, part, path, at, last, value)
	default:
		w.fail(path, "unknown key; "+strings.Join(w.o.path[:at], ".")+" is a single value")
	}
}

// existing returns the key of node that equals part in any case, for variables
// whose names were folded.
func (w overrideWalk) existing(node *yaml.Node, part string) string {
	if w.o.fold && node.Kind == yaml.MappingNode {
		for i := 0; i+1 < len(node.Content); i += 2 {
			if strings.EqualFold(node.Content[i].Value, part) {
				return node.Content[i].Value
			}
		}
	}
	return part
}

// descend sets or enters a key of a mapping.
func (w overrideWalk) descend(node *yaml.Node, _, elem reflect.Type, key string, at int, last bool, value *yaml.Node) {
	if node.Kind != yaml.MappingNode {
		return // the decoder reports the wrong kind with its line
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		if node.Content[i].Value != key {
			continue
		}
		if last {
			node.Content[i+1] = value
			return
		}
		if c := node.Content[i+1]; c.Kind == yaml.ScalarNode && c.ShortTag() == "!!null" {
			node.Content[i+1] = w.container(elem)
		}
		w.set(node.Content[i+1], elem, at+1, value)
		return
	}
	k := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: key}
	w.d.sources[k] = w.o.source
	child := value
	if !last {
		child = w.container(elem)
	}
	node.Content = append(node.Content, k, child)
	if !last {
		w.set(child, elem, at+1, value)
	}
}

// container makes an empty list or mapping for values of type t.
func (w overrideWalk) container(t reflect.Type) *yaml.Node {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	n := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
	if t.Kind() == reflect.Slice {
		n = &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
	}
	w.d.sources[n] = w.o.source
	return n
}

// index sets or enters an element of a list; the index after the last appends.
func (w overrideWalk) index(node *yaml.Node, t reflect.Type, part, path string, at int, last bool, value *yaml.Node) {
	if node.Kind != yaml.SequenceNode {
		return
	}
	i, err := strconv.Atoi(part)
	if err != nil || i < 0 || i > len(node.Content) {
		w.fail(path, "want an index from 0 to "+strconv.Itoa(len(node.Content))+" (the next free one), got "+strconv.Quote(part))
		return
	}
	if i == len(node.Content) {
		node.Content = append(node.Content, w.container(t.Elem()))
	}
	if last {
		node.Content[i] = value
		return
	}
	w.set(node.Content[i], t.Elem(), at+1, value)
}
