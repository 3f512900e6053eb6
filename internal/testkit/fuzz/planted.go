package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/trtship/trtship/internal/testkit"
)

// plant is one edit of one file that makes a bug which a target must find.
type plant struct {
	target string // package.FuzzX
	about  string // what is wrong then: "the reader ..."
	file   string // below the module's folder
	old    string // stands once in the file
	new    string
}

// Bounds of the search, which uses no more executions than a target is given
// (executionsPure, executionsORT): most bugs are found in far fewer. The fuzzer
// leaves an input as soon as a change of it reaches new code and comes back when
// it has been through all others, so how soon it changes the right byte varies
// a lot. Beginning anew is worth more than going on.
const (
	plantedStarts = 10
	plantedTime   = time.Minute // of each start
)

// findPlanted compiles the tests with the bug, makes sure that no seed shows
// it, and has the target look for it.
func (o options) findPlanted(ctx context.Context, t target, p plant) (testkit.FaultRow, error) {
	row := testkit.FaultRow{Kind: testkit.KindPlanted, Package: t.dir, Test: t.name, About: p.about}
	dir, err := os.MkdirTemp(o.tmp, "planted-")
	if err != nil {
		return row, err
	}
	overlay, err := o.overlay(dir, p)
	if err != nil {
		return row, err
	}
	binary, err := o.build(ctx, t.dir, overlay)
	if err != nil {
		return row, err
	}
	work, err := o.mirror(dir, t)
	if err != nil {
		return row, err
	}
	if out, err := o.command(ctx, work, binary, "-test.run=^"+t.name+"$"); err != nil {
		return row, fmt.Errorf("%s: a seed shows it already, plant one that has to be looked for: %w: %s", p.about, err, out)
	}
	most := int64(executionsPure)
	if t.ort {
		most = executionsORT
	}
	var got outcome
	for range plantedStarts {
		got, err = o.fuzz(ctx, binary, work, t, budget{executions: most / plantedStarts}, plantedTime)
		row.Tried, row.Seconds = row.Tried+got.executions, row.Seconds+got.seconds
		if got.failed || err != nil {
			break
		}
	}
	if !got.failed {
		return row, fmt.Errorf("%s: not found in %d executions: %w", p.about, row.Tried, orNotFound(err))
	}
	row.Detail = "found; no seed shows it"
	if row.Tried == 0 {
		row.Tried = 1
		row.Detail = "found before the fuzzer counted for the first time; no seed shows it"
	}
	return row, nil
}

func orNotFound(err error) error {
	if err == nil {
		return fmt.Errorf("the target passed")
	}
	return err
}

// overlay writes the file with the bug, and what go build needs to take it for
// the one in the tree, which stays as it is.
func (o options) overlay(dir string, p plant) (string, error) {
	path := filepath.Join(o.root, filepath.FromSlash(p.file))
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(text), p.old); n != 1 {
		return "", fmt.Errorf("%s: %q stands %d times in %s", p.about, p.old, n, p.file)
	}
	changed := filepath.Join(dir, "changed.go")
	if err := os.WriteFile(changed, []byte(strings.Replace(string(text), p.old, p.new, 1)), 0o644); err != nil {
		return "", err
	}
	b, err := json.Marshal(map[string]any{"Replace": map[string]string{path: changed}})
	if err != nil {
		return "", err
	}
	overlay := filepath.Join(dir, "overlay.json")
	return overlay, os.WriteFile(overlay, b, 0o644)
}

// mirror makes a tree of links to the module in which the way to the package's
// testdata/fuzz is real: there the fuzzer writes the input that it found.
func (o options) mirror(dir string, t target) (string, error) {
	at, from := filepath.Join(dir, "tree"), o.root
	parts := append(strings.Split(t.dir, "/"), "testdata", "fuzz", t.name)
	for i := 0; ; i++ {
		if err := os.Mkdir(at, 0o755); err != nil {
			return "", err
		}
		entries, err := os.ReadDir(from)
		if err != nil && !os.IsNotExist(err) {
			return "", err
		}
		next := ""
		if i < len(parts) {
			next = parts[i]
		}
		for _, e := range entries {
			if e.Name() == next {
				continue
			}
			if err := os.Symlink(filepath.Join(from, e.Name()), filepath.Join(at, e.Name())); err != nil {
				return "", err
			}
		}
		if next == "" {
			break
		}
		at, from = filepath.Join(at, next), filepath.Join(from, next)
	}
	return filepath.Join(dir, "tree", filepath.FromSlash(t.dir)), nil
}
