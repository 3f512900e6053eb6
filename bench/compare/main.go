// Command compare measures the comparison of two 256 MB tensors with all
// metrics against the same in NumPy (peer.py, chunked float64 and np.partition).
// Both read the same files, each in a process of its own, in alternation; the
// time is that of the comparison alone, and the memory what it takes above its
// inputs. The metrics of both must agree.
//
//	go run ./bench/compare -python PYTHON [-mb 256] [-rounds 3] [-o docs/verification/bench-compare.json]
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/trtship/trtship/internal/proc"
	"github.com/trtship/trtship/internal/tensor"
)

const (
	atol, rtol = 1e-4, 1e-3
	aim        = 0.5
	memoryAim  = 64 << 20
)

// side is what one program says about one comparison.
type side struct {
	Seconds float64        `json:"seconds"`
	Above   int64          `json:"above_inputs_bytes"`
	Metrics map[string]any `json:"metrics"`
	NumPy   string         `json:"numpy,omitempty"`
}

// row is one shape.
type row struct {
	Shape       []int64   `json:"shape"`
	Ours        []float64 `json:"ours_seconds"`
	Peer        []float64 `json:"numpy_seconds"`
	Ratio       float64   `json:"ratio_of_medians"`
	OursAbove   int64     `json:"ours_bytes_above_inputs"`
	PeerAbove   int64     `json:"numpy_bytes_above_inputs"`
	Differences []string  `json:"metrics_that_differ,omitempty"`
}

// result is the document that is written.
type result struct {
	What      string `json:"what"`
	Bytes     int64  `json:"bytes_of_each_tensor"`
	Cores     int    `json:"cores"`
	Go        string `json:"go"`
	NumPy     string `json:"numpy"`
	Rows      []row  `json:"rows"`
	Aim       string `json:"aim"`
	Held      bool   `json:"held"`
	Quantiles string `json:"quantiles"`
}

func main() {
	one := flag.String("one", "", "only our side: REF.npy,GOT.npy; prints one result")
	python := flag.String("python", "", "interpreter with NumPy")
	mb := flag.Int64("mb", 256, "size of each tensor in MiB")
	rounds := flag.Int("rounds", 3, "rounds, each with both programs")
	script := flag.String("script", "bench/compare/peer.py", "the peer")
	out := flag.String("o", "", "file for the result as JSON")
	flag.Parse()
	var err error
	if ref, got, ok := strings.Cut(*one, ","); ok {
		err = ours(ref, got)
	} else {
		err = measure(context.Background(), *python, *script, *mb<<20, *rounds, *out)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench/compare:", err)
		os.Exit(1)
	}
}

func measure(ctx context.Context, python, script string, size int64, rounds int, out string) error {
	r := result{
		What: "compare two float32 tensors with all metrics, against NumPy in chunked float64 with np.partition", Bytes: size,
		Cores: runtime.NumCPU(), Go: runtime.Version(), Aim: fmt.Sprintf("at most %g of the time, at most %d MiB above the inputs, equal metrics", aim, memoryAim>>20),
		Quantiles: "exact", Held: true,
	}
	n := size / 4
	for _, shape := range [][]int64{{n / 1024, 1024}, {64, n / 64}, {n / 10, 10}} {
		row, numpy, err := shapeRow(ctx, python, script, shape, rounds)
		if err != nil {
			return err
		}
		r.NumPy = numpy
		r.Rows = append(r.Rows, row)
		r.Held = r.Held && row.Ratio <= aim && row.OursAbove <= memoryAim && len(row.Differences) == 0
		fmt.Printf("%v: ours %.2f s, NumPy %.2f s, ratio %.2f; above the inputs: ours %d MiB, NumPy %d MiB; %d metrics differ\n",
			shape, median(row.Ours), median(row.Peer), row.Ratio, row.OursAbove>>20, row.PeerAbove>>20, len(row.Differences))
	}
	if out != "" {
		text, err := json.MarshalIndent(r, "", "  ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(out, append(text, '\n'), 0o644); err != nil {
			return err
		}
	}
	if !r.Held {
		return fmt.Errorf("the aim was missed: %s", r.Aim)
	}
	return nil
}

// shapeRow measures both programs on one shape.
func shapeRow(ctx context.Context, python, script string, shape []int64, rounds int) (row, string, error) {
	dir, err := os.MkdirTemp("", "trtship-bench-")
	if err != nil {
		return row{}, "", err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary folder
	ref, got := filepath.Join(dir, "ref.npy"), filepath.Join(dir, "got.npy")
	if err := fill(shape, ref, got); err != nil {
		return row{}, "", err
	}
	self, err := os.Executable()
	if err != nil {
		return row{}, "", err
	}
	r := row{Shape: shape}
	var mine, peer side
	for range rounds {
		if mine, err = ask(ctx, proc.Command{Path: self, Args: []string{"-one", ref + "," + got}}); err != nil {
			return row{}, "", err
		}
		if peer, err = ask(ctx, proc.Command{Path: python, Args: []string{"-I", script, ref, got, fmt.Sprint(atol), fmt.Sprint(rtol)}}); err != nil {
			return row{}, "", err
		}
		r.Ours, r.Peer = append(r.Ours, mine.Seconds), append(r.Peer, peer.Seconds)
		r.OursAbove, r.PeerAbove = max(r.OursAbove, mine.Above), max(r.PeerAbove, peer.Above)
	}
	r.Ratio = median(r.Ours) / median(r.Peer)
	r.Differences = differences(mine.Metrics, peer.Metrics)
	return r, peer.NumPy, nil
}

func ask(ctx context.Context, c proc.Command) (side, error) {
	text, err := proc.Output(ctx, c)
	if err != nil {
		return side{}, err
	}
	var s side
	return s, json.Unmarshal([]byte(text), &s)
}

// fill writes two tensors that differ as an export differs from its model.
func fill(shape []int64, ref, got string) error {
	rng := rand.New(rand.NewPCG(1, 2))
	a, b := tensor.Zeros(tensor.Float32, shape...), tensor.Zeros(tensor.Float32, shape...)
	for i := range int(a.Elements()) {
		x := rng.NormFloat64()
		a.SetFloat64(i, x)
		b.SetFloat64(i, x+1e-4*rng.NormFloat64())
	}
	for path, t := range map[string]tensor.Tensor{ref: a, got: b} {
		f, err := os.Create(path)
		if err != nil {
			return err
		}
		if err := errors.Join(tensor.WriteNPY(f, t), f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// ours compares in this process, so that its memory can be told apart.
func ours(refPath, gotPath string) error {
	ref, err := tensor.ReadNPYFile(refPath)
	if err != nil {
		return err
	}
	got, err := tensor.ReadNPYFile(gotPath)
	if err != nil {
		return err
	}
	debug.FreeOSMemory() // what reading left over
	before, err := status("VmRSS")
	if err != nil {
		return err
	}
	_ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) // resets the peak; without it the peak of reading counts too
	start := time.Now()
	c, err := tensor.Compare(tensor.Pair(ref, got), tensor.Rule{Atol: atol, Rtol: rtol})
	if err != nil {
		return err
	}
	s := side{Seconds: time.Since(start).Seconds(), Metrics: map[string]any{"breaches": c.Breaches, "nan": c.NaN, "inf": c.Inf}}
	for name, v := range c.Metrics() {
		s.Metrics[name] = v
	}
	peak, err := status("VmHWM")
	if err != nil {
		return err
	}
	s.Above = peak - before
	runtime.KeepAlive(ref)
	runtime.KeepAlive(got)
	return json.NewEncoder(os.Stdout).Encode(s)
}

func status(field string) (int64, error) {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, field+":"); ok {
			kb, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			return kb << 10, err
		}
	}
	return 0, fmt.Errorf("/proc/self/status has no %s", field)
}

// differences names the metrics that the two programs do not agree on. The
// peer's quantiles are of differences rounded to float32, its sums of another
// order; KL is a small difference of large logarithms.
func differences(ours, peer map[string]any) []string {
	var out []string
	for name, want := range peer {
		w, ok1 := want.(float64)
		g, ok2 := ours[name].(float64)
		if !ok1 || !ok2 {
			if a, b := fmt.Sprint(ours[name]), fmt.Sprint(want); a != b {
				out = append(out, fmt.Sprintf("%s: %s, NumPy says %s", name, a, b))
			}
			continue
		}
		limit := 1e-6 * math.Abs(w)
		if name == "kl" {
			limit = 1e-12 + 1e-3*math.Abs(w)
		}
		if !(math.Abs(g-w) <= limit) {
			out = append(out, fmt.Sprintf("%s: %v, NumPy says %v", name, g, w))
		}
	}
	slices.Sort(out)
	return out
}

func median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	return s[len(s)/2]
}
