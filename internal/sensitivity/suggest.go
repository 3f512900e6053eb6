package sensitivity

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/validation"
	"github.com/trtship/trtship/report"
)

// suggest looks for the shortest list of nodes to keep: the shortest beginning
// of the ranking that holds, then without every node that is not needed.
func (a *analysis) suggest(ctx context.Context) error {
	holds, err := a.holds(ctx, nil)
	if err != nil || holds {
		a.result.Holds = holds
		return err
	}
	order := a.order()
	n, err := a.shortest(ctx, order)
	if err != nil {
		return err
	}
	if n < 0 {
		a.result.Notes = append(a.result.Notes, fmt.Sprintf("even with the %d most sensitive nodes kept the graph does not hold its tolerances", min(len(order), a.MostKept)))
		return nil
	}
	keep := slices.Clone(order[:n])
	for i := len(keep) - 1; i >= 0 && len(keep) > 1; i-- {
		less := slices.Delete(slices.Clone(keep), i, i+1)
		ok, err := a.holds(ctx, less)
		if err != nil {
			return err
		}
		if ok {
			keep = less
		}
	}
	a.result.Keep = keep
	a.result.Holds, err = a.holds(ctx, keep) // the run that confirms it
	return err
}

// order lists nodes by how much they have to be kept: those whose values leave
// the range, then the ranking.
func (a *analysis) order() []string {
	var out []string
	add := func(name string) {
		if !slices.Contains(out, name) && slices.ContainsFunc(a.result.Rows, func(r Row) bool { return r.Node == name }) {
			out = append(out, name)
		}
	}
	for _, r := range a.ranges {
		if r.Serious() {
			for _, n := range r.Nodes() {
				add(n)
			}
		}
	}
	for _, r := range a.result.Rows {
		add(r.Node)
	}
	return out
}

// shortest returns the length of the shortest beginning of order that holds, -1
// if none of at most MostKept does. It doubles, then bisects: more kept nodes
// are taken never to be worse.
func (a *analysis) shortest(ctx context.Context, order []string) (int, error) {
	most := min(len(order), a.MostKept)
	low, high := 0, 1 // low does not hold
	for {
		high = min(high, most)
		ok, err := a.holds(ctx, order[:high])
		if err != nil {
			return 0, err
		}
		if ok {
			break
		}
		if high == most {
			return -1, nil
		}
		low, high = high, high*2
	}
	for high-low > 1 {
		mid := (low + high) / 2
		ok, err := a.holds(ctx, order[:mid])
		if err != nil {
			return 0, err
		}
		if ok {
			high = mid
		} else {
			low = mid
		}
	}
	return high, nil
}

// holds validates the graph with those nodes kept as the quantize stage would.
func (a *analysis) holds(ctx context.Context, keep []string) (bool, error) {
	a.Progress(0, 0, fmt.Sprintf("try the graph with %s kept", count(len(keep))))
	g, err := a.convert(nil, keep)
	if f, ok := errors.AsType[*failure.Error](err); ok && f.Code == failure.Calibration {
		a.result.Worst = f.Error() // nothing is left to quantize
		return false, nil
	}
	if err != nil {
		return false, err
	}
	for _, r := range g.Ranges {
		if r.Serious() {
			a.result.Worst = r.String()
			return false, nil
		}
	}
	path, remove, err := a.save(g)
	defer remove()
	if err != nil {
		return false, err
	}
	dir := filepath.Join(a.Scratch, fmt.Sprintf("outputs-%d", a.result.Graphs))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return false, failure.New(failure.Artifact, "analyze sensitivity: %w", err)
	}
	defer os.RemoveAll(dir) //nolint:errcheck // the folder above goes away anyway
	_, checks, err := validation.JudgeGraph(ctx, a.Library, path, a.Reference, validation.SessionOptions(a.Config.Validation, a.Log), validation.Options{
		Stage: "sensitivity", Precision: a.Precision, Preview: true, Dir: dir, AllowRandom: a.Config.Validation.AllowRandom,
		Tolerance: func(output string) report.Tolerance { return a.Config.Tolerance(a.Precision, output) },
	})
	if err != nil {
		return false, err
	}
	a.result.Worst = ""
	for _, c := range checks {
		if !c.Verdict.Good() {
			a.result.Worst = fmt.Sprintf("%s: want %s, got %s", c.ID, c.Want, c.Got)
			return false, nil
		}
	}
	return true, nil
}

// Patch returns the configuration change that the result suggests, as YAML;
// empty if none is needed or none was found. present are the entries that the
// key has already.
func (r *Result) Patch(present []string) string {
	if len(r.Keep) == 0 || !r.Holds {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# %s holds its tolerances with these nodes kept; found by trtship sensitivity\nquantize:\n  %s:\n", r.Precision, r.Key)
	for _, n := range append(slices.Clone(present), r.Keep...) {
		fmt.Fprintf(&b, "    - %q\n", n)
	}
	return b.String()
}

func count(nodes int) string {
	switch nodes {
	case 0:
		return "no node"
	case 1:
		return "1 node"
	}
	return fmt.Sprintf("%d nodes", nodes)
}
