package provenance_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/provenance"
	"github.com/trtship/trtship/report"
)

func sorted(list []string) []string {
	list = slices.Clone(list)
	slices.Sort(list)
	return list
}

func run() provenance.Run {
	return provenance.Run{
		ID: "2026-03-01_0a1b2c", Started: time.Unix(1000, 0), Finished: time.Unix(1060, 0), Model: "digits", Config: artifact.Digest(sum("config")),
		Tool: report.Tool{Name: "trtship", Version: "v1"}, Go: "go1.26",
		Env:    report.Environment{OS: "Linux", Cores: 2, Tools: map[string]string{"torch": "2.11"}, Git: &report.Git{Commit: strings.Repeat("a", 40)}},
		Stages: map[string]artifact.Digest{"export": artifact.Digest(sum("key"))},
		Subjects: []provenance.File{
			{Path: "artifacts/onnx/model.onnx", Digest: artifact.Digest(sum("onnx")), Artifact: "onnx-123", Stage: "export"},
			{Path: "artifacts/a/x", Digest: artifact.Digest(sum("x")), Artifact: "a-1", Stage: "export"},
		},
		Materials: []provenance.Material{
			provenance.FileMaterial("model.py", artifact.Digest(sum("model")), "export"),
			provenance.FileMaterial("model.py", artifact.Digest(sum("model")), "inspect"),
			provenance.FileMaterial("/home/alice/env/lib/python3.11/site-packages/Torch_Vision-0.26.0+cpu.dist-info/RECORD", artifact.Digest(sum("r")), "export"),
			provenance.FileMaterial("/home/alice/data/weights.pt", artifact.Digest(sum("w")), "export"),
			provenance.ToolMaterial("torch", "2.11.0", "export"),
			provenance.ToolMaterial("python sources", "ffcb", "export"),
		},
		Byproducts: []provenance.File{{Path: "report.json", Digest: artifact.Digest(sum("report"))}},
	}
}

// document is what a reader of the specification sees.
type document struct {
	Type      string       `json:"_type"`
	Predicate string       `json:"predicateType"`
	Subject   []descriptor `json:"subject"`
	Slsa      struct {
		Definition struct {
			Type         string         `json:"buildType"`
			External     map[string]any `json:"externalParameters"`
			Internal     map[string]any `json:"internalParameters"`
			Dependencies []descriptor   `json:"resolvedDependencies"`
		} `json:"buildDefinition"`
		Details struct {
			Builder struct {
				ID      string            `json:"id"`
				Version map[string]string `json:"version"`
			} `json:"builder"`
			Metadata   map[string]string `json:"metadata"`
			Byproducts []descriptor      `json:"byproducts"`
		} `json:"runDetails"`
	} `json:"predicate"`
}

type descriptor struct {
	Name        string            `json:"name"`
	URI         string            `json:"uri,omitempty"`
	Digest      map[string]string `json:"digest,omitempty"`
	Annotations map[string]any    `json:"annotations,omitempty"`
}

func TestAStatementSaysWhatWasMadeFromWhat(t *testing.T) {
	text, err := provenance.Encode(run())
	if err != nil {
		t.Fatal(err)
	}
	var d document
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	if d.Type != "https://in-toto.io/Statement/v1" || d.Predicate != "https://slsa.dev/provenance/v1" || d.Slsa.Definition.Type != provenance.BuildType || d.Slsa.Details.Builder.ID != provenance.BuilderID {
		t.Errorf("types %q %q %q %q", d.Type, d.Predicate, d.Slsa.Definition.Type, d.Slsa.Details.Builder.ID)
	}
	hex := func(s string) map[string]string { return map[string]string{"sha256": sum(s)[7:]} }
	subjects := []descriptor{
		{Name: "artifacts/a/x", Digest: hex("x"), Annotations: map[string]any{"artifact": "a-1", "stage": "export"}},
		{Name: "artifacts/onnx/model.onnx", Digest: hex("onnx"), Annotations: map[string]any{"artifact": "onnx-123", "stage": "export"}},
	}
	if diff := cmp.Diff(subjects, d.Subject); diff != "" {
		t.Errorf("subjects (-want +got):\n%s", diff)
	}
	stages := func(names ...any) map[string]any { return map[string]any{"stages": names} }
	deps := []descriptor{
		{Name: "configuration", Digest: hex("config")},
		{Name: "model.py", Digest: hex("model"), Annotations: stages("export", "inspect")},
		{Name: "python package torch-vision RECORD", URI: "pkg:pypi/torch-vision@0.26.0%2Bcpu", Digest: hex("r"), Annotations: stages("export")},
		{Name: "tool python sources", URI: "pkg:generic/python-sources@ffcb", Annotations: stages("export")},
		{Name: "tool torch", URI: "pkg:generic/torch@2.11.0", Annotations: stages("export")},
		{Name: "weights.pt", Digest: hex("w"), Annotations: stages("export")},
		{Name: "source repository", Digest: map[string]string{"gitCommit": strings.Repeat("a", 40)}, Annotations: map[string]any{"dirty": false}},
	}
	if diff := cmp.Diff(deps, d.Slsa.Definition.Dependencies); diff != "" {
		t.Errorf("materials (-want +got):\n%s", diff)
	}
	if d.Slsa.Details.Metadata["invocationId"] != "2026-03-01_0a1b2c" || len(d.Slsa.Details.Byproducts) != 1 {
		t.Errorf("metadata %v, byproducts %v", d.Slsa.Details.Metadata, d.Slsa.Details.Byproducts)
	}
	if strings.Contains(string(text), "alice") || strings.Contains(string(text), "/home") {
		t.Error("a path of the machine is in the statement")
	}
}

func TestEqualRunsGiveEqualBytes(t *testing.T) {
	first, err := provenance.Encode(run())
	if err != nil {
		t.Fatal(err)
	}
	again := run()
	slices.Reverse(again.Subjects)
	for range 20 {
		text, err := provenance.Encode(again)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(first), string(text)); diff != "" {
			t.Fatalf("the bytes differ:\n%s", diff)
		}
	}
}

func TestWhatIsNoStatementIsNotWritten(t *testing.T) {
	for name, change := range map[string]func(r *provenance.Run){
		"without a subject":             func(r *provenance.Run) { r.Subjects = nil },
		"a subject without a digest":    func(r *provenance.Run) { r.Subjects[0].Digest = "" },
		"a subject that is there twice": func(r *provenance.Run) { r.Subjects[1] = r.Subjects[0] },
		"a subject outside":             func(r *provenance.Run) { r.Subjects[0].Path = "../x" },
		"a digest of another form":      func(r *provenance.Run) { r.Subjects[0].Digest = "sha256:12" },
	} {
		r := run()
		change(&r)
		if _, err := provenance.Encode(r); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestACommitOfASha256RepositoryIsToldToo(t *testing.T) {
	r := run()
	r.Env.Git.Commit = strings.Repeat("b", 64)
	text, err := provenance.Encode(r)
	if err != nil || !strings.Contains(string(text), `"commit": "`+r.Env.Git.Commit) {
		t.Errorf("error %v", err)
	}
}

func TestAStatementIsReadBack(t *testing.T) {
	text, err := provenance.Encode(run())
	if err != nil {
		t.Fatal(err)
	}
	s, err := provenance.Decode(text)
	if err != nil {
		t.Fatal(err)
	}
	want := []provenance.Want{{Path: "artifacts/a/x", Digest: sum("x"), Size: -1}, {Path: "artifacts/onnx/model.onnx", Digest: sum("onnx"), Size: -1}}
	if diff := cmp.Diff(want, s.Subjects); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]provenance.Want{{Path: "report.json", Digest: sum("report"), Size: -1}}, s.Byproducts); diff != "" {
		t.Error(diff)
	}
	if lacking := s.Covers([]provenance.Want{{Path: "elsewhere", Digest: sum("x")}, {Path: "b", Digest: sum("b")}, {Path: "a"}}); !slices.Equal(lacking, []string{"a", "b"}) {
		t.Errorf("lacking %v", lacking)
	}
}

func TestAHostileStatementIsRefused(t *testing.T) {
	deep := strings.Repeat(`{"a":`, 20000) + "1" + strings.Repeat("}", 20000)
	for name, tt := range map[string]struct{ text, want string }{
		"nothing":                  {"", "no in-toto statement"},
		"garbage":                  {"\x00\xff\x17", "no in-toto statement"},
		"a list":                   {"[]", "no in-toto statement"},
		"another type":             {`{"_type":"https://in-toto.io/Statement/v0.1","subject":[{"name":"a"}]}`, "its type is"},
		"no subject":               {`{"_type":"https://in-toto.io/Statement/v1","subject":[]}`, "no subject"},
		"a field that is two":      {`{"_type":"https://in-toto.io/Statement/v1","subject":[{"name":"a"}],"subject":[]}`, "duplicate"},
		"a predicate without form": {`{"_type":"https://in-toto.io/Statement/v1","subject":[{"name":"a"}],"predicateType":"https://slsa.dev/provenance/v1","predicate":{"runDetails":[1]}}`, "no SLSA provenance"},
		"a digest that is a list":  {`{"_type":"https://in-toto.io/Statement/v1","subject":[{"name":"a","digest":["x"]}]}`, "no in-toto statement"},
		"one that nests too deep":  {`{"_type":"https://in-toto.io/Statement/v1","subject":[{"name":"a"}],"predicate":` + deep + `}`, "no in-toto statement"},
		"one that is too large":    {strings.Repeat(" ", provenance.MaxBytes+1), "more than the"},
	} {
		if _, err := provenance.Decode([]byte(tt.text)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want %q", name, err, tt.want)
		}
	}
	s, err := provenance.Decode([]byte(`{"_type":"https://in-toto.io/Statement/v1","subject":[{"name":"../a","digest":{"md5":"x"}}],"predicateType":"other","new":1}`))
	if err != nil || s.Subjects[0].Digest != "" || s.Subjects[0].Path != "../a" {
		t.Errorf("a field that is not known: %+v, %v", s, err)
	}
}

func FuzzDecode(f *testing.F) {
	text, err := provenance.Encode(run())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"_type":"https://in-toto.io/Statement/v1","subject":[{"name":"../../etc/passwd","digest":{"sha256":"AA"}},{"name":"../../etc/passwd"}]}`))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := provenance.Decode(text)
		if err != nil {
			return
		}
		found, err := provenance.CheckFiles(t.Context(), dir, s.Subjects, true)
		if err != nil || found.Files != 0 || len(found.Problems) == 0 {
			t.Errorf("of an empty folder %d files were hashed, %d problems, error %v", found.Files, len(found.Problems), err)
		}
	})
}

func TestAToolIsNamedOnce(t *testing.T) {
	for version, want := range map[string]string{
		"server 2.51.0": "pkg:generic/server@2.51.0",
		"2.51.0":        "pkg:generic/server@2.51.0",
		"serverless":    "pkg:generic/server@serverless",
	} {
		if got := provenance.ToolMaterial("server", version, "served").URI; got != want {
			t.Errorf("%q: %s, want %s", version, got, want)
		}
	}
}
