// Package locate finds the first node of a graph that leaves the tolerance in a
// lower precision, and the fewest nodes that repair it when they stay float32.
//
// It bisects over prefixes of the graph: a sub-graph of the first k nodes whose
// outputs are the values that cross the cut. Each prefix is converted, built
// and run on every sample, and compared with the float32 values of the same cut.
// Marking every inner value as an output would change what is being looked for,
// since a builder may then no longer fuse across it.
package locate

import (
	"context"
	"fmt"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/report"
)

// Runner runs a graph on every feed and returns its outputs, feed by feed.
type Runner interface {
	Run(ctx context.Context, m *onnx.Model, feeds [][]tensor.Named) ([][]tensor.Named, error)
}

// Options say what is looked for.
type Options struct {
	// Convert returns the graph in the lower precision, with the nodes of keep in float32.
	Convert func(m *onnx.Model, keep []string) (*onnx.Model, error)
	// Candidate runs converted graphs; each run is a build.
	Candidate Runner
	// Reference runs float32 graphs.
	Reference Runner
	Feeds     [][]tensor.Named
	Tolerance report.Tolerance
	// Progress hears of every build; may be nil.
	Progress func(builds, limit int, label string)
}

// Found is the first node whose values leave the tolerance.
type Found struct {
	Node     string            `json:"node"`
	Operator string            `json:"operator"`
	Output   string            `json:"output"`
	Index    int               `json:"index"` // place in the order of the graph
	Nodes    int               `json:"nodes"` // of the whole graph
	Sample   int               `json:"sample"`
	Builds   int               `json:"builds"`
	Limit    int               `json:"limit"` // most builds that the search may take
	Row      report.Comparison `json:"comparison"`
}

// Limit is the most builds that First takes for n nodes: 2*log2(n)+4.
func Limit(n int) int {
	log := 0
	for 1<<log < n {
		log++
	}
	return 2*log + 4
}

type search struct {
	o      Options
	model  *onnx.Model
	cuts   *cuts
	keep   []string
	builds int
	limit  int
}

// First returns the first node that leaves the tolerance while the nodes of keep
// stay float32, or nil if the whole graph holds.
func First(ctx context.Context, m *onnx.Model, keep []string, o Options) (*Found, int, error) {
	s := &search{o: o, model: m, cuts: newCuts(m), keep: keep}
	n := s.cuts.len()
	if n == 0 {
		return nil, 0, failure.New(failure.Model, "the graph has no nodes to look at")
	}
	s.limit = Limit(n)
	bad, row, err := s.leaves(ctx, n)
	if err != nil || !bad {
		return nil, s.builds, err
	}
	low, high := 0, n // the prefix of low nodes holds, that of high nodes does not
	for high-low > 1 {
		mid := low + (high-low)/2
		bad, r, err := s.leaves(ctx, mid)
		if err != nil {
			return nil, s.builds, err
		}
		if bad {
			high, row = mid, r
		} else {
			low = mid
		}
	}
	node := s.cuts.node(high - 1)
	return &Found{
		Node: onnx.NodeName(node), Operator: onnx.Operator(node), Output: row.row.Output, Index: high - 1, Nodes: n,
		Sample: row.sample, Builds: s.builds, Limit: s.limit, Row: row.row,
	}, s.builds, nil
}

// judged is the worst comparison of a prefix.
type judged struct {
	sample int
	row    report.Comparison
}

// leaves reports whether the values that cross the cut behind the first k nodes
// leave the tolerance in any sample.
func (s *search) leaves(ctx context.Context, k int) (bool, judged, error) {
	prefix := s.cuts.prefix(k)
	if prefix == nil {
		return false, judged{}, nil // nothing of floating point crosses
	}
	s.builds++
	if s.o.Progress != nil {
		s.o.Progress(s.builds, s.limit, fmt.Sprintf("first %d of %d nodes", k, s.cuts.len()))
	}
	converted, err := s.o.Convert(prefix, s.cuts.present(s.keep, k))
	if err != nil {
		return false, judged{}, fmt.Errorf("convert the first %d nodes: %w", k, err)
	}
	want, err := s.o.Reference.Run(ctx, prefix, s.o.Feeds)
	if err != nil {
		return false, judged{}, fmt.Errorf("run the first %d nodes in float32: %w", k, err)
	}
	got, err := s.o.Candidate.Run(ctx, converted, s.o.Feeds)
	if err != nil {
		return false, judged{}, fmt.Errorf("run the first %d nodes in the lower precision: %w", k, err)
	}
	return s.judge(want, got)
}

func (s *search) judge(want, got [][]tensor.Named) (bool, judged, error) {
	for i := range want {
		for _, w := range want[i] {
			g, ok := byName(got[i], w.Name)
			if !ok {
				return false, judged{}, fmt.Errorf("the lower precision gave no output %s", w.Name)
			}
			row, err := compare(w, g, s.o.Tolerance)
			if err != nil {
				return false, judged{}, err
			}
			if row.Verdict != report.Pass {
				return true, judged{i, row}, nil
			}
		}
	}
	return false, judged{}, nil
}

func byName(list []tensor.Named, name string) (tensor.Named, bool) {
	for _, t := range list {
		if t.Name == name {
			return t, true
		}
	}
	return tensor.Named{}, false
}

// Repaired is a set of nodes that must stay float32.
type Repaired struct {
	Keep   []string `json:"keep_fp32"`
	Found  []Found  `json:"found"` // in the order in which they were found
	Builds int      `json:"builds"`
}

// Repair adds the first bad node to the nodes that stay float32 until the graph
// holds, then drops every one that turns out not to be needed. most bounds the
// number of nodes.
func Repair(ctx context.Context, m *onnx.Model, o Options, most int) (*Repaired, error) {
	r := &Repaired{}
	for {
		found, builds, err := First(ctx, m, r.Keep, o)
		r.Builds += builds
		if err != nil {
			return r, err
		}
		if found == nil {
			break
		}
		r.Found = append(r.Found, *found)
		for _, k := range r.Keep {
			if k == found.Node {
				return r, failure.New(failure.Tolerance, "node %s leaves the tolerance even in float32", found.Node).
					WithHint("its inputs already differ: look at the nodes before it, or loosen the tolerance")
			}
		}
		if len(r.Keep) == most {
			return r, failure.New(failure.Tolerance, "more than %d nodes leave the tolerance, the next is %s", most, found.Node).
				WithHint("this precision does not suit the model; bf16 has float32's range")
		}
		r.Keep = append(r.Keep, found.Node)
	}
	return r, r.shrink(ctx, m, o)
}

// shrink leaves out each node in turn and keeps it out if the graph still holds.
func (r *Repaired) shrink(ctx context.Context, m *onnx.Model, o Options) error {
	if len(r.Keep) < 2 {
		return nil // the only one is needed: without it the graph did not hold
	}
	s := &search{o: o, model: m, cuts: newCuts(m)}
	s.limit = len(r.Keep)
	for i := len(r.Keep) - 1; i >= 0; i-- {
		s.keep = append(append([]string(nil), r.Keep[:i]...), r.Keep[i+1:]...)
		bad, _, err := s.leaves(ctx, s.cuts.len())
		if err != nil {
			return err
		}
		if !bad {
			r.Keep = s.keep
		}
	}
	r.Builds += s.builds
	return nil
}
