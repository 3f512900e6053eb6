//go:build race

package ort

// The race detector keeps a history of memory accesses of its own, which grows.
const detectorBytes = 64 << 20
