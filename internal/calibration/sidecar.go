package calibration

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/regular"
	"github.com/trtship/trtship/report"
)

// Files of a calibration artifact.
const (
	CacheFile   = "calibration.cache"
	SidecarFile = "calibration.json"
)

// SidecarFormat is the tag of calibration.json.
const SidecarFormat = "trtship-calibration/1"

// Proof says what a cache was made from, so that a later run can tell whether
// it still holds. It names contents, never paths.
type Proof struct {
	Data         string            `json:"data"`          // digest of the data set's contents
	Feeds        string            `json:"feeds"`         // digest of the tensors that were fed, in order
	Samples      int               `json:"samples"`       // fed in truth
	Distinct     int               `json:"distinct"`      // different ones among them
	Batch        int               `json:"batch"`         // samples a run
	Preprocess   json.RawMessage   `json:"preprocess"`    // as configured
	Rule         Rule              `json:"rule"`          // method and its parameters
	Seed         int64             `json:"seed"`          // of the sampling
	Model        string            `json:"model"`         // digest of the model artifact
	Graph        string            `json:"graph"`         // digest of the structure, see onnx
	Synthetic    bool              `json:"synthetic"`     // random data: not representative
	Versions     map[string]string `json:"versions"`      // trtship's calibrator, ONNX Runtime
	TensorRT     string            `json:"tensorrt"`      // in the header
	TensorRTFrom string            `json:"tensorrt_from"` // configuration, build, default
}

// Differences lists what q, the proof of a calibration now, says otherwise.
// Fields that q leaves empty are not compared.
func (p Proof) Differences(q Proof) []string {
	var out []string
	text := func(what, was, now string) {
		if now != "" && was != now {
			out = append(out, fmt.Sprintf("%s: the cache was made with %s, now %s", what, orNone(was), now))
		}
	}
	number := func(what string, was, now int) {
		if now != 0 && was != now {
			out = append(out, fmt.Sprintf("%s: the cache was made with %d, now %d", what, was, now))
		}
	}
	text("data", p.Data, q.Data)
	text("feeds", p.Feeds, q.Feeds)
	number("samples", p.Samples, q.Samples)
	number("batch size", p.Batch, q.Batch)
	text("preprocessing", compact(p.Preprocess), compact(q.Preprocess))
	text("method", string(p.Rule.Method), string(q.Rule.Method))
	if q.Rule.Method == Percentile && p.Rule.Percentile != q.Rule.Percentile {
		out = append(out, fmt.Sprintf("percentile: the cache was made with %g, now %g", p.Rule.Percentile, q.Rule.Percentile))
	}
	if q.Data != "" && p.Seed != q.Seed {
		out = append(out, fmt.Sprintf("seed: the cache was made with %d, now %d", p.Seed, q.Seed))
	}
	text("model", p.Model, q.Model)
	text("graph", p.Graph, q.Graph)
	for _, k := range slices.Sorted(maps.Keys(q.Versions)) {
		text(k, p.Versions[k], q.Versions[k])
	}
	return out
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

func compact(raw json.RawMessage) string {
	if len(raw) == 0 {
		return ""
	}
	var v any
	if json.Unmarshal(raw, &v) != nil {
		return string(raw)
	}
	b, err := json.Marshal(v)
	if err != nil {
		return string(raw)
	}
	return string(b)
}

// TensorRange is what was observed of one tensor and what was chosen for it.
type TensorRange struct {
	Name      string        `json:"name"`
	Node      string        `json:"node,omitempty"` // that makes it; empty for an input
	Scale     report.Number `json:"scale"`
	Threshold report.Number `json:"threshold"`
	Min       report.Number `json:"min"`
	Max       report.Number `json:"max"`
	AbsMax    report.Number `json:"abs_max"`
	Clipped   report.Number `json:"clipped"` // share of the values beyond the threshold
	Count     int64         `json:"count"`
	NaN       int64         `json:"nan,omitempty"`
	Inf       int64         `json:"inf,omitempty"`
	Used      bool          `json:"used"` // has a scale in the cache
}

// Sidecar is calibration.json.
type Sidecar struct {
	Format         string        `json:"format"`
	Representative bool          `json:"representative"`
	Proof          Proof         `json:"proof"`
	Cache          string        `json:"cache"` // digest of calibration.cache
	Tensors        []TensorRange `json:"tensors"`
	Notes          []string      `json:"notes,omitempty"`
}

// ReadSidecar reads calibration.json.
func ReadSidecar(path string) (*Sidecar, error) {
	b, err := regular.ReadFile(path)
	if err != nil {
		return nil, failure.New(failure.Artifact, "read calibration sidecar: %w", err).At(path)
	}
	var s Sidecar
	if err := json.Unmarshal(b, &s); err != nil {
		return nil, failure.New(failure.Calibration, "read calibration sidecar: %w", err).At(path)
	}
	if s.Format != SidecarFormat {
		return nil, failure.New(failure.Calibration, "read calibration sidecar: format %q, expected %q", s.Format, SidecarFormat).At(path)
	}
	return &s, nil
}

// Range returns what was observed of a tensor.
func (s *Sidecar) Range(name string) (TensorRange, bool) {
	i, ok := slices.BinarySearchFunc(s.Tensors, name, func(t TensorRange, n string) int {
		switch {
		case t.Name < n:
			return -1
		case t.Name > n:
			return 1
		}
		return 0
	})
	if !ok {
		return TensorRange{}, false
	}
	return s.Tensors[i], true
}

// SortRanges sorts by name, as a sidecar needs it.
func SortRanges(ranges []TensorRange) {
	slices.SortFunc(ranges, func(a, b TensorRange) int { return cmp.Compare(a.Name, b.Name) })
}
