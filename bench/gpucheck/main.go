// Command gpucheck proves on a machine with an NVIDIA GPU what trtship says of
// GPUs, and writes the evidence that the README's table is made from.
//
// The work is cut into parts that each take a few minutes. A part runs the real
// commands of trtship (this same binary, so that one file is carried), checks
// what came out, and writes its rows, stamped with the binary's digest. Merging
// refuses parts of another binary and parts that are missing; a row that was
// skipped is a failure.
//
//	gpucheck -list
//	gpucheck -part digits-strong -out parts
//	gpucheck -merge parts -evidence docs/verification
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/trtship/trtship/internal/cli"
	"github.com/trtship/trtship/internal/gpu"
	"github.com/trtship/trtship/internal/ort"
)

func main() {
	ort.RunChildIfAsked()
	gpu.RunChildIfAsked()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if len(os.Args) > 1 && os.Args[1] == "trtship" {
		os.Exit(cli.Main(ctx, os.Args[2:], cli.IO{
			Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.Getenv, Environ: os.Environ,
		}))
	}
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "gpucheck:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	list := flag.Bool("list", false, "list the parts")
	names := flag.String("part", "", "run these parts, with commas, or all")
	out := flag.String("out", "parts", "folder for the rows of parts, and of -merge")
	work := flag.String("work", "", "folder for stores and engines; kept, so that a part goes on where it stopped")
	before := flag.String("prepare", "", "build the engines of this part, which then finds them; may run beside other work")
	merge := flag.String("merge", "", "merge the parts in this folder")
	evidence := flag.String("evidence", "docs/verification", "folder for h200.json and h200.xml")
	flag.Parse()
	switch {
	case *list:
		for _, p := range parts {
			fmt.Printf("%-16s %s\n", p.name, p.title)
		}
		return nil
	case *merge != "":
		return mergeParts(*merge, *evidence)
	case *before != "":
		e, err := newEnv(or(*work, filepath.Join(*out, "work")))
		if err != nil {
			return err
		}
		return prepare(ctx, e, *before)
	case *names != "":
		return runParts(ctx, *names, *out, *work)
	}
	return fmt.Errorf("say -list, -part, -prepare or -merge")
}

// runParts runs parts one after the other. A part that fails does not stop the
// next one; its rows say so.
func runParts(ctx context.Context, names, out, work string) error {
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	if work == "" {
		work = filepath.Join(out, "work")
	}
	e, err := newEnv(work)
	if err != nil {
		return err
	}
	failed := 0
	for _, p := range parts {
		if names != "all" && !has(strings.Split(names, ","), p.name) {
			continue
		}
		started := time.Now()
		fmt.Fprintf(os.Stderr, "== %s: %s\n", p.name, p.title)
		rows := p.run(ctx, e)
		doc := Part{Name: p.name, Title: p.title, Binary: e.digest, Machine: e.machine(ctx), Seconds: time.Since(started).Seconds(), Rows: rows}
		for _, r := range rows {
			fmt.Fprintf(os.Stderr, "%-6s %s · %s: %s\n", r.Verdict, r.Area, r.Subject, r.Detail)
			if r.Verdict != pass {
				failed++
			}
		}
		if len(rows) == 0 {
			failed++
		}
		if err := writeJSON(filepath.Join(out, p.name+".json"), doc); err != nil {
			return err
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d rows do not hold", failed)
	}
	return nil
}

func has(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

func writeJSON(path string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o644)
}
