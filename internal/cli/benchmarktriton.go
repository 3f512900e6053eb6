package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/internal/triton/kserve"
	"github.com/trtship/trtship/internal/triton/load"
	"github.com/trtship/trtship/internal/triton/tritonpb"
	"github.com/trtship/trtship/report"
)

// loadFlags are the flags of benchmark triton.
type loadFlags struct {
	servedFlags
	protocol, distribution string
	inputData, output      string
	rate                   float64
	window                 time.Duration
}

func newBenchmarkTritonCmd(a *app) *cobra.Command {
	var f loadFlags
	c := &cobra.Command{
		Use:   "triton CONFIG",
		Short: "Measure a served model, with the server's own queue and compute times",
		Long: `benchmark triton sends load to the server that serve started (or the one at --http and --grpc): closed
loop for each pair of benchmark.batch_sizes and benchmark.concurrency, or open loop at --rate requests a
second. The newest version that is loaded is meant, which is not always the newest of the repository.
It measures until windows agree. benchmark overhead sets the result against a direct measurement.`,
		Args: positional(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.benchmarkTriton(cmd.Context(), args[0], f) },
	}
	f.add(c)
	c.Flags().StringVar(&f.protocol, "protocol", "grpc", "`protocol`: http or grpc")
	c.Flags().Float64Var(&f.rate, "rate", 0, "requests a second that arrive whatever the server does (`number`; 0 is closed loop)")
	c.Flags().StringVar(&f.distribution, "distribution", "constant", "arrival of a rate: constant or poisson (`name`)")
	c.Flags().StringVar(&f.inputData, "input-data", "", "requests in perf_analyzer's JSON form (`file`); random values by default")
	c.Flags().DurationVar(&f.window, "window", time.Second, "length of one window (`time`)")
	c.Flags().StringVarP(&f.output, "output", "o", "", "write the report to this `file`, which must not exist; for benchmark overhead and compare")
	return c
}

func (a *app) benchmarkTriton(ctx context.Context, path string, f loadFlags) error {
	if err := refuseExisting(f.output); err != nil {
		return err
	}
	if f.protocol != string(kserve.HTTP) && f.protocol != string(kserve.GRPC) {
		return failure.New(failure.Usage, "--protocol %q is not http or grpc", f.protocol)
	}
	s, err := a.open(ctx, path)
	if err != nil {
		return err
	}
	defer s.Close()
	model, err := s.findServed(ctx, f.servedFlags)
	if err != nil {
		return err
	}
	protocol := model.protocols([]string{f.protocol})[0]
	control, err := model.dial(protocol)
	if err != nil {
		return err
	}
	defer func() { _ = control.Close() }()
	if model.version, err = model.ready(ctx, control, a.say); err != nil {
		return err
	}
	loaded, err := control.ModelConfig(ctx, model.name, model.version)
	if err != nil {
		return err
	}
	address := model.http
	if protocol == kserve.GRPC {
		address = model.grpc
	}
	base := load.Options{
		Protocol: protocol, Address: address, Control: control, Rate: f.rate, Distribution: load.Distribution(f.distribution),
		Seed: s.cfg.Benchmark.Seed, Window: f.window, Requests: []kserve.Request{{Version: model.version}},
		MaxWindows: max(3, int(time.Duration(s.cfg.Benchmark.MaxSeconds)*time.Second/max(f.window, time.Millisecond))),
	}
	measured, err := s.sweep(ctx, base, loaded, f)
	if err != nil {
		return err
	}
	snapshot, err := s.cfg.Snapshot(s.cfg.Dir)
	if err != nil {
		return err
	}
	rep := s.report(ctx, snapshot)
	return a.finishBenchmark(&rep, measured, f.output)
}

// sweep measures every pair, with the user's requests or random ones, of the
// version of the one request that base has.
func (s *session) sweep(ctx context.Context, base load.Options, loaded *tritonpb.ModelConfig, f loadFlags) (report.Benchmark, error) {
	precision := f.precision
	if precision == "" {
		if precision = servedPrecision(s.cfg.Triton.Precision, s.cfg.Target, s.cfg.TensorRT.Precisions); precision == "onnx" {
			precision = "fp32" // as benchmark onnx calls the same graph
		}
	}
	batches := s.cfg.Benchmark.BatchSizes
	concurrency := s.cfg.Benchmark.Concurrency
	if f.rate > 0 {
		concurrency = []int{0} // as many as there are under way
	}
	if f.inputData == "" {
		return load.Sweep(ctx, base, loaded, precision, batches, concurrency, loadValues(s.cfg, loaded))
	}
	var out report.Benchmark
	for _, b := range batches {
		requests, err := load.ReadInputData(f.inputData, loaded, b)
		if err != nil {
			return out, err
		}
		for i := range requests {
			requests[i].Version = base.Requests[0].Version
		}
		for _, c := range concurrency {
			o := base
			o.Requests, o.Batch, o.Concurrency = requests, b, c
			r, err := load.Run(ctx, o)
			if err != nil {
				return out, err
			}
			out.Rows = append(out.Rows, r.Measurement(loaded, precision, b, c))
		}
	}
	return out, nil
}

// loadValues gives inputs the sizes of opt, without the batch where the model
// has one, and the range of the configuration.
func loadValues(cfg *config.Config, loaded *tritonpb.ModelConfig) map[string]load.Values {
	out := map[string]load.Values{}
	for name, shape := range cfg.ShapesAt(0, 0) {
		if loaded.GetMaxBatchSize() > 0 && len(shape) > 0 {
			shape = shape[1:]
		}
		out[name] = load.Values{Shape: shape}
	}
	for _, in := range cfg.Model.Inputs {
		if len(in.Range) == 2 {
			v := out[in.Name]
			v.Range = tensor.Range{Low: string(in.Range[0]), High: string(in.Range[1])}
			out[in.Name] = v
		}
	}
	return out
}
