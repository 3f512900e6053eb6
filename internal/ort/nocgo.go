//go:build !cgo

package ort

import "github.com/trtship/trtship/internal/failure"

// A build without cgo is a static binary that runs without any library, so it
// cannot load one either.

func dlopen(string) (uintptr, error) {
	return 0, failure.New(failure.Missing, "this trtship was built without cgo and cannot load ONNX Runtime").
		WithHint("use the release binary, or build with CGO_ENABLED=1")
}

func dlsym(uintptr, string) (uintptr, error) { _, err := dlopen(""); return 0, err }

// syscallN is never reached: nothing was opened.
func syscallN(uintptr, ...uintptr) (r1, r2, err uintptr) { return 0, 0, 0 }
