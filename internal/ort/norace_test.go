//go:build !race

package ort

const detectorBytes = 0
