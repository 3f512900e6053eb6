package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/onnx/facts"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
	"github.com/trtship/trtship/internal/onnx/passes"
	"github.com/trtship/trtship/internal/proc"
	"google.golang.org/protobuf/proto"
)

// Large is one pass of a large model through a process of its own.
type Large struct {
	Bytes   int64   `json:"bytes"`
	Seconds float64 `json:"seconds"`
	PeakRSS int64   `json:"peak_rss_bytes"`
	Aim     int64   `json:"aim_at_most_bytes"`
	Held    bool    `json:"held"`
	Steps   string  `json:"steps"`
}

// Sizes of the large model: 12 matrices of 8192 by 8192 float32, two of them
// equal.
const (
	matrices = 12
	edge     = 8192
)

// largeModel writes the model and takes it through a child that is this program.
func largeModel(ctx context.Context, dir string) (*Large, error) {
	path := filepath.Join(dir, "large.onnx")
	if _, err := os.Stat(path); err != nil {
		if err := writeLarge(path); err != nil {
			return nil, err
		}
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	out, err := proc.Output(ctx, proc.Command{Path: self, Args: []string{"-one", path}, Env: []string{"LANG=C.UTF-8"}, Stderr: os.Stderr})
	if err != nil {
		return nil, err
	}
	l := new(Large)
	if err := json.Unmarshal([]byte(out), l); err != nil {
		return nil, err
	}
	l.Aim, l.Steps = 1<<30, "open and check, facts (every weight is read), passes (equal weights are found), write with external data, open again"
	l.Held = l.PeakRSS <= l.Aim
	return l, nil
}

// writeLarge writes a chain of MatMuls whose weights lie in a data file.
func writeLarge(path string) error {
	data, err := os.Create(path + ".data")
	if err != nil {
		return err
	}
	defer data.Close()
	g := &onnxpb.GraphProto{Name: proto.String("large")}
	size := int64(edge * edge * 4)
	block := make([]byte, 1<<20)
	for i := range matrices {
		for at := int64(0); at < size; at += int64(len(block)) {
			for k := 0; k < len(block); k += 4 { // small normal floats; the last matrix is the first again
				block[k], block[k+1], block[k+2], block[k+3] = byte(k>>2), byte(at>>20), byte(i%(matrices-1)), 0x3c
			}
			if _, err := data.Write(block); err != nil {
				return err
			}
		}
		entry := func(k, v string) *onnxpb.StringStringEntryProto {
			return &onnxpb.StringStringEntryProto{Key: &k, Value: &v}
		}
		g.Initializer = append(g.Initializer, &onnxpb.TensorProto{
			Name: proto.String(fmt.Sprintf("w%d", i)), DataType: proto.Int32(int32(onnxpb.TensorProto_FLOAT)), Dims: []int64{edge, edge}, DataLocation: onnxpb.TensorProto_EXTERNAL.Enum(),
			ExternalData: []*onnxpb.StringStringEntryProto{entry("location", filepath.Base(path)+".data"), entry("offset", fmt.Sprint(int64(i)*size)), entry("length", fmt.Sprint(size))},
		})
		g.Node = append(g.Node,
			&onnxpb.NodeProto{OpType: proto.String("MatMul"), Input: []string{fmt.Sprintf("h%d", i), fmt.Sprintf("w%d", i)}, Output: []string{fmt.Sprintf("m%d", i)}},
			&onnxpb.NodeProto{OpType: proto.String("Identity"), Input: []string{fmt.Sprintf("m%d", i)}, Output: []string{fmt.Sprintf("h%d", i+1)}})
	}
	info := func(name string) *onnxpb.ValueInfoProto {
		batch := &onnxpb.TensorShapeProto_Dimension{Value: &onnxpb.TensorShapeProto_Dimension_DimParam{DimParam: "batch"}}
		width := &onnxpb.TensorShapeProto_Dimension{Value: &onnxpb.TensorShapeProto_Dimension_DimValue{DimValue: edge}}
		return &onnxpb.ValueInfoProto{Name: &name, Type: &onnxpb.TypeProto{Value: &onnxpb.TypeProto_TensorType{TensorType: &onnxpb.TypeProto_Tensor{
			ElemType: proto.Int32(int32(onnxpb.TensorProto_FLOAT)), Shape: &onnxpb.TensorShapeProto{Dim: []*onnxpb.TensorShapeProto_Dimension{batch, width}},
		}}}}
	}
	g.Input, g.Output = []*onnxpb.ValueInfoProto{info("h0")}, []*onnxpb.ValueInfoProto{info(fmt.Sprintf("h%d", matrices))}
	b, err := proto.Marshal(&onnxpb.ModelProto{IrVersion: proto.Int64(9), OpsetImport: []*onnxpb.OperatorSetIdProto{{Version: proto.Int64(17)}}, Graph: g})
	if err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o644)
}

// takeThrough does in this process what the stages inspect and optimize do with
// a graph, and prints the peak of its memory.
func takeThrough(ctx context.Context, path string) error {
	start := time.Now()
	m, err := onnx.Open(path)
	if err != nil {
		return err
	}
	defer m.Close()
	if _, err := facts.Findings(m); err != nil {
		return err
	}
	all, err := passes.All(passes.Options{})
	if err != nil {
		return err
	}
	result, _, err := passes.Run(ctx, m, all, nil)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(filepath.Dir(path), "large-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	out := filepath.Join(dir, "model.onnx")
	if err := result.Save(out, onnx.SaveOptions{}); err != nil {
		return err
	}
	again, err := onnx.Open(out)
	if err != nil {
		return err
	}
	defer again.Close()
	peak, err := peakRSS()
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(Large{Bytes: m.Bytes(), Seconds: time.Since(start).Seconds(), PeakRSS: peak})
}

// peakRSS reads the largest resident size that this process has had.
func peakRSS() (int64, error) {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		var kb int64
		if n, _ := fmt.Sscanf(line, "VmHWM: %d kB", &kb); n == 1 {
			return kb << 10, nil
		}
	}
	return 0, fmt.Errorf("/proc/self/status has no VmHWM")
}
