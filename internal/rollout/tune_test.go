package rollout_test

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/rollout"
	"github.com/trtship/trtship/internal/triton/load"
	"github.com/trtship/trtship/report"
)

// machine is a server whose throughput peaks at 2 instances, batch 16, delay
// 200 and 32 requests at a time, and whose latency grows with the load.
func machine(s rollout.Setting) load.Result {
	peak := func(x, at float64) float64 { return math.Exp(-math.Pow(math.Log2((x+1)/(at+1)), 2) / 8) }
	rows := 10000 * peak(float64(s.Instances), 2) * peak(float64(s.MaxBatch), 16) * peak(float64(s.DelayUS), 200) * peak(float64(s.Load), 32)
	p99 := 1 + float64(s.Load)/8 + float64(max(s.DelayUS, 0))/500
	return load.Result{Throughput: report.Number(rows), Latency: report.Stats{P50: report.Number(p99 / 2), P99: report.Number(p99)}, Stable: true}
}

func tuning(measured *int) rollout.TuneOptions {
	return rollout.TuneOptions{
		Instances: []int{4, 1, 2}, MaxBatch: []int{1, 2, 4, 8, 16, 32}, DelayUS: []int64{-1, 0, 100, 200, 500, 1000}, Loads: []int{1, 2, 4, 8, 16, 32, 64},
		Measure: func(_ context.Context, s rollout.Setting) (load.Result, error) { *measured++; return machine(s), nil },
	}
}

func TestASearchFindsThePeakWithFewTrials(t *testing.T) {
	n := 0
	res, err := rollout.Tune(t.Context(), tuning(&n))
	if err != nil {
		t.Fatal(err)
	}
	want := rollout.Setting{Instances: 2, MaxBatch: 16, DelayUS: 200, Load: 32}
	if res.Best == nil || res.Best.Setting != want {
		t.Errorf("got %+v", res.Best)
	}
	if all := 3 * 6 * 6 * 7; n > all/10 || n != len(res.Trials) {
		t.Errorf("%d trials of %d combinations", n, all)
	}
}

func TestTheBudgetBounds(t *testing.T) {
	n := 0
	o := tuning(&n)
	o.P99 = 2.5
	res, err := rollout.Tune(t.Context(), o)
	if err != nil || res.Best == nil || res.Best.P99 > 2.5 || res.Best.Rows < 2000 {
		t.Errorf("%+v %v", res.Best, err)
	}
	o.P99 = 0.5
	if res, err = rollout.Tune(t.Context(), o); err != nil || res.Best != nil {
		t.Errorf("nothing keeps 0.5 ms: %+v %v", res.Best, err)
	}
}

func TestASearchThatWasCutOffGoesOn(t *testing.T) {
	n := 0
	o := tuning(&n)
	o.Journal, o.Key = filepath.Join(t.TempDir(), "sub", "tune.json"), "model a"
	ctx, cancel := context.WithCancel(t.Context())
	inner := o.Measure
	o.Measure = func(ctx context.Context, s rollout.Setting) (load.Result, error) {
		if n == 7 {
			cancel()
			return load.Result{}, ctx.Err()
		}
		return inner(ctx, s)
	}
	if _, err := rollout.Tune(ctx, o); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	before := n
	o.Measure = inner
	res, err := rollout.Tune(t.Context(), o)
	if err != nil || res.Reused != before || n-before != len(res.Trials)-before {
		t.Errorf("%d reused of %d, %v", res.Reused, before, err)
	}
	again := n
	if res, err = rollout.Tune(t.Context(), o); err != nil || n != again || res.Reused != len(res.Trials) {
		t.Errorf("a finished search measured %d more, %v", n-again, err)
	}
	o.Key = "model b"
	if res, err = rollout.Tune(t.Context(), o); err != nil || res.Reused != 0 {
		t.Errorf("trials of another model were used: %d, %v", res.Reused, err)
	}
	if err := writeFile(o.Journal, "{"); err != nil {
		t.Fatal(err)
	}
	if _, err = rollout.Tune(t.Context(), o); failure.CodeOf(err) != failure.Artifact {
		t.Errorf("got %v", err)
	}
}

func TestTrialsThatFailAreKeptApart(t *testing.T) {
	n := 0
	o := tuning(&n)
	inner := o.Measure
	o.Measure = func(ctx context.Context, s rollout.Setting) (load.Result, error) {
		if s.Instances == 2 {
			return load.Result{}, errors.New("out of memory")
		}
		return inner(ctx, s)
	}
	res, err := rollout.Tune(t.Context(), o)
	if err != nil || res.Best == nil || res.Best.Setting.Instances == 2 {
		t.Errorf("%+v %v", res.Best, err)
	}
	if _, err := rollout.Tune(t.Context(), rollout.TuneOptions{}); failure.CodeOf(err) != failure.Usage {
		t.Errorf("got %v", err)
	}
}

func TestThePatchIsAConfiguration(t *testing.T) {
	b, err := rollout.Trial{Setting: rollout.Setting{Instances: 2, MaxBatch: 16, DelayUS: 200, Load: 32}, Rows: 5, P99: 1.5}.Patch("cpu")
	if err != nil {
		t.Fatal(err)
	}
	var doc map[string]map[string]any
	if err := yaml.Unmarshal(b, &doc); err != nil || doc["triton"]["max_batch_size"] != 16 || !strings.HasPrefix(string(b), "# Found by trtship tune: 5.0 rows/s, p99 1.500 ms at 32") {
		t.Errorf("%s %v", b, err)
	}
	b, err = rollout.Trial{Setting: rollout.Setting{Instances: 1, MaxBatch: 1, DelayUS: -1}}.Patch("gpu")
	if err != nil || strings.Contains(string(b), "dynamic_batching") {
		t.Errorf("%s %v", b, err)
	}
}

func writeFile(path, text string) error { return os.WriteFile(path, []byte(text), 0o644) }
