package cli

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/gpu"
	"github.com/trtship/trtship/report"
)

// Children that run engines see the chosen GPU and no other, so that their
// index 0, NVML's readings and the key of the stage are of one device.
func TestAChildSeesTheGPUThatTheConfigurationNames(t *testing.T) {
	devices := []gpu.Device{
		{GPU: report.GPU{Index: 0}, UUID: "GPU-a"},
		{GPU: report.GPU{Index: 1}, UUID: "GPU-b"},
		{GPU: report.GPU{Index: 1, MIG: true}, UUID: "MIG-c"},
	}
	for name, tt := range map[string]struct {
		device  string
		visible []string
		want    string
	}{
		"by index":                      {"1", nil, "CUDA_VISIBLE_DEVICES=GPU-b"},
		"by UUID":                       {"GPU-a", nil, "CUDA_VISIBLE_DEVICES=GPU-a"},
		"a MIG device":                  {"MIG-c", nil, "CUDA_VISIBLE_DEVICES=MIG-c"},
		"an index among visible ones":   {"0", []string{"CUDA_VISIBLE_DEVICES=1"}, "CUDA_VISIBLE_DEVICES=GPU-b"},
		"the only visible MIG device":   {"0", []string{"CUDA_VISIBLE_DEVICES=MIG-c"}, "CUDA_VISIBLE_DEVICES=MIG-c"},
		"one that is not there":         {"7", []string{"CUDA_VISIBLE_DEVICES=0,1"}, "CUDA_VISIBLE_DEVICES=0,1"},
		"one that is not there, no env": {"7", nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			a := &app{io: IO{Getenv: func(string) string { return "" }, Environ: func() []string { return tt.visible }}}
			m := &machine{a: a, gpuOnce: true, gpus: devices}
			if setting, ok := m.visibleDevices(); ok {
				m.gpus, m.gpuErr = gpu.Visible(devices, setting)
			}
			s := &session{a: a, machine: m, cfg: &config.Config{TensorRT: config.TensorRT{Device: tt.device}}}
			want := []string{"CUDA_DEVICE_ORDER=PCI_BUS_ID"}
			if tt.want != "" {
				want = append(want, tt.want)
			}
			if diff := cmp.Diff(want, s.onlyGPU(t.Context())); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if passed := slices.Equal(m.visibleEnv()[1:], tt.visible); len(tt.visible) > 0 && !passed {
				t.Errorf("the server gets %v, want %v", m.visibleEnv(), tt.visible)
			}
		})
	}
}
