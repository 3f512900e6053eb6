package report

import (
	_ "embed"
	"fmt"
	"html"
	"strings"
)

//go:embed style.css
var styleSheet string

// HTML renders a report as one page that needs nothing else: no scripts, no
// fonts, no network. It is written for a reader who was not there, follows the
// light or dark scheme of the reader's system, and shows the errors by output
// and point, the distribution of latencies, and the change against the
// baseline as pictures.
func HTML(v View) []byte {
	p := &page{View: v}
	p.raw("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n" +
		"<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n" +
		"<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n" +
		"<meta name=\"color-scheme\" content=\"light dark\">\n<title>")
	p.put(v.Title())
	p.raw("</title>\n<style>" + styleSheet + "</style></head>\n<body><main>\n")
	p.lead()
	p.reasons()
	p.stages()
	p.validations()
	p.deltas()
	p.benchmark()
	p.model()
	p.optimize()
	p.artifacts()
	p.environment()
	p.glossary()
	p.foot()
	p.raw("</main></body></html>\n")
	return []byte(p.b.String())
}

// page is an HTML page in the making.
type page struct {
	View
	b strings.Builder
}

func (p *page) raw(s string) { p.b.WriteString(s) }

// put writes text from anywhere.
func (p *page) put(s string) { p.b.WriteString(escape(s)) }

func escape(s string) string { return html.EscapeString(clean(s)) }

func code(s string) string { return "<code>" + escape(oneLine(s)) + "</code>" }

func verdictSpan(v string) string {
	class := "fail"
	if known(Verdict(v)) || changeIcon[Change(v)] != "" {
		class = v
	}
	return `<span class="v ` + class + `">` + escape(v) + `</span>`
}

// table starts a table; a head that begins with "#" is a column of numbers.
func (p *page) table(heads ...string) {
	p.raw(`<div class="wrap"><table><thead><tr>`)
	for _, h := range heads {
		if n, ok := strings.CutPrefix(h, "#"); ok {
			p.raw(`<th class="n">` + n + `</th>`)
		} else {
			p.raw("<th>" + h + "</th>")
		}
	}
	p.raw("</tr></thead><tbody>\n")
}

// row writes cells that are HTML already; numbers begin with "#".
func (p *page) row(cells ...string) {
	p.raw("<tr>")
	for _, c := range cells {
		if n, ok := strings.CutPrefix(c, "#"); ok {
			p.raw(`<td class="n">` + n + `</td>`)
		} else {
			p.raw("<td>" + c + "</td>")
		}
	}
	p.raw("</tr>\n")
}

func (p *page) endTable() { p.raw("</tbody></table></div>\n") }

func (p *page) figure(svg, caption string) {
	if svg != "" {
		p.raw("<figure><figcaption>" + caption + "</figcaption>" + svg + "</figure>\n")
	}
}

func (p *page) lead() {
	r := p.Report
	class := string(p.verdict())
	if !known(p.verdict()) {
		class = "fail"
	}
	p.raw(`<div class="lead ` + class + `"><h1>` + escape(p.Title()) + "</h1>\n<p>" + p.story() + "</p>\n<ul class=\"facts\">")
	fact := func(label, value string) {
		if value != "" {
			p.raw("<li>" + label + " " + value + "</li>")
		}
	}
	fact("verdict", verdictSpan(string(p.verdict())))
	if c := p.exitCode(); c != 0 {
		fact("exit code", fmt.Sprint(c))
	}
	fact("", escape(countsLine(p.Counts())))
	if r.Run.ID != "" {
		fact("run", code(r.Run.ID))
	}
	if p.Links.Commit != "" {
		fact("commit", code(short(p.Links.Commit)))
	}
	if !r.Run.Started.IsZero() {
		fact("started", escape(r.Run.Started.UTC().Format("2006-01-02 15:04 UTC")))
	}
	fact("took", escape(formatSeconds(r.Run.Seconds)))
	if p.Links.Run != "" {
		p.raw(`<li><a href="` + escape(p.Links.Run) + `">workflow run</a></li>`)
	}
	p.raw("</ul></div>\n")
	if p.Gate != nil {
		for _, n := range p.Gate.Notes {
			p.raw(`<p class="soft">` + escape(n) + "</p>\n")
		}
	}
}

// story says in a sentence or two what this page is about.
func (p *page) story() string {
	r := p.Report
	ran := 0
	for _, s := range r.Stages {
		if s.Verdict != NotAsked && s.Verdict != Skip && s.Verdict != Missing {
			ran++
		}
	}
	s := fmt.Sprintf("The model %s was taken through %d of %d stages", code(r.Model.Name), ran, len(r.Stages))
	if r.Settings.Target != "" {
		s += " towards a repository for the target " + code(r.Settings.Target)
	}
	s += ". After every step its outputs were compared with those of the original model."
	switch p.verdict() {
	case Pass:
		if absent := p.absent(); len(absent) > 0 {
			for i, name := range absent {
				absent[i] = code(name)
			}
			s += " Every check that ran held. What this machine could not run is missing and proves nothing: " + strings.Join(absent, ", ") + "."
			break
		}
		s += " Everything that was asked for ran, and every check held."
	case Missing:
		s += " Part of what was asked for could not run on this machine, so the result is not complete."
	case Inconclusive:
		s += " At least one measurement was too noisy to say whether it holds."
	case Broken:
		s += " At least one step crashed, ran out of time or left nothing to judge."
	case Fail:
		s += " At least one check was measured and does not hold."
	}
	return s
}

func (p *page) reasons() {
	reasons := p.View.reasons()
	if len(reasons) == 0 {
		return
	}
	details := p.lastWords()
	p.raw("<h2>What stands in the way</h2>\n<ul class=\"reasons\">\n")
	for _, r := range reasons {
		class := "fail"
		if known(r.Verdict) {
			class = string(r.Verdict)
		}
		p.raw(`<li class="` + class + `">` + verdictSpan(string(r.Verdict)) + " " + code(r.Check))
		if s := r.Subject.String(); s != "" {
			p.raw(" " + code(s))
		}
		if r.Text != "" {
			p.raw("<br>" + escape(r.Text))
		}
		if r.Hint != "" {
			p.raw(`<br><span class="soft">What to do: ` + escape(r.Hint) + "</span>")
		}
		if words := details[r.Check+"\x00"+r.Subject.String()]; words != "" {
			p.raw("<pre>" + escape(clip(words, 8000)) + "</pre>")
		}
		if r.Line > 0 {
			p.raw(`<br><span class="soft">` + code(fmt.Sprintf("%s:%d", p.Report.Run.Config, r.Line)) + "</span>")
		}
		p.raw("</li>\n")
	}
	p.raw("</ul>\n")
}

// lastWords returns the longer texts of bad checks, such as the end of a
// crashed child's output, by check and subject.
func (p *page) lastWords() map[string]string {
	out := map[string]string{}
	add := func(checks []Check) {
		for _, c := range checks {
			if !c.Verdict.Good() && strings.Contains(strings.TrimSpace(c.Detail), "\n") {
				out[c.ID+"\x00"+c.Subject.String()] = strings.TrimSpace(c.Detail)
			}
		}
	}
	for _, s := range p.Report.Stages {
		add(s.Checks)
	}
	if p.Gate != nil {
		add(p.Gate.Checks)
	}
	return out
}

func (p *page) stages() {
	if len(p.Report.Stages) == 0 {
		return
	}
	p.raw("<h2>Stages</h2>\n<ol class=\"flow\">")
	for _, s := range p.Report.Stages {
		note := formatSeconds(s.Seconds)
		if s.Cached {
			note = "from the store"
		}
		class := "fail"
		if known(s.Verdict) {
			class = string(s.Verdict)
		}
		p.raw(`<li class="` + class + `"><b>` + escape(s.Name) + "</b>" + verdictSpan(string(s.Verdict)) + " <span>" + escape(note) + "</span></li>")
	}
	p.raw("</ol>\n<details><summary>Every check</summary>\n")
	p.table("Check", "About", "Wanted", "Found", "Verdict")
	for _, s := range p.Report.Stages {
		if len(s.Checks) == 0 {
			p.row(code(s.Name), "", "", escape(s.Reason), verdictSpan(string(s.Verdict)))
		}
		for _, c := range s.Checks {
			p.check(c)
		}
	}
	if p.Gate != nil {
		for _, c := range p.Gate.Checks {
			p.check(c)
		}
	}
	p.endTable()
	p.raw("</details>\n")
}

func (p *page) check(c Check) {
	found := escape(c.Got)
	if c.Detail != "" {
		if strings.Contains(c.Detail, "\n") {
			found += "<pre>" + escape(clip(c.Detail, 8000)) + "</pre>"
		} else {
			found += " " + escape(c.Detail)
		}
	}
	p.row(code(c.ID), escape(c.Subject.String()), escape(c.Want), found, verdictSpan(string(c.Verdict)))
}
