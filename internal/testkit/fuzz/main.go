// Command fuzz runs the module's fuzz targets until each has been executed
// often enough, and shows that each of them can fail: it plants a bug in what
// the target looks at and waits for the target to find it. With -record the
// counts, taken from the fuzzer's own output, go to docs/verification/faults.json.
// With -time each target runs that long instead; then a count that is larger
// stays where it is recorded already.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/trtship/trtship/internal/proc"
	"github.com/trtship/trtship/internal/testkit"
)

// Executions of each target, and the most in which a planted bug is found.
const (
	executionsPure = 200_000
	executionsORT  = 5_000
)

// options are the flags.
type options struct {
	root    string
	only    *regexp.Regexp
	pure    int64         // executions of a target of pure Go
	ort     int64         // executions of a target that calls ONNX Runtime
	each    time.Duration // instead of executions: how long each target runs; 0: by executions
	planted bool
	record  bool
	limit   time.Duration
	tmp     string
	goTool  string
}

func main() {
	var o options
	only := flag.String("run", "", "only targets whose package.Name matches this `expression`")
	flag.Int64Var(&o.pure, "pure", executionsPure, "executions of each target of pure Go; 0: none")
	flag.Int64Var(&o.ort, "ort", executionsORT, "executions of each target that calls ONNX Runtime; 0: none")
	flag.DurationVar(&o.each, "time", 0, "`time` for each target, instead of executions; 0: by executions")
	flag.BoolVar(&o.planted, "planted", true, "plant bugs and have them found")
	flag.BoolVar(&o.record, "record", false, "put the counts into docs/verification/faults.json")
	flag.DurationVar(&o.limit, "limit", 30*time.Minute, "longest `time` for one target")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, o, *only); err != nil {
		fmt.Fprintln(os.Stderr, "fuzz:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, o options, only string) (err error) {
	if o.only, err = regexp.Compile(only); err != nil {
		return err
	}
	if o.root, err = os.Getwd(); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(o.root, "go.mod")); err != nil {
		return errors.New("run it in the module's folder")
	}
	if o.goTool, err = proc.Look("go", os.Getenv("PATH")); err != nil {
		return err
	}
	if o.tmp, err = os.MkdirTemp("", "trtship-fuzz-"); err != nil {
		return err
	}
	defer os.RemoveAll(o.tmp) //nolint:errcheck // a temporary folder
	targets, err := findTargets(o.root)
	if err != nil {
		return err
	}
	if err := plantsForAll(targets); o.planted && err != nil {
		return err
	}
	if o.record {
		if err := testkit.KeepFaults(o.root, stillPlanted); err != nil {
			return err
		}
	}
	start := time.Now()
	var failed []string
	for _, t := range targets {
		if !o.only.MatchString(t.String()) {
			continue
		}
		if want := o.executions(t); want > 0 && ctx.Err() == nil {
			row, err := o.fuzzTarget(ctx, t, want)
			if problems := o.keep(ctx, row, err); len(problems) > 0 {
				failed = append(failed, problems...)
				continue // what it fails with hides a planted bug
			}
		}
		for _, p := range plants {
			if o.planted && p.target == t.String() && ctx.Err() == nil {
				row, err := o.findPlanted(ctx, t, p)
				failed = append(failed, o.keep(ctx, row, err)...)
			}
		}
	}
	fmt.Printf("%s, %s\n", time.Since(start).Round(time.Second), workers())
	if len(failed) > 0 {
		return fmt.Errorf("%d failures:\n%s", len(failed), strings.Join(failed, "\n"))
	}
	return ctx.Err()
}

func (o options) executions(t target) int64 {
	if t.ort {
		return o.ort
	}
	return o.pure
}

// keep prints and records a row, and returns what failed. A run that was ended
// from outside says nothing of its target and is not recorded.
func (o options) keep(ctx context.Context, row testkit.FaultRow, err error) []string {
	var failed []string
	if ctx.Err() != nil {
		return []string{fmt.Sprintf("%s.%s: ended: %v", row.Package, row.Test, ctx.Err())}
	}
	if err != nil {
		row.Failures = 1
		failed = append(failed, fmt.Sprintf("%s.%s: %v", row.Package, row.Test, err))
	}
	fmt.Printf("%s.%s: %s: %d executions, %d new interesting, %d failures, %.0f s; %s\n", row.Package, row.Test, strings.TrimSpace(row.Kind+" "+row.About), row.Tried, row.New, row.Failures, row.Seconds, row.Detail)
	if !o.record {
		return failed
	}
	stays, err := o.standsAlready(row)
	if err == nil && !stays {
		err = testkit.MergeFaults(o.root, row)
	}
	if err != nil {
		failed = append(failed, err.Error())
	}
	return failed
}

// standsAlready reports whether a larger count without failures is recorded: a
// run bounded in time that found nothing says less than that.
func (o options) standsAlready(row testkit.FaultRow) (bool, error) {
	if o.each == 0 || row.Kind != testkit.KindFuzz || row.Failures > 0 {
		return false, nil
	}
	old, found, err := testkit.RecordedFault(o.root, row)
	return found && old.Failures == 0 && old.Tried > row.Tried, err
}

// plantsForAll demands a planted bug for each target, and a target for each bug.
func plantsForAll(targets []target) error {
	known := map[string]bool{}
	for _, p := range plants {
		known[p.target] = true
	}
	for _, t := range targets {
		if !known[t.String()] {
			return fmt.Errorf("no bug is planted for %s: add one to plants.go", t)
		}
		delete(known, t.String())
	}
	for name := range known {
		return fmt.Errorf("a bug is planted for %s, which is no target", name)
	}
	return nil
}

// stillPlanted reports whether a row is of a bug that is planted, or of none.
func stillPlanted(r testkit.FaultRow) bool {
	return r.Kind != testkit.KindPlanted || slices.ContainsFunc(plants, func(p plant) bool {
		return p.target == r.Package+"."+r.Test && p.about == r.About
	})
}
