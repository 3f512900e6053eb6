// Package jsonfile reads JSON files that people may have changed: every mistake
// is found at once, with its line, its dotted key and the value at fault, in
// words about the file and not about the program's types.
package jsonfile

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"sort"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Problem is one mistake in a file.
type Problem struct {
	Line int    // from 1; 0 if it is the file's as a whole
	Path string // dotted key, with list positions from 0; empty for the file
	Text string // what is wrong, with the value
}

// String returns the key and the text. Control characters, which would reach a
// terminal, are written as escapes.
func (p Problem) String() string {
	text := p.Text
	if p.Path != "" {
		text = p.Path + ": " + text
	}
	if !strings.ContainsFunc(text, unicode.IsControl) {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		if unicode.IsControl(r) {
			b.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// Lines are the lines of all values of a file, by dotted key.
type Lines map[string]int

// Has reports whether the file gives a key.
func (l Lines) Has(path string) bool { return l[path] > 0 }

// At returns the line of a key, or of the nearest one above it that is there.
func (l Lines) At(path string) int {
	for p := path; p != ""; {
		if line, ok := l[p]; ok {
			return line
		}
		p = p[:max(strings.LastIndexByte(p, '.'), 0)]
	}
	return l[""]
}

// Decode fills the struct that v points to. Keys are those of the tag json and
// match exactly; unknown keys, keys given twice and values of another kind are
// problems. null leaves lists, maps and pointers nil and is a problem elsewhere.
func Decode(data []byte, v any) (Lines, []Problem) {
	d := &decoder{data: data, lines: Lines{}}
	if p := d.syntax(); p != nil {
		return d.lines, []Problem{*p}
	}
	d.tokens = json.NewDecoder(strings.NewReader(string(data)))
	d.tokens.UseNumber()
	d.fill(reflect.ValueOf(v).Elem(), d.parse(), "")
	return d.lines, d.problems
}

type decoder struct {
	data     []byte
	ends     []int // offsets of the line ends
	tokens   *json.Decoder
	lines    Lines
	problems []Problem
}

// node is a value with its line. value is nil, bool, string, json.Number,
// []node or []pair.
type node struct {
	line  int
	value any
}

type pair struct {
	key  string
	line int
	node node
}

// line returns the line of the byte before offset.
func (d *decoder) line(offset int64) int {
	if d.ends == nil {
		d.ends = []int{}
		for i, c := range d.data {
			if c == '\n' {
				d.ends = append(d.ends, i)
			}
		}
	}
	return 1 + sort.SearchInts(d.ends, int(offset)-1)
}

// syntax says what makes the text no JSON.
func (d *decoder) syntax() *Problem {
	if len(strings.TrimSpace(string(d.data))) == 0 {
		return &Problem{Text: "the file is empty"}
	}
	for i, rest := 0, d.data; len(rest) > 0; {
		r, size := utf8.DecodeRune(rest)
		if r == utf8.RuneError && size == 1 {
			return &Problem{Line: d.line(int64(i) + 1), Text: fmt.Sprintf("not JSON: byte 0x%02x is no UTF-8", rest[0])}
		}
		i, rest = i+size, rest[size:]
	}
	var whole json.RawMessage
	err := json.Unmarshal(d.data, &whole)
	if err == nil {
		return nil
	}
	e, ok := errors.AsType[*json.SyntaxError](err)
	if !ok || e.Offset < 1 || e.Offset > int64(len(d.data)) {
		return &Problem{Text: "not JSON"}
	}
	p := &Problem{Line: d.line(e.Offset)}
	switch at := string(d.data[e.Offset-1:]); {
	case strings.Contains(err.Error(), "unexpected end"):
		p.Text = "not JSON: the file ends in the middle"
	case strings.Contains(err.Error(), "depth"):
		p.Text = "not JSON that is read: it is nested too deep"
	case strings.Contains(err.Error(), "after top-level value"):
		p.Text = "not JSON: something follows the closing brace"
	default:
		r, _ := utf8.DecodeRuneInString(at)
		p.Text = fmt.Sprintf("not JSON: %q is not expected here", r)
	}
	return p
}

// parse reads the next value. The text is known to be JSON.
func (d *decoder) parse() node {
	token, _ := d.tokens.Token()
	n := node{line: d.line(d.tokens.InputOffset()), value: token}
	switch token {
	case json.Delim('['):
		list := []node{}
		for d.tokens.More() {
			list = append(list, d.parse())
		}
		n.value = list
	case json.Delim('{'):
		pairs := []pair{}
		for d.tokens.More() {
			key, _ := d.tokens.Token()
			line := d.line(d.tokens.InputOffset())
			pairs = append(pairs, pair{key.(string), line, d.parse()})
		}
		n.value = pairs
	default:
		return n
	}
	_, _ = d.tokens.Token() // the closing delimiter
	return n
}

func (d *decoder) wrong(line int, path, format string, args ...any) {
	d.problems = append(d.problems, Problem{Line: line, Path: path, Text: fmt.Sprintf(format, args...)})
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func (d *decoder) fill(v reflect.Value, n node, path string) {
	d.lines[path] = n.line
	switch v.Kind() {
	case reflect.Pointer:
		if n.value != nil {
			v.Set(reflect.New(v.Type().Elem()))
			d.fill(v.Elem(), n, path)
		}
	case reflect.Struct:
		if pairs, ok := d.pairs(n, path); ok {
			d.structure(v, pairs, path)
		}
	case reflect.Map:
		if n.value == nil {
			return
		}
		if pairs, ok := d.pairs(n, path); ok {
			v.Set(reflect.MakeMap(v.Type()))
			for _, p := range pairs {
				e := reflect.New(v.Type().Elem()).Elem()
				d.fill(e, p.node, join(path, p.key))
				v.SetMapIndex(reflect.ValueOf(p.key), e)
			}
		}
	case reflect.Slice:
		d.list(v, n, path)
	default:
		d.plain(v, n, path)
	}
}

// pairs returns the members of an object, each key once.
func (d *decoder) pairs(n node, path string) ([]pair, bool) {
	all, ok := n.value.([]pair)
	if !ok {
		d.wrong(n.line, path, "want an object with keys, got %s", describe(n))
		return nil, false
	}
	first := map[string]int{}
	var out []pair
	for _, p := range all {
		if line, twice := first[p.key]; twice {
			d.wrong(p.line, join(path, p.key), "is given twice; first in line %d", line)
			continue
		}
		first[p.key] = p.line
		out = append(out, p)
	}
	return out, true
}

func (d *decoder) structure(v reflect.Value, pairs []pair, path string) {
	var names []string
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		names = append(names, name)
	}
	for _, p := range pairs {
		if p.key == "" {
			d.wrong(p.line, path, "a key is empty")
			continue
		}
		i := slices.Index(names, p.key)
		if i < 0 {
			d.wrong(p.line, join(path, clip(p.key)), "is no key that is known here")
			continue
		}
		d.fill(v.Field(i), p.node, join(path, p.key))
	}
}

func (d *decoder) list(v reflect.Value, n node, path string) {
	if n.value == nil {
		return
	}
	list, ok := n.value.([]node)
	if !ok {
		d.wrong(n.line, path, "want a list, got %s", describe(n))
		return
	}
	out := reflect.MakeSlice(v.Type(), len(list), len(list))
	for i, e := range list {
		d.fill(out.Index(i), e, join(path, strconv.Itoa(i)))
	}
	v.Set(out)
}

// plain decodes text, numbers and booleans.
func (d *decoder) plain(v reflect.Value, n node, path string) {
	number, isNumber := n.value.(json.Number)
	switch v.Kind() {
	case reflect.String:
		if s, ok := n.value.(string); ok {
			v.SetString(s)
			return
		}
		d.wrong(n.line, path, "want text, got %s", describe(n))
	case reflect.Bool:
		if b, ok := n.value.(bool); ok {
			v.SetBool(b)
			return
		}
		d.wrong(n.line, path, "want true or false, got %s", describe(n))
	case reflect.Int, reflect.Int64:
		i, err := strconv.ParseInt(string(number), 10, v.Type().Bits())
		if isNumber && err == nil {
			v.SetInt(i)
			return
		}
		d.wrong(n.line, path, "want a whole number of %d bits, got %s", v.Type().Bits(), describe(n))
	case reflect.Float64:
		f, err := strconv.ParseFloat(string(number), 64)
		if isNumber && err == nil && !math.IsInf(f, 0) {
			v.SetFloat(f)
			return
		}
		d.wrong(n.line, path, "want a number, got %s", describe(n))
	default:
		panic("jsonfile: cannot decode " + v.Type().String())
	}
}

// describe names a value for an error.
func describe(n node) string {
	switch x := n.value.(type) {
	case nil:
		return "null"
	case bool:
		return strconv.FormatBool(x)
	case json.Number:
		return clip(string(x))
	case string:
		return fmt.Sprintf("text %q", clip(x))
	case []node:
		return "a list"
	}
	return "an object"
}

func clip(s string) string {
	if len(s) > 80 {
		return strings.ToValidUTF8(s[:77], "") + "..."
	}
	return s
}
