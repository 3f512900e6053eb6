package onnx

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// External says where Save puts tensors.
type External int

// The places. A file over MaxFile is always written with external data.
const (
	Auto   External = iota // in the file if it stays under MaxFile
	Always                 // tensors of LargeTensor bytes and more in a file of their own
)

// MaxFile is the size that a protobuf file cannot pass. There is room for the
// structure below 2 GiB.
const MaxFile = 2<<30 - 1<<20

// Alignment is the multiple at which external tensors start, so that they can
// be mapped.
const Alignment = 4096

// SaveOptions says how a model is written.
type SaveOptions struct {
	External External
	// IR is the IR version to write; 0 keeps the model's. An initializer that is
	// not an input needs 4 at least, which is raised to without being asked.
	IR int64
	// MaxFile overrides the constant in tests.
	MaxFile int64
}

// Save writes the model to path, and to path + ".data" if tensors are external.
// Neither file may exist. Equal models give equal bytes. Large tensors are
// copied in pieces from where they lie; the model in memory is not changed.
func (m *Model) Save(path string, o SaveOptions) (err error) {
	if o.MaxFile == 0 {
		o.MaxFile = MaxFile
	}
	p, err := m.headed(o.IR)
	if err != nil {
		return err
	}
	w := &writer{model: m, path: path, sources: map[string]*os.File{}}
	defer func() {
		if cerr := w.close(); err == nil {
			err = cerr
		}
	}()
	large, structure := m.sizes(p)
	w.external = o.External == Always || large+structure > o.MaxFile
	if w.external {
		if w.data, err = create(path + ".data"); err != nil {
			return err
		}
		w.location = filepath.Base(path) + ".data"
	}
	return w.write(p)
}

// headed returns the message with the right IR version.
func (m *Model) headed(ir int64) (*onnxpb.ModelProto, error) {
	least := m.MinimumIR()
	have := m.Proto.GetIrVersion()
	switch {
	case ir != 0 && ir < least.Version:
		return nil, failure.New(failure.Usage, "write model: IR version %d is too old: %s needs %d", ir, least.Reason, least.Version).
			WithHint("set optimize.ir_version to %d or more, or to 0", least.Version)
	case ir == 0:
		ir = max(have, least.Version)
	}
	if ir == have {
		return m.Proto, nil
	}
	p := shallow(m.Proto)
	p.IrVersion = &ir
	return p, nil
}

// shallow copies the top level of a model.
func shallow(p *onnxpb.ModelProto) *onnxpb.ModelProto {
	c := &onnxpb.ModelProto{
		IrVersion: p.IrVersion, OpsetImport: p.OpsetImport, ProducerName: p.ProducerName, ProducerVersion: p.ProducerVersion,
		Domain: p.Domain, ModelVersion: p.ModelVersion, DocString: p.DocString, Graph: p.Graph, MetadataProps: p.MetadataProps,
		TrainingInfo: p.TrainingInfo, Functions: p.Functions, Configuration: p.Configuration,
	}
	c.ProtoReflect().SetUnknown(p.ProtoReflect().GetUnknown())
	return c
}

// sizes returns the bytes of tensors outside the message, and of the message.
func (m *Model) sizes(p *onnxpb.ModelProto) (large, structure int64) {
	m.walkTensors(func(_ string, t *onnxpb.TensorProto) error {
		if t.GetDataLocation() == onnxpb.TensorProto_EXTERNAL {
			large += TensorBytes(t)
		}
		return nil
	})
	return large, int64(proto.Size(p))
}

// writer writes one model.
type writer struct {
	model    *Model
	path     string
	external bool
	location string
	data     *os.File
	offset   int64
	out      *os.File
	sources  map[string]*os.File // by location; apart from the model's, since they are sought in
}

func (w *writer) close() error {
	for _, f := range w.sources {
		f.Close()
	}
	var errs []error
	for _, f := range []*os.File{w.out, w.data} {
		if f != nil {
			if err := f.Close(); err != nil {
				errs = append(errs, failure.New(failure.Artifact, "write model: %w", err).At(f.Name()))
			}
		}
	}
	return errors.Join(errs...)
}

// piece is a run of the file: bytes, or a tensor that is copied from its file.
type piece struct {
	bytes  []byte
	tensor *onnxpb.TensorProto
	size   int64
}

// write encodes the message as pieces, so that no tensor is in memory, and
// writes them.
func (w *writer) write(p *onnxpb.ModelProto) error {
	pieces, err := w.encode(p, kindModel)
	if err != nil {
		return err
	}
	if w.out, err = create(w.path); err != nil {
		return err
	}
	buffered := bufio.NewWriterSize(w.out, 1<<20)
	for _, c := range pieces {
		if c.tensor == nil {
			_, err = buffered.Write(c.bytes)
		} else if err = buffered.Flush(); err == nil {
			err = w.copy(w.out, c.tensor)
		}
		if err != nil {
			return w.failed(err)
		}
	}
	if err := buffered.Flush(); err != nil {
		return w.failed(err)
	}
	return nil
}

func (w *writer) failed(err error) error {
	if _, ok := errors.AsType[*failure.Error](err); ok {
		return err
	}
	return failure.New(failure.Artifact, "write model: %w", err).At(w.path)
}

// copy streams a tensor to the end of a file. Data that lies in a file goes
// from file to file, which the kernel does without bringing it here.
func (w *writer) copy(to *os.File, t *onnxpb.TensorProto) error {
	if t.GetDataLocation() != onnxpb.TensorProto_EXTERNAL {
		d, err := w.model.rawBytes(t)
		if err != nil {
			return err
		}
		_, err = to.Write(d)
		return err
	}
	if r := w.model.lazyReader(t); r != nil {
		// One buffer, small enough to stay in the cache, is all that it takes.
		if n, err := io.CopyBuffer(struct{ io.Writer }{to}, r, make([]byte, 256<<10)); err != nil || n != r.Size() {
			return fmt.Errorf("write %s: %d of %d bytes: %w", tensorName("", t), n, r.Size(), err)
		}
		return nil
	}
	s, err := w.model.spanOf("", t)
	if err != nil {
		return err
	}
	f := w.sources[s.location]
	if f == nil {
		if f, err = w.model.openFile(s.location); err != nil {
			return fmt.Errorf("copy %s: %w", tensorName("", t), err)
		}
		w.sources[s.location] = f
	}
	if _, err := f.Seek(s.offset, io.SeekStart); err != nil {
		return fmt.Errorf("copy %s: %w", tensorName("", t), err)
	}
	if n, err := io.CopyN(to, f, s.length); err != nil {
		return fmt.Errorf("copy %s: %d of %d bytes: %w", tensorName("", t), n, s.length, err)
	}
	return nil
}

// encode returns the message as pieces. It marshals with proto.Marshal whatever
// holds no large tensor.
func (w *writer) encode(msg proto.Message, kind messageKind) ([]piece, error) {
	if t, ok := msg.(*onnxpb.TensorProto); ok {
		return w.encodeTensor(t)
	}
	if !w.hasLarge(msg) {
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(msg)
		if err != nil {
			return nil, failure.New(failure.Bug, "encode %s: %w", kindNames[kind], err)
		}
		return []piece{{bytes: b, size: int64(len(b))}}, nil
	}
	return w.encodeFields(msg, kind)
}

// moved reports whether the data of t is written apart from its message: large
// data is never copied into one.
func (w *writer) moved(t *onnxpb.TensorProto) bool {
	return t.GetDataLocation() == onnxpb.TensorProto_EXTERNAL || len(t.GetRawData()) >= LargeTensor
}

// encodeTensor returns a tensor with its data behind it, or moves the data to the
// data file.
func (w *writer) encodeTensor(t *onnxpb.TensorProto) ([]piece, error) {
	if !w.moved(t) {
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(t)
		if err != nil {
			return nil, failure.New(failure.Bug, "encode %s: %w", tensorName("", t), err)
		}
		return []piece{{bytes: b, size: int64(len(b))}}, nil
	}
	size := TensorBytes(t)
	rest := &onnxpb.TensorProto{
		Dims: t.Dims, DataType: t.DataType, Segment: t.Segment, Name: t.Name, DocString: t.DocString, MetadataProps: t.MetadataProps,
	}
	rest.ProtoReflect().SetUnknown(t.ProtoReflect().GetUnknown())
	if w.external && size >= LargeTensor {
		offset, err := w.append(t)
		if err != nil {
			return nil, err
		}
		rest.DataLocation = onnxpb.TensorProto_EXTERNAL.Enum()
		rest.ExternalData = entries(w.location, offset, size)
		return w.encodeTensorRest(rest)
	}
	pieces, err := w.encodeTensorRest(rest)
	if err != nil {
		return nil, err
	}
	var head []byte
	head = protowire.AppendTag(head, tensorRawData, protowire.BytesType)
	head = protowire.AppendVarint(head, uint64(size))
	return append(pieces, piece{bytes: head, size: int64(len(head))}, piece{tensor: t, size: size}), nil
}

func (w *writer) encodeTensorRest(rest *onnxpb.TensorProto) ([]piece, error) {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(rest)
	if err != nil {
		return nil, failure.New(failure.Bug, "encode %s: %w", tensorName("", rest), err)
	}
	return []piece{{bytes: b, size: int64(len(b))}}, nil
}

func entries(location string, offset, length int64) []*onnxpb.StringStringEntryProto {
	entry := func(k, v string) *onnxpb.StringStringEntryProto {
		return &onnxpb.StringStringEntryProto{Key: &k, Value: &v}
	}
	return []*onnxpb.StringStringEntryProto{
		entry("location", location), entry("offset", strconv.FormatInt(offset, 10)), entry("length", strconv.FormatInt(length, 10)),
	}
}

// append writes the tensor to the data file at the next aligned offset.
func (w *writer) append(t *onnxpb.TensorProto) (int64, error) {
	if pad := (Alignment - w.offset%Alignment) % Alignment; pad > 0 {
		if _, err := w.data.Write(make([]byte, pad)); err != nil {
			return 0, failure.New(failure.Artifact, "write external data: %w", err).At(w.data.Name())
		}
		w.offset += pad
	}
	at := w.offset
	if err := w.copy(w.data, t); err != nil {
		return 0, w.failed(err)
	}
	w.offset += TensorBytes(t)
	return at, nil
}

// create makes a file that must not exist.
func create(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return nil, failure.New(failure.Artifact, "write model: %w", err).At(path)
	}
	return f, nil
}

// nested returns a field's header for a message of that size.
func nested(num protowire.Number, size int64) []byte {
	b := protowire.AppendTag(make([]byte, 0, 2*binary.MaxVarintLen64), num, protowire.BytesType)
	return protowire.AppendVarint(b, uint64(size))
}
