// Package artifact names the things that stages exchange: kinds, digests, and
// the records that say which files make up one immutable artifact.
package artifact

import (
	"fmt"
	"strings"
)

// Kind is the type of an artifact. Stages are ordered by the kinds that they
// need and make, never by a position in a list.
type Kind string

// The kinds. A kind ending in "-report" is a JSON document of package report
// (see report.Document) that the pipeline also puts into report.json.
const (
	InspectReport   Kind = "inspect-report"   // report.Inspection
	ONNX            Kind = "onnx"             // model.onnx and its external data files, as exported
	Reference       Kind = "reference"        // feeds and reference outputs (.npz) by point and sample
	ValidateReport  Kind = "validate-report"  // report.Validation: reference against exported ONNX
	OptimizedONNX   Kind = "onnx-optimized"   // model.onnx after our passes
	OptimizeReport  Kind = "optimize-report"  // report.Optimization
	OptimizedReport Kind = "optimized-report" // report.Validation: reference against optimized ONNX
	CalibrationData Kind = "calibration"      // calibration.cache and calibration.json
	PrecisionONNX   Kind = "onnx-precision"   // one model.onnx for each precision (Label)
	PrecisionReport Kind = "precision-report" // report.Validation: previews of precision graphs
	Engine          Kind = "engine"           // model.plan and engine.json for each precision (Label)
	EngineReport    Kind = "engine-report"    // report.Validation: reference against engines
	BenchmarkReport Kind = "benchmark-report" // report.Benchmark
	Repository      Kind = "repository"       // a Triton model repository
	ServedReport    Kind = "served-report"    // report.Validation through the server
	Outputs         Kind = "outputs"          // candidate outputs (.npz) by point and sample, kept for recheck
)

// Kinds are all of them, in the order of the stages.
var Kinds = []Kind{
	InspectReport, ONNX, Reference, ValidateReport, OptimizedONNX, OptimizeReport, OptimizedReport, CalibrationData,
	PrecisionONNX, PrecisionReport, Engine, EngineReport, BenchmarkReport, Repository, ServedReport, Outputs,
}

// Digest is "sha256:" and 64 hexadecimal digits.
type Digest string

// ParseDigest checks the form of s.
func ParseDigest(s string) (Digest, error) {
	hex, ok := strings.CutPrefix(s, "sha256:")
	if !ok || len(hex) != 64 || strings.Trim(hex, "0123456789abcdef") != "" {
		return "", fmt.Errorf("digest %q is not sha256: and 64 lower-case hexadecimal digits", s)
	}
	return Digest(s), nil
}

// Short returns the first 12 hexadecimal digits.
func (d Digest) Short() string {
	s := strings.TrimPrefix(string(d), "sha256:")
	if len(s) > 12 {
		s = s[:12]
	}
	return s
}

// File is one file of an artifact. Path is relative, slash-separated, and
// stays inside the artifact.
type File struct {
	Path   string `json:"path"`
	Size   int64  `json:"size"`
	Digest Digest `json:"digest"`
}

// Record describes a published artifact: one directory of files, never
// modified. Its Digest is the SHA-256 of its file when it has exactly one, and
// of the sorted lines "<hex>  <path>\n" otherwise.
type Record struct {
	Kind    Kind              `json:"kind"`
	Label   string            `json:"label,omitempty"` // tells artifacts of one kind apart, e.g. a precision
	Digest  Digest            `json:"digest"`
	Size    int64             `json:"size"`
	Files   []File            `json:"files"`
	Stage   string            `json:"stage,omitempty"`   // stage that made it
	Parents []string          `json:"parents,omitempty"` // ids of what it was made from
	Meta    map[string]string `json:"meta,omitempty"`    // small facts for people
}

// ID is the kind and the first 12 digits of the digest, e.g. "onnx-3fa9c1d20b7e".
func (r Record) ID() string { return string(r.Kind) + "-" + r.Digest.Short() }

// Artifact is a record together with the absolute directory of its files.
type Artifact struct {
	Record
	Dir string
}
