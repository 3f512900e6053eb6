package calibration

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sync/errgroup"

	"github.com/trtship/trtship/internal/dataset"
	"github.com/trtship/trtship/internal/failpoint"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/ort"
	"github.com/trtship/trtship/internal/tensor"
)

// reducerKind names the reducer that gathers observers in ONNX Runtime's child.
const reducerKind = "calibration-observers"

// Places where a calibration can be made to end.
var (
	batchDone         = failpoint.New("calibrate.batch.done")
	checkpointWritten = failpoint.New("calibrate.checkpoint.written")
)

//nolint:gochecknoinits // the child is this program: it must know the reducer before main
func init() {
	ort.RegisterReducer(reducerKind, func(settings []byte) (ort.Reducer, error) {
		s := newObservers()
		s.rangeOnly = string(settings) == rangeOnly
		return s, nil
	})
}

// rangeOnly are the settings of a reducer that fills no bins.
const rangeOnly = "range"

// observers gathers one Observer for each tensor.
type observers struct {
	mu        sync.Mutex
	byName    map[string]*Observer
	rangeOnly bool
}

func newObservers() *observers { return &observers{byName: map[string]*Observer{}} }

func (s *observers) of(name string) *Observer {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.byName[name]
	if o == nil {
		o = NewObserver()
		s.byName[name] = o
	}
	return o
}

// Add observes floating-point tensors and ignores the others. Tensors of one
// call have different names.
func (s *observers) Add(outputs []tensor.Named) error {
	var g errgroup.Group
	g.SetLimit(2)
	for _, t := range outputs {
		if !t.DType.Floating() {
			continue
		}
		o := s.of(t.Name)
		g.Go(func() error {
			if s.rangeOnly {
				o.AddRange(float32s(t.Tensor))
			} else {
				o.Add(float32s(t.Tensor))
			}
			return nil
		})
	}
	return g.Wait()
}

// float32s returns a tensor's values, without a copy if they are float32.
func float32s(t tensor.Tensor) []float32 {
	if t.DType != tensor.Float32 {
		return t.Float32s()
	}
	if len(t.Data) < 4 {
		return nil
	}
	p := unsafe.Pointer(&t.Data[0])
	if uintptr(p)%unsafe.Alignof(float32(0)) != 0 {
		return t.Float32s()
	}
	return unsafe.Slice((*float32)(p), len(t.Data)/4)
}

// State encodes the observers by name.
func (s *observers) State() ([]byte, error) {
	out := map[string][]byte{}
	for name, o := range s.byName {
		b, err := o.AppendBinary(nil)
		if err != nil {
			return nil, err
		}
		out[name] = b
	}
	return json.Marshal(out)
}

// merge adds the observers of a state.
func (s *observers) merge(state []byte) error {
	var in map[string][]byte
	if err := json.Unmarshal(state, &in); err != nil {
		return fmt.Errorf("read observers: %w", err)
	}
	for name, b := range in {
		o, rest, err := ReadObserver(b)
		if err != nil || len(rest) > 0 {
			return fmt.Errorf("read observer of %s: %w", name, err)
		}
		s.of(name).Merge(o)
	}
	return nil
}

// Feeds yields the runs to observe, from a sample on. *dataset.Set is one.
type Feeds interface {
	Batches(ctx context.Context, from int) iter.Seq2[dataset.Batch, error]
}

// CollectOptions says what is observed and how.
type CollectOptions struct {
	Library ort.Library
	Model   string   // float graph
	Tensors []string // values of the main graph to observe; inputs may be among them
	// Interface names the model's inputs and outputs, which need not be asked for.
	Interface []string
	Feeds     Feeds
	Samples   int // that Feeds has, for progress

	// RangeOnly leaves the bins empty: right for methods that need the ends alone.
	RangeOnly bool

	Threads  int
	MemoryMB int           // that the observed values of one run may take; 0 is 2048
	Timeout  time.Duration // of each run
	LimitMB  int           // address-space limit of the runtime's process; 0 is none

	Checkpoint string        // file to resume from and to write to; empty is none
	Key        string        // identifies what the checkpoint belongs to
	Every      time.Duration // between checkpoints; 0 is 10 s

	Progress func(done, total int64, label string)
	Log      io.Writer
}

// Collected is what a pass over the data has given.
type Collected struct {
	Observers map[string]*Observer
	Audit     *dataset.Audit
	Runtime   string // ONNX Runtime's version
	Passes    int    // over the data
	Resumed   int    // samples that an earlier run had done
	Run       int    // samples that were run at once, where a batch was run in parts; else 0
}

// Collect runs the model over the feeds and observes its tensors. The values
// stay in the runtime's process; if those of one run would take more than the
// memory that is allowed, the tensors are observed in groups, one pass over the
// data each. A run that ends early goes on from its checkpoint and gives the
// same result.
func Collect(ctx context.Context, o CollectOptions) (*Collected, error) {
	// What this process holds must not depend on the number of samples: garbage is
	// collected before it outgrows what lives.
	defer debug.SetGCPercent(debug.SetGCPercent(25))
	if o.Every == 0 {
		o.Every = 10 * time.Second
	}
	if o.MemoryMB == 0 {
		o.MemoryMB = 2048
	}
	if o.Progress == nil {
		o.Progress = func(int64, int64, string) {}
	}
	c := &collector{CollectOptions: o, all: newObservers(), audit: dataset.NewAudit()}
	defer c.closeSession() // also of a probe that failed
	if err := c.restore(); err != nil {
		return nil, err
	}
	resumed := c.position
	if c.groups == nil {
		if err := c.split(ctx); err != nil {
			return nil, err
		}
	}
	for c.group < len(c.groups) {
		if err := c.pass(ctx); err != nil {
			return nil, err
		}
	}
	return &Collected{Observers: c.all.byName, Audit: c.audit, Runtime: c.version, Passes: len(c.groups), Resumed: resumed, Run: c.run}, nil
}

// Discard removes the checkpoint once its result is safe.
func Discard(path string) {
	if path != "" {
		os.Remove(path) //nolint:errcheck // an old checkpoint is no harm: its key will not match
	}
}

type collector struct {
	CollectOptions
	all      *observers // of finished groups, and of this one before session was opened
	audit    *dataset.Audit
	groups   [][]string
	run      int // samples that are run at once; 0: a batch
	group    int // that is observed now
	position int // next sample
	version  string
	session  *ort.Session
	sent     []chan error // outcomes of the runs that the session was given, oldest first
}

// open starts a session that returns names.
func (c *collector) open(ctx context.Context, names []string) error {
	s, err := ort.Open(ctx, c.Library, c.Model, ort.Options{
		Threads: max(c.Threads, 1), Timeout: inFlight * c.Timeout, MemoryMB: c.LimitMB, ExtraOutputs: c.extra(names), Log: c.Log,
		// Threads that wait for the next run would take the cores from the reducer.
		ConfigEntries: map[string]string{"session.force_spinning_stop": "1"},
	})
	if err != nil {
		return err
	}
	c.session, c.version = s, s.Library().Version
	return nil
}

// extra returns the names that are no input; those are observed as they are fed.
// Outputs of the model need not be asked for.
func (c *collector) extra(names []string) []string {
	var out []string
	for _, n := range names {
		if !slices.Contains(c.Interface, n) {
			out = append(out, n)
		}
	}
	return out
}

// split decides which tensors are observed together, from the sizes in a run of
// the first sample.
func (c *collector) split(ctx context.Context) error {
	c.groups = [][]string{c.Tensors}
	for b, err := range c.Feeds.Batches(ctx, 0) {
		if err != nil {
			return err
		}
		if err := c.open(ctx, c.Tensors); err != nil {
			return err
		}
		probe, samples := firstSample(b, c.session.Inputs())
		sizes, err := c.session.Sizes(ctx, probe)
		if err != nil {
			return err
		}
		var total int64
		for _, size := range sizes {
			total += size
		}
		if samples > 1 {
			c.run = int(max(1, min(samples, runBytes/max(total, 1))))
		}
		c.groups = group(c.Tensors, sizes, int64(max(c.run, 1)), int64(c.MemoryMB)<<20)
		if len(c.groups) > 1 {
			c.closeSession()
		}
		return nil
	}
	return failure.New(failure.Calibration, "no calibration sample found")
}

// runBytes is what the observed values of one run may take before a batch is
// run in parts: larger runs are no faster.
const runBytes = 16 << 20

// firstSample returns the first sample of a batch alone, if the model takes
// batches of any size, and how many samples the batch has then; otherwise the
// batch as it is, and 1.
func firstSample(b dataset.Batch, inputs []ort.ValueInfo) (feed []tensor.Named, samples int64) {
	for _, in := range inputs {
		if len(in.Dims) == 0 || in.Dims[0] >= 0 {
			return b.Tensors, 1
		}
	}
	for _, t := range b.Tensors {
		if len(t.Shape) == 0 || t.Shape[0] != int64(b.Samples) {
			return b.Tensors, 1
		}
		feed = append(feed, tensor.Named{Name: t.Name, Tensor: t.Rows(0, 1)})
	}
	return feed, int64(b.Samples)
}

// group packs tensors, in order, into groups whose bytes fit into limit.
func group(names []string, sizes map[string]int64, times, limit int64) [][]string {
	var out [][]string
	var now []string
	var used int64
	for _, n := range names {
		size := sizes[n] * times
		if used+size > limit && len(now) > 0 {
			out, now, used = append(out, now), nil, 0
		}
		now, used = append(now, n), used+size
	}
	return append(out, now)
}

// pass observes one group over the rest of the data.
func (c *collector) pass(ctx context.Context) error {
	if c.session == nil {
		if err := c.open(ctx, c.groups[c.group]); err != nil {
			return err
		}
	}
	defer c.closeSession()
	base := newObservers() // of this process, without the checkpoint's
	base.rangeOnly = c.RangeOnly
	last := time.Now()
	label := "calibrate"
	if len(c.groups) > 1 {
		label = fmt.Sprintf("calibrate, pass %d of %d", c.group+1, len(c.groups))
	}
	wanted := map[string]bool{}
	for _, n := range c.groups[c.group] {
		wanted[n] = true
	}
	c.Progress(int64(c.position), int64(c.Samples), label)
	for b, err := range c.Feeds.Batches(ctx, c.position) {
		if err != nil {
			return err
		}
		if err := c.feed(ctx, b, base, wanted); err != nil {
			return err
		}
		c.position = b.First + b.Samples
		c.Progress(int64(c.position), int64(c.Samples), label)
		if err := batchDone.Hit(); err != nil {
			return err
		}
		if c.Checkpoint != "" && time.Since(last) >= c.Every {
			if err := c.save(ctx, base); err != nil {
				return err
			}
			last = time.Now()
		}
	}
	if err := c.take(ctx, base, wanted); err != nil {
		return err
	}
	c.group, c.position = c.group+1, 0
	if c.Checkpoint != "" && c.group < len(c.groups) {
		return c.write(c.all)
	}
	return nil
}

// feed runs one batch.
func (c *collector) feed(ctx context.Context, b dataset.Batch, base *observers, wanted map[string]bool) error {
	if c.group == 0 {
		c.audit.Add(b)
	}
	var inputs []tensor.Named
	for _, t := range b.Tensors {
		if wanted[t.Name] {
			inputs = append(inputs, t)
		}
	}
	if err := base.Add(inputs); err != nil {
		return err
	}
	for lo := 0; lo < b.Samples; {
		feed, hi := b.Tensors, b.Samples
		if c.run > 0 && c.run < b.Samples {
			hi = min(lo+c.run, b.Samples)
			feed = make([]tensor.Named, len(b.Tensors))
			for i, t := range b.Tensors {
				feed[i] = tensor.Named{Name: t.Name, Tensor: t.Rows(int64(lo), int64(hi))}
			}
		}
		if err := c.send(ctx, feed, b.First+lo, b.First+hi-1); err != nil {
			return err
		}
		lo = hi
	}
	return nil
}

// inFlight is how many runs the session is given at once: one that goes on, and
// the next one's feed on its way.
const inFlight = 2

// send gives the session one run, without waiting for its end.
func (c *collector) send(ctx context.Context, feed []tensor.Named, first, last int) error {
	for len(c.sent) >= inFlight {
		if err := c.receive(); err != nil {
			return err
		}
	}
	session, done := c.session, make(chan error, 1)
	go func() {
		err := session.Reduce(ctx, reducerKind, c.settings(), feed)
		if err != nil {
			err = fmt.Errorf("calibrate samples %d to %d: %w", first, last, err)
		}
		done <- err
	}()
	c.sent = append(c.sent, done)
	return nil
}

// receive waits for the oldest run that was sent.
func (c *collector) receive() error {
	err := <-c.sent[0]
	c.sent = c.sent[1:]
	return err
}

// settle waits for all runs that were sent.
func (c *collector) settle() error {
	for len(c.sent) > 0 {
		if err := c.receive(); err != nil {
			return err
		}
	}
	return nil
}

func (c *collector) settings() []byte {
	if c.RangeOnly {
		return []byte(rangeOnly)
	}
	return nil
}

// take adds what the session and this process have observed to all.
func (c *collector) take(ctx context.Context, base *observers, wanted map[string]bool) error {
	if err := c.settle(); err != nil {
		return err
	}
	state, err := c.session.Reduced(ctx)
	if err != nil {
		return err
	}
	if err := base.merge(state); err != nil {
		return err
	}
	for name, o := range base.byName {
		if wanted[name] { // a session always returns the model's own outputs too
			c.all.of(name).Merge(o)
		}
	}
	return nil
}

func (c *collector) closeSession() {
	if c.session != nil {
		c.session.Close() //nolint:errcheck // it has answered
		c.session, c.sent = nil, nil
	}
}
