// Package backends holds small python-based Triton backends that stand in for
// native ones where a tritonserver carries only the python backend.
package backends

import "embed"

// FS has one folder a backend, with its model.py, and what they share.
//
//go:embed */model.py arrays.py
var FS embed.FS
