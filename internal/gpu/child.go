package gpu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/proc"
)

// childArg, followed by a library, makes this program a child that asks it.
const childArg = "trtship-gpu-child"

// The libraries of the driver.
const (
	libraryNVML = "nvml"
	libraryCUDA = "cuda"
)

// answerMark begins the line of the answer: libraries may print lines of their own.
const answerMark = "trtship-gpu-answer "

// answer is what a child writes to stdout.
type answer struct {
	Devices []Device       `json:"devices,omitempty"`
	CUDA    CUDA           `json:"cuda"`
	Error   *failure.Error `json:"error,omitempty"`
	// Absent is a library that the loader does not find at all.
	Absent bool `json:"absent,omitempty"`
}

// canRunChild is set once main has given us the chance to be the child; without
// it a child would run the whole program again.
var canRunChild atomic.Bool

// RunChildIfAsked turns the process into a child that asks a library of the NVIDIA
// driver, and ends it, if it was started as one; otherwise it returns at once. It
// comes first in main, and in TestMain of packages that use [Ask].
func RunChildIfAsked() {
	canRunChild.Store(true)
	if len(os.Args) != 3 || os.Args[1] != childArg {
		return
	}
	proc.DieBySignal()
	var a answer
	switch os.Args[2] {
	case libraryNVML:
		a.askNVML()
	case libraryCUDA:
		a.CUDA = askCUDA()
	}
	b, err := json.Marshal(a)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1) //nolint:forbidigo // the process is the child
	}
	fmt.Fprintf(os.Stdout, "\n%s%s\n", answerMark, b)
	os.Exit(0) //nolint:forbidigo // the process is the child
}

// askNVML fills in the devices, or why there are none.
func (a *answer) askNVML() {
	var err error
	if a.Devices, err = New().Devices(); err == nil {
		return
	}
	if !errors.As(err, &a.Error) {
		a.Error = failure.New(failure.Missing, "%v", err)
	}
	a.Error.Err = nil // no way to send it
	// A file that is there and is no library is none that is not found.
	if reason := loadError(files[libraryNVML]); strings.Contains(reason, "No such file") {
		a.Absent = true
	} else if reason != "" {
		a.Error = failure.New(failure.Missing, "no usable NVIDIA GPU: NVML cannot be loaded: %s", reason).WithHint(damaged, files[libraryNVML])
	}
}

// damaged is the hint for a library that is no good.
const damaged = "the file that the loader finds as %s is cut off, or does not belong to this driver: install the driver's libraries again"

// patience is how long the driver may take to answer. Without persistence mode it
// wakes every GPU first, some seconds each.
const patience = time.Minute

// Ask asks both libraries of the driver, each in a child with the environment env
// (as NAME=value). A child that dies or hangs is an error that says how, with what
// it wrote last.
func Ask(ctx context.Context, env []string) Survey { return ask(ctx, env, patience) }

func ask(ctx context.Context, env []string, patience time.Duration) Survey {
	s := Survey{root: "/"}
	for _, v := range env {
		if value, ok := strings.CutPrefix(v, "NVIDIA_DRIVER_CAPABILITIES="); ok {
			s.capabilities = value
		}
	}
	cuda := make(chan answer)
	go func() {
		a, err := askChild(ctx, libraryCUDA, env, patience)
		if err != nil {
			s.Crash = err
		}
		cuda <- a
	}()
	a, err := askChild(ctx, libraryNVML, env, patience)
	s.CUDA = (<-cuda).CUDA
	s.Devices, s.NVML, s.absent = a.Devices, err, a.Absent
	if a.Error != nil {
		s.NVML = a.Error
	}
	return s
}

// files are the names by which the loader finds the libraries.
var files = map[string]string{libraryNVML: "libnvidia-ml.so.1", libraryCUDA: "libcuda.so.1"}

func askChild(ctx context.Context, library string, env []string, patience time.Duration) (answer, error) {
	var a answer
	if !canRunChild.Load() {
		return a, errors.New("ask the NVIDIA driver: gpu.RunChildIfAsked was not called first thing in main (or TestMain)")
	}
	self, err := os.Executable()
	if err != nil {
		return a, fmt.Errorf("ask the NVIDIA driver: %w", err)
	}
	limited, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("no answer within %v", patience))
	defer cancel()
	out, err := proc.Output(limited, proc.Command{
		Path: self, Args: []string{childArg, library}, Env: env, Dir: os.TempDir(), Grace: time.Second,
	})
	if ctx.Err() != nil {
		return a, fmt.Errorf("ask the NVIDIA driver: %w", context.Cause(ctx))
	}
	if err == nil {
		err = errors.New("it ended without an answer")
		for line := range strings.Lines(out) {
			if text, ok := strings.CutPrefix(line, answerMark); ok {
				err = json.Unmarshal([]byte(text), &a)
			}
		}
	}
	if err != nil {
		return answer{}, died(library, err)
	}
	return a, nil
}

// died says how the child of a library ended.
func died(library string, err error) error {
	how := err.Error()
	e := failure.New(failure.Missing, "no usable NVIDIA GPU")
	hint := damaged
	if p, ok := errors.AsType[*proc.Error](err); ok {
		switch {
		case p.Killed:
			how = fmt.Sprintf("%v", p.Cause)
			hint = "the driver hangs behind %s, and nvidia-smi will, too: look at dmesg for lines with NVRM or Xid"
		case p.Signal != 0:
			how = fmt.Sprintf("the process that asks it dies (%s)", proc.SignalName(p.Signal))
		default:
			how = fmt.Sprintf("the process that asks it ends with exit status %d", p.Exit)
		}
		if tail := strings.TrimSpace(p.Tail); tail != "" {
			lines := strings.Split(tail, "\n")
			how += ": " + strings.TrimSpace(lines[len(lines)-1])
			e.With("its last lines", "%s", strings.Join(lines[max(0, len(lines)-5):], "\n"))
		}
	}
	e.Message = fmt.Sprintf("no usable NVIDIA GPU: %s: %s", files[library], how)
	return e.WithHint(hint, files[library])
}
