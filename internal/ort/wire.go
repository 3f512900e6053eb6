package ort

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"github.com/trtship/trtship/internal/tensor"
)

// The operations of the protocol.
const (
	opVersion    = "version"
	opLoad       = "load"
	opInfer      = "infer"
	opBenchmark  = "benchmark"
	opEndProfile = "end-profile"
	opReduce     = "reduce"
	opReduced    = "reduced"
	opSizes      = "sizes"
)

// wireTensor announces a tensor whose bytes follow the line.
type wireTensor struct {
	Name  string       `json:"name"`
	DType tensor.DType `json:"dtype"`
	Shape []int64      `json:"shape"`
	Bytes int64        `json:"bytes"`
}

// request is one line from the parent.
type request struct {
	ID        int64             `json:"id"`
	Op        string            `json:"op"`
	Load      *loadRequest      `json:"load,omitempty"`
	Benchmark *BenchmarkRequest `json:"benchmark,omitempty"`
	Reduce    *reduceRequest    `json:"reduce,omitempty"`
	Tensors   []wireTensor      `json:"tensors,omitempty"`

	feed []tensor.Named
}

type loadRequest struct {
	Library      string         `json:"library"`
	Model        string         `json:"model"`
	Options      sessionOptions `json:"options"`
	ExtraOutputs []string       `json:"extra_outputs,omitempty"`
	MemoryMB     int            `json:"memory_mb,omitempty"`
}

// reply is one line from the child.
type reply struct {
	ID        int64            `json:"id"`
	Error     *statusError     `json:"error,omitempty"`
	Version   string           `json:"version,omitempty"`
	Inputs    []ValueInfo      `json:"inputs,omitempty"`
	Optional  []ValueInfo      `json:"optional,omitempty"`
	Outputs   []ValueInfo      `json:"outputs,omitempty"`
	LoadMs    float64          `json:"load_ms,omitempty"`
	Path      string           `json:"path,omitempty"`
	Benchmark *BenchmarkResult `json:"benchmark,omitempty"`
	State     []byte           `json:"state,omitempty"`
	Sizes     map[string]int64 `json:"sizes,omitempty"`
	Tensors   []wireTensor     `json:"tensors,omitempty"`

	outputs []tensor.Named
}

// maxLine bounds one line of JSON; a graph with very many outputs fits.
const maxLine = 256 << 20

// maxTensor bounds what one announcement may make a reader allocate.
const maxTensor = 1 << 40

// announce describes tensors and returns their bytes; nothing is copied but strings.
func announce(ts []tensor.Named) ([]wireTensor, [][]byte) {
	heads, bodies := make([]wireTensor, len(ts)), make([][]byte, len(ts))
	for i, t := range ts {
		bodies[i] = t.Data
		if t.DType == tensor.String {
			bodies[i] = tensor.AppendStrings(nil, t.Strings)
		}
		heads[i] = wireTensor{Name: t.Name, DType: t.DType, Shape: t.Shape, Bytes: int64(len(bodies[i]))}
	}
	return heads, bodies
}

// send writes one line and the bytes that it announces.
func send(w *bufio.Writer, line any, bodies [][]byte) error {
	b, err := json.Marshal(line)
	if err != nil {
		return err
	}
	if _, err := w.Write(append(b, '\n')); err != nil {
		return err
	}
	for _, body := range bodies {
		if _, err := w.Write(body); err != nil {
			return err
		}
	}
	return w.Flush()
}

// receiveLine reads one line of JSON into v.
func receiveLine(r *bufio.Reader, v any) error {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		if err == nil {
			break
		}
		if err != bufio.ErrBufferFull { //nolint:errorlint // never wrapped
			return err
		}
		if len(line) > maxLine {
			return fmt.Errorf("a line of the protocol is longer than %d bytes", maxLine)
		}
	}
	if err := json.Unmarshal(line, v); err != nil {
		return fmt.Errorf("line %.200q of the protocol: %w", line, err)
	}
	return nil
}

// receiveTensors reads what a line announced.
func receiveTensors(r *bufio.Reader, heads []wireTensor) ([]tensor.Named, error) {
	ts := make([]tensor.Named, len(heads))
	for i, h := range heads {
		if h.Bytes < 0 || h.Bytes > maxTensor {
			return nil, fmt.Errorf("tensor %q announces %d bytes", h.Name, h.Bytes)
		}
		raw, err := receiveBytes(r, h.Bytes)
		if err != nil {
			return nil, fmt.Errorf("tensor %q: %w", h.Name, err)
		}
		t := tensor.Named{Name: h.Name, Tensor: tensor.Tensor{DType: h.DType, Shape: h.Shape}}
		if t.Shape == nil {
			t.Shape = []int64{}
		}
		if h.DType == tensor.String {
			ss, err := tensor.SplitStrings(raw)
			if err != nil {
				return nil, fmt.Errorf("tensor %q: %w", h.Name, err)
			}
			t.Strings = ss
		} else {
			t.Data = raw
		}
		if err := t.Check(); err != nil {
			return nil, fmt.Errorf("tensor %q: %w", h.Name, err)
		}
		ts[i] = t
	}
	return ts, nil
}

// trusted is how many bytes an announcement is believed for at once.
const trusted = 16 << 20

// receiveBytes reads n bytes. Memory grows with what arrives: a line that
// announces a terabyte takes none.
func receiveBytes(r io.Reader, n int64) ([]byte, error) {
	b := make([]byte, min(n, trusted))
	for have := int64(0); ; {
		if _, err := io.ReadFull(r, b[have:]); err != nil {
			return nil, err
		}
		if have = int64(len(b)); have == n {
			return b, nil
		}
		b = slices.Grow(b, int(min(have, n-have)))[:min(2*have, n)]
	}
}
