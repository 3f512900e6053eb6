package gate_test

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/gate"
	"github.com/trtship/trtship/internal/testkit"
	"github.com/trtship/trtship/report"
	"github.com/trtship/trtship/report/reporttest"
)

const junitCases = "../../testdata/cases/g06-junit"

func TestJUnitFilesOfTheField(t *testing.T) {
	testkit.HoldsCase(t, "g06-junit")
	type want struct {
		verdict report.Verdict
		says    string
	}
	cases := map[string]want{
		"all_skipped.xml":         {report.Missing, "2 skipped or not run"},
		"attrs_lie.xml":           {report.Missing, "1 skipped or not run"},
		"bare_testsuite.xml":      {report.Pass, "1 passed"},
		"disabled_and_notrun.xml": {report.Missing, "1 skipped or not run, 1 passed"},
		"empty.xml":               {report.Broken, "empty"},
		"entity_bomb.xml":         {report.Broken, "entities"},
		"error_only.xml":          {report.Fail, "1 errors"},
		"esc.xml":                 {report.Broken, "not well-formed, byte"},
		"esc_ref.xml":             {report.Broken, "not well-formed, byte"},
		"latin1.xml":              {report.Pass, "1 passed"},
		"nested.xml":              {report.Missing, "1 skipped or not run"},
		"no_tests.xml":            {report.Missing, "0 tests ran"},
		"truncated.xml":           {report.Broken, "not well-formed, byte"},
		"xfail.xml":               {report.Missing, "1 skipped or not run"},
	}
	files, err := filepath.Glob(junitCases + "/*.xml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no case files: %v", err)
	}
	for _, f := range files {
		t.Run(filepath.Base(f), func(t *testing.T) {
			w, ok := cases[filepath.Base(f)]
			if !ok {
				t.Fatalf("no expectation for %s", f)
			}
			checks := gate.ReadJUnit([]string{f}, nil)
			if len(checks) != 1 || checks[0].Verdict != w.verdict || !strings.Contains(checks[0].Got, w.says) {
				t.Errorf("got %+v, want %s with %q", checks, w.verdict, w.says)
			}
		})
	}
	var expect map[string]string
	b, err := os.ReadFile(junitCases + "/expect.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &expect); err != nil {
		t.Fatal(err)
	}
	for name := range expect {
		if _, ok := cases[name]; !ok && strings.HasSuffix(name, ".xml") {
			t.Errorf("%s has an expectation and no test", name)
		}
	}
}

func TestJUnitReadersTellReasonsAndNames(t *testing.T) {
	c := gate.ReadJUnit([]string{junitCases + "/all_skipped.xml"}, nil)[0]
	if !strings.Contains(c.Detail, "c.a: no usable NVIDIA GPU") {
		t.Errorf("detail %q does not name the test and its reason", c.Detail)
	}
	latin := gate.ReadJUnit([]string{junitCases + "/latin1.xml"}, nil)[0]
	if latin.Metrics["passed"] != 1 {
		t.Errorf("metrics %v, want one passed", latin.Metrics)
	}
	allowed := gate.ReadJUnit([]string{junitCases + "/disabled_and_notrun.xml"}, []string{"b"})[0]
	if allowed.Verdict != report.Pass {
		t.Errorf("%+v, want a pass: b may be skipped by name", allowed)
	}
	only := gate.ReadJUnit([]string{junitCases + "/xfail.xml"}, []string{"a"})[0]
	if only.Verdict != report.Missing {
		t.Errorf("%+v, want missing: nothing ran but what may be skipped", only)
	}
}

func TestJUnitEdges(t *testing.T) {
	for name, c := range map[string]struct {
		xml  string
		want report.Verdict
	}{
		"a page of HTML":                             {`<html><body>404</body></html>`, report.Broken},
		"two roots":                                  {`<testsuite><testcase name="a"/></testsuite><testsuite/>`, report.Broken},
		"plain text":                                 {`all good`, report.Broken},
		"a document type alone":                      {`<!DOCTYPE testsuite><testsuite><testcase name="a"/></testsuite>`, report.Pass},
		"an encoding that is not read":               {`<?xml version="1.0" encoding="KOI8-R"?><testsuite><testcase name="a"/></testsuite>`, report.Broken},
		"totals that admit a failure":                {`<testsuite failures="1"><testcase name="a"/></testsuite>`, report.Fail},
		"an error of a whole suite":                  {`<testsuites><testsuite><error message="set-up"/><testcase name="a"/></testsuite></testsuites>`, report.Fail},
		"a failure that the test also calls skipped": {`<testsuite><testcase name="a"><skipped/><failure/></testcase></testsuite>`, report.Fail},
		"a result attribute":                         {`<testsuite><testcase name="a" result="suppressed"/></testsuite>`, report.Missing},
		"properties and output are no results":       {`<testsuite><properties><property name="skipped"/></properties><testcase name="a"><system-out>error</system-out></testcase></testsuite>`, report.Pass},
		"words inside of output do not count":        {`<testsuite><testcase name="a"><system-out><failure/></system-out></testcase></testsuite>`, report.Pass},
		"nesting without end":                        {strings.Repeat("<testsuite>", 100) + strings.Repeat("</testsuite>", 100), report.Broken},
	} {
		t.Run(name, func(t *testing.T) {
			if got := gate.JudgeJUnit("f.xml", []byte(c.xml), nil); got.Verdict != c.want {
				t.Errorf("%+v, want %s", got, c.want)
			}
		})
	}
}

func TestAFileThatIsNotThereFails(t *testing.T) {
	for _, p := range []string{filepath.Join(t.TempDir(), "none.xml"), filepath.Join(t.TempDir(), "*.xml"), "[", t.TempDir()} {
		checks := gate.ReadJUnit([]string{p}, nil)
		if len(checks) != 1 || checks[0].Verdict != report.Broken {
			t.Errorf("%s: %+v, want broken", p, checks)
		}
		g := gate.Judge(reporttest.Full(), nil, gate.Options{Checks: checks})
		if g.ExitCode != int(failure.Incomplete) {
			t.Errorf("%s: exit %d, want 13", p, g.ExitCode)
		}
	}
}

func TestAFailedTestOfAnotherToolIsNoRegression(t *testing.T) {
	checks := gate.ReadJUnit([]string{junitCases + "/error_only.xml"}, nil)
	if g := gate.Judge(reporttest.Full(), nil, gate.Options{Checks: checks}); g.ExitCode != int(failure.Incomplete) || g.Verdict != report.Fail {
		t.Errorf("exit %d, verdict %s; want 13, fail", g.ExitCode, g.Verdict)
	}
}

func TestManySkippedTestsAreCountedAndNotAllNamed(t *testing.T) {
	var b strings.Builder
	b.WriteString("<testsuite>")
	for i := range 50 {
		fmt.Fprintf(&b, `<testcase name="t%d"><skipped/></testcase>`, i)
	}
	b.WriteString("</testsuite>")
	c := gate.JudgeJUnit("f.xml", []byte(b.String()), nil)
	if !strings.Contains(c.Detail, "and 30 more") || strings.Contains(c.Detail, "t25\n") {
		t.Errorf("detail %q", c.Detail)
	}
}

func FuzzJUnit(f *testing.F) {
	files, _ := filepath.Glob(junitCases + "/*.xml")
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c := gate.JudgeJUnit("f.xml", b, nil)
		if c.Verdict == report.Pass && c.Metrics["passed"] < 1 {
			t.Errorf("a pass without a test: %+v", c)
		}
		if c.ID != "gate/junit" || c.Verdict == "" {
			t.Errorf("no verdict: %+v", c)
		}
		var root element
		if c.Verdict != report.Broken && xml.Unmarshal(b, &root) == nil {
			if got, want := int(c.Metrics["passed"]), root.passed(); got != want {
				t.Errorf("%d passed, want %d", got, want)
			}
		}
	})
}

// element is a JUnit file as a tree: a second way to count what passed.
type element struct {
	XMLName xml.Name
	Attrs   []xml.Attr `xml:",any,attr"`
	Kids    []element  `xml:",any"`
}

func (e element) passed() int {
	if e.XMLName.Local != "testcase" {
		n := 0
		for _, k := range e.Kids {
			n += k.passed()
		}
		return n
	}
	for _, k := range e.Kids {
		switch k.XMLName.Local {
		case "failure", "error", "skipped", "disabled", "ignored":
			return 0
		}
	}
	first := map[string]string{}
	for _, a := range e.Attrs {
		if _, twice := first[a.Name.Local]; !twice {
			first[a.Name.Local] = strings.ToLower(a.Value)
		}
	}
	for _, key := range []string{"status", "result"} {
		switch first[key] {
		case "notrun", "not_run", "skipped", "disabled", "suppressed", "ignored", "failed", "failure", "error", "errored":
			return 0
		}
	}
	return 1
}
