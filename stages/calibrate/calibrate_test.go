package calibrate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/png"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/calibration"
	"github.com/trtship/trtship/internal/calibration/calibrationtest"
	"github.com/trtship/trtship/internal/dataset"
	"github.com/trtship/trtship/internal/failpoint"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/onnx/onnxtest"
	"github.com/trtship/trtship/internal/ort"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/internal/testkit"
	"github.com/trtship/trtship/report"
)

func TestMain(m *testing.M) {
	ort.RunChildIfAsked()
	testkit.Main(m)
}

func newCase(t *testing.T) *calibrationtest.Case {
	t.Helper()
	return calibrationtest.New(t, "cnn", "")
}

// run runs the stage and returns its checks by id, the cache and the sidecar.
func run(t *testing.T, c *calibrationtest.Case, tools Tools) (map[string]report.Check, string, *calibration.Sidecar, error) {
	t.Helper()
	tools.ORT = c.Library
	out := testkit.NewOutputs(t)
	list, err := New(c.Config, tools).Run(context.Background(), c.Inputs(), out)
	checks := map[string]report.Check{}
	for _, k := range list {
		checks[k.ID] = k
	}
	if len(out.Published) == 0 {
		return checks, "", nil, err
	}
	a := out.Published[0]
	if a.Kind != artifact.CalibrationData {
		t.Fatalf("published %s", a.Kind)
	}
	cache, err2 := os.ReadFile(filepath.Join(a.Dir, calibration.CacheFile))
	if err2 != nil {
		t.Fatal(err2)
	}
	side, err2 := calibration.ReadSidecar(filepath.Join(a.Dir, calibration.SidecarFile))
	if err2 != nil {
		t.Fatal(err2)
	}
	return checks, string(cache), side, err
}

func TestCalibrationCoversTheGraphAndProvesWhatItIsFrom(t *testing.T) {
	c := newCase(t)
	checks, cache, side, err := run(t, c, Tools{})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{checkData, checkCoverage, checkRepresentative} {
		if checks[id].Verdict != report.Pass {
			t.Errorf("%s: %+v", id, checks[id])
		}
	}
	parsed, problems := calibration.ParseCache([]byte(cache))
	if len(problems) > 0 || parsed.Version != 100600 || parsed.Token != calibration.TokenEntropy2 {
		t.Errorf("%v %+v", problems, parsed)
	}
	var names []string
	for name := range parsed.Scales() {
		names = append(names, name)
	}
	if len(names) != 9 {
		t.Errorf("scales of %q", names)
	}
	p := side.Proof
	if p.Samples != 40 || p.Distinct != 40 || p.Batch != 8 || p.Rule.Method != calibration.Entropy || p.Seed != 0 ||
		!strings.HasPrefix(p.Data, "sha256:") || !strings.HasPrefix(p.Feeds, "sha256:") || p.Model != string(c.Model.Digest) ||
		!strings.HasPrefix(p.Graph, "sha256:") || p.Versions["onnxruntime"] != "test" || p.TensorRTFrom != "default" {
		t.Errorf("proof %+v", p)
	}
	if !side.Representative || !strings.Contains(strings.Join(side.Notes, " "), "set calibration.tensorrt_version") {
		t.Errorf("sidecar %+v", side)
	}
	r, ok := side.Range("r2")
	if !ok || r.Node != "/relu2" || !r.Used || !(r.AbsMax >= r.Threshold && r.Threshold > 0) || math.Abs(float64(r.Scale)*127-float64(r.Threshold)) > 1e-6 {
		t.Errorf("range %+v", r)
	}
}

func TestEveryMethodGivesItsHeaderAndItsRange(t *testing.T) {
	top := map[string]float64{}
	for method, header := range map[string]string{
		"minmax": "TRT-110201-MinMaxCalibration\n", "percentile": "TRT-110201-EntropyCalibration2\n", "entropy": "TRT-110201-EntropyCalibration2\n", "entropy-ort": "TRT-110201-EntropyCalibration2\n",
	} {
		c := newCase(t)
		c.Config.Calibration.Method, c.Config.Calibration.Percentile, c.Config.Calibration.TensorRTVersion = method, 90, "11.2.1"
		_, cache, side, err := run(t, c, Tools{})
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(cache, header) || side.Proof.TensorRTFrom != "configuration" {
			t.Errorf("%s: %.40q", method, cache)
		}
		r, _ := side.Range("x")
		top[method] = float64(r.Threshold)
	}
	if top["minmax"] != top["entropy-ort"] || !(top["percentile"] < top["minmax"]/1.5) || !(top["entropy"] <= top["minmax"]) {
		t.Errorf("thresholds %v", top)
	}
}

func TestTheHeaderIsOfTheTargetsBuild(t *testing.T) {
	c := newCase(t)
	s := New(c.Config, Tools{ORT: c.Library, TensorRT: func(context.Context) string { return "10.16.0" }})
	tools, err := s.Tools(context.Background())
	if err != nil || tools["tensorrt-header"] != "10.16.0" || tools["onnxruntime"] != "test" {
		t.Errorf("%v %v", tools, err)
	}
	_, cache, side, err := run(t, c, Tools{TensorRT: func(context.Context) string { return "10.16.0" }})
	if err != nil || !strings.HasPrefix(cache, "TRT-101600-") || side.Proof.TensorRTFrom != "build" {
		t.Errorf("%.40q %v", cache, err)
	}
}

func TestTwoCalibrationsAreByteIdentical(t *testing.T) {
	_, a, _, err := run(t, newCase(t), Tools{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	_, b, _, err := run(t, newCase(t), Tools{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(a, b); d != "" {
		t.Error(d)
	}
}

func TestAnInterruptedStageLeavesNothingAndGivesTheSameBytesNextTime(t *testing.T) {
	_, want, _, err := run(t, newCase(t), Tools{})
	if err != nil {
		t.Fatal(err)
	}
	c := newCase(t)
	state := t.TempDir()
	if err := failpoint.Arm("calibrate.batch.done:eio:2"); err != nil {
		t.Fatal(err)
	}
	_, cache, _, err := run(t, c, Tools{State: state})
	failpoint.Disarm()
	if err == nil || cache != "" {
		t.Fatalf("%v, published %q", err, cache)
	}
	_, got, _, err := run(t, c, Tools{State: state})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	left, err := os.ReadDir(state)
	if err != nil || len(left) != 0 {
		t.Errorf("state after the end: %v %v", left, err)
	}
}

func TestSyntheticDataAreMarked(t *testing.T) {
	c := newCase(t)
	c.Config.Calibration.Dataset, c.Config.Calibration.Path = "synthetic", ""
	if _, _, _, err := run(t, c, Tools{}); failure.CodeOf(err) != failure.Calibration {
		t.Errorf("error %v", err)
	}
	c.Config.Calibration.AllowSynthetic = true
	checks, _, side, err := run(t, c, Tools{})
	if err != nil {
		t.Fatal(err)
	}
	if side.Representative || !side.Proof.Synthetic || checks[checkRepresentative].Verdict != report.Skip {
		t.Errorf("%+v %+v", side.Proof, checks[checkRepresentative])
	}
}

func TestRepeatedSamplesAreRefused(t *testing.T) {
	c := newCase(t)
	arrays, err := tensor.ReadNPZ(c.Data)
	if err != nil {
		t.Fatal(err)
	}
	x, _ := tensor.Find(arrays, "x")
	var again []tensor.Tensor
	for range 30 {
		again = append(again, x.Rows(0, 1))
	}
	same, err := tensor.Concat(again...)
	if err != nil {
		t.Fatal(err)
	}
	c.Config.Calibration.Path = filepath.Join(t.TempDir(), "same.npz")
	if err := tensor.WriteNPZ(c.Config.Calibration.Path, []tensor.Named{{Name: "x", Tensor: same}}); err != nil {
		t.Fatal(err)
	}
	_, cache, _, err := run(t, c, Tools{})
	if failure.CodeOf(err) != failure.Calibration || !strings.Contains(err.Error(), "all 30 calibration samples are the same one") || cache != "" {
		t.Errorf("%v, published %q", err, cache)
	}
}

// TestACacheFromPicturesIsOfTheirReader refuses a cache that was made from the
// same pictures when they were read otherwise.
func TestACacheFromPicturesIsOfTheirReader(t *testing.T) {
	folder := t.TempDir()
	r := rand.New(rand.NewPCG(3, 0))
	for i := range 8 {
		img := image.NewGray(image.Rect(0, 0, 8, 8))
		for k := range img.Pix {
			img.Pix[k] = uint8(r.IntN(256))
		}
		f, err := os.Create(filepath.Join(folder, fmt.Sprintf("%d.png", i)))
		if err == nil {
			err = errors.Join(png.Encode(f, img), f.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	pictures := func() *calibrationtest.Case {
		c := newCase(t)
		c.Config.Calibration.Dataset, c.Config.Calibration.Path = "images", folder
		c.Config.Calibration.NumSamples, c.Config.Calibration.MinSamples = 8, 8
		return c
	}
	_, cache, side, err := run(t, pictures(), Tools{})
	if err != nil {
		t.Fatal(err)
	}
	for version, want := range map[string]report.Verdict{dataset.PictureReader: report.Pass, "": report.Fail, "1": report.Fail} {
		old := *side
		old.Proof.Versions = map[string]string{"onnxruntime": "another"}
		if version != "" {
			old.Proof.Versions["picture reader"] = version
		}
		c := pictures()
		c.Config.Calibration.Cache = given(t, cache, &old)
		checks, _, _, err := run(t, c, Tools{})
		if err != nil {
			t.Fatal(err)
		}
		check := checks[checkCache]
		if check.Verdict != want || want == report.Fail && !strings.Contains(check.Detail, "picture reader: the cache was made with "+map[string]string{"": "none", "1": "1"}[version]+", now 2") {
			t.Errorf("version %q: %+v", version, check)
		}
	}
}

// given writes a cache, and its sidecar if there is one, as a user would keep them.
func given(t *testing.T, cache string, side *calibration.Sidecar) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "mine.cache")
	if err := os.WriteFile(path, []byte(cache), 0o444); err != nil {
		t.Fatal(err)
	}
	if side != nil {
		b, err := json.Marshal(side)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(filepath.Dir(path), "mine.json"), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

func TestAGivenCacheIsJudged(t *testing.T) {
	c := newCase(t)
	_, cache, side, err := run(t, c, Tools{})
	if err != nil {
		t.Fatal(err)
	}
	for name, k := range map[string]struct {
		change func(c *calibrationtest.Case)
		edit   func(cache string) string
		bare   bool
		say    []string // of the problems; none: it matches
	}{
		"the same again":    {},
		"without a sidecar": {bare: true},
		"without the data":  {change: func(c *calibrationtest.Case) { c.Config.Calibration.Path = "" }},
		"other data":        {change: func(c *calibrationtest.Case) { c.Config.Calibration.Path = other(t, c.Data) }, say: []string{"data: the cache was made with sha256:"}},
		"another seed":      {change: func(c *calibrationtest.Case) { c.Config.Calibration.Seed = 5 }, say: []string{"seed: the cache was made with 0, now 5"}},
		"another method":    {change: func(c *calibrationtest.Case) { c.Config.Calibration.Method = "minmax" }, say: []string{"the configuration asks for MinMaxCalibration", "method: the cache was made with entropy, now minmax"}},
		"fewer samples":     {change: func(c *calibrationtest.Case) { c.Config.Calibration.NumSamples = 20 }, say: []string{"samples: the cache was made with 40, now 20"}},
		"another batch":     {change: func(c *calibrationtest.Case) { c.Config.Calibration.BatchSize = 4 }, say: []string{"batch size: the cache was made with 8, now 4"}},
		"another model":     {change: func(c *calibrationtest.Case) { c.Model.Digest = "sha256:" + artifact.Digest(strings.Repeat("9", 64)) }, say: []string{"model: the cache was made with sha256:"}},
		"another TensorRT":  {change: func(c *calibrationtest.Case) { c.Config.Calibration.TensorRTVersion = "10.16.0" }, say: []string{"the builder is 10.16.0 (101600)"}},
		"an edited scale":   {edit: func(s string) string { return strings.Replace(s, "logits: ", "logits: 3f000000\nlogit: ", 1) }, say: []string{"names not in the model: logit", "belongs to another cache"}},
		"an infinite scale": {edit: func(s string) string { return s[:strings.Index(s, "x: ")] + "x: 7f800000\n" }, bare: true, say: []string{"x: scale is +Inf"}},
		"several at once":   {change: func(c *calibrationtest.Case) { c.Config.Calibration.Seed, c.Config.Calibration.BatchSize = 5, 4 }, say: []string{"seed:", "batch size:"}},
	} {
		c := newCase(t)
		text := cache
		if k.edit != nil {
			text = k.edit(text)
		}
		s := side
		if k.bare {
			s = nil
		}
		if k.change != nil {
			k.change(c)
		}
		path := given(t, text, s)
		c.Config.Calibration.Cache = path
		checks, published, got, err := run(t, c, Tools{})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		check := checks[checkCache]
		if len(k.say) == 0 {
			if check.Verdict != report.Pass || published != cache {
				t.Errorf("%s: %+v", name, check)
			} else if r, ok := got.Range("r1"); !ok || !r.Used {
				t.Errorf("%s: the sidecar has no range", name)
			}
			continue
		}
		if check.Verdict != report.Fail || published != "" {
			t.Errorf("%s: %+v", name, check)
		}
		for _, say := range k.say {
			if !strings.Contains(check.Detail, say) {
				t.Errorf("%s: %q does not say %q", name, check.Detail, say)
			}
		}
		if after, err := os.ReadFile(path); err != nil || string(after) != text {
			t.Errorf("%s: the given file was changed", name)
		}
	}
}

func other(t *testing.T, path string) string {
	t.Helper()
	arrays, err := tensor.ReadNPZ(path)
	if err != nil {
		t.Fatal(err)
	}
	x, _ := tensor.Find(arrays, "x")
	x = x.Clone()
	x.SetFloat64(5, 0.25)
	out := filepath.Join(t.TempDir(), "other.npz")
	if err := tensor.WriteNPZ(out, []tensor.Named{{Name: "x", Tensor: x}}); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestAMissingOrBrokenCacheIsExit8(t *testing.T) {
	c := newCase(t)
	c.Config.Calibration.Cache = filepath.Join(t.TempDir(), "none.cache")
	if _, _, _, err := run(t, c, Tools{}); failure.CodeOf(err) != failure.Calibration {
		t.Errorf("a missing cache: %v", err)
	}
	c.Config.Calibration.Cache = given(t, "{}", &calibration.Sidecar{Format: "other/1"})
	if _, _, _, err := run(t, c, Tools{}); failure.CodeOf(err) != failure.Calibration {
		t.Errorf("a broken sidecar: %v", err)
	}
}

func TestSettingsHoldNoPathAndSourcesHoldAll(t *testing.T) {
	c := newCase(t)
	s := New(c.Config, Tools{})
	a, err := json.Marshal(s.Settings())
	if err != nil || strings.Contains(string(a), c.Data) {
		t.Errorf("settings %s, %v", a, err)
	}
	if d := cmp.Diff([]string{c.Data}, s.Sources()); d != "" {
		t.Error(d)
	}
	c.Config.Calibration.Cache = given(t, "x", &calibration.Sidecar{})
	if got := s.Sources(); len(got) != 3 || !strings.HasSuffix(got[2], "mine.json") {
		t.Errorf("sources %q", got)
	}
	c.Config.Calibration.Method = "kl"
	if _, _, _, err := run(t, c, Tools{}); failure.CodeOf(err) != failure.Usage {
		t.Errorf("an unknown method: %v", err)
	}
	c = newCase(t)
	c.Config.Calibration.TensorRTVersion = "ten"
	if _, _, _, err := run(t, c, Tools{}); failure.CodeOf(err) != failure.Usage {
		t.Errorf("a version that is none: %v", err)
	}
}

func TestEveryCheckIsDescribed(t *testing.T) {
	docs := map[string]bool{}
	for _, d := range New(newCase(t).Config, Tools{}).Spec().Checks {
		docs[d.ID] = d.Title != "" && d.Remedy != ""
	}
	if d := cmp.Diff(map[string]bool{checkData: true, checkCoverage: true, checkRepresentative: true, checkCache: true}, docs); d != "" {
		t.Error(d)
	}
}

func TestTensorsThatAreNotFiniteHaveNoScale(t *testing.T) {
	c := newCase(t)
	w := &work{Stage: New(c.Config, Tools{}), names: []string{"a", "b", "c", "d"}, makers: map[string]string{"a": "/a"}}
	side := &calibration.Sidecar{Tensors: []calibration.TensorRange{{Name: "a", Count: 5, NaN: 2}, {Name: "b", Count: 5, AbsMax: 1}, {Name: "c", Count: 5}}}
	check := w.coverage(side)
	if check.Verdict != report.Fail || check.Got != "2 of 4 (50.0%)" || !strings.Contains(check.Detail, "a (/a): 2 NaN, 0 infinite; d: no value") {
		t.Errorf("%+v", check)
	}
	w.names = []string{"b", "c"}
	if check := w.coverage(side); check.Verdict != report.Pass || !strings.Contains(check.Detail, "1 tensors were 0 for every sample: c") {
		t.Errorf("%+v", check)
	}
}

func TestANameThatNoCacheCanHoldIsRefused(t *testing.T) {
	m := onnxtest.New(17).Input("x", tensor.Float32, "n", 2).Output("y", tensor.Float32, "n", 2).Node("Relu", "x", "a").Node("Neg", "a", "y").Model(t)
	odd := "a\n2"
	m.Graph().Node[0].Output[0], m.Graph().Node[1].Input[0] = odd, odd
	w := &work{Stage: New(newCase(t).Config, Tools{}), model: m}
	err := w.prepare(context.Background())
	if failure.CodeOf(err) != failure.Calibration || !strings.Contains(err.Error(), `tensor "a\n2" of node /a has a line break in its name`) {
		t.Errorf("error %v", err)
	}
}
