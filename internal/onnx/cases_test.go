package onnx

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/testkit"
)

func TestFilesThatAreNoModelGetOneClearLine(t *testing.T) {
	testkit.HoldsCase(t, "o14-not-a-model")
	tests := map[string]struct {
		code failure.Code
		want string // whole message
	}{
		"empty.onnx":                  {failure.Model, "read model: is empty"},
		"truncated.onnx":              {failure.Model, "read model: is cut off at byte 1083: the graph at byte 19 needs 2139 bytes"},
		"lfs_pointer.onnx":            {failure.Model, "read model: is a Git LFS pointer (12345678 bytes not fetched): git lfs pull"},
		"html.onnx":                   {failure.Model, "read model: is HTML"},
		"zip.onnx":                    {failure.Model, "read model: is a zip archive"},
		"trailing_garbage.onnx":       {failure.Model, "read model: has 4 bytes after its end, at byte 2167, that are no ONNX"},
		"no_graph.onnx":               {failure.Model, "read model: has no graph"},
		"no_opset.onnx":               {failure.Model, "check model: imports no operator set (opset_import is empty)"},
		"two_opsets_same_domain.onnx": {failure.Model, "check model: domain ai.onnx is imported twice, as version 17 and as 12"},
		"ir_99.onnx":                  {failure.OK, ""},
		"opset_200.onnx":              {failure.OK, ""},
		"newest_onnx_defaults.onnx":   {failure.OK, ""},
	}
	for file, tt := range tests {
		t.Run(file, func(t *testing.T) {
			path := caseFile("o14-not-a-model", file)
			_, err := Open(path)
			if failure.CodeOf(err) != tt.code {
				t.Fatalf("error is %v", err)
			}
			if err != nil && err.Error() != path+": "+tt.want {
				t.Errorf("error is\n%v, want\n%s: %s", err, path, tt.want)
			}
		})
	}
}

func TestModelsNewerThanARuntimeAreNamedWithBothNumbers(t *testing.T) {
	testkit.HoldsCase(t, "o14-not-a-model")
	ort := ONNXRuntime("1.30.0")
	tests := map[string]struct{ want, hint string }{
		"ir_99.onnx":                {"check model: IR 99, onnxruntime 1.30.0 takes 13", "nothing in the model needs it: set optimize.ir_version to 13 (4 would do)"},
		"newest_onnx_defaults.onnx": {"check model: IR 14, onnxruntime 1.30.0 takes 13", "nothing in the model needs it: set optimize.ir_version to 13 (4 would do)"},
		"opset_200.onnx":            {"check model: opset 200, onnxruntime 1.30.0 takes 26", "export with opset 26 or less"},
	}
	for file, tt := range tests {
		t.Run(file, func(t *testing.T) {
			m := openModel(t, caseFile("o14-not-a-model", file))
			err, _ := m.Accepts(ort).(*failure.Error)
			if err == nil || err.Message != tt.want || err.Hint != tt.hint {
				t.Errorf("error is %+v", err)
			}
			if m.Accepts(ONNXRuntime("99.0.0")) != nil {
				t.Error("a runtime that is not known must not be judged")
			}
		})
	}
	if err := openModel(t, caseFile("o06-order-and-names", "dead_code.onnx")).Accepts(ort); err != nil {
		t.Errorf("a usual model is refused: %v", err)
	}
}

func TestExternalDataStaysInTheFolderAndInItsFile(t *testing.T) {
	testkit.HoldsCase(t, "e04-external-data")
	tests := map[string]struct {
		code failure.Code
		want []string
	}{
		"model.onnx":               {failure.OK, nil},
		"otherweights/model.onnx":  {failure.OK, nil},
		"moved/model.onnx":         {failure.Artifact, []string{`tensor "w"`, filepath.Join("moved", "model.onnx.data") + " does not exist"}},
		"escape_dotdot.onnx":       {failure.Model, []string{`tensor "w"`, `"../_outside.bin" leaves the model's folder`}},
		"escape_inner_dotdot.onnx": {failure.Model, []string{`tensor "w"`, `"sub/../../_outside.bin" leaves the model's folder`}},
		"escape_abs.onnx":          {failure.Model, []string{`tensor "w"`, `"/etc/hostname" is an absolute path`}},
		"past_end.onnx":            {failure.Model, []string{`tensor "w"`, "bytes 64 to 192 lie past the end", "128 bytes"}},
		"short_length.onnx":        {failure.Model, []string{`tensor "w"`, "length 124, its shape float32[8,4] needs 128 bytes"}},
		"negative_offset.onnx":     {failure.Model, []string{`tensor "w"`, `offset "-4"`}},
		"empty_location.onnx":      {failure.Model, []string{`tensor "w"`, `location "" is empty`}},
	}
	for file, tt := range tests {
		t.Run(file, func(t *testing.T) {
			_, err := Open(caseFile("e04-external-data", filepath.FromSlash(file)))
			if failure.CodeOf(err) != tt.code {
				t.Fatalf("error is %v", err)
			}
			for _, w := range tt.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("error %q lacks %q", err, w)
				}
			}
		})
	}
}

func TestLinksAreNoExternalData(t *testing.T) {
	testkit.HoldsCase(t, "e04-external-data")
	data, err := os.ReadFile(caseFile("_outside.bin"))
	if err != nil {
		t.Fatal(err)
	}
	graph, err := os.ReadFile(caseFile("e04-external-data", "escape_symlink.onnx")) // reads link.bin
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		lay  func(outside, link string) error
		want string
	}{
		"a symbolic link out of the folder": {os.Symlink, "is a symbolic link"},
		"a symbolic link inside the folder": {func(_, link string) error {
			inside := filepath.Join(filepath.Dir(link), "inside.bin")
			if err := os.WriteFile(inside, data, 0o644); err != nil {
				return err
			}
			return os.Symlink("inside.bin", link)
		}, "is a symbolic link"},
		"a hard link": {os.Link, "is a hard link"},
		"a folder":    {func(_, link string) error { return os.Mkdir(link, 0o755) }, "is not a regular file"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			outside := filepath.Join(root, "outside.bin")
			dir := filepath.Join(root, "model")
			for _, err := range []error{os.WriteFile(outside, data, 0o644), os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(dir, "m.onnx"), graph, 0o644), tt.lay(outside, filepath.Join(dir, "link.bin"))} {
				if err != nil {
					t.Fatal(err)
				}
			}
			_, err := Open(filepath.Join(dir, "m.onnx"))
			if failure.CodeOf(err) != failure.Model || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error is %v", err)
			}
		})
	}
	testkit.RecordFaults(t, testkit.FaultRow{Kind: "hostile external data", Tried: int64(len(tests)), Detail: "links"})
}

func TestSymbolicLinkToAFolderOnTheWayIsRefused(t *testing.T) {
	root := t.TempDir()
	other := filepath.Join(root, "other")
	dir := filepath.Join(root, "model")
	if err := os.MkdirAll(other, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	m := New(relu(LargeTensor), dir)
	if err := m.Save(filepath.Join(dir, "m.onnx"), SaveOptions{External: Always}); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, "m.onnx.data"), filepath.Join(other, "w.bin")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(other, filepath.Join(dir, "sub")); err != nil {
		t.Fatal(err)
	}
	p := openRaw(t, filepath.Join(dir, "m.onnx"))
	p.Graph.Initializer[0].ExternalData[0].Value = ptr("sub/w.bin")
	path := filepath.Join(dir, "linked.onnx")
	if err := os.WriteFile(path, marshal(t, p), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path); failure.CodeOf(err) != failure.Model || !strings.Contains(err.Error(), "symbolic link") {
		t.Errorf("error is %v", err)
	}
}

func TestTypedAndRawDataReadAlike(t *testing.T) {
	testkit.HoldsCase(t, "o05-typed-data-fields")
	typed, raw := openModel(t, caseFile("o05-typed-data-fields", "typed.onnx")), openModel(t, caseFile("o05-typed-data-fields", "raw.onnx"))
	if len(typed.Graph().Initializer) != 11 {
		t.Fatalf("%d tensors", len(typed.Graph().Initializer))
	}
	for i, a := range typed.Graph().Initializer {
		b := raw.Graph().Initializer[i]
		x, err := typed.TensorData(a)
		if err != nil {
			t.Fatal(err)
		}
		y, err := raw.TensorData(b)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(x, y); d != "" {
			t.Errorf("%s: typed against raw:\n%s", a.GetName(), d)
		}
	}
	h, _ := typed.TensorData(typed.Graph().Initializer[0])
	if got := h.Float64At(0); got != 1.5 {
		t.Errorf("first fp16 value is %g, want 1.5", got)
	}
	s, _ := typed.TensorData(typed.Graph().Initializer[8])
	if d := cmp.Diff([]string{"a\x00b", "é"}, s.Strings); d != "" {
		t.Errorf("strings (-want +got):\n%s", d)
	}
}

func TestWrongTensorDataIsRefusedByName(t *testing.T) {
	testkit.HoldsCase(t, "o05-typed-data-fields")
	for file, want := range map[string]string{
		"too_few_values.onnx":     `read tensor "w": float_data has 3 values, its shape float32[4] needs 4`,
		"two_fields_at_once.onnx": `read tensor "w": data in two fields at once: raw_data and float_data`,
	} {
		_, err := Open(caseFile("o05-typed-data-fields", file))
		if failure.CodeOf(err) != failure.Model || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error is %v", file, err)
		}
	}
	m := openModel(t, caseFile("o05-typed-data-fields", "int4_odd_count.onnx"))
	d, err := m.TensorData(m.Graph().Initializer[0])
	if err != nil || len(d.Data) != 2 || d.Data[0] != 0x78 || d.Data[1]&0xf != 0xf {
		t.Errorf("packed int4 is %x, %v; want -8 7 -1", d.Data, err)
	}
}

func TestOrderNamesAndDefinitions(t *testing.T) {
	testkit.HoldsCase(t, "o06-order-and-names")
	tests := map[string]struct {
		want string // of the error
		note string
	}{
		"unsorted.onnx":            {note: "the nodes of the graph were not in topological order and were sorted"},
		"unsorted_in_branch.onnx":  {note: "the nodes of /If/then_branch were not in topological order and were sorted"},
		"same_node_name.onnx":      {note: `several nodes are named "n"`},
		"no_node_names.onnx":       {},
		"dead_code.onnx":           {},
		"value_defined_twice.onnx": {want: `value "a" is defined twice, the second time by node q`},
		"cycle.onnx":               {want: `in a circle: p reads "z2" of q reads "z1" of p`},
		"undefined_input.onnx":     {want: `node /Add reads "ghost", which nothing defines`},
		"output_never_made.onnx":   {want: `output "y" is never made`},
	}
	for file, tt := range tests {
		t.Run(file, func(t *testing.T) {
			m, err := Open(caseFile("o06-order-and-names", file))
			if tt.want != "" {
				if failure.CodeOf(err) != failure.Model || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("error is %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if notes := strings.Join(m.Notes, "\n"); !strings.Contains(notes, tt.note) || (tt.note == "") != (notes == "") {
				t.Errorf("notes are %q", notes)
			}
		})
	}
	m := openModel(t, caseFile("o06-order-and-names", "unsorted.onnx"))
	var ops []string
	for _, n := range m.Graph().Node {
		ops = append(ops, n.GetOpType())
	}
	if d := cmp.Diff([]string{"Neg", "Relu", "Add"}, ops); d != "" {
		t.Errorf("order (-want +got):\n%s", d)
	}
}

func TestFunctionsMustMeanTheSameAsInTheModel(t *testing.T) {
	testkit.HoldsCase(t, "o07-local-functions")
	_, err := Open(caseFile("o07-local-functions", "function_opset_11_in_18.onnx"))
	want := "check function acme.Up: its body is written for opset 11, the model imports opset 18, and Unsqueeze means something else in them"
	if failure.CodeOf(err) != failure.Model || !strings.Contains(err.Error(), want) {
		t.Errorf("error is %v", err)
	}
	for _, file := range []string{"same_constant_name.onnx", "attribute_refs_nested.onnx"} {
		openModel(t, caseFile("o07-local-functions", file))
	}
}

func TestEmptyNamesAreNoValues(t *testing.T) {
	testkit.HoldsCase(t, "o09-empty-optional-names")
	for _, file := range []string{"empty_inputs.onnx", "empty_outputs.onnx", "empty_outputs_valid.onnx", "split_empty_output.onnx", "split_empty_output18.onnx"} {
		m := openModel(t, caseFile("o09-empty-optional-names", file))
		x := NewIndex(m.Graph())
		if x.Producers[""] != nil || x.Uses[""] != 0 || x.Readers[""] != nil {
			t.Errorf("%s: the empty name is in the index", file)
		}
	}
}

func TestInputsAreThoseThatMustBeFed(t *testing.T) {
	testkit.HoldsCase(t, "o01-initializers-as-inputs")
	tests := map[string]struct{ inputs, overridable string }{
		"ir3.onnx":                       {"[data float32[N,3,4,4]]", "[]"},
		"ir4_overridable.onnx":           {"[data float32[N,3,4,4]]", "[w float32[2,3,3,3] sc float32[2] b float32[2] mean float32[2] var float32[2]]"},
		"ir4_constant.onnx":              {"[data float32[N,3,4,4]]", "[]"},
		"ir3_invalid_not_in_inputs.onnx": {"[data float32[N,3,4,4]]", "[]"},
	}
	for file, tt := range tests {
		m := openModel(t, caseFile("o01-initializers-as-inputs", file))
		if got := fmt.Sprint(m.Inputs()); got != tt.inputs {
			t.Errorf("%s: inputs are %s", file, got)
		}
		if got := fmt.Sprint(m.Overridable()); got != tt.overridable {
			t.Errorf("%s: overridable inputs are %s", file, got)
		}
	}
}

func TestShapesSayWhatIsKnown(t *testing.T) {
	testkit.HoldsCase(t, "o13-shared-or-missing-dims")
	tests := map[string]struct {
		input string
		notes []string
	}{
		"no_rank.onnx":                  {"x float32 of unknown rank", []string{"x has no shape: not even its rank is known"}},
		"unnamed_dim.onnx":              {"x float32[?,4]", nil},
		"dim_value_0.onnx":              {"x float32[?,4]", []string{"dimension 0 of x is declared as 0: taken as unknown"}},
		"dim_value_minus1.onnx":         {"x float32[?,4]", []string{"dimension 0 of x is declared as -1: taken as unknown"}},
		"shared_symbol.onnx":            {"a float32[batch,4]", nil},
		"batch_not_first.onnx":          {"x float32[seq,batch,4]", nil},
		"symbol_looks_like_number.onnx": {"x float32[batch,3]", nil},
		"symbol_with_spaces.onnx":       {"x float32[batch size; rm,4]", nil},
		"names_needing_escape.onnx":     {"in/put:0 float32[batch,4]", nil},
	}
	for file, tt := range tests {
		m := openModel(t, caseFile("o13-shared-or-missing-dims", file))
		in := m.Inputs()[0]
		if in.String() != tt.input {
			t.Errorf("%s: input is %q, want %q", file, in, tt.input)
		}
		if d := cmp.Diff(tt.notes, in.Notes()); d != "" {
			t.Errorf("%s: notes (-want +got):\n%s", file, d)
		}
	}
	three := openModel(t, caseFile("o13-shared-or-missing-dims", "symbol_looks_like_number.onnx")).Inputs()[0].Dims[1]
	if three.Fixed() || three.Symbol != "3" {
		t.Errorf("the symbol 3 is %+v", three)
	}
}

func TestUnsupportedOperatorsAreListedWithEveryNode(t *testing.T) {
	testkit.HoldsCase(t, "e07-unknown-ops", "o07-local-functions")
	onlyStandard := func(domain, _ string) bool { return domain == "" }
	m := openModel(t, caseFile("e07-unknown-ops", "model.onnx"))
	want := []OperatorCount{
		{Domain: "acme.ops", Op: "Foo", Count: 2, Nodes: []string{"/foo_0", "/If/then_branch: /if/then"}},
		{Domain: "com.microsoft", Op: "Gelu", Count: 1, Nodes: []string{"/gelu"}},
	}
	if d := cmp.Diff(want, m.Unsupported(onlyStandard)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	_, err := Open(caseFile("e07-unknown-ops", "domain_not_imported.onnx"))
	if failure.CodeOf(err) != failure.Model || !strings.Contains(err.Error(), `check node /foo: its domain "acme.ops" is not imported by the model`) {
		t.Errorf("error is %v", err)
	}
	// Functions are looked into, and calls of them are no unknown operators.
	m = openModel(t, caseFile("o07-local-functions", "attribute_refs_nested.onnx"))
	got := m.Unsupported(func(domain, op string) bool { return op != "LeakyRelu" })
	if len(got) != 1 || got[0].Nodes[0] != "function acme.Lk: /lk" {
		t.Errorf("unsupported are %+v", got)
	}
}

func ptr[T any](v T) *T { return &v }
