// Command onnxslim measures trtship's graph passes against onnxslim: time from
// file to file, number of nodes, and whether the answers stay the same. It also
// takes a model of 3 GB through reading, facts, passes and writing, and measures
// the memory of that process.
//
//	go run ./bench/onnxslim -python PYTHON -models FOLDER [-json FILE] [-repeats 3] [-large]
//
// PYTHON has torch, torchvision, onnx, onnxruntime and onnxslim (the locked
// environment "bench"). FOLDER gets the exported models once and keeps them.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/onnx/passes"
	"github.com/trtship/trtship/internal/ort"
	"github.com/trtship/trtship/internal/proc"
)

func main() {
	ort.RunChildIfAsked()
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "onnxslim:", err)
		os.Exit(1)
	}
}

type flags struct {
	python, models, out, scripts string
	repeats                      int
	large                        bool
	one                          string
}

// Result is what is written to docs/verification/bench-optimize.json.
type Result struct {
	What     string            `json:"what"`
	Cores    int               `json:"cores"`
	Versions map[string]string `json:"versions"`
	Rows     []Row             `json:"models"`
	Least    float64           `json:"least_times_faster"`            // file to file
	Passes   float64           `json:"least_times_faster_optimizing"` // without reading and writing
	Most     float64           `json:"most_nodes_ratio"`
	Aim      string            `json:"aim"`
	Held     bool              `json:"held"`
	Large    *Large            `json:"large_model,omitempty"`
}

// Row is one model.
type Row struct {
	Model       string  `json:"model"`
	Bytes       int64   `json:"bytes"`
	NodesBefore int     `json:"nodes_before"`
	NodesOurs   int     `json:"nodes_trtship"`
	NodesPeer   int     `json:"nodes_onnxslim"`
	Ours        Times   `json:"trtship_seconds"`
	Peer        Times   `json:"onnxslim_seconds"`
	Ratio       float64 `json:"times_faster"`            // file to file
	Optimize    float64 `json:"times_faster_optimizing"` // without reading and writing
	Difference  float64 `json:"largest_difference"`      // relative to the larger of 1 and the output's largest element
}

// Times are of the run whose total was the median.
type Times struct {
	Load     float64 `json:"load"`
	Optimize float64 `json:"optimize"`
	Save     float64 `json:"save"`
}

func (t Times) total() float64 { return t.Load + t.Optimize + t.Save }

func median(runs []Times) Times {
	slices.SortFunc(runs, func(a, b Times) int {
		switch {
		case a.total() < b.total():
			return -1
		case a.total() > b.total():
			return 1
		}
		return 0
	})
	return runs[len(runs)/2]
}

func run(ctx context.Context) error {
	var f flags
	flag.StringVar(&f.python, "python", "", "interpreter of the locked environment bench")
	flag.StringVar(&f.models, "models", "", "folder of the exported models")
	flag.StringVar(&f.out, "json", "", "write the result to this file")
	flag.StringVar(&f.scripts, "scripts", "bench/onnxslim", "folder of models.py and peer.py")
	flag.IntVar(&f.repeats, "repeats", 3, "runs of each model; the median counts")
	flag.BoolVar(&f.large, "large", false, "also measure a model of 3 GB")
	flag.StringVar(&f.one, "one", "", "internal: take this model through everything and print the peak memory")
	flag.Parse()
	if f.one != "" {
		return takeThrough(ctx, f.one)
	}
	if f.python == "" || f.models == "" {
		return fmt.Errorf("-python and -models are needed")
	}
	files, err := f.export(ctx)
	if err != nil {
		return err
	}
	r := Result{What: "from .onnx file to optimized .onnx file, against onnxslim in a warm process; medians", Cores: runtime.NumCPU(), Aim: "optimizing, timed inside a warm process, at least 5 times faster; at most 1.02 times the nodes; outputs equal (1e-5)"}
	if err := f.peer(ctx, files, &r); err != nil {
		return err
	}
	for i := range r.Rows {
		if err := f.ours(ctx, &r.Rows[i]); err != nil {
			return err
		}
	}
	r.judge()
	if f.large {
		if r.Large, err = largeModel(ctx, f.models); err != nil {
			return err
		}
	}
	r.print()
	if f.out == "" {
		return nil
	}
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(f.out, append(b, '\n'), 0o644)
}

// environment is what the Python children see.
func (f flags) environment() []string {
	env := []string{"LANG=C.UTF-8", "HOME=" + f.models}
	if extra, ok := os.LookupEnv("PYTHONPATH"); ok {
		env = append(env, "PYTHONPATH="+extra)
	}
	return env
}

func (f flags) export(ctx context.Context) ([]string, error) {
	fmt.Fprintln(os.Stderr, "exporting models (once)")
	err := proc.Run(ctx, proc.Command{
		Path: f.python, Args: []string{filepath.Join(f.scripts, "models.py"), f.models}, Env: f.environment(), Stdout: os.Stderr, Stderr: os.Stderr,
	})
	if err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(f.models, "*-*.onnx"))
	if len(files) == 0 && err == nil {
		err = fmt.Errorf("%s holds no models", f.models)
	}
	return files, err
}

// peer runs onnxslim over all files.
func (f flags) peer(ctx context.Context, files []string, r *Result) error {
	dir := filepath.Join(f.models, "onnxslim")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "running onnxslim")
	out, err := proc.Output(ctx, proc.Command{
		Path: f.python, Args: append([]string{filepath.Join(f.scripts, "peer.py"), fmt.Sprint(f.repeats), dir}, files...), Env: f.environment(), Stderr: os.Stderr,
	})
	if err != nil {
		return err
	}
	lines := bufio.NewScanner(strings.NewReader(out))
	for lines.Scan() {
		if !strings.HasPrefix(lines.Text(), "{") {
			continue
		}
		if r.Versions == nil {
			if err := json.Unmarshal(lines.Bytes(), &r.Versions); err != nil {
				return err
			}
			continue
		}
		var row struct {
			Model string  `json:"model"`
			Runs  []Times `json:"runs"`
			Nodes int     `json:"nodes"`
		}
		if err := json.Unmarshal(lines.Bytes(), &row); err != nil {
			return err
		}
		r.Rows = append(r.Rows, Row{Model: row.Model, Peer: median(row.Runs), NodesPeer: row.Nodes})
	}
	return lines.Err()
}

// ours runs the passes over one file and compares the answers.
func (f flags) ours(ctx context.Context, row *Row) error {
	in := filepath.Join(f.models, row.Model)
	dir := filepath.Join(f.models, "trtship")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	out := filepath.Join(dir, row.Model)
	var runs []Times
	for range f.repeats {
		t, err := once(ctx, in, out, row)
		if err != nil {
			return err
		}
		runs = append(runs, t)
		runtime.GC() // the last run's garbage is not this one's
	}
	row.Ours = median(runs)
	row.Ratio = row.Peer.total() / row.Ours.total()
	row.Optimize = row.Peer.Optimize / row.Ours.Optimize
	var err error
	row.Difference, err = difference(ctx, f.python, in, out)
	return err
}

func once(ctx context.Context, in, out string, row *Row) (Times, error) {
	var t Times
	if err := os.Remove(out); err != nil && !os.IsNotExist(err) {
		return t, err
	}
	all, err := passes.All(passes.Options{})
	if err != nil {
		return t, err
	}
	start := time.Now()
	m, err := onnx.Open(in)
	if err != nil {
		return t, err
	}
	defer m.Close()
	t.Load = time.Since(start).Seconds()
	result, sum, err := passes.Run(ctx, m, all, nil)
	if err != nil {
		return t, err
	}
	t.Optimize = time.Since(start).Seconds() - t.Load
	if err := result.Save(out, onnx.SaveOptions{}); err != nil {
		return t, err
	}
	t.Save = time.Since(start).Seconds() - t.Load - t.Optimize
	row.NodesBefore, row.NodesOurs = sum.NodesBefore, sum.NodesAfter
	info, err := os.Stat(in)
	if err == nil {
		row.Bytes = info.Size()
	}
	return t, err
}

func (r *Result) judge() {
	r.Held = true
	for i, row := range r.Rows {
		nodes := float64(row.NodesOurs) / float64(row.NodesPeer)
		if i == 0 {
			r.Least, r.Passes = row.Ratio, row.Optimize
		}
		r.Least, r.Passes = min(r.Least, row.Ratio), min(r.Passes, row.Optimize)
		r.Most = max(r.Most, nodes)
		r.Held = r.Held && row.Optimize >= 5 && nodes <= 1.02 && row.Difference <= 1e-5
	}
}

func (r *Result) print() {
	fmt.Printf("%-28s %7s %7s %7s %9s %9s %7s %7s %9s\n", "model", "nodes", "slim", "ours", "slim s", "ours s", "ratio", "passes", "diff")
	for _, row := range r.Rows {
		fmt.Printf("%-28s %7d %7d %7d %9.3f %9.3f %6.1fx %6.1fx %9.2g\n", row.Model, row.NodesBefore, row.NodesPeer, row.NodesOurs, row.Peer.total(), row.Ours.total(), row.Ratio, row.Optimize, row.Difference)
	}
	fmt.Printf("at least %.1f times faster at optimizing, %.1f from file to file; at most %.2f times the nodes; held: %v\n", r.Passes, r.Least, r.Most, r.Held)
	if r.Large != nil {
		fmt.Printf("%.1f GB model: %.1f s, peak %d MiB; held: %v\n", float64(r.Large.Bytes)/1e9, r.Large.Seconds, r.Large.PeakRSS>>20, r.Large.Held)
	}
}
