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

// Document is a configuration that was read, as far as it could be.
type Document struct {
	Config   *tritonpb.ModelConfig
	Problems []Problem
	places   map[string]Pos
	unread   map[string]bool
}

// Parse reads a configuration. It never fails: what is wrong is in Problems, and
// everything else is in Config.
func Parse(text string) *Document {
	fields, problems := parseText(text)
	b := &binder{places: map[string]Pos{}, unread: map[string]bool{}, problems: problems}
	d := &Document{Config: &tritonpb.ModelConfig{}, places: b.places, unread: b.unread}
	b.message(d.Config.ProtoReflect(), fields, "")
	sort.SliceStable(b.problems, func(i, j int) bool { return b.problems[i].Pos.before(b.problems[j].Pos) })
	d.Problems = b.problems
	return d
}

// Fatal reports whether Triton's own parser refuses the text.
func (d *Document) Fatal() bool {
	for _, p := range d.Problems {
		switch p.Kind {
		case KindMapKey, KindNewer, KindPlaceholderText:
		default:
			return true
		}
	}
	return false
}

// At returns the place of a field by its path, such as input[0].dims, or that of
// the nearest enclosing one that is there; the start if none is.
func (d *Document) At(path string) Pos {
	for path != "" {
		if p, ok := d.places[path]; ok {
			return p
		}
		path = path[:max(strings.LastIndexAny(path, ".["), 0)]
	}
	return Pos{1, 1}
}

// Has reports whether a field was written.
func (d *Document) Has(path string) bool { _, ok := d.places[path]; return ok }

// Unread reports whether a field was written, but its value could not be read.
func (d *Document) Unread(path string) bool { return d.unread[path] }

type binder struct {
	places   map[string]Pos
	unread   map[string]bool
	problems []Problem
}

func (b *binder) problem(pos Pos, kind, hint, format string, args ...any) {
	b.problems = append(b.problems, Problem{Pos: pos, Kind: kind, Text: fmt.Sprintf(format, args...), Hint: hint})
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// message sets the fields of m.
func (b *binder) message(m protoreflect.Message, fields []field, path string) {
	seen := map[string]Pos{}
	chosen := map[string]string{} // oneof: member
	for _, f := range fields {
		fd := m.Descriptor().Fields().ByName(protoreflect.Name(f.name))
		if fd == nil {
			b.unknown(m.Descriptor(), f)
			continue
		}
		if !b.once(fd, f, seen, chosen) {
			continue
		}
		if newer[fd.FullName()] {
			b.problem(f.pos, KindNewer, "", "%s is newer than server 2.51: an older server refuses the whole file", f.name)
		}
		b.set(m, fd, f, join(path, f.name))
	}
}

// newer lists fields of the published schema that server 2.51 does not know.
var newer = map[protoreflect.FullName]bool{
	"inference.ModelConfig.model_metrics":             true,
	"inference.ModelEnsembling.max_inflight_requests": true,
}

// once refuses a second value of a field that has one.
func (b *binder) once(fd protoreflect.FieldDescriptor, f field, seen map[string]Pos, chosen map[string]string) bool {
	if fd.IsList() || fd.IsMap() {
		return true
	}
	if first, ok := seen[f.name]; ok {
		b.problem(f.pos, KindTwice, "keep one", "%s was already given at %s; Triton's parser refuses the second", f.name, first)
		return false
	}
	seen[f.name] = f.pos
	if one := fd.ContainingOneof(); one != nil {
		name := string(one.Name())
		if other, ok := chosen[name]; ok {
			b.problem(f.pos, KindChoice, "keep one of the two", "%s and %s are one choice (%s): only one may be given", f.name, other, name)
			return false
		}
		chosen[name] = f.name
	}
	return true
}

func (b *binder) set(m protoreflect.Message, fd protoreflect.FieldDescriptor, f field, path string) {
	if !f.colon && fd.Message() == nil {
		b.problem(f.pos, KindColon, fmt.Sprintf("write %s: ...", f.name), "%s needs ':' before its value", f.name)
	}
	switch {
	case fd.IsMap():
		b.setMap(m.Mutable(fd).Map(), fd, f, path)
	case fd.IsList():
		values := []node{f.value}
		if f.value.kind == list {
			values = f.value.list
		}
		l := m.Mutable(fd).List()
		b.places[path] = f.pos
		for _, v := range values {
			b.places[fmt.Sprintf("%s[%d]", path, l.Len())] = v.pos
			if value, ok := b.value(l.NewElement, fd, v, fmt.Sprintf("%s[%d]", path, l.Len())); ok {
				l.Append(value)
			}
		}
	default:
		b.places[path] = f.pos
		v := f.value
		if v.kind == list {
			if fd.Message() != nil {
				b.problem(v.pos, KindType, fmt.Sprintf("write %s { ... }", f.name), "%s is one message, not a list", f.name)
			} else {
				b.problem(v.pos, KindType, "write the value without [ ]", "%s is one value, not a list", f.name)
			}
			if len(v.list) == 0 {
				return
			}
			v = v.list[0]
		}
		if value, ok := b.value(func() protoreflect.Value { return m.NewField(fd) }, fd, v, path); ok {
			m.Set(fd, value)
		} else {
			b.unread[path] = true
		}
	}
}

// setMap adds the entries of a map field: messages with key and value.
func (b *binder) setMap(into protoreflect.Map, fd protoreflect.FieldDescriptor, f field, path string) {
	entries := []node{f.value}
	if f.value.kind == list {
		entries = f.value.list
	}
	b.places[path] = f.pos
	for _, e := range entries {
		if e.kind != message {
			b.problem(e.pos, KindType, fmt.Sprintf(`write %s { key: "..." value: ... }`, f.name), "%s is a map: its entries have key and value, found %s", f.name, e.what())
			continue
		}
		var key protoreflect.Value
		value, hasKey, hasValue := into.NewValue(), false, false
		for _, entry := range e.fields {
			switch entry.name {
			case "key":
				key, hasKey = b.value(nil, fd.MapKey(), entry.value, path+".key")
			case "value":
				name := path
				if hasKey {
					name = fmt.Sprintf("%s[%s]", path, key.String())
				}
				b.places[name] = entry.pos
				value, hasValue = b.value(into.NewValue, fd.MapValue(), entry.value, name)
			default:
				b.problem(entry.pos, KindField, "an entry has key and value", "no field %q in an entry of %s", entry.name, f.name)
			}
		}
		if !hasKey {
			key = fd.MapKey().Default()
		}
		if !hasValue {
			value = into.NewValue()
		}
		if into.Has(key.MapKey()) {
			b.problem(e.pos, KindMapKey, "", "%s has the key %s twice; the last one wins", f.name, quoteText(key.String()))
		}
		into.Set(key.MapKey(), value)
	}
}

// value makes the value of one element.
func (b *binder) value(fresh func() protoreflect.Value, fd protoreflect.FieldDescriptor, n node, path string) (protoreflect.Value, bool) {
	name := string(fd.Name())
	if n.bad {
		return protoreflect.Value{}, false
	}
	if n.trailing != nil {
		if fd.Message() != nil && fd.Message().Fields().ByName(protoreflect.Name(n.text)) != nil {
			b.problem(n.pos, KindType, fmt.Sprintf("write %s { %s { ... } }", name, n.text), "%s is a message that holds %s { ... }, and needs braces of its own", name, n.text)
			v := fresh()
			b.message(v.Message(), []field{{name: n.text, pos: n.pos, colon: true, value: *n.trailing}}, path)
			return v, true
		}
		b.problem(n.trailing.pos, KindSyntax, "", "want the name of a field, found '{'")
	}
	if fd.Message() != nil {
		if n.kind != message {
			b.problem(n.pos, KindType, fmt.Sprintf("write %s { ... }", name), "%s is a message, found %s", name, n.what())
			return protoreflect.Value{}, false
		}
		v := fresh()
		b.message(v.Message(), n.fields, path)
		return v, true
	}
	if n.kind != scalar {
		b.problem(n.pos, KindType, "", "%s is %s, found %s", name, typeName(fd), n.what())
		return protoreflect.Value{}, false
	}
	return b.scalar(fd, n)
}

func typeName(fd protoreflect.FieldDescriptor) string {
	switch fd.Kind() {
	case protoreflect.StringKind:
		return "a string"
	case protoreflect.BoolKind:
		return "true or false"
	case protoreflect.EnumKind:
		return "a value of " + string(fd.Enum().Name())
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		return "a number"
	}
	return "an integer"
}

func (b *binder) scalar(fd protoreflect.FieldDescriptor, n node) (protoreflect.Value, bool) {
	switch fd.Kind() {
	case protoreflect.StringKind, protoreflect.BytesKind:
		return b.text(fd, n)
	case protoreflect.BoolKind:
		return b.boolean(fd, n)
	case protoreflect.EnumKind:
		return b.enum(fd, n)
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		return b.float(fd, n)
	}
	return b.integer(fd, n)
}

func (b *binder) text(fd protoreflect.FieldDescriptor, n node) (protoreflect.Value, bool) {
	if !n.string {
		b.problem(n.pos, KindUnquoted, fmt.Sprintf("write %s: %s", fd.Name(), quoteText(n.text)), "%s is a string and must be in quotes, found %s", fd.Name(), n.text)
	} else if i := strings.Index(n.text, "${"); i >= 0 && strings.Contains(n.text[i:], "}") {
		b.problem(n.pos, KindPlaceholderText, "write the value", "%s holds the template placeholder %s, which was never filled", fd.Name(), n.text)
	}
	if fd.Kind() == protoreflect.BytesKind {
		return protoreflect.ValueOfBytes([]byte(n.text)), true
	}
	text := n.text
	if !utf8.ValidString(text) {
		// Escapes can make any byte; of a byte of the file itself the lexer has spoken.
		b.problem(n.pos, KindEncoding, "write the characters themselves, in UTF-8", "%s must be UTF-8, and its escapes make other bytes", fd.Name())
		text = strings.ToValidUTF8(text, "\ufffd")
	}
	return protoreflect.ValueOfString(text), true
}

func (b *binder) boolean(fd protoreflect.FieldDescriptor, n node) (protoreflect.Value, bool) {
	if !n.string {
		switch n.text {
		case "true", "True", "t", "1":
			return protoreflect.ValueOfBool(true), true
		case "false", "False", "f", "0":
			return protoreflect.ValueOfBool(false), true
		}
	}
	b.problem(n.pos, KindType, "write true or false", "%s is true or false, found %s", fd.Name(), n.what())
	return protoreflect.Value{}, false
}

func (b *binder) enum(fd protoreflect.FieldDescriptor, n node) (protoreflect.Value, bool) {
	values := fd.Enum().Values()
	if !n.string {
		if v := values.ByName(protoreflect.Name(n.text)); v != nil {
			return protoreflect.ValueOfEnum(v.Number()), true
		}
		if i, err := strconv.ParseInt(n.text, 0, 32); err == nil {
			if values.ByNumber(protoreflect.EnumNumber(i)) != nil {
				return protoreflect.ValueOfEnum(protoreflect.EnumNumber(i)), true
			}
			b.problem(n.pos, KindEnum, "", "%s has no value %d", fd.Enum().Name(), i)
			return protoreflect.Value{}, false
		}
	}
	hint := ""
	if near := nearestEnum(fd.Enum(), n.text); near != "" {
		hint = "did you mean " + near
	}
	if n.string {
		b.problem(n.pos, KindType, strings.Replace(hint, "did you mean", "write", 1), "%s is a value of %s, which is not quoted, found %s", fd.Name(), fd.Enum().Name(), n.what())
	} else {
		b.problem(n.pos, KindEnum, hint, "%s has no value %s", fd.Enum().Name(), n.text)
	}
	return protoreflect.Value{}, false
}

func (b *binder) float(fd protoreflect.FieldDescriptor, n node) (protoreflect.Value, bool) {
	text := strings.TrimRight(strings.ToLower(n.text), "f")
	if strings.HasSuffix(strings.ToLower(n.text), "inf") {
		text = n.text
	}
	f, err := strconv.ParseFloat(text, 64)
	if n.string || err != nil && !math.IsInf(f, 0) {
		b.problem(n.pos, KindType, "", "%s is a number, found %s", fd.Name(), n.what())
		return protoreflect.Value{}, false
	}
	if fd.Kind() == protoreflect.FloatKind {
		return protoreflect.ValueOfFloat32(float32(f)), true
	}
	return protoreflect.ValueOfFloat64(f), true
}

func (b *binder) integer(fd protoreflect.FieldDescriptor, n node) (protoreflect.Value, bool) {
	bits, signed := 64, true
	switch fd.Kind() {
	case protoreflect.Int32Kind:
		bits = 32
	case protoreflect.Uint32Kind:
		bits, signed = 32, false
	case protoreflect.Uint64Kind:
		signed = false
	default: // Int64Kind: the schema has no other kind
	}
	text := n.text
	wellFormed := !n.string && !strings.ContainsAny(text, "_bBoO") // Go's literals, not protobuf's
	i, ierr := strconv.ParseInt(text, 0, bits)
	u, uerr := strconv.ParseUint(text, 0, bits)
	switch {
	case wellFormed && signed && ierr == nil && bits == 32:
		return protoreflect.ValueOfInt32(int32(i)), true
	case wellFormed && signed && ierr == nil:
		return protoreflect.ValueOfInt64(i), true
	case wellFormed && !signed && uerr == nil && bits == 32:
		return protoreflect.ValueOfUint32(uint32(u)), true
	case wellFormed && !signed && uerr == nil:
		return protoreflect.ValueOfUint64(u), true
	}
	if _, err := strconv.ParseFloat(text, 64); err == nil && wellFormed && !strings.ContainsAny(text, ".eE") {
		sign := ""
		if !signed {
			sign = "unsigned "
		}
		b.problem(n.pos, KindRange, "", "%s does not fit %s (%s%d bits)", text, fd.Name(), sign, bits)
		return protoreflect.Value{}, false
	}
	b.problem(n.pos, KindType, "", "%s is an integer, found %s", fd.Name(), n.what())
	return protoreflect.Value{}, false
}
