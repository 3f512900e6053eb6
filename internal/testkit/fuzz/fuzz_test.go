package main

import (
	"path/filepath"
	"testing"

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
