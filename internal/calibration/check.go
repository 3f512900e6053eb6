package calibration

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/trtship/trtship/internal/failure"
)

// Graph is what a cache is judged against: the floating-point activations of a
// network (inputs, intermediates, outputs; no weights), by name.
type Graph struct {
	Tensors []string
}

// Expectation is what a cache must be made for. Zero fields are not asked for.
type Expectation struct {
	Version int    // TensorRT version of the header
	Token   Token  // algorithm of the header
	Graph   Graph  // must be covered
	Sidecar *Proof // what the cache says about itself, from calibration.json
	Now     *Proof // what a calibration now would say
}

// Verdict is the judgement of a cache.
type Verdict struct {
	Header    string    `json:"header"`
	Entries   int       `json:"entries"`
	Tensors   int       `json:"tensors"`  // activations of the graph
	Covered   int       `json:"covered"`  // of those with a scale
	Coverage  float64   `json:"coverage"` // percent
	Unknown   []string  `json:"unknown,omitempty"`
	Uncovered []string  `json:"uncovered,omitempty"`
	Problems  []Problem `json:"problems,omitempty"`
	Notes     []string  `json:"notes,omitempty"`
}

// OK reports whether the cache may be used.
func (v *Verdict) OK() bool { return len(v.Problems) == 0 }

// Err returns the problems as one failure, nil if there are none.
func (v *Verdict) Err(path string) error {
	if v.OK() {
		return nil
	}
	e := failure.New(failure.Calibration, "calibration cache does not match: %d problems", len(v.Problems)).At(path)
	if len(v.Problems) == 1 {
		e = failure.New(failure.Calibration, "calibration cache does not match: %s", v.Problems[0].Text).At(path)
	}
	for _, p := range v.Problems {
		e = e.With(p.Kind, "%s", p)
	}
	return e.WithHint("calibrate anew (leave out calibration.cache), or name the cache that was made from this model and this data")
}

// internalName matches the names that TensorRT gives to layers that are not in
// the ONNX graph; a cache of its own calibrator holds them.
var internalName = regexp.MustCompile(`^\(Unnamed Layer\* \d+\) \[`)

// Check judges the text of a cache. It lists every mismatch.
func Check(text []byte, want Expectation) *Verdict {
	cache, problems := ParseCache(text)
	v := &Verdict{Header: cache.Header(), Entries: len(cache.Entries), Tensors: len(want.Graph.Tensors), Problems: problems}
	if cache.Version == 0 {
		v.Header = ""
	} else {
		v.checkHeader(cache, want)
	}
	v.checkNames(cache, want.Graph)
	if want.Sidecar != nil && want.Now != nil {
		for _, d := range want.Sidecar.Differences(*want.Now) {
			v.Problems = append(v.Problems, Problem{Kind: "proof", Text: d})
		}
	}
	if strings.Contains(string(text), "\r\n") {
		v.Notes = append(v.Notes, "lines end in CR LF; read as if they ended in LF")
	}
	return v
}

func (v *Verdict) checkHeader(c *Cache, want Expectation) {
	if want.Version == 0 {
		v.Notes = append(v.Notes, fmt.Sprintf("made by TensorRT %s, which was held to no release: none is installed here, and none was named (calibration.tensorrt_version, or --tensorrt-version beside a model)",
			VersionText(c.Version)))
	}
	if want.Version != 0 && want.Version != c.Version {
		v.Problems = append(v.Problems, Problem{Kind: "header", Line: 1, Text: fmt.Sprintf("made by TensorRT %s (%d), the builder is %s (%d): TensorRT skips such a cache",
			VersionText(c.Version), c.Version, VersionText(want.Version), want.Version)})
	}
	if want.Token != "" && want.Token != c.Token {
		v.Problems = append(v.Problems, Problem{Kind: "header", Line: 1, Text: fmt.Sprintf("made by %s, the configuration asks for %s", c.Token, want.Token)})
	}
}

func (v *Verdict) checkNames(c *Cache, g Graph) {
	if len(g.Tensors) == 0 {
		return
	}
	has := make(map[string]bool, len(c.Entries))
	known := make(map[string]bool, len(g.Tensors))
	for _, t := range g.Tensors {
		known[t] = true
	}
	own := 0
	for _, e := range c.Entries {
		switch {
		case known[e.Name]:
			has[e.Name] = true
		case internalName.MatchString(e.Name):
			own++
		default:
			v.Unknown = append(v.Unknown, e.Name)
		}
	}
	for _, t := range g.Tensors {
		if !has[t] {
			v.Uncovered = append(v.Uncovered, t)
		}
	}
	slices.Sort(v.Unknown)
	slices.Sort(v.Uncovered)
	v.Covered = len(has)
	v.Coverage = 100 * float64(v.Covered) / float64(len(g.Tensors))
	if own > 0 {
		v.Notes = append(v.Notes, fmt.Sprintf("%d names are TensorRT's own layers and have no tensor in the graph", own))
	}
	if n := len(v.Unknown); n > 0 {
		v.Problems = append(v.Problems, Problem{Kind: "unknown", Text: fmt.Sprintf("%d of %d names not in the model: %s", n, len(c.Entries), list(v.Unknown))})
	}
	if n := len(v.Uncovered); n > 0 {
		v.Problems = append(v.Problems, Problem{Kind: "uncovered", Text: fmt.Sprintf("%d of %d tensors without a scale (coverage %.1f%%): %s", n, len(g.Tensors), v.Coverage, list(v.Uncovered))})
	}
}

// list joins the first names.
func list(names []string) string {
	const most = 8
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}
