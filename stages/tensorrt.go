package stages

import (
	"context"
	"io"
	"path/filepath"
	"time"

	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/worker"
	"github.com/trtship/trtship/stages/benchmark"
	"github.com/trtship/trtship/stages/build"
	"github.com/trtship/trtship/stages/validateengine"
)

// start starts a Python child that sees the GPU. setting is where its time in
// seconds comes from.
func (t Tools) start(ctx context.Context, c *config.Config, timeout int, setting string, log io.Writer, progress func(done, total int64, label string)) (*worker.Worker, error) {
	return worker.Start(ctx, worker.Options{
		Python: t.Python, Subject: c.Model.Name, Timeout: time.Duration(timeout) * time.Second, TimeoutSetting: setting, CUDA: true,
		Path: []string{filepath.Clean(c.Dir)}, Log: log, Progress: progress, Env: t.GPUEnv(),
	})
}

func (t Tools) building(c *config.Config) build.Tools {
	return build.Tools{
		Start: func(ctx context.Context, log io.Writer, progress func(done, total int64, label string)) (build.Child, error) {
			w, err := t.start(ctx, c, c.TensorRT.BuildTimeoutS*max(1, len(c.TensorRT.Precisions)), "tensorrt.build_timeout_s", log, progress)
			if err != nil {
				return nil, err // no interface around a nil child
			}
			return w, nil
		},
		Versions: t.TensorRT, Driver: t.Driver,
	}
}

func (t Tools) validating(c *config.Config) validateengine.Tools {
	return validateengine.Tools{
		Start: func(ctx context.Context, log io.Writer, progress func(done, total int64, label string)) (validateengine.Child, error) {
			w, err := t.start(ctx, c, c.Validation.TimeoutS*max(1, len(c.TensorRT.Precisions)), "validation.timeout_s", log, progress)
			if err != nil {
				return nil, err // no interface around a nil child
			}
			return w, nil
		},
		Versions: t.TensorRT, Machine: t.Machine,
	}
}

// measuring is nil where the configuration asks for no engines.
func (t Tools) measuring(c *config.Config) benchmark.Engines {
	if c.Target != "tensorrt" {
		return nil
	}
	return benchmark.NewOnGPU(c, benchmark.GPUTools{
		Start: func(ctx context.Context, log io.Writer, progress func(done, total int64, label string)) (benchmark.Child, error) {
			w, err := t.start(ctx, c, 4*c.Benchmark.MaxSeconds+c.TensorRT.BuildTimeoutS, "benchmark.max_seconds", log, progress)
			if err != nil {
				return nil, err // no interface around a nil child
			}
			return w, nil
		},
		Versions: t.TensorRT, Read: t.Clocks, Rivals: t.Rivals,
	})
}
