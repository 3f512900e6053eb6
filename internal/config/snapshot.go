package config

import (
	"bytes"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"
)

// Snapshot returns the resolved configuration as YAML in the order of the
// table: equal configurations give equal bytes. Values that are not set and have
// no default are left out; input paths are relative to base (absolute where
// they lie outside of it, or everywhere if base is empty).
func (c *Config) Snapshot(base string) ([]byte, error) {
	n, err := snapshotOf(reflect.ValueOf(c).Elem(), base)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(n); err != nil {
		return nil, fmt.Errorf("write configuration: %w", err)
	}
	return b.Bytes(), enc.Close()
}

func snapshotOf(v reflect.Value, base string) (*yaml.Node, error) {
	out := &yaml.Node{Kind: yaml.MappingNode}
	for _, m := range membersOf(v.Type()) {
		f := v.FieldByIndex(m.index)
		if omitted(f, m) {
			continue
		}
		if m.tag.Get("path") == "input" && base != "" {
			f = relativeCopy(f, base)
		}
		n, err := nodeOf(f, base)
		if err != nil {
			return nil, err
		}
		if n.Kind == yaml.MappingNode && len(n.Content) == 0 && f.Kind() == reflect.Struct {
			continue
		}
		out.Content = append(out.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: m.key}, n)
	}
	return out, nil
}

// omitted reports whether a value is unset: nil, or empty without a default.
func omitted(f reflect.Value, m member) bool {
	switch f.Kind() {
	case reflect.Pointer:
		return f.IsNil()
	case reflect.Slice, reflect.Map:
		return f.Len() == 0 && m.tag.Get("default") == ""
	case reflect.String:
		return f.String() == ""
	}
	return false
}

func nodeOf(v reflect.Value, base string) (*yaml.Node, error) {
	if isScalar(v.Type()) {
		n := new(yaml.Node)
		return n, n.Encode(v.Interface())
	}
	switch v.Kind() {
	case reflect.Pointer:
		return nodeOf(v.Elem(), base)
	case reflect.Struct:
		return snapshotOf(v, base)
	case reflect.Slice:
		return listNode(v, base)
	case reflect.Map:
		if v.Type().Elem().Kind() == reflect.Interface {
			break // the encoder sorts keys
		}
		out := &yaml.Node{Kind: yaml.MappingNode}
		keys := make([]string, 0, v.Len())
		for _, k := range v.MapKeys() {
			keys = append(keys, k.String())
		}
		slices.Sort(keys)
		for _, k := range keys {
			n, err := nodeOf(v.MapIndex(reflect.ValueOf(k)), base)
			if err != nil {
				return nil, err
			}
			key := new(yaml.Node)
			if err := key.Encode(k); err != nil {
				return nil, err
			}
			out.Content = append(out.Content, key, n)
		}
		return out, nil
	}
	n := new(yaml.Node)
	return n, n.Encode(v.Interface())
}

func listNode(v reflect.Value, base string) (*yaml.Node, error) {
	out := &yaml.Node{Kind: yaml.SequenceNode}
	flat := true
	for i := range v.Len() {
		n, err := nodeOf(v.Index(i), base)
		if err != nil {
			return nil, err
		}
		flat = flat && n.Kind == yaml.ScalarNode
		out.Content = append(out.Content, n)
	}
	if flat {
		out.Style = yaml.FlowStyle
	}
	return out, nil
}

// relativeCopy returns a copy of a path, list or map of paths relative to base.
func relativeCopy(f reflect.Value, base string) reflect.Value {
	rel := func(s string) string {
		r, err := filepath.Rel(base, s)
		if s == "" || err != nil || r == ".." || strings.HasPrefix(r, "../") {
			return s
		}
		return filepath.ToSlash(r)
	}
	switch f.Kind() {
	case reflect.Slice:
		out := reflect.MakeSlice(f.Type(), f.Len(), f.Len())
		for i := range f.Len() {
			out.Index(i).SetString(rel(f.Index(i).String()))
		}
		return out
	case reflect.Map:
		out := reflect.MakeMap(f.Type())
		for _, k := range f.MapKeys() {
			out.SetMapIndex(k, reflect.ValueOf(rel(f.MapIndex(k).String())))
		}
		return out
	default:
		return reflect.ValueOf(rel(f.String()))
	}
}
