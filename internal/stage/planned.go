package stage

import "strings"

// Planned is a stage of the list of all stages, in the order of people; the
// pipeline orders by kinds and keeps this order where kinds leave it open.
type Planned struct {
	Stage
	// Off says why the configuration turns the stage off, e.g.
	// "optimize.enabled is false"; it is empty for a stage that is on.
	Off string
}

const codePrefix = "code:"

// Code marks a folder in Sources as source code: only its .py files count, not
// the data, caches and hidden folders beside them.
func Code(folder string) string { return codePrefix + folder }

// CutCode returns the path of an entry of Sources, and whether it was marked by Code.
func CutCode(source string) (path string, code bool) { return strings.CutPrefix(source, codePrefix) }
