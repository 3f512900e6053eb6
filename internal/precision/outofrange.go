package precision

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/trtship/trtship/internal/tensor"
)

// RangeKind says in which way values leave a type's range.
type RangeKind string

// The kinds.
const (
	Overflow RangeKind = "overflow" // becomes infinite
	Vanish   RangeKind = "vanish"   // becomes zero
)

// OutOfRange is a constant or an observed value that the low precision cannot
// hold.
type OutOfRange struct {
	Kind     RangeKind `json:"kind"`
	Tensor   string    `json:"tensor"`
	Node     string    `json:"node"` // that makes the value, or that reads the constant
	Constant bool      `json:"constant"`
	Value    float64   `json:"value"`             // the largest magnitude that overflows, the smallest that vanishes
	Count    int64     `json:"count"`             // elements of a constant
	Of       int64     `json:"of"`                // elements of a constant other than zero
	Readers  []string  `json:"readers,omitempty"` // nodes that read the value
}

// Nodes returns the nodes that have to stay float32 so that the value is never
// held in the low precision: the one that makes it and those that read it.
func (r OutOfRange) Nodes() []string {
	if r.Node == "" {
		return r.Readers
	}
	return append([]string{r.Node}, r.Readers...)
}

func (r OutOfRange) String() string {
	what, becomes := "reaches", "infinite"
	if r.Kind == Vanish {
		becomes = "zero"
	}
	if !r.Constant && r.Node == "" {
		return fmt.Sprintf("input %s %s %g, which becomes %s", r.Tensor, what, r.Value, becomes)
	}
	if !r.Constant {
		return fmt.Sprintf("%s: %s %s %g, which becomes %s", r.Node, r.Tensor, what, r.Value, becomes)
	}
	if r.Of == 1 {
		return fmt.Sprintf("%s: constant %s is %g, which becomes %s", r.Node, r.Tensor, r.Value, becomes)
	}
	return fmt.Sprintf("%s: %d of %d values of constant %s become %s, %g among them", r.Node, r.Count, r.Of, r.Tensor, becomes, r.Value)
}

// Serious reports whether the value can spoil results: anything that becomes
// infinite, and constants of which nothing is left. A few vanishing weights
// among many, and activations that were tiny on every sample, are harmless.
func (r OutOfRange) Serious() bool {
	return r.Kind == Overflow || r.Constant && r.Count == r.Of
}

func (c *converter) addRange(r OutOfRange) {
	key := string(r.Kind) + " " + r.Tensor + " " + r.Node
	if _, ok := c.ranges[key]; !ok {
		c.ranges[key] = &r
	}
}

// constantRange compares a constant with its converted form.
func (h *half) constantRange(name, reader string, data, low tensor.Tensor) {
	over := OutOfRange{Kind: Overflow, Tensor: name, Node: reader, Constant: true}
	under := OutOfRange{Kind: Vanish, Tensor: name, Node: reader, Constant: true, Value: math.Inf(1)}
	values, lows := data.Float32s(), low.Float32s()
	for i, v := range values {
		w := float64(lows[i])
		switch a := float64(v); {
		case a == 0:
			continue
		case math.IsInf(w, 0) && !math.IsInf(a, 0):
			over.Count++
			if math.Abs(a) > math.Abs(over.Value) {
				over.Value = a
			}
		case w == 0:
			under.Count++
			if math.Abs(a) < math.Abs(under.Value) {
				under.Value = a
			}
		}
		over.Of++
		under.Of++
	}
	if over.Count > 0 {
		h.addRange(over)
	}
	if under.Count > 0 {
		h.addRange(under)
	}
}

func sortedRanges(m map[string]*OutOfRange) []OutOfRange {
	out := make([]OutOfRange, 0, len(m))
	for _, r := range m {
		out = append(out, *r)
	}
	slices.SortFunc(out, func(a, b OutOfRange) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Tensor, b.Tensor), cmp.Compare(a.Node, b.Node))
	})
	return out
}
