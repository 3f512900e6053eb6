// Package pbtxt reads and writes Triton's config.pbtxt: protobuf text format
// with the position of every field, all mistakes instead of the first, and the
// nearest valid name for an unknown one.
package pbtxt

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Pos is a place in a text. Lines and columns count from 1, columns in
// characters.
type Pos struct {
	Line   int `json:"line"`
	Column int `json:"column"`
}

func (p Pos) String() string { return fmt.Sprintf("%d:%d", p.Line, p.Column) }

// before reports whether p lies before q.
func (p Pos) before(q Pos) bool {
	return p.Line < q.Line || p.Line == q.Line && p.Column < q.Column
}

// Problem is one mistake in a text.
type Problem struct {
	Pos  Pos
	Kind string // stable, kebab-case
	Text string
	Hint string // what to write instead; empty if nothing is known
}

// The kinds of problems that reading finds.
const (
	KindSyntax          = "syntax"            // not protobuf text
	KindBOM             = "byte-order-mark"   // the file starts with one
	KindQuote           = "typographic-quote" // “ or ” instead of "
	KindUnquoted        = "unquoted-string"   // name: mnist
	KindPlaceholder     = "placeholder"       // ${...} that was never filled
	KindPlaceholderText = "placeholder-text"  // a string with one in it
	KindJSON            = "json"              // a JSON document
	KindField           = "unknown-field"
	KindEnum            = "unknown-value" // of an enumeration
	KindType            = "wrong-type"    // a number for a string, a list for one message, ...
	KindTwice           = "given-twice"   // a field that may be given once
	KindChoice          = "one-of"        // two members of one choice
	KindRange           = "out-of-range"  // a number that does not fit
	KindMapKey          = "repeated-key"  // two entries of a map with one key
	KindColon           = "missing-colon" // a scalar without :
	KindEncoding        = "not-utf8"      // bytes that are no UTF-8
	KindNewer           = "newer-field"   // a field that older servers do not know
)

type tokenKind int

const (
	tokEOF tokenKind = iota
	tokIdent
	tokNumber
	tokString
	tokPunct
	tokPlaceholder
)

type token struct {
	kind  tokenKind
	text  string // as written; of a string, its value
	pos   Pos
	end   int // offset behind it
	start int
	first bool // first of its line
}

type lexer struct {
	src      string
	at       int
	line     int
	column   int
	tokens   []token
	problems []Problem
	lastLine int
}

func (l *lexer) problem(pos Pos, kind, hint, format string, args ...any) {
	l.problems = append(l.problems, Problem{Pos: pos, Kind: kind, Text: fmt.Sprintf(format, args...), Hint: hint})
}

const bom = "\ufeff"

// lex splits src into tokens; comments and white space go.
func lex(src string) ([]token, []Problem) {
	l := &lexer{src: src, line: 1, column: 1}
	if strings.HasPrefix(src, bom) {
		l.problem(Pos{1, 1}, KindBOM, "save the file as UTF-8 without one", "the file starts with a byte-order mark, which Triton's parser refuses")
		l.at = len(bom)
	}
	for l.at < len(l.src) {
		l.next()
	}
	l.tokens = append(l.tokens, token{kind: tokEOF, text: "end of file", pos: l.pos(), start: l.at, end: l.at, first: true})
	return l.tokens, l.problems
}

func (l *lexer) pos() Pos { return Pos{l.line, l.column} }

// step moves over one character.
func (l *lexer) step() rune {
	r, n := utf8.DecodeRuneInString(l.src[l.at:])
	if r == utf8.RuneError && n == 1 {
		l.problem(l.pos(), KindEncoding, "save the file as UTF-8", "byte 0x%02x is no UTF-8", l.src[l.at])
	}
	l.at += n
	if r == '\n' {
		l.line++
		l.column = 1
	} else {
		l.column++
	}
	return r
}

func (l *lexer) peek() rune {
	r, _ := utf8.DecodeRuneInString(l.src[l.at:])
	return r
}

func (l *lexer) emit(kind tokenKind, text string, pos Pos, start int) {
	l.tokens = append(l.tokens, token{kind: kind, text: text, pos: pos, start: start, end: l.at, first: pos.Line != l.lastLine})
	l.lastLine = pos.Line
}

func (l *lexer) next() {
	pos, start := l.pos(), l.at
	r := l.peek()
	switch {
	case r == '#':
		for l.at < len(l.src) && l.peek() != '\n' {
			l.step()
		}
	case unicode.IsSpace(r):
		l.step()
		if r > unicode.MaxASCII {
			l.problem(pos, KindSyntax, "use a plain space", "U+%04X is no space to Triton's parser", r)
		}
	case strings.HasPrefix(l.src[l.at:], "${") || strings.HasPrefix(l.src[l.at:], "{{"):
		l.placeholder(pos, start)
	case r == '_' || r < unicode.MaxASCII && unicode.IsLetter(r):
		l.word()
		l.emit(tokIdent, l.src[start:l.at], pos, start)
	case r < unicode.MaxASCII && unicode.IsDigit(r), r == '.' && l.digitAfter():
		l.number()
		l.emit(tokNumber, l.src[start:l.at], pos, start)
	case r == '"' || r == '\'':
		l.quoted(r, pos, start)
	case strings.ContainsRune("“”„‘’«»", r):
		l.typographic(pos, start)
	case strings.ContainsRune("{}<>[]:,;-./", r):
		l.step()
		l.emit(tokPunct, string(r), pos, start)
	default:
		l.step()
		l.problem(pos, KindSyntax, "", "%q does not belong here", r)
	}
}

func (l *lexer) digitAfter() bool {
	return l.at+1 < len(l.src) && l.src[l.at+1] >= '0' && l.src[l.at+1] <= '9'
}

func (l *lexer) word() {
	for l.at < len(l.src) {
		r := l.peek()
		if r != '_' && (r > unicode.MaxASCII || !unicode.IsLetter(r) && !unicode.IsDigit(r)) {
			return
		}
		l.step()
	}
}

// number takes all that a number may hold; its form is judged where its type
// is known. A sign is a token of its own, but not in an exponent.
func (l *lexer) number() {
	for l.at < len(l.src) {
		r := l.peek()
		exponent := (r == '+' || r == '-') && strings.ContainsAny(l.src[l.at-1:l.at], "eE") &&
			!strings.ContainsAny(l.src[max(0, l.at-3):l.at], "xX")
		if r != '.' && !exponent && (r > unicode.MaxASCII || !unicode.IsLetter(r) && !unicode.IsDigit(r)) {
			return
		}
		l.step()
	}
}

func (l *lexer) placeholder(pos Pos, start int) {
	closing := "}"
	if l.src[l.at] == '{' {
		closing = "}}"
	}
	end := strings.Index(l.src[l.at:], closing)
	newline := strings.IndexByte(l.src[l.at:], '\n')
	if end < 0 || newline >= 0 && newline < end || closing == "}}" && strings.ContainsAny(l.src[l.at+2:l.at+end], "{:\"") {
		r := l.step() // not a placeholder: { { of two messages, or a lone $
		if r == '{' {
			l.emit(tokPunct, "{", pos, start)
		} else {
			l.problem(pos, KindSyntax, "", "%q does not belong here", r)
		}
		return
	}
	for l.at < start+end+len(closing) {
		l.step()
	}
	l.problem(pos, KindPlaceholder, "write the value", "the template placeholder %s was never filled", l.src[start:l.at])
	l.emit(tokPlaceholder, l.src[start:l.at], pos, start)
}

// quoted reads a string in straight quotes.
func (l *lexer) quoted(quote rune, pos Pos, start int) {
	l.step()
	var b strings.Builder
	for {
		if l.at >= len(l.src) || l.peek() == '\n' {
			l.problem(pos, KindSyntax, "close it on the same line", "the string is not closed")
			break
		}
		r := l.step()
		if r == quote {
			break
		}
		if r == '\\' {
			l.escape(&b)
			continue
		}
		b.WriteRune(r)
	}
	l.emit(tokString, b.String(), pos, start)
}

// escape reads what follows a backslash.
func (l *lexer) escape(b *strings.Builder) {
	pos := l.pos()
	if l.at >= len(l.src) {
		return
	}
	r := l.step()
	simple := map[rune]byte{
		'n': '\n', 't': '\t', 'r': '\r', 'a': '\a', 'b': '\b', 'f': '\f', 'v': '\v',
		'\\': '\\', '\'': '\'', '"': '"', '?': '?',
	}
	switch {
	case simple[r] != 0:
		b.WriteByte(simple[r])
	case r >= '0' && r <= '7':
		v := int(r - '0')
		for i := 0; i < 2 && l.at < len(l.src) && l.src[l.at] >= '0' && l.src[l.at] <= '7'; i++ {
			v = v*8 + int(l.step()-'0')
		}
		b.WriteByte(byte(v))
	case r == 'x' || r == 'X':
		if v, n := l.hex(2); n > 0 {
			b.WriteByte(byte(v))
			return
		}
		l.problem(pos, KindSyntax, "", `\x needs hexadecimal digits`)
	case r == 'u' || r == 'U':
		want := 4
		if r == 'U' {
			want = 8
		}
		if v, n := l.hex(want); n == want && v <= unicode.MaxRune {
			b.WriteRune(rune(v))
			return
		}
		l.problem(pos, KindSyntax, "", `\%c needs %d hexadecimal digits`, r, want)
	default:
		l.problem(pos, KindSyntax, "", `\%c is no escape`, r)
	}
}

// hex reads up to n hexadecimal digits.
func (l *lexer) hex(n int) (v, read int) {
	for read < n && l.at < len(l.src) {
		d := strings.IndexByte("0123456789abcdef", lower(l.src[l.at]))
		if d < 0 {
			break
		}
		v = v*16 + d
		read++
		l.step()
	}
	return v, read
}

func lower(c byte) byte {
	if c >= 'A' && c <= 'Z' {
		return c + 'a' - 'A'
	}
	return c
}

// typographic reads a string in the quotes of a word processor as if they were
// straight.
func (l *lexer) typographic(pos Pos, start int) {
	open := l.step()
	from := l.at
	for l.at < len(l.src) && l.peek() != '\n' && !strings.ContainsRune("“”„‘’«»\"", l.peek()) {
		l.step()
	}
	value := l.src[from:l.at]
	if l.at < len(l.src) && l.peek() != '\n' {
		l.step()
	}
	l.problem(pos, KindQuote, fmt.Sprintf("write %q", value), "%c is no quote to Triton's parser", open)
	l.emit(tokString, value, pos, start)
}
