package github

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	gh "github.com/google/go-github/v62/github"
)

// maxChangedFiles is what the interface lists of one pull request.
const maxChangedFiles = 3000

// Span is a range of lines, both ends included.
type Span struct{ First, Last int }

// Changes are the lines that a pull request adds or changes, by path in the
// repository. A file that was changed in a way that no lines are known of (it
// is binary, too large, or was only renamed) has no spans.
type Changes map[string][]Span

// ChangedLines asks what a pull request changes.
func (a *API) ChangedLines(ctx context.Context, number int) (Changes, error) {
	changes, opts := Changes{}, &gh.ListOptions{PerPage: 100}
	for {
		var page []*gh.CommitFile
		var resp *gh.Response
		err := a.retry(ctx, true, func() (err error) {
			page, resp, err = a.client.PullRequests.ListFiles(ctx, a.owner, a.name, number, opts)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("list changed files: %w", err)
		}
		for _, f := range page {
			if f.GetFilename() != "" && f.GetStatus() != "removed" {
				changes[f.GetFilename()] = parsePatch(f.GetPatch())
			}
		}
		if len(changes) >= maxChangedFiles || !turn(opts, resp) {
			return changes, nil
		}
	}
}

var hunk = regexp.MustCompile(`^@@ -\d+(?:,\d+)? \+(\d+)(?:,\d+)? @@`)

// parsePatch returns the runs of added lines of a unified diff, by their
// numbers in the new file. Where lines were only taken away, the line that took
// their place stands for them.
func parsePatch(patch string) []Span {
	var spans []Span
	line, removed := 0, false
	mark := func(at int) {
		if n := len(spans); n > 0 && spans[n-1].Last >= at-1 {
			spans[n-1].Last = max(spans[n-1].Last, at)
			return
		}
		spans = append(spans, Span{at, at})
	}
	settle := func() {
		if removed && line > 0 {
			mark(line)
		}
		removed = false
	}
	for _, text := range strings.Split(patch, "\n") {
		if m := hunk.FindStringSubmatch(text); m != nil {
			settle()
			line, _ = strconv.Atoi(m[1]) // digits, and an absurd number is only a wrong place
			line = max(line, 1)
			continue
		}
		if line == 0 || text == "" {
			continue
		}
		switch text[0] {
		case '+':
			mark(line)
			line, removed = line+1, false
		case '-':
			removed = true
		case ' ':
			settle()
			line++
		}
	}
	settle()
	return spans
}

// find returns the spans of a file given by its path from the workspace. The
// repository may lie in a folder of the workspace (checkout's input path).
func (c Changes) find(path string) ([]Span, bool) {
	if spans, ok := c[path]; ok {
		return spans, true
	}
	for rest := path; ; {
		_, after, ok := strings.Cut(rest, "/")
		if !ok {
			return nil, false
		}
		if spans, ok := c[after]; ok && strings.Contains(after, "/") {
			return spans, true
		}
		rest = after
	}
}

// Places are where annotations can go: the configuration, with the lines of its
// keys, and the files that the model is made of, the most telling first.
type Places struct {
	Config  string
	Lines   map[string]int
	Sources []string
	Changed Changes
}

// notOfTheModel are the stages and checks that a change of the model's code
// cannot explain: what they are about is the configuration or the machine.
var notOfTheModel = []string{"gate/junit", "gate/evidence", "gate/baseline"}

// at puts an annotation to the place that a reader of the pull request should
// look at. line is the configuration's line that decides. If the pull request
// changed that line, it is the cause; else, if it changed the model, the changed
// lines are; else the line that decides is shown.
func (p Places) at(a *Annotation, check string, line int) {
	a.File, a.Line = p.Config, line
	if slices.Contains(notOfTheModel, check) {
		return
	}
	if spans, ok := p.Changed.find(p.Config); ok {
		for _, s := range spans {
			if s.First <= line && line <= s.Last {
				return
			}
		}
	}
	for _, source := range p.Sources {
		spans, ok := p.Changed.find(source)
		if !ok {
			continue
		}
		a.File, a.Line = source, 1
		if len(spans) > 0 {
			a.Line, a.EndLine = spans[0].First, spans[0].Last
		}
		a.Text += fmt.Sprintf("\n(this pull request changes %s; %s line %d decides)", filepath.Base(source), p.Config, line)
		return
	}
}
