//go:build !race

package pipeline_test

const slowChildren = false
