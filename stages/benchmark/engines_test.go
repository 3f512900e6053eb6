package benchmark

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/engine"
	"github.com/trtship/trtship/internal/engine/enginetest"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/gpu"
	"github.com/trtship/trtship/internal/testkit"
	"github.com/trtship/trtship/internal/worker"
	"github.com/trtship/trtship/report"
)

// engineArtifact is a described plan of y = f(x), float32 [1..4, 4].
func engineArtifact(t *testing.T) artifact.Artifact {
	t.Helper()
	dir := t.TempDir()
	enginetest.WriteEngine(t, dir, func(d *engine.Description) { d.Precision = "fp16" })
	return artifact.Artifact{Record: artifact.Record{Kind: artifact.Engine, Label: "fp16"}, Dir: dir}
}

func engineConfig(t *testing.T, extra string) *config.Config {
	t.Helper()
	path := filepath.Join(t.TempDir(), "trtship.yaml")
	text := `model:
  name: m
  factory: m:build
  inputs: [{name: x, dtype: float32, shape: [batch, 4]}]
tensorrt:
  profiles: [{inputs: {x: {min: [1, 4], opt: [2, 4], max: [4, 4]}}}]
benchmark:
` + extra
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(path, config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func measureWith(t *testing.T, child *enginetest.Child, extra string, read func() (gpu.Reading, error)) ([]report.Measurement, []report.SkippedRow, error) {
	t.Helper()
	g := NewOnGPU(engineConfig(t, extra), GPUTools{
		Start: func(context.Context, io.Writer, func(done, total int64, label string)) (Child, error) {
			child.Started++
			return child, nil
		},
		Versions: func(context.Context) (map[string]string, error) { return map[string]string{"tensorrt": "10.6.0"}, nil },
		Read:     read,
	})
	return g.Measure(context.Background(), []artifact.Artifact{engineArtifact(t)}, testkit.NewOutputs(t))
}

// steady are the phases of a request that computes for 1 ms.
func steady() map[string][]float64 {
	phases := map[string][]float64{}
	for name, ms := range map[string]float64{"compute": 1, "enqueue": 0.1, "h2d": 0.2, "execute": 1, "d2h": 0.1, "end_to_end": 1.4} {
		phases[name] = slices.Repeat([]float64{ms}, 200)
	}
	return phases
}

func TestEveryBatchStreamAndGraphIsMeasuredInAChildOfItsOwn(t *testing.T) {
	child := &enginetest.Child{Phases: steady()}
	rows, skipped, err := measureWith(t, child, "  batch_sizes: [1, 4]\n  concurrency: [1, 2]\n", func() (gpu.Reading, error) {
		return gpu.Reading{SMMHz: 1980, PowerW: 300, Throttle: []string{"sw-power-cap"}}, nil
	})
	if err != nil || len(skipped) > 0 {
		t.Fatalf("skipped %v, %v", skipped, err)
	}
	if len(rows) != 8 || child.Started != 8 {
		t.Fatalf("%d rows by %d children, want 8 by 8", len(rows), child.Started)
	}
	names := map[string]bool{}
	for _, r := range rows {
		names[r.Row()] = true
	}
	if len(names) != 8 {
		t.Errorf("rows share names: %v", names)
	}
	r := rows[len(rows)-1]
	if r.Backend != "tensorrt" || r.Device != "NVIDIA H200" || r.Batch != 4 || r.Concurrency != 2 || r.Mode != "cuda-graph=on typing=strong" {
		t.Errorf("last row is %+v", r)
	}
	if r.Phases["compute"].P50 != 1 || r.Phases["end_to_end"].P99 != 1.4 || r.Requests != 200 || r.Throughput != 200*4/0.5 {
		t.Errorf("numbers are %+v, %v samples/s", r.Phases, r.Throughput)
	}
	if r.GPUMemory == nil || *r.GPUMemory != 2<<20 || r.EngineBytes == nil || *r.EngineBytes != int64(len(enginetest.Plan)) || *r.ColdMs != 3 || *r.LoadMs != 7.5 {
		t.Errorf("memory %v, size %v, cold %v, load %v", r.GPUMemory, r.EngineBytes, r.ColdMs, r.LoadMs)
	}
	if r.Clocks == nil || r.Clocks.SMMHz != [2]int{1980, 1980} || !strings.Contains(strings.Join(r.Notes, "\n"), "throttled: sw-power-cap") {
		t.Errorf("clocks %+v, notes %v", r.Clocks, r.Notes)
	}
}

func TestWhereAnEngineLiesIsSaidWhenItMattersAndIsNoDrift(t *testing.T) {
	load := func(n int, compute float64) map[string]any {
		return map[string]any{"load_ms": 7.5, "requests": n, "compute_ms": compute, "enqueue_ms": 0.1}
	}
	// A third of the requests, one loading, takes longer; within a loading nothing changes.
	phases := steady()
	phases["end_to_end"] = slices.Concat(slices.Repeat([]float64{1.4}, 140), slices.Repeat([]float64{1.5}, 60))
	for _, c := range []struct {
		name  string
		loads []map[string]any
		want  string
		drift bool
	}{
		{"one loading says nothing of places, and a step is drift", []map[string]any{load(200, 1)}, "", true},
		{"loadings that agree within 2 %", []map[string]any{load(70, 1), load(70, 1.019), load(60, 1.01)}, "", false},
		{"a loading that lies badly", []map[string]any{load(70, 1), load(70, 1), load(60, 1.07)}, "the medians of 3 loadings lie from 1 to 1.07 ms", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			rows, _, err := measureWith(t, &enginetest.Child{Phases: phases, Loads: c.loads}, "  cuda_graph: \"off\"\n", nil)
			if err != nil || len(rows) != 1 {
				t.Fatalf("%d rows, %v", len(rows), err)
			}
			notes := strings.Join(rows[0].Notes, "\n")
			if strings.Contains(notes, "lies in memory") != (c.want != "") || !strings.Contains(notes, c.want) || strings.Contains(notes, "drift") != c.drift {
				t.Errorf("notes are %q", notes)
			}
			if len(rows[0].ComputeByLoad) != len(c.loads) || float64(rows[0].ComputeByLoad[0]) != 1 {
				t.Errorf("compute by load is %v", rows[0].ComputeByLoad)
			}
		})
	}
}

func TestLoadingsTakeTurns(t *testing.T) {
	got := inTurns([]float64{1, 2, 3, 10, 20, 100}, []engine.Loading{{Requests: 3}, {Requests: 2}, {Requests: 1}})
	if want := []float64{1, 10, 100, 2, 20, 3}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := inTurns([]float64{1, 2}, nil); !slices.Equal(got, []float64{1, 2}) {
		t.Errorf("of a child that tells no loadings: %v", got)
	}
}

func TestWhatHoldsARequestUpIsSaid(t *testing.T) {
	for want, change := range map[string]map[string]float64{
		"host-bound": {"enqueue": 0.9}, "transfer-bound": {"h2d": 1.1},
	} {
		phases := steady()
		for name, ms := range change {
			phases[name] = slices.Repeat([]float64{ms}, 200)
		}
		rows, _, err := measureWith(t, &enginetest.Child{Phases: phases}, "  cuda_graph: \"off\"\n", nil)
		if err != nil || len(rows) != 1 {
			t.Fatalf("%d rows, %v", len(rows), err)
		}
		if notes := strings.Join(rows[0].Notes, "\n"); !strings.Contains(notes, want) {
			t.Errorf("notes are %q, want %s", notes, want)
		}
		if rows[0].Clocks != nil {
			t.Error("clocks were made up: nobody read them")
		}
	}
}

func TestARowThatCouldNotBeMeasuredIsSkippedWithItsReason(t *testing.T) {
	crash := &worker.Crash{Method: "trt.benchmark", Err: errors.New("crashed (SIGSEGV)")}
	rows, skipped, err := measureWith(t, &enginetest.Child{Fail: map[string]error{"trt.benchmark": crash}}, "  cuda_graph: \"on\"\n", nil)
	if err != nil || len(rows) != 0 || len(skipped) != 1 || skipped[0].Verdict != report.Broken || !strings.Contains(skipped[0].Reason, "SIGSEGV") {
		t.Errorf("got %v, %+v, %v; want one broken row", rows, skipped, err)
	}
	missing := failure.New(failure.Missing, "no tensorrt")
	if _, _, err = measureWith(t, &enginetest.Child{Fail: map[string]error{"trt.open": missing}}, "  iters: 1\n", nil); failure.CodeOf(err) != failure.Missing {
		t.Errorf("got %v, want exit code 3", err)
	}
}

func TestAFeedIsForTheProfilesOptAndWithinAProfile(t *testing.T) {
	a := engineArtifact(t)
	d, err := engine.ReadDescription(a.Dir)
	if err != nil {
		t.Fatal(err)
	}
	for batch, want := range map[int]int64{0: 2, 3: 3} {
		feed, err := EngineFeed(engineConfig(t, "  iters: 1\n"), d, batch)
		if err != nil || feed[0].Shape[0] != want {
			t.Errorf("batch %d: feed %v, %v; want %d", batch, feed, err, want)
		}
	}
	for _, batch := range []int{5, 1 << 20} {
		if _, err := EngineFeed(engineConfig(t, "  iters: 1\n"), d, batch); failure.CodeOf(err) != failure.Usage || !strings.Contains(err.Error(), "expected 1 to 4") {
			t.Errorf("batch %d: %v, want a refusal with the profile", batch, err)
		}
	}
}

func TestABatchOutsideOfTheEngineIsRefusedBeforeAChildIsStarted(t *testing.T) {
	child := &enginetest.Child{Phases: steady()}
	d := engineArtifact(t)
	desc, err := engine.ReadDescription(d.Dir)
	if err != nil {
		t.Fatal(err)
	}
	desc.Profiles[0]["x"] = engine.Range{Min: []int64{1, 4}, Opt: []int64{1, 4}, Max: []int64{1, 4}}
	if err := desc.Write(filepath.Join(d.Dir, engine.DescriptionFile)); err != nil {
		t.Fatal(err)
	}
	g := NewOnGPU(engineConfig(t, "  batch_sizes: [2]\n"), GPUTools{
		Start: func(context.Context, io.Writer, func(done, total int64, label string)) (Child, error) {
			child.Started++
			return child, nil
		},
	})
	if _, _, err := g.Measure(context.Background(), []artifact.Artifact{d}, testkit.NewOutputs(t)); failure.CodeOf(err) != failure.Usage || child.Started != 0 {
		t.Errorf("%v, %d children; want a refusal and none", err, child.Started)
	}
}
