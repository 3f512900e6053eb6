package facts

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
	"github.com/trtship/trtship/report"
)

// The range of fp16: what is larger becomes infinite, what is smaller than
// about half the smallest subnormal becomes 0.
const (
	maxFP16 = 65504
	minFP16 = 6e-8
)

// extent is what a constant holds outside the range of a narrower type.
type extent struct {
	largest      float64 // magnitude, of finite elements
	tiny, all    int64
	low, high    int64 // of integers
	integer, any bool
}

// constants returns the findings about values: floats outside fp16, integers
// outside int32. Large tensors are read in pieces.
func constants(m *onnx.Model) ([]report.Finding, error) {
	var large, small, wide []string
	var failed error
	eachConstant(m, func(name string, t *onnxpb.TensorProto) {
		e, err := scan(m, t)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("read tensor %s: %w", name, err))
			return
		}
		if e.largest > maxFP16 {
			large = append(large, fmt.Sprintf("%s (largest %.6g)", name, e.largest))
		}
		if e.tiny > 0 {
			small = append(small, fmt.Sprintf("%s (%d of %d values)", name, e.tiny, e.all))
		}
		if e.integer && (e.low < math.MinInt32 || e.high > math.MaxInt32) {
			wide = append(wide, fmt.Sprintf("%s (%d to %d)", name, e.low, e.high))
		}
	})
	var out []report.Finding
	add := func(kind, text string, nodes []string) {
		if len(nodes) > 0 {
			out = append(out, report.Finding{Kind: kind, Nodes: sorted(nodes), Text: text})
		}
	}
	add("fp16-range", "holds values beyond 65504, which overflow in fp16", large)
	add("fp16-range", "holds values below 6e-8, which become 0 in fp16", small)
	add("int64-range", "holds integers outside int32, which TensorRT before 10 clamps", wide)
	return out, failed
}

func scan(m *onnx.Model, t *onnxpb.TensorProto) (extent, error) {
	var e extent
	width, see := 0, func([]byte) {}
	switch onnxpb.TensorProto_DataType(t.GetDataType()) {
	case onnxpb.TensorProto_FLOAT:
		width, see = 4, func(b []byte) { e.float(float64(math.Float32frombits(binary.LittleEndian.Uint32(b)))) }
	case onnxpb.TensorProto_DOUBLE:
		width, see = 8, func(b []byte) { e.float(math.Float64frombits(binary.LittleEndian.Uint64(b))) }
	case onnxpb.TensorProto_BFLOAT16:
		width, see = 2, func(b []byte) {
			e.float(float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(b)) << 16)))
		}
	case onnxpb.TensorProto_INT64:
		width, see = 8, func(b []byte) { e.int(int64(binary.LittleEndian.Uint64(b))) }
	default:
		return e, nil
	}
	r, err := m.TensorReader(t)
	if err != nil {
		return e, err
	}
	in, buf := bufio.NewReaderSize(r, 1<<20), make([]byte, width)
	for {
		if _, err := io.ReadFull(in, buf); errors.Is(err, io.EOF) {
			return e, nil
		} else if err != nil {
			return e, err
		}
		see(buf)
	}
}

func (e *extent) float(v float64) {
	e.all++
	a := math.Abs(v)
	switch {
	case math.IsNaN(v) || math.IsInf(v, 0) || a == 0:
	case a < minFP16:
		e.tiny++
	case a > e.largest:
		e.largest = a
	}
}

func (e *extent) int(v int64) {
	e.integer = true
	if !e.any {
		e.low, e.high, e.any = v, v, true
	}
	e.low, e.high = min(e.low, v), max(e.high, v)
}
