//go:build race

package pipeline_test

// Children take a second to start under the race detector.
const slowChildren = true
