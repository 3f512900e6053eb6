package onnx

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"
)

// messageKind says which fields of a message may hold tensors.
type messageKind int

const (
	kindModel messageKind = iota
	kindGraph
	kindNode
	kindAttribute
	kindTensor
	kindSparse
	kindTraining
	kindFunction
)

// children lists the fields that lead to tensors.
var children = map[messageKind]map[protowire.Number]messageKind{
	kindModel:     {7: kindGraph, 20: kindTraining, 25: kindFunction},
	kindGraph:     {1: kindNode, 5: kindTensor, 15: kindSparse},
	kindNode:      {5: kindAttribute},
	kindAttribute: {5: kindTensor, 6: kindGraph, 22: kindSparse, 10: kindTensor, 11: kindGraph, 23: kindSparse},
	kindSparse:    {1: kindTensor, 2: kindTensor},
	kindTraining:  {1: kindGraph, 2: kindGraph},
	kindFunction:  {7: kindNode, 11: kindAttribute},
}

var kindNames = map[messageKind]string{
	kindModel: "model", kindGraph: "graph", kindNode: "node", kindAttribute: "attribute", kindTensor: "tensor",
	kindSparse: "sparse tensor", kindTraining: "training info", kindFunction: "function",
}

// scanner copies a message from a file without the large data of its tensors.
// It reads the file once, forwards, through one buffer.
type scanner struct {
	r    io.ReaderAt
	size int64
	base string // own file name; empty keeps all data in the message

	buf    []byte
	bufOff int64
	graph  bool // a graph was seen: what follows is more likely garbage than a model
}

// windowSize is how much of the file is read at once.
const windowSize = 1 << 20

// peek returns up to n bytes at off, fewer at the end of the file.
func (s *scanner) peek(off int64, n int) ([]byte, error) {
	if rest := s.size - off; int64(n) > rest {
		n = int(max(rest, 0))
	}
	if off >= s.bufOff && off+int64(n) <= s.bufOff+int64(len(s.buf)) {
		return s.buf[off-s.bufOff:][:n], nil
	}
	want := min(max(int64(n), windowSize), s.size-off)
	if int64(cap(s.buf)) < want {
		s.buf = make([]byte, want)
	}
	s.buf, s.bufOff = s.buf[:want], off
	if got, err := s.r.ReadAt(s.buf, off); int64(got) < want {
		s.buf = s.buf[:0]
		if err == nil || errors.Is(err, io.EOF) {
			err = errors.New("the file became shorter while it was read")
		}
		return nil, err
	}
	return s.buf[:n], nil
}

// field is one field of a message: its header and where its content lies.
type field struct {
	num        protowire.Number
	typ        protowire.Type
	head       int64 // offset of the tag
	start, end int64 // of the content
}

// next reads the header of the field at off of a message that ends at end.
func (s *scanner) next(kind messageKind, off, end int64) (field, error) {
	b, err := s.peek(off, int(min(2*binary.MaxVarintLen64, end-off)))
	if err != nil {
		return field{}, err
	}
	num, typ, n := protowire.ConsumeTag(b)
	if n < 0 {
		return field{}, s.bad(kind, off, end, n)
	}
	f := field{num: num, typ: typ, head: off, start: off + int64(n)}
	b = b[n:]
	switch typ {
	case protowire.VarintType:
		_, n = protowire.ConsumeVarint(b)
		if n < 0 {
			return field{}, s.bad(kind, off, end, n)
		}
		f.end = f.start + int64(n)
	case protowire.Fixed32Type:
		f.end = f.start + 4
	case protowire.Fixed64Type:
		f.end = f.start + 8
	case protowire.BytesType:
		length, n := protowire.ConsumeVarint(b)
		if n < 0 {
			return field{}, s.bad(kind, off, end, n)
		}
		f.start += int64(n)
		if length > uint64(1<<62) {
			return field{}, s.bad(kind, off, end, 0)
		}
		f.end = f.start + int64(length)
	default:
		return field{}, s.bad(kind, off, end, 0)
	}
	if f.end <= end {
		return f, nil
	}
	if f.end > s.size && end == s.size {
		what := fmt.Sprintf("field %d of the %s", num, kindNames[kind])
		if c, ok := children[kind][num]; ok {
			what = "the " + kindNames[c]
		}
		return field{}, fmt.Errorf("is cut off at byte %d: %s at byte %d needs %d bytes", s.size, what, off, f.end-f.start)
	}
	return field{}, s.bad(kind, off, end, 0)
}

// bad describes bytes that are no field. code is what protowire said, if it did.
func (s *scanner) bad(kind messageKind, off, end int64, code int) error {
	switch {
	case kind == kindModel && s.graph:
		return fmt.Errorf("has %d bytes after its end, at byte %d, that are no ONNX", s.size-off, off)
	case end == s.size && off > 0 && code < 0 && errors.Is(protowire.ParseError(code), io.ErrUnexpectedEOF):
		return fmt.Errorf("is cut off at byte %d", s.size)
	case kind == kindModel:
		return fmt.Errorf("is no ONNX: bad field at byte %d", off)
	}
	return fmt.Errorf("is damaged: bad field at byte %d of the %s that ends at byte %d", off, kindNames[kind], end)
}

// scan returns the message in [off, end) without large data.
func (s *scanner) scan(kind messageKind, off, end int64, depth int) ([]byte, error) {
	if depth > 4*MaxDepth {
		return nil, fmt.Errorf("is nested too deep: more than %d graphs in each other", MaxDepth)
	}
	if kind == kindTensor {
		return s.scanTensor(off, end)
	}
	var out []byte
	for off < end {
		f, err := s.next(kind, off, end)
		if err != nil {
			return nil, err
		}
		child, ok := children[kind][f.num]
		structural := kind == kindModel || child == kindGraph || child == kindFunction
		if !ok || f.typ != protowire.BytesType || (!structural && f.end-f.start < LargeTensor) {
			if out, err = s.copy(out, f.head, f.end); err != nil {
				return nil, err
			}
			off = f.end
			continue
		}
		sub, err := s.scan(child, f.start, f.end, depth+1)
		if err != nil {
			return nil, err
		}
		s.graph = s.graph || child == kindGraph
		out = protowire.AppendTag(out, f.num, protowire.BytesType)
		out = protowire.AppendBytes(out, sub)
		off = f.end
	}
	return out, nil
}

// copy appends the bytes in [from, to) to out.
func (s *scanner) copy(out []byte, from, to int64) ([]byte, error) {
	for from < to {
		b, err := s.peek(from, int(min(to-from, windowSize)))
		if err != nil {
			return nil, err
		}
		out = append(out, b...)
		from += int64(len(b))
	}
	return out, nil
}

// Numbers of TensorProto's fields.
const (
	tensorDataType     protowire.Number = 2
	tensorFloatData    protowire.Number = 4
	tensorInt32Data    protowire.Number = 5
	tensorStringData   protowire.Number = 6
	tensorInt64Data    protowire.Number = 7
	tensorRawData      protowire.Number = 9
	tensorDoubleData   protowire.Number = 10
	tensorUint64Data   protowire.Number = 11
	tensorExternalData protowire.Number = 13
	tensorLocation     protowire.Number = 14
)

// scanTensor copies a tensor and turns its data into external data in this
// file, if it is one run of little-endian bytes: raw_data, or packed float_data
// or double_data of the type that they are made for.
func (s *scanner) scanTensor(off, end int64) ([]byte, error) {
	var kept []byte
	var data []field
	dtype, external := uint64(0), false
	for off < end {
		f, err := s.next(kindTensor, off, end)
		if err != nil {
			return nil, err
		}
		off = f.end
		switch f.num {
		case tensorRawData, tensorFloatData, tensorDoubleData, tensorInt32Data, tensorInt64Data, tensorUint64Data, tensorStringData:
			data = append(data, f)
			continue
		case tensorExternalData, tensorLocation:
			external = true
		case tensorDataType:
			b, err := s.peek(f.start, int(f.end-f.start))
			if err != nil {
				return nil, err
			}
			dtype, _ = protowire.ConsumeVarint(b)
		}
		if kept, err = s.copy(kept, f.head, f.end); err != nil {
			return nil, err
		}
	}
	if s.base != "" && len(data) == 1 && !external && inFile(data[0], dtype) {
		return appendSpan(kept, s.base, data[0].start, data[0].end-data[0].start), nil
	}
	var err error
	for _, f := range data {
		if kept, err = s.copy(kept, f.head, f.end); err != nil {
			return nil, err
		}
	}
	return kept, nil
}

func inFile(f field, dtype uint64) bool {
	if f.typ != protowire.BytesType || f.end-f.start < LargeTensor {
		return false
	}
	return f.num == tensorRawData || (f.num == tensorFloatData && dtype == 1) || (f.num == tensorDoubleData && dtype == 11)
}

// appendSpan appends the external-data fields of a tensor.
func appendSpan(out []byte, location string, offset, length int64) []byte {
	entry := func(key, value string) {
		var e []byte
		e = protowire.AppendTag(e, 1, protowire.BytesType)
		e = protowire.AppendString(e, key)
		e = protowire.AppendTag(e, 2, protowire.BytesType)
		e = protowire.AppendString(e, value)
		out = protowire.AppendTag(out, tensorExternalData, protowire.BytesType)
		out = protowire.AppendBytes(out, e)
	}
	entry("location", location)
	entry("offset", strconv.FormatInt(offset, 10))
	entry("length", strconv.FormatInt(length, 10))
	out = protowire.AppendTag(out, tensorLocation, protowire.VarintType)
	return protowire.AppendVarint(out, 1)
}
