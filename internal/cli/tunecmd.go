package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/rollout"
	"github.com/trtship/trtship/internal/triton"
	"github.com/trtship/trtship/internal/triton/kserve"
	"github.com/trtship/trtship/internal/triton/load"
	"github.com/trtship/trtship/internal/triton/server"
	"github.com/trtship/trtship/internal/triton/tritonpb"
)

// tuneFlags are the flags of tune.
type tuneFlags struct {
	repository, protocol, output, journal string
	instances, batches, loads             []int
	delays                                []int64
	p99                                   float64
	window                                time.Duration
}

func newTuneCmd(a *app) *cobra.Command {
	var f tuneFlags
	c := &cobra.Command{
		Use:   "tune CONFIG",
		Short: "Search instances, batch size and delay for the most throughput under a latency budget",
		Long: `tune starts a server of its own on the repository and measures the model with one setting after the
other, walking from the best so far along one setting at a time. Every trial is kept in a journal: a
search that was cut off goes on where it was. The best setting is written as a piece of a configuration.`,
		GroupID: "serving",
		Args:    positional(1, 1),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.tune(cmd.Context(), args[0], f) },
	}
	c.Flags().StringVarP(&f.repository, "repository", "r", "", "model repository (`folder`; that of the latest run by default)")
	c.Flags().StringVar(&f.protocol, "protocol", "grpc", "`protocol`: http or grpc")
	c.Flags().Float64Var(&f.p99, "p99", 0, "latency budget in `milliseconds` at the 99th percentile; 0 is none")
	c.Flags().IntSliceVar(&f.instances, "instances", []int{1, 2, 4}, "`numbers` of instances to try")
	c.Flags().IntSliceVar(&f.batches, "batches", nil, "`sizes` of max_batch_size to try (powers of two up to the model's own by default)")
	c.Flags().Int64SliceVar(&f.delays, "delays", []int64{-1, 0, 100, 500, 1000}, "queue delays in `microseconds` to try; -1 is without dynamic batching")
	c.Flags().IntSliceVar(&f.loads, "loads", []int{1, 4, 16, 64}, "`numbers` of requests at a time to try")
	c.Flags().DurationVar(&f.window, "window", time.Second, "length of one window (`time`)")
	c.Flags().StringVar(&f.journal, "journal", "", "`file` that keeps the trials (beside the store by default)")
	c.Flags().StringVarP(&f.output, "output", "o", "", "write the best setting to this `file` (YAML), which must not exist")
	return c
}

func (a *app) tune(ctx context.Context, path string, f tuneFlags) error {
	if err := refuseExisting(f.output); err != nil {
		return err
	}
	if f.protocol != string(kserve.HTTP) && f.protocol != string(kserve.GRPC) {
		return failure.New(failure.Usage, "--protocol %q is not http or grpc", f.protocol)
	}
	cfg, err := a.loadConfig(path)
	if err != nil {
		return err
	}
	repository, err := a.findRepository(f.repository)
	if err != nil {
		return err
	}
	model, err := wanted(cfg, repository)
	if err != nil {
		return err
	}
	install, err := a.machine().Triton(ctx, cfg)
	if err != nil {
		return err
	}
	scratch, err := os.MkdirTemp("", "trtship-tune-*")
	if err != nil {
		return failure.New(failure.Artifact, "tune: %w", err)
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	srv, err := server.Start(ctx, server.Options{
		Installation: install, Repositories: []string{repository}, Control: "explicit", Load: []string{model.Name},
		Wait: []server.Want{{Model: model.Name, Version: model.Newest()}}, Scratch: scratch,
		ReadyTimeout: time.Duration(cfg.Triton.ReadyTimeoutS) * time.Second,
	})
	if err != nil {
		return err
	}
	defer srv.Stop()
	t := &tuning{app: a, model: model, server: srv, f: f, cfg: cfg}
	return t.search(ctx, install)
}

// tuning is a search on a running server.
type tuning struct {
	app    *app
	model  triton.Model
	server *server.Server
	f      tuneFlags
	cfg    *config.Config
}

func (t *tuning) search(ctx context.Context, install server.Installation) error {
	a, f := t.app, t.f
	if len(f.batches) == 0 {
		for n := 1; n < int(t.model.Config.GetMaxBatchSize()); n *= 2 {
			f.batches = append(f.batches, n)
		}
		f.batches = append(f.batches, max(int(t.model.Config.GetMaxBatchSize()), 0))
	}
	if t.model.Config.GetMaxBatchSize() == 0 {
		f.batches, f.delays = []int{0}, []int64{-1}
	}
	for _, n := range f.batches {
		if n > int(t.model.Config.GetMaxBatchSize()) {
			return failure.New(failure.Usage, "--batches has %d, the model's max_batch_size is %d", n, t.model.Config.GetMaxBatchSize())
		}
	}
	manifest, err := triton.ReadManifest(t.model.Dir)
	if err != nil {
		return err
	}
	if f.journal == "" {
		f.journal = filepath.Join(filepath.Dir(filepath.Clean(a.storeDir())), "tune", t.model.Name+".json")
	}
	control, err := t.server.Client(kserve.HTTP)
	if err != nil {
		return err
	}
	defer func() { _ = control.Close() }()
	files := manifest.Versions[t.model.Newest()].Files
	res, err := rollout.Tune(ctx, rollout.TuneOptions{
		Instances: f.instances, MaxBatch: f.batches, DelayUS: f.delays, Loads: f.loads, P99: f.p99, Journal: f.journal,
		Key:      fmt.Sprintf("%v %s %s %s", files, install, f.protocol, f.window),
		Measure:  func(ctx context.Context, s rollout.Setting) (load.Result, error) { return t.measure(ctx, control, s) },
		Progress: func(done, _ int64, label string) { a.say("trial %d: %s", done+1, label) },
	})
	if err != nil {
		return err
	}
	return t.report(res)
}

// measure reloads the model with a setting and puts it under load.
func (t *tuning) measure(ctx context.Context, control kserve.Client, s rollout.Setting) (load.Result, error) {
	c := proto.Clone(t.model.Config).(*tritonpb.ModelConfig)
	c.MaxBatchSize = int32(s.MaxBatch)
	for _, g := range c.InstanceGroup {
		g.Count = int32(s.Instances)
	}
	c.SchedulingChoice = nil
	if s.DelayUS >= 0 {
		c.SchedulingChoice = &tritonpb.ModelConfig_DynamicBatching{DynamicBatching: &tritonpb.ModelDynamicBatching{MaxQueueDelayMicroseconds: uint64(s.DelayUS)}}
	}
	if err := control.Load(ctx, t.model.Name, c); err != nil {
		return load.Result{}, err
	}
	loaded, err := control.ModelConfig(ctx, t.model.Name, "")
	if err != nil {
		return load.Result{}, err
	}
	requests, err := load.Generated(loaded, 1, 16, loadValues(t.cfg, loaded), t.cfg.Validation.Seed)
	if err != nil {
		return load.Result{}, err
	}
	address := t.server.HTTP
	if t.f.protocol == string(kserve.GRPC) {
		address = t.server.GRPC
	}
	return load.Run(ctx, load.Options{
		Protocol: kserve.Protocol(t.f.protocol), Address: address, Control: control, Requests: requests, Concurrency: s.Load, Window: t.f.window,
	})
}

func (t *tuning) report(res rollout.TuneResult) error {
	a := t.app
	if a.json {
		if err := a.printJSON(res); err != nil {
			return err
		}
	} else {
		table := a.table("instances", "batch", "delay us", "requests at a time", "rows/s", "p50 ms", "p99 ms", "note")
		for _, x := range res.Trials {
			note := x.Failed
			if note == "" && !x.Stable {
				note = "not stable"
			}
			table.AppendRow([]any{x.Setting.Instances, x.Setting.MaxBatch, x.Setting.DelayUS, x.Setting.Load, fmt.Sprintf("%.1f", x.Rows), fmt.Sprintf("%.3f", x.P50), fmt.Sprintf("%.3f", x.P99), note})
		}
		a.printTable(table)
	}
	if res.Best == nil && res.Budget == 0 {
		return failure.New(failure.Benchmark, "no setting could be measured").WithHint("the table says why")
	}
	if res.Best == nil {
		return failure.New(failure.Benchmark, "no setting keeps p99 under %g ms", res.Budget).WithHint("raise --p99, or try smaller batches and loads")
	}
	kind := "cpu"
	for _, g := range t.model.Config.GetInstanceGroup() {
		if g.GetKind() == tritonpb.ModelInstanceGroup_KIND_GPU {
			kind = "gpu"
		}
	}
	patch, err := res.Best.Patch(kind)
	if err != nil {
		return err
	}
	if t.f.output != "" {
		if err := writeNew(t.f.output, patch); err != nil {
			return err
		}
		a.say("wrote %s", t.f.output)
	}
	if !a.json {
		a.print("\n%s", strings.TrimLeft(string(patch), "\n"))
	}
	return nil
}
