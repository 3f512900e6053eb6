// Command calibrate measures trtship's calibration and quantization against
// onnxruntime.quantization: time and peak memory, whether the ranges agree, and
// the accuracy of the int8 graphs.
//
//	go run ./bench/calibrate -python PYTHON -data FOLDER [-json FILE] [-samples 50,100,200]
//
// FOLDER holds what bench/calibrate_models.py wrote.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/trtship/trtship/internal/calibration"
	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/dataset"
	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/ort"
	"github.com/trtship/trtship/internal/precision"
	"github.com/trtship/trtship/internal/proc"
	"github.com/trtship/trtship/internal/tensor"
)

func main() {
	ort.RunChildIfAsked()
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "calibrate:", err)
		os.Exit(1)
	}
}

type flags struct {
	python, data, out, script string
	samples                   []int
	repeat                    int
	one                       string
	methods, parts            []string
	graphsOnly                bool
}

func run() error {
	var f flags
	samples := flag.String("samples", "50,100,200", "numbers of samples")
	flag.StringVar(&f.python, "python", "", "interpreter with onnxruntime, for the peer")
	flag.StringVar(&f.data, "data", "", "folder of bench/calibrate_models.py")
	flag.StringVar(&f.out, "json", "", "write the result to this file")
	flag.StringVar(&f.script, "script", "bench/calibrate_peer.py", "the peer's script")
	flag.StringVar(&f.one, "one", "", "only our side: model,data,method,samples; prints one result")
	flag.IntVar(&f.repeat, "repeat", 3, "measurements of each row, the two sides in turns")
	methods := flag.String("methods", "minmax,entropy-ort,percentile", "calibration methods")
	parts := flag.String("parts", "rows,small,memory,quantize", "what to measure; the file of -json keeps the rest")
	flag.BoolVar(&f.graphsOnly, "graphs", false, "only the int8 graphs")
	flag.Parse()
	for _, s := range strings.Split(*samples, ",") {
		n, err := strconv.Atoi(s)
		if err != nil {
			return err
		}
		f.samples = append(f.samples, n)
	}
	f.methods, f.parts = strings.Split(*methods, ","), strings.Split(*parts, ",")
	ctx := context.Background()
	if f.one != "" {
		return one(ctx, f)
	}
	if f.graphsOnly {
		_, err := quantizeAll(ctx, f)
		return err
	}
	return compare(ctx, f)
}

// result is one calibration.
type result struct {
	Seconds float64               `json:"seconds"`
	Runs    []float64             `json:"runs_seconds,omitempty"`
	Process float64               `json:"process_seconds"`
	whole   []float64             // process_seconds of the repeats
	Peak    int64                 `json:"peak_rss_bytes"`
	Ranges  map[string][2]float64 `json:"ranges,omitempty"`
	Chosen  string                `json:"chosen,omitempty"` // samples that were taken
	Error   string                `json:"error,omitempty"`
}

// one calibrates in this process, so that its memory can be told apart.
func one(ctx context.Context, f flags) error {
	p := strings.Split(f.one, ",")
	n, err := strconv.Atoi(p[3])
	if err != nil {
		return err
	}
	lib, err := ort.Find(ctx, ort.Places{Python: f.python})
	if err != nil {
		return err
	}
	start := time.Now()
	ranges, chosen, err := calibrate(ctx, lib, p[0], p[1], calibration.Method(p[2]), n)
	if err != nil {
		return err
	}
	r := result{Seconds: time.Since(start).Seconds(), Peak: peakOfTree(), Ranges: ranges, Chosen: chosen}
	return json.NewEncoder(os.Stdout).Encode(r)
}

// peakOfTree adds this process's peak resident memory and that of its largest
// child, the one that ONNX Runtime ran in.
func peakOfTree() int64 {
	var children syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_CHILDREN, &children); err != nil {
		return 0
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	var own int64
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			own, _ = strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
		}
	}
	return (own + children.Maxrss) << 10
}

func calibrate(ctx context.Context, lib ort.Library, model, data string, method calibration.Method, n int) (ranges map[string][2]float64, chosen string, err error) {
	m, err := onnx.Open(model)
	if err != nil {
		return nil, "", err
	}
	defer m.Close() //nolint:errcheck // read only
	var ends []string
	for _, v := range append(m.Inputs(), m.Outputs()...) {
		ends = append(ends, v.Name)
	}
	set, err := openSet(ctx, m, data, n, 8)
	if err != nil {
		return nil, "", err
	}
	defer set.Close() //nolint:errcheck // read only
	var names []string
	for _, a := range precision.Activations(m) {
		if a.DType == tensor.Float32 {
			names = append(names, a.Name)
		}
	}
	got, err := calibration.Collect(ctx, calibration.CollectOptions{
		Library: lib, Model: model, Tensors: names, Interface: ends, Feeds: set, Samples: set.Samples, Threads: runtime.NumCPU(),
		RangeOnly: calibration.Rule{Method: method}.RangeOnly(),
	})
	if err != nil {
		return nil, "", err
	}
	found, err := calibration.Ranges(got.Observers, calibration.Rule{Method: method, Percentile: 99.99}, nil)
	if err != nil {
		return nil, "", err
	}
	out := map[string][2]float64{}
	for _, r := range found {
		t := float64(r.Threshold)
		out[r.Name] = [2]float64{math.Max(-t, float64(r.Min)), math.Min(t, float64(r.Max))}
	}
	var list strings.Builder
	for i, k := range set.Chosen() {
		if i > 0 {
			list.WriteByte(',')
		}
		list.WriteString(strconv.Itoa(k))
	}
	return out, list.String(), nil
}

// openSet opens n samples of a .npy or .npz file for a model.
func openSet(ctx context.Context, m *onnx.Model, data string, n, batch int) (*dataset.Set, error) {
	var inputs []dataset.Input
	for _, v := range m.Inputs() {
		in := dataset.Input{Name: v.Name, DType: v.DType}
		for _, d := range v.Dims {
			if d.Fixed() {
				in.Shape = append(in.Shape, d.Size)
			} else {
				in.Shape = append(in.Shape, dataset.Any)
			}
		}
		inputs = append(inputs, in)
	}
	return dataset.Open(ctx, dataset.Options{Inputs: inputs, Calibration: config.Calibration{
		Dataset: "numpy", Path: data, NumSamples: n, MinSamples: 1, BatchSize: batch,
	}})
}

// document is the file of -json.
type document struct {
	What    string      `json:"what"`
	Peer    string      `json:"peer"`
	CPU     string      `json:"cpu"`
	Cores   int         `json:"cores"`
	Repeats int         `json:"repeats"`
	Note    string      `json:"note"`
	Aim     float64     `json:"aim_at_most"`
	Rows    []row       `json:"rows"`
	Small   []row       `json:"small_models"`
	Memory  []growth    `json:"memory"`
	Graphs  []quantized `json:"quantize"`
}

func compare(ctx context.Context, f flags) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	python, err := filepath.Abs(f.python)
	if err != nil {
		return err
	}
	lib, err := ort.Find(ctx, ort.Places{Python: python})
	if err != nil {
		return err
	}
	d := document{}
	if b, err := os.ReadFile(f.out); err == nil {
		if err := json.Unmarshal(b, &d); err != nil {
			return fmt.Errorf("%s: %w", f.out, err)
		}
	}
	d.What = "calibrate 50, 100 and 200 pictures of 224x224 for ResNet-18 with minmax, entropy-ort and percentile, against onnxruntime.quantization"
	d.Peer, d.CPU, d.Cores, d.Repeats, d.Note, d.Aim = "onnxruntime.quantization", cpuModel(), runtime.NumCPU(), f.repeat, note, 0.33
	m := meter{f, lib, self, python}
	for _, part := range f.parts {
		switch part {
		case "rows":
			err = m.rows(ctx, &d.Rows, "resnet18 224x224", "resnet18.onnx", "pictures.npy", f.samples)
			slopes(d.Rows)
		case "small":
			if err = m.rows(ctx, &d.Small, "digits", "digits.onnx", "digits_calibration.npy", []int{64}); err == nil {
				err = m.rows(ctx, &d.Small, "encoder", "encoder.onnx", "sentences.npz", []int{64})
			}
		case "memory":
			d.Memory, err = memory(ctx, f, self, python)
		case "quantize":
			d.Graphs, err = quantizeAll(ctx, f)
		default:
			err = fmt.Errorf("-parts has no %q", part)
		}
		if err != nil {
			return err
		}
		if err := d.save(f.out); err != nil {
			return err
		}
	}
	return nil
}

// save writes the file, if there is to be one.
func (d *document) save(path string) error {
	if path == "" {
		return nil
	}
	b, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o644)
}

// meter measures the two sides.
type meter struct {
	flags
	lib        ort.Library
	self, peer string
}

// rows measures a model with every method and number of samples, and puts the
// rows in place of those that were there.
func (m meter) rows(ctx context.Context, into *[]row, name, model, data string, samples []int) error {
	model, data = filepath.Join(m.data, model), filepath.Join(m.data, data)
	bare, err := bareRun(ctx, m.lib, model, data)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	for _, method := range m.methods {
		for _, n := range samples {
			r := row{Model: name, Method: method, Samples: n, Bare: bare * float64(n)}
			for range m.repeat {
				ours := child(ctx, m.self, "-python", m.peer, "-one", fmt.Sprintf("%s,%s,%s,%d", model, data, method, n))
				r.Ours.add(ours)
				r.Peer.add(child(ctx, m.peer, m.script, model, data, method, ours.Chosen))
			}
			r.finish()
			fmt.Println(r)
			at := slices.IndexFunc(*into, func(o row) bool { return o.Model == r.Model && o.Method == r.Method && o.Samples == r.Samples })
			if at < 0 {
				*into = append(*into, r)
				continue
			}
			(*into)[at] = r
		}
	}
	return nil
}

const note = "seconds are medians of the repeats, the two sides in turns: trtship's from opening the model to the ranges, the start of its child " +
	"included; the peer's from making its calibrator to the ranges, the start of Python and its imports excluded. process_seconds is the " +
	"whole of both processes, from start to end. Memory is the largest peak resident size; trtship's adds both of its processes. " +
	"model_alone_seconds is what the same number of single samples takes in ONNX Runtime with nothing observed: no side can be faster."

// add takes a further measurement of the same thing: medians of times, and the
// most memory.
func (r *result) add(m result) {
	if r.Error != "" {
		return
	}
	if m.Error == "" {
		m.Peak, m.Runs, m.whole = max(m.Peak, r.Peak), append(r.Runs, m.Seconds), append(r.whole, m.Process)
		m.Seconds, m.Process = median(m.Runs), median(m.whole)
	}
	*r = m
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return (v[len(v)/2] + v[(len(v)-1)/2]) / 2
}

// row is one comparison.
type row struct {
	Model   string   `json:"model"`
	Method  string   `json:"method"`
	Samples int      `json:"samples"`
	Ours    result   `json:"trtship"`
	Peer    result   `json:"peer"`
	Bare    float64  `json:"model_alone_seconds"`        // with nothing observed
	Ratio   *float64 `json:"ratio_of_medians,omitempty"` // trtship's seconds to the peer's
	Faster  float64  `json:"times_faster"`
	Memory  float64  `json:"memory_ratio"`
	Worst   float64  `json:"largest_relative_difference"`
	At      string   `json:"at"`
	Common  int      `json:"tensors_in_common"`
}

// finish compares the ranges and drops them.
func (r *row) finish() {
	for name, p := range r.Peer.Ranges {
		o, ok := r.Ours.Ranges[name]
		if !ok {
			continue
		}
		r.Common++
		a, b := math.Max(math.Abs(o[0]), math.Abs(o[1])), math.Max(math.Abs(p[0]), math.Abs(p[1]))
		if b == 0 && a == 0 {
			continue
		}
		if d := math.Abs(a-b) / math.Max(a, b); d > r.Worst {
			r.Worst, r.At = d, name
		}
	}
	r.Ours.Ranges, r.Peer.Ranges, r.Ours.Chosen = nil, nil, ""
	if r.Peer.Error == "" && r.Ours.Error == "" {
		ratio := r.Ours.Seconds / r.Peer.Seconds
		r.Ratio = &ratio
		r.Faster, r.Memory = r.Peer.Seconds/r.Ours.Seconds, float64(r.Ours.Peak)/float64(r.Peer.Peak)
	}
}

func (r row) String() string {
	peer := fmt.Sprintf("%6.2f s %6.0f MiB", r.Peer.Seconds, float64(r.Peer.Peak)/(1<<20))
	if r.Peer.Error != "" {
		peer = "fails: " + r.Peer.Error
	}
	ours := fmt.Sprintf("%6.2f s %6.0f MiB", r.Ours.Seconds, float64(r.Ours.Peak)/(1<<20))
	if r.Ours.Error != "" {
		ours = "fails: " + r.Ours.Error
	}
	return fmt.Sprintf("%-18s %-12s %4d samples  trtship %s  onnxruntime.quantization %s  model alone %6.2f s  %.2f times faster, %.2f of the memory, scales differ by %.2g at most (%s, %d tensors)",
		r.Model, r.Method, r.Samples, ours, peer, r.Bare, r.Faster, r.Memory, r.Worst, r.At, r.Common)
}

// slopes prints seconds and bytes for each further sample.
func slopes(rows []row) {
	first := map[string]row{}
	last := map[string]row{}
	for _, r := range rows {
		k := r.Model + " " + r.Method
		if _, ok := first[k]; !ok {
			first[k] = r
		}
		last[k] = r
	}
	for k, a := range first {
		b := last[k]
		if a.Samples == b.Samples {
			continue
		}
		n := float64(b.Samples - a.Samples)
		fmt.Printf("%-30s a further sample: trtship %.1f ms and %.2f MiB, onnxruntime.quantization %.1f ms and %.2f MiB\n", k,
			1e3*(b.Ours.Seconds-a.Ours.Seconds)/n, float64(b.Ours.Peak-a.Ours.Peak)/n/(1<<20),
			1e3*(b.Peer.Seconds-a.Peer.Seconds)/n, float64(b.Peer.Peak-a.Peer.Peak)/n/(1<<20))
	}
}

// child runs one side and reads the last line of its output.
func child(ctx context.Context, path string, args ...string) result {
	var out strings.Builder
	start := time.Now()
	err := proc.Run(ctx, proc.Command{Path: path, Args: args, Stdout: &out, Env: []string{"LANG=C.UTF-8", "PATH=/usr/bin:/bin"}})
	whole := time.Since(start).Seconds()
	var r result
	if err != nil {
		lines := strings.Split(strings.TrimSpace(err.Error()), "\n")
		r.Error = lines[len(lines)-1]
		return r
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &r); err != nil {
		r.Error = err.Error()
	}
	r.Process = whole
	return r
}

// cpuModel names the processor.
func cpuModel() string {
	b, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "model name" {
			return strings.TrimSpace(v)
		}
	}
	return ""
}
