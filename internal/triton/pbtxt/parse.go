package pbtxt

import (
	"fmt"
	"strings"
)

// node is a value as written.
type node struct {
	pos    Pos
	kind   nodeKind
	text   string // of a scalar, as written; of a string, its value
	string bool   // the scalar was quoted
	bad    bool   // already complained about
	fields []field
	list   []node
	// trailing is a message that follows a name where a value was due, as in
	// version_policy: specific { ... }.
	trailing *node
}

type nodeKind int

const (
	scalar nodeKind = iota
	message
	list
)

func (n node) what() string {
	switch {
	case n.kind == message:
		return "a message"
	case n.kind == list:
		return "a list"
	case n.string:
		return "the string " + quoteText(n.text)
	}
	return n.text
}

type field struct {
	name  string
	pos   Pos
	colon bool
	value node
}

type parser struct {
	src      string
	tokens   []token
	i        int
	problems []Problem
	depth    int
}

// maxNesting bounds the depth of messages.
const maxNesting = 100

func (p *parser) problem(pos Pos, kind, hint, format string, args ...any) {
	p.problems = append(p.problems, Problem{Pos: pos, Kind: kind, Text: fmt.Sprintf(format, args...), Hint: hint})
}

func (p *parser) cur() token { return p.tokens[p.i] }

func (p *parser) peek(n int) token {
	if p.i+n < len(p.tokens) {
		return p.tokens[p.i+n]
	}
	return p.tokens[len(p.tokens)-1]
}

func (p *parser) advance() token {
	t := p.tokens[p.i]
	if t.kind != tokEOF {
		p.i++
	}
	return t
}

func (p *parser) is(punct string) bool {
	t := p.cur()
	return t.kind == tokPunct && t.text == punct
}

func (p *parser) take(punct string) bool {
	if p.is(punct) {
		p.i++
		return true
	}
	return false
}

func show(t token) string {
	switch t.kind {
	case tokEOF:
		return t.text
	case tokString:
		return "the string " + quoteText(t.text)
	}
	return "'" + t.text + "'"
}

// parseText reads a whole text into fields.
func parseText(src string) ([]field, []Problem) {
	tokens, problems := lex(src)
	p := &parser{src: src, tokens: tokens, problems: problems}
	if p.is("{") && p.peek(1).kind == tokString && p.peek(2).text == ":" {
		p.problem(p.cur().pos, KindJSON, `write it as protobuf text, e.g.  name: "model"`, "this is JSON; config.pbtxt is protobuf text")
		return nil, p.problems
	}
	fields := p.fields("", Pos{})
	return fields, p.problems
}

// fields reads fields up to closing, or to the end of the file if it is empty.
func (p *parser) fields(closing string, opened Pos) []field {
	var out []field
	for {
		t := p.cur()
		switch {
		case t.kind == tokEOF:
			if closing != "" {
				p.problem(t.pos, KindSyntax, "", "the file ends, but the '%s' opened at %s is not closed", opening(closing), opened)
			}
			return out
		case closing != "" && p.is(closing):
			p.i++
			return out
		case closing != "" && (p.is("]") || p.is("}") || p.is(">")):
			p.problem(t.pos, KindSyntax, fmt.Sprintf("add '%s' before it", closing), "'%s' where '%s' must close the '%s' opened at %s", t.text, closing, opening(closing), opened)
			return out
		case closing == "" && (p.is("}") || p.is("]") || p.is(">")):
			p.problem(t.pos, KindSyntax, "remove it", "'%s' closes nothing", t.text)
			p.i++
		default:
			if f, ok := p.field(); ok {
				out = append(out, f)
			}
		}
	}
}

func opening(closing string) string {
	switch closing {
	case "}":
		return "{"
	case ">":
		return "<"
	}
	return "["
}

// field reads a name and its value.
func (p *parser) field() (field, bool) {
	t := p.cur()
	if t.kind != tokIdent {
		p.problem(t.pos, KindSyntax, "", "want the name of a field, found %s", show(t))
		p.recover()
		return field{}, false
	}
	p.i++
	f := field{name: t.text, pos: t.pos}
	f.colon = p.take(":")
	v, ok := p.value(f)
	if !ok {
		p.recover()
		return field{}, false
	}
	f.value = v
	if !p.take(",") {
		p.take(";")
	}
	return f, true
}

// recover skips to what looks like the start of the next field: a name at the
// start of a line, a name before a colon, or a closing bracket.
func (p *parser) recover() {
	for p.cur().kind != tokEOF {
		t := p.cur()
		if t.kind == tokIdent && (t.first || p.peek(1).text == ":" && p.peek(1).kind == tokPunct) {
			return
		}
		if p.is("}") || p.is("]") || p.is(">") {
			return
		}
		if p.is("{") || p.is("[") {
			p.skipBlock()
			continue
		}
		p.i++
	}
}

// skipBlock moves over a bracket and what it holds.
func (p *parser) skipBlock() {
	depth := 0
	for p.cur().kind != tokEOF {
		t := p.advance()
		if t.kind != tokPunct {
			continue
		}
		switch t.text {
		case "{", "[":
			depth++
		case "}", "]":
			if depth--; depth <= 0 {
				return
			}
		}
	}
}

func (p *parser) value(f field) (node, bool) {
	t := p.cur()
	switch {
	case t.kind == tokPunct && (t.text == "{" || t.text == "<"):
		return p.message(), true
	case t.kind == tokPunct && t.text == "[":
		return p.list(f), true
	case t.kind == tokEOF || t.kind == tokPunct && t.text != "-":
		p.problem(t.pos, KindSyntax, "", "want a value of %s, found %s", f.name, show(t))
		return node{}, false
	}
	return p.scalar(), true
}

func (p *parser) message() node {
	t := p.advance()
	closing := "}"
	if t.text == "<" {
		closing = ">"
	}
	n := node{pos: t.pos, kind: message}
	if p.depth++; p.depth > maxNesting {
		p.problem(t.pos, KindSyntax, "", "messages are nested more than %d deep", maxNesting)
		p.i--
		p.skipBlock()
		p.depth--
		return n
	}
	n.fields = p.fields(closing, t.pos)
	p.depth--
	return n
}

func (p *parser) list(f field) node {
	open := p.advance()
	n := node{pos: open.pos, kind: list}
	for {
		t := p.cur()
		switch {
		case p.take("]"):
			return n
		case t.kind == tokEOF || p.is("}") || p.is(">"):
			p.problem(t.pos, KindSyntax, "add ']' before it", "%s where ']' must close the '[' opened at %s", show(t), open.pos)
			return n
		case t.kind == tokIdent && t.first && len(n.list) > 0 && (p.peek(1).text == ":" || p.peek(1).text == "{" || p.peek(1).text == "["):
			p.problem(t.pos, KindSyntax, "add ']' before it", "the field %s starts where ']' must close the '[' opened at %s", t.text, open.pos)
			return n
		}
		if len(n.list) > 0 && !p.take(",") {
			p.problem(t.pos, KindSyntax, "add ','", "want ',' or ']' in the list of %s, found %s", f.name, show(t))
		} else if p.is("]") {
			p.problem(t.pos, KindSyntax, "remove the comma before it", "want another element of %s, found ']'", f.name)
			continue
		}
		v, ok := p.value(f)
		if !ok {
			if p.take(",") {
				continue
			}
			p.recover()
			p.take("]")
			return n
		}
		n.list = append(n.list, v)
	}
}

// scalar reads a string (adjacent ones are one), a number or a name. What is
// written together without quotes, such as input.1, is one text.
func (p *parser) scalar() node {
	t := p.cur()
	n := node{pos: t.pos}
	switch t.kind {
	case tokString:
		n.string = true
		for p.cur().kind == tokString {
			n.text += p.advance().text
		}
		return n
	case tokPlaceholder:
		n.bad = true
		fallthrough
	default:
		p.i++
		end := t.end
		for p.glued(end) {
			end = p.advance().end
		}
		n.text = p.src[t.start:end]
		if strings.HasPrefix(n.text, "-") && t.text == "-" && end == t.end && (p.cur().kind == tokNumber || p.cur().kind == tokIdent) {
			n.text = "-" + p.advance().text // "- 1"
		}
		if t.kind == tokIdent && p.is("{") {
			m := p.message()
			n.trailing = &m
		}
		return n
	}
}

// glued reports whether the current token continues a text that ended at end.
func (p *parser) glued(end int) bool {
	t := p.cur()
	if t.start != end {
		return false
	}
	switch t.kind {
	case tokIdent, tokNumber, tokPlaceholder:
		return true
	case tokPunct:
		return t.text == "." || t.text == "-" || t.text == "/"
	}
	return false
}
