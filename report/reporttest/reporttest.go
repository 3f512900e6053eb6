// Package reporttest makes reports for tests: the situations that a gate and
// every rendering must get right, each as a report and, where it matters, a
// baseline. Everything is deterministic.
package reporttest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/trtship/trtship/report"
)

// Case is one situation.
type Case struct {
	Name     string
	About    string
	Report   *report.Report
	Baseline *report.Report
	Source   string // how the baseline was found
	Verdict  report.Verdict
	ExitCode int
}

// Cases returns all situations in a fixed order.
func Cases() []Case {
	return []Case{
		{Name: "all-pass", About: "every check held, and speeds are the same", Report: Full(), Baseline: older(Full()), Source: "merge base", Verdict: report.Pass},
		{Name: "tolerance-breach", About: "an fp16 engine is outside its tolerance at one size", Report: toleranceBreach(), Baseline: older(Full()), Source: "merge base", Verdict: report.Fail, ExitCode: 6},
		{Name: "regression", About: "the fp16 engine became slower", Report: scaled(Full(), 1.12), Baseline: older(Full()), Source: "merge base", Verdict: report.Fail, ExitCode: 12},
		{Name: "improvement", About: "the engines became faster", Report: scaled(Full(), 0.8), Baseline: older(Full()), Source: "parent 1 of the merge base", Verdict: report.Pass},
		{Name: "missing-hardware", About: "hardware is required and there is no GPU", Report: missingHardware(), Verdict: report.Missing, ExitCode: 13},
		{Name: "inconclusive", About: "the measurement is too noisy to say", Report: noisy(Full()), Baseline: older(noisy(Full())), Source: "merge base", Verdict: report.Inconclusive, ExitCode: 13},
		{Name: "broken-stage", About: "ONNX Runtime crashed while validating", Report: brokenStage(), Verdict: report.Broken, ExitCode: 6},
		{Name: "many-tensors", About: "500 outputs at four sizes", Report: Large(500, 0), Verdict: report.Fail, ExitCode: 6},
		{Name: "no-baseline", About: "the first run of a repository", Report: Full(), Verdict: report.Pass},
		{Name: "other-gpu", About: "the baseline was measured on another GPU", Report: Full(), Baseline: otherGPU(older(Full())), Source: "merge base", Verdict: report.Pass},
		{Name: "optional-hardware", About: "there is no GPU, and none is required", Report: optionalHardware(), Verdict: report.Pass},
	}
}

// Full is a run of every stage on a GPU in which everything held.
func Full() *report.Report {
	r := &report.Report{
		Format: report.Format,
		Tool:   report.Tool{Name: "trtship", Version: "1.0.0", Commit: "0123456789abcdef0123456789abcdef01234567"},
		Run: report.Run{
			ID: "2026-03-01_1a2b3c", Started: time.Date(2026, 3, 1, 9, 30, 0, 0, time.UTC), Seconds: 312.4, Config: "trtship.yaml",
			ConfigHash: "sha256:1111111111111111111111111111111111111111111111111111111111111111",
		},
		Model: report.Model{
			Name: "digits", Kind: "module",
			Inputs: []report.Tensor{{Name: "image", DType: "float32", Dims: []string{"batch", "1", "8", "8"}}},
			Output: []report.Tensor{{Name: "logits", DType: "float32", Dims: []string{"batch", "10"}}},
		},
		Settings: report.Settings{
			Hardware: "required", Target: "tensorrt", Precisions: []string{"fp32", "fp16"}, Margin: 0.03,
			Tolerances: map[string]report.Tolerance{"onnx": {Atol: 1e-4, Rtol: 1e-3}, "fp32": {Atol: 1e-3, Rtol: 1e-3}, "fp16": {Atol: 1e-2, Rtol: 1e-2}},
			Budgets:    []report.Budget{{Metric: "latency_p99_ms", Where: map[string]string{"precision": "fp16"}, Max: Number(5), Line: 41}},
		},
		Environment: report.Environment{
			OS: "linux/amd64", CPU: "AMD EPYC 9554", Cores: 16,
			Tools: map[string]string{"go": "1.26.8", "onnxruntime": "1.30.0", "tensorrt": "10.6.0", "torch": "2.11.0"},
			GPUs:  []report.GPU{{Name: "NVIDIA H200", ComputeCapability: "9.0", MemoryBytes: 150754820096, Driver: "570.86.15", CUDA: "12.8"}},
			Git:   &report.Git{Commit: "89abcdef0123456789abcdef0123456789abcdef"},
		},
		Verdict: report.Pass,
	}
	r.Inspection = &report.Inspection{
		Parameters: 54410, TrainableParameters: 54410, ParameterBytes: 217640, ActivationUpperBound: 1 << 20, Inputs: r.Model.Inputs, Outputs: r.Model.Output,
		Operators: map[string]int{"Conv2d": 2, "Linear": 2, "ReLU": 3}, DTypes: map[string]int64{"float32": 54410},
	}
	r.Optimize = &report.Optimization{
		NodesBefore: 17, NodesAfter: 11, BytesBefore: 221184, BytesAfter: 219136,
		Passes: []report.PassResult{{Name: "eliminate-identity", Changed: 2, Removed: 2}, {Name: "fold-constants", Changed: 4, Removed: 4}, {Name: "merge-batchnorm", Dropped: "changes output logits at max"}},
	}
	r.Validations = []report.Validation{
		validation("validate", "", "ONNX Runtime 1.30.0, graph optimisation off", 3e-7, report.Tolerance{Atol: 1e-4, Rtol: 1e-3}),
		validation("validate_optimized", "", "ONNX Runtime 1.30.0, graph optimisation off", 4e-7, report.Tolerance{Atol: 1e-4, Rtol: 1e-3}),
		validation("validate_engine", "fp32", "TensorRT 10.6.0 on NVIDIA H200", 2e-5, report.Tolerance{Atol: 1e-3, Rtol: 1e-3}),
		validation("validate_engine", "fp16", "TensorRT 10.6.0 on NVIDIA H200", 3e-3, report.Tolerance{Atol: 1e-2, Rtol: 1e-2, CosineMin: Number(0.999)}),
		validation("served", "fp16", "Triton 2.51.0 over HTTP", 3e-3, report.Tolerance{Atol: 1e-2, Rtol: 1e-2}),
	}
	r.Benchmark = &report.Benchmark{Rows: []report.Measurement{
		measurement("tensorrt", "NVIDIA H200", "fp32", 8, 1, "cuda-graph=on", 0.62, 1),
		measurement("tensorrt", "NVIDIA H200", "fp16", 8, 1, "cuda-graph=on", 0.41, 2),
		measurement("onnxruntime", "cpu", "fp32", 8, 1, "threads=16", 9.4, 3),
	}}
	r.Stages = stagesOf(r)
	r.Artifacts = []report.ArtifactSummary{
		{ID: "onnx-3fa9c1d20b7e", Kind: "onnx", Digest: "sha256:3fa9c1d20b7e0000000000000000000000000000000000000000000000000000", Size: 221184, Files: 1, Stage: "export"},
		{ID: "engine-8be0112233aa", Kind: "engine", Label: "fp16", Digest: "sha256:8be0112233aa0000000000000000000000000000000000000000000000000000", Size: 402112, Files: 2, Stage: "build"},
		{ID: "repository-77aa00bb11cc", Kind: "repository", Digest: "sha256:77aa00bb11cc0000000000000000000000000000000000000000000000000000", Size: 403001, Files: 2, Stage: "package"},
	}
	return r
}

// Number returns a pointer to n.
func Number(n float64) *report.Number {
	x := report.Number(n)
	return &x
}

func validation(stage, precision, candidate string, err float64, tol report.Tolerance) report.Validation {
	v := report.Validation{
		Stage: stage, Precision: precision, Candidate: candidate, Reference: "PyTorch 2.11.0, eval mode", Seed: 0,
		Stored: report.Stored{Reference: "reference-0a1b2c3d4e5f", Candidate: "outputs-" + fmt.Sprintf("%012x", len(stage)*1000+len(precision))},
	}
	for i, p := range []string{"min", "opt", "max", "off-profile"} {
		batch := []int64{1, 8, 32, 5}[i]
		v.Points = append(v.Points, report.Point{Name: p, Shapes: map[string][]int64{"image": {batch, 1, 8, 8}}, Samples: 4})
		v.Rows = append(v.Rows, Row("logits", p, []int64{batch, 10}, err*(1+0.3*float64(i)), tol))
	}
	return v
}

// Row is one compared output that holds.
func Row(output, point string, shape []int64, maxAbs float64, tol report.Tolerance) report.Comparison {
	elements := int64(4)
	for _, d := range shape {
		elements *= d
	}
	return report.Comparison{
		Output: output, Point: point, DType: "float32", Shape: shape, Elements: elements, Tolerance: tol, Verdict: report.Pass,
		Metrics: map[string]report.Number{
			"max_abs": report.Number(maxAbs), "mean_abs": report.Number(maxAbs / 5), "max_rel": report.Number(maxAbs * 3), "rmse": report.Number(maxAbs / 4),
			"p50": report.Number(maxAbs / 6), "p90": report.Number(maxAbs / 2), "p99": report.Number(maxAbs * 0.9), "psnr_db": 80, "cosine_min": report.Number(1 - maxAbs*maxAbs),
		},
		Histogram: &report.Histogram{Edges: []report.Number{0, report.Number(maxAbs / 4), report.Number(maxAbs / 2), report.Number(maxAbs)}, Counts: []int64{elements / 2, elements / 4, elements - elements/2 - elements/4}},
	}
}

// measurement makes a row whose raw samples are log-normal around p50 ms.
func measurement(backend, device, precision string, batch, concurrency int, mode string, p50 float64, seed uint64) report.Measurement {
	rng := rand.New(rand.NewPCG(seed, 7))
	m := report.Measurement{
		Backend: backend, Device: device, Precision: precision, Batch: batch, Concurrency: concurrency, Mode: mode, Requests: 200, Warmup: 20,
		ColdMs: Number(p50 * 12), LoadMs: Number(85), PeakRSS: 312 << 20, Phases: map[string]report.Stats{},
	}
	if backend == "tensorrt" {
		mem, size := int64(410<<20), int64(402112)
		m.GPUMemory, m.EngineBytes, m.BuildSec = &mem, &size, Number(41.5)
	}
	for range m.Requests {
		m.Samples = append(m.Samples, report.Number(math.Round(p50*math.Exp(rng.NormFloat64()*0.03)*1e5)/1e5))
	}
	finish(&m)
	return m
}

// finish fills in what follows from the raw samples.
func finish(m *report.Measurement) {
	s := stats(m.Samples)
	m.Phases["end_to_end"] = s
	m.Throughput = report.Number(math.Round(1000 / float64(s.Mean) * float64(m.Batch)))
}

// stagesOf makes the stages of a full run, with a check for every row.
func stagesOf(r *report.Report) []report.Stage {
	stages := []report.Stage{
		simple("inspect", 2.1, "signature", "training-mode"), simple("export", 14.2, "signature"),
		compared(r, "validate", 6.4), simple("optimize", 0.4, "outputs"), compared(r, "validate_optimized", 3.0),
		{Name: "calibrate", Verdict: report.Skip, Reason: "no int8 in tensorrt.precisions"},
		simple("quantize", 1.2, "fp16-range"), simple("build", 83, "operators", "precision"),
		compared(r, "validate_engine", 4.5), simple("benchmark", 141, "measured"), simple("package", 0.3, "configuration"), compared(r, "served", 12),
	}
	for i := range stages {
		switch stages[i].Name {
		case "build", "validate_engine", "benchmark":
			stages[i].Hardware = true
			for k := range stages[i].Checks {
				stages[i].Checks[k].Hardware = true
			}
		case "export", "optimize":
			stages[i].Cached = true
		}
	}
	return stages
}

func simple(name string, seconds float64, checks ...string) report.Stage {
	s := report.Stage{Name: name, Verdict: report.Pass, Seconds: seconds, Log: "logs/" + name + ".log"}
	for _, c := range checks {
		s.Checks = append(s.Checks, report.Check{ID: name + "/" + c, Verdict: report.Pass, Want: "as declared", Got: "as declared", Seconds: seconds / float64(len(checks))})
	}
	return s
}

func compared(r *report.Report, stage string, seconds float64) report.Stage {
	s := report.Stage{Name: stage, Seconds: seconds, Log: "logs/" + stage + ".log"}
	for _, v := range r.Validations {
		if v.Stage != stage {
			continue
		}
		for _, row := range v.Rows {
			s.Checks = append(s.Checks, report.Check{
				ID: stage + "/tolerance", Subject: report.Subject{Precision: v.Precision, Output: row.Output, Point: row.Point}, Verdict: row.Verdict,
				Want: fmt.Sprintf("|got-ref| <= %g + %g*|ref|", float64(row.Tolerance.Atol), float64(row.Tolerance.Rtol)), Got: fmt.Sprintf("max abs %.3g, %d of %d elements outside", float64(row.Metrics["max_abs"]), row.Breaches, row.Elements),
				Metrics: map[string]report.Number{"max_abs": row.Metrics["max_abs"]}, Seconds: 0.1,
			})
		}
	}
	s.Verdict = report.Of(s.Checks)
	return s
}

// Stage returns the stage of a name; it panics if there is none.
func Stage(r *report.Report, name string) *report.Stage {
	for i := range r.Stages {
		if r.Stages[i].Name == name {
			return &r.Stages[i]
		}
	}
	panic("no stage " + name)
}
