package load

import (
	"context"
	"fmt"

	"github.com/trtship/trtship/internal/triton/tritonpb"
	"github.com/trtship/trtship/report"
)

// Measurement returns a result as a row of a report.
func (r Result) Measurement(config *tritonpb.ModelConfig, precision string, batch, concurrency int) report.Measurement {
	device := "cpu"
	instances := 0
	for _, g := range config.GetInstanceGroup() {
		if g.GetKind() == tritonpb.ModelInstanceGroup_KIND_GPU {
			device = "gpu"
		}
		instances += int(g.GetCount()) * max(len(g.GetGpus()), 1)
	}
	samples := make([]report.Number, len(r.Samples))
	for i, s := range r.Samples {
		samples[i] = report.Number(s)
	}
	m := report.Measurement{
		Backend: "triton", Device: device, Precision: precision, Batch: batch, Concurrency: concurrency,
		Mode: fmt.Sprintf("%s instances=%d", r.Mode, instances), Requests: r.Requests, Errors: r.Errors,
		Throughput: r.Throughput, Phases: map[string]report.Stats{"end_to_end": r.Latency}, Samples: samples, Notes: r.Notes,
	}
	if r.Server != nil {
		one := func(n report.Number) report.Stats {
			return report.Stats{Count: int(r.Server.Requests), Min: n, Mean: n, P50: n, P90: n, P95: n, P99: n, Max: n}
		}
		// The server keeps sums only: these phases have a mean and nothing else.
		for name, n := range map[string]report.Number{
			"server_queue": r.Server.Queue, "server_compute": r.Server.ComputeInput + r.Server.ComputeInfer + r.Server.ComputeOutput,
		} {
			m.Phases[name] = one(n)
		}
		m.Notes = append(m.Notes, fmt.Sprintf("server: queue %.3f ms, compute %.3f ms (mean), %d requests in %d executions; client overhead %.3f ms, %.1f us of its CPU a request",
			float64(r.Server.Queue), float64(r.Server.ComputeInput+r.Server.ComputeInfer+r.Server.ComputeOutput), r.Server.Requests, r.Server.Executions, float64(*r.Overhead), float64(r.CPU)))
	}
	return m
}

// Sweep measures every pair of batch size and concurrency.
func Sweep(ctx context.Context, base Options, config *tritonpb.ModelConfig, precision string, batches, concurrency []int, values map[string]Values) (report.Benchmark, error) {
	var out report.Benchmark
	for _, b := range batches {
		requests, err := Generated(config, b, 8, values, base.Seed)
		if err != nil {
			return out, err
		}
		if v := base.Requests; len(v) > 0 && v[0].Version != "" {
			for i := range requests {
				requests[i].Version = v[0].Version
			}
		}
		for _, c := range concurrency {
			o := base
			o.Requests, o.Batch, o.Concurrency = requests, b, c
			r, err := Run(ctx, o)
			if err != nil {
				if ctx.Err() != nil {
					return out, err
				}
				out.Skipped = append(out.Skipped, report.SkippedRow{Name: fmt.Sprintf("triton %s batch %d concurrency %d", base.Protocol, b, c), Reason: err.Error(), Verdict: report.Broken})
				continue
			}
			out.Rows = append(out.Rows, r.Measurement(config, precision, b, c))
		}
	}
	return out, nil
}
