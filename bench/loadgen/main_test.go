package main

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/trtship/trtship/internal/testkit"
)

// TestBench prints the comparison. perf_analyzer is named by
// TRTSHIP_PERF_ANALYZER, with what goes before it (a loader of a newer glibc,
// say); it is no part of the locked environments.
func TestBench(t *testing.T) {
	perf := os.Getenv("TRTSHIP_PERF_ANALYZER")
	if perf == "" {
		t.Skip("TRTSHIP_PERF_ANALYZER names no perf_analyzer (pip perf-analyzer, glibc 2.38): nothing to compare with")
	}
	if err := run(t.Context(), []string{"-perf", perf, "-on", "memory,tiny"}, os.Stdout); err != nil {
		t.Fatal(err)
	}
}

// The test binary is its own responder and client.
func TestMain(m *testing.M) {
	for _, a := range os.Args[1:] {
		if a == "-client" || a == "-responder" {
			if err := run(context.Background(), os.Args[1:], os.Stdout); err != nil {
				os.Exit(1)
			}
			return
		}
	}
	testkit.Main(m)
}

func TestIntegersLoseTheirQuotes(t *testing.T) {
	got := string(unquoteIntegers([]byte(`{"dims":["16","-1"],"name":"x","version":"1","versions":["1"],"count":"7"}`)))
	if want := `{"dims":[16,-1],"name":"x","version":"1","versions":["1"],"count":7}`; got != want {
		t.Errorf("%s", got)
	}
}

func TestWhatIsNoComparison(t *testing.T) {
	for _, args := range [][]string{{}, {"-loads", "many", "-perf", "x"}, {"-perf", "no/such/perf_analyzer", "-rounds", "1", "-loads", "1", "-seconds", "0.3"}} {
		if err := run(t.Context(), args, &strings.Builder{}); err == nil {
			t.Errorf("%v ran", args)
		}
	}
}
