package calibration

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/testkit"
)

const cases = "../../testdata/cases/t03-calibration-cache"

// caseGraph is the model of the cases: x -> Mul -> Relu.
var caseGraph = Graph{Tensors: []string{"data:0", "/mul/Mul_output_0", "y"}}

func judge(t *testing.T, name string) *Verdict {
	t.Helper()
	path := filepath.Join(cases, name+".cache")
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	v := Check(before, Expectation{Version: 101600, Token: TokenEntropy2, Graph: caseGraph})
	after, err := os.ReadFile(path)
	if err != nil || string(after) != string(before) {
		t.Errorf("%s was modified", path)
	}
	return v
}

func TestEveryCacheOfTheFieldGetsItsVerdict(t *testing.T) {
	testkit.HoldsCase(t, "t03-calibration-cache")
	text, err := os.ReadFile(filepath.Join(cases, "expect.json"))
	if err != nil {
		t.Fatal(err)
	}
	var expect map[string]string
	if err := json.Unmarshal(text, &expect); err != nil {
		t.Fatal(err)
	}
	// What the problems must say, for each cache that is refused.
	say := map[string][]string{
		"other_graph":     {"2 of 2 names not in the model: 167, input.1", "3 of 3 tensors without a scale (coverage 0.0%)"},
		"one_missing":     {"1 of 3 names not in the model: z", "1 of 3 tensors without a scale (coverage 66.7%): y"},
		"older_trt":       {"8203", "101600", "8.2.3", "10.16.0"},
		"other_algorithm": {"MinMaxCalibration", "EntropyCalibration2"},
		"infinity":        {"line 3: /mul/Mul_output_0: scale is +Inf", "line 4: y: scale is +Inf"},
		"zero":            {"line 3: /mul/Mul_output_0: scale is 0", "line 4: y: scale is 0"},
		"nan":             {"line 3: /mul/Mul_output_0: scale is NaN", "line 4: y: scale is NaN"},
		"negative":        {"line 4: y: scale -0.02", "is negative"},
		"truncated":       {`line 4: y: "3ca" is not 8 hexadecimal digits`},
		"no_header":       {`line 1: "data:0: 3c23d70a" is no header`, "TRT-101600-EntropyCalibration2"},
		"empty":           {"the cache is empty"},
		"twice":           {"line 5: y has a scale already on line 4"},
		"hex_prefix":      {`line 2: data:0: "0x3c23d70a" is not 8 hexadecimal digits`},
		"json_not_cache":  {`"{\"y\": 0.02}" is no header`, "TRT-101600-EntropyCalibration2"},
	}
	if len(expect) != 16 || len(say)+2 != len(expect) {
		t.Fatalf("%d expectations, %d tested", len(expect), len(say))
	}
	for name := range expect {
		v := judge(t, name)
		if name == "good" || name == "crlf" {
			if !v.OK() || v.Covered != 3 || v.Coverage != 100 {
				t.Errorf("%s: %+v", name, v)
			}
			if err := v.Err(name); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if v.OK() {
			t.Errorf("%s was accepted", name)
			continue
		}
		var all []string
		for _, p := range v.Problems {
			all = append(all, p.String())
		}
		for _, want := range say[name] {
			if !strings.Contains(strings.Join(all, "\n"), want) {
				t.Errorf("%s: %q is not in\n%s", name, want, strings.Join(all, "\n"))
			}
		}
		if code := failure.CodeOf(v.Err(name)); code != failure.Calibration {
			t.Errorf("%s: exit code %d", name, code)
		}
	}
}

func TestCarriageReturnsAreSaid(t *testing.T) {
	if v := judge(t, "crlf"); !slices.Contains(v.Notes, "lines end in CR LF; read as if they ended in LF") {
		t.Errorf("notes %q", v.Notes)
	}
}

func TestEveryMismatchIsListed(t *testing.T) {
	text := "TRT-8601-MinMaxCalibration\ny: 7f800000\nq: 3ca3d70a\nrubbish\n"
	v := Check([]byte(text), Expectation{
		Version: 100600, Token: TokenEntropy2, Graph: caseGraph,
		Sidecar: &Proof{Data: "a", Samples: 5}, Now: &Proof{Data: "b", Samples: 6},
	})
	kinds := map[string]int{}
	for _, p := range v.Problems {
		kinds[p.Kind]++
	}
	want := map[string]int{"header": 2, "scale": 1, "line": 1, "unknown": 1, "uncovered": 1, "proof": 2}
	if d := cmp.Diff(want, kinds); d != "" {
		t.Error(d)
	}
}

func TestTensorRTsOwnNamesAreNoMismatch(t *testing.T) {
	text := "TRT-101600-EntropyCalibration2\ndata:0: 3c23d70a\n/mul/Mul_output_0: 3ca3d70a\ny: 3ca3d70a\n(Unnamed Layer* 0) [Constant]_output: 3c010a14\n"
	v := Check([]byte(text), Expectation{Graph: caseGraph})
	if !v.OK() || len(v.Notes) != 2 {
		t.Errorf("%+v", v)
	}
}

func TestACacheThatIsHeldToNoReleaseSaysSo(t *testing.T) {
	text := "TRT-8601-EntropyCalibration2\ndata:0: 3c23d70a\n/mul/Mul_output_0: 3ca3d70a\ny: 3ca3d70a\n"
	if v := Check([]byte(text), Expectation{Graph: caseGraph}); !v.OK() || len(v.Notes) != 1 || !strings.Contains(v.Notes[0], "made by TensorRT 8.6.1, which was held to no release") {
		t.Errorf("%+v", v)
	}
	if v := Check([]byte(text), Expectation{Graph: caseGraph, Version: 8601}); !v.OK() || len(v.Notes) != 0 {
		t.Errorf("held to its own release: %+v", v)
	}
}

func TestCacheTextComesBack(t *testing.T) {
	c := &Cache{Version: 100600, Token: TokenMinMax, Entries: []Entry{{Name: "z: q", Scale: 0.5}, {Name: "a:0", Scale: 1.0 / 127}}}
	text := c.Bytes()
	want := "TRT-100600-MinMaxCalibration\na:0: 3c010204\nz: q: 3f000000\n"
	if d := cmp.Diff(want, string(text)); d != "" {
		t.Error(d)
	}
	got, problems := ParseCache(text)
	if len(problems) > 0 || got.Scales()["z: q"] != 0.5 || got.Scales()["a:0"] != float32(1.0/127) {
		t.Errorf("%+v %v", got, problems)
	}
}

func TestVersionNumber(t *testing.T) {
	for text, want := range map[string]int{"10.16.0": 101600, "10.6.0.26": 100600, "8.6.1": 8601, "8.2.3": 8203, "11.2.1": 110201, "10.6": 100600} {
		got, err := VersionNumber(text)
		if err != nil || got != want {
			t.Errorf("%s: %d, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "10", "ten.six", "10.x.0", "0.1.0", "-1.2.3", "10.600.0"} {
		if n, err := VersionNumber(text); err == nil {
			t.Errorf("%q became %d", text, n)
		}
	}
	for n, want := range map[int]string{101600: "10.16.0", 8203: "8.2.3", 110201: "11.2.1"} {
		if got := VersionText(n); got != want {
			t.Errorf("%d is %s, want %s", n, got, want)
		}
	}
}

func TestDifferencesOfProofs(t *testing.T) {
	p := Proof{
		Data: "d1", Feeds: "f", Samples: 10, Batch: 4, Preprocess: json.RawMessage(`{"a":1}`), Rule: Rule{Method: Entropy}, Seed: 1,
		Model: "m", Graph: "g", Versions: map[string]string{"onnxruntime": "1.30.0"},
	}
	same := p
	same.Preprocess = json.RawMessage(`{ "a": 1 }`)
	if d := p.Differences(same); len(d) != 0 {
		t.Errorf("equal proofs differ: %q", d)
	}
	if d := p.Differences(Proof{}); len(d) != 0 {
		t.Errorf("an empty proof asks for something: %q", d)
	}
	other := Proof{
		Data: "d2", Feeds: "f2", Samples: 9, Batch: 8, Preprocess: json.RawMessage(`{"a":2}`), Rule: Rule{Method: Percentile, Percentile: 99},
		Seed: 2, Model: "m2", Graph: "g2", Versions: map[string]string{"onnxruntime": "1.31.0"},
	}
	d := p.Differences(other)
	for _, what := range []string{"data", "feeds", "samples", "batch size", "preprocessing", "method", "percentile", "seed", "model", "graph", "onnxruntime"} {
		if !slices.ContainsFunc(d, func(s string) bool { return strings.HasPrefix(s, what+":") }) {
			t.Errorf("%s is not among %q", what, d)
		}
	}
}

func TestReadSidecar(t *testing.T) {
	dir := t.TempDir()
	write := func(text string) string {
		path := filepath.Join(dir, SidecarFile)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	s, err := ReadSidecar(write(`{"format":"trtship-calibration/1","tensors":[{"name":"a","abs_max":"+Inf"},{"name":"c","scale":2}]}`))
	if err != nil {
		t.Fatal(err)
	}
	if r, ok := s.Range("c"); !ok || r.Scale != 2 {
		t.Errorf("%+v %t", r, ok)
	}
	if r, ok := s.Range("a"); !ok || !math.IsInf(float64(r.AbsMax), 1) {
		t.Errorf("%+v %t", r, ok)
	}
	for _, name := range []string{"", "b", "d"} {
		if _, ok := s.Range(name); ok {
			t.Errorf("%q was found", name)
		}
	}
	for _, text := range []string{"", "{}", `{"format":"trtship-calibration/2"}`, "[]"} {
		if _, err := ReadSidecar(write(text)); failure.CodeOf(err) != failure.Calibration {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := ReadSidecar(filepath.Join(dir, "none")); failure.CodeOf(err) != failure.Artifact {
		t.Errorf("a missing file: %v", err)
	}
}

func FuzzParseCache(f *testing.F) {
	files, err := filepath.Glob(filepath.Join(cases, "*.cache"))
	if err != nil || len(files) != 16 {
		f.Fatalf("%d caches, %v", len(files), err)
	}
	for _, path := range files {
		text, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		c, problems := ParseCache(text)
		Check(text, Expectation{Version: 1, Token: TokenEntropy2, Graph: caseGraph})
		if len(problems) > 0 {
			return
		}
		if !slices.Contains(tokens, c.Token) || c.Version <= 0 {
			t.Fatalf("header %q of %q was accepted", c.Header(), text)
		}
		for _, e := range c.Entries {
			if s := float64(e.Scale); !(s > 0) || math.IsInf(s, 0) {
				t.Fatalf("scale %g of %q was accepted", e.Scale, text)
			}
		}
		again, problems := ParseCache(c.Bytes())
		if len(problems) > 0 {
			t.Fatalf("%q was accepted, what was written of it is not: %v", text, problems)
		}
		if d := cmp.Diff(c.Scales(), again.Scales()); d != "" {
			t.Fatal(d)
		}
	})
}

// TensorRT passes a cache over whose algorithm is not that of the calibrator's class.
func TestTheBuilderHasACalibratorForEveryAlgorithmThatIsWritten(t *testing.T) {
	source, err := os.ReadFile(filepath.Join(testkit.Root(t), "internal", "worker", "python", "trt_build.py"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []Method{MinMax, Percentile, Entropy, EntropyORT} {
		token := string(TokenOf(m))
		class := map[string]string{"EntropyCalibration2": "IInt8EntropyCalibrator2", "MinMaxCalibration": "IInt8MinMaxCalibrator"}[token]
		if want := fmt.Sprintf("%q: %q", token, class); class == "" || !strings.Contains(string(source), want) {
			t.Errorf("method %s writes %s: the builder's table has no %s", m, token, want)
		}
	}
}
