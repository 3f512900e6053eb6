package main

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/trtship/trtship/internal/measure"
	"github.com/trtship/trtship/internal/proc"
	"github.com/trtship/trtship/internal/triton/kserve"
)

// outcome is the file of -json.
type outcome struct {
	What   string `json:"what"`
	Cores  int    `json:"cores"`
	Server string `json:"server,omitempty"`
	Aim    string `json:"aim"`
	Rows   []row  `json:"rows"`
}

// row is one load on one model: ours over perf_analyzer's, each the median of
// the rounds.
type row struct {
	Model       string  `json:"model"`
	Protocol    string  `json:"protocol"`
	Concurrency int     `json:"concurrency"`
	Rounds      int     `json:"rounds"`
	Throughput  float64 `json:"throughput_ratio"`
	P50         float64 `json:"p50_ratio"`
	P99         float64 `json:"p99_ratio"`
	CPU         float64 `json:"client_cpu_ratio"`
	Ours        figures `json:"ours"`
	Perf        figures `json:"perf_analyzer"`
}

// bench is a comparison under way.
type bench struct {
	s     settings
	self  string
	perf  []string
	dir   string
	began time.Time
	at    address // what is under load now
}

func compare(ctx context.Context, s settings, out io.Writer) error {
	b := &bench{s: s, perf: strings.Fields(s.perf), began: time.Now()}
	if len(b.perf) == 0 {
		return errors.New("-perf names no perf_analyzer")
	}
	var err error
	if b.perf[0], err = proc.Look(b.perf[0], os.Getenv("PATH")); err != nil {
		return err
	}
	if b.self, err = os.Executable(); err != nil {
		return err
	}
	if b.dir, err = os.MkdirTemp("", "loadgen-*"); err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(b.dir) }()
	o := outcome{
		What:  fmt.Sprintf("the load generator against perf_analyzer on one server, interleaved, %g s each; ratios are ours over perf_analyzer's", s.seconds),
		Cores: runtime.NumCPU(), Aim: "throughput at least 0.95 everywhere, p50 at most 1.05, client CPU below 1",
	}
	targets := strings.Split(s.on, ",")
	if s.at.http != "" {
		targets = []string{s.at.model}
	}
	for _, name := range targets {
		rows, server, err := b.target(ctx, name, out)
		o.Rows = append(o.Rows, rows...)
		if server != "" {
			o.Server = server
		}
		if err := errors.Join(err, write(s.json, o)); err != nil {
			return err
		}
	}
	fmt.Fprintln(out, "us: processor time of the client for each request, start-up included, by rusage")
	return nil
}

func write(file string, o outcome) error {
	if file == "" {
		return nil
	}
	b, err := json.MarshalIndent(o, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(b, '\n'), 0o644)
}

// target puts one model under load.
func (b *bench) target(ctx context.Context, name string, out io.Writer) ([]row, string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	at, server, stop, err := b.begin(ctx, name)
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w", name, err)
	}
	defer stop()
	b.at = at
	fmt.Fprintf(out, "%s (%s)\n", at.model, server)
	rows, err := b.rounds(ctx)
	if err != nil {
		return nil, server, err
	}
	fmt.Fprintf(out, "%-8s %4s  %12s %12s %6s  %9s %9s %6s  %9s %9s  %9s %9s %6s\n", "protocol", "load", "ours req/s", "perf req/s", "ratio", "ours p50", "perf p50", "ratio", "ours p99", "perf p99", "ours us", "perf us", "ratio")
	for _, r := range rows {
		fmt.Fprintf(out, "%-8s %4d  %12.0f %12.0f %6.2f  %9.4f %9.4f %6.2f  %9.4f %9.4f  %9.1f %9.1f %6.2f\n", r.Protocol, r.Concurrency,
			r.Ours.Rate, r.Perf.Rate, r.Throughput, r.Ours.P50, r.Perf.P50, r.P50, r.Ours.P99, r.Perf.P99, r.Ours.CPU, r.Perf.CPU, r.CPU)
	}
	fmt.Fprintf(out, "median of %d interleaved rounds\n\n", rows[0].Rounds)
	return rows, strings.TrimPrefix(server, inMemory), nil
}

// rounds measures every load in turn, again and again, so that what changes
// with time meets all of them, and the order of the clients turns.
func (b *bench) rounds(ctx context.Context) ([]row, error) {
	type key struct {
		protocol string
		n        int
	}
	var keys []key
	for _, p := range b.s.protocols {
		for _, n := range b.s.loads {
			keys = append(keys, key{p, n})
		}
	}
	all := make([][2][]figures, len(keys))
	done := 0
	for ; done < b.s.rounds; done++ {
		if done > 0 && b.s.budget > 0 && time.Since(b.began) > b.s.budget {
			break
		}
		for i, k := range keys {
			clients := []func(context.Context, string, int) (figures, error){b.ours, b.theirs}
			for turn := range 2 {
				who := (turn + done) % 2
				f, err := clients[who](ctx, k.protocol, k.n)
				if err != nil {
					return nil, fmt.Errorf("%s with %d requests at a time: %w", k.protocol, k.n, err)
				}
				all[i][who] = append(all[i][who], f)
			}
		}
	}
	rows := make([]row, len(keys))
	for i, k := range keys {
		ours, theirs := median(all[i][0]), median(all[i][1])
		rows[i] = row{
			Model: b.at.model, Protocol: k.protocol, Concurrency: k.n, Rounds: done, Ours: ours, Perf: theirs,
			Throughput: ours.Rate / theirs.Rate, P50: ours.P50 / theirs.P50, P99: ours.P99 / theirs.P99, CPU: ours.CPU / theirs.CPU,
		}
	}
	return rows, nil
}

func median(fs []figures) figures {
	of := func(get func(figures) float64) float64 {
		var x []float64
		for _, f := range fs {
			x = append(x, get(f))
		}
		slices.Sort(x)
		return measure.Median(x)
	}
	return figures{
		of(func(f figures) float64 { return f.Rate }), of(func(f figures) float64 { return f.P50 }),
		of(func(f figures) float64 { return f.P99 }), of(func(f figures) float64 { return f.CPU }),
	}
}

// timed runs a child and returns its processor time over the requests that the
// server counted meanwhile.
func (b *bench) timed(ctx context.Context, c proc.Command) (perRequest float64, output string, err error) {
	before, err := b.count(ctx)
	if err != nil {
		return 0, "", err
	}
	start := childTime()
	c.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + b.dir}
	output, err = proc.Output(ctx, c)
	if err != nil {
		return 0, output, err
	}
	used := childTime() - start
	after, err := b.count(ctx)
	if err != nil {
		return 0, output, err
	}
	if after == before {
		return 0, output, errors.New("the server counted no request")
	}
	return float64(used.Microseconds()) / float64(after-before), output, nil
}

func childTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_CHILDREN, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// count is the number of requests that the server has answered.
func (b *bench) count(ctx context.Context) (uint64, error) {
	c, err := kserve.Open(kserve.Options{Protocol: kserve.HTTP, Address: b.at.http})
	if err != nil {
		return 0, err
	}
	defer func() { _ = c.Close() }()
	stats, err := c.Statistics(ctx, b.at.model, "")
	if err != nil {
		return 0, err
	}
	n := uint64(0)
	for _, m := range stats {
		n += m.GetInferenceStats().GetSuccess().GetCount()
	}
	return n, nil
}

func (b *bench) ours(ctx context.Context, protocol string, n int) (figures, error) {
	var f figures
	cpu, text, err := b.timed(ctx, proc.Command{Path: b.self, Args: []string{
		"-client", "-http", b.at.http, "-grpc", b.at.grpc, "-model", b.at.model, "-protocol", protocol, "-concurrency", strconv.Itoa(n),
		"-seconds", strconv.FormatFloat(b.s.seconds, 'g', -1, 64),
	}})
	if err == nil {
		err = json.Unmarshal([]byte(text), &f)
	}
	f.CPU = cpu
	return f, err
}

func (b *bench) theirs(ctx context.Context, protocol string, n int) (figures, error) {
	file := filepath.Join(b.dir, "perf.csv")
	_ = os.Remove(file)
	cpu, text, err := b.timed(ctx, proc.Command{Path: b.perf[0], Args: append(slices.Clone(b.perf[1:]),
		"-m", b.at.model, "-i", protocol, "-u", b.at.of(protocol), "--concurrency-range", strconv.Itoa(n),
		"--measurement-interval", strconv.FormatInt(b.s.window().Milliseconds(), 10), "--stability-percentage", strconv.Itoa(b.s.spread), "-f", file)})
	if err != nil {
		return figures{}, fmt.Errorf("perf_analyzer: %w\n%s", err, text)
	}
	f, err := readCSV(file)
	f.CPU = cpu
	return f, err
}

// readCSV reads perf_analyzer's report: one row, times in microseconds.
func readCSV(file string) (figures, error) {
	r, err := os.Open(file)
	if err != nil {
		return figures{}, err
	}
	defer func() { _ = r.Close() }()
	rows, err := csv.NewReader(r).ReadAll()
	if err != nil {
		return figures{}, err
	}
	if len(rows) < 2 {
		return figures{}, errors.New("perf_analyzer reported no row")
	}
	get := func(column string) float64 {
		at := slices.Index(rows[0], column)
		if at < 0 {
			return 0
		}
		v, _ := strconv.ParseFloat(rows[1][at], 64)
		return v
	}
	return figures{Rate: get("Inferences/Second"), P50: get("p50 latency") / 1000, P99: get("p99 latency") / 1000}, nil
}
