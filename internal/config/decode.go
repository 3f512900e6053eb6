package config

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"
)

// Bounds that keep a hostile file from costing more than its size.
const (
	maxFileBytes = 4 << 20
	maxNodes     = 200_000
	maxDepth     = 64
)

// decoder fills structs from YAML nodes and gathers every mistake.
type decoder struct {
	file     string
	sources  map[*yaml.Node]string // where nodes came from that are not from the file
	places   map[string]*yaml.Node // the value of each key that was set, by dotted path
	problems Problems
	meant    []string        // keys that unknown ones were taken for; they are not missing
	strange  map[string]bool // sections with a key that nobody knows
	broken   map[string]bool // paths of the problems that decoding found
	visited  int
	depth    int
}

func (d *decoder) where(n *yaml.Node) string {
	if s, ok := d.sources[n]; ok {
		return s
	}
	file := d.file
	if file == "" {
		file = "config"
	}
	return fmt.Sprintf("%s:%d:%d", file, n.Line, n.Column)
}

func (d *decoder) bad(n *yaml.Node, path, format string, args ...any) {
	p := Problem{Where: d.where(n), Path: path, Text: fmt.Sprintf(format, args...)}
	if _, other := d.sources[n]; !other {
		p.Line, p.Column = n.Line, n.Column
	}
	d.problems = append(d.problems, p)
}

// enter counts a node and follows aliases; it returns nil where the file is
// refused as a whole.
func (d *decoder) enter(n *yaml.Node, path string) *yaml.Node {
	for hops := 0; n.Kind == yaml.AliasNode; hops++ {
		if hops > 8 || n.Alias == nil {
			d.bad(n, path, "alias leads nowhere")
			return nil
		}
		n = n.Alias
	}
	d.visited++
	if d.visited > maxNodes || d.depth > maxDepth {
		if d.visited <= maxNodes+1 || d.depth == maxDepth+1 {
			d.bad(n, path, "the file expands to more than %d values or %d levels; aliases are nested too deep", maxNodes, maxDepth)
		}
		d.visited = maxNodes + 2
		return nil
	}
	return n
}

// value decodes n into v. m carries the tags of the field that v belongs to.
func (d *decoder) value(v reflect.Value, n *yaml.Node, path string, m *member) {
	n = d.enter(n, path)
	if n == nil {
		return
	}
	d.depth++
	defer func() { d.depth-- }()
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" {
		d.null(v, n, path)
		return
	}
	switch {
	case v.Type() == dimType:
		d.dim(v, n, path)
		return
	case v.Type() == scalarType:
		d.scalar(v, n, path)
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		p := reflect.New(v.Type().Elem())
		if p.Elem().Kind() == reflect.Struct {
			fillDefaults(p.Elem())
		}
		v.Set(p)
		d.value(p.Elem(), n, path, m)
	case reflect.Struct:
		d.structure(v, n, path)
	case reflect.Slice:
		d.list(v, n, path, m)
	case reflect.Map:
		d.mapping(v, n, path, m)
	case reflect.Interface:
		if x, ok := d.free(n, path); ok && x != nil {
			v.Set(reflect.ValueOf(x))
		}
	default:
		d.plain(v, n, path, m)
	}
}

// null leaves sections, lists and maps at their defaults, so that a section may
// have all of its lines commented out.
func (d *decoder) null(v reflect.Value, n *yaml.Node, path string) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Struct, reflect.Slice, reflect.Map, reflect.Interface:
		if !isScalar(v.Type()) {
			return
		}
	default:
	}
	d.bad(n, path, "is empty; give a value or remove the key")
}

func (d *decoder) structure(v reflect.Value, n *yaml.Node, path string) {
	if n.Kind != yaml.MappingNode {
		d.bad(n, path, "want a section with keys, got %s", describe(n))
		return
	}
	members := membersOf(v.Type())
	names := make([]string, len(members))
	for i, m := range members {
		names[i] = m.key
	}
	d.pairs(n, path, func(key, value *yaml.Node) {
		i := slices.Index(names, key.Value)
		if i < 0 {
			d.bad(key, join(path, key.Value), "unknown key%s", d.hintFor(key.Value, names))
			d.unknownKey(path, key.Value, names)
			return
		}
		d.note(join(path, key.Value), value, key)
		d.value(v.FieldByIndex(members[i].index), value, join(path, key.Value), &members[i])
	})
}

// unknownKey notes which key an unknown one of a section stands for, or that it
// may stand for any.
func (d *decoder) unknownKey(section, key string, names []string) {
	if near := nearest(key, names); near != "" {
		d.meant = append(d.meant, join(section, near))
		return
	}
	if d.strange == nil {
		d.strange = map[string]bool{}
	}
	d.strange[section] = true
}

// hintFor suggests a key of the same section, else the section where the key
// does exist.
func (d *decoder) hintFor(key string, names []string) string {
	if near := nearest(key, names); near != "" {
		return "; did you mean " + near + "?"
	}
	for _, f := range Table() {
		if f.Key == key {
			return "; it belongs to " + f.Path
		}
	}
	return didYouMean(key, names)
}

func (d *decoder) note(path string, value, key *yaml.Node) {
	if d.places == nil {
		return
	}
	at := value
	if value.Kind == yaml.MappingNode || value.Kind == yaml.AliasNode {
		at = key
	}
	d.places[path] = at
}

// pairs calls f for each key of a mapping, once, and refuses duplicates.
func (d *decoder) pairs(n *yaml.Node, path string, f func(key, value *yaml.Node)) {
	first := map[string]*yaml.Node{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		switch {
		case key.Kind != yaml.ScalarNode:
			d.bad(key, path, "a key must be plain text")
			continue
		case key.ShortTag() == "!!merge":
			d.bad(key, path, "merge keys (<<) are not read; write the keys out")
			continue
		}
		if before, ok := first[key.Value]; ok {
			d.bad(key, join(path, key.Value), "given twice; first in line %d", before.Line)
			continue
		}
		first[key.Value] = key
		f(key, n.Content[i+1])
	}
}

func (d *decoder) list(v reflect.Value, n *yaml.Node, path string, m *member) {
	if n.Kind != yaml.SequenceNode {
		d.bad(n, path, "want a list, got %s", describe(n))
		return
	}
	out := reflect.MakeSlice(v.Type(), 0, min(len(n.Content), 64))
	seen := map[string]bool{}
	for i, c := range n.Content {
		e := reflect.New(v.Type().Elem()).Elem()
		if e.Kind() == reflect.Struct && !isScalar(e.Type()) {
			fillDefaults(e)
		}
		at := join(path, strconv.Itoa(i))
		d.note(at, c, c)
		d.value(e, c, at, m)
		if m != nil && m.unique() && isPlain(e) {
			value := fmt.Sprint(e.Interface()) // 16 and 0x10 are one number
			if seen[value] {
				d.bad(c, at, "%s is listed twice", clip(value))
			}
			seen[value] = true
		}
		out = reflect.Append(out, e)
	}
	v.Set(out)
}

// isPlain reports whether a value is text or a number.
func isPlain(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.String, reflect.Int, reflect.Int64, reflect.Float64:
		return true
	}
	return false
}

func (d *decoder) mapping(v reflect.Value, n *yaml.Node, path string, m *member) {
	if n.Kind != yaml.MappingNode {
		d.bad(n, path, "want keys with values, got %s", describe(n))
		return
	}
	out := reflect.MakeMap(v.Type())
	d.pairs(n, path, func(key, value *yaml.Node) {
		at := join(path, key.Value)
		if key.Value == "" {
			d.bad(key, path, "a key is empty")
			return
		}
		if m != nil && m.keys() != nil && !slices.Contains(m.keys(), key.Value) {
			d.bad(key, at, "unknown key%s", didYouMean(key.Value, m.keys()))
			return
		}
		e := reflect.New(v.Type().Elem()).Elem()
		if e.Kind() == reflect.Struct {
			fillDefaults(e)
		}
		d.note(at, value, key)
		inner := m
		if e.Kind() == reflect.Struct {
			inner = nil
		}
		d.value(e, value, at, inner)
		out.SetMapIndex(reflect.ValueOf(key.Value), e)
	})
	v.Set(out)
}

// plain decodes text, numbers and booleans.
func (d *decoder) plain(v reflect.Value, n *yaml.Node, path string, m *member) {
	if n.Kind != yaml.ScalarNode {
		d.bad(n, path, "want %s, got %s", typeName(v.Type()), describe(n))
		return
	}
	tag := n.ShortTag()
	switch v.Kind() {
	case reflect.String:
		d.text(v, n, path, m)
	case reflect.Bool:
		if tag != "!!bool" {
			d.bad(n, path, "want true or false, got %s", describe(n))
			return
		}
		v.SetBool(strings.EqualFold(n.Value, "true"))
	case reflect.Int, reflect.Int64:
		i, err := strconv.ParseInt(n.Value, 0, 64)
		if tag != "!!int" || err != nil {
			d.bad(n, path, "want an integer, got %s", describe(n))
			return
		}
		v.SetInt(i)
		d.bounds(float64(i), n, path, m)
	case reflect.Float64:
		f, err := strconv.ParseFloat(n.Value, 64)
		if (tag != "!!int" && tag != "!!float") || err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
			d.bad(n, path, "want a finite number, got %s", describe(n))
			return
		}
		v.SetFloat(f)
		d.bounds(f, n, path, m)
	default:
		panic("config: cannot decode " + v.Type().String())
	}
}

// text takes numbers by their spelling, so that 10.10 stays "10.10".
func (d *decoder) text(v reflect.Value, n *yaml.Node, path string, m *member) {
	switch n.ShortTag() {
	case "!!str", "!!int", "!!float", "!!timestamp":
	default:
		d.bad(n, path, "want text, got %s; put it in quotes", describe(n))
		return
	}
	if strings.ContainsRune(n.Value, 0) {
		d.bad(n, path, "text holds a zero byte")
		return
	}
	if m != nil && m.enum() != nil && !slices.Contains(m.enum(), n.Value) {
		d.bad(n, path, "%q is not one of %s%s", n.Value, strings.Join(m.enum(), ", "), onlyNear(n.Value, m.enum()))
		return
	}
	v.SetString(n.Value)
}

func onlyNear(got string, names []string) string {
	if near := nearest(got, names); near != "" {
		return "; did you mean " + near + "?"
	}
	return ""
}

func (d *decoder) bounds(f float64, n *yaml.Node, path string, m *member) {
	if m == nil {
		return
	}
	lo, hi := m.bound("min"), m.bound("max")
	switch {
	case lo != nil && hi != nil && (f < *lo || f > *hi):
		d.bad(n, path, "%s is not between %s and %s", clip(n.Value), plainNumber(*lo), plainNumber(*hi))
	case lo != nil && f < *lo:
		d.bad(n, path, "%s is below %s", clip(n.Value), plainNumber(*lo))
	case hi != nil && f > *hi:
		d.bad(n, path, "%s is above %s", clip(n.Value), plainNumber(*hi))
	}
}

// plainNumber writes a bound as people do: 2147483647, not 2.147483647e+09.
func plainNumber(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

// maxDim is the largest size of a dimension, as in TensorRT.
const maxDim = math.MaxInt32

var symbolForm = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

func (d *decoder) dim(v reflect.Value, n *yaml.Node, path string) {
	if n.Kind != yaml.ScalarNode {
		d.bad(n, path, "want an integer or a name, got %s", describe(n))
		return
	}
	switch n.ShortTag() {
	case "!!int":
		i, err := strconv.ParseInt(n.Value, 0, 64)
		if errors.Is(err, strconv.ErrRange) && !strings.HasPrefix(n.Value, "-") {
			d.bad(n, path, "size %s is above %d", clip(n.Value), maxDim)
			return
		}
		if err != nil || i < 1 {
			d.bad(n, path, "size %s is below 1; a dynamic dimension is a name, such as batch", n.Value)
			return
		}
		if i > maxDim {
			d.bad(n, path, "size %s is above %d", clip(n.Value), maxDim)
			return
		}
		v.Set(reflect.ValueOf(Dim{Size: i}))
	case "!!str":
		if !symbolForm.MatchString(n.Value) {
			d.bad(n, path, "%q is no name for a dimension; use letters, digits and underscores", n.Value)
			return
		}
		v.Set(reflect.ValueOf(Dim{Symbol: n.Value}))
	default:
		d.bad(n, path, "want an integer or a name, got %s", describe(n))
	}
}

func (d *decoder) scalar(v reflect.Value, n *yaml.Node, path string) {
	tag := n.ShortTag()
	if n.Kind != yaml.ScalarNode || (tag != "!!int" && tag != "!!float") {
		d.bad(n, path, "want a number, got %s", describe(n))
		return
	}
	if f, err := strconv.ParseFloat(n.Value, 64); tag == "!!float" && (err != nil || math.IsNaN(f) || math.IsInf(f, 0)) {
		d.bad(n, path, "want a finite number, got %s", describe(n))
		return
	}
	v.SetString(n.Value)
}

// free decodes a value without a declared type: null, booleans, numbers, text,
// lists and maps of them.
func (d *decoder) free(n *yaml.Node, path string) (any, bool) {
	n = d.enter(n, path)
	if n == nil {
		return nil, false
	}
	d.depth++
	defer func() { d.depth-- }()
	switch n.Kind {
	case yaml.MappingNode:
		out := map[string]any{}
		d.pairs(n, path, func(key, value *yaml.Node) {
			if x, ok := d.free(value, join(path, key.Value)); ok {
				out[key.Value] = x
			}
		})
		return out, true
	case yaml.SequenceNode:
		out := make([]any, 0, min(len(n.Content), 64))
		for i, c := range n.Content {
			if x, ok := d.free(c, join(path, strconv.Itoa(i))); ok {
				out = append(out, x)
			}
		}
		return out, true
	}
	var x any
	if err := n.Decode(&x); err != nil {
		d.bad(n, path, "cannot read %s", describe(n))
		return nil, false
	}
	switch x := x.(type) {
	case nil, bool, string, int, int64:
		return x, true
	case float64:
		if !math.IsNaN(x) && !math.IsInf(x, 0) {
			return x, true
		}
	case uint64:
		if x <= math.MaxInt64 {
			return int64(x), true
		}
	}
	d.bad(n, path, "want a finite number, text, true, false, a list or keys, got %s", describe(n))
	return nil, false
}

// describe names a value for an error.
func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "keys with values"
	case yaml.SequenceNode:
		return "a list"
	case yaml.ScalarNode:
		switch n.ShortTag() {
		case "!!null":
			return "nothing"
		case "!!str":
			return fmt.Sprintf("text %q", clip(n.Value))
		default:
			return clip(n.Value)
		}
	}
	return "something else"
}

func clip(s string) string {
	if len(s) > 80 {
		return strings.ToValidUTF8(s[:77], "") + "..."
	}
	return s
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}
