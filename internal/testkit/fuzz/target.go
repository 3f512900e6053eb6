package main

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/trtship/trtship/internal/proc"
	"github.com/trtship/trtship/internal/testkit"
)

// target is a function FuzzX of a package.
type target struct {
	dir  string // below the module's folder
	name string
	ort  bool   // its comment says that it asks ONNX Runtime
	slow string // why it takes minutes, as its comment says after "Slow: "
}

func (t target) String() string { return t.dir + "." + t.name }

// findTargets reads the tests of the module.
func findTargets(root string) ([]target, error) {
	var all []target
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() && path != root && (strings.HasPrefix(e.Name(), ".") || e.Name() == "testdata") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Fuzz") {
				all = append(all, target{
					dir: filepath.ToSlash(dir), name: f.Name.Name,
					ort: strings.Contains(f.Doc.Text(), "ONNX Runtime"), slow: whySlow(f.Doc.Text()),
				})
			}
		}
		return err
	})
	sort.Slice(all, func(i, j int) bool { return all[i].String() < all[j].String() })
	return all, err
}

// workers says how many inputs are tried at once.
func workers() string {
	if n := runtime.GOMAXPROCS(0); n > 1 {
		return fmt.Sprintf("%d workers", n)
	}
	return "1 worker"
}

// whySlow is the sentence of a comment that begins with "Slow: ".
func whySlow(comment string) string {
	_, why, _ := strings.Cut(strings.Join(strings.Fields(comment), " "), "Slow: ")
	why, _, _ = strings.Cut(why, ".")
	return why
}

// build compiles the tests of a package as the fuzzer needs them.
func (o options) build(ctx context.Context, dir, overlay string) (string, error) {
	binary := filepath.Join(o.tmp, strings.ReplaceAll(dir, "/", "-")+".test")
	if overlay != "" {
		binary += "-planted"
	} else if _, err := os.Stat(binary); err == nil {
		return binary, nil // of another target of the package
	}
	args := []string{"test", "-c", "-fuzz", ".", "-o", binary}
	if overlay != "" {
		args = append(args, "-overlay", overlay)
	}
	if out, err := o.command(ctx, o.root, o.goTool, append(args, "./"+dir)...); err != nil {
		return "", fmt.Errorf("go test -c %s: %w: %s", dir, err, out)
	}
	return binary, nil
}

// command runs a program in a folder, shows what it writes, and returns it.
func (o options) command(ctx context.Context, dir, path string, args ...string) (string, error) {
	var out shown
	err := proc.Run(ctx, proc.Command{Path: path, Args: args, Env: os.Environ(), Dir: dir, Stdout: &out, Stderr: &out, Grace: 10 * time.Second})
	return out.text.String(), err
}

// shown keeps what both streams of a program hold, and passes it on.
type shown struct {
	mu   sync.Mutex
	text strings.Builder
}

func (s *shown) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text.Write(b)
	return os.Stderr.Write(b)
}

// outcome is what the fuzzer said.
type outcome struct {
	executions, fresh int64
	seconds           float64
	output            string
	failed            bool // the target failed, with an input for it
}

var progress = regexp.MustCompile(`execs: (\d+) \(\d+/sec\)(?:, new interesting: (\d+))?`)

// budget is what a target may use: a number of executions, or a time.
type budget struct {
	executions int64
	time       time.Duration // 0: by executions
}

// String is the value of -test.fuzztime.
func (b budget) String() string {
	if b.time > 0 {
		return b.time.String()
	}
	return fmt.Sprintf("%dx", b.executions)
}

// timeUp is what Go 1.26's fuzzer sometimes says, as a failure, where nothing
// happened but the end of the time it was given (golang/go#75804). What a
// target itself says begins with its file and line.
var timeUp = regexp.MustCompile(`(?m)^ +context deadline exceeded$`)

// onlyTimeUp reports whether a run ended by its time and was taken for failed.
func (b budget) onlyTimeUp(res outcome) bool {
	return b.time > 0 && !res.failed && timeUp.MatchString(res.output)
}

// fuzz runs a target in a folder until its budget is used up or it fails.
func (o options) fuzz(ctx context.Context, binary, dir string, t target, most budget, limit time.Duration) (outcome, error) {
	cache, err := os.MkdirTemp(o.tmp, "corpus-")
	if err != nil {
		return outcome{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	start := time.Now()
	output, err := o.command(ctx, dir, binary, "-test.run=^$", "-test.fuzz=^"+t.name+"$", "-test.fuzzcachedir="+cache,
		"-test.fuzztime="+most.String(), "-test.fuzzminimizetime=10x")
	res := outcome{output: output, seconds: math.Round(time.Since(start).Seconds()*10) / 10}
	for _, m := range progress.FindAllStringSubmatch(res.output, -1) {
		res.executions, _ = strconv.ParseInt(m[1], 10, 64)
		if m[2] != "" {
			res.fresh, _ = strconv.ParseInt(m[2], 10, 64)
		}
	}
	res.failed = strings.Contains(res.output, "--- FAIL: "+t.name) && strings.Contains(res.output, "Failing input written to")
	switch {
	case err != nil && ctx.Err() != nil:
		return res, fmt.Errorf("%d executions within %s, want %s", res.executions, limit, most)
	case err != nil && most.onlyTimeUp(res):
		return res, nil
	}
	return res, err
}

// fuzzTarget has a target executed often enough. An input that fails is kept
// beside the test, where every later run of it tries it again.
func (o options) fuzzTarget(ctx context.Context, t target, want int64) (testkit.FaultRow, error) {
	row := testkit.FaultRow{Kind: testkit.KindFuzz, Package: t.dir, Test: t.name, Detail: "pure Go"}
	if t.ort {
		row.Detail = "asks ONNX Runtime"
	}
	row.Detail += ", " + workers()
	if o.each > 0 {
		row.Detail += ", for " + o.each.String()
	}
	if t.slow != "" {
		row.Detail += "; slow, since " + t.slow
	}
	binary, err := o.build(ctx, t.dir, "")
	if err != nil {
		return row, err
	}
	// The fuzzer counts its seeds and may stop a few short.
	most := budget{executions: want + want/100, time: o.each}
	if o.each > 0 {
		want = 1
	}
	got, err := o.fuzz(ctx, binary, filepath.Join(o.root, filepath.FromSlash(t.dir)), t, most, o.limit)
	row.Tried, row.New, row.Seconds = got.executions, got.fresh, got.seconds
	switch {
	case err != nil:
		return row, fmt.Errorf("%w\n%s", err, got.output)
	case got.executions < want:
		return row, fmt.Errorf("%d executions, want %d", got.executions, want)
	}
	return row, nil
}
