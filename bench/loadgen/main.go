// Command loadgen sets the load generator of trtship against perf_analyzer, on
// one server, interleaved: throughput, latency and the processor time of each
// client.
//
//	go run ./bench/loadgen -perf perf_analyzer                               against the responder below, in memory
//	go run ./bench/loadgen -perf perf_analyzer -on memory,tiny,resnet50      and models of a Triton server that it starts
//	go run ./bench/loadgen -perf perf_analyzer -on NAME=REPOSITORY           and a model of a repository
//	go run ./bench/loadgen -perf perf_analyzer -http H:P -grpc H:P -model M  a server that runs
//
// The responder answers KServe v2 over both protocols from memory, in a process
// of its own, so that the server is not the limit.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/trtship/trtship/internal/triton/kserve"
	"github.com/trtship/trtship/internal/triton/load"
)

// settings are the options of the command.
type settings struct {
	perf, on, json string
	at             address
	rounds         int
	loads          []int
	protocols      []string
	seconds        float64 // of one measurement, three windows
	budget         time.Duration
	spread         int
	client         bool
	protocol       string
	concurrency    int
	responder      bool
}

// windows is the number of windows of one measurement, of both clients.
const windows = 3

func (s settings) window() time.Duration {
	return time.Duration(s.seconds / windows * float64(time.Second))
}

// address is a model of a server that runs.
type address struct{ http, grpc, model string }

func (a address) of(protocol string) string {
	if protocol == string(kserve.GRPC) {
		return a.grpc
	}
	return a.http
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "loadgen:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	s, err := parse(args)
	if err != nil {
		return err
	}
	switch {
	case s.responder:
		return respond(ctx, out)
	case s.client:
		return client(ctx, s, out)
	}
	return compare(ctx, s, out)
}

func parse(args []string) (settings, error) {
	var s settings
	var loads, protocols string
	f := flag.NewFlagSet("loadgen", flag.ContinueOnError)
	f.StringVar(&s.perf, "perf", "", "perf_analyzer and what goes before its name, space-separated")
	f.StringVar(&s.on, "on", "memory", "what is put under load, with commas: memory, tiny, resnet50, NAME=REPOSITORY (a pattern; the newest match counts)")
	f.StringVar(&s.at.http, "http", "", "host:port of the HTTP of a server that runs, instead of -on")
	f.StringVar(&s.at.grpc, "grpc", "", "host:port of its gRPC")
	f.StringVar(&s.at.model, "model", "memory", "its model")
	f.StringVar(&s.json, "json", "", "write the ratios to this file")
	f.IntVar(&s.rounds, "rounds", 5, "rounds; the median counts")
	f.StringVar(&loads, "loads", "1,4,16,64", "requests at a time")
	f.StringVar(&protocols, "protocols", "http,grpc", "protocols")
	f.Float64Var(&s.seconds, "seconds", 3, "length of one measurement")
	f.DurationVar(&s.budget, "budget", 0, "begin no further round after this time; 0 is no limit")
	f.IntVar(&s.spread, "stability", 999, "largest spread of perf_analyzer's windows in percent; what is wider makes it measure up to ten windows and fail")
	f.BoolVar(&s.client, "client", false, "be the client of one measurement (internal)")
	f.StringVar(&s.protocol, "protocol", "", "of the client")
	f.IntVar(&s.concurrency, "concurrency", 1, "of the client")
	f.BoolVar(&s.responder, "responder", false, "be the responder (internal)")
	if err := f.Parse(args); err != nil {
		return s, err
	}
	for l := range strings.SplitSeq(loads, ",") {
		n, err := strconv.Atoi(l)
		if err != nil || n < 1 {
			return s, fmt.Errorf("-loads %q: %q is no number of requests", loads, l)
		}
		s.loads = append(s.loads, n)
	}
	s.protocols = strings.Split(protocols, ",")
	for _, p := range s.protocols {
		if p != string(kserve.HTTP) && p != string(kserve.GRPC) {
			return s, fmt.Errorf("-protocols %q: %q is neither http nor grpc", protocols, p)
		}
	}
	if s.seconds <= 0 || s.rounds < 1 {
		return s, errors.New("-seconds and -rounds must be above 0")
	}
	return s, nil
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
	control, err := kserve.Open(kserve.Options{Protocol: kserve.Protocol(s.protocol), Address: s.at.of(s.protocol)})
	if err != nil {
		return err
	}
	cfg, err := control.ModelConfig(ctx, s.at.model, "")
	if err != nil {
		return err
	}
	requests, err := load.Generated(cfg, 1, 1, nil, 1)
	if err != nil {
		return err
	}
	r, err := load.Run(ctx, load.Options{
		Protocol: kserve.Protocol(s.protocol), Address: s.at.of(s.protocol), Requests: requests, Concurrency: s.concurrency,
		Window: s.window(), Agree: windows, MaxWindows: windows,
	})
	if err != nil {
		return err
	}
	if r.Errors > 0 {
		return fmt.Errorf("%d errors: %v", r.Errors, r.ErrorTexts)
	}
	return json.NewEncoder(out).Encode(figures{Rate: float64(r.Rate), P50: float64(r.Latency.P50), P99: float64(r.Latency.P99)})
}
