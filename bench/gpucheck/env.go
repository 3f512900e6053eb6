package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/proc"
	"github.com/trtship/trtship/internal/worker"
	"github.com/trtship/trtship/report"
)

// env is where parts run.
type env struct {
	self   string // this program
	digest string // its SHA-256
	work   string
	python string
	info   Machine
}

func newEnv(work string) (*env, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	f, err := os.Open(self)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return nil, err
	}
	if work, err = filepath.Abs(work); err != nil {
		return nil, err
	}
	python, err := proc.Look(or(os.Getenv("TRTSHIP_PYTHON"), "python3"), os.Getenv("PATH"))
	if err != nil {
		return nil, err
	}
	return &env{self: self, digest: hex.EncodeToString(sum.Sum(nil)), work: work, python: python}, os.MkdirAll(work, 0o755)
}

func or(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// trtship runs a command of trtship in a folder of its own and returns what it
// printed and its exit code.
func (e *env) trtship(ctx context.Context, dir string, args ...string) ([]byte, failure.Code, error) {
	var out bytes.Buffer
	err := proc.Run(ctx, proc.Command{
		Path: e.self, Args: append([]string{"trtship"}, args...), Stdout: &out, Stderr: os.Stderr,
		Env: append(os.Environ(), "TRTSHIP_STORE="+filepath.Join(dir, "store"), "TRTSHIP_PYTHON="+e.python, "CI=true"),
	})
	if child, ok := errors.AsType[*proc.Error](err); ok && child.Exit > 0 {
		return out.Bytes(), failure.Code(child.Exit), nil
	}
	return out.Bytes(), failure.OK, err
}

// pipeline runs a configuration and returns the report, also of a run that failed.
func (e *env) pipeline(ctx context.Context, name, config string, args ...string) (*report.Report, failure.Code, error) {
	dir := filepath.Join(e.work, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, 0, err
	}
	out, code, err := e.trtship(ctx, dir, append([]string{"run", config, "--json"}, args...)...)
	if err != nil {
		return nil, code, err
	}
	var r report.Report
	if err := json.Unmarshal(out, &r); err != nil {
		return nil, code, fmt.Errorf("run ended with exit code %d and no report: %w", code, err)
	}
	return &r, code, nil
}

// child starts a Python child that sees the GPU.
func (e *env) child(ctx context.Context) (*worker.Worker, error) {
	return worker.Start(ctx, worker.Options{
		Python: e.python, Subject: "gpucheck", CUDA: true, Log: os.Stderr,
		Env: gpuEnv(),
	})
}

// gpuEnv is what a child without our environment needs to find the libraries and the GPU.
func gpuEnv() []string {
	env := []string{"LD_LIBRARY_PATH=" + os.Getenv("LD_LIBRARY_PATH"), "CUDA_DEVICE_ORDER=PCI_BUS_ID"}
	if v, ok := os.LookupEnv("CUDA_VISIBLE_DEVICES"); ok {
		env = append(env, "CUDA_VISIBLE_DEVICES="+v)
	}
	return env
}

// machine is what doctor's facts are: GPUs and versions.
func (e *env) machine(context.Context) Machine { return e.info }

// note keeps the machine that a report describes.
func (e *env) note(r *report.Report) {
	e.info = Machine{GPUs: r.Environment.GPUs, Tools: r.Environment.Tools}
}
