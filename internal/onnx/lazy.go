package onnx

import (
	"fmt"
	"io"
	"strings"

	"github.com/trtship/trtship/internal/onnx/onnxpb"
)

// lazyPrefix begins the location of tensors whose data is worked out when it is
// read. No file can have such a name, and the reader refuses it in one.
const lazyPrefix = "\x00lazy:"

// Lazy makes r the data of t, whose name, type and shape are set: raw_data is
// what r holds from 0 to the size that they need. Nothing is read before
// somebody asks for the tensor, Save for example, and nothing is kept. r must
// allow several calls at once.
func (m *Model) Lazy(t *onnxpb.TensorProto, r io.ReaderAt) {
	m.mu.Lock()
	defer m.mu.Unlock()
	key, location := "location", fmt.Sprintf("%s%d", lazyPrefix, len(m.lazy))
	m.lazy[location] = r
	t.RawData = nil
	t.DataLocation = onnxpb.TensorProto_EXTERNAL.Enum()
	t.ExternalData = []*onnxpb.StringStringEntryProto{{Key: &key, Value: &location}}
}

// lazyReader returns the reader of a tensor that Lazy made; nil for others.
func (m *Model) lazyReader(t *onnxpb.TensorProto) *io.SectionReader {
	if t.GetDataLocation() != onnxpb.TensorProto_EXTERNAL {
		return nil
	}
	location := externalValue(t, "location")
	if !strings.HasPrefix(location, lazyPrefix) {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	r, ok := m.lazy[location]
	size, err := dataSize(t)
	if !ok || err != nil {
		return nil
	}
	return io.NewSectionReader(r, 0, size)
}
