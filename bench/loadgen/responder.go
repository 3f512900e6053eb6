package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/trtship/trtship/internal/triton/pbtxt"
	"github.com/trtship/trtship/internal/triton/tritonpb"
)

// memory is the responder: a model of one input and one output of 16 floats,
// answered from bytes that were made once.
type memory struct {
	served atomic.Uint64
	config *tritonpb.ModelConfig
}

const memoryConfig = `name: "memory" platform: "onnxruntime_onnx" backend: "onnxruntime" max_batch_size: 0 version_policy { latest { num_versions: 1 } }
input [ { name: "x" data_type: TYPE_FP32 dims: [ 16 ] } ] output [ { name: "y" data_type: TYPE_FP32 dims: [ 16 ] } ] instance_group [ { kind: KIND_CPU count: 1 } ]`

// respond serves until it is ended and writes its two addresses.
func respond(ctx context.Context, out io.Writer) error {
	m := &memory{config: pbtxt.Parse(memoryConfig).Config}
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	h2, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(out, plain.Addr(), h2.Addr()); err != nil {
		return err
	}
	go accept(plain, m.http)
	go accept(h2, m.grpc)
	<-ctx.Done()
	return nil
}

func accept(l net.Listener, serve func(net.Conn)) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go serve(c)
	}
}

// http answers HTTP/1.1 on one connection.
func (m *memory) http(c net.Conn) {
	defer func() { _ = c.Close() }()
	r := bufio.NewReaderSize(c, 64<<10)
	head := `{"model_name":"memory","model_version":"1","outputs":[{"name":"y","datatype":"FP32","shape":[16],"parameters":{"binary_data_size":64}}]}`
	infer := fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nInference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n%s", len(head), len(head)+64, head)
	infer = append(infer, make([]byte, 64)...)
	for {
		q, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		if _, err := io.Copy(io.Discard, q.Body); err != nil {
			return
		}
		answer := infer
		if strings.HasSuffix(q.URL.Path, "/infer") {
			m.served.Add(1)
		} else {
			body := m.text(q.URL.Path)
			answer = fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		}
		if _, err := c.Write(answer); err != nil {
			return
		}
	}
}

// message returns the answer to a question that is no inference.
func (m *memory) message(what string) proto.Message {
	switch {
	case strings.HasSuffix(what, "/config") || strings.HasSuffix(what, "/ModelConfig"):
		if strings.HasPrefix(what, "/inference") {
			return &tritonpb.ModelConfigResponse{Config: m.config}
		}
		return m.config
	case strings.HasSuffix(what, "/stats") || strings.HasSuffix(what, "/ModelStatistics"):
		n := m.served.Load()
		d := func() *tritonpb.StatisticDuration { return &tritonpb.StatisticDuration{Count: n, Ns: n * 1000} }
		return &tritonpb.ModelStatisticsResponse{ModelStats: []*tritonpb.ModelStatistics{{
			Name: "memory", Version: "1", InferenceCount: n, ExecutionCount: n, InferenceStats: &tritonpb.InferStatistics{
				Success: d(), Queue: d(), ComputeInput: d(), ComputeInfer: d(), ComputeOutput: d(), Fail: &tritonpb.StatisticDuration{},
				CacheHit: &tritonpb.StatisticDuration{}, CacheMiss: &tritonpb.StatisticDuration{},
			},
		}}}
	case what == "/v2" || strings.HasSuffix(what, "/ServerMetadata"):
		return &tritonpb.ServerMetadataResponse{Name: "memory", Version: "2.51.0", Extensions: []string{"model_configuration", "statistics", "binary_tensor_data"}}
	case strings.HasSuffix(what, "/ServerLive"):
		return &tritonpb.ServerLiveResponse{Live: true}
	case strings.HasSuffix(what, "/ServerReady"):
		return &tritonpb.ServerReadyResponse{Ready: true}
	case strings.HasSuffix(what, "/ModelReady"):
		return &tritonpb.ModelReadyResponse{Ready: true}
	case strings.HasSuffix(what, "/ready") || strings.HasSuffix(what, "/live"):
		return nil
	}
	tensor := func(name string) []*tritonpb.ModelMetadataResponse_TensorMetadata {
		return []*tritonpb.ModelMetadataResponse_TensorMetadata{{Name: name, Datatype: "FP32", Shape: []int64{16}}}
	}
	return &tritonpb.ModelMetadataResponse{Name: "memory", Versions: []string{"1"}, Platform: "onnxruntime_onnx", Inputs: tensor("x"), Outputs: tensor("y")}
}

// text is message as Triton's JSON, in which 64-bit integers are numbers.
func (m *memory) text(path string) []byte {
	msg := m.message(path)
	if msg == nil {
		return nil
	}
	b, err := protojson.MarshalOptions{UseProtoNames: true, EmitUnpopulated: true}.Marshal(msg)
	if err != nil {
		return nil
	}
	return unquoteIntegers(b)
}

// unquoteIntegers turns "12" into 12 where it stands for a value.
func unquoteIntegers(b []byte) []byte {
	var out bytes.Buffer
	for i := 0; i < len(b); i++ {
		if b[i] != '"' {
			out.WriteByte(b[i])
			continue
		}
		end := i + 1 + bytes.IndexByte(b[i+1:], '"')
		word := b[i+1 : end]
		_, err := strconv.ParseInt(string(word), 10, 64)
		isVersion := bytes.HasSuffix(bytes.TrimRight(b[:i], ` :[`), []byte(`"version"`)) || bytes.HasSuffix(bytes.TrimRight(b[:i], ` :[`), []byte(`"versions"`))
		if err == nil && !isVersion {
			out.Write(word)
		} else {
			out.Write(b[i : end+1])
		}
		i = end
	}
	return out.Bytes()
}

// frameConn is one HTTP/2 connection of the responder.
type frameConn struct {
	m       *memory
	framer  *http2.Framer
	out     bytes.Buffer
	c       net.Conn
	paths   map[uint32]string
	path    string
	headers []byte // of a reply, encoded once
	trailer []byte
	infer   []byte
	decoder *hpack.Decoder
	got     uint32
}

func block(fields ...string) []byte {
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	e.SetMaxDynamicTableSize(0)
	for i := 0; i < len(fields); i += 2 {
		_ = e.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1], Sensitive: true})
	}
	return b.Bytes()
}

func wire(msg proto.Message) []byte {
	b, err := proto.Marshal(msg)
	if err != nil {
		return nil
	}
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(b))), b...)
}

// grpc answers gRPC on one connection with frames of its own.
func (m *memory) grpc(c net.Conn) {
	defer func() { _ = c.Close() }()
	r := bufio.NewReaderSize(c, 64<<10)
	if _, err := r.Discard(len(http2.ClientPreface)); err != nil {
		return
	}
	f := &frameConn{
		m: m, c: c, paths: map[uint32]string{},
		headers: block(":status", "200", "content-type", "application/grpc"), trailer: block("grpc-status", "0"),
		infer: wire(&tritonpb.ModelInferResponse{
			ModelName: "memory", ModelVersion: "1", RawOutputContents: [][]byte{make([]byte, 64)},
			Outputs: []*tritonpb.ModelInferResponse_InferOutputTensor{{Name: "y", Datatype: "FP32", Shape: []int64{16}}},
		}),
	}
	f.framer = http2.NewFramer(&f.out, r)
	f.framer.SetReuseFrames()
	f.decoder = hpack.NewDecoder(4096, func(h hpack.HeaderField) {
		if h.Name == ":path" {
			f.path = h.Value
		}
	})
	_ = f.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 30}, http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 1 << 20})
	_ = f.framer.WriteWindowUpdate(0, 1<<30)
	for {
		if r.Buffered() == 0 && f.out.Len() > 0 { // answers to all that came in go out together
			if _, err := c.Write(f.out.Bytes()); err != nil {
				return
			}
			f.out.Reset()
		}
		frame, err := f.framer.ReadFrame()
		if err != nil || f.frame(frame) != nil {
			return
		}
	}
}

func (f *frameConn) frame(frame http2.Frame) error {
	switch frame := frame.(type) {
	case *http2.SettingsFrame:
		if !frame.IsAck() {
			return f.framer.WriteSettingsAck()
		}
	case *http2.PingFrame:
		if !frame.IsAck() {
			return f.framer.WritePing(true, frame.Data)
		}
	case *http2.HeadersFrame:
		if _, err := f.decoder.Write(frame.HeaderBlockFragment()); err != nil {
			return err
		}
		f.paths[frame.StreamID] = f.path
		if frame.StreamEnded() {
			return f.answer(frame.StreamID)
		}
	case *http2.DataFrame:
		if f.got += frame.Header().Length; f.got > 1<<28 {
			if err := f.framer.WriteWindowUpdate(0, f.got); err != nil {
				return err
			}
			f.got = 0
		}
		if frame.StreamEnded() {
			return f.answer(frame.StreamID)
		}
	}
	return nil
}

func (f *frameConn) answer(id uint32) error {
	path := f.paths[id]
	delete(f.paths, id)
	body := f.infer
	if strings.HasSuffix(path, "/ModelInfer") {
		f.m.served.Add(1)
	} else if msg := f.m.message(path); msg != nil {
		body = wire(msg)
	}
	if err := f.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: f.headers, EndHeaders: true}); err != nil {
		return err
	}
	if err := f.framer.WriteData(id, false, body); err != nil {
		return err
	}
	return f.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: f.trailer, EndHeaders: true, EndStream: true})
}
