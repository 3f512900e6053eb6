package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/jstemmer/go-junit-report/v2/gtr"
	"github.com/jstemmer/go-junit-report/v2/parser/gotest"

	"github.com/trtship/trtship/internal/proc"
	"github.com/trtship/trtship/report"
)

// testBinaries are built by `go test -c -tags gpu`, beside this program.
const testBinaries = "*.gpu.test"

// testsPart runs the tests with the tag gpu, compiled before, and makes a row of each.
func testsPart(ctx context.Context, e *env) []Row {
	found, err := filepath.Glob(filepath.Join(filepath.Dir(e.self), testBinaries))
	if err != nil || len(found) == 0 {
		return broken("tests", "all", fmt.Errorf("there is no %s beside gpucheck: make gpu-check builds them", testBinaries))
	}
	var rows []Row
	for _, file := range found {
		got, err := e.tests(ctx, file)
		if err != nil {
			got = append(got, broken("tests", filepath.Base(file), err)...)
		}
		rows = append(rows, got...)
	}
	return rows
}

// tests runs one test binary. A skipped test is a failure.
func (e *env) tests(ctx context.Context, file string) ([]Row, error) {
	var out bytes.Buffer
	ran := proc.Run(ctx, proc.Command{
		Path: file, Args: []string{"-test.v", "-test.run", "^TestGPU", "-test.timeout", "10m"}, Dir: e.work,
		Stdout: io.MultiWriter(&out, os.Stderr), Stderr: os.Stderr, Env: append(os.Environ(), "TRTSHIP_PYTHON="+e.python),
	})
	parsed, err := gotest.NewParser().Parse(&out)
	if err != nil {
		return nil, err
	}
	var rows []Row
	for _, p := range parsed.Packages {
		for _, t := range p.Tests {
			rows = append(rows, testRow(t))
		}
	}
	if len(rows) == 0 {
		return nil, fmt.Errorf("%s ran no test: %w", filepath.Base(file), ran)
	}
	return rows, ran
}

func testRow(t gtr.Test) Row {
	row := Row{Area: "tests", Subject: t.Name, Verdict: report.Pass, Detail: "passes"}
	switch t.Result {
	case gtr.Pass:
	case gtr.Skip:
		row.Verdict, row.Detail = report.Missing, "was skipped: "+strings.Join(t.Output, " ")
	default:
		row.Verdict, row.Detail = report.Fail, strings.Join(t.Output, " ")
	}
	return row
}
