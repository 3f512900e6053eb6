package ort

import (
	"context"
	"fmt"
	"runtime/debug"

	"github.com/trtship/trtship/internal/tensor"
)

// Reducer digests the outputs of runs inside the child, so that large inner
// values never leave it. Calibration gathers its ranges with one.
type Reducer interface {
	// Add takes the outputs of one run, extra ones included. Their memory is the
	// runtime's: nothing of it may be kept.
	Add(outputs []tensor.Named) error
	// State returns all that was gathered, in a form of the reducer's own.
	State() ([]byte, error)
}

var reducers = map[string]func(settings []byte) (Reducer, error){}

// RegisterReducer makes a kind of reducer known to the child. It is called from
// init functions only, since the child is this same program. The settings are
// those of the first [Session.Reduce].
func RegisterReducer(kind string, create func(settings []byte) (Reducer, error)) {
	if _, ok := reducers[kind]; ok {
		panic("ort: reducer " + kind + " is registered twice")
	}
	reducers[kind] = create
}

// reduceRequest names the reducer that a run's outputs go to.
type reduceRequest struct {
	Kind     string `json:"kind"`
	Settings []byte `json:"settings,omitempty"`
}

// Reduce runs the model on one feed and gives its outputs to the session's
// reducer, which is made at the first call. What the reducer makes of them may
// be told by a later call only, since it works while the next feed is on its way.
func (s *Session) Reduce(ctx context.Context, kind string, settings []byte, inputs []tensor.Named) error {
	if err := s.checkFeed(inputs); err != nil {
		return err
	}
	_, err := s.do(ctx, request{Op: opReduce, Reduce: &reduceRequest{Kind: kind, Settings: settings}}, describeFeed(inputs), inputs...)
	return err
}

// Reduced returns the state of the session's reducer.
func (s *Session) Reduced(ctx context.Context) ([]byte, error) {
	a, err := s.do(ctx, request{Op: opReduced}, "")
	return a.State, err
}

func (s *server) reduce(q request) error {
	if s.reducer == nil {
		// What a child holds must not depend on how many runs there were: garbage
		// is collected before it outgrows what lives.
		debug.SetGCPercent(25)
		create, ok := reducers[q.Reduce.Kind]
		if !ok {
			return fmt.Errorf("reducer %q is not known", q.Reduce.Kind)
		}
		var err error
		if s.reducer, err = create(q.Reduce.Settings); err != nil {
			return fmt.Errorf("reducer %s: %w", q.Reduce.Kind, err)
		}
	}
	// Both a run and the reducer use all cores, so they take turns: the outputs of
	// one run are in memory, and the next feed arrives meanwhile.
	if err := s.settle(); err != nil {
		return err
	}
	outputs, free, err := s.outputs(q.feed)
	if err != nil {
		free()
		return err
	}
	s.reducing = make(chan error, 1)
	go func() {
		err := s.reducer.Add(outputs)
		free()
		s.reducing <- err
	}()
	return nil
}

// settle waits until the reducer has taken what it was given.
func (s *server) settle() error {
	if s.reducing == nil {
		return nil
	}
	err := <-s.reducing
	s.reducing = nil
	return err
}

func (s *server) reduced() ([]byte, error) {
	if s.reducer == nil {
		return nil, fmt.Errorf("nothing was reduced")
	}
	if err := s.settle(); err != nil {
		return nil, err
	}
	return s.reducer.State()
}

// Sizes runs the model on one feed and returns the bytes of each output.
func (s *Session) Sizes(ctx context.Context, inputs []tensor.Named) (map[string]int64, error) {
	if err := s.checkFeed(inputs); err != nil {
		return nil, err
	}
	a, err := s.do(ctx, request{Op: opSizes}, describeFeed(inputs), inputs...)
	return a.Sizes, err
}

func (s *server) sizes(q request) (map[string]int64, error) {
	outputs, free, err := s.outputs(q.feed)
	defer free()
	sizes := make(map[string]int64, len(outputs))
	for _, o := range outputs {
		sizes[o.Name] = int64(len(o.Data))
	}
	return sizes, err
}
