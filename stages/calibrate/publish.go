package calibrate

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/calibration"
	"github.com/trtship/trtship/internal/dataset"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/regular"
	"github.com/trtship/trtship/report"
)

// publish writes the cache and its sidecar.
func (w *work) publish(side *calibration.Sidecar) error {
	cache := calibration.Cache{Version: w.number, Token: calibration.TokenOf(w.proof.Rule.Method)}
	for _, r := range side.Tensors {
		if r.Used {
			cache.Entries = append(cache.Entries, calibration.Entry{Name: r.Name, Scale: float32(r.Scale)})
		}
	}
	return w.write(cache.Bytes(), side)
}

func (w *work) write(cache []byte, side *calibration.Sidecar) error {
	dir, err := w.out.Scratch("calibration")
	if err != nil {
		return err
	}
	side.Cache = digest(cache)
	text, err := json.MarshalIndent(side, "", "  ")
	if err != nil {
		return fmt.Errorf("write calibration sidecar: %w", err)
	}
	for name, b := range map[string][]byte{calibration.CacheFile: cache, calibration.SidecarFile: append(text, '\n')} {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o644); err != nil {
			return failure.New(failure.Artifact, "write calibration: %w", err).At(name)
		}
	}
	meta := map[string]string{
		"method": string(w.proof.Rule.Method), "samples": fmt.Sprint(side.Proof.Samples), "tensorrt": w.proof.TensorRT,
		"representative": fmt.Sprint(side.Representative),
	}
	_, err = w.out.Publish(artifact.CalibrationData, "", dir, meta)
	return err
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// checks are those of a calibration that went through.
func (w *work) checks(side *calibration.Sidecar, set *dataset.Set, seconds float64) []report.Check {
	p := side.Proof
	data := report.Check{
		ID: checkData, Verdict: report.Pass, Seconds: seconds,
		Want: fmt.Sprintf("at least %d different samples", w.cfg.Calibration.MinSamples),
		Got:  fmt.Sprintf("%d samples, %d different ones, of %d", p.Samples, p.Distinct, set.Total),
		Metrics: map[string]report.Number{
			"samples": report.Number(p.Samples), "distinct": report.Number(p.Distinct), "batch": report.Number(p.Batch),
		},
		Detail: strings.Join(side.Notes, "; "),
	}
	return []report.Check{data, w.coverage(side), representative(side)}
}

func (w *work) coverage(side *calibration.Sidecar) report.Check {
	has := map[string]calibration.TensorRange{}
	for _, r := range side.Tensors {
		has[r.Name] = r
	}
	var bad, zero []string
	for _, name := range w.names {
		r, ok := has[name]
		switch {
		case !ok || r.Count == 0:
			bad = append(bad, name+": no value")
		case r.NaN+r.Inf > 0:
			bad = append(bad, fmt.Sprintf("%s (%s): %d NaN, %d infinite", name, w.maker(name), r.NaN, r.Inf))
		case r.AbsMax == 0:
			zero = append(zero, name)
		}
	}
	c := report.Check{ID: checkCoverage, Verdict: report.Pass, Want: "a scale for every activation"}
	covered := len(w.names) - len(bad)
	c.Got = fmt.Sprintf("%d of %d (%.1f%%)", covered, len(w.names), 100*float64(covered)/float64(len(w.names)))
	c.Metrics = map[string]report.Number{"coverage": report.Number(100 * float64(covered) / float64(len(w.names)))}
	if len(zero) > 0 {
		c.Detail = fmt.Sprintf("%d tensors were 0 for every sample: %s", len(zero), some(zero))
	}
	if len(bad) > 0 {
		c.Verdict, c.Detail = report.Fail, some(bad)
		c.Hint = "a NaN or infinity comes from the model or from a sample; such a tensor has no scale and is not quantized"
	}
	return c
}

func (w *work) maker(tensor string) string {
	if n := w.makers[tensor]; n != "" {
		return n
	}
	return "input"
}

func representative(side *calibration.Sidecar) report.Check {
	c := report.Check{ID: checkRepresentative, Verdict: report.Pass, Want: "real data", Got: "real data"}
	if !side.Representative {
		c.Verdict, c.Got = report.Skip, "synthetic data"
		c.Detail = "allowed by calibration.allow_synthetic; the result is marked as not representative"
	}
	return c
}

// some joins the first few of many.
func some(list []string) string {
	const most = 10
	if len(list) <= most {
		return strings.Join(list, "; ")
	}
	return fmt.Sprintf("%s; and %d more", strings.Join(list[:most], "; "), len(list)-most)
}

// sidecarOf returns the sidecar of a cache: <cache>.json with the cache's
// extension replaced, or calibration.json beside it; empty if there is none.
func sidecarOf(cache string) string {
	dir := filepath.Dir(cache)
	for _, p := range []string{strings.TrimSuffix(cache, filepath.Ext(cache)) + ".json", filepath.Join(dir, calibration.SidecarFile)} {
		if st, err := os.Stat(p); err == nil && st.Mode().IsRegular() && p != cache {
			return p
		}
	}
	return ""
}

// take judges the cache that the configuration names and publishes its bytes as
// they are.
func (w *work) take(ctx context.Context) ([]report.Check, error) {
	path := w.cfg.Calibration.Cache
	text, err := regular.ReadFile(path)
	if err != nil {
		return nil, failure.New(failure.Calibration, "read calibration cache: %w", err).At(path).WithHint("mend calibration.cache, or leave it out to calibrate anew")
	}
	side, now, notes, err := w.evidence(ctx, path)
	if err != nil {
		return nil, err
	}
	want := calibration.Expectation{Token: calibration.TokenOf(w.proof.Rule.Method), Graph: calibration.Graph{Tensors: w.names}, Now: now}
	if w.proof.TensorRTFrom != "default" {
		want.Version = w.number
	}
	if side != nil {
		want.Sidecar = &side.Proof
	}
	v := calibration.Check(text, want)
	if side != nil && side.Cache != "" && side.Cache != digest(text) {
		v.Problems = append(v.Problems, calibration.Problem{
			Kind: "proof",
			Text: fmt.Sprintf("the sidecar %s belongs to another cache: the digests differ", filepath.Base(sidecarOf(path))),
		})
	}
	c := report.Check{
		ID: checkCache, Verdict: report.Pass, Want: "no mismatch", Metrics: map[string]report.Number{"coverage": report.Number(v.Coverage)},
		Got: fmt.Sprintf("%s, %d scales, coverage %.1f%%", v.Header, v.Entries, v.Coverage), Detail: strings.Join(append(v.Notes, notes...), "; "),
		Line: w.cfg.Lines["calibration.cache"],
	}
	if want.Version == 0 {
		c.Got += ", held to no release"
	}
	if !v.OK() {
		c.Verdict, c.Got = report.Fail, fmt.Sprintf("%d mismatches", len(v.Problems))
		var all []string
		for _, p := range v.Problems {
			all = append(all, p.String())
		}
		c.Detail = strings.Join(all, "\n")
		c.Hint = "calibrate anew (leave out calibration.cache), or name the cache that was made from this model and these data"
		return []report.Check{c}, nil
	}
	if side == nil {
		side = w.foreign(text)
	}
	return []report.Check{c}, w.write(text, side)
}

// evidence reads the sidecar of a given cache and what a calibration now would
// say. Without data the fields about them are not compared.
func (w *work) evidence(ctx context.Context, path string) (*calibration.Sidecar, *calibration.Proof, []string, error) {
	p := sidecarOf(path)
	if p == "" {
		return nil, nil, []string{"no sidecar: whether the cache is of this model and of these data cannot be told"}, nil
	}
	side, err := calibration.ReadSidecar(p)
	if err != nil {
		return nil, nil, nil, err
	}
	now := w.proof
	now.Versions = nil // another ONNX Runtime gives the same ranges
	if v, ok := w.proof.Versions[pictureReader]; ok {
		now.Versions = map[string]string{pictureReader: v} // another reader gives other pixels
	}
	if w.cfg.Calibration.Path == "" && w.cfg.Calibration.Dataset != "synthetic" {
		return side, &now, []string{"calibration.path is not set: the data behind the cache are not compared"}, nil
	}
	set, err := w.open(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	defer set.Close() //nolint:errcheck // read only
	if now.Data, err = set.Digest(ctx); err != nil {
		return nil, nil, nil, err
	}
	now.Samples, now.Batch = set.Samples, set.Batch
	return side, &now, nil, nil
}

// foreign is the sidecar of a cache that came without one.
func (w *work) foreign(text []byte) *calibration.Sidecar {
	cache, _ := calibration.ParseCache(bytes.Clone(text))
	s := &calibration.Sidecar{
		Format: calibration.SidecarFormat, Representative: true,
		Proof: calibration.Proof{Rule: w.proof.Rule, TensorRT: calibration.VersionText(cache.Version), TensorRTFrom: "cache"},
		Notes: []string{"the cache was given without a sidecar: nothing is known about the data behind it"},
	}
	scales := cache.Scales()
	ranges := make([]calibration.TensorRange, 0, len(scales))
	for name, v := range scales {
		threshold := math.Abs(float64(v)) * 127
		ranges = append(ranges, calibration.TensorRange{Name: name, Node: w.makers[name], Scale: report.Number(v), Threshold: report.Number(threshold), Used: true})
	}
	calibration.SortRanges(ranges)
	s.Tensors = ranges
	return s
}
