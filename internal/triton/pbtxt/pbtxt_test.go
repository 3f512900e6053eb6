package pbtxt

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/trtship/trtship/internal/triton/tritonpb"
)

// said returns the problems of a text as "line:column kind: text (hint)".
func said(text string) []string {
	out := []string{}
	for _, p := range Parse(text).Problems {
		s := fmt.Sprintf("%s %s: %s", p.Pos, p.Kind, p.Text)
		if p.Hint != "" {
			s += " (" + p.Hint + ")"
		}
		out = append(out, s)
	}
	return out
}

func TestEveryMistakeIsNamedAtItsPlace(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want []string
	}{
		"nothing is wrong": {"name: \"a\"\r\n# comment\r\nmax_batch_size: 8\r\n", nil},
		"an unknown field has the nearest one beside it": {
			"max_batch_sise: 8",
			[]string{`1:1 unknown-field: no field "max_batch_sise" in ModelConfig (did you mean max_batch_size)`},
		},
		"batching_option is dynamic_batching, a message": {
			"batching_option [ { preferred_batch_size: [ 4 ] } ]",
			[]string{`1:1 unknown-field: no field "batching_option" in ModelConfig (did you mean dynamic_batching, a message: dynamic_batching { ... }, not a list)`},
		},
		"a field one level too high is sent down": {
			"max_queue_delay_microseconds: 5",
			[]string{`1:1 unknown-field: no field "max_queue_delay_microseconds" in ModelConfig (it belongs into dynamic_batching { ... })`},
		},
		"an enumeration without its prefix": {
			"input { data_type: FP32 } instance_group { kind: GPU }",
			[]string{
				"1:20 unknown-value: DataType has no value FP32 (did you mean TYPE_FP32)",
				"1:50 unknown-value: Kind has no value GPU (did you mean KIND_GPU)",
			},
		},
		"unquoted strings, all of them": {
			"name: mnist\nplatform: onnxruntime_onnx\ninput [ { name: input.1 } ]",
			[]string{
				`1:7 unquoted-string: name is a string and must be in quotes, found mnist (write name: "mnist")`,
				`2:11 unquoted-string: platform is a string and must be in quotes, found onnxruntime_onnx (write platform: "onnxruntime_onnx")`,
				`3:17 unquoted-string: name is a string and must be in quotes, found input.1 (write name: "input.1")`,
			},
		},
		"typographic quotes": {
			"name: “mnist”\n",
			[]string{`1:7 typographic-quote: “ is no quote to Triton's parser (write "mnist")`},
		},
		"a placeholder that was never filled": {
			"max_batch_size: ${N}\nname: \"${NAME}\"",
			[]string{
				"1:17 placeholder: the template placeholder ${N} was never filled (write the value)",
				"2:7 placeholder-text: name holds the template placeholder ${NAME}, which was never filled (write the value)",
			},
		},
		"a Jinja placeholder": {
			"max_batch_size: {{ n }}\nname: \"a\"",
			[]string{"1:17 placeholder: the template placeholder {{ n }} was never filled (write the value)"},
		},
		"a brace that is not closed, and the field after it": {
			"input [ { name: \"x\" dims: [ 4 ] ]\nmax_batch_sise: 3",
			[]string{
				"1:33 syntax: ']' where '}' must close the '{' opened at 1:9 (add '}' before it)",
				`2:1 unknown-field: no field "max_batch_sise" in ModelConfig (did you mean max_batch_size)`,
			},
		},
		"a list that is not closed": {
			"dynamic_batching { preferred_batch_size: [ 4, 8 }\nmax_batch_size: 1",
			[]string{"1:49 syntax: '}' where ']' must close the '[' opened at 1:42 (add ']' before it)"},
		},
		"the end of the file within a message": {
			"input {\n name: \"x\"\n",
			[]string{"3:1 syntax: the file ends, but the '{' opened at 1:7 is not closed"},
		},
		"a byte-order mark": {
			"\ufeffname: \"a\"",
			[]string{"1:1 byte-order-mark: the file starts with a byte-order mark, which Triton's parser refuses (save the file as UTF-8 without one)"},
		},
		"JSON": {
			`{"name": "a", "max_batch_size": 8}`,
			[]string{`1:1 json: this is JSON; config.pbtxt is protobuf text (write it as protobuf text, e.g.  name: "model")`},
		},
		"a scalar twice": {
			"max_batch_size: 8\nmax_batch_size: 16",
			[]string{"2:1 given-twice: max_batch_size was already given at 1:1; Triton's parser refuses the second (keep one)"},
		},
		"two members of a choice": {
			"sequence_batching { }\ndynamic_batching { }",
			[]string{"2:1 one-of: dynamic_batching and sequence_batching are one choice (scheduling_choice): only one may be given (keep one of the two)"},
		},
		"types that do not fit": {
			"max_batch_size: \"8\"\nname: 5\ninput: 3\nmodel_transaction_policy { decoupled: yes }\ndefault_model_filename { }",
			[]string{
				`1:17 wrong-type: max_batch_size is an integer, found the string "8"`,
				`2:7 unquoted-string: name is a string and must be in quotes, found 5 (write name: "5")`,
				"3:8 wrong-type: input is a message, found 3 (write input { ... })",
				"4:39 wrong-type: decoupled is true or false, found yes (write true or false)",
				"5:1 missing-colon: default_model_filename needs ':' before its value (write default_model_filename: ...)",
				"5:24 wrong-type: default_model_filename is a string, found a message",
			},
		},
		"numbers that do not fit": {
			"max_batch_size: 99999999999\ndynamic_batching { max_queue_delay_microseconds: -1 }",
			[]string{
				"1:17 out-of-range: 99999999999 does not fit max_batch_size (32 bits)",
				"2:50 out-of-range: -1 does not fit max_queue_delay_microseconds (unsigned 64 bits)",
			},
		},
		"the tutorial's version policy": {
			"version_policy: specific { versions: [1] }",
			[]string{
				"1:17 wrong-type: version_policy is a message that holds specific { ... }, and needs braces of its own (write version_policy { specific { ... } })",
			},
		},
		"a name where a value is due": {
			"max_batch_size: eight { }\nname: \"a\"",
			[]string{"1:17 wrong-type: max_batch_size is an integer, found eight", "1:23 syntax: want the name of a field, found '{'"},
		},
		"commas in lists": {
			"input [ { name: \"a\" } { name: \"b\" } ]\ndynamic_batching { preferred_batch_size: [ 1, 2, ] }",
			[]string{
				"1:23 syntax: want ',' or ']' in the list of input, found '{' (add ',')",
				"2:48 syntax: want another element of preferred_batch_size, found ']' (remove the comma before it)",
			},
		},
		"a field that 2.51 does not know": {
			"ensemble_scheduling { max_inflight_requests: 4 }",
			[]string{"1:23 newer-field: max_inflight_requests is newer than server 2.51: an older server refuses the whole file"},
		},
		"a closing bracket too many": {
			"name: \"a\" }\nmax_batch_size: 1",
			[]string{"1:11 syntax: '}' closes nothing (remove it)"},
		},
		"a string over the end of its line": {
			"name: \"a\nmax_batch_size: 1",
			[]string{"1:7 syntax: the string is not closed (close it on the same line)"},
		},
		"a map key twice": {
			`parameters { key: "a" value { string_value: "1" } } parameters { key: "a" value { string_value: "2" } }`,
			[]string{`1:64 repeated-key: parameters has the key "a" twice; the last one wins`},
		},
		"a map entry that is none": {
			`parameters: 3 parameters { name: "a" }`,
			[]string{
				`1:13 wrong-type: parameters is a map: its entries have key and value, found 3 (write parameters { key: "..." value: ... })`,
				`1:28 unknown-field: no field "name" in an entry of parameters (an entry has key and value)`,
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			want := c.want
			if want == nil {
				want = []string{}
			}
			if d := cmp.Diff(want, said(c.text)); d != "" {
				t.Errorf("-want +got\n%s", d)
			}
		})
	}
}

func TestReadingGoesOnBehindAMistake(t *testing.T) {
	d := Parse("name mnist\nmax_batch_size: 8\ninput [ { name: \"x\" data_type: FP32 dims: [ 4 ] ]\noutput { name: \"y\" }")
	if d.Config.GetMaxBatchSize() != 8 || d.Config.GetInput()[0].GetName() != "x" || d.Config.GetOutput()[0].GetName() != "y" {
		t.Errorf("got %v", d.Config)
	}
	if got := d.At("input[0].dims"); got != (Pos{3, 37}) {
		t.Errorf("dims at %s", got)
	}
	if got := d.At("input[0].reshape.shape"); got != (Pos{3, 9}) {
		t.Errorf("a field that is not there is at its message: got %s", got)
	}
}

// A text without problems means to us what it means to protobuf, and what we
// write reads back to the same message in both.
func TestItAgreesWithProtobuf(t *testing.T) {
	texts := []string{
		`name: 'a' "b" platform: "\303\251\n\x41" max_batch_size: 0x10 input: [{name: "x", dims: [-1, 010]}, {name: "y";}]`,
		`parameters: { key: "k" value: { string_value: "v" } } parameters { value { } } cc_model_filenames [ { key: "8.0" value: "a.plan" } ]`,
		`sequence_batching < control_input { control { kind: 2 fp32_false_true: [0, 1.5f, inf, -inf] bool_false_true: [t, false, 1, 0] } } >`,
		`dynamic_batching { priority_queue_policy { key: 3 value { timeout_action: DELAY default_timeout_microseconds: 18446744073709551615 } } }`,
		"version_policy: { specific { versions: [ 1, 3 ] } } # c\noptimization { cuda { graphs: true graph_spec { input { key: \"x\" value { dim: [1,2] } } } } }",
		`model_metrics { metric_control { histogram_options { buckets: [ 1e-3, 2.5, 1E5 ] } } }`,
	}
	for _, text := range texts {
		d := Parse(text)
		for _, p := range d.Problems {
			if p.Kind != KindNewer {
				t.Errorf("%s\n%v", text, p)
			}
		}
		want := &tritonpb.ModelConfig{}
		if err := prototext.Unmarshal([]byte(text), want); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if diff := cmp.Diff(want, d.Config, protocmp.Transform()); diff != "" {
			t.Errorf("%s\n%s", text, diff)
		}
		roundTrip(t, d.Config)
	}
}

func roundTrip(t *testing.T, c *tritonpb.ModelConfig) {
	t.Helper()
	text := Write(c)
	other := &tritonpb.ModelConfig{}
	if err := prototext.Unmarshal([]byte(text), other); err != nil {
		t.Fatalf("protobuf does not read what we write: %v\n%s", err, text)
	}
	again := Parse(text)
	if !proto.Equal(c, other) || !proto.Equal(c, again.Config) {
		t.Errorf("written and read back it differs:\n%s\n%s", text, cmp.Diff(c, again.Config, protocmp.Transform()))
	}
	if Write(again.Config) != text {
		t.Error("equal messages give different bytes")
	}
}

func FuzzParse(f *testing.F) {
	files, _ := filepath.Glob(filepath.Join("..", "..", "..", "testdata", "cases", "s0*", "*", "config.pbtxt"))
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(b))
	}
	f.Add(strings.Repeat("input{", 200))
	f.Add("{{ a }} { { ${x} “a” - 1 a.b")
	f.Fuzz(func(t *testing.T, text string) {
		d := Parse(text)
		lines := strings.Count(text, "\n") + 1
		for _, p := range d.Problems {
			if p.Pos.Line < 1 || p.Pos.Line > lines || p.Pos.Column < 1 {
				t.Errorf("%v is outside of the text", p)
			}
		}
		if !d.Fatal() {
			// What we take, protobuf takes, and it means the same.
			other := &tritonpb.ModelConfig{}
			if err := prototext.Unmarshal([]byte(text), other); err == nil && !proto.Equal(other, d.Config) {
				t.Errorf("another message than protobuf's:\n%s", cmp.Diff(other, d.Config, protocmp.Transform()))
			}
		}
		roundTrip(t, d.Config)
	})
}
