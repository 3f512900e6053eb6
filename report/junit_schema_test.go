package report_test

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/trtship/trtship/report"
	"github.com/trtship/trtship/report/reporttest"
)

// element is what Jenkins' xUnit plugin (junit-10) allows an element to have.
type element struct {
	required, optional []string
	children           []string
	text               bool
}

var result = element{optional: []string{"type", "message"}, text: true}

var jenkins = map[string]element{
	"testsuites": {optional: []string{"name", "time", "tests", "failures", "errors"}, children: []string{"testsuite"}},
	"testsuite": {
		required: []string{"name", "tests", "failures", "errors"},
		optional: []string{"group", "time", "skipped", "timestamp", "hostname", "id", "package", "file", "log", "url"},
		children: []string{"testsuite", "properties", "testcase", "system-out", "system-err"},
	},
	"testcase": {
		required: []string{"name"}, optional: []string{"time", "classname", "group"},
		children: []string{"skipped", "error", "failure", "system-out", "system-err"},
	},
	"properties": {children: []string{"property"}},
	"property":   {required: []string{"name", "value"}},
	"skipped":    result, "error": result, "failure": result,
	"system-out": {text: true}, "system-err": {text: true},
}

// surefireTime is the pattern of a time of a suite.
var surefireTime = regexp.MustCompile(`^(([0-9]{0,3},)*[0-9]{3}|[0-9]{0,3})*(\.[0-9]*)?$`)

// checkSchema holds a document against the table.
func checkSchema(b []byte) error {
	d := xml.NewDecoder(bytes.NewReader(b))
	var open []string
	for {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		switch x := tok.(type) {
		case xml.StartElement:
			e, ok := jenkins[x.Name.Local]
			if !ok {
				return fmt.Errorf("element %s is not known", x.Name.Local)
			}
			if len(open) > 0 && !slices.Contains(jenkins[open[len(open)-1]].children, x.Name.Local) {
				return fmt.Errorf("%s may not be in %s", x.Name.Local, open[len(open)-1])
			}
			missing := slices.Clone(e.required)
			for _, a := range x.Attr {
				n := a.Name.Local
				if i := slices.Index(missing, n); i >= 0 {
					missing = slices.Delete(missing, i, i+1)
				} else if !slices.Contains(e.optional, n) {
					return fmt.Errorf("%s may not have %s", x.Name.Local, n)
				}
				if n == "time" && x.Name.Local != "testcase" && !surefireTime.MatchString(a.Value) {
					return fmt.Errorf("time %q of %s", a.Value, x.Name.Local)
				}
			}
			if len(missing) > 0 {
				return fmt.Errorf("%s lacks %v", x.Name.Local, missing)
			}
			open = append(open, x.Name.Local)
		case xml.EndElement:
			open = open[:len(open)-1]
		case xml.CharData:
			if len(open) > 0 && !jenkins[open[len(open)-1]].text && strings.TrimSpace(string(x)) != "" {
				return fmt.Errorf("text in %s", open[len(open)-1])
			}
		}
	}
}

func TestJUnitKeepsTheSchemaOfJenkins(t *testing.T) {
	views := map[string]report.View{"hostile": hostileView()}
	for _, c := range reporttest.Cases() {
		views[c.Name] = report.View{Report: c.Report, Gate: &report.Gate{Hardware: "required", Checks: []report.Check{{ID: "gate/latency", Verdict: report.Fail}}}}
	}
	for name, v := range views {
		b, err := report.JUnit(v)
		if err != nil {
			t.Fatal(err)
		}
		if err := checkSchema(b); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTheSchemaCheckRefusesWhatIsWrong(t *testing.T) {
	for _, bad := range []string{
		`<testsuites skipped="1"/>`, `<testsuite name="x" tests="1" failures="0"/>`, `<testsuites><testcase name="x"/></testsuites>`,
		`<testsuite name="x" tests="0" failures="0" errors="0" time="1e-3"/>`, `<testsuites>text</testsuites>`, `<other/>`, `<testsuites><`,
	} {
		if err := checkSchema([]byte(bad)); err == nil {
			t.Errorf("%s was accepted", bad)
		}
	}
}
