package measure

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/testkit"
	"github.com/trtship/trtship/report"
)

func readCase(t *testing.T, name string, v any) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(testkit.Root(t), "testdata", "cases", "b01-percentiles", name))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, v); err != nil {
		t.Fatal(err)
	}
}

func TestPercentilesAreThoseOfTheFile(t *testing.T) {
	testkit.HoldsCase(t, "b01-percentiles")
	var sets map[string]struct {
		Samples []float64          `json:"samples_ms"`
		Linear  map[string]float64 `json:"linear"`
		Mean    float64            `json:"mean"`
		Stdev   *float64           `json:"stdev_n-1"`
	}
	readCase(t, "samples.json", &sets)
	if len(sets) < 8 {
		t.Fatalf("%d sets", len(sets))
	}
	for name, set := range sets {
		got, err := Summarize(set.Samples)
		if err != nil {
			t.Fatal(err)
		}
		have := map[string]float64{"50": float64(got.P50), "90": float64(got.P90), "95": float64(got.P95), "99": float64(got.P99)}
		for p, want := range set.Linear {
			if math.Abs(have[p]-want) > 1e-9 {
				t.Errorf("%s: p%s = %v, want %v", name, p, have[p], want)
			}
		}
		if math.Abs(float64(got.Mean)-set.Mean) > 1e-6 {
			t.Errorf("%s: mean %v, want %v", name, got.Mean, set.Mean)
		}
		switch {
		case set.Stdev == nil && !math.IsNaN(float64(got.Stdev)):
			t.Errorf("%s: the deviation of one sample is %v", name, got.Stdev)
		case set.Stdev != nil && math.Abs(float64(got.Stdev)-*set.Stdev) > 1e-5**set.Stdev:
			t.Errorf("%s: stdev %v, want %v", name, got.Stdev, *set.Stdev)
		}
		if got.Count != len(set.Samples) || float64(got.Min) != slices.Min(set.Samples) || float64(got.Max) != slices.Max(set.Samples) {
			t.Errorf("%s: count, min, max = %d, %v, %v", name, got.Count, got.Min, got.Max)
		}
	}
}

func TestSamplesOfWorkersArePooledAndFailuresCountApart(t *testing.T) {
	var merge struct {
		A      []float64  `json:"worker_a"`
		B      []float64  `json:"worker_b"`
		Wrong  float64    `json:"wrong_mean_of_p95"`
		Failed []*float64 `json:"has_failed_requests"`
	}
	readCase(t, "merge.json", &merge)
	r := Result{Workers: 2, WallMs: 1000, Settled: true}
	for w, own := range [][]float64{merge.A, merge.B} {
		for _, x := range own {
			r.Samples = append(r.Samples, Sample{Worker: w, Total: x})
		}
	}
	m, err := r.Measurement(4)
	if err != nil {
		t.Fatal(err)
	}
	s := m.Phases[EndToEnd]
	if s.P50 != 1 || s.P95 != 50 || float64(s.P95) == merge.Wrong {
		t.Errorf("p50 %v, p95 %v, want 1 and 50 of all samples", s.P50, s.P95)
	}
	if m.Requests != 110 || m.Throughput != 440 || m.Concurrency != 2 {
		t.Errorf("%d requests, %v samples a second, concurrency %d", m.Requests, m.Throughput, m.Concurrency)
	}
	r = Result{Workers: 1, WallMs: 10, Settled: true, Error: "refused"}
	for _, x := range merge.Failed {
		if x == nil {
			r.Errors++
			continue
		}
		r.Samples = append(r.Samples, Sample{Total: *x})
	}
	m, err = r.Measurement(1)
	if err != nil || m.Errors != 1 || m.Phases[EndToEnd].Min != 5 || m.Phases[EndToEnd].Count != 3 {
		t.Errorf("failed requests: %+v, %v", m, err)
	}
	if !strings.Contains(m.Notes[0], "1 of 4 requests failed, the first with: refused") {
		t.Errorf("notes = %q", m.Notes)
	}
	if _, err := (Result{Errors: 3, Error: "refused"}).Measurement(1); failure.CodeOf(err) != failure.Benchmark {
		t.Errorf("no samples: %v, want exit 9", err)
	}
	for name, bad := range map[string][]float64{"none": {}, "NaN": {math.NaN()}, "negative": {-1}, "infinite": {math.Inf(1)}} {
		if _, err := Summarize(bad); failure.CodeOf(err) != failure.Benchmark {
			t.Errorf("%s: %v", name, err)
		}
	}
	if !math.IsNaN(Median(nil)) || Median([]float64{3, 1}) != 2 {
		t.Error("median")
	}
}

func series(n int, f func(i int, r *rand.Rand) float64) []float64 {
	r := rand.New(rand.NewPCG(7, uint64(n)))
	v := make([]float64, n)
	for i := range v {
		v[i] = f(i, r)
	}
	return v
}

func TestWhatIsDoubtfulIsSaid(t *testing.T) {
	cases := map[string]struct {
		samples []float64
		want    []string // the beginnings of the notes
	}{
		"steady":               {series(300, func(_ int, r *rand.Rand) float64 { return 10 + r.NormFloat64()*0.3 }), nil},
		"skewed, as times are": {series(300, func(_ int, r *rand.Rand) float64 { return 10 + r.ExpFloat64() }), nil},
		"one outlier": {series(300, func(i int, r *rand.Rand) float64 {
			if i == 3 {
				return 500
			}
			return 10 + r.NormFloat64()*0.3
		}), []string{"the coefficient of variation is"}},
		"uniform":  {series(300, func(_ int, r *rand.Rand) float64 { return 10 + r.Float64()*3 }), nil},
		"equal":    {series(300, func(int, *rand.Rand) float64 { return 10 }), nil},
		"few":      {series(99, func(_ int, r *rand.Rand) float64 { return 10 + r.NormFloat64()*0.3 }), []string{"99 requests are fewer than 100"}},
		"three":    {[]float64{1, 1, 1}, []string{"3 requests are fewer than 100"}},
		"unsteady": {series(300, func(_ int, r *rand.Rand) float64 { return 10 + r.ExpFloat64()*9 }), []string{"the coefficient of variation is"}},
		"slower":   {series(300, func(i int, r *rand.Rand) float64 { return 10 + float64(i)/100 + r.NormFloat64()*0.3 }), []string{"drift: the last third is 1"}},
		"faster":   {series(300, func(i int, r *rand.Rand) float64 { return 13 - float64(i)/100 + r.NormFloat64()*0.3 }), []string{"drift: the last third is"}},
		"two modes": {
			series(300, func(i int, r *rand.Rand) float64 { return 10 + float64(i%3/2)*4 + r.NormFloat64()*0.2 }),
			[]string{"two modes: 200 requests around 9.98 ms and 100 around 14 ms"},
		},
	}
	for name, c := range cases {
		got := Notes(c.samples)
		ok := len(got) == len(c.want)
		for i := range got {
			ok = ok && strings.HasPrefix(got[i], c.want[i])
		}
		if !ok {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestAWarmUpEndsWhenWindowsAgree(t *testing.T) {
	var calls atomic.Int64
	loop := Loop{Phases: []string{"a", "b"}, Workers: 2, Warmup: 10, Iters: 50, Start: func(int) (Request, error) {
		return func(context.Context) ([]float64, error) {
			calls.Add(1)
			time.Sleep(time.Millisecond)
			return []float64{0.25, 0.5}, nil
		}, nil
	}}
	var progress []int
	loop.Progress = func(done, total int) { progress = append(progress, done*1000+total) }
	r, err := loop.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if r.Warmup < 1+2*10 || int(calls.Load()) != r.Warmup+100 || len(r.Samples) != 100 || r.Cut || r.Errors != 0 {
		t.Errorf("warm-up %d, calls %d, samples %d, cut %v", r.Warmup, calls.Load(), len(r.Samples), r.Cut)
	}
	if len(progress) != 100 || !slices.Contains(progress, 100*1000+100) {
		t.Errorf("progress was called %d times", len(progress))
	}
	m, err := r.Measurement(8)
	if err != nil {
		t.Fatal(err)
	}
	if m.Phases["a"].P50 != 0.25 || m.Phases["b"].Max != 0.5 || m.Phases[EndToEnd].Min < 1 || *m.ColdMs < 1 || len(m.Samples) != 100 {
		t.Errorf("measurement %+v", m)
	}
	if rate := float64(m.Throughput); rate > 8*2*1000 || rate < 8 {
		t.Errorf("throughput %v: two workers of 1 ms and 8 samples", rate)
	}
}

func TestAWarmUpThatNeverSettlesEndsAndIsSaid(t *testing.T) {
	n := 0
	loop := Loop{Workers: 1, Iters: 3, Start: func(int) (Request, error) {
		return func(context.Context) ([]float64, error) {
			n++
			// Windows are of 5 requests, after the cold one; each differs from the last.
			time.Sleep(time.Duration(1+(n-2)/5%2*3) * 500 * time.Microsecond)
			return nil, nil
		}, nil
	}}
	r, err := loop.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if r.Settled {
		t.Errorf("settled after %d requests", r.Warmup)
	}
	m, err := r.Measurement(1)
	if err != nil || !strings.Contains(strings.Join(m.Notes, "\n"), "the warm-up did not settle") {
		t.Errorf("notes %q, %v", m.Notes, err)
	}
}

func TestTheTimeLimitCutsAndIsSaid(t *testing.T) {
	loop := Loop{Workers: 1, Iters: 1 << 30, MaxTime: 30 * time.Millisecond, Start: func(int) (Request, error) {
		return func(context.Context) ([]float64, error) { time.Sleep(time.Millisecond); return nil, nil }, nil
	}}
	r, err := loop.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	m, err := r.Measurement(1)
	if err != nil || !r.Cut || !strings.Contains(strings.Join(m.Notes, "\n"), "stopped by the time limit after") {
		t.Errorf("cut %v, notes %q, %v", r.Cut, m.Notes, err)
	}
}

func TestRequestsThatFail(t *testing.T) {
	boom := errors.New("boom")
	failing := func(from int) Loop {
		n := 0
		return Loop{Workers: 1, Iters: 30, Start: func(int) (Request, error) {
			return func(context.Context) ([]float64, error) {
				if n++; n > from {
					return nil, boom
				}
				return nil, nil
			}, nil
		}}
	}
	if _, err := failing(0).Run(t.Context()); !errors.Is(err, boom) {
		t.Errorf("the cold call fails: %v", err)
	}
	if _, err := failing(1).Run(t.Context()); !errors.Is(err, boom) {
		t.Errorf("the warm-up fails: %v", err)
	}
	refusing := Loop{Workers: 2, Start: func(w int) (Request, error) { return nil, boom }}
	if _, err := refusing.Run(t.Context()); !errors.Is(err, boom) {
		t.Errorf("a worker does not start: %v", err)
	}
	// Some fail: counted apart, and the measurement goes on.
	n := 0
	sometimes := Loop{Workers: 1, Iters: 60, Start: func(int) (Request, error) {
		return func(context.Context) ([]float64, error) {
			if n++; n%7 == 0 {
				return nil, boom
			}
			return nil, nil
		}, nil
	}}
	r, err := sometimes.Run(t.Context())
	if err != nil || r.Errors == 0 || r.Errors+len(r.Samples) != 60 || r.Error != "boom" || r.Cut {
		t.Errorf("%d failed, %d did not, %v", r.Errors, len(r.Samples), err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	stopping := Loop{Workers: 1, Iters: 60, Start: func(int) (Request, error) {
		return func(context.Context) ([]float64, error) { cancel(); return nil, nil }, nil
	}}
	if _, err := stopping.Run(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("the end of the context: %v", err)
	}
}

func row(device, mode string, p50 float64) report.Measurement {
	m := report.Measurement{
		Backend: "onnxruntime", Device: device, Precision: "fp32", Batch: 1, Concurrency: 1, Mode: mode,
		Throughput: report.Number(1000 / p50), PeakRSS: int64(p50 * 1000), Phases: map[string]report.Stats{EndToEnd: {P50: report.Number(p50), P99: report.Number(2 * p50)}},
	}
	for range 10 {
		m.Samples = append(m.Samples, report.Number(p50))
	}
	return m
}

func side(name string, change func(s *Side), rows ...report.Measurement) Side {
	s := Side{
		Name: name, Benchmark: report.Benchmark{Rows: rows}, Tools: map[string]string{"onnxruntime": "1.30.0"}, Weights: "sha256:a", CPU: "x with 2 cores",
		GPUs: []report.GPU{{Name: "H200", Driver: "570"}},
	}
	if change != nil {
		change(&s)
	}
	return s
}

// sized is a row of another size.
func sized(batch, concurrency int) report.Measurement {
	m := row("cpu", "", 10)
	m.Batch, m.Concurrency = batch, concurrency
	return m
}

// medians is a judge that only divides.
func medians(base, head []float64) report.Delta {
	r := report.Number(Median(head) / Median(base))
	return report.Delta{Ratio: &r, Change: report.Same}
}

func TestComparisonsAreRefusedByName(t *testing.T) {
	cases := map[string]struct {
		base, head Side
		refused    string
		warning    string
	}{
		"the same": {side("a", nil, row("cpu", "threads=2", 10)), side("b", nil, row("cpu", "threads=2", 12)), "", ""},
		"other weights": {
			side("a", nil, row("cpu", "threads=2", 10)), side("b", func(s *Side) { s.Weights = "sha256:b" }, row("cpu", "threads=2", 12)),
			"", "the weights differ",
		},
		"weights that are not known": {
			side("a", nil, row("cpu", "threads=2", 10)), side("b", func(s *Side) { s.Weights = "" }, row("cpu", "threads=2", 12)),
			"", "whether the weights are the same is not known",
		},
		"another mode that makes another row": {side("a", nil, row("cpu", "http", 10)), side("b", nil, row("cpu", "grpc", 12)), "grpc: mode is http in base, grpc in head", ""},
		"another batch":                       {side("a", nil, row("cpu", "", 10)), side("b", nil, sized(8, 1)), "onnxruntime fp32 batch 8 concurrency 1: batch is 1 in base, 8 in head", ""},
		"another concurrency":                 {side("a", nil, row("cpu", "", 10)), side("b", nil, sized(1, 4)), "concurrency is 1 in base, 4 in head", ""},
		"the nearest of several":              {side("a", nil, sized(8, 4)), side("b", nil, sized(1, 4)), "batch is 8 in base, 1 in head", ""},
		"another tool": {
			side("a", nil, row("cpu", "threads=2", 10)), side("b", func(s *Side) { s.Tools = map[string]string{"onnxruntime": "1.31.0", "torch": "2"} }, row("cpu", "threads=2", 12)),
			"", "onnxruntime is 1.30.0 in base, 1.31.0 in head",
		},
		"another mode": {
			side("a", nil, row("cpu", "threads=2", 10)), side("b", nil, row("cpu", "threads=4", 12)),
			"mode is threads=2 in base, threads=4 in head", "",
		},
		"another device": {side("a", nil, row("H100", "", 10)), side("b", nil, row("H200", "", 12)), "device is H100 in base, H200 in head", ""},
		"another driver": {
			side("a", nil, row("H200", "", 10)), side("b", func(s *Side) { s.GPUs = []report.GPU{{Driver: "580"}} }, row("H200", "", 12)),
			"driver is 570 in base, 580 in head", "",
		},
		"another TensorRT": {
			side("a", func(s *Side) { s.Tools = map[string]string{"tensorrt": "10.6"} }, row("H200", "", 10)), side("b", nil, row("H200", "", 12)),
			"TensorRT is 10.6 in base, none in head", "",
		},
		"another processor": {side("a", nil, row("cpu", "", 10)), side("b", func(s *Side) { s.CPU = "y" }, row("cpu", "", 12)), "processor is x with 2 cores in base, y in head", ""},
	}
	for name, c := range cases {
		got, err := Compare(c.base, c.head, medians)
		if c.refused != "" {
			if failure.CodeOf(err) != failure.Usage || len(got.Refused) != 1 || !strings.Contains(got.Refused[0], c.refused) {
				t.Errorf("%s: %v, refused %q, want %q", name, err, got.Refused, c.refused)
			}
			continue
		}
		if err != nil || len(got.Refused) > 0 || len(got.Deltas) != 4 {
			t.Errorf("%s: %v, %+v", name, err, got)
			continue
		}
		if r := *got.Deltas[0].Ratio; math.Abs(float64(r)-1.2) > 1e-9 || got.Deltas[0].Row == "" || got.Deltas[0].Metric != "latency_p50_ms" {
			t.Errorf("%s: %+v", name, got.Deltas[0])
		}
		if warnings := strings.Join(got.Warnings, "\n"); !strings.Contains(warnings, c.warning) || (c.warning == "" && warnings != "") {
			t.Errorf("%s: warnings %q, want %q", name, warnings, c.warning)
		}
	}
}

func TestRowsThatOnlyOneSideHasAreNamed(t *testing.T) {
	a, b := row("cpu", "", 10), row("cpu", "", 10)
	b.Batch = 8
	graph := row("H200", "cuda-graph", 5)
	got, err := Compare(side("a", nil, a, graph, row("H200", "no-cuda-graph", 6)), side("b", nil, a, b, graph), medians)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.OnlyHead) != 1 || !strings.Contains(got.OnlyHead[0], "batch 8") || len(got.OnlyBase) != 1 || !strings.Contains(got.OnlyBase[0], "no-cuda-graph") {
		t.Errorf("only base %q, only head %q", got.OnlyBase, got.OnlyHead)
	}
	if len(got.Deltas) != 8 {
		t.Errorf("%d deltas", len(got.Deltas))
	}
}

func TestWhatStandsInTheWayOfEveryRowIsInTheError(t *testing.T) {
	other := row("cpu", "", 10)
	other.Precision = "int8"
	c, err := Compare(side("a.json", nil, sized(1, 1), sized(4, 2), sized(8, 1)), side("b.json", nil, sized(8, 2), other), medians)
	e, ok := errors.AsType[*failure.Error](err)
	if !ok || e.Code != failure.Usage || !strings.HasPrefix(e.Message, "compare a.json with b.json: ") {
		t.Fatalf("%v, %+v", err, c)
	}
	want := []failure.Detail{
		{Label: "refused", Value: "onnxruntime fp32 batch 8 concurrency 2: batch is 4 in base, 8 in head"},
		{Label: "only in base", Value: "onnxruntime fp32 batch 1 concurrency 1"},
		{Label: "only in base", Value: "onnxruntime fp32 batch 8 concurrency 1"},
		{Label: "only in head", Value: "onnxruntime int8 batch 1 concurrency 1"},
	}
	if diff := cmp.Diff(want, e.Details); diff != "" {
		t.Error(diff)
	}
	// Where rows are compared, other sizes are rows of their own.
	c, err = Compare(side("a", nil, sized(1, 1), sized(4, 1)), side("b", nil, sized(1, 1), sized(8, 1)), medians)
	if err != nil || len(c.Refused) != 0 || len(c.OnlyBase) != 1 || len(c.OnlyHead) != 1 {
		t.Errorf("%v, %+v", err, c)
	}
}

func TestReportsOfDifferentModelsAreRefused(t *testing.T) {
	model := func(name, input string, dims ...string) report.Model {
		return report.Model{Name: name, Inputs: []report.Tensor{{Name: input, DType: "float32", Dims: dims}}}
	}
	for name, tt := range map[string]struct {
		base, head report.Model
		want       []failure.Detail
	}{
		"the same":                    {model("m", "x", "batch", "4"), model("m", "x", "batch", "4"), nil},
		"a dimension of another name": {model("m", "x", "batch", "4"), model("m", "x", "n", "4"), nil},
		"a report that does not say":  {model("m", "x", "batch", "4"), report.Model{}, nil},
		"another name":                {model("digits", "x", "4"), model("encoder", "x", "4"), []failure.Detail{{Label: "model", Value: "digits in base, encoder in head"}}},
		"another input":               {model("m", "x", "batch", "4"), model("m", "y", "batch", "4"), []failure.Detail{{Label: "inputs", Value: "x float32[?,4] in base, y float32[?,4] in head"}}},
		"another size":                {model("m", "x", "batch", "4"), model("m", "x", "batch", "8"), []failure.Detail{{Label: "inputs", Value: "x float32[?,4] in base, x float32[?,8] in head"}}},
		"an output more":              {report.Model{Output: []report.Tensor{{Name: "y", DType: "int64"}}}, report.Model{Output: []report.Tensor{{Name: "y", DType: "int64"}, {Name: "z", DType: "bool"}}}, []failure.Detail{{Label: "outputs", Value: "y int64[] in base, y int64[], z bool[] in head"}}},
	} {
		t.Run(name, func(t *testing.T) {
			set := func(m report.Model) func(*Side) { return func(s *Side) { s.Model = m } }
			_, err := Compare(side("a", set(tt.base), row("cpu", "", 10)), side("b", set(tt.head), row("cpu", "", 12)), medians)
			if tt.want == nil {
				if err != nil {
					t.Error(err)
				}
				return
			}
			e, ok := errors.AsType[*failure.Error](err)
			if !ok || e.Code != failure.Usage || e.Message != "compare a with b: they are of different models" {
				t.Fatalf("%v", err)
			}
			if diff := cmp.Diff(tt.want, e.Details); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestASideNeedsMeasurements(t *testing.T) {
	r := &report.Report{Artifacts: []report.ArtifactSummary{{Kind: "onnx", Digest: "sha256:x"}}}
	if _, err := SideOf("runs/x", r); failure.CodeOf(err) != failure.Usage || !strings.Contains(err.Error(), "runs/x") {
		t.Errorf("err = %v", err)
	}
	r.Benchmark = &report.Benchmark{Rows: []report.Measurement{row("cpu", "", 1)}}
	r.Environment = report.Environment{CPU: "x", Cores: 2}
	s, err := SideOf("runs/x", r)
	if err != nil || s.Weights != "sha256:x" || s.CPU != "x with 2 cores" {
		t.Errorf("side %+v, %v", s, err)
	}
}

func TestOverheadIsServedAgainstDirect(t *testing.T) {
	direct, engine := row("cpu", "", 10), row("H200", "", 4)
	engine.Backend = "tensorrt"
	served := row("H200", "grpc", 5)
	served.Backend = "triton"
	other := served
	other.Batch = 64
	pairs, alone, err := Overheads(report.Benchmark{Rows: []report.Measurement{direct, engine}}, report.Benchmark{Rows: []report.Measurement{served, other, direct}})
	if err != nil {
		t.Fatal(err)
	}
	want := []Overhead{{Row: served.Row(), Direct: engine.Row(), DirectP50: 4, ServedP50: 5, Added: 1, Ratio: 1.25, DirectRate: 250, ServedRate: 200}}
	if diff := cmp.Diff(want, pairs); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if diff := cmp.Diff([]string{other.Row()}, alone); diff != "" {
		t.Error(diff)
	}
	pairs, _, err = Overheads(report.Benchmark{Rows: []report.Measurement{direct}}, report.Benchmark{Rows: []report.Measurement{served}})
	if err != nil || pairs[0].DirectP50 != 10 {
		t.Errorf("without an engine ONNX Runtime is the direct one: %+v, %v", pairs, err)
	}
	if _, _, err := Overheads(report.Benchmark{}, report.Benchmark{Rows: []report.Measurement{served}}); failure.CodeOf(err) != failure.Usage {
		t.Errorf("no pair: %v", err)
	}
}

func ExampleSummarize() {
	s, _ := Summarize([]float64{10, 20, 30})
	fmt.Println(s.P50, strconv.FormatFloat(float64(s.P99), 'g', 4, 64), s.Stdev)
	// Output: 20 29.8 10
}
