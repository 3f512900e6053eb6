// Package dataset reads calibration data: folders of pictures, .npy and .npz
// files, or seeded random values. Samples are chosen by a seed, read one batch
// ahead in memory that does not depend on the size of the set, checked, and
// accounted for: a digest of the set's contents, a digest of what was fed, and
// the number of different samples among it.
package dataset

import (
	"context"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/tensor"
)

// Any is a size that samples may choose.
const Any = -1

// Input is a model input as the data must fill it.
type Input struct {
	Name  string
	DType tensor.DType
	Shape []int64     // of one run; axis 0 is the sample axis. Any: whatever the data has
	Range *[2]float64 // closed interval that values must lie in; nil: no limit
}

// Options says what to open.
type Options struct {
	Calibration config.Calibration
	Inputs      []Input
	Progress    func(done, total int64, label string) // may be nil
}

// Set is an opened data set.
type Set struct {
	Kind      string // images, numpy, synthetic
	Total     int    // samples there
	Samples   int    // samples chosen
	Batch     int    // samples a run
	Synthetic bool
	Notes     []string

	inputs   []Input
	src      source
	chosen   []int
	progress func(done, total int64, label string)
}

// source gives random access to samples. Implementations are safe for
// concurrent reads of different samples.
type source interface {
	len() int
	// shapes returns the shape of sample i for each input, without the sample axis.
	shapes(i int) ([][]int64, error)
	// read fills dst, one slice an input, with sample i.
	read(i int, dst [][]byte) error
	// place names sample i for messages.
	place(i int) string
	// digest hashes the contents of the whole set.
	digest(ctx context.Context, progress func(done, total int64)) (string, error)
	close() error
}

func refuse(format string, args ...any) *failure.Error {
	return failure.New(failure.Calibration, format, args...)
}

// Open opens the configured data set and chooses its samples. Everything that
// can be known without reading the samples is checked here.
func Open(ctx context.Context, o Options) (*Set, error) {
	c := o.Calibration
	if c.NumSamples < c.MinSamples || c.NumSamples < 1 {
		return nil, refuse("calibration.num_samples is %d, calibration.min_samples %d", c.NumSamples, c.MinSamples).
			WithHint("ask for at least min_samples samples")
	}
	if c.BatchSize < 1 {
		return nil, refuse("calibration.batch_size is %d, expected at least 1", c.BatchSize)
	}
	if len(o.Inputs) == 0 {
		return nil, refuse("the model has no input to calibrate")
	}
	for _, in := range o.Inputs {
		if len(in.Shape) == 0 {
			return nil, refuse("input %s is a scalar: it has no axis of samples", in.Name)
		}
	}
	if c.Dataset == "numpy" {
		o.Inputs = withDeclaredRange(c, o.Inputs)
	}
	src, err := openSource(ctx, o)
	if err != nil {
		return nil, err
	}
	s := &Set{Kind: c.Dataset, Total: src.len(), Synthetic: c.Dataset == "synthetic", inputs: o.Inputs, src: src, progress: o.Progress}
	if s.progress == nil {
		s.progress = func(int64, int64, string) {}
	}
	if n, ok := src.(interface{ notes() []string }); ok {
		s.Notes = n.notes()
	}
	if err := s.choose(c); err != nil {
		src.close() //nolint:errcheck // read only
		return nil, err
	}
	return s, nil
}

func openSource(ctx context.Context, o Options) (source, error) {
	c := o.Calibration
	switch c.Dataset {
	case "synthetic":
		if !c.AllowSynthetic {
			return nil, refuse("synthetic calibration data are refused: random values give scales that do not represent the model's real inputs").
				WithHint("set calibration.dataset and calibration.path to real data, or calibration.allow_synthetic: true to go on with a result marked as not representative")
		}
		return newSynthetic(c, o.Inputs)
	case "images", "numpy":
		if c.Path == "" {
			return nil, refuse("calibration.path is not set: there are no data to calibrate with").
				WithHint("name the folder or file of calibration data in calibration.path")
		}
		if c.Dataset == "images" {
			return openImages(ctx, c, o.Inputs)
		}
		return openNumpy(ctx, c, o.Inputs)
	}
	return nil, refuse("unknown calibration.dataset %q (images, numpy, synthetic)", c.Dataset)
}

// choose fixes the batch size and the samples.
func (s *Set) choose(c config.Calibration) error {
	if s.Total == 0 {
		return refuse("no calibration sample found").At(c.Path).WithHint("put data there, or mend calibration.path")
	}
	s.Samples = min(c.NumSamples, s.Total)
	s.Batch = min(c.BatchSize, s.Samples)
	for _, in := range s.inputs {
		if n := in.Shape[0]; n > 0 {
			s.Batch = int(n)
		}
	}
	for _, in := range s.inputs {
		if n := in.Shape[0]; n > 0 && int(n) != s.Batch {
			return refuse("input %s takes %d samples a run, another input %d", in.Name, n, s.Batch)
		}
		if in.Shape[0] > 0 {
			s.Samples -= s.Samples % s.Batch // only whole runs fit
		}
	}
	if s.Samples < c.MinSamples || s.Samples == 0 {
		return refuse("too few calibration samples: %d usable, at least %d needed", min(s.Samples, s.Total), c.MinSamples).
			At(c.Path).With("found", "%d", s.Total).
			WithHint("add data, or lower calibration.min_samples if so few represent the inputs")
	}
	s.chosen = sample(s.Total, s.Samples, c.Seed)
	return nil
}

// sample returns n of total indexes in ascending order, by Floyd's method.
func sample(total, n int, seed int64) []int {
	if n >= total {
		out := make([]int, total)
		for i := range out {
			out[i] = i
		}
		return out
	}
	r := rand.New(rand.NewPCG(uint64(seed), 0x63616c6962)) //nolint:gosec // reproducible on purpose
	taken := make(map[int]bool, n)
	out := make([]int, 0, n)
	for j := total - n; j < total; j++ {
		k := r.IntN(j + 1)
		if taken[k] {
			k = j
		}
		taken[k] = true
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// Chosen returns the indexes of the samples that are used, ascending.
func (s *Set) Chosen() []int { return slices.Clone(s.chosen) }

// Digest hashes the contents of the whole set: names and places of files do
// not enter, every byte of them does.
func (s *Set) Digest(ctx context.Context) (string, error) {
	return s.src.digest(ctx, func(done, total int64) { s.progress(done, total, "hash calibration data") })
}

// Close releases the files.
func (s *Set) Close() error { return s.src.close() }

// Batch is one run's feed.
type Batch struct {
	First   int // position of its first sample among the chosen ones
	Samples int
	Tensors []tensor.Named
	Digests [][32]byte // SHA-256 of each sample as fed
}

// Batches yields the batches that begin at sample from or later; from must be
// the beginning of one. One batch is read ahead. Samples of different shapes
// are never in one batch.
func (s *Set) Batches(ctx context.Context, from int) iter.Seq2[Batch, error] {
	type result struct {
		b   Batch
		err error
	}
	return func(yield func(Batch, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		ahead := make(chan result)
		done := make(chan struct{})
		go func() {
			defer close(done)
			defer close(ahead)
			for at := from; at < s.Samples; {
				b, err := s.read(ctx, at)
				select {
				case ahead <- result{b, err}:
				case <-ctx.Done():
					return
				}
				if err != nil {
					return
				}
				at += b.Samples
			}
		}()
		defer func() { cancel(); <-done }()
		for r := range ahead {
			if !yield(r.b, r.err) || r.err != nil {
				return
			}
		}
		if err := ctx.Err(); err != nil {
			yield(Batch{}, err)
		}
	}
}

// read reads the batch that begins at position at.
func (s *Set) read(ctx context.Context, at int) (Batch, error) {
	first, err := s.src.shapes(s.chosen[at])
	if err != nil {
		return Batch{}, err
	}
	n := 1
	for n < s.Batch && at+n < s.Samples {
		next, err := s.src.shapes(s.chosen[at+n])
		if err != nil {
			return Batch{}, err
		}
		if !slices.EqualFunc(first, next, slices.Equal) {
			break
		}
		n++
	}
	b := Batch{First: at, Samples: n, Digests: make([][32]byte, n)}
	for k, in := range s.inputs {
		if in.Shape[0] > 0 && int64(n) != in.Shape[0] {
			return Batch{}, refuse("input %s takes %d samples a run, and sample %s has another shape than the one before it", in.Name, in.Shape[0], s.src.place(s.chosen[at+n])).
				WithHint("a model of fixed batch size needs samples of one shape")
		}
		b.Tensors = append(b.Tensors, tensor.Named{Name: in.Name, Tensor: tensor.Zeros(in.DType, append([]int64{int64(n)}, first[k]...)...)})
	}
	var g errgroup.Group
	g.SetLimit(2)
	errs := make([]error, n) // so that always the first bad sample is named
	for i := range n {
		g.Go(func() error {
			if errs[i] = ctx.Err(); errs[i] == nil {
				errs[i] = s.readSample(at+i, i, &b)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return Batch{}, err
	}
	for _, err := range errs {
		if err != nil {
			return Batch{}, err
		}
	}
	return b, nil
}

func (s *Set) readSample(position, slot int, b *Batch) error {
	index := s.chosen[position]
	dst := make([][]byte, len(b.Tensors))
	for k, t := range b.Tensors {
		size := len(t.Data) / b.Samples
		dst[k] = t.Data[slot*size : (slot+1)*size]
	}
	if err := s.src.read(index, dst); err != nil {
		return err
	}
	for k, in := range s.inputs {
		if err := checkValues(in, dst[k], s.src.place(index)); err != nil {
			return err
		}
	}
	b.Digests[slot] = hashSample(dst)
	return nil
}

// describe renders a shape with ? for sizes that may be anything.
func describe(shape []int64) string {
	out := "["
	for i, d := range shape {
		if i > 0 {
			out += ","
		}
		if d < 0 {
			out += "?"
		} else {
			out += fmt.Sprint(d)
		}
	}
	return out + "]"
}
