package report

import "strings"

// document is Markdown made of text and tables that can be shortened: text
// stays, tables lose rows from their end.
type document struct {
	limit  int
	blocks []*block
}

// block is text, or a table if it has a head.
type block struct {
	text string
	head string
	rows []string
}

func (b *block) row(cells ...string) {
	b.rows = append(b.rows, "| "+strings.Join(cells, " | ")+" |\n")
}

func (d *document) text(s string) {
	if n := len(d.blocks); n > 0 && d.blocks[n-1].head == "" {
		d.blocks[n-1].text += s
		return
	}
	d.blocks = append(d.blocks, &block{text: s})
}

func (d *document) table(t *block) { d.blocks = append(d.blocks, t) }

// render joins the blocks. Above the limit the tables at the front keep their
// rows as long as there is room, and every cut is counted and said.
func (d *document) render(full string) string {
	room := d.room()
	var b strings.Builder
	for _, x := range d.blocks {
		if x.head == "" {
			b.WriteString(x.text)
			continue
		}
		b.WriteString(x.head)
		shown := 0
		for _, r := range x.rows {
			if room >= 0 && len(r) > room {
				break
			}
			if room >= 0 {
				room -= len(r)
			}
			b.WriteString(r)
			shown++
		}
		b.WriteString("\n")
		if shown < len(x.rows) {
			b.WriteString(cutNote(len(x.rows)-shown, full))
		}
	}
	return hardCut(b.String(), d.limit)
}

// room is how many bytes of rows fit, -1 for no limit.
func (d *document) room() int {
	if d.limit <= 0 {
		return -1
	}
	fixed, rows := 0, 0
	for _, x := range d.blocks {
		fixed += len(x.text) + len(x.head) + 1
		for _, r := range x.rows {
			rows += len(r)
		}
		if x.head != "" {
			fixed += 300 // for the note about a cut
		}
	}
	if fixed+rows <= d.limit {
		return -1
	}
	return max(0, d.limit-fixed)
}

func cutNote(n int, full string) string {
	where := "the full report"
	if full != "" {
		where = "[the full report](" + full + ")"
	}
	return "… and " + Count(n, "more row") + " in " + where + "\n\n"
}

// hardCut is the last resort for a document whose text alone is too long: it
// ends at a line and closes what is open.
func hardCut(s string, limit int) string {
	if limit <= 0 || len(s) <= limit {
		return s
	}
	const reserve = 200
	lines := strings.SplitAfter(s, "\n")
	var b strings.Builder
	fence, open := "", 0
	for _, l := range lines {
		if b.Len()+len(l) > limit-reserve {
			break
		}
		b.WriteString(l)
		trimmed := strings.TrimRight(l, "\n")
		switch {
		case fence == "" && strings.HasPrefix(trimmed, "```"):
			fence = strings.TrimRight(trimmed, "abcdefghijklmnopqrstuvwxyz")
		case fence != "" && trimmed == fence:
			fence = ""
		case fence == "" && strings.HasPrefix(trimmed, "<details"):
			open++
		case fence == "" && strings.HasPrefix(trimmed, "</details>"):
			open--
		}
	}
	if fence != "" {
		b.WriteString(fence + "\n")
	}
	b.WriteString("\n… cut here: the text is too long for this place.\n" + strings.Repeat("</details>\n", max(0, open)))
	return b.String()
}
