package pbtxt

import (
	"fmt"
	"math"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/trtship/trtship/internal/triton/tritonpb"
)

// Write returns a configuration as text: fields in the schema's order, map
// entries by key. Equal messages give equal bytes.
func Write(c *tritonpb.ModelConfig) string {
	var w writer
	w.message(c.ProtoReflect(), 0)
	return w.b.String()
}

type writer struct{ b strings.Builder }

func (w *writer) line(depth int, text string) {
	w.b.WriteString(strings.Repeat("  ", depth))
	w.b.WriteString(text)
	w.b.WriteByte('\n')
}

func (w *writer) message(m protoreflect.Message, depth int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		if m.Has(fd) {
			w.field(fd, m.Get(fd), depth)
		}
	}
}

func (w *writer) field(fd protoreflect.FieldDescriptor, v protoreflect.Value, depth int) {
	name := string(fd.Name())
	switch {
	case fd.IsMap():
		w.entries(fd, v.Map(), depth)
	case fd.IsList() && fd.Message() != nil:
		w.line(depth, name+" [")
		for i := range v.List().Len() {
			w.line(depth+1, "{")
			w.message(v.List().Get(i).Message(), depth+2)
			comma := ","
			if i == v.List().Len()-1 {
				comma = ""
			}
			w.line(depth+1, "}"+comma)
		}
		w.line(depth, "]")
	case fd.IsList():
		items := make([]string, v.List().Len())
		for i := range items {
			items[i] = scalarText(fd, v.List().Get(i))
		}
		w.line(depth, name+": [ "+strings.Join(items, ", ")+" ]")
	case fd.Message() != nil:
		w.block(name, v.Message(), depth)
	default:
		w.line(depth, name+": "+scalarText(fd, v))
	}
}

func (w *writer) block(name string, m protoreflect.Message, depth int) {
	empty := true
	m.Range(func(protoreflect.FieldDescriptor, protoreflect.Value) bool { empty = false; return false })
	if empty {
		w.line(depth, name+" { }")
		return
	}
	w.line(depth, name+" {")
	w.message(m, depth+1)
	w.line(depth, "}")
}

func (w *writer) entries(fd protoreflect.FieldDescriptor, m protoreflect.Map, depth int) {
	var keys []protoreflect.MapKey
	m.Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool { keys = append(keys, k); return true })
	sort.Slice(keys, func(i, j int) bool {
		if a, ok := keys[i].Interface().(uint64); ok {
			return a < keys[j].Uint()
		}
		return keys[i].String() < keys[j].String()
	})
	for _, k := range keys {
		w.line(depth, string(fd.Name())+" {")
		w.line(depth+1, "key: "+scalarText(fd.MapKey(), k.Value()))
		w.field(fd.MapValue(), m.Get(k), depth+1)
		w.line(depth, "}")
	}
}

func scalarText(fd protoreflect.FieldDescriptor, v protoreflect.Value) string {
	switch fd.Kind() {
	case protoreflect.StringKind:
		return quoteText(v.String())
	case protoreflect.EnumKind:
		if d := fd.Enum().Values().ByNumber(v.Enum()); d != nil {
			return string(d.Name())
		}
		return strconv.Itoa(int(v.Enum()))
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		bits := 64
		if fd.Kind() == protoreflect.FloatKind {
			bits = 32
		}
		switch f := v.Float(); {
		case math.IsNaN(f):
			return "nan"
		case math.IsInf(f, 0):
			return strings.TrimPrefix(strings.ToLower(strconv.FormatFloat(f, 'g', -1, 64)), "+")
		default:
			return strconv.FormatFloat(f, 'g', -1, bits)
		}
	}
	return fmt.Sprint(v.Interface())
}

// quoteText writes a string as protobuf text: UTF-8 stays, control characters
// and bytes that are no UTF-8 become octal escapes.
func quoteText(s string) string {
	b := []byte{'"'}
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == '\n':
			b = append(b, `\n`...)
		case r == '\t':
			b = append(b, `\t`...)
		case r == '\r':
			b = append(b, `\r`...)
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r < ' ' || r == 0x7f || r == utf8.RuneError && n == 1:
			b = fmt.Appendf(b, `\%03o`, s[i])
		default:
			b = append(b, s[i:i+n]...)
		}
		i += n
	}
	return string(append(b, '"'))
}
