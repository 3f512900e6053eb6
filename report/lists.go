package report

import (
	"encoding"
	"encoding/json"
	"reflect"
	"sync"
)

// WithLists returns a copy of v in which every list and map that would be
// written as null is empty instead: a reader loops over what a command prints
// without asking first. Pointers and interfaces stay null, since there null
// means that there is none; values that write themselves stay as they are.
func WithLists(v any) any {
	if v == nil {
		return nil
	}
	out := reflect.New(reflect.TypeOf(v)).Elem()
	fill(out, reflect.ValueOf(v))
	return out.Interface()
}

var (
	jsonMarshaler = reflect.TypeFor[json.Marshaler]()
	textMarshaler = reflect.TypeFor[encoding.TextMarshaler]()
)

// nullable remembers mayBeNull by type.
var nullable sync.Map

// mayBeNull reports whether a value of a type can hold a list or a map that is
// written as null. Long lists of numbers need no copy.
func mayBeNull(t reflect.Type) bool {
	if known, ok := nullable.Load(t); ok {
		return known.(bool) //nolint:forcetypeassert // only bools are stored
	}
	nullable.Store(t, true) // a type that holds itself
	may := holdsList(t)
	nullable.Store(t, may)
	return may
}

func holdsList(t reflect.Type) bool {
	if t.Implements(jsonMarshaler) || t.Implements(textMarshaler) {
		return false
	}
	switch t.Kind() { //nolint:exhaustive // the others hold no list
	case reflect.Slice, reflect.Map, reflect.Interface:
		return true
	case reflect.Array, reflect.Pointer:
		return mayBeNull(t.Elem())
	case reflect.Struct:
		for i := range t.NumField() {
			if mayBeNull(t.Field(i).Type) {
				return true
			}
		}
	}
	return false
}

// fill sets to, which can be set and is of the same type, to a copy of from.
func fill(to, from reflect.Value) {
	to.Set(from)
	t := from.Type()
	if !mayBeNull(t) {
		return
	}
	switch from.Kind() { //nolint:exhaustive // the others hold no list
	case reflect.Slice:
		if !from.IsNil() && !mayBeNull(t.Elem()) {
			return
		}
		to.Set(reflect.MakeSlice(t, from.Len(), from.Len()))
		for i := range from.Len() {
			fill(to.Index(i), from.Index(i))
		}
	case reflect.Array:
		for i := range from.Len() {
			fill(to.Index(i), from.Index(i))
		}
	case reflect.Map:
		to.Set(reflect.MakeMapWithSize(t, from.Len()))
		for _, key := range from.MapKeys() {
			e := reflect.New(t.Elem()).Elem()
			fill(e, from.MapIndex(key))
			to.SetMapIndex(key, e)
		}
	case reflect.Pointer:
		if !from.IsNil() {
			to.Set(reflect.New(t.Elem()))
			fill(to.Elem(), from.Elem())
		}
	case reflect.Interface:
		if !from.IsNil() {
			e := reflect.New(from.Elem().Type()).Elem()
			fill(e, from.Elem())
			to.Set(e)
		}
	case reflect.Struct:
		for i := range from.NumField() {
			if f := t.Field(i); f.IsExported() || f.Anonymous && f.Type.Kind() == reflect.Struct {
				fillField(to.Field(i), from.Field(i))
			}
		}
	}
}

// fillField fills a field; of one that is embedded without being exported, the
// fields that it lends.
func fillField(to, from reflect.Value) {
	if to.CanSet() {
		fill(to, from)
		return
	}
	for i := range from.NumField() {
		if f := from.Type().Field(i); f.IsExported() || f.Anonymous && f.Type.Kind() == reflect.Struct {
			fillField(to.Field(i), from.Field(i))
		}
	}
}
