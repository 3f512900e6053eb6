package dataset

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"math"
	"slices"

	"github.com/trtship/trtship/internal/tensor"
)

// hashSample hashes one sample, with a length before each input.
func hashSample(parts [][]byte) [32]byte {
	h := sha256.New()
	var n [8]byte
	for _, p := range parts {
		binary.LittleEndian.PutUint64(n[:], uint64(len(p)))
		h.Write(n[:])
		h.Write(p)
	}
	return [32]byte(h.Sum(nil))
}

// Audit accounts for the samples that were fed. It can be stopped and resumed
// through its JSON form.
type Audit struct {
	Samples int // fed

	chain [32]byte
	seen  map[uint64]bool
}

// NewAudit returns an audit of nothing.
func NewAudit() *Audit { return &Audit{seen: map[uint64]bool{}} }

// Add accounts for a batch.
func (a *Audit) Add(b Batch) {
	for _, d := range b.Digests {
		a.Samples++
		a.chain = sha256.Sum256(append(a.chain[:], d[:]...))
		a.seen[binary.LittleEndian.Uint64(d[:])] = true
	}
}

// Distinct returns how many different samples there were.
func (a *Audit) Distinct() int { return len(a.seen) }

// Feeds returns the digest of all samples in order.
func (a *Audit) Feeds() string { return "sha256:" + hex.EncodeToString(a.chain[:]) }

// Check refuses data that repeat: fewer than least different samples.
func (a *Audit) Check(least int) error {
	least = max(least, 1)
	switch n := a.Distinct(); {
	case a.Samples > 1 && n == 1:
		return refuse("all %d calibration samples are the same one", a.Samples).
			WithHint("look at what wrote the data: a loader that returns its first sample again and again calibrates for that sample alone")
	case n < least:
		return refuse("only %d different samples among the %d that were fed, at least %d needed", n, a.Samples, least).
			WithHint("add data, or lower calibration.min_samples if so few represent the inputs")
	}
	return nil
}

type auditJSON struct {
	Samples int      `json:"samples"`
	Chain   string   `json:"chain"`
	Seen    []uint64 `json:"seen"`
}

// MarshalJSON writes the state for a checkpoint.
func (a *Audit) MarshalJSON() ([]byte, error) {
	j := auditJSON{Samples: a.Samples, Chain: hex.EncodeToString(a.chain[:])}
	for k := range a.seen {
		j.Seen = append(j.Seen, k)
	}
	slices.Sort(j.Seen)
	return json.Marshal(j)
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (a *Audit) UnmarshalJSON(b []byte) error {
	var j auditJSON
	if err := json.Unmarshal(b, &j); err != nil {
		return err
	}
	chain, err := hex.DecodeString(j.Chain)
	if err != nil || len(chain) != len(a.chain) {
		return refuse("audit: chain %q is no digest", j.Chain)
	}
	a.Samples, a.chain, a.seen = j.Samples, [32]byte(chain), make(map[uint64]bool, len(j.Seen))
	for _, k := range j.Seen {
		a.seen[k] = true
	}
	return nil
}

// checkValues refuses NaN, infinities and values outside of the input's range.
func checkValues(in Input, data []byte, place string) error {
	low, high := math.Inf(-1), math.Inf(1)
	if in.Range != nil {
		low, high = in.Range[0], in.Range[1]
	}
	if in.DType == tensor.Float32 {
		return checkFloat32(in, data, place, low, high)
	}
	if in.Range == nil && !in.DType.Floating() {
		return nil
	}
	t := tensor.Tensor{DType: in.DType, Shape: []int64{int64(len(data) / max(in.DType.Size(), 1))}, Data: data}
	for i := range int(t.Shape[0]) {
		if v := t.Float64At(i); !(v >= low && v <= high) || math.IsInf(v, 0) {
			return badValue(in, v, i, place)
		}
	}
	return nil
}

func checkFloat32(in Input, data []byte, place string, low, high float64) error {
	lo, hi := float32(math.Max(low, -math.MaxFloat32)), float32(math.Min(high, math.MaxFloat32))
	for i := 0; i+4 <= len(data); i += 4 {
		v := math.Float32frombits(binary.LittleEndian.Uint32(data[i:]))
		if !(v >= lo && v <= hi) {
			return badValue(in, float64(v), i/4, place)
		}
	}
	return nil
}

func badValue(in Input, v float64, index int, place string) error {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return refuse("calibration data of input %s hold %g at element %d", in.Name, v, index).At(place).
			WithHint("mend or remove this sample; one such value makes a range worthless")
	}
	return refuse("calibration data of input %s hold %g at element %d, outside of [%g, %g]", in.Name, v, index, in.Range[0], in.Range[1]).At(place).
		WithHint("apply the model's preprocessing to the data, or mend calibration.preprocess (scale, mean, std, range) or the input's range")
}
