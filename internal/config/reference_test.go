package config

import (
	"encoding/json"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"
)

func TestEveryFieldIsDocumented(t *testing.T) {
	for _, f := range Table() {
		if f.Desc == "" {
			t.Errorf("%s has no description", f.Path)
		}
	}
	if len(Table()) < 150 {
		t.Errorf("the table has %d rows", len(Table()))
	}
}

func TestReferenceHasEveryKey(t *testing.T) {
	text := string(WriteReference())
	for _, f := range Table() {
		if f.Depth > 0 && !strings.Contains(text, "| `"+f.Path+"` |") {
			t.Errorf("%s is not in the reference", f.Path)
		}
	}
}

// TestSchemaAgreesWithTheTable walks the schema along every path of the table.
func TestSchemaAgreesWithTheTable(t *testing.T) {
	b, err := Schema()
	if err != nil {
		t.Fatal(err)
	}
	var root map[string]any
	if err := json.Unmarshal(b, &root); err != nil {
		t.Fatal(err)
	}
	for _, f := range Table() {
		node := root
		for part := range strings.SplitSeq(f.Path, ".") {
			var next any
			switch part {
			case "[]":
				next = node["items"]
			case "<name>":
				next = node["additionalProperties"]
			default:
				next = node["properties"].(map[string]any)[part]
			}
			m, ok := next.(map[string]any)
			if !ok {
				t.Fatalf("%s: the schema ends at %s", f.Path, part)
			}
			node = m
		}
		if node["description"] != f.Desc {
			t.Errorf("%s: description %v", f.Path, node["description"])
		}
	}
}

func TestStarterFilesLoad(t *testing.T) {
	for _, kind := range StarterKinds {
		b, err := Starter("tiny", kind, SchemaFile)
		if err != nil {
			t.Fatal(err)
		}
		c, err := Parse(b, "trtship.yaml", Options{})
		if err != nil {
			t.Errorf("%s: %v", kind, problemsOf(err))
			continue
		}
		if c.Model.Kind != kind || !strings.HasPrefix(string(b), "# yaml-language-server: $schema="+SchemaFile+"\n") {
			t.Errorf("%s: kind %s\n%s", kind, c.Model.Kind, b)
		}
	}
	for _, bad := range [][2]string{{"tiny", "keras"}, {"a b", "onnx"}} {
		if _, err := Starter(bad[0], bad[1], ""); err == nil {
			t.Errorf("Starter(%q, %q) gives no error", bad[0], bad[1])
		}
	}
}

func TestSnapshotLoadsToTheSameSnapshot(t *testing.T) {
	c := parse(t, two, "validation.points=[{ids: [3, 9], mask: [3, 9]}]", "triton.version_policy={latest: {num_versions: 2}}",
		"validation.outputs.hidden={atol: 0.5, tolerances: {fp16: {rtol: 1}}}", "gate.budgets=[{metric: nodes, max: 3}]", "triton.max_batch_size=0")
	b, err := c.Snapshot("")
	if err != nil {
		t.Fatal(err)
	}
	again, err := Parse(b, "c.yaml", Options{})
	if err != nil {
		t.Fatalf("%v\n%s", problemsOf(err), b)
	}
	b2, err := again.Snapshot("")
	if err != nil || string(b) != string(b2) {
		t.Errorf("%v\n%s\n%s", err, b, b2)
	}
	for _, want := range []string{"max_batch_size: 0", "shape: [batch, seq]", "range: [0, 99]", "opset: 17", "atol: 0.5"} {
		if !strings.Contains(string(b), want) {
			t.Errorf("no %q in\n%s", want, b)
		}
	}
}

func TestSnapshotPathsAreRelative(t *testing.T) {
	c, err := Load("testdata/seed-keys.yaml", Options{Set: []string{"calibration.path=/elsewhere", "model.python_path=[src]", "triton.labels.logits=l.txt"}})
	if err != nil {
		t.Fatal(err)
	}
	b, err := c.Snapshot(c.Dir)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]map[string]any
	if err := yaml.Unmarshal(b[strings.Index(string(b), "calibration:"):], &m); err != nil {
		t.Fatal(err)
	}
	if m["calibration"]["path"] != "/elsewhere" {
		t.Errorf("calibration %v", m["calibration"])
	}
	for _, want := range []string{"path: weights.pt", "python_path: [src]", "logits: l.txt"} {
		if !strings.Contains(string(b), want) {
			t.Errorf("no %q in\n%s", want, b)
		}
	}
	if c.Model.PythonPath[0] == "src" {
		t.Error("the snapshot changed the configuration")
	}
}
