package onnx

import (
	"os"
	"syscall"

	"github.com/trtship/trtship/internal/onnx/onnxpb"
	"github.com/trtship/trtship/internal/regular"
	"google.golang.org/protobuf/proto"
)

// Skeleton returns the message of the model at path for a runtime that maps
// external data into memory: large float32 initializers of the main graph are
// external data in the model's own file, everything else is in the message. The
// weights then are in memory once, and nothing is written. The runtime must be
// told the model's folder.
func Skeleton(path string) ([]byte, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	// Runtimes take no link for external data.
	if s, ok := info.Sys().(*syscall.Stat_t); !info.Mode().IsRegular() || ok && s.Nlink > 1 {
		return regular.ReadFile(path)
	}
	m, err := OpenUnchecked(path)
	if err != nil {
		return nil, err
	}
	defer m.Close() //nolint:errcheck // read only
	stays := map[*onnxpb.TensorProto]bool{}
	for _, t := range m.Graph().GetInitializer() {
		stays[t] = t.GetDataType() == int32(onnxpb.TensorProto_FLOAT)
	}
	err = m.walkTensors(func(_ string, t *onnxpb.TensorProto) error {
		if t.GetDataLocation() != onnxpb.TensorProto_EXTERNAL || externalValue(t, "location") != m.base || stays[t] {
			return nil
		}
		return m.inline(t)
	})
	if err != nil {
		return nil, err
	}
	return proto.Marshal(m.Proto)
}

// inline moves external data into the tensor.
func (m *Model) inline(t *onnxpb.TensorProto) error {
	d, err := m.TensorData(t)
	if err != nil {
		return err
	}
	t.RawData, t.ExternalData, t.DataLocation = d.Data, nil, nil
	return nil
}
