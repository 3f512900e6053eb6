package jsonfile_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/trtship/trtship/internal/jsonfile"
)

type inner struct {
	Size int64 `json:"size"`
}

type outer struct {
	Name   string           `json:"name,omitempty"`
	Ratio  float64          `json:"ratio"`
	On     bool             `json:"on"`
	Maybe  *int             `json:"maybe"`
	Dims   []int64          `json:"dims"`
	Inner  []inner          `json:"inner"`
	ByName map[string]inner `json:"by_name"`
}

func TestAFileIsReadWithTheLineOfEachValue(t *testing.T) {
	var got outer
	lines, problems := jsonfile.Decode([]byte(`{
  "name": "a\u00e9\ud83d\ude00", "ratio": 1e-3,
  "on": true, "maybe": 3, "dims": [
    -1,
    9223372036854775807
  ],
  "inner": [{"size": 1}, {
    "size": 2}],
  "by_name": {"x.y": {"size": 4}}
}`), &got)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	three := 3
	want := outer{Name: "aé😀", Ratio: 1e-3, On: true, Maybe: &three, Dims: []int64{-1, 1<<63 - 1}, Inner: []inner{{1}, {2}}, ByName: map[string]inner{"x.y": {4}}}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got\n%s", d)
	}
	for path, line := range map[string]int{"": 1, "name": 2, "dims.0": 4, "dims.1": 5, "inner.1.size": 8, "by_name.x.y.size": 9, "dims.7": 3, "none.at.all": 1} {
		if got := lines.At(path); got != line {
			t.Errorf("%s is in line %d, want %d", path, got, line)
		}
	}
	if !lines.Has("on") || lines.Has("off") {
		t.Error("what the file gives is not known")
	}
	var null outer
	if _, problems := jsonfile.Decode([]byte(`{"maybe": null, "dims": null, "inner": null, "by_name": null}`), &null); len(problems) > 0 || null.Dims != nil || null.Maybe != nil {
		t.Errorf("null for a list, a map and a pointer: %v", problems)
	}
}

func TestEveryMistakeIsNamedWithLineKeyAndValue(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want []string
	}{
		"nothing":                     {" \n", []string{"0  the file is empty"}},
		"null":                        {"null", []string{"1  want an object with keys, got null"}},
		"a list":                      {"\n[]", []string{"2  want an object with keys, got a list"}},
		"a file that was cut off":     {"{\"name\":\n\"a\",\n", []string{"2  not JSON: the file ends in the middle"}},
		"a comma too many":            {"{\n\"dims\": [1,]}", []string{"2  not JSON: ']' is not expected here"}},
		"two files in one":            {"{}\n{}", []string{"2  not JSON: something follows the closing brace"}},
		"bytes of something else":     {"{\n\"name\": \"\xff\"}", []string{"2  not JSON: byte 0xff is no UTF-8"}},
		"brackets without end":        {strings.Repeat("[", 20000), []string{"1  not JSON that is read: it is nested too deep"}},
		"a key that nobody knows":     {"{\"name\": \"a\",\n\"nmae\": 1}", []string{"2 nmae is no key that is known here"}},
		"a key in other letters":      {`{"Name": "a"}`, []string{"1 Name is no key that is known here"}},
		"a key without a name":        {`{"": 1}`, []string{"1  a key is empty"}},
		"a key given twice":           {"{\"name\": \"a\",\n\"name\": \"b\"}", []string{"2 name is given twice; first in line 1"}},
		"text for a number":           {"{\"dims\": [1,\n\"two\"]}", []string{`2 dims.1 want a whole number of 64 bits, got text "two"`}},
		"a fraction for a count":      {`{"dims": [1.5]}`, []string{"1 dims.0 want a whole number of 64 bits, got 1.5"}},
		"a number beyond 64 bits":     {`{"dims": [9223372036854775808]}`, []string{"1 dims.0 want a whole number of 64 bits, got 9223372036854775808"}},
		"a number beyond every float": {`{"ratio": 1e999}`, []string{"1 ratio want a number, got 1e999"}},
		"null for text":               {`{"name": null}`, []string{"1 name want text, got null"}},
		"a number for a list":         {`{"dims": 7, "on": "yes", "inner": {}}`, []string{"1 dims want a list, got 7", `1 on want true or false, got text "yes"`, "1 inner want a list, got an object"}},
		"a list for an object":        {`{"by_name": {"x": [1]}, "maybe": true}`, []string{"1 by_name.x want an object with keys, got a list", "1 maybe want a whole number of 64 bits, got true"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			_, problems := jsonfile.Decode([]byte(c.text), &outer{})
			for _, p := range problems {
				got = append(got, strings.Join([]string{string(rune('0' + p.Line)), p.Path, p.Text}, " "))
				if strings.Contains(p.Text, "Go ") || strings.Contains(p.Text, "reflect") {
					t.Errorf("it speaks of the program: %s", p)
				}
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("-want +got\n%s", d)
			}
		})
	}
	if got := (jsonfile.Problem{Path: "a.0", Text: "is wrong"}).String(); got != "a.0: is wrong" {
		t.Error(got)
	}
	if got := (jsonfile.Problem{Path: "a\x1b[2J", Text: "is\nwrong"}).String(); got != `a\x1b[2J: is\nwrong` {
		t.Errorf("a control character reaches the terminal: %q", got)
	}
}

func TestNoDamageOfAFileIsMoreThanAProblem(t *testing.T) {
	whole := "{\"name\": \"é\", \"dims\": [1,\n-1], \"inner\": [{\"size\": 1}],\n\"by_name\": {\"x\": {\"size\": 2}}, \"maybe\": 1}"
	for i := range len(whole) {
		for _, text := range []string{whole[:i], whole[:i] + whole[i+1:], whole[:i] + "\x00" + whole[i:], whole[:i] + "[" + whole[i:], whole[:i] + "\"" + whole[i+1:]} {
			_, problems := jsonfile.Decode([]byte(text), &outer{})
			for _, p := range problems {
				if p.Text == "" || p.Line < 0 || p.Line > 1+strings.Count(text, "\n") {
					t.Errorf("%q: %+v", text, p)
				}
			}
			if text == whole[:i] && len(problems) == 0 {
				t.Errorf("%q was taken", text)
			}
		}
	}
}
