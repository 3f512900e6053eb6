package kserve

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// number is a JSON number as it was written: int64 and uint64 keep all digits.
type number string

// maxDepth bounds the nesting of a reply.
const maxDepth = 64

var errJSON = errors.New("reply is not JSON")

// parseJSON reads one JSON value. Beyond JSON it takes NaN, Infinity and
// -Infinity (also nan, inf), which Triton writes for such outputs.
// Objects become map[string]any, arrays []any, numbers number.
func parseJSON(b []byte) (any, error) {
	p := &jsonParser{b: b}
	v, err := p.value(0)
	if err != nil {
		return nil, err
	}
	p.space()
	if p.i != len(p.b) {
		return nil, p.fail("something follows the value")
	}
	return v, nil
}

type jsonParser struct {
	b []byte
	i int
}

func (p *jsonParser) fail(format string, args ...any) error {
	return fmt.Errorf("%w: byte %d: %s", errJSON, p.i, fmt.Sprintf(format, args...))
}

func (p *jsonParser) space() {
	for p.i < len(p.b) && strings.IndexByte(" \t\r\n", p.b[p.i]) >= 0 {
		p.i++
	}
}

func (p *jsonParser) value(depth int) (any, error) {
	if depth > maxDepth {
		return nil, p.fail("nested more than %d deep", maxDepth)
	}
	p.space()
	if p.i >= len(p.b) {
		return nil, p.fail("the text ends")
	}
	switch c := p.b[p.i]; c {
	case '{':
		return p.object(depth)
	case '[':
		return p.array(depth)
	case '"':
		return p.text()
	default:
		return p.word()
	}
}

func (p *jsonParser) object(depth int) (any, error) {
	out := map[string]any{}
	p.i++
	for first := true; ; first = false {
		p.space()
		if p.i < len(p.b) && p.b[p.i] == '}' {
			p.i++
			return out, nil
		}
		if !first && !p.take(',') {
			return nil, p.fail("want , or }")
		}
		p.space()
		if p.i >= len(p.b) || p.b[p.i] != '"' {
			return nil, p.fail("want a key")
		}
		key, err := p.text()
		if err != nil {
			return nil, err
		}
		p.space()
		if !p.take(':') {
			return nil, p.fail("want :")
		}
		if out[key], err = p.value(depth + 1); err != nil {
			return nil, err
		}
	}
}

func (p *jsonParser) array(depth int) (any, error) {
	out := []any{}
	p.i++
	for first := true; ; first = false {
		p.space()
		if p.i < len(p.b) && p.b[p.i] == ']' {
			p.i++
			return out, nil
		}
		if !first && !p.take(',') {
			return nil, p.fail("want , or ]")
		}
		v, err := p.value(depth + 1)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
}

func (p *jsonParser) take(c byte) bool {
	if p.i < len(p.b) && p.b[p.i] == c {
		p.i++
		return true
	}
	return false
}

// word reads a number or one of the names.
func (p *jsonParser) word() (any, error) {
	start := p.i
	for p.i < len(p.b) && strings.IndexByte(" \t\r\n,]}:", p.b[p.i]) < 0 {
		p.i++
	}
	w := string(p.b[start:p.i])
	switch strings.ToLower(w) {
	case "true":
		return true, nil
	case "false":
		return false, nil
	case "null":
		return nil, nil
	case "nan", "-nan":
		return number("NaN"), nil
	case "inf", "infinity", "+inf":
		return number("+Inf"), nil
	case "-inf", "-infinity":
		return number("-Inf"), nil
	}
	if _, err := strconv.ParseFloat(w, 64); err != nil && !errors.Is(err, strconv.ErrRange) {
		p.i = start
		if len(w) > 20 {
			w = w[:20] + "..."
		}
		return nil, p.fail("%q is no value", w)
	}
	return number(w), nil
}

func (p *jsonParser) text() (string, error) {
	p.i++
	start, plain := p.i, true
	for p.i < len(p.b) && p.b[p.i] != '"' {
		if p.b[p.i] == '\\' {
			plain = false
			p.i++
		}
		p.i++
	}
	if p.i >= len(p.b) {
		return "", p.fail("the text ends within a string")
	}
	raw := p.b[start:p.i]
	p.i++
	if plain {
		return string(raw), nil
	}
	return p.unescape(raw)
}

func (p *jsonParser) unescape(raw []byte) (string, error) {
	var b strings.Builder
	for i := 0; i < len(raw); i++ {
		if raw[i] != '\\' {
			b.WriteByte(raw[i])
			continue
		}
		i++
		switch raw[i] {
		case 'n':
			b.WriteByte('\n')
		case 't':
			b.WriteByte('\t')
		case 'r':
			b.WriteByte('\r')
		case 'b':
			b.WriteByte('\b')
		case 'f':
			b.WriteByte('\f')
		case 'u':
			r, n := escapedRune(raw[i+1:])
			if n == 0 {
				return "", p.fail("bad \\u escape")
			}
			b.WriteRune(r)
			i += n
		default:
			b.WriteByte(raw[i])
		}
	}
	return b.String(), nil
}

// escapedRune reads the digits of a \u escape, and a second one if they are a
// surrogate pair. It returns the bytes read, 0 if there are no digits.
func escapedRune(s []byte) (rune, int) {
	hex := func(s []byte) (rune, bool) {
		if len(s) < 4 {
			return 0, false
		}
		v, err := strconv.ParseUint(string(s[:4]), 16, 16)
		return rune(v), err == nil
	}
	r, ok := hex(s)
	if !ok {
		return 0, 0
	}
	if utf16.IsSurrogate(r) && len(s) >= 10 && s[4] == '\\' && s[5] == 'u' {
		if low, ok := hex(s[6:]); ok {
			if pair := utf16.DecodeRune(r, low); pair != utf8.RuneError {
				return pair, 10
			}
		}
	}
	return r, 4
}

// quote writes s as a JSON string.
func quote(s string) []byte {
	b, _ := json.Marshal(s) // a string always marshals
	return b
}
