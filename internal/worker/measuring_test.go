package worker_test

import (
	"context"
	"encoding/json"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/trtship/trtship/internal/proc"
)

// standIn is what testdata/tensorrt/stand_in.py prints.
type standIn struct {
	Phases   map[string]int `json:"phases"`
	Loads    []struct{ Requests int }
	Loaded   int
	UnderWay map[string]int `json:"under_way"`
	Before   map[string]int
	After    map[string]int
	AtTheEnd map[string]int `json:"at_the_end"`
	Blocks   []int
	Placed   []string
	Compared []string
	Progress [][2]int
}

// A stand-in for TensorRT and libcuda shows what a GPU does not: what is still
// allocated, and how many requests are under way at once.
func TestMeasuringEnginesPlacesThemAnewAndGivesEverythingBack(t *testing.T) {
	sources, err := filepath.Abs("python")
	if err != nil {
		t.Fatal(err)
	}
	out, err := proc.Output(context.Background(), proc.Command{
		Path: python(t), Args: []string{"-B", filepath.Join("testdata", "tensorrt", "stand_in.py"), sources}, Env: []string{"PATH=/usr/bin:/bin"},
	})
	if err != nil {
		t.Fatal(err)
	}
	var got standIn
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	t.Run("ten requests of two streams over three loadings are twenty", func(t *testing.T) {
		want := map[string]int{"compute": 20, "enqueue": 20, "h2d": 20, "execute": 20, "d2h": 20, "end_to_end": 20}
		if diff := cmp.Diff(want, got.Phases); diff != "" {
			t.Error(diff)
		}
		total := 0
		for _, l := range got.Loads {
			total += l.Requests
		}
		if len(got.Loads) != 3 || total != 20 || got.Loaded != 5 {
			t.Errorf("%d loadings with %d requests, %d loads in all; want 3, 20 and, with the first and the other run, 5", len(got.Loads), total, got.Loaded)
		}
	})
	t.Run("two requests are under way for compute, one with transfers", func(t *testing.T) {
		if diff := cmp.Diff(map[string]int{"resident": 2, "resident, graph": 2, "transfers": 1}, got.UnderWay); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("nothing is left on the GPU", func(t *testing.T) {
		if diff := cmp.Diff(got.Before, got.After); diff != "" {
			t.Errorf("after two benchmarks: %s", diff)
		}
		if len(got.AtTheEnd) > 0 {
			t.Errorf("after closing both engines: %v", got.AtTheEnd)
		}
	})
	loaded, side := []string{"load", "context"}, []string{"scatter", "context"} // a loading has a context of its own
	t.Run("behind every loading but the first, other memory lies before the measured contexts", func(t *testing.T) {
		again := slices.Concat(loaded, side, side[1:]) // two streams
		if diff := cmp.Diff(slices.Concat(side[1:], side[1:], again, again), got.Placed); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("every round places both engines anew, and half way both are loaded anew", func(t *testing.T) {
		round := slices.Concat(side, side)
		want := slices.Concat(round, round, round, loaded, side, loaded, side, round, round)
		if diff := cmp.Diff(want, got.Compared); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]int{6, 6}, got.Blocks); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("progress goes on from loading to loading", func(t *testing.T) {
		if diff := cmp.Diff([][2]int{{6, 40}, {12, 40}, {18, 40}, {24, 40}, {32, 40}, {40, 40}}, got.Progress); diff != "" {
			t.Error(diff)
		}
	})
}
