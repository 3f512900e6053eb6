package calibration

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Token is the algorithm in a cache's first line: the class of the calibrator
// that may read it.
type Token string

// The tokens that TensorRT writes.
const (
	TokenEntropy2 Token = "EntropyCalibration2"
	TokenEntropy  Token = "EntropyCalibration"
	TokenMinMax   Token = "MinMaxCalibration"
	TokenLegacy   Token = "LegacyCalibration"
)

var tokens = []Token{TokenEntropy2, TokenEntropy, TokenMinMax, TokenLegacy}

// TokenOf returns the token that the caches of a method carry: that of the
// calibrator class which TensorRT's own tools read such a cache with.
func TokenOf(m Method) Token {
	if m == MinMax {
		return TokenMinMax
	}
	return TokenEntropy2
}

// Entry is one line: a tensor and its step. TensorRT's dynamic range of the
// tensor is 127 times the step.
type Entry struct {
	Name  string
	Scale float32
	Line  int // in the file that was read; 0 otherwise
}

// Cache is a TensorRT calibration cache.
type Cache struct {
	Version int // as in the header, e.g. 101600
	Token   Token
	Entries []Entry
}

// VersionNumber turns a TensorRT version such as 10.16.0 into the number of a
// cache's header: 101600, and 8601 for 8.6.1, for the scheme changed with
// TensorRT 10.
func VersionNumber(version string) (int, error) {
	var n [3]int
	parts := strings.Split(version, ".")
	for i, p := range parts {
		v, err := strconv.Atoi(p)
		if err != nil || v < 0 || v > 99 && i < 3 {
			return 0, fmt.Errorf("TensorRT version %q is not of the form 10.6.0", version)
		}
		if i < len(n) {
			n[i] = v
		}
	}
	if len(parts) < 2 || n[0] == 0 {
		return 0, fmt.Errorf("TensorRT version %q is not of the form 10.6.0", version)
	}
	if n[0] >= 10 {
		return n[0]*10000 + n[1]*100 + n[2], nil
	}
	return n[0]*1000 + n[1]*100 + n[2], nil
}

// VersionText is the inverse of VersionNumber, for messages.
func VersionText(n int) string {
	if n >= 100000 {
		return fmt.Sprintf("%d.%d.%d", n/10000, n/100%100, n%100)
	}
	return fmt.Sprintf("%d.%d.%d", n/1000, n/100%10, n%100)
}

// Header returns the cache's first line, without the line end.
func (c *Cache) Header() string { return fmt.Sprintf("TRT-%d-%s", c.Version, c.Token) }

// Bytes returns the text, entries sorted by name.
func (c *Cache) Bytes() []byte {
	entries := slices.Clone(c.Entries)
	slices.SortFunc(entries, func(a, b Entry) int { return cmp.Compare(a.Name, b.Name) })
	var b bytes.Buffer
	b.WriteString(c.Header() + "\n")
	for _, e := range entries {
		fmt.Fprintf(&b, "%s: %08x\n", e.Name, math.Float32bits(e.Scale))
	}
	return b.Bytes()
}

// Scales returns the steps by tensor.
func (c *Cache) Scales() map[string]float32 {
	m := make(map[string]float32, len(c.Entries))
	for _, e := range c.Entries {
		m[e.Name] = e.Scale
	}
	return m
}

// Problem is one thing that is wrong with a cache.
type Problem struct {
	Kind string `json:"kind"` // format, header, line, duplicate, scale, unknown, uncovered, proof
	Line int    `json:"line,omitempty"`
	Text string `json:"text"`
}

func (p Problem) String() string {
	if p.Line > 0 {
		return fmt.Sprintf("line %d: %s", p.Line, p.Text)
	}
	return p.Text
}

// maxText bounds what a message quotes of a line.
const maxText = 60

// ParseCache reads a cache's text. It never gives up half-way: everything that
// could be read is in the cache, everything wrong in the problems, in the
// order of the lines. A carriage return before the line end is accepted.
func ParseCache(text []byte) (*Cache, []Problem) {
	c := &Cache{}
	if len(bytes.TrimSpace(text)) == 0 {
		return c, []Problem{{Kind: "format", Text: "the cache is empty; expected a first line such as TRT-101600-EntropyCalibration2"}}
	}
	var problems []Problem
	lines := strings.Split(string(text), "\n")
	complete := lines[len(lines)-1] == ""
	if complete {
		lines = lines[:len(lines)-1]
	}
	body := lines[1:]
	first := 2
	if p, ok := c.parseHeader(strings.TrimSuffix(lines[0], "\r")); !ok {
		problems = append(problems, p)
		if _, err := parseEntry(lines[0]); err != nil {
			return c, problems // another kind of file: its lines would be noise
		}
		body, first = lines, 1
	}
	seen := make(map[string]int, len(body))
	for i, line := range body {
		at := first + i
		line = strings.TrimSuffix(line, "\r")
		if line == "" && at > 1 {
			continue
		}
		e, err := parseEntry(line)
		if err != nil {
			problems = append(problems, Problem{Kind: "line", Line: at, Text: err.Error()})
			continue
		}
		e.Line = at
		if before, twice := seen[e.Name]; twice {
			problems = append(problems, Problem{Kind: "duplicate", Line: at, Text: fmt.Sprintf("%s has a scale already on line %d", e.Name, before)})
			continue
		}
		seen[e.Name] = at
		if t := scaleProblem(e.Scale); t != "" {
			problems = append(problems, Problem{Kind: "scale", Line: at, Text: fmt.Sprintf("%s: %s", e.Name, t)})
		}
		c.Entries = append(c.Entries, e)
	}
	if len(c.Entries) == 0 && len(problems) == 0 {
		problems = append(problems, Problem{Kind: "format", Text: "the cache holds no scale"})
	}
	return c, problems
}

func (c *Cache) parseHeader(line string) (Problem, bool) {
	bad := func(format string, args ...any) (Problem, bool) {
		return Problem{Kind: "header", Line: 1, Text: fmt.Sprintf(format, args...)}, false
	}
	rest, ok := strings.CutPrefix(line, "TRT-")
	if !ok {
		return bad("%q is no header of a TensorRT calibration cache; expected a first line such as TRT-101600-EntropyCalibration2", clip(line))
	}
	number, token, ok := strings.Cut(rest, "-")
	n, err := strconv.Atoi(number)
	if !ok || err != nil || n <= 0 || number != strconv.Itoa(n) {
		return bad("%q has no TensorRT version; expected TRT-<version>-<algorithm>", clip(line))
	}
	c.Version, c.Token = n, Token(token)
	if !slices.Contains(tokens, c.Token) {
		return bad("unknown calibration algorithm %q (%s, %s, %s, %s)", clip(token), tokens[0], tokens[1], tokens[2], tokens[3])
	}
	return Problem{}, true
}

// parseEntry splits at the last colon, for names may hold colons themselves.
func parseEntry(line string) (Entry, error) {
	at := strings.LastIndex(line, ": ")
	if at <= 0 {
		return Entry{}, fmt.Errorf("%q is not of the form name: 8 hexadecimal digits", clip(line))
	}
	name, digits := line[:at], line[at+2:]
	var raw [4]byte
	if len(digits) != 8 {
		return Entry{}, fmt.Errorf("%s: %q is not 8 hexadecimal digits", clip(name), clip(digits))
	}
	if _, err := hex.Decode(raw[:], []byte(digits)); err != nil {
		return Entry{}, fmt.Errorf("%s: %q is not 8 hexadecimal digits", clip(name), clip(digits))
	}
	return Entry{Name: name, Scale: math.Float32frombits(binary.BigEndian.Uint32(raw[:]))}, nil
}

func scaleProblem(s float32) string {
	switch v := float64(s); {
	case math.IsNaN(v):
		return "scale is NaN"
	case math.IsInf(v, 0):
		return fmt.Sprintf("scale is %g", s)
	case v == 0:
		return "scale is 0"
	case v < 0:
		return fmt.Sprintf("scale %g is negative", s)
	}
	return ""
}

func clip(s string) string {
	if len(s) <= maxText {
		return s
	}
	return s[:maxText] + "..."
}
