// Package backends holds small python-based Triton backends that stand in for
// native ones where a tritonserver carries only the python backend.
package backends

import "embed"

// FS has one folder a backend, with its model.py.
//
//go:embed */model.py
var FS embed.FS
