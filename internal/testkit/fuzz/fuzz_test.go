package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/trtship/trtship/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// A bug can only be planted while the line that it spoils stands in the code.
func TestEveryTargetHasABugThatStillFits(t *testing.T) {
	o := options{root: testkit.Root(t)}
	targets, err := findTargets(o.root)
	if err != nil {
		t.Fatal(err)
	}
	if len(targets) < 20 {
		t.Errorf("%d targets were found", len(targets))
	}
	if err := plantsForAll(targets); err != nil {
		t.Error(err)
	}
	for _, p := range plants {
		if p.old == p.new {
			t.Errorf("%s: %s changes nothing", p.target, p.about)
		}
		if _, err := o.overlay(t.TempDir(), p); err != nil {
			t.Errorf("%s: %v", p.target, err)
		}
	}
	if _, err := o.overlay(t.TempDir(), plant{file: filepath.Join("report", "read.go"), old: "no such line", about: "x"}); err == nil {
		t.Error("a bug was planted where there is no such line")
	}
}

func TestATargetSaysItselfWhatItNeedsAndWhyItIsSlow(t *testing.T) {
	targets, err := findTargets(testkit.Root(t))
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]target{}
	for _, x := range targets {
		byName[x.String()] = x
	}
	passes := byName["internal/onnx/passes.FuzzPasses"]
	if want := "each input is a session of its own"; !passes.ort || passes.slow != want {
		t.Errorf("%+v, want ONNX Runtime and %q", passes, want)
	}
	if files := byName["internal/onnx/passes.FuzzPassesOnFiles"]; files.ort || files.slow != "" {
		t.Errorf("%+v, want neither ONNX Runtime nor a reason", files)
	}
}

func TestCountsAreWhatTheFuzzerSaid(t *testing.T) {
	for line, want := range map[string][2]string{
		"fuzz: elapsed: 3s, execs: 102 (33/sec), new interesting: 7 (total: 30)":    {"102", "7"},
		"fuzz: elapsed: 1m27s, execs: 54443 (603/sec)":                              {"54443", ""},
		"fuzz: elapsed: 0s, gathering baseline coverage: 0/33 completed, 202 (1/s)": {},
	} {
		m := progress.FindStringSubmatch(line)
		if want == [2]string{} {
			if m != nil {
				t.Errorf("%q counts as %v", line, m)
			}
			continue
		}
		if m == nil || m[1] != want[0] || m[2] != want[1] {
			t.Errorf("%q gives %v, want %v", line, m, want)
		}
	}
}

func TestABudgetIsExecutionsOrTime(t *testing.T) {
	for want, b := range map[string]budget{"202000x": {executions: 202_000}, "10s": {executions: 202_000, time: 10 * time.Second}} {
		if got := b.String(); got != want {
			t.Errorf("%+v is written %q, want %q", b, got, want)
		}
	}
}

func TestOnlyTheEndOfItsTimeIsNoFailureOfATarget(t *testing.T) {
	const up = "--- FAIL: FuzzX (10.20s)\n    context deadline exceeded\nFAIL\n"
	timed := budget{time: 10 * time.Second}
	for name, c := range map[string]struct {
		budget budget
		res    outcome
		want   bool
	}{
		"the time is up":             {timed, outcome{output: up}, true},
		"there was no time to be up": {budget{executions: 5}, outcome{output: up}, false},
		"an input fails as well":     {timed, outcome{output: up, failed: true}, false},
		"the target says so itself":  {timed, outcome{output: "--- FAIL: FuzzX (0.20s)\n    x_test.go:7: context deadline exceeded\n"}, false},
		"a seed fails":               {timed, outcome{output: "failure while testing seed corpus entry: FuzzX/seed#0\n--- FAIL: FuzzX (0.20s)\n    x_test.go:7: want 1\n"}, false},
	} {
		if got := c.budget.onlyTimeUp(c.res); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestATimedRunReplacesNoLargerCount(t *testing.T) {
	row := func(tried, failures int64) testkit.FaultRow {
		return testkit.FaultRow{Kind: testkit.KindFuzz, Package: "a", Test: "FuzzX", Tried: tried, Failures: failures}
	}
	planted := testkit.FaultRow{Kind: testkit.KindPlanted, Package: "a", Test: "FuzzX", About: "forgets a sign", Tried: 1}
	older := planted
	older.Tried = 900
	for name, c := range map[string]struct {
		each   time.Duration
		old    []testkit.FaultRow
		row    testkit.FaultRow
		stands bool
	}{
		"fewer executions in a given time":    {time.Second, []testkit.FaultRow{row(900, 0)}, row(30, 0), true},
		"more executions in a given time":     {time.Second, []testkit.FaultRow{row(900, 0)}, row(1000, 0), false},
		"a failure counts however early":      {time.Second, []testkit.FaultRow{row(900, 0)}, row(30, 1), false},
		"a failure that is mended goes":       {time.Second, []testkit.FaultRow{row(900, 1)}, row(30, 0), false},
		"the first count is kept":             {time.Second, nil, row(30, 0), false},
		"without a time the newest counts":    {0, []testkit.FaultRow{row(900, 0)}, row(30, 0), false},
		"a planted bug is found as it is now": {time.Second, []testkit.FaultRow{older}, planted, false},
	} {
		root := t.TempDir()
		writeTarget(t, root)
		if err := testkit.MergeFaults(root, c.old...); err != nil {
			t.Fatal(err)
		}
		got, err := options{root: root, each: c.each}.standsAlready(c.row)
		if err != nil || got != c.stands {
			t.Errorf("%s: the old one stays: %v, %v; want %v", name, got, err, c.stands)
		}
	}
}

// writeTarget makes a module's folder of one target and no field failures.
func writeTarget(t *testing.T, root string) {
	t.Helper()
	for _, dir := range []string{"a", filepath.Join("testdata", "cases")} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "a", "a_test.go"), []byte("package a\n\nfunc FuzzX(f *testing.F) {}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
}
