// Command loadgen sets the load generator of trtship against perf_analyzer, on
// one server, interleaved: throughput, latency and the processor time of each
// client.
//
//	go run ./bench/loadgen -perf "perf_analyzer"                 against the responder below, in memory
//	go run ./bench/loadgen -perf "..." -http H:P -grpc H:P -model M   against a Triton server
//
// The responder answers KServe v2 over both protocols from memory, in a process
// of its own, so that the server is not the limit.
package main

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/trtship/trtship/internal/measure"
	"github.com/trtship/trtship/internal/proc"
	"github.com/trtship/trtship/internal/triton/kserve"
	"github.com/trtship/trtship/internal/triton/load"
)

type settings struct {
	perf, http, grpc, model string
	rounds                  int
	loads                   []int
	window                  time.Duration
	spread                  int
	client                  bool
	protocol                string
	concurrency             int
	responder               bool
}

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "loadgen:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	var s settings
	var loads string
	f := flag.NewFlagSet("loadgen", flag.ContinueOnError)
	f.StringVar(&s.perf, "perf", "", "perf_analyzer and what goes before its name, space-separated")
	f.StringVar(&s.http, "http", "", "host:port of a server's HTTP; empty starts the responder")
	f.StringVar(&s.grpc, "grpc", "", "host:port of its gRPC")
	f.StringVar(&s.model, "model", "memory", "model")
	f.IntVar(&s.rounds, "rounds", 5, "rounds; the median counts")
	f.StringVar(&loads, "loads", "1,4,16,64", "requests at a time")
	f.DurationVar(&s.window, "window", time.Second, "length of a window")
	f.IntVar(&s.spread, "stability", 10, "largest spread of perf_analyzer's windows in percent; raise it on a machine that is not quiet")
	f.BoolVar(&s.client, "client", false, "be the client of one measurement (internal)")
	f.StringVar(&s.protocol, "protocol", "", "of the client")
	f.IntVar(&s.concurrency, "concurrency", 1, "of the client")
	f.BoolVar(&s.responder, "responder", false, "be the responder (internal)")
	if err := f.Parse(args); err != nil {
		return err
	}
	for _, l := range strings.Split(loads, ",") {
		n, err := strconv.Atoi(l)
		if err != nil {
			return err
		}
		s.loads = append(s.loads, n)
	}
	ctx := context.Background()
	switch {
	case s.responder:
		return respond(ctx, out)
	case s.client:
		return client(ctx, s, out)
	}
	return compare(ctx, s, out)
}

// figures are what a client says of itself, with its processor time.
type figures struct {
	Rate float64 `json:"requests_per_second"`
	P50  float64 `json:"p50_ms"`
	P99  float64 `json:"p99_ms"`
	CPU  float64 `json:"cpu_us_per_request"`
}

// client is one measurement of ours, in a process of its own.
func client(ctx context.Context, s settings, out io.Writer) error {
	address := s.http
	if s.protocol == string(kserve.GRPC) {
		address = s.grpc
	}
	control, err := kserve.Open(kserve.Options{Protocol: kserve.Protocol(s.protocol), Address: address})
	if err != nil {
		return err
	}
	cfg, err := control.ModelConfig(ctx, s.model, "")
	if err != nil {
		return err
	}
	requests, err := load.Generated(cfg, 1, 1, nil, 1)
	if err != nil {
		return err
	}
	r, err := load.Run(ctx, load.Options{
		Protocol: kserve.Protocol(s.protocol), Address: address, Requests: requests, Concurrency: s.concurrency, Window: s.window,
	})
	if err != nil {
		return err
	}
	if r.Errors > 0 {
		return fmt.Errorf("%d errors: %v", r.Errors, r.ErrorTexts)
	}
	return json.NewEncoder(out).Encode(figures{Rate: float64(r.Rate), P50: float64(r.Latency.P50), P99: float64(r.Latency.P99)})
}

// bench is a comparison under way.
type bench struct {
	s    settings
	self string
	perf []string
	dir  string
}

func compare(ctx context.Context, s settings, out io.Writer) error {
	b := &bench{s: s, perf: strings.Fields(s.perf)}
	if len(b.perf) == 0 {
		return errors.New("-perf names no perf_analyzer")
	}
	var err error
	if b.self, err = os.Executable(); err != nil {
		return err
	}
	if b.dir, err = os.MkdirTemp("", "loadgen-*"); err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(b.dir) }()
	where := "a Triton server"
	if b.s.http == "" {
		where = "the responder in memory"
		stop, err := b.startResponder(ctx)
		if err != nil {
			return err
		}
		defer stop()
	}
	fmt.Fprintf(out, "trtship against perf_analyzer on %s, model %s: median of %d interleaved rounds\n\n", where, s.model, s.rounds)
	fmt.Fprintf(out, "%-8s %4s  %12s %12s %6s  %9s %9s %6s  %9s %9s  %9s %9s\n", "protocol", "load", "ours req/s", "perf req/s", "ratio", "ours p50", "perf p50", "ratio", "ours p99", "perf p99", "ours us", "perf us")
	for _, p := range []string{"http", "grpc"} {
		for _, n := range s.loads {
			ours, theirs, err := b.pair(ctx, p, n)
			if err != nil {
				return err
			}
			fmt.Fprintf(out, "%-8s %4d  %12.0f %12.0f %6.2f  %9.4f %9.4f %6.2f  %9.4f %9.4f  %9.1f %9.1f\n", p, n,
				ours.Rate, theirs.Rate, ours.Rate/theirs.Rate, ours.P50, theirs.P50, ours.P50/theirs.P50, ours.P99, theirs.P99, ours.CPU, theirs.CPU)
		}
	}
	fmt.Fprintln(out, "\nus: processor time of the client for each request, start-up included, by rusage")
	return nil
}

// pair measures both clients in turn.
func (b *bench) pair(ctx context.Context, protocol string, n int) (ours, theirs figures, err error) {
	var all [2][]figures
	for round := range b.s.rounds {
		order := []int{0, 1}
		if round%2 == 1 {
			order = []int{1, 0}
		}
		for _, who := range order {
			measureOne := b.ours
			if who == 1 {
				measureOne = b.theirs
			}
			f, err := measureOne(ctx, protocol, n)
			if err != nil {
				return ours, theirs, err
			}
			all[who] = append(all[who], f)
		}
	}
	return median(all[0]), median(all[1]), nil
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
	c, err := kserve.Open(kserve.Options{Protocol: kserve.HTTP, Address: b.s.http})
	if err != nil {
		return 0, err
	}
	defer func() { _ = c.Close() }()
	stats, err := c.Statistics(ctx, b.s.model, "")
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
		"-client", "-http", b.s.http, "-grpc", b.s.grpc, "-model", b.s.model, "-protocol", protocol, "-concurrency", strconv.Itoa(n), "-window", b.s.window.String(),
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
	address := b.s.http
	if protocol == "grpc" {
		address = b.s.grpc
	}
	path, err := filepath.Abs(b.perf[0])
	if err != nil {
		return figures{}, err
	}
	cpu, text, err := b.timed(ctx, proc.Command{Path: path, Args: append(slices.Clone(b.perf[1:]),
		"-m", b.s.model, "-i", protocol, "-u", address, "--concurrency-range", strconv.Itoa(n),
		"--measurement-interval", strconv.FormatInt(b.s.window.Milliseconds(), 10), "--stability-percentage", strconv.Itoa(b.s.spread), "-f", file)})
	if err != nil {
		return figures{}, fmt.Errorf("%w\n%s", err, text)
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
	if err != nil || len(rows) < 2 {
		return figures{}, fmt.Errorf("%s: %d rows, %w", filepath.Base(file), len(rows), err)
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

// startResponder starts the responder as a child and learns its addresses.
func (b *bench) startResponder(ctx context.Context) (stop func(), err error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() { _ = write.Close() }()
	p, err := proc.Start(ctx, proc.Command{Path: b.self, Args: []string{"-responder"}, Output: write})
	if err != nil {
		return nil, err
	}
	if _, err := fmt.Fscanln(read, &b.s.http, &b.s.grpc); err != nil {
		p.Stop()
		return nil, fmt.Errorf("start the responder: %w", err)
	}
	return p.Stop, nil
}
