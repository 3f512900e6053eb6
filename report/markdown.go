package report

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MarkdownOptions say where a Markdown rendering goes.
type MarkdownOptions struct {
	Marker string // first line as it is, e.g. "<!-- trtship:digits -->"; empty: none
	Limit  int    // most bytes; 0 is no limit. Tables are cut between rows, worst rows are kept.
}

// maxReasons is how many reasons are written out; the rest is counted.
const maxReasons = 20

// Markdown renders a report for GitHub: outcome, what stands in the way,
// stages, numerical validation, benchmark and change against the baseline.
// Text from outside (names, error messages) is put into code spans, where
// neither mentions, issue numbers, links nor HTML are read.
func Markdown(v View, o MarkdownOptions) string {
	d := &document{limit: o.Limit}
	if o.Marker != "" {
		d.text(o.Marker + "\n")
	}
	v.markdownHead(d)
	v.markdownReasons(d)
	v.markdownDeltas(d)
	v.markdownValidations(d)
	v.markdownBenchmark(d)
	v.markdownStages(d)
	v.markdownRows(d)
	v.markdownArtifacts(d)
	v.markdownFoot(d)
	return d.render(v.Links.Report)
}

var verdictIcon = map[Verdict]string{
	Pass: "✅", Fail: "❌", Missing: "⛔", Broken: "💥", Inconclusive: "⚠️", Skip: "➖", NotAsked: "➖",
}

var changeIcon = map[Change]string{
	Regressed: "❌", Vanished: "❌", Unclear: "⚠️", Incomparable: "➖", New: "🆕", Improved: "✅", Same: "✅",
}

func verdictText(v Verdict) string {
	if icon, ok := verdictIcon[v]; ok {
		return icon + " " + string(v)
	}
	return "❌ " + mdCode(string(v))
}

func (v View) markdownHead(d *document) {
	r := v.Report
	icon := verdictIcon[v.verdict()]
	if v.exitCode() != 0 && v.verdict().Good() {
		icon = verdictIcon[Fail]
	}
	d.text(fmt.Sprintf("### %s %s\n\n", icon, mdTitle(v.Title())))
	facts := []string{}
	if v.Links.Commit != "" {
		facts = append(facts, mdCode(short(v.Links.Commit)))
	}
	facts = append(facts, "run "+mdCode(r.Run.ID), countsLine(v.Counts()))
	if code := v.exitCode(); code != 0 {
		facts = append(facts, fmt.Sprintf("exit %d", code))
	}
	if r.Settings.Target != "" {
		facts = append(facts, "target "+mdCode(r.Settings.Target))
	}
	for _, g := range r.Environment.GPUs {
		facts = append(facts, mdCode(g.Name))
	}
	if v.Links.Run != "" {
		facts = append(facts, "[workflow run]("+v.Links.Run+")")
	}
	d.text(strings.Join(facts, " · ") + "\n\n")
	if v.Gate == nil {
		return
	}
	for _, n := range v.Gate.Notes {
		d.text("> " + mdText(n) + "\n")
	}
	if len(v.Gate.Notes) > 0 {
		d.text("\n")
	}
}

func (v View) markdownReasons(d *document) {
	reasons := v.reasons()
	if len(reasons) == 0 {
		return
	}
	d.text("**What stands in the way**\n\n")
	for i, r := range reasons {
		if i == maxReasons {
			d.text(fmt.Sprintf("- … and %d more in the full report\n", len(reasons)-i))
			break
		}
		line := fmt.Sprintf("- %s %s", verdictIcon[r.Verdict], mdCode(r.Check))
		if s := r.Subject.String(); s != "" {
			line += " " + mdCode(clip(s, 200))
		}
		if t := firstLine(r.Text); t != "" {
			line += ": " + mdText(clip(t, 500))
		}
		var end []string
		if r.ExitCode != 0 {
			end = append(end, fmt.Sprintf("exit %d", r.ExitCode))
		}
		if r.Line > 0 {
			end = append(end, fmt.Sprintf("%s line %d", mdCode(v.Report.Run.Config), r.Line))
		}
		if len(end) > 0 {
			line += " (" + strings.Join(end, ", ") + ")"
		}
		d.text(line + "\n")
		if r.Hint != "" {
			d.text("  <br>" + mdText(clip(firstLine(r.Hint), 500)) + "\n")
		}
	}
	d.text("\n")
	v.markdownDetail(d)
}

// markdownDetail shows the long text of the first bad check that has one: the
// last words of a crashed child, for example.
func (v View) markdownDetail(d *document) {
	for _, s := range v.Report.Stages {
		for _, c := range s.Checks {
			if c.Verdict.Good() || !strings.Contains(strings.TrimSpace(c.Detail), "\n") {
				continue
			}
			d.text("<details><summary>" + mdHTML(c.ID) + "</summary>\n\n" + mdFence(clip(c.Detail, 4000)) + "\n</details>\n\n")
			return
		}
	}
}

func (v View) markdownStages(d *document) {
	t := &block{head: "| Stage | Verdict | Time | |\n| --- | --- | ---: | --- |\n"}
	for _, s := range v.Report.Stages {
		var notes []string
		if s.Cached {
			notes = append(notes, "from the store")
		}
		if s.Hardware {
			notes = append(notes, "hardware")
		}
		if s.Reason != "" {
			notes = append(notes, mdText(clip(firstLine(s.Reason), 200)))
		}
		t.row(mdCode(s.Name), verdictText(s.Verdict), formatSeconds(s.Seconds), strings.Join(notes, ", "))
	}
	if len(t.rows) > 0 {
		d.text("#### Stages\n\n")
		d.table(t)
	}
}

func (v View) markdownValidations(d *document) {
	if len(v.Report.Validations) == 0 {
		return
	}
	d.text("#### Numerical validation\n\n")
	t := &block{head: "| Stage | Outputs × points | Elements | Breaches | Largest error | Tolerance | Smallest cosine | Verdict |\n| --- | ---: | ---: | ---: | ---: | --- | ---: | --- |\n"}
	for i := range v.Report.Validations {
		val := &v.Report.Validations[i]
		t.row(v.validationCells(val)...)
	}
	d.table(t)
	tasks := false
	for i := range v.Report.Validations {
		val := &v.Report.Validations[i]
		if k := val.Task; k != nil {
			tasks = true
			d.text(fmt.Sprintf("- %s: %s %s against %s of the reference on %d samples\n", mdCode(val.Label()), mdText(k.Metric),
				formatNumber(float64(k.Candidate)), formatNumber(float64(k.Reference)), k.Samples))
		}
	}
	if tasks {
		d.text("\n")
	}
}

func (v View) validationCells(val *Validation) []string {
	var elements, breaches int64
	var worst, cosine *Comparison
	for i := range val.Rows {
		row := &val.Rows[i]
		elements += row.Elements
		breaches += row.Breaches
		if worst == nil || row.metric("max_abs") > worst.metric("max_abs") {
			worst = row
		}
		if _, ok := row.Metrics["cosine_min"]; ok && (cosine == nil || row.metric("cosine_min") < cosine.metric("cosine_min")) {
			cosine = row
		}
	}
	cells := []string{mdCode(val.Label()), fmt.Sprintf("%d × %d", len(val.outputs()), len(val.Points)), fmt.Sprint(elements), fmt.Sprint(breaches), "", "", "", verdictText(val.Verdict())}
	if worst != nil {
		cells[4] = formatMetric(worst, "max_abs") + " at " + mdCode(clip(worst.Output+" "+worst.Point, 80))
		cells[5] = mdText(formatTolerance(worst.Tolerance))
	}
	if cosine != nil {
		cells[6] = formatMetric(cosine, "cosine_min")
	}
	return cells
}

// markdownRows writes every compared output, folded unless something is wrong.
func (v View) markdownRows(d *document) {
	for i := range v.Report.Validations {
		val := &v.Report.Validations[i]
		if len(val.Rows) == 0 {
			continue
		}
		open := ""
		if !val.Verdict().Good() {
			open = " open"
		}
		d.text(fmt.Sprintf("<details%s><summary>%s: %s against %s, %s</summary>\n\n", open, mdHTML(val.Label()), mdHTML(val.Candidate), mdHTML(val.Reference), Count(len(val.Rows), "row")))
		t := &block{head: "| Output | Point | Shape | Breaches | max abs | mean abs | cosine | Tolerance | Verdict |\n| --- | --- | --- | ---: | ---: | ---: | ---: | --- | --- |\n"}
		for _, row := range worstRows(val.Rows) {
			shape := row.DType + " " + formatShape(row.Shape)
			if row.GotShape != nil {
				shape += ", got " + formatShape(row.GotShape)
			}
			t.row(mdCode(clip(row.Output, 120)), mdCode(row.Point), mdCode(shape), fmt.Sprintf("%d of %d", row.Breaches, row.Elements),
				formatMetric(row, "max_abs"), formatMetric(row, "mean_abs"), formatMetric(row, "cosine_min"), mdText(formatTolerance(row.Tolerance)), verdictText(row.Verdict))
		}
		d.table(t)
		d.text("</details>\n\n")
	}
}

func (v View) markdownDeltas(d *document) {
	if v.Gate == nil {
		return
	}
	d.text("#### Against the baseline\n\n" + mdBaseline(v.Gate) + "\n\n")
	if len(v.Gate.Deltas) == 0 {
		return
	}
	t := &block{head: "| Row | Metric | Baseline | Now | Change, with confidence interval | |\n| --- | --- | ---: | ---: | ---: | --- |\n"}
	for i := range v.Gate.Deltas {
		x := &v.Gate.Deltas[i]
		t.row(mdCode(x.Row), mdCode(x.Metric), formatQuantity(x.Base, x.Unit), formatQuantity(x.Head, x.Unit), formatChange(x), changeIcon[x.Change]+" "+mdText(changeText(x)))
	}
	d.table(t)
}

// changeText is a change and what is to be known about it.
func changeText(d *Delta) string {
	if d.Detail == "" {
		return string(d.Change)
	}
	return string(d.Change) + ": " + clip(d.Detail, 200)
}

// withoutBaseline says what is judged where the gate was given no baseline.
func withoutBaseline(g *Gate) string {
	if len(g.Deltas) > 0 {
		return "The gate was given no baseline: what ran in turns with one is judged, and absolute limits are."
	}
	return "There is no baseline yet: changes are not judged, absolute limits are."
}

func mdBaseline(g *Gate) string {
	b := g.Baseline
	if b == nil || b.Source == "none" || b.Source == "" {
		return withoutBaseline(g)
	}
	s := "Compared with run " + mdCode(b.RunID)
	if b.Commit != "" {
		s += " at " + mdCode(short(b.Commit))
	}
	s += " (" + mdText(b.Source) + ")."
	if !b.Comparable {
		diffs := make([]string, len(b.Differences))
		for i, x := range b.Differences {
			diffs[i] = mdText(x)
		}
		s += " **Speeds are not compared**: " + strings.Join(diffs, "; ") + "."
	}
	return s
}

func formatQuantity(n *Number, unit string) string {
	if n == nil {
		return "–"
	}
	if unit == "bytes" {
		return FormatBytes(int64(*n))
	}
	return strings.TrimSpace(formatNumber(float64(*n)) + " " + unit)
}

func (v View) markdownBenchmark(d *document) {
	b := v.Report.Benchmark
	if b == nil || len(b.Rows)+len(b.Skipped) == 0 {
		return
	}
	d.text("#### Benchmark\n\n")
	t := &block{head: "| Row | Device | p50 | p99 | Throughput | Requests | |\n| --- | --- | ---: | ---: | ---: | ---: | --- |\n"}
	for _, m := range b.Rows {
		p50, p99 := "", ""
		if s, ok := m.Latency(); ok {
			p50, p99 = formatNumber(float64(s.P50))+" ms", formatNumber(float64(s.P99))+" ms"
		}
		t.row(mdCode(m.Row()), mdCode(m.Device), p50, p99, formatNumber(float64(m.Throughput))+" /s", fmt.Sprint(m.Requests), mdText(clip(strings.Join(m.Notes, "; "), 300)))
	}
	for _, s := range b.Skipped {
		t.row(mdCode(s.Name), "", "", "", "", "", verdictText(s.Verdict)+" "+mdText(clip(s.Reason, 200)))
	}
	d.table(t)
}

func (v View) markdownArtifacts(d *document) {
	if len(v.Report.Artifacts) == 0 {
		return
	}
	d.text("<details><summary>Artifacts</summary>\n\n")
	t := &block{head: "| Artifact | Size | Files | Digest |\n| --- | ---: | ---: | --- |\n"}
	for _, a := range v.Report.Artifacts {
		name := a.ID
		if a.Label != "" {
			name += " " + a.Label
		}
		t.row(mdCode(name), FormatBytes(a.Size), fmt.Sprint(a.Files), mdCode(clip(a.Digest, 80)))
	}
	d.table(t)
	d.text("</details>\n\n")
}

func (v View) markdownFoot(d *document) {
	r := v.Report
	line := mdText(strings.TrimSpace(r.Tool.Name + " " + r.Tool.Version))
	if tools := toolsLine(r.Environment.Tools); tools != "" {
		line += " · " + mdText(clip(tools, 500))
	}
	if v.Links.Report != "" {
		line += " · [full report](" + v.Links.Report + ")"
	}
	d.text("<sub>" + line + "</sub>\n")
}

// mdCode puts s into a code span that is safe anywhere, tables included.
func mdCode(s string) string {
	s = oneLine(s)
	if s == "" {
		return ""
	}
	if !strings.ContainsAny(s, "`|\\") {
		return "`" + s + "`"
	}
	return "<code>" + entities(s) + "</code>"
}

// mdText writes text as plain text: nothing in it is read as markup, a mention,
// an issue, a link or a formula. GitHub looks for mentions and issues after
// Markdown has been read, so that escapes do not help there; an invisible space
// behind @ and # does.
func mdText(s string) string {
	s = oneLine(s)
	if !strings.ContainsAny(s, "`*_[]<>|~$&\\@#:!") && !strings.Contains(strings.ToLower(s), "www.") {
		return s
	}
	var b strings.Builder
	for i, r := range s {
		switch {
		case r == '<':
			b.WriteString("&lt;")
		case r == '>':
			b.WriteString("&gt;")
		case r == '&':
			b.WriteString("&amp;")
		case r == '@' || r == '#':
			b.WriteRune(r)
			b.WriteRune('\u200b')
		case r == '|' || r == '\\' || r == '$', r == ':' && strings.HasPrefix(s[i:], "://"), r == '.' && strings.HasSuffix(strings.ToLower(s[:i]), "www"):
			fmt.Fprintf(&b, "&#%d;", r)
		case strings.ContainsRune("`*_[]~!", r):
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == ':' && i+1 < len(s) && s[i+1] != ' ':
			b.WriteString(":\u200b") // an emoji's short name
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// mdTitle is mdText for a heading.
func mdTitle(s string) string { return mdText(s) }

// mdHTML escapes text for use inside HTML in Markdown.
func mdHTML(s string) string { return "<code>" + entities(oneLine(s)) + "</code>" }

// mdFence puts text into a fenced block whose fence is longer than any in it.
func mdFence(s string) string {
	s = clean(s)
	fence := "```"
	for strings.Contains(s, fence) {
		fence += "`"
	}
	return fence + "text\n" + strings.TrimRight(s, "\n") + "\n" + fence + "\n"
}

// entities writes everything but letters, digits and harmless punctuation as
// numeric references, which Markdown reads as text and never as markup.
func entities(s string) string {
	var b strings.Builder
	for i, r := range s {
		link := r == '.' && strings.HasSuffix(strings.ToLower(s[:i]), "www") // GitHub makes a link of it
		if !link && (r > 127 || unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune(" ,;.=+()/%-", r)) {
			b.WriteRune(r)
			continue
		}
		fmt.Fprintf(&b, "&#%d;", r)
	}
	return b.String()
}

// oneLine drops control characters and joins lines.
func oneLine(s string) string {
	plain := true
	for i := 0; i < len(s); i++ {
		if s[i] < ' ' || s[i] >= 127 {
			plain = false
			break
		}
	}
	if plain {
		return strings.TrimSpace(s)
	}
	return strings.Join(strings.Fields(clean(s)), " ")
}

// clean removes terminal colours and every character that is no text: control
// characters other than tab and newline, characters that turn the direction of
// writing, invalid UTF-8.
func clean(s string) string {
	if plainText(s) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		if n := ansiLength(s[i:]); n > 0 {
			i += n
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		i += n
		switch {
		case r == utf8.RuneError && n <= 1:
			b.WriteRune('\uFFFD')
		case r == '\r':
		case r == '\n' || r == '\t':
			b.WriteRune(r)
		case !allowedInXML(r) || unicode.Is(unicode.Cc, r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029':
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

func plainText(s string) bool {
	for i := 0; i < len(s); i++ {
		if c := s[i]; c >= 127 || c < ' ' && c != '\n' && c != '\t' {
			return false
		}
	}
	return true
}

// ansiLength returns the length of the escape sequence that s begins with, or 0.
func ansiLength(s string) int {
	if len(s) < 2 || s[0] != 0x1b || s[1] != '[' {
		return 0
	}
	for i := 2; i < len(s); i++ {
		if c := s[i]; c >= 0x40 && c <= 0x7e {
			return i + 1
		}
	}
	return len(s)
}

// allowedInXML is the Char production of XML 1.0.
func allowedInXML(r rune) bool {
	return r == '\t' || r == '\n' || r == '\r' || r >= 0x20 && r <= 0xD7FF || r >= 0xE000 && r <= 0xFFFD || r >= 0x10000 && r <= 0x10FFFF
}
