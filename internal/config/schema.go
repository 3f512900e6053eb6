package config

import (
	"encoding/json"
	"reflect"

	"gopkg.in/yaml.v3"
)

// SchemaFile is the name that init gives the schema beside the starter file.
const SchemaFile = "trtship.schema.json"

// Schema returns the JSON schema (draft 7, which editors read) of the file.
func Schema() ([]byte, error) {
	s := schemaOf(reflect.TypeFor[Config](), nil)
	root := map[string]any{
		"$schema":     "http://json-schema.org/draft-07/schema#",
		"title":       "trtship.yaml",
		"description": "Configuration of trtship.",
		"required":    []string{"model"},
	}
	for k, v := range s {
		root[k] = v
	}
	b, err := json.MarshalIndent(root, "", "  ")
	return append(b, '\n'), err
}

func schemaOf(t reflect.Type, m *member) map[string]any {
	switch t {
	case dimType:
		return map[string]any{"oneOf": []any{
			map[string]any{"type": "integer", "minimum": 1, "maximum": maxDim},
			map[string]any{"type": "string", "pattern": symbolForm.String()},
		}}
	case scalarType:
		return map[string]any{"type": "number"}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return schemaOf(t.Elem(), m)
	case reflect.Struct:
		properties := map[string]any{}
		for _, m := range membersOf(t) {
			p := schemaOf(m.typ, &m)
			p["description"] = m.tag.Get("desc")
			if d := m.tag.Get("default"); d != "" {
				var v any
				if err := yaml.Unmarshal([]byte(d), &v); err == nil {
					if m.typ.Kind() == reflect.String {
						v = d
					}
					p["default"] = v
				}
			}
			properties[m.key] = p
		}
		return map[string]any{"type": []string{"object", "null"}, "additionalProperties": false, "properties": properties}
	case reflect.Slice:
		s := map[string]any{"type": []string{"array", "null"}, "items": schemaOf(t.Elem(), m)}
		if elem, _ := innermost(t); m != nil && m.unique() && t.Elem() == elem {
			s["uniqueItems"] = true
		}
		return s
	case reflect.Map:
		s := map[string]any{"type": []string{"object", "null"}, "additionalProperties": schemaOf(t.Elem(), m)}
		if m != nil && m.keys() != nil {
			s["propertyNames"] = map[string]any{"enum": m.keys()}
		}
		return s
	case reflect.Interface:
		return map[string]any{}
	}
	return plainSchema(t, m)
}

func plainSchema(t reflect.Type, m *member) map[string]any {
	out := map[string]any{}
	switch t.Kind() {
	case reflect.Bool:
		out["type"] = "boolean"
	case reflect.Int, reflect.Int64:
		out["type"] = "integer"
	case reflect.Float64:
		out["type"] = "number"
	default:
		// Numbers are taken by their spelling: version: 10.6 is text.
		out["type"] = []string{"string", "number"}
	}
	if m == nil {
		return out
	}
	if e := m.enum(); e != nil {
		out["type"], out["enum"] = "string", e
	}
	if b := m.bound("min"); b != nil {
		out["minimum"] = *b
	}
	if b := m.bound("max"); b != nil {
		out["maximum"] = *b
	}
	return out
}
