package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/trtship/trtship/internal/failure"
)

// Problem is one mistake in a configuration.
type Problem struct {
	Where  string `json:"where"` // file:line:column, the variable, or the flag
	Line   int    `json:"line,omitempty"`
	Column int    `json:"column,omitempty"`
	Path   string `json:"path,omitempty"` // dotted key
	Text   string `json:"text"`
}

// Problems are all mistakes of a configuration, in the order of the file.
// errors.AsType finds them in the error of Load.
type Problems []Problem

func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i, one := range p {
		lines[i] = one.String()
	}
	return strings.Join(lines, "; ")
}

func (p Problem) String() string {
	return p.Where + ": " + p.message()
}

func (p Problem) message() string {
	if p.Path == "" {
		return p.Text
	}
	return p.Path + ": " + p.Text
}

// failure turns the problems into one error that lists all of them.
func (p Problems) failure(file string) error {
	slices.SortStableFunc(p, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(boolInt(a.Line == 0), boolInt(b.Line == 0)), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	if len(p) == 1 {
		e := failure.New(failure.Usage, "%s", p[0].message()).At(p[0].Where)
		e.Err = p
		return e.WithHint("`trtship config schema` describes every key")
	}
	if file == "" {
		file = "the configuration"
	}
	e := failure.New(failure.Usage, "%s has %d mistakes", file, len(p))
	e.Err = p
	for _, one := range p {
		e.Details = append(e.Details, failure.Detail{Label: one.Where, Value: one.message()})
	}
	return e.WithHint("`trtship config schema` describes every key")
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// didYouMean returns "; did you mean X?" for the nearest of names, or a list of
// them where none is near.
func didYouMean(got string, names []string) string {
	if near := nearest(got, names); near != "" {
		return fmt.Sprintf("; did you mean %s?", near)
	}
	if len(names) == 0 || len(names) > 12 {
		return ""
	}
	return "; known: " + strings.Join(names, ", ")
}

// nearest returns the name with the smallest edit distance to got, if that is
// small enough to be a slip.
func nearest(got string, names []string) string {
	best, bestDistance := "", max(2, len(got)/3)+1
	for _, n := range names {
		d := distance(strings.ToLower(got), strings.ToLower(n))
		if d < bestDistance {
			best, bestDistance = n, d
		}
	}
	if best == "" {
		// "precision" for "precisions", "profile" for "profiles", and the like.
		for _, n := range names {
			if len(got) > 3 && (strings.HasPrefix(n, got) || strings.HasSuffix(n, "_"+got)) {
				return n
			}
		}
	}
	return best
}

// distance is the number of insertions, deletions, substitutions and swaps of
// neighbours between two words.
func distance(a, b string) int {
	prev2, prev := []int(nil), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row := make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := boolInt(a[i-1] != b[j-1])
			row[j] = min(prev[j]+1, row[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], prev2[j-2]+1)
			}
		}
		prev2, prev = prev, row
	}
	return prev[len(b)]
}
