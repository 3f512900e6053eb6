package engine

import (
	"fmt"
	"slices"
)

// TensorsUnlike lists in which inputs and outputs two plans differ, so that one
// cannot stand in for the other: in names, types, ranks or fixed sizes. A size
// that is fixed in one plan alone is no difference; profiles decide of it. The
// names of the plans are for the texts.
func (d *Description) TensorsUnlike(o *Description, name, other string) []string {
	var out []string
	theirs := map[string]Tensor{}
	for _, t := range o.Tensors {
		theirs[t.IO+" "+t.Name] = t
	}
	for _, t := range d.Tensors {
		key := t.IO + " " + t.Name
		u, ok := theirs[key]
		delete(theirs, key)
		switch {
		case !ok:
			out = append(out, fmt.Sprintf("%s is in %s alone", key, name))
		case t.DType != u.DType:
			out = append(out, fmt.Sprintf("%s is %s in %s and %s in %s", key, t.DType, name, u.DType, other))
		case !fits(t.Dims, u.Dims):
			out = append(out, fmt.Sprintf("%s is %v in %s and %v in %s", key, t.Dims, name, u.Dims, other))
		}
	}
	for _, u := range o.Tensors {
		if _, left := theirs[u.IO+" "+u.Name]; left {
			out = append(out, fmt.Sprintf("%s %s is in %s alone", u.IO, u.Name, other))
		}
	}
	return out
}

func fits(a, b []int64) bool {
	return slices.EqualFunc(a, b, func(x, y int64) bool { return x == y || x < 0 || y < 0 })
}
