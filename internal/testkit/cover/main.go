// Command cover prints the line coverage of a profile by package, with every
// test binary's view merged, and fails below a floor. Generated code and test
// helpers are left out.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"path"
	"sort"
	"strconv"
	"strings"
)

func main() {
	floor := flag.Float64("floor", 0, "least `percentage` over all packages")
	flag.Parse()
	if err := run(flag.Arg(0), *floor); err != nil {
		fmt.Fprintln(os.Stderr, "cover:", err)
		os.Exit(1)
	}
}

// count is the statements of a package, and how many of them ran.
type count struct{ total, covered int }

func (c count) percent() float64 {
	if c.total == 0 {
		return 100
	}
	return 100 * float64(c.covered) / float64(c.total)
}

func run(profile string, floor float64) error {
	blocks, err := read(profile)
	if err != nil {
		return err
	}
	packages, all := map[string]*count{}, count{}
	for block, b := range blocks {
		file, _, _ := strings.Cut(block, ":")
		p := packages[path.Dir(file)]
		if p == nil {
			p = new(count)
			packages[path.Dir(file)] = p
		}
		p.total += b.statements
		all.total += b.statements
		if b.ran {
			p.covered += b.statements
			all.covered += b.statements
		}
	}
	names := make([]string, 0, len(packages))
	for n := range packages {
		names = append(names, n)
	}
	sort.Strings(names)
	fmt.Println("coverage by package (statements, generated code left out):")
	for _, n := range names {
		fmt.Printf("  %6.1f %%  %6d  %s\n", packages[n].percent(), packages[n].total, n)
	}
	fmt.Printf("  %6.1f %%  %6d  total\n", all.percent(), all.total)
	if all.percent() < floor {
		return fmt.Errorf("%.1f %% is below %.1f %%", all.percent(), floor)
	}
	return nil
}

type block struct {
	statements int
	ran        bool
}

// read merges the lines of a profile: a block ran if it ran in any test binary.
func read(profile string) (map[string]block, error) {
	f, err := os.Open(profile)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	blocks := map[string]block{}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) != 3 || left(fields[0]) {
			continue
		}
		n, err := strconv.Atoi(fields[1])
		if err != nil {
			return nil, fmt.Errorf("read profile: %w", err)
		}
		b := blocks[fields[0]]
		blocks[fields[0]] = block{statements: n, ran: b.ran || fields[2] != "0"}
	}
	return blocks, lines.Err()
}

// left reports whether a block's file is not counted.
func left(place string) bool {
	file, _, _ := strings.Cut(place, ":")
	return strings.HasSuffix(file, ".pb.go") || strings.Contains(file, "/testkit/") || strings.Contains(file, "test/") ||
		strings.Contains(file, "/bench/") || strings.Contains(file, "/cmd/")
}
