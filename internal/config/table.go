package config

import (
	"reflect"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"
)

// Field is one row of the table of settings.
type Field struct {
	Path    string // dotted; "[]" is any list element, "<name>" any map key
	Key     string // last part of Path
	Type    string // for people: text, integer, list of integer, ...
	Desc    string
	Default string // as YAML; empty if there is none
	Enum    []string
	Keys    []string // allowed keys of a map; nil means any
	Unit    string
	Input   bool     // an input path, relative to the file
	Unique  bool     // a list without repetition
	Min     *float64 // smallest value of a number or of a list's numbers
	Max     *float64
	Section bool // has fields of its own
	Depth   int
}

// Table returns every setting in the order of the file.
func Table() []Field {
	return tableOf(reflect.TypeFor[Config](), "", 0)
}

func tableOf(t reflect.Type, prefix string, depth int) []Field {
	var out []Field
	for _, m := range membersOf(t) {
		f := m.field(prefix, depth)
		elem, suffix := innermost(m.typ)
		f.Section = elem.Kind() == reflect.Struct && !isScalar(elem)
		out = append(out, f)
		if f.Section {
			out = append(out, tableOf(elem, f.Path+suffix, depth+1)...)
		}
	}
	return out
}

// member is a field of a struct that has a key of its own.
type member struct {
	key   string
	index []int
	typ   reflect.Type
	tag   reflect.StructTag
}

// membersOf lists the keys of a struct, with those of inlined structs in place.
func membersOf(t reflect.Type) []member {
	var out []member
	for i := range t.NumField() {
		sf := t.Field(i)
		name, options, _ := strings.Cut(sf.Tag.Get("yaml"), ",")
		switch {
		case options == "inline":
			for _, m := range membersOf(sf.Type) {
				m.index = append([]int{i}, m.index...)
				out = append(out, m)
			}
		case name != "" && name != "-":
			out = append(out, member{key: name, index: []int{i}, typ: sf.Type, tag: sf.Tag})
		}
	}
	return out
}

func (m member) enum() []string {
	return splitTag(m.tag.Get("enum"))
}

func (m member) keys() []string {
	return splitTag(m.tag.Get("keys"))
}

// unique reports whether a list holds every value once.
func (m member) unique() bool { return m.tag.Get("unique") != "" || m.enum() != nil }

func splitTag(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, "|")
}

// bound returns the number of the tag min or max, nil without one.
func (m member) bound(tag string) *float64 {
	s, ok := m.tag.Lookup(tag)
	if !ok {
		return nil
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil {
		panic("config: bad " + tag + " of " + m.key + ": " + s)
	}
	return &f
}

func (m member) field(prefix string, depth int) Field {
	path := m.key
	if prefix != "" {
		path = prefix + "." + m.key
	}
	return Field{
		Path: path, Key: m.key, Type: typeName(m.typ), Desc: m.tag.Get("desc"), Default: m.tag.Get("default"),
		Enum: m.enum(), Keys: m.keys(), Unit: m.tag.Get("unit"), Input: m.tag.Get("path") == "input",
		Min: m.bound("min"), Max: m.bound("max"), Unique: m.tag.Get("unique") != "", Depth: depth,
	}
}

// innermost strips pointers, lists and maps off a type, and says how a path
// gets there.
func innermost(t reflect.Type) (reflect.Type, string) {
	suffix := ""
	for {
		switch t.Kind() {
		case reflect.Pointer:
			t = t.Elem()
		case reflect.Slice:
			t, suffix = t.Elem(), suffix+".[]"
		case reflect.Map:
			t, suffix = t.Elem(), suffix+".<name>"
		default:
			return t, suffix
		}
	}
}

var (
	dimType    = reflect.TypeFor[Dim]()
	scalarType = reflect.TypeFor[Scalar]()
)

func isScalar(t reflect.Type) bool { return t == dimType || t == scalarType }

// typeName names a type for people.
func typeName(t reflect.Type) string {
	switch {
	case t == dimType:
		return "integer or name"
	case t == scalarType:
		return "number"
	}
	switch t.Kind() {
	case reflect.Pointer:
		return typeName(t.Elem())
	case reflect.Slice:
		return "list of " + typeName(t.Elem())
	case reflect.Map:
		return "map of " + typeName(t.Elem())
	case reflect.Struct:
		return "section"
	case reflect.String:
		return "text"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int64:
		return "integer"
	case reflect.Float64:
		return "number"
	case reflect.Interface:
		return "any value"
	}
	panic("config: no name for " + t.String())
}

// Defaults returns a configuration that holds nothing but defaults.
func Defaults() *Config {
	c := new(Config)
	fillDefaults(reflect.ValueOf(c).Elem())
	return c
}

// fillDefaults sets every field of a struct that has a default; pointers to
// structs stay nil, for an absent section is absent.
func fillDefaults(v reflect.Value) {
	for _, m := range membersOf(v.Type()) {
		f := v.FieldByIndex(m.index)
		if f.Kind() == reflect.Struct && !isScalar(f.Type()) {
			fillDefaults(f)
			continue
		}
		text := m.tag.Get("default")
		if text == "" {
			continue
		}
		var n yaml.Node
		if err := yaml.Unmarshal([]byte(text), &n); err != nil {
			panic("config: default of " + m.key + ": " + err.Error())
		}
		d := &decoder{}
		d.value(f, n.Content[0], m.key, &m)
		if len(d.problems) > 0 {
			panic("config: default of " + m.key + ": " + d.problems[0].Text)
		}
	}
}
