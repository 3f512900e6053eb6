package artifact_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/trtship/trtship/internal/artifact"
)

type settings struct {
	Opset int               `json:"opset"`
	Names []string          `json:"names"`
	Map   map[string]string `json:"map"`
	Big   json.Number       `json:"big"`
}

func TestKeysThatMustDiffer(t *testing.T) {
	base := func() *artifact.Key {
		k := artifact.NewKey("export", 1)
		k.Add("input onnx", "sha256:aa")
		return k
	}
	keys := map[string]*artifact.Key{
		"base":            base(),
		"another stage":   artifact.NewKey("expor", 1),
		"another version": artifact.NewKey("export", 11),
		"no input":        artifact.NewKey("export", 1),
	}
	with := func(name string, parts ...artifact.Part) {
		k := base()
		for _, p := range parts {
			k.Add(p.Name, p.Value)
		}
		keys[name] = k
	}
	// The same letters with other borders between fields and parts.
	with("one part", artifact.Part{Name: "tool torch", Value: "2.11"})
	with("a letter over the border", artifact.Part{Name: "tool torch2", Value: ".11"})
	with("two parts", artifact.Part{Name: "tool", Value: " torch"}, artifact.Part{Name: "2.1", Value: "1"})
	with("the other order", artifact.Part{Name: "2.1", Value: "1"}, artifact.Part{Name: "tool", Value: " torch"})
	with("an empty part", artifact.Part{})
	seen := map[artifact.Digest]string{}
	for name, k := range keys {
		d := k.Digest()
		if other, ok := seen[d]; ok {
			t.Errorf("%q and %q have one key", name, other)
		}
		seen[d] = name
		if _, err := artifact.ParseDigest(string(d)); err != nil {
			t.Error(err)
		}
	}
}

func TestSettingsAreCanonical(t *testing.T) {
	tests := map[string]struct {
		a, b  any
		equal bool
	}{
		"the order of keys does not count":           {map[string]int{"a": 1, "b": 2}, struct{ B, A int }{}, false},
		"a struct and the map of its JSON are equal": {settings{Opset: 17, Big: "1"}, map[string]any{"big": 1, "map": nil, "names": nil, "opset": 17}, true},
		"64-bit integers that float64 would merge":   {settings{Big: "9007199254740993"}, settings{Big: "9007199254740992"}, false},
		"nil and empty differ":                       {settings{Big: "0", Names: []string{}}, settings{Big: "0"}, false},
		"the order of a list counts":                 {[]string{"a", "b"}, []string{"b", "a"}, false},
		"HTML is not escaped away":                   {"<a>", "\u003ca\u003e", true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var digests []artifact.Digest
			for _, v := range []any{tt.a, tt.b} {
				k := artifact.NewKey("s", 1)
				if err := k.AddSettings(v); err != nil {
					t.Fatal(err)
				}
				digests = append(digests, k.Digest())
			}
			if (digests[0] == digests[1]) != tt.equal {
				t.Errorf("equal is %v, want %v", digests[0] == digests[1], tt.equal)
			}
		})
	}
	if err := artifact.NewKey("s", 1).AddSettings(func() {}); err == nil {
		t.Error("a function is no setting, and there is no error")
	}
}

func TestMapsAreAddedInOrder(t *testing.T) {
	m := map[string]string{}
	for _, c := range "zyxwvutsrq" {
		m[string(c)] = "1"
	}
	var first artifact.Digest
	for range 20 {
		k := artifact.NewKey("s", 1)
		k.AddMap("tool", m)
		if first == "" {
			first = k.Digest()
		}
		if k.Digest() != first {
			t.Fatal("the order of a map got into the key")
		}
	}
}

func TestChanged(t *testing.T) {
	digest := func(c string) string { return "sha256:" + strings.Repeat(c, 64) }
	key := func(opset int, names []string, more ...artifact.Part) []artifact.Part {
		k := artifact.NewKey("export", 1)
		if err := k.AddSettings(settings{Opset: opset, Names: names, Big: "1"}); err != nil {
			t.Fatal(err)
		}
		for _, p := range more {
			k.Add(p.Name, p.Value)
		}
		return k.Parts()
	}
	part := func(name, value string) artifact.Part { return artifact.Part{Name: name, Value: value} }
	tests := map[string]struct {
		before, after []artifact.Part
		want          []string
	}{
		"nothing":                    {key(17, nil), key(17, nil), nil},
		"a leaf of the settings":     {key(17, nil), key(18, nil), []string{"settings.opset: 17 -> 18"}},
		"an element of a list":       {key(17, []string{"a", "b"}), key(17, []string{"a", "c"}), []string{`settings.names[1]: "b" -> "c"`}},
		"an element more":            {key(17, []string{"a"}), key(17, []string{"a", "b"}), []string{`settings.names[1]: (none) -> "b"`}},
		"from nothing to a list":     {key(17, nil), key(17, []string{"a"}), []string{"settings.names: null -> (none)", `settings.names[0]: (none) -> "a"`}},
		"a digest by its short form": {key(1, nil, part("input onnx", digest("a"))), key(1, nil, part("input onnx", digest("b"))), []string{"input onnx: aaaaaaaaaaaa -> bbbbbbbbbbbb"}},
		"a part more and one less":   {key(1, nil, part("tool a", "1")), key(1, nil, part("tool b", "2")), []string{"tool a: 1 -> (none)", "tool b: (none) -> 2"}},
		"one of two of a name":       {key(1, nil, part("source x", "1"), part("source x", "2")), key(1, nil, part("source x", "1"), part("source x", "3")), []string{"source x: 1, 2 -> 1, 3"}},
		"a long value by its ends":   {key(1, nil, part("m", strings.Repeat("é", 100))), key(1, nil, part("m", "x")), []string{"m: " + strings.Repeat("é", 30) + "…" + strings.Repeat("é", 30) + " -> x"}},
		"settings that are no JSON":  {[]artifact.Part{part("settings", "{")}, []artifact.Part{part("settings", "{}")}, []string{"settings: { -> {}"}},
		"settings that are a scalar": {[]artifact.Part{part("settings", "1")}, []artifact.Part{part("settings", `"a"`)}, []string{`settings: 1 -> "a"`}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if d := cmp.Diff(tt.want, artifact.Changed(tt.before, tt.after)); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

func TestCheckPath(t *testing.T) {
	for path, good := range map[string]bool{
		"model.onnx": true, "model/1/model.plan": true, "with space": true, "模型": true, "..data": true, "a..b/c": true,
		"": false, "/etc/passwd": false, "..": false, "a/../../b": false, "./a": false, "a//b": false, "a/": false,
		"a\nb": false, "a\\b": false, "a\x00": false, "a\xff": false, "a\x1b[0m": false,
	} {
		if err := artifact.CheckPath(path); (err == nil) != good {
			t.Errorf("%q: %v", path, err)
		}
	}
}

func TestCheckRecord(t *testing.T) {
	file := func(path string) artifact.File {
		return artifact.File{Path: path, Size: 1, Digest: artifact.Digest("sha256:" + strings.Repeat("a", 64))}
	}
	record := func(files ...artifact.File) artifact.Record {
		return artifact.Record{Kind: artifact.ONNX, Files: files, Digest: artifact.DigestOf(files)}
	}
	tests := map[string]struct {
		r    artifact.Record
		want string
	}{
		"one file":                      {record(file("a")), ""},
		"two files":                     {record(file("a"), file("b")), ""},
		"no file":                       {record(), "has no files"},
		"a file twice":                  {record(file("a"), file("a")), "twice"},
		"a path that leaves":            {record(file("../a")), `".."`},
		"a digest of something else":    {artifact.Record{Kind: artifact.ONNX, Files: []artifact.File{file("a")}, Digest: artifact.Digest("sha256:" + strings.Repeat("b", 64))}, "have the digest"},
		"no digest":                     {artifact.Record{Kind: artifact.ONNX, Files: []artifact.File{file("a")}}, "is not sha256:"},
		"a kind that leaves":            {artifact.Record{Kind: "../onnx"}, "kind"},
		"a kind that looks like a flag": {artifact.Record{Kind: "-rf"}, "kind"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			err := artifact.CheckRecord(tt.r)
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
}

func TestDigests(t *testing.T) {
	d := artifact.Digest("sha256:" + strings.Repeat("0123456789abcdef", 4))
	if d.Short() != "0123456789ab" || (artifact.Record{Kind: "onnx", Digest: d}).ID() != "onnx-0123456789ab" {
		t.Errorf("short %s", d.Short())
	}
	for _, bad := range []string{"", "sha256:", string(d) + "0", strings.ToUpper(string(d)), "md5:" + string(d)[7:], string(d[:70]) + "g"} {
		if _, err := artifact.ParseDigest(bad); err == nil {
			t.Errorf("%q is taken for a digest", bad)
		}
	}
}
