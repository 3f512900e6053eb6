package cli

import (
	"context"
	"path/filepath"

	"github.com/trtship/trtship/internal/engine"
	"github.com/trtship/trtship/internal/gpu"
	"github.com/trtship/trtship/internal/triton/server"
	"github.com/trtship/trtship/stages"
)

// tools are what the stages work with. What is not here stays empty: the
// pipeline asks for every need before the first stage.
func (s *session) tools(ctx context.Context) stages.Tools {
	t := stages.Tools{
		State: filepath.Join(filepath.Dir(s.store.Root()), "state"),
		TensorRT: func(ctx context.Context) (map[string]string, error) {
			v, err := s.machine.TensorRT(ctx)
			if err != nil {
				return nil, err
			}
			return map[string]string{"tensorrt": v}, nil
		},
		Triton:  func(ctx context.Context) (server.Installation, error) { return s.machine.Triton(ctx, s.cfg) },
		Machine: s.gpuMachine,
		Rivals:  s.rivals,
		Clocks: func() (gpu.Reading, error) {
			d, err := s.machine.device(ctx, s.cfg)
			if err != nil {
				return gpu.Reading{}, err
			}
			return gpu.New().Read(d)
		},
		Driver: func() string {
			if d, err := s.machine.device(ctx, s.cfg); err == nil {
				return d.Driver
			}
			return ""
		},
	}
	t.GPUEnv = func() []string { // lazily: a run without a GPU stage need not wake NVML
		return s.machine.withLibraries(s.onlyGPU(ctx))
	}
	var err error
	if t.Python, err = s.machine.Python(); err != nil {
		s.a.log.Debug("no python", "error", err)
	}
	if t.ORT, err = s.machine.ORT(ctx); err != nil {
		s.a.log.Debug("no onnxruntime", "error", err)
	}
	return t
}

// onlyGPU lets a child see the GPU that the configuration names and no other. A
// MIG device cannot be had in another way: CUDA counts none but the first.
func (s *session) onlyGPU(ctx context.Context) []string {
	d, err := s.machine.device(ctx, s.cfg)
	if err != nil {
		return s.machine.visibleEnv() // the child says what is wrong, if one is started at all
	}
	return []string{"CUDA_DEVICE_ORDER=PCI_BUS_ID", "CUDA_VISIBLE_DEVICES=" + d.UUID}
}

// gpuMachine is where plans are loaded.
func (s *session) gpuMachine(ctx context.Context) (engine.Machine, error) {
	d, err := s.machine.device(ctx, s.cfg)
	if err != nil {
		return engine.Machine{}, err
	}
	trt, err := s.machine.tensorrtFor(ctx, d)
	if err != nil {
		return engine.Machine{}, err
	}
	return engine.Machine{TensorRT: trt, GPU: d.Name, ComputeCapability: d.ComputeCapability}, nil
}

// hardware describes the GPU for the keys of hardware stages.
func (s *session) hardware(ctx context.Context) (map[string]string, error) {
	m, err := s.gpuMachine(ctx)
	if err != nil {
		return nil, err
	}
	d, err := s.machine.device(ctx, s.cfg)
	if err != nil {
		return nil, err
	}
	return map[string]string{"gpu": m.GPU, "compute_capability": m.ComputeCapability, "driver": d.Driver, "tensorrt": m.TensorRT}, nil
}
