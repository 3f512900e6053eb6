package ort

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/trtship/trtship/internal/tensor"
)

// adder sums the elements of every output that it sees.
type adder struct {
	sum  float64
	fail bool
}

func (a *adder) Add(outputs []tensor.Named) error {
	if a.fail {
		return errors.New("no more")
	}
	for _, o := range outputs {
		for _, x := range o.Float64s() {
			a.sum += x
		}
	}
	return nil
}

func (a *adder) State() ([]byte, error) { return fmt.Append(nil, a.sum), nil }

func init() {
	RegisterReducer("test-adder", func(settings []byte) (Reducer, error) {
		if string(settings) == "refuse" {
			return nil, errors.New("bad settings")
		}
		return &adder{fail: string(settings) == "fail"}, nil
	})
}

func TestAReducerSeesEveryRun(t *testing.T) {
	s := open(t, identity(t, []int64{-1}, tensor.Float32), Options{})
	feed := func(v ...float64) []tensor.Named {
		return []tensor.Named{{Name: "in_float32", Tensor: tensor.FromFloat64s(tensor.Float32, []int64{int64(len(v))}, v)}}
	}
	if _, err := s.Reduced(t.Context()); err == nil {
		t.Error("a state before any run")
	}
	if err := s.Reduce(t.Context(), "none", nil, feed(1)); err == nil {
		t.Error("an unknown reducer")
	}
	if err := s.Reduce(t.Context(), "test-adder", []byte("refuse"), feed(1)); err == nil || !strings.Contains(err.Error(), "bad settings") {
		t.Errorf("err = %v", err)
	}
	for _, f := range [][]tensor.Named{feed(1, 2), feed(3)} {
		if err := s.Reduce(t.Context(), "test-adder", nil, f); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Reduce(t.Context(), "test-adder", nil, nil); err == nil {
		t.Error("a feed without inputs")
	}
	state, err := s.Reduced(t.Context())
	if err != nil || string(state) != "6" {
		t.Errorf("state = %q, %v", state, err)
	}
	sizes, err := s.Sizes(t.Context(), feed(1, 2, 3))
	if err != nil || sizes["out_float32"] != 12 {
		t.Errorf("sizes = %v, %v", sizes, err)
	}
	if _, err := s.Sizes(t.Context(), nil); err == nil {
		t.Error("sizes without inputs")
	}
}

func TestAReducerIsRegisteredOnce(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("registered twice")
		}
	}()
	RegisterReducer("test-adder", nil)
}

func TestReducingInsideTheChild(t *testing.T) {
	k := newTalk(t)
	load := &loadRequest{Library: library(t).Path, Model: identity(t, []int64{-1}, tensor.Float32), Options: sessionOptions{Threads: 1}}
	if a := k.ask(request{Op: opLoad, Load: load}); a.Error != nil {
		t.Fatal(a.Error)
	}
	x := tensor.Named{Name: "in_float32", Tensor: tensor.FromFloat64s(tensor.Float32, []int64{2}, []float64{1, 4})}
	if a := k.ask(request{Op: opReduced}); a.Error == nil {
		t.Error("a state before any run")
	}
	if a := k.ask(request{Op: opReduce, Reduce: &reduceRequest{Kind: "test-adder"}}, x); a.Error != nil {
		t.Error(a.Error)
	}
	if a := k.ask(request{Op: opReduce, Reduce: &reduceRequest{Kind: "test-adder"}}); a.Error == nil {
		t.Error("a run without inputs was reduced")
	}
	if a := k.ask(request{Op: opReduced}); a.Error != nil || string(a.State) != "5" {
		t.Errorf("state %q, %v", a.State, a.Error)
	}
	if a := k.ask(request{Op: opSizes}, x); a.Error != nil || a.Sizes["out_float32"] != 8 {
		t.Errorf("sizes %v, %v", a.Sizes, a.Error)
	}
	_ = k.close()
}

// TestWhatAReducingChildHoldsDoesNotGrowWithTheRuns reads the child's peak
// resident memory after few and after many runs.
func TestWhatAReducingChildHoldsDoesNotGrowWithTheRuns(t *testing.T) {
	s := open(t, identity(t, []int64{-1}, tensor.Float32), Options{})
	feed := []tensor.Named{{Name: "in_float32", Tensor: tensor.FromFloat32s([]int64{1500}, make([]float32, 1500))}}
	peak := func(runs int) int64 {
		for range runs {
			if err := s.Reduce(t.Context(), "test-adder", nil, feed); err != nil {
				t.Fatal(err)
			}
		}
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.child.PID()))
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(b), "VmHWM:")
		kb, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return kb << 10
	}
	few, many := peak(13), peak(1237)
	if many-few > 2<<20+detectorBytes {
		t.Errorf("%d bytes after 13 runs, %d after 1,250", few, many)
	}
}
