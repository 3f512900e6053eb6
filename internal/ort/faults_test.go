package ort

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/trtship/trtship/internal/proc"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/internal/testkit"
)

// childFaults are the ways in which the child goes wrong at a message.
var childFaults = []string{
	"killed", "killed within the line", "killed within the tensors", "crashed", "exit 0", "exit 0 within the line", "garbage", "another id",
	"a tensor of a terabyte", "a tensor of another length", "another type of reply", "silence",
}

// faultFile tells a child of this process what to do: it sees no environment.
func faultFile(parent int) string {
	return filepath.Join(os.TempDir(), fmt.Sprintf("trtship-ort-fault-%d", parent))
}

// goWrongIfAsked makes this process a child that goes wrong, if its parent wrote
// so. It comes before RunChildIfAsked.
func goWrongIfAsked() {
	if len(os.Args) != 2 || os.Args[1] != childArg {
		return
	}
	text, err := os.ReadFile(faultFile(os.Getppid()))
	if err != nil {
		return
	}
	at, fault, _ := strings.Cut(string(text), " ")
	n, _ := strconv.Atoi(at)
	proc.DieBySignal()
	out := &faultyPipe{File: os.NewFile(replyFD, "replies"), at: n, fault: fault}
	if err := serve(os.NewFile(requestFD, "requests"), out); err != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

// faultyPipe goes wrong at one message. Small messages are one write each.
type faultyPipe struct {
	*os.File
	at, sent int
	fault    string
}

func (p *faultyPipe) Write(b []byte) (int, error) {
	p.sent++
	if p.sent-1 != p.at {
		return p.File.Write(b)
	}
	line, rest, _ := bytes.Cut(b, []byte("\n"))
	write := func(parts ...[]byte) {
		for _, x := range parts {
			_, _ = p.File.Write(x)
		}
	}
	kill := func(s syscall.Signal) { _ = syscall.Kill(os.Getpid(), s); time.Sleep(time.Hour) }
	newline := []byte("\n")
	switch p.fault {
	case "killed":
		kill(syscall.SIGKILL)
	case "killed within the line":
		write(line[:len(line)/2])
		kill(syscall.SIGKILL)
	case "killed within the tensors":
		write(line, newline, rest[:len(rest)/2])
		kill(syscall.SIGKILL)
	case "crashed":
		kill(syscall.SIGSEGV)
	case "exit 0":
		os.Exit(0)
	case "exit 0 within the line":
		write(line[:len(line)/2])
		os.Exit(0)
	case "garbage":
		write([]byte("\xff\x00 nonsense\n"))
	case "another id":
		write(bytes.Replace(line, []byte(`"id":`), []byte(`"id":47`), 1), newline, rest)
	case "a tensor of a terabyte":
		write([]byte(fmt.Sprintf(`{"id":%d,"tensors":[{"name":"y","dtype":"float32","shape":[274877906944],"bytes":1099511627776}]}`+"\n", p.sent)))
		os.Exit(0)
	case "a tensor of another length":
		write([]byte(fmt.Sprintf(`{"id":%d,"tensors":[{"name":"y","dtype":"float32","shape":[3],"bytes":4}]}`+"\nabcd", p.sent)))
	case "another type of reply":
		write([]byte("[1,2,3]\n"))
	case "silence":
		time.Sleep(time.Hour)
	default:
		return p.File.Write(b)
	}
	return len(b), nil
}

// A child of ONNX Runtime that goes wrong at any message is an error in words,
// what it answered before counts, and no process is left.
func TestTheChildGoesWrongAtEachMessage(t *testing.T) {
	testkit.NoChildren(t)
	lib, model := library(t), identity(t, []int64{-1}, tensor.Float32, tensor.String)
	feed := []tensor.Named{
		{Name: "in_float32", Tensor: tensor.FromFloat32s([]int64{2}, []float32{1, 2})},
		{Name: "in_string", Tensor: tensor.FromStrings([]int64{1}, []string{"a"})},
	}
	talk := func(fault string, at int) (string, error) {
		if err := os.WriteFile(faultFile(os.Getpid()), []byte(fmt.Sprintf("%d %s", at, fault)), 0o600); err != nil {
			t.Fatal(err)
		}
		defer os.Remove(faultFile(os.Getpid())) //nolint:errcheck // a temporary file
		s, err := Open(context.Background(), lib, model, Options{Timeout: 700 * time.Millisecond, ProfileDir: t.TempDir(), Log: io.Discard})
		if err != nil {
			return "", err
		}
		defer s.Close() //nolint:errcheck // it only ends the child
		all := ""
		for range 2 {
			out, err := s.Infer(context.Background(), feed)
			if err != nil {
				return "", err
			}
			all += fmt.Sprint(out[0].Data, out[1].Strings)
		}
		b, err := s.Benchmark(context.Background(), feed, BenchmarkRequest{Workers: 1, Iters: 3})
		if err != nil {
			return "", err
		}
		if _, err := s.EndProfile(context.Background()); err != nil {
			return "", err
		}
		return all + fmt.Sprint(len(b.Samples)), nil
	}
	want, err := talk("", -1)
	if err != nil {
		t.Fatal(err)
	}
	const messages = 5 // load, infer, infer, benchmark, end of profiling
	var tried, failures int64
	for at := range messages {
		for _, fault := range childFaults {
			if fault == "killed within the tensors" && at != 1 && at != 2 {
				continue // the others hold none
			}
			if at == 3 && fault == "silence" {
				continue // a benchmark has no time limit of its own
			}
			tried++
			start := time.Now()
			got, err := talk(fault, at)
			if err == nil || len(err.Error()) < 20 || time.Since(start) > 30*time.Second {
				failures++
				t.Errorf("%s at message %d after %s: got %q, %v; want an error (without a fault: %q)", fault, at, time.Since(start), got, err, want)
			}
		}
	}
	testkit.RecordFaults(t, testkit.FaultRow{Kind: "ONNX Runtime child goes wrong at a message", Tried: tried, Failures: failures, Detail: fmt.Sprintf("%d messages, %d ways", messages, len(childFaults))})
}
