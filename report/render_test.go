package report_test

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/extension"
	gmhtml "github.com/yuin/goldmark/renderer/html"
	"golang.org/x/net/html"

	"github.com/trtship/trtship/report"
	"github.com/trtship/trtship/report/reporttest"
)

// hostile is a report whose every name and text tries to be something else.
func hostile() *report.Report {
	const evil = "\x1b[31m`x` | <img src=x onerror=alert(1)> @team #12 **b** [l](http://e.x) <!-- ]]> ${{ secrets.T }} :tada: \u202e www.e.x ~~~ ``` \\| \x00\xff"
	r := reporttest.Full()
	r.Model.Name = "m" + evil
	r.Model.Inputs[0].Name = evil
	r.Run.Config = evil
	for i := range r.Stages {
		s := &r.Stages[i]
		s.Reason = evil
		for k := range s.Checks {
			c := &s.Checks[k]
			c.Verdict, c.Want, c.Got, c.Detail, c.Hint, c.Line = report.Fail, evil, evil, evil+"\n"+evil+"\n```\n</details>\n# head", evil, 3
			c.Subject.Output = evil
		}
	}
	for i := range r.Validations {
		v := &r.Validations[i]
		v.Candidate, v.Reference, v.Precision = evil, evil, evil
		v.Notes = []string{evil}
		for k := range v.Rows {
			v.Rows[k].Output, v.Rows[k].Point, v.Rows[k].DType, v.Rows[k].Detail = evil+fmt.Sprint(k), evil, evil, evil
		}
	}
	for i := range r.Benchmark.Rows {
		r.Benchmark.Rows[i].Mode, r.Benchmark.Rows[i].Device, r.Benchmark.Rows[i].Notes = evil, evil, []string{evil}
	}
	r.Benchmark.Skipped = []report.SkippedRow{{Name: evil, Reason: evil, Verdict: report.Missing}}
	r.Artifacts[0].ID, r.Artifacts[0].Digest, r.Artifacts[0].Label = evil, evil, evil
	r.Environment.Tools[evil] = evil
	r.Environment.GPUs[0].Name = evil
	r.Optimize.Passes[0].Name, r.Optimize.Notes = evil, []string{evil}
	r.Inspection.Findings = []report.Finding{{Kind: evil, Text: evil, Nodes: []string{evil}}}
	return r
}

func hostileView() report.View {
	r := hostile()
	evil := r.Stages[0].Reason
	one := report.Number(1.2)
	return report.View{Report: r, Baseline: hostile(), Gate: &report.Gate{
		Verdict: report.Fail, ExitCode: 6, Notes: []string{evil},
		Reasons:  []report.Reason{{Check: evil, Subject: report.Subject{Node: evil}, Verdict: report.Fail, Text: evil, Hint: evil, Line: 4}},
		Baseline: &report.Baseline{RunID: evil, Commit: evil, Source: evil, Differences: []string{evil}},
		Deltas:   []report.Delta{{Row: evil, Metric: evil, Base: &one, Head: &one, Ratio: &one, Low: &one, High: &one, Change: report.Regressed, Detail: evil}},
	}}
}

// rendered turns Markdown into HTML as GitHub's dialect is read.
func rendered(t *testing.T, text string) *html.Node {
	t.Helper()
	var b bytes.Buffer
	md := goldmark.New(goldmark.WithExtensions(extension.GFM), goldmark.WithRendererOptions(gmhtml.WithUnsafe()))
	if err := md.Convert([]byte(text), &b); err != nil {
		t.Fatal(err)
	}
	doc, err := html.Parse(&b)
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

// inside reports whether n lies in an element of one of the names.
func inside(n *html.Node, names ...string) bool {
	for p := n.Parent; p != nil; p = p.Parent {
		if p.Type == html.ElementNode && slices.Contains(names, p.Data) {
			return true
		}
	}
	return false
}

func TestMarkdownNeutralisesForeignText(t *testing.T) {
	text := report.Markdown(hostileView(), report.MarkdownOptions{Marker: "<!-- trtship-report:x -->"})
	if !strings.HasPrefix(text, "<!-- trtship-report:x -->\n") {
		t.Error("the marker is not the first line")
	}
	if !utf8.ValidString(text) || strings.ContainsAny(text, "\x00\x1b\u202e") {
		t.Error("the text holds characters that are no text")
	}
	checkTables(t, text)
	ours := []string{"html", "head", "body", "h3", "h4", "p", "ul", "li", "code", "strong", "table", "thead", "tbody", "tr", "th", "td", "details", "summary", "pre", "sub", "br", "blockquote"}
	comments := 0
	for n := range rendered(t, text).Descendants() {
		switch n.Type {
		case html.CommentNode:
			comments++
		case html.ElementNode:
			if !slices.Contains(ours, n.Data) {
				t.Errorf("an element %s came in: %v", n.Data, n.Attr)
			}
			if n.Data == "strong" && n.FirstChild.Data != "What stands in the way" && n.FirstChild.Data != "Speeds are not compared" {
				t.Errorf("emphasis came in: %q", n.FirstChild.Data)
			}
		case html.TextNode:
			if inside(n, "code", "pre") {
				continue
			}
			for _, bad := range []string{"@team", "#12", ":tada:"} {
				if strings.Contains(n.Data, bad) {
					t.Errorf("%q is outside of code: %q", bad, n.Data)
				}
			}
		}
	}
	if comments != 1 {
		t.Errorf("%d comments, want the marker alone", comments)
	}
}

func TestPlainSentencesStayReadable(t *testing.T) {
	v := report.View{Report: reporttest.Full(), Gate: &report.Gate{Verdict: report.Pass, Notes: []string{"a <= b & c|d: use `x_y` in [self-hosted], 100 % of $HOME\\n"}}}
	text := ""
	for n := range rendered(t, report.Markdown(v, report.MarkdownOptions{})).Descendants() {
		if n.Type == html.TextNode && inside(n, "blockquote") {
			text += n.Data
		}
	}
	if got := strings.TrimSpace(text); got != "a <= b & c|d: use `x_y` in [self-hosted], 100 % of $HOME\\n" {
		t.Errorf("%q", got)
	}
}

// checkTables demands that every row of a table has as many cells as its head.
func checkTables(t *testing.T, text string) {
	t.Helper()
	cells := func(l string) int { return strings.Count(strings.TrimSuffix(strings.TrimPrefix(l, "|"), "|"), "|") }
	want := -1
	for n, l := range strings.Split(text, "\n") {
		if !strings.HasPrefix(l, "|") {
			want = -1
			continue
		}
		if want < 0 {
			want = cells(l)
		}
		if got := cells(l); got != want {
			t.Errorf("line %d has %d cells, its head has %d: %s", n+1, got+1, want+1, l)
		}
	}
}

func TestMarkdownIsCutBetweenRows(t *testing.T) {
	v := report.View{Report: reporttest.Large(500, 0), Links: report.Links{Report: "https://example.com/full"}}
	whole := report.Markdown(v, report.MarkdownOptions{})
	if len(whole) < 100_000 {
		t.Fatalf("the whole is only %d bytes", len(whole))
	}
	for _, limit := range []int{60000, 20000, 6000, 2000, 700} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			text := report.Markdown(v, report.MarkdownOptions{Limit: limit, Marker: "<!-- m -->"})
			if len(text) > limit {
				t.Errorf("%d bytes", len(text))
			}
			if !strings.HasPrefix(text, "<!-- m -->\n") {
				t.Error("the marker is gone")
			}
			checkTables(t, text)
			if o, c := strings.Count(text, "<details"), strings.Count(text, "</details>"); o != c {
				t.Errorf("%d details are opened and %d closed", o, c)
			}
			if strings.Count(text, "```")%2 != 0 {
				t.Error("a fence is open")
			}
			if limit >= 6000 && !strings.Contains(text, "more rows in [the full report](https://example.com/full)") {
				t.Error("the cut is not said, or does not link to the full report")
			}
			if limit >= 6000 && !strings.Contains(text, "conv.498") {
				t.Error("the worst row is not among those that are left")
			}
		})
	}
}

func TestMarkdownClosesAFenceThatIsCut(t *testing.T) {
	r := reporttest.Full()
	s := reporttest.Stage(r, "build")
	s.Verdict = report.Broken
	s.Checks[0].Verdict, s.Checks[0].Detail = report.Broken, strings.Repeat("a line of the builder\n", 100)
	text := report.Markdown(report.View{Report: r}, report.MarkdownOptions{Limit: 1400})
	if strings.Count(text, "```")%2 != 0 || strings.Count(text, "<details") != strings.Count(text, "</details>") || len(text) > 1400 {
		t.Errorf("%d bytes:\n%s", len(text), text)
	}
}

func TestMarkdownSaysWhatMatters(t *testing.T) {
	for _, c := range reporttest.Cases() {
		text := report.Markdown(report.View{Report: c.Report}, report.MarkdownOptions{})
		if len(c.Report.Stages) > 0 && !strings.Contains(text, "#### Stages") {
			t.Errorf("%s: no stages", c.Name)
		}
		bad := !c.Report.Verdict.Good()
		if bad != strings.Contains(text, "What stands in the way") {
			t.Errorf("%s: verdict %s, and reasons are shown: %v", c.Name, c.Report.Verdict, !bad)
		}
	}
}

func TestJUnitIsReadable(t *testing.T) {
	views := []report.View{hostileView()}
	for _, c := range reporttest.Cases() {
		views = append(views, report.View{Report: c.Report})
	}
	for _, v := range views {
		b, err := report.JUnit(v)
		if err != nil {
			t.Fatal(err)
		}
		checkJUnit(t, b)
	}
}

type suites struct {
	Time   string `xml:"time,attr"`
	Suites []struct {
		Name     string `xml:"name,attr"`
		Time     string `xml:"time,attr"`
		Tests    int    `xml:"tests,attr"`
		Failures int    `xml:"failures,attr"`
		Errors   int    `xml:"errors,attr"`
		Skipped  int    `xml:"skipped,attr"`
		Cases    []struct {
			Name    string    `xml:"name,attr"`
			Class   string    `xml:"classname,attr"`
			Time    string    `xml:"time,attr"`
			Failure *struct{} `xml:"failure"`
			Error   *struct{} `xml:"error"`
			Skipped *struct{} `xml:"skipped"`
		} `xml:"testcase"`
	} `xml:"testsuite"`
}

func checkJUnit(t *testing.T, b []byte) suites {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(string(b)))
	for {
		if _, err := d.Token(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatalf("not well-formed: %v", err)
		}
	}
	var s suites
	if err := xml.Unmarshal(b, &s); err != nil {
		t.Fatal(err)
	}
	seconds := regexp.MustCompile(`^\d+\.\d+$`)
	if !seconds.MatchString(s.Time) {
		t.Errorf("time of the root is %q", s.Time)
	}
	seen := map[string]bool{}
	for _, x := range s.Suites {
		if x.Tests != len(x.Cases) || !seconds.MatchString(x.Time) {
			t.Errorf("suite %s says %d tests, has %d; time %q", x.Name, x.Tests, len(x.Cases), x.Time)
		}
		f, e, k := 0, 0, 0
		for _, c := range x.Cases {
			if seen[c.Class+"\x00"+c.Name] {
				t.Errorf("%s %s is there twice", c.Class, c.Name)
			}
			seen[c.Class+"\x00"+c.Name] = true
			if !seconds.MatchString(c.Time) || c.Class == x.Name {
				t.Errorf("case %s: time %q, class %q", c.Name, c.Time, c.Class)
			}
			if c.Failure != nil {
				f++
			}
			if c.Error != nil {
				e++
			}
			if c.Skipped != nil {
				k++
			}
		}
		if f != x.Failures || e != x.Errors || k != x.Skipped {
			t.Errorf("suite %s says %d, %d, %d; has %d, %d, %d", x.Name, x.Failures, x.Errors, x.Skipped, f, e, k)
		}
	}
	return s
}

func TestJUnitOutcomes(t *testing.T) {
	for _, c := range []struct {
		verdict    report.Verdict
		hardware   bool
		required   string
		reason     bool
		wantResult string
	}{
		{report.Pass, false, "required", false, "pass"},
		{report.Fail, false, "required", false, "failure"},
		{report.Broken, false, "optional", false, "error"},
		{report.Missing, true, "required", false, "error"},
		{report.Missing, true, "optional", false, "skipped"},
		{report.Missing, false, "optional", false, "error"},
		{report.Inconclusive, false, "optional", false, "error"},
		{report.Skip, false, "required", false, "skipped"},
		{report.NotAsked, true, "optional", false, "skipped"},
		{report.NotAsked, true, "required", true, "error"},
		{"unheard-of", false, "required", false, "error"},
	} {
		t.Run(fmt.Sprint(c.verdict, " ", c.hardware, " ", c.required), func(t *testing.T) {
			r := reporttest.Full()
			r.Settings.Hardware = c.required
			r.Stages = []report.Stage{{Name: "build", Verdict: c.verdict, Hardware: c.hardware, Checks: []report.Check{{ID: "build/operators", Verdict: c.verdict, Hardware: c.hardware}}}}
			v := report.View{Report: r}
			if c.reason {
				v.Gate = &report.Gate{Hardware: c.required, Reasons: []report.Reason{{Check: "build/operators"}}}
			}
			b, err := report.JUnit(v)
			if err != nil {
				t.Fatal(err)
			}
			got := "pass"
			x := checkJUnit(t, b).Suites[0].Cases[0]
			switch {
			case x.Failure != nil:
				got = "failure"
			case x.Error != nil:
				got = "error"
			case x.Skipped != nil:
				got = "skipped"
			}
			if got != c.wantResult {
				t.Errorf("%s, want %s", got, c.wantResult)
			}
		})
	}
}

func TestJUnitNamesDoNotDependOnWhatWasMeasured(t *testing.T) {
	names := func(r *report.Report) string {
		b, err := report.JUnit(report.View{Report: r})
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, s := range checkJUnit(t, b).Suites {
			for _, c := range s.Cases {
				out = append(out, c.Class+" "+c.Name)
			}
		}
		return strings.Join(out, "\n")
	}
	a := reporttest.Full()
	b := reporttest.Cases()[1].Report // a tolerance breach
	if names(a) != names(b) {
		t.Error("a case changes its name when it fails")
	}
}

func TestHTMLIsOneSafePage(t *testing.T) {
	views := []report.View{hostileView()}
	for _, c := range reporttest.Cases() {
		views = append(views, report.View{Report: c.Report, Baseline: c.Baseline, Gate: &report.Gate{Verdict: c.Verdict, Baseline: &report.Baseline{Source: "file", Comparable: true}}})
	}
	for _, v := range views {
		page := report.HTML(v)
		doc, err := html.Parse(strings.NewReader(string(page)))
		if err != nil {
			t.Fatal(err)
		}
		for n := range doc.Descendants() {
			if n.Type != html.ElementNode {
				continue
			}
			switch n.Data {
			case "script", "iframe", "img", "link", "object", "embed", "form":
				t.Errorf("the page has an element %s", n.Data)
			}
			for _, a := range n.Attr {
				if strings.HasPrefix(a.Key, "on") || (a.Key == "href" || a.Key == "src") && !strings.HasPrefix(a.Val, "https://") {
					t.Errorf("element %s has %s=%q", n.Data, a.Key, a.Val)
				}
			}
		}
		if strings.ContainsAny(string(page), "\x00\x1b\u202e") || !utf8.Valid(page) {
			t.Error("the page holds characters that are no text")
		}
		for _, m := range regexp.MustCompile(`url\(|@import|https?://`).FindAllString(string(page), -1) {
			if m != "http://" && m != "https://" || len(v.Report.Model.Name) < 10 {
				t.Errorf("the page refers to the outside: %s", m)
			}
		}
	}
}

func TestHTMLClosesWhatItOpens(t *testing.T) {
	for _, c := range reporttest.Cases() {
		page := string(report.HTML(report.View{Report: c.Report}))
		for _, tag := range []string{"div", "table", "thead", "tbody", "tr", "td", "th", "ul", "ol", "li", "details", "summary", "figure", "svg", "p", "dl", "dt", "dd", "code", "span", "main", "pre"} {
			open := len(regexp.MustCompile("<"+tag+"[ >]").FindAllString(page, -1))
			if shut := strings.Count(page, "</"+tag+">"); open != shut {
				t.Errorf("%s: %d <%s> and %d </%s>", c.Name, open, tag, shut, tag)
			}
		}
	}
}

func TestPlotsAreDrawnWhereThereIsSomethingToDraw(t *testing.T) {
	full := string(report.HTML(report.View{Report: reporttest.Full()}))
	if n := strings.Count(full, "<svg"); n != 5+2 {
		t.Errorf("%d plots, want one for each of 5 validations and one for each of 2 devices", n)
	}
	r := reporttest.Full()
	r.Validations[0].Rows[0].Metrics["max_abs"] = report.Number(0)
	r.Validations[0].Rows[1].Metrics["max_abs"], _ = inf()
	delete(r.Validations[0].Rows[2].Metrics, "max_abs")
	r.Benchmark.Rows[0].Samples = nil
	r.Benchmark.Rows[1].Samples = []report.Number{1, 1, 1}
	page := string(report.HTML(report.View{Report: r}))
	if strings.Contains(page, `"NaN`) || strings.Contains(page, `="+Inf`) || strings.Contains(page, `="-Inf`) {
		t.Error("a coordinate is not a number")
	}
	if !strings.Contains(page, "logits at opt: &#43;Inf") && !strings.Contains(page, "logits at opt: +Inf") {
		t.Error("an infinite error is not drawn")
	}
	r.Validations, r.Benchmark = nil, nil
	if page := string(report.HTML(report.View{Report: r})); strings.Contains(page, "<svg") {
		t.Error("a plot without data")
	}
}

func inf() (report.Number, error) {
	var n report.Number
	err := n.UnmarshalJSON([]byte(`"+Inf"`))
	return n, err
}

func TestTextNamesEveryStageAndReason(t *testing.T) {
	for _, c := range reporttest.Cases() {
		text := report.Text(report.View{Report: c.Report}, report.TextOptions{Width: 120})
		for _, s := range c.Report.Stages {
			if !strings.Contains(text, s.Name) {
				t.Errorf("%s: stage %s is not in the table", c.Name, s.Name)
			}
		}
		if strings.Contains(text, "\x1b") {
			t.Errorf("%s: colours without being asked", c.Name)
		}
		for _, l := range strings.Split(text, "\n") {
			if n := utf8.RuneCountInString(l); n > 120 && strings.HasPrefix(l, "│") {
				t.Errorf("%s: a line of a table has %d columns", c.Name, n)
			}
		}
	}
	if text := report.Text(report.View{Report: reporttest.Full()}, report.TextOptions{Color: true}); !strings.Contains(text, "\x1b[32mpass") {
		t.Error("no colours although asked")
	}
	if text := report.Text(hostileView(), report.TextOptions{}); strings.ContainsAny(text, "\x1b\x00\u202e") {
		t.Error("foreign control characters reach the terminal")
	}
}

// TestWhatIsMissingIsInTheTitle has hardware that is optional: the gate lets the
// change through, and no rendering may say that everything held.
func TestWhatIsMissingIsInTheTitle(t *testing.T) {
	cases := reporttest.Cases()
	c := cases[slices.IndexFunc(cases, func(c reporttest.Case) bool { return c.Name == "optional-hardware" })]
	v := report.View{Report: c.Report, Gate: &report.Gate{Format: report.GateFormat, Verdict: report.Pass}}
	const want = "every check that ran held; missing: build, validate_engine, benchmark, served"
	if got := v.Title(); got != "digits: "+want {
		t.Errorf("title %q", got)
	}
	page := string(report.HTML(v))
	for name, text := range map[string]string{
		"text": report.Text(v, report.TextOptions{}), "markdown": report.Markdown(v, report.MarkdownOptions{}), "html": page,
	} {
		text = strings.ReplaceAll(text, "\\_", "_")
		if !strings.Contains(text, want) || strings.Contains(text, "every check held") || strings.Contains(text, "Everything that was asked for ran") {
			t.Errorf("%s: %.400s", name, text)
		}
	}
	c.Report.Stages = c.Report.Stages[:1]
	if got := v.Title(); got != "digits: every check held" {
		t.Errorf("title %q of a run in which nothing is missing", got)
	}
}
