package artifact

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"sort"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// KeyFormat is hashed first into every key: a change of how keys are made
// changes all of them.
const KeyFormat = "trtship-key/1"

// SettingsPart is the part of a key that holds the stage's settings as
// canonical JSON; Changed looks inside it.
const SettingsPart = "settings"

// Part is one named thing that decides what a stage makes.
type Part struct {
	Name  string `json:"name"`  // e.g. "stage version", "settings", "input onnx", "source model.py", "tool torch"
	Value string `json:"value"` // a digest, a version or JSON
}

// Key is a complete description of a stage's work. Equal keys mean equal work.
type Key struct{ parts []Part }

// NewKey starts a key with the stage's name and version.
func NewKey(stage string, version int) *Key {
	k := &Key{}
	k.Add("stage", stage)
	k.Add("stage version", strconv.Itoa(version))
	return k
}

// Add appends a part. Order matters; callers add in a fixed order.
func (k *Key) Add(name, value string) { k.parts = append(k.parts, Part{name, value}) }

// AddMap appends the entries of m in the order of their names, each with
// prefix and a space before its name.
func (k *Key) AddMap(prefix string, m map[string]string) {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		k.Add(prefix+" "+name, m[name])
	}
}

// AddSettings appends v as canonical JSON: object keys sorted, numbers as they
// were written, no white space.
func (k *Key) AddSettings(v any) error {
	text, err := Canonical(v)
	if err != nil {
		return fmt.Errorf("write settings of the key: %w", err)
	}
	k.Add(SettingsPart, string(text))
	return nil
}

// Parts returns the parts in order.
func (k *Key) Parts() []Part { return slices.Clone(k.parts) }

// Digest hashes the format tag and every part, each field with its length in
// front, so that no two lists of parts have the same bytes.
func (k *Key) Digest() Digest {
	h := sha256.New()
	field(h, KeyFormat)
	for _, p := range k.parts {
		field(h, p.Name)
		field(h, p.Value)
	}
	return SumDigest(h.Sum(nil))
}

func field(w io.Writer, s string) {
	var n [8]byte
	binary.BigEndian.PutUint64(n[:], uint64(len(s)))
	_, _ = w.Write(n[:]) // a hash never fails
	_, _ = io.WriteString(w, s)
}

// SumDigest makes a Digest of a finished SHA-256.
func SumDigest(sum []byte) Digest { return Digest("sha256:" + hex.EncodeToString(sum)) }

// Canonical marshals v to JSON whose bytes depend only on its value.
func Canonical(v any) ([]byte, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	decoded, err := decode(raw)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(decoded); err != nil { // maps are written with sorted keys
		return nil, err
	}
	return bytes.TrimRight(b.Bytes(), "\n"), nil
}

func decode(raw []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber() // a float64 would merge 64-bit integers that differ
	var v any
	err := d.Decode(&v)
	return v, err
}

// Changed says in which parts two keys of one stage differ, as lines for
// people such as "settings.opset: 17 -> 18". Equal keys give none.
func Changed(before, after []Part) []string {
	return differences(group(before), group(after), true)
}

// differences compares two sets of named values; with inside set, settings are
// compared by their leaves.
func differences(was, is map[string]string, inside bool) []string {
	names := make([]string, 0, len(was)+len(is))
	for name := range was {
		names = append(names, name)
	}
	for name := range is {
		if _, ok := was[name]; !ok {
			names = append(names, name)
		}
	}
	sort.Strings(names)
	var out []string
	for _, name := range names {
		a, b := was[name], is[name]
		switch {
		case a == b:
		case inside && name == SettingsPart && a != "" && b != "":
			out = append(out, changedSettings(a, b)...)
		default:
			out = append(out, name+": "+arrow(a, b))
		}
	}
	return out
}

// group joins parts of one name, for a kind can have several artifacts.
func group(parts []Part) map[string]string {
	m := map[string]string{}
	for _, p := range parts {
		if old, ok := m[p.Name]; ok {
			m[p.Name] = old + ", " + p.Value
		} else {
			m[p.Name] = p.Value
		}
	}
	return m
}

func changedSettings(a, b string) []string {
	va, errA := decode([]byte(a))
	vb, errB := decode([]byte(b))
	if errA != nil || errB != nil {
		return []string{SettingsPart + ": " + arrow(a, b)}
	}
	fa, fb := map[string]string{}, map[string]string{}
	flatten(SettingsPart, va, fa)
	flatten(SettingsPart, vb, fb)
	return differences(fa, fb, false)
}

func flatten(path string, v any, into map[string]string) {
	switch v := v.(type) {
	case map[string]any:
		for name, e := range v {
			flatten(path+"."+name, e, into)
		}
		if len(v) > 0 {
			return
		}
	case []any:
		for i, e := range v {
			flatten(path+"["+strconv.Itoa(i)+"]", e, into)
		}
		if len(v) > 0 {
			return
		}
	}
	text, _ := json.Marshal(v) // it came from JSON
	into[path] = string(text)
}

func arrow(a, b string) string { return shorten(a) + " -> " + shorten(b) }

// shorten keeps a line readable: digests by their short form, absent parts by
// a word, long values by their ends.
func shorten(s string) string {
	if s == "" {
		return "(none)"
	}
	if d, err := ParseDigest(s); err == nil {
		return d.Short()
	}
	const most = 60
	if utf8.RuneCountInString(s) > most {
		r := []rune(s)
		return string(r[:most/2]) + "…" + string(r[len(r)-most/2:])
	}
	return s
}

// DigestOf returns the digest of an artifact with these files, as Record says.
func DigestOf(files []File) Digest {
	if len(files) == 1 {
		return files[0].Digest
	}
	lines := make([]string, 0, len(files))
	for _, f := range files {
		lines = append(lines, strings.TrimPrefix(string(f.Digest), "sha256:")+"  "+f.Path+"\n")
	}
	sort.Strings(lines)
	sum := sha256.Sum256([]byte(strings.Join(lines, "")))
	return SumDigest(sum[:])
}

// CheckPath refuses a file name that could leave its artifact, that JSON could
// not hold, or that would make the list of files ambiguous.
func CheckPath(path string) error {
	switch {
	case path == "":
		return fmt.Errorf("file name is empty")
	case !utf8.ValidString(path):
		return fmt.Errorf("file name %q is not UTF-8", path)
	case strings.ContainsRune(path, '\\'):
		return fmt.Errorf("file name %q holds a backslash", path)
	case strings.ContainsFunc(path, unicode.IsControl):
		return fmt.Errorf("file name %q holds a control character", path)
	case strings.HasPrefix(path, "/"):
		return fmt.Errorf("file name %q is absolute", path)
	}
	for _, part := range strings.Split(path, "/") {
		if part == "" || part == "." || part == ".." {
			return fmt.Errorf("file name %q has an empty, \".\" or \"..\" element", path)
		}
	}
	return nil
}

// CheckKind refuses a kind that is not lower-case letters, digits and dashes:
// kinds are folder names.
func CheckKind(kind Kind) error {
	if kind == "" || strings.Trim(string(kind), "abcdefghijklmnopqrstuvwxyz0123456789-") != "" || kind[0] == '-' {
		return fmt.Errorf("kind %q is not lower-case letters, digits and dashes", kind)
	}
	return nil
}

// CheckRecord refuses a record that no store could have written.
func CheckRecord(r Record) error {
	if err := CheckKind(r.Kind); err != nil {
		return err
	}
	if _, err := ParseDigest(string(r.Digest)); err != nil {
		return err
	}
	if len(r.Files) == 0 {
		return fmt.Errorf("artifact %s has no files", r.ID())
	}
	seen := map[string]bool{}
	for _, f := range r.Files {
		if err := CheckPath(f.Path); err != nil {
			return err
		}
		if _, err := ParseDigest(string(f.Digest)); err != nil {
			return fmt.Errorf("file %s: %w", f.Path, err)
		}
		if f.Size < 0 || seen[f.Path] {
			return fmt.Errorf("file %s is listed twice or has a negative size", f.Path)
		}
		seen[f.Path] = true
	}
	if got := DigestOf(r.Files); got != r.Digest {
		return fmt.Errorf("files of %s have the digest %s", r.ID(), got)
	}
	return nil
}
