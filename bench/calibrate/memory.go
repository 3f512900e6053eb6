package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/ort"
)

// bareRun returns the seconds of one sample in ONNX Runtime, with the settings
// of a calibration and nothing observed; the median of many.
func bareRun(ctx context.Context, lib ort.Library, model, data string) (float64, error) {
	m, err := onnx.Open(model)
	if err != nil {
		return 0, err
	}
	defer m.Close() //nolint:errcheck // read only
	set, err := openSet(ctx, m, data, 1, 1)
	if err != nil {
		return 0, err
	}
	defer set.Close() //nolint:errcheck // read only
	s, err := ort.Open(ctx, lib, model, ort.Options{Threads: runtime.NumCPU()})
	if err != nil {
		return 0, err
	}
	defer s.Close() //nolint:errcheck // measured
	for b, err := range set.Batches(ctx, 0) {
		if err != nil {
			return 0, err
		}
		r, err := s.Benchmark(ctx, b.Tensors, ort.BenchmarkRequest{Workers: 1, Warmup: 5, Iters: 100})
		if err != nil {
			return 0, err
		}
		var run []float64
		for _, x := range r.Samples {
			run = append(run, x.Phases[slices.Index(r.Phases, "execute")])
		}
		slices.Sort(run)
		return run[len(run)/2] / 1e3, nil
	}
	return 0, fmt.Errorf("no sample in %s", data)
}

// growth is what more samples cost in memory.
type growth struct {
	Method string     `json:"method"`
	Counts [2]int     `json:"samples"`
	Ours   [2]int64   `json:"trtship_peak_rss_bytes"`
	Peer   [2]int64   `json:"peer_peak_rss_bytes"`
	Ratio  [2]float64 `json:"more_samples_to_fewer"` // trtship, peer
	Failed string     `json:"peer_error,omitempty"`
}

func (g growth) String() string {
	return fmt.Sprintf("digits             %-12s %d and %d samples  trtship %.1f and %.1f MiB (%.3f)  onnxruntime.quantization %.1f and %.1f MiB (%.3f) %s", g.Method, g.Counts[0], g.Counts[1],
		float64(g.Ours[0])/(1<<20), float64(g.Ours[1])/(1<<20), g.Ratio[0], float64(g.Peer[0])/(1<<20), float64(g.Peer[1])/(1<<20), g.Ratio[1], g.Failed)
}

// memory compares the peaks at 100 and at 10,000 samples. The least of the
// repeats counts, for the peak of a process that waits on a busy machine varies.
func memory(ctx context.Context, f flags, self, python string) ([]growth, error) {
	dir, err := os.MkdirTemp("", "bench-memory-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // temporary
	model, data := filepath.Join(f.data, "digits.onnx"), filepath.Join(dir, "many.npy")
	if err := os.WriteFile(data, manyDigits(10000), 0o644); err != nil {
		return nil, err
	}
	var out []growth
	for _, method := range []string{"minmax", "percentile"} {
		g := growth{Method: method, Counts: [2]int{100, 10000}}
		for range f.repeat {
			for i, n := range g.Counts {
				ours := child(ctx, self, "-python", python, "-one", fmt.Sprintf("%s,%s,%s,%d", model, data, method, n))
				if ours.Error != "" {
					return out, fmt.Errorf("%s with %d samples: %s", method, n, ours.Error)
				}
				g.Ours[i] = least(g.Ours[i], ours.Peak)
				peer := child(ctx, python, f.script, model, data, method, ours.Chosen)
				g.Peer[i] = least(g.Peer[i], peer.Peak)
				if peer.Error != "" {
					g.Failed = fmt.Sprintf("%d samples: %s", n, peer.Error)
				}
			}
		}
		g.Ratio = [2]float64{float64(g.Ours[1]) / float64(g.Ours[0]), float64(g.Peer[1]) / max(float64(g.Peer[0]), 1)}
		out = append(out, g)
		fmt.Println(g)
	}
	return out, nil
}

func least(a, b int64) int64 {
	if a == 0 {
		return b
	}
	return min(a, b)
}

// manyDigits is an .npy file of n random pictures of 8x8.
func manyDigits(n int) []byte {
	head := fmt.Sprintf("{'descr': '<f4', 'fortran_order': False, 'shape': (%d, 1, 8, 8), }", n)
	head += strings.Repeat(" ", 117-len(head)) + "\n"
	var b bytes.Buffer
	fmt.Fprintf(&b, "\x93NUMPY\x01\x00%c\x00%s", len(head), head)
	r := rand.New(rand.NewPCG(1, 1)) //nolint:gosec // reproducible
	for range 64 * n {
		_ = binary.Write(&b, binary.LittleEndian, math.Float32bits(r.Float32()))
	}
	return b.Bytes()
}
