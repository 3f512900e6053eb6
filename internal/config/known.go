package config

import (
	"fmt"
	"slices"
	"strings"
)

// What the checks between keys may rely on. A mistake in the structure leaves
// the keys that it concerns without a meaning; checks that need those are left
// out, since what they would find is no mistake of its own, and all others run.

// decoded notes what decoding found wrong; checks come after it.
func (d *decoder) decoded() {
	d.broken = map[string]bool{}
	for _, p := range d.problems {
		d.broken[p.Path] = true
	}
}

// mistaken reports whether a problem was found at path or below it, so that one
// mistake is not told twice.
func (d *decoder) mistaken(path string) bool {
	return slices.Contains(d.meant, path) || slices.ContainsFunc(d.problems, func(p Problem) bool {
		return p.Path == path || strings.HasPrefix(p.Path, path+".")
	})
}

// reached reports whether decoding came to path: it and everything above it has
// the right kind.
func (d *decoder) reached(path string) bool {
	for p := path; p != ""; p = parent(p) {
		if d.broken[p] || slices.Contains(d.meant, p) {
			return false
		}
	}
	return true
}

// known reports whether the value at path is the one that was meant: it was
// reached, nothing in it is wrong, and it is not left out beside a key that
// nobody knows and that may stand for it.
func (d *decoder) known(path string) bool {
	if !d.reached(path) {
		return false
	}
	for p := range d.broken {
		if strings.HasPrefix(p, path+".") {
			return false
		}
	}
	for p := path; p != ""; p = parent(p) {
		if !d.set(p) && d.strange[parent(p)] {
			return false
		}
	}
	return true
}

func parent(path string) string {
	i := strings.LastIndexByte(path, '.')
	return path[:max(i, 0)]
}

// declared reports whether name and shape of an input are known.
func (d *decoder) declared(i int) bool {
	at := fmt.Sprintf("model.inputs.%d", i)
	return d.known(at+".name") && d.known(at+".shape")
}

// namesKnown reports whether the names of all inputs are known.
func (d *decoder) namesKnown(c *Config) bool {
	for i := range c.Model.Inputs {
		if !d.known(fmt.Sprintf("model.inputs.%d.name", i)) {
			return false
		}
	}
	return d.reached("model.inputs") && !(len(c.Model.Inputs) == 0 && d.strange["model"])
}

// shapeKnown reports whether the shape of an input is known.
func (d *decoder) shapeKnown(c *Config, name string) bool {
	i := slices.IndexFunc(c.Model.Inputs, func(in Input) bool { return in.Name == name })
	return i >= 0 && d.known(fmt.Sprintf("model.inputs.%d.shape", i))
}

// shapesKnown reports whether all shapes and profiles are known and agree, as
// everything about batch sizes needs.
func (d *decoder) shapesKnown(c *Config) bool {
	for i := range c.Model.Inputs {
		if !d.declared(i) || d.mistaken(fmt.Sprintf("model.inputs.%d.shape", i)) || d.mistaken(fmt.Sprintf("model.inputs.%d.name", i)) {
			return false
		}
	}
	return d.namesKnown(c) && d.known("tensorrt.profiles") && !d.mistaken("tensorrt.profiles")
}
