package report_test

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"

	"github.com/trtship/trtship/report"
	"github.com/trtship/trtship/report/reporttest"
)

func TestAReportSurvivesWritingAndReading(t *testing.T) {
	for _, c := range reporttest.Cases() {
		t.Run(c.Name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "report.json")
			if err := c.Report.Write(path); err != nil {
				t.Fatal(err)
			}
			got, err := report.Read(path)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(c.Report, got); d != "" {
				t.Errorf("-written +read:\n%s", d)
			}
			first, _ := os.ReadFile(path)
			if err := got.Write(path); err != nil {
				t.Fatal(err)
			}
			if second, _ := os.ReadFile(path); !bytes.Equal(first, second) {
				t.Error("reading and writing again gives other bytes")
			}
			if entries, _ := os.ReadDir(filepath.Dir(path)); len(entries) != 1 {
				t.Errorf("%d files are left, want the report alone", len(entries))
			}
		})
	}
}

func TestNumbersThatAreNotFiniteSurvive(t *testing.T) {
	r := reporttest.Full()
	row := &r.Validations[0].Rows[0]
	row.Metrics = map[string]report.Number{"a": report.Number(math.NaN()), "b": report.Number(math.Inf(1)), "c": report.Number(math.Inf(-1))}
	b, err := report.Encode(r)
	if err != nil {
		t.Fatal(err)
	}
	if !json.Valid(b) {
		t.Fatal("not JSON")
	}
	got, err := report.Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	m := got.Validations[0].Rows[0].Metrics
	if !math.IsNaN(float64(m["a"])) || !math.IsInf(float64(m["b"]), 1) || !math.IsInf(float64(m["c"]), -1) {
		t.Errorf("metrics %v", m)
	}
}

func TestEncodingIsLaidOutForPeople(t *testing.T) {
	got, err := report.Encode(map[string]any{"b": []float64{1, 2.5}, "a": []any{}, "c": map[string]any{}, "d": []any{map[string]any{"x": "<a,b>:[\"\\"}}, "e": [][]int{{1}, {2, 3}}})
	if err != nil {
		t.Fatal(err)
	}
	want := `{
  "a": [],
  "b": [1, 2.5],
  "c": {},
  "d": [
    {
      "x": "<a,b>:[\"\\"
    }
  ],
  "e": [
    [1],
    [2, 3]
  ]
}
`
	if d := cmp.Diff(want, string(got)); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

func TestWhatIsNoReportIsRefusedWithItsReason(t *testing.T) {
	full := func(change func(m map[string]any)) string {
		b, err := report.Encode(reporttest.Full())
		if err != nil {
			t.Fatal(err)
		}
		var m map[string]any
		if err := json.Unmarshal(b, &m); err != nil {
			t.Fatal(err)
		}
		change(m)
		b, err = json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	stage := func(m map[string]any, i int) map[string]any { return m["stages"].([]any)[i].(map[string]any) }
	for name, c := range map[string]struct{ text, want string }{
		"an empty file":               {"", "the file is empty"},
		"half a file":                 {"{\n  \"format\": \"trtship", "line 2, column 20: not JSON"},
		"two documents":               {full(func(map[string]any) {}) + "{}", "not JSON"},
		"another JSON file":           {`{"name": "x"}`, "this is not a trtship report"},
		"an array":                    {`[]`, "is a JSON array"},
		"a later format":              {full(func(m map[string]any) { m["format"] = "trtship-report/2" }), `format is "trtship-report/2", this program reads "trtship-report/1"`},
		"a number as text":            {full(func(m map[string]any) { m["exit_code"] = "0" }), "exit_code is a JSON string, want a whole number"},
		"a verdict that nobody knows": {full(func(m map[string]any) { m["verdict"] = "fine" }), `verdict "fine" is none of`},
		"a stage's verdict":           {full(func(m map[string]any) { stage(m, 1)["verdict"] = "ok" }), `stage export: verdict "ok" is none of`},
		"a check's verdict": {full(func(m map[string]any) {
			stage(m, 1)["checks"].([]any)[0].(map[string]any)["verdict"] = ""
		}), `stage export: check export/signature: verdict "" is none of`},
		"a check without a proper id": {full(func(m map[string]any) {
			stage(m, 1)["checks"].([]any)[0].(map[string]any)["id"] = "Export"
		}), `id "Export" is not <stage>/<kebab-case>`},
		"a stage twice":                         {full(func(m map[string]any) { stage(m, 1)["name"] = "inspect" }), `name "inspect" is empty or there twice`},
		"a row's verdict":                       {full(func(m map[string]any) { row(m)["verdict"] = "nice" }), `validations[0].rows[0]: verdict "nice"`},
		"more breaches than there are elements": {full(func(m map[string]any) { row(m)["breaches"] = 1e9 }), "breaches of"},
		"a hardware setting that nobody knows":  {full(func(m map[string]any) { m["settings"].(map[string]any)["hardware"] = "auto" }), `settings.hardware is "auto"`},
		"a bad number":                          {full(func(m map[string]any) { row(m)["tolerance"].(map[string]any)["atol"] = "1e-3" }), `number "1e-3"`},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "report.json")
			if err := os.WriteFile(path, []byte(c.text), 0o644); err != nil {
				t.Fatal(err)
			}
			_, err := report.Read(path)
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "read report") {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
}

func row(m map[string]any) map[string]any {
	return m["validations"].([]any)[0].(map[string]any)["rows"].([]any)[0].(map[string]any)
}

func TestFieldsOfLaterVersionsAreIgnored(t *testing.T) {
	b, _ := report.Encode(reporttest.Full())
	b = bytes.Replace(b, []byte(`"tool"`), []byte(`"later": {"x": 1}, "tool"`), 1)
	if _, err := report.Decode(b); err != nil {
		t.Error(err)
	}
}

func TestFilesThatCannotBeRead(t *testing.T) {
	dir := t.TempDir()
	if _, err := report.Read(filepath.Join(dir, "none.json")); err == nil || !os.IsNotExist(unwrapAll(err)) {
		t.Errorf("error %v, want a file that is not there", err)
	}
	if _, err := report.Read(dir); err == nil || !strings.Contains(err.Error(), "is not a file") {
		t.Errorf("error %v, want that a folder is no file", err)
	}
	big := filepath.Join(dir, "big.json")
	f, err := os.Create(big)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(report.MaxBytes + 1); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := report.Read(big); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("error %v, want that the file is too big", err)
	}
	if err := reporttest.Full().Write(filepath.Join(dir, "no", "such", "report.json")); err == nil {
		t.Error("writing into a folder that is not there succeeded")
	}
}

func unwrapAll(err error) error {
	for {
		u, ok := err.(interface{ Unwrap() error })
		if !ok {
			return err
		}
		if pe, ok := err.(*os.PathError); ok {
			return pe
		}
		err = u.Unwrap()
	}
}

func TestGateFilesAreReadStrictly(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return p
	}
	if g, err := report.ReadGate(write("good.json", `{"format":"trtship-gate/1","verdict":"pass"}`)); err != nil || g.Verdict != report.Pass {
		t.Errorf("%v, %v", g, err)
	}
	for name, text := range map[string]string{"format.json": `{"verdict":"pass"}`, "verdict.json": `{"format":"trtship-gate/1","verdict":"good"}`, "half.json": `{`} {
		if _, err := report.ReadGate(write(name, text)); err == nil {
			t.Errorf("%s was read", name)
		}
	}
	if _, err := report.ReadGate(filepath.Join(dir, "none.json")); err == nil {
		t.Error("a file that is not there was read")
	}
}

func FuzzDecode(f *testing.F) {
	// A little of everything: whole reports are too long to be changed with effect.
	small := reporttest.Full()
	small.Stages, small.Validations, small.Artifacts = small.Stages[:2], small.Validations[:1], small.Artifacts[:1]
	small.Validations[0].Rows, small.Validations[0].Points = small.Validations[0].Rows[:1], small.Validations[0].Points[:1]
	small.Benchmark.Rows = small.Benchmark.Rows[:1]
	small.Benchmark.Rows[0].Samples = small.Benchmark.Rows[0].Samples[:5]
	b, err := report.Encode(small)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`{"format":"trtship-report/1","settings":{"hardware":"optional"},"verdict":"pass","stages":[{"name":"a","verdict":"fail","checks":[{"id":"a/b","verdict":"broken","detail":"\u001b[1m]]>"}]}]}`))
	// Short ones, of which most bytes are keys and values that something is made of.
	head := `{"format":"trtship-report/1","settings":{"hardware":"optional"},"verdict":"pass",`
	list := func(item string) string { return "[" + strings.TrimSuffix(strings.Repeat(item+",", 6), ",") + "]" }
	f.Add([]byte(head + `"validations":` + list(`{"points":[{}],"rows":[{"elements":2,"breaches":1,"verdict":"fail"}]}`) + "}"))
	f.Add([]byte(head + `"benchmark":{"rows":` + list(`{"samples":[1,2,"+Inf"],"phases":{"execute":{"p50":1}}}`) + `,"skipped":[{"verdict":"skip"}]}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := report.Decode(b)
		if err != nil {
			return
		}
		again, err := report.Encode(r)
		if err != nil {
			t.Fatalf("a report that was read cannot be written: %v", err)
		}
		if _, err := report.Decode(again); err != nil {
			t.Fatalf("a report that was written cannot be read: %v", err)
		}
		v := report.View{Report: r}
		if _, err := report.JUnit(v); err != nil {
			t.Fatal(err)
		}
		if s := report.Markdown(v, report.MarkdownOptions{Limit: 3000}); len(s) > 3000 {
			t.Fatalf("%d bytes of Markdown, the limit is 3000", len(s))
		}
		for form, s := range map[string]string{
			"Markdown": report.Markdown(v, report.MarkdownOptions{}), "HTML": string(report.HTML(v)), "text": report.Text(v, report.TextOptions{Width: 80}),
		} {
			if i := strings.IndexFunc(s, func(r rune) bool { return unicode.IsControl(r) && r != '\n' && r != '\t' }); i >= 0 {
				t.Fatalf("a control character in %s: %q", form, s[max(0, i-20):min(len(s), i+20)])
			}
		}
	})
}
