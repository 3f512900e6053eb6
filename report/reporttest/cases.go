package reporttest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/trtship/trtship/report"
)

// older makes a report the baseline of another: its own run and commit, and
// other samples of the same distribution.
func older(r *report.Report) *report.Report {
	r.Run.ID = "2026-02-27_99ff00"
	r.Run.Started = r.Run.Started.AddDate(0, 0, -2)
	r.Environment.Git = &report.Git{Commit: "76543210fedcba9876543210fedcba9876543210"}
	if r.Benchmark != nil {
		for i := range r.Benchmark.Rows {
			m := &r.Benchmark.Rows[i]
			rand.New(rand.NewPCG(uint64(i), 99)).Shuffle(len(m.Samples), func(a, b int) { m.Samples[a], m.Samples[b] = m.Samples[b], m.Samples[a] })
			for k := range m.Samples {
				m.Samples[k] *= 1.001
			}
			finish(m)
		}
	}
	return r
}

func scaled(r *report.Report, factor float64) *report.Report {
	for i := range r.Benchmark.Rows {
		m := &r.Benchmark.Rows[i]
		if m.Precision != "fp16" && factor > 1 {
			continue
		}
		for k := range m.Samples {
			m.Samples[k] *= report.Number(factor)
		}
		finish(m)
	}
	return r
}

func noisy(r *report.Report) *report.Report {
	for i := range r.Benchmark.Rows {
		m := &r.Benchmark.Rows[i]
		rng := rand.New(rand.NewPCG(uint64(i), 3))
		for k := range m.Samples {
			m.Samples[k] *= report.Number(math.Exp(rng.NormFloat64() * 0.5))
		}
		m.Notes = []string{"coefficient of variation 0.55 is above 0.25"}
		finish(m)
	}
	r.Settings.Budgets = nil
	return r
}

func toleranceBreach() *report.Report {
	r := Full()
	v := &r.Validations[3]
	row := &v.Rows[2]
	row.Breaches, row.First, row.Verdict = 117, []int64{0, 3, 7}, report.Fail
	row.Metrics["max_abs"], row.Metrics["cosine_min"] = 0.412, 0.981
	row.Detail = "first outside: sample 0, index [3,7]"
	r.Stages = stagesOf(r)
	s := Stage(r, "validate_engine")
	for i := range s.Checks {
		if s.Checks[i].Verdict == report.Fail {
			s.Checks[i].Hint, s.Checks[i].Line = "keep the named nodes in float32 with quantize.keep_fp32", 23
		}
	}
	r.Verdict, r.ExitCode = report.Fail, 6
	return r
}

func missingHardware() *report.Report {
	r := Full()
	r.Environment.GPUs = nil
	delete(r.Environment.Tools, "tensorrt")
	r.Benchmark.Rows = r.Benchmark.Rows[2:]
	r.Benchmark.Skipped = []report.SkippedRow{{Name: "tensorrt fp16 batch 8 concurrency 1 cuda-graph=on", Reason: "no NVIDIA GPU", Verdict: report.Missing}}
	r.Settings.Budgets = nil
	r.Validations = slices.Delete(r.Validations, 2, 5)
	for _, name := range []string{"build", "validate_engine", "benchmark", "served"} {
		s := Stage(r, name)
		s.Verdict, s.Reason, s.Seconds, s.Hardware = report.Missing, "no NVIDIA GPU: /dev/nvidiactl is not there", 0, true
		s.Checks = nil
	}
	r.Verdict, r.ExitCode = report.Missing, 3
	return r
}

func optionalHardware() *report.Report {
	r := missingHardware()
	r.Settings.Hardware = "optional"
	return r
}

func brokenStage() *report.Report {
	r := Full()
	s := Stage(r, "validate")
	s.Verdict, s.Reason = report.Broken, "ONNX Runtime crashed (SIGSEGV)"
	s.Checks = []report.Check{{
		ID: "validate/session", Subject: report.Subject{Point: "max"}, Verdict: report.Broken, Want: "a session that answers", Got: "ONNX Runtime crashed (SIGSEGV) on model.onnx at max",
		Detail: "\x1b[31mlast words of the child:\x1b[0m\n  split.cc:114 Split::Compute output 1\n  ]]> <script>alert(1)</script>\n  @everyone #1 ```\n  signal 11\x00\n", Hint: "the node Split_3 leaves out an optional output; ONNX Runtime crashes on it",
	}}
	for i := range r.Stages {
		if i > 2 && r.Stages[i].Verdict == report.Pass {
			r.Stages[i] = report.Stage{Name: r.Stages[i].Name, Verdict: report.Missing, Reason: "needs a validated graph", Hardware: r.Stages[i].Hardware}
		}
	}
	r.Validations, r.Benchmark, r.Optimize, r.Settings.Budgets = nil, nil, nil, nil
	r.Verdict, r.ExitCode = report.Broken, 6
	return r
}

func otherGPU(r *report.Report) *report.Report {
	r.Environment.GPUs[0].Name, r.Environment.GPUs[0].ComputeCapability, r.Environment.GPUs[0].Driver = "NVIDIA A100-SXM4-80GB", "8.0", "550.54.15"
	for i := range r.Benchmark.Rows {
		if r.Benchmark.Rows[i].Backend == "tensorrt" {
			r.Benchmark.Rows[i].Device = r.Environment.GPUs[0].Name
		}
	}
	return r
}

// Large is a report of a model with many outputs, of which a few breach their
// tolerance, and with samples raw measurements in each row of its benchmark.
func Large(outputs, samples int) *report.Report {
	r := Full()
	r.Model.Name = "detector"
	r.Validations = r.Validations[:1]
	r.Stages = r.Stages[:3]
	r.Benchmark, r.Settings.Budgets = nil, nil
	r.Settings.Hardware = "optional"
	v := &r.Validations[0]
	v.Rows = nil
	tol := report.Tolerance{Atol: 1e-4, Rtol: 1e-3}
	rng := rand.New(rand.NewPCG(5, 5))
	for i := range outputs {
		for k, p := range v.Points {
			row := Row(fmt.Sprintf("head.%d/stage_%d/conv.%03d:0", i%7, i/50, i), p.Name, []int64{[]int64{1, 8, 32, 5}[k], 256}, 1e-6*math.Exp(rng.NormFloat64()*2), tol)
			if i%97 == 13 && k == 2 {
				row.Verdict, row.Breaches, row.Metrics["max_abs"] = report.Fail, int64(3+i%5), report.Number(0.01+float64(i)/1e4)
			}
			v.Rows = append(v.Rows, row)
		}
	}
	if samples > 0 {
		r.Benchmark = &report.Benchmark{}
		for i := range 8 {
			m := measurement("onnxruntime", "cpu", "fp32", 1<<i, 1, "threads=16", 2, uint64(i))
			for len(m.Samples) < samples {
				m.Samples = append(m.Samples, report.Number(math.Round(2e5*math.Exp(rng.NormFloat64()*0.1))/1e5))
			}
			finish(&m)
			r.Benchmark.Rows = append(r.Benchmark.Rows, m)
		}
	}
	stage := compared(r, "validate", 31)
	r.Stages[2] = stage
	r.Verdict, r.ExitCode = stage.Verdict, 6
	return r
}

func stats(samples []report.Number) report.Stats {
	v := make([]float64, len(samples))
	mean := 0.0
	for i, s := range samples {
		v[i] = float64(s)
		mean += v[i] / float64(len(samples))
	}
	slices.Sort(v)
	variance := 0.0
	for _, x := range v {
		variance += (x - mean) * (x - mean) / float64(len(v)-1)
	}
	q := func(p float64) report.Number {
		at := p * float64(len(v)-1)
		i := min(int(at), len(v)-2)
		return round(v[i] + (at-float64(i))*(v[i+1]-v[i]))
	}
	return report.Stats{Count: len(v), Min: round(v[0]), Mean: round(mean), Stdev: round(math.Sqrt(variance)), P50: q(0.5), P90: q(0.9), P95: q(0.95), P99: q(0.99), Max: round(v[len(v)-1])}
}

func round(f float64) report.Number { return report.Number(math.Round(f*1e5) / 1e5) }
