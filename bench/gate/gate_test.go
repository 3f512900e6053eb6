// Package gate measures the gate and every rendering of a large report against
// a plain JSON decode of the same bytes, in one run, as a ratio.
package gate

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/trtship/trtship/internal/gate"
	"github.com/trtship/trtship/internal/github"
	"github.com/trtship/trtship/internal/testkit"
	"github.com/trtship/trtship/report"
	"github.com/trtship/trtship/report/reporttest"
)

// most is the aim: gate and renderings together, in decodes of the same bytes.
const most = 3.0

func fiveMegabytes(tb testing.TB) []byte {
	tb.Helper()
	b, err := report.Encode(reporttest.Large(890, 4000))
	if err != nil {
		tb.Fatal(err)
	}
	if len(b) < 5<<20 || len(b) > 6<<20 {
		tb.Fatalf("the report has %d bytes, want 5 MB", len(b))
	}
	return b
}

// everything reads, judges and renders as the action does.
func everything(tb testing.TB, b []byte) int {
	tb.Helper()
	r, err := report.Decode(b)
	if err != nil {
		tb.Fatal(err)
	}
	v := report.View{Report: r, Gate: gate.Judge(r, nil, gate.Options{})}
	files, err := github.Renderings(v)
	if err != nil {
		tb.Fatal(err)
	}
	n := len(report.Markdown(v, report.MarkdownOptions{Marker: github.Marker("x"), Limit: 60000}))
	n += len(report.Markdown(v, report.MarkdownOptions{Limit: 1 << 20}))
	for _, f := range files {
		n += len(f.Data)
	}
	return n
}

func decode(tb testing.TB, b []byte) {
	tb.Helper()
	var v any
	if err := json.Unmarshal(b, &v); err != nil {
		tb.Fatal(err)
	}
}

func timed(f func()) float64 {
	runtime.GC()
	start := time.Now()
	f()
	return time.Since(start).Seconds()
}

// record is set by make bench, whose figures are committed.
const record = "TRTSHIP_RECORD_BENCH"

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}

func TestBenchGateAndRenderings(t *testing.T) {
	b := fiveMegabytes(t)
	var ours, plain []float64
	for range 15 { // in alternation, so that both see the same machine
		plain = append(plain, timed(func() { decode(t, b) }))
		ours = append(ours, timed(func() { everything(t, b) }))
	}
	ratio := median(ours) / median(plain)
	t.Logf("%d bytes: gate and renderings %.1f ms, plain decode %.1f ms, ratio %.2f (aim: below %.0f)", len(b), 1000*median(ours), 1000*median(plain), ratio, most)
	if ratio >= most {
		t.Errorf("ratio %.2f, want below %.0f", ratio, most)
	}
	if os.Getenv(record) == "" {
		return // a test run leaves the committed figures alone
	}
	text, err := report.Encode(map[string]any{
		"what": "gate and every rendering of a report, against a plain JSON decode of the same bytes", "bytes": len(b),
		"gate_and_renderings_seconds": ours, "plain_decode_seconds": plain, "ratio_of_medians": ratio, "aim_below": most, "held": ratio < most, "cores": runtime.NumCPU(), "go": runtime.Version(),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(testkit.Root(t), "docs", "verification", "bench-gate.json"), text, 0o644); err != nil {
		t.Fatal(err)
	}
}

func BenchmarkEverything(b *testing.B) {
	text := fiveMegabytes(b)
	for b.Loop() {
		everything(b, text)
	}
}
