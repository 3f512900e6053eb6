package calibration

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/trtship/trtship/internal/ort"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/internal/testkit"
)

func TestMain(m *testing.M) {
	ort.RunChildIfAsked()
	testkit.Main(m)
}

const golden = "../../testdata/calibration"

// ortRanges reads what onnxruntime.quantization chose, and from which values.
func ortRanges(t *testing.T) (values map[string][]float32, want map[string]map[string][2]float32) {
	t.Helper()
	arrays, err := tensor.ReadNPZ(filepath.Join(golden, "values.npz"))
	if err != nil {
		t.Fatal(err)
	}
	values = map[string][]float32{}
	for _, a := range arrays {
		values[a.Name] = a.Float32s()
	}
	text, err := os.ReadFile(filepath.Join(golden, "expect.json"))
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Tensors map[string]map[string][2]float32
	}
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	if len(doc.Tensors) < 10 || len(values) != len(doc.Tensors) {
		t.Fatalf("%d arrays, %d expectations", len(values), len(doc.Tensors))
	}
	return values, doc.Tensors
}

func largest(r [2]float32) float64 { return math.Max(math.Abs(float64(r[0])), math.Abs(float64(r[1]))) }

func TestMinMaxIsThatOfONNXRuntime(t *testing.T) {
	values, want := ortRanges(t)
	for name, v := range values {
		o := NewObserver()
		o.Add(v)
		got, err := Rule{Method: MinMax}.Threshold(o)
		if err != nil {
			t.Fatal(err)
		}
		if w := largest(want[name]["minmax"]); float64(got) != w {
			t.Errorf("%s: threshold %g, want %g", name, got, w)
		}
	}
}

func TestEntropyORTWithDefaultsIsThatOfONNXRuntime(t *testing.T) {
	values, want := ortRanges(t)
	for name, v := range values {
		o := NewObserver()
		o.Add(v)
		got, err := Rule{Method: EntropyORT}.Threshold(o)
		if err != nil {
			t.Fatal(err)
		}
		if w := largest(want[name]["entropy-128"]); math.Abs(float64(got)-w) > 1e-6*w {
			t.Errorf("%s: threshold %g, want %g", name, got, w)
		}
	}
}

func TestSignedHistogramFindsTheRangesOfONNXRuntime(t *testing.T) {
	values, want := ortRanges(t)
	for name, v := range values {
		o := NewObserver()
		o.Add(v)
		for _, bins := range []int{128, 512, 2048} {
			h := NewSignedHistogram(o.Min, o.Max, bins)
			h.Add(v[:len(v)/3])
			h.Add(v[len(v)/3:])
			low, high := h.Entropy(128)
			w := want[name]["entropy-"+strconv.Itoa(bins)]
			width := 2 * float64(h.Threshold) / float64(bins)
			if math.Abs(float64(low-w[0])) > width+1e-9 || math.Abs(float64(high-w[1])) > width+1e-9 {
				t.Errorf("%s with %d bins: [%g, %g], want %v within %g", name, bins, low, high, w, width)
			}
		}
	}
}

func TestPercentileAgreesWithONNXRuntimeToABin(t *testing.T) {
	values, want := ortRanges(t)
	compared := 0
	for name, v := range values {
		o := NewObserver()
		o.Add(v)
		for key, w := range want[name] {
			text, ok := strings.CutPrefix(key, "percentile-")
			if !ok {
				continue
			}
			p, err := strconv.ParseFloat(text, 64)
			if err != nil {
				t.Fatal(err)
			}
			got, err := Rule{Method: Percentile, Percentile: p}.Threshold(o)
			if err != nil {
				t.Fatal(err)
			}
			width := float64(o.AbsMax()) / 2048
			if math.Abs(float64(got)-largest(w)) > width {
				t.Errorf("%s at %s: %g, want %g within %g", name, text, got, largest(w), width)
			}
			compared++
		}
	}
	if compared < 30 {
		t.Errorf("only %d compared", compared)
	}
}

func TestPercentileOutsideOfItsRangeIsRefused(t *testing.T) {
	for _, p := range []float64{0, -1, 100.5, math.NaN()} {
		if _, err := (Rule{Method: Percentile, Percentile: p}).Threshold(NewObserver()); err == nil {
			t.Errorf("percentile %g was accepted", p)
		}
	}
}

// slowEntropy is the description of the method, word for word.
func slowEntropy(hist []int64) int {
	h := append([]int64(nil), hist...)
	h[0] = 0
	best, at := math.Inf(1), len(h)
	for n := Levels; n <= len(h); n++ {
		p := make([]float64, n)
		var inside, total float64
		for i, c := range h {
			total += float64(c)
			if i < n {
				p[i] = float64(c)
				inside += float64(c)
			}
		}
		p[n-1] += total - inside
		q := make([]float64, n)
		for k := range Levels {
			a, b := n*k/Levels, n*(k+1)/Levels
			var mass, occupied float64
			for i := a; i < b; i++ {
				mass += float64(h[i])
				if p[i] > 0 {
					occupied++
				}
			}
			for i := a; i < b; i++ {
				if p[i] > 0 {
					q[i] = mass / occupied
				}
			}
		}
		var d float64
		for i := range p {
			if p[i] > 0 {
				d += p[i] / total * math.Log(p[i]/total/(q[i]/inside))
			}
		}
		if inside >= 0.9*total && d <= best+1e-9 {
			best, at = math.Min(d, best), n
		}
	}
	return at
}

func TestEntropyByPrefixSumsIsTheSlowOne(t *testing.T) {
	values, _ := ortRanges(t)
	for name, v := range values {
		o := NewObserver()
		o.Add(v)
		hist := o.bins()
		if len(hist) <= Levels {
			continue
		}
		got, err := Rule{Method: Entropy}.Threshold(o)
		if err != nil {
			t.Fatal(err)
		}
		want := math.Min(float64(slowEntropy(hist))*o.Width(), float64(o.AbsMax()))
		if math.Abs(float64(got)-want) > 1.01*o.Width() {
			t.Errorf("%s: threshold %g, want %g", name, got, want)
		}
	}
}

func TestEntropyCutsAnOutlierOff(t *testing.T) {
	values, _ := ortRanges(t)
	o := NewObserver()
	o.Add(values["outlier"])
	got, err := Rule{Method: Entropy}.Threshold(o)
	if err != nil {
		t.Fatal(err)
	}
	if got > 20 || got < 2 {
		t.Errorf("threshold %g for a normal distribution and one 60", got)
	}
}

func TestEntropyKeepsAllOfValuesThatAreFewDifferentOnes(t *testing.T) {
	o := NewObserver()
	for i := range 17 { // a picture of 17 shades, mostly dark
		for range 1000 / (i + 1) {
			o.Add([]float32{float32(i) / 16})
		}
	}
	got, err := Rule{Method: Entropy}.Threshold(o)
	if err != nil || got < 0.99 {
		t.Errorf("threshold %g, %v, want 1", got, err)
	}
}

func TestScale(t *testing.T) {
	for threshold, want := range map[float32]float32{127: 1, 0: 1, 1e-40: 1, 12.7: 0.1} {
		if got := Scale(threshold); got != want {
			t.Errorf("scale of %g is %g, want %g", threshold, got, want)
		}
	}
}

func TestParseMethod(t *testing.T) {
	for _, m := range []Method{MinMax, Percentile, Entropy, EntropyORT} {
		if got, err := ParseMethod(string(m)); err != nil || got != m {
			t.Errorf("%s: %s, %v", m, got, err)
		}
	}
	if _, err := ParseMethod("kl"); err == nil || !strings.Contains(err.Error(), "minmax, percentile, entropy, entropy-ort") {
		t.Errorf("error %v does not list the methods", err)
	}
	if _, err := (Rule{Method: "kl"}).Threshold(NewObserver()); err == nil {
		t.Error("an unknown method gave a threshold")
	}
}
