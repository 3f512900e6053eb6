package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/trtship/trtship/internal/calibration"
	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/ort"
	"github.com/trtship/trtship/internal/precision"
	"github.com/trtship/trtship/internal/proc"
)

// quantized is one comparison of int8 graphs.
type quantized struct {
	Model    string  `json:"model"`
	Method   string  `json:"method"`
	Samples  int     `json:"samples"`
	Seconds  float64 `json:"trtship_seconds"`       // calibration and graph
	Write    float64 `json:"trtship_write_seconds"` // the graph alone
	Peer     float64 `json:"peer_seconds"`
	Images   int     `json:"test_images,omitempty"`
	Float    float64 `json:"accuracy_float32,omitempty"`
	Ours     float64 `json:"accuracy_trtship,omitempty"`
	Theirs   float64 `json:"accuracy_peer,omitempty"`
	PeerFail string  `json:"peer_error,omitempty"`
}

func (q quantized) String() string {
	s := fmt.Sprintf("%-18s int8, %-11s %4d samples  trtship %.2f s (%.2f s for the graph)  onnxruntime.quantization ", q.Model, q.Method, q.Samples, q.Seconds, q.Write)
	if q.PeerFail != "" {
		return s + "fails: " + q.PeerFail
	}
	s += fmt.Sprintf("%.2f s", q.Peer)
	if q.Images > 0 {
		s += fmt.Sprintf("  accuracy on %d images: float32 %.4f, trtship %.4f, onnxruntime.quantization %.4f", q.Images, q.Float, q.Ours, q.Theirs)
	}
	return s
}

// quantizeAll compares int8 graphs of ResNet-18 (time) and of the digits CNN
// (accuracy too).
func quantizeAll(ctx context.Context, f flags) ([]quantized, error) {
	python, err := filepath.Abs(f.python)
	if err != nil {
		return nil, err
	}
	var out []quantized
	for _, c := range []struct{ name, model, data, method, test string }{
		{"digits", "digits.onnx", "digits_calibration.npy", "entropy", "digits_test.npz"},
		{"digits", "digits.onnx", "digits_calibration.npy", "entropy-ort", "digits_test.npz"},
		{"digits", "digits.onnx", "digits_calibration.npy", "minmax", "digits_test.npz"},
		{"digits", "digits.onnx", "digits_calibration.npy", "percentile", "digits_test.npz"},
		{"resnet18 224x224", "resnet18.onnx", "pictures.npy", "entropy-ort", ""},
	} {
		test := ""
		if c.test != "" {
			test = filepath.Join(f.data, c.test)
		}
		q, err := quantizeOne(ctx, python, filepath.Dir(f.script), filepath.Join(f.data, c.model), filepath.Join(f.data, c.data), c.method, test)
		if err != nil {
			return out, fmt.Errorf("%s: %w", c.name, err)
		}
		q.Model = c.name
		out = append(out, q)
		fmt.Println(q)
	}
	return out, nil
}

func quantizeOne(ctx context.Context, python, scripts, model, data, method, test string) (quantized, error) {
	q := quantized{Method: method, Samples: 100}
	lib, err := ort.Find(ctx, ort.Places{Python: python})
	if err != nil {
		return q, err
	}
	start := time.Now()
	ranges, chosen, err := calibrate(ctx, lib, model, data, calibration.Method(method), q.Samples)
	if err != nil {
		return q, err
	}
	scales := map[string]float32{}
	for name, r := range ranges {
		scales[name] = calibration.Scale(float32(max(-r[0], r[1])))
	}
	dir, err := os.MkdirTemp("", "bench-quantize-")
	if err != nil {
		return q, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // temporary
	runtime.GC()
	write := time.Now()
	ours := filepath.Join(dir, "ours.onnx")
	if err := quantize(model, ours, scales); err != nil {
		return q, err
	}
	q.Seconds, q.Write = time.Since(start).Seconds(), time.Since(write).Seconds()
	args := []string{filepath.Join(scripts, "quantize_peer.py"), model, data, chosen, method, ours}
	if test != "" {
		args = append(args, test)
	}
	var text strings.Builder
	if err := proc.Run(ctx, proc.Command{Path: python, Args: args, Stdout: &text, Env: []string{"LANG=C.UTF-8", "PATH=/usr/bin:/bin"}}); err != nil {
		lines := strings.Split(strings.TrimSpace(err.Error()), "\n")
		q.PeerFail = lines[len(lines)-1]
		return q, nil
	}
	lines := strings.Split(strings.TrimSpace(text.String()), "\n")
	var peer struct {
		Seconds, Float, Trtship, Peer float64
		Images                        int
	}
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &peer); err != nil {
		return q, err
	}
	q.Peer, q.Float, q.Ours, q.Theirs, q.Images = peer.Seconds, peer.Float, peer.Trtship, peer.Peer, peer.Images
	return q, nil
}

func quantize(from, to string, scales map[string]float32) error {
	m, err := onnx.Open(from)
	if err != nil {
		return err
	}
	defer m.Close() //nolint:errcheck // read only
	g, err := precision.Convert(m, precision.Request{Precision: "int8", Settings: config.Quantize{PerChannel: true, KeepIO: true}, Scales: scales})
	if err != nil {
		return err
	}
	return g.Model.Save(to, onnx.SaveOptions{})
}
