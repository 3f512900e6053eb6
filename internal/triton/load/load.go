// Package load puts a model of a KServe v2 server under load and measures it:
// a fixed number of requests at a time, or a rate of arrivals; in windows that
// must agree before a result counts.
package load

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sort"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/measure"
	"github.com/trtship/trtship/internal/triton/kserve"
	"github.com/trtship/trtship/report"
)

// Distribution says when the requests of a rate arrive.
type Distribution string

// The distributions.
const (
	Constant Distribution = "constant"
	Poisson  Distribution = "poisson"
)

// Options says what to send and for how long.
type Options struct {
	Protocol kserve.Protocol
	Address  string
	Metrics  string           // host:port of the metrics page; empty: not read
	Control  kserve.Client    // for the server's statistics; nil: none
	Requests []kserve.Request // sent in turn; encoded once
	Batch    int              // rows of each request
	// Concurrency is the number of requests at a time (closed loop). With a Rate
	// it bounds how many may be under way; 0 is 256 then.
	Concurrency int
	// Rate is the number of requests a second that arrive whatever the server
	// does (open loop); 0 is closed loop.
	Rate         float64
	Distribution Distribution
	Seed         int64
	Window       time.Duration // length of one window; 0 is 1 s
	Agree        int           // windows in a row that must agree; 0 is 3
	Tolerance    float64       // largest spread of throughput and median among them; 0 is 0.1
	MaxWindows   int           // after which it ends unstable; 0 is 10
	Timeout      time.Duration // of one request; 0 is 60 s
	Progress     func(done, total int64, label string)
}

func (o *Options) defaults() error {
	if len(o.Requests) == 0 {
		return failure.New(failure.Benchmark, "nothing to send")
	}
	if o.Rate > 0 && o.Concurrency == 0 {
		o.Concurrency = 256
	}
	if o.Concurrency < 1 || o.Rate < 0 {
		return failure.New(failure.Usage, "concurrency %d and rate %g: one must be above 0", o.Concurrency, o.Rate)
	}
	switch o.Distribution {
	case "":
		o.Distribution = Constant
	case Constant, Poisson:
	default:
		return failure.New(failure.Usage, "distribution %q is not constant or poisson", o.Distribution)
	}
	setDefault(&o.Window, time.Second)
	setDefault(&o.Agree, 3)
	setDefault(&o.Tolerance, 0.1)
	setDefault(&o.MaxWindows, 10)
	setDefault(&o.Timeout, time.Minute)
	setDefault(&o.Batch, 1)
	return nil
}

func setDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// Window is one slice of the time.
type Window struct {
	Requests   int           `json:"requests"`
	Errors     int           `json:"errors"`
	Throughput report.Number `json:"requests_per_second"`
	P50        report.Number `json:"p50_ms"`
}

// Split is where a request's time went in the server, mean over requests, in
// milliseconds.
type Split struct {
	Requests      uint64        `json:"requests"`
	Executions    uint64        `json:"executions"`
	Rows          uint64        `json:"rows"`
	Queue         report.Number `json:"queue_ms"`
	ComputeInput  report.Number `json:"compute_input_ms"`
	ComputeInfer  report.Number `json:"compute_infer_ms"`
	ComputeOutput report.Number `json:"compute_output_ms"`
	Total         report.Number `json:"total_ms"`
	CacheHits     uint64        `json:"cache_hits,omitempty"`
}

// Result is what was measured in the windows that agree, or in the last ones if
// none did.
type Result struct {
	Mode       string         `json:"mode"`
	Requests   int            `json:"requests"`
	Errors     int            `json:"errors"`
	ErrorTexts map[string]int `json:"error_texts,omitempty"`
	Seconds    float64        `json:"seconds"`
	Throughput report.Number  `json:"rows_per_second"`
	Rate       report.Number  `json:"requests_per_second"`
	Latency    report.Stats   `json:"latency_ms"`
	Samples    []float64      `json:"-"` // milliseconds, in order of completion
	Windows    []Window       `json:"windows"`
	Stable     bool           `json:"stable"`
	Server     *Split         `json:"server,omitempty"`
	// Overhead is the client's mean latency less the server's own mean.
	Overhead *report.Number `json:"client_overhead_ms,omitempty"`
	// CPU is our own processor time for each request, in microseconds.
	CPU report.Number `json:"client_cpu_us"`
	// Late counts arrivals that had to wait for a free connection (open loop).
	Late    int                `json:"late,omitempty"`
	Metrics map[string]float64 `json:"server_metrics,omitempty"` // change over the measurement, or the value of a gauge
	Notes   []string           `json:"notes,omitempty"`
}

// sample is one finished request.
type sample struct {
	end     time.Duration // since the start
	latency time.Duration
}

// recorder takes the samples of one worker.
type recorder struct {
	mu      sync.Mutex
	samples []sample
	errors  []time.Duration
	texts   map[string]int
}

func (r *recorder) ok(end, latency time.Duration) {
	r.mu.Lock()
	r.samples = append(r.samples, sample{end, latency})
	r.mu.Unlock()
}

func (r *recorder) fail(end time.Duration, err error) {
	r.mu.Lock()
	r.errors = append(r.errors, end)
	if r.texts == nil {
		r.texts = map[string]int{}
	}
	text := err.Error()
	if len(r.texts) >= 20 && r.texts[text] == 0 {
		text = "other errors"
	}
	r.texts[text]++
	r.mu.Unlock()
}

// Run measures. A server that refuses every request is an error with its words;
// a result that never settles is marked, not refused.
func Run(ctx context.Context, o Options) (Result, error) {
	if err := o.defaults(); err != nil {
		return Result{}, err
	}
	targets, err := encode(o)
	if err != nil {
		return Result{}, err
	}
	if o.blocking() { // a processor of Go's for each thread, or they would wait for each other
		before := runtime.GOMAXPROCS(0)
		runtime.GOMAXPROCS(before + o.Concurrency)
		defer runtime.GOMAXPROCS(before)
	}
	work, cancel := context.WithCancel(ctx)
	defer cancel()
	g := &generator{o: o, targets: targets, start: time.Now()}
	if err := g.begin(work); err != nil {
		return Result{}, err
	}
	res, err := g.watch(ctx)
	cancel()
	g.group.Wait()
	return res, err
}

// generator runs the workers.
type generator struct {
	o         Options
	targets   []target
	start     time.Time
	recorders []*recorder
	group     sync.WaitGroup
	late      atomic.Int64
}

// begin opens the connections and starts the workers.
func (g *generator) begin(ctx context.Context) error {
	conns := make([]conn, g.o.Concurrency)
	for i := range conns {
		c, err := dial(ctx, g.o)
		if err != nil {
			for _, open := range conns[:i] {
				open.close()
			}
			return failure.New(failure.Triton, "connect to %s: %w", g.o.Address, err)
		}
		conns[i] = c
	}
	g.start = time.Now()
	var arrivals chan time.Duration
	if g.o.Rate > 0 {
		arrivals = make(chan time.Duration, 1<<16)
		g.group.Go(func() { g.arrive(ctx, arrivals) })
	}
	for i, c := range conns {
		r := &recorder{}
		g.recorders = append(g.recorders, r)
		g.group.Go(func() {
			w := &worker{g: g, conn: c, next: i, recorder: r}
			defer w.end()
			w.run(ctx, arrivals)
		})
	}
	return nil
}

// worker sends one request after the other over its own connection.
type worker struct {
	g        *generator
	conn     conn
	next     int
	recorder *recorder
}

func (w *worker) end() {
	if w.conn != nil {
		w.conn.close()
	}
}

func (w *worker) run(ctx context.Context, arrivals <-chan time.Duration) {
	for ctx.Err() == nil {
		due := time.Since(w.g.start)
		if arrivals != nil {
			select {
			case <-ctx.Done():
				return
			case due = <-arrivals:
			}
		}
		err := w.send()
		end := time.Since(w.g.start)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			w.recorder.ok(end, end-due)
		default:
			w.recorder.fail(end, err)
			if !errors.As(err, new(*refused)) {
				w.reopen(ctx)
			}
		}
	}
}

func (w *worker) send() error {
	if w.conn == nil {
		return errNoConnection
	}
	t := w.g.targets[w.next%len(w.g.targets)]
	w.next++
	return w.conn.roundTrip(t, w.g.o.Timeout)
}

var errNoConnection = errors.New("no connection")

// reopen replaces a connection that broke. A server that is away is asked
// again after a moment, so that errors are counted and not a busy loop.
func (w *worker) reopen(ctx context.Context) {
	if w.conn != nil {
		w.conn.close()
		w.conn = nil
	}
	select {
	case <-ctx.Done():
		return
	case <-time.After(20 * time.Millisecond):
	}
	if c, err := dial(ctx, w.g.o); err == nil {
		w.conn = c
	}
}

// reading is what was known at the edge of the windows that are judged.
type reading struct {
	at      time.Duration
	split   counters
	cpu     time.Duration
	metrics map[string]float64
}

func (g *generator) read(ctx context.Context) reading {
	r := reading{at: time.Since(g.start), cpu: cpuTime()}
	if g.o.Control != nil {
		r.split = readCounters(ctx, g.o.Control, g.o.Requests[0].Model, g.o.Requests[0].Version)
	}
	if g.o.Metrics != "" {
		r.metrics = readMetrics(ctx, g.o.Metrics, g.o.Requests[0].Model)
	}
	return r
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// watch waits window by window until enough agree.
func (g *generator) watch(ctx context.Context) (Result, error) {
	edges := []reading{g.read(ctx)}
	var windows []Window
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return Result{}, ctx.Err()
		case <-time.After(time.Until(g.start.Add(edges[len(edges)-1].at + g.o.Window))):
		}
		edges = append(edges, g.read(ctx))
		w := g.window(edges[n-1].at, edges[n].at)
		windows = append(windows, w)
		if g.o.Progress != nil {
			g.o.Progress(int64(n), int64(g.o.MaxWindows), fmt.Sprintf("%.0f requests/s, p50 %.3f ms", float64(w.Throughput), float64(w.P50)))
		}
		if err := g.hopeless(windows); err != nil {
			return Result{}, err
		}
		stable := agree(windows, g.o.Agree, g.o.Tolerance)
		if stable || n >= g.o.MaxWindows {
			from := max(0, n-g.o.Agree)
			return g.result(edges[from], edges[n], windows, stable)
		}
	}
}

// hopeless is an error if nothing but errors came back so far.
func (g *generator) hopeless(windows []Window) error {
	for _, w := range windows {
		if w.Requests > 0 || w.Errors == 0 {
			return nil
		}
	}
	text, most := "", 0
	for t, n := range g.texts() {
		if n > most {
			text, most = t, n
		}
	}
	return failure.New(failure.Triton, "every request fails: %s", text)
}

func (g *generator) texts() map[string]int {
	out := map[string]int{}
	for _, r := range g.recorders {
		r.mu.Lock()
		for t, n := range r.texts {
			out[t] += n
		}
		r.mu.Unlock()
	}
	return out
}

// between returns what finished within a time, by completion.
func (g *generator) between(from, to time.Duration) (samples []sample, failed int) {
	for _, r := range g.recorders {
		r.mu.Lock()
		i := sort.Search(len(r.samples), func(i int) bool { return r.samples[i].end >= from })
		for ; i < len(r.samples) && r.samples[i].end < to; i++ {
			samples = append(samples, r.samples[i])
		}
		for _, e := range r.errors {
			if e >= from && e < to {
				failed++
			}
		}
		r.mu.Unlock()
	}
	return samples, failed
}

func (g *generator) window(from, to time.Duration) Window {
	samples, failed := g.between(from, to)
	ms := make([]float64, len(samples))
	for i, s := range samples {
		ms[i] = milliseconds(s.latency)
	}
	return Window{
		Requests: len(samples), Errors: failed,
		Throughput: report.Number(float64(len(samples)) / (to - from).Seconds()), P50: report.Number(measure.Median(ms)),
	}
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// agree reports whether the last n windows lie within a tolerance of each other
// in throughput and in median.
func agree(windows []Window, n int, tolerance float64) bool {
	if len(windows) < n {
		return false
	}
	last := windows[len(windows)-n:]
	spread := func(value func(Window) float64) bool {
		lo, hi := value(last[0]), value(last[0])
		for _, w := range last {
			if w.Requests == 0 {
				return false
			}
			lo, hi = min(lo, value(w)), max(hi, value(w))
		}
		return hi <= lo*(1+tolerance)
	}
	return spread(func(w Window) float64 { return float64(w.Throughput) }) && spread(func(w Window) float64 { return float64(w.P50) })
}

func (g *generator) result(from, to reading, windows []Window, stable bool) (Result, error) {
	samples, failed := g.between(from.at, to.at)
	if len(samples) == 0 {
		return Result{}, failure.New(failure.Benchmark, "no request was answered in %s", (to.at - from.at).Round(time.Millisecond))
	}
	sort.Slice(samples, func(i, j int) bool { return samples[i].end < samples[j].end })
	r := Result{
		Mode: g.o.mode(), Requests: len(samples), Errors: failed, Seconds: (to.at - from.at).Seconds(), Windows: windows, Stable: stable, Late: int(g.late.Load()),
		Samples: make([]float64, len(samples)),
	}
	for i, s := range samples {
		r.Samples[i] = milliseconds(s.latency)
	}
	var err error
	if r.Latency, err = measure.Summarize(r.Samples); err != nil {
		return Result{}, err
	}
	r.Rate = report.Number(float64(r.Requests) / r.Seconds)
	r.Throughput = r.Rate * report.Number(g.o.Batch)
	r.CPU = report.Number(float64((to.cpu - from.cpu).Microseconds()) / float64(r.Requests+r.Errors))
	if t := g.texts(); len(t) > 0 {
		r.ErrorTexts = t
	}
	r.server(from, to)
	r.notes(g.o)
	return r, nil
}

func (r *Result) server(from, to reading) {
	if s, ok := to.split.since(from.split); ok {
		r.Server = &s
		over := r.Latency.Mean - s.Total
		r.Overhead = &over
	}
	if to.metrics != nil {
		r.Metrics = changes(from.metrics, to.metrics)
	}
}

func (r *Result) notes(o Options) {
	note := func(format string, args ...any) { r.Notes = append(r.Notes, fmt.Sprintf(format, args...)) }
	if !r.Stable {
		note("not stable: the last %d windows differ by more than %.0f%%", o.Agree, 100*o.Tolerance)
	}
	if r.Requests < 100 {
		note("%d requests: fewer than 100, percentiles are rough", r.Requests)
	}
	if r.Errors > 0 {
		note("%d requests failed and are in no percentile", r.Errors)
	}
	if o.Rate > 0 && float64(r.Rate) < 0.95*o.Rate {
		note("%.1f requests/s were answered of %.1f that arrived: the server is beyond its limit", float64(r.Rate), o.Rate)
	}
	if r.Late > 0 {
		note("%d arrivals found no free connection of %d; their wait counts", r.Late, o.Concurrency)
	}
}

func (o Options) mode() string {
	if o.Rate > 0 {
		return fmt.Sprintf("%s rate=%g/s %s", o.Protocol, o.Rate, o.Distribution)
	}
	return fmt.Sprintf("%s concurrency=%d", o.Protocol, o.Concurrency)
}
