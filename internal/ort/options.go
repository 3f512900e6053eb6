package ort

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/trtship/trtship/internal/tensor"
)

// Level is how much ONNX Runtime rewrites a graph while loading it.
type Level int

// The levels. Validation uses OptimizeOff; benchmarks and Triton OptimizeAll.
const (
	OptimizeOff      Level = 0
	OptimizeBasic    Level = 1
	OptimizeExtended Level = 2
	OptimizeAll      Level = 99
)

func (l Level) String() string {
	switch l {
	case OptimizeOff:
		return "off"
	case OptimizeBasic:
		return "basic"
	case OptimizeExtended:
		return "extended"
	case OptimizeAll:
		return "all"
	}
	return fmt.Sprintf("level %d", int(l))
}

// Options are the settings of a session. The zero value is right for
// validation: one thread, graph optimisation off.
type Options struct {
	Threads           int           // threads inside one operator; 0 means 1, DefaultThreads what ONNX Runtime chooses
	GraphOptimization Level         // off unless set
	MemoryMB          int           // address-space limit of the child in MiB; 0 is none
	Timeout           time.Duration // of loading, and of each run; 0 is none
	ExtraOutputs      []string      // inner values that Infer returns too, after the model's outputs
	ProfileDir        string        // write an operator profile into this folder; see EndProfile
	ConfigEntries     map[string]string
	Log               io.Writer // gets a copy of what the child writes to stdout and stderr
}

// DefaultThreads leaves the number of threads to ONNX Runtime: one a core.
const DefaultThreads = -1

// threads is the number as ONNX Runtime takes it, 0 for its own choice.
func (o Options) threads() int {
	switch o.Threads {
	case DefaultThreads:
		return 0
	case 0:
		return 1
	}
	return o.Threads
}

// ValueInfo is an input or output of a model.
type ValueInfo struct {
	Name    string       `json:"name"`
	DType   tensor.DType `json:"dtype"` // empty for what is no tensor
	Dims    []int64      `json:"dims"`  // -1 where the size is not fixed
	Symbols []string     `json:"symbols,omitempty"`
}

// String returns e.g. "x float32[batch,3]".
func (v ValueInfo) String() string {
	dims := make([]string, len(v.Dims))
	for i, d := range v.Dims {
		switch {
		case d >= 0:
			dims[i] = fmt.Sprint(d)
		case i < len(v.Symbols) && v.Symbols[i] != "":
			dims[i] = v.Symbols[i]
		default:
			dims[i] = "?"
		}
	}
	return fmt.Sprintf("%s %s[%s]", v.Name, v.DType, strings.Join(dims, ","))
}

// sessionOptions is what the child needs of Options.
type sessionOptions struct {
	Threads int               `json:"threads"`
	Level   Level             `json:"level"`
	Profile string            `json:"profile,omitempty"` // prefix of the file
	Entries map[string]string `json:"entries,omitempty"`
}
