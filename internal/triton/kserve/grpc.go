package kserve

import (
	"context"
	"fmt"
	"math"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/internal/triton/tritonpb"
)

type grpcClient struct {
	o    Options
	conn *grpc.ClientConn
	api  tritonpb.GRPCInferenceServiceClient
}

func openGRPC(o Options) (*grpcClient, error) {
	// Triton's own limit is 2 GiB; grpc's default of 4 MiB is below one image batch.
	conn, err := grpc.NewClient("passthrough:///"+o.Address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(int(o.MaxReply)), grpc.MaxCallSendMsgSize(math.MaxInt32)),
		grpc.WithInitialWindowSize(1<<20), grpc.WithInitialConnWindowSize(4<<20),
		grpc.WithDisableServiceConfig())
	if err != nil {
		return nil, failure.New(failure.Triton, "connect to %s over grpc: %w", o.Address, err)
	}
	return &grpcClient{o: o, conn: conn, api: tritonpb.NewGRPCInferenceServiceClient(conn)}, nil
}

// Close ends the connection.
func (c *grpcClient) Close() error { return c.conn.Close() }

// explain turns the error of a call into ours.
func (c *grpcClient) explain(ctx context.Context, what string, err error) error {
	if err == nil {
		return nil
	}
	s, ok := status.FromError(err)
	if !ok {
		return unreachable(ctx, what, GRPC, c.o, err)
	}
	switch {
	case s.Code() == codes.DeadlineExceeded || s.Code() == codes.Canceled:
		if ctx.Err() == nil {
			return failure.New(failure.Triton, "%s over grpc at %s: no answer in time", what, c.o.Address)
		}
		return unreachable(ctx, what, GRPC, c.o, err)
	case s.Code() == codes.Unavailable && c.lost(s):
		return unreachable(ctx, what, GRPC, c.o, fmt.Errorf("%s", s.Message()))
	}
	return &ServerError{Protocol: GRPC, Code: s.Code().String(), Text: s.Message(), Call: what}
}

// lost tells a broken connection from a server that says UNAVAILABLE itself:
// the library's own texts start so.
func (c *grpcClient) lost(s *status.Status) bool {
	for _, p := range []string{"connection error", "error reading from server", "last connection error", "transport is closing", "closing transport"} {
		if len(s.Message()) >= len(p) && s.Message()[:len(p)] == p {
			return true
		}
	}
	return false
}

func (c *grpcClient) ServerReady(ctx context.Context) (bool, error) {
	ctx, cancel := withTimeout(ctx, c.o.Timeout)
	defer cancel()
	r, err := c.api.ServerReady(ctx, &tritonpb.ServerReadyRequest{})
	return r.GetReady(), c.explain(ctx, "ask for readiness", err)
}

func (c *grpcClient) ModelReady(ctx context.Context, model, version string) (bool, error) {
	ctx, cancel := withTimeout(ctx, c.o.Timeout)
	defer cancel()
	r, err := c.api.ModelReady(ctx, &tritonpb.ModelReadyRequest{Name: model, Version: version})
	return r.GetReady(), c.explain(ctx, "ask for readiness of "+model, err)
}

func (c *grpcClient) ServerMetadata(ctx context.Context) (*tritonpb.ServerMetadataResponse, error) {
	ctx, cancel := withTimeout(ctx, c.o.Timeout)
	defer cancel()
	r, err := c.api.ServerMetadata(ctx, &tritonpb.ServerMetadataRequest{})
	what := "ask for the server's metadata"
	return r, named(what, r.GetName(), c.explain(ctx, what, err))
}

func (c *grpcClient) ModelMetadata(ctx context.Context, model, version string) (*tritonpb.ModelMetadataResponse, error) {
	ctx, cancel := withTimeout(ctx, c.o.Timeout)
	defer cancel()
	r, err := c.api.ModelMetadata(ctx, &tritonpb.ModelMetadataRequest{Name: model, Version: version})
	what := "ask for metadata of " + model
	return r, named(what, r.GetName(), c.explain(ctx, what, err))
}

func (c *grpcClient) ModelConfig(ctx context.Context, model, version string) (*tritonpb.ModelConfig, error) {
	ctx, cancel := withTimeout(ctx, c.o.Timeout)
	defer cancel()
	r, err := c.api.ModelConfig(ctx, &tritonpb.ModelConfigRequest{Name: model, Version: version})
	what := "ask for the configuration of " + model
	return r.GetConfig(), named(what, r.GetConfig().GetName(), c.explain(ctx, what, err))
}

func (c *grpcClient) Statistics(ctx context.Context, model, version string) ([]*tritonpb.ModelStatistics, error) {
	ctx, cancel := withTimeout(ctx, c.o.Timeout)
	defer cancel()
	r, err := c.api.ModelStatistics(ctx, &tritonpb.ModelStatisticsRequest{Name: model, Version: version})
	return counted(model, r.GetModelStats(), c.explain(ctx, "ask for statistics", err))
}

func (c *grpcClient) Index(ctx context.Context, ready bool) ([]*tritonpb.RepositoryIndexResponse_ModelIndex, error) {
	ctx, cancel := withTimeout(ctx, c.o.Timeout)
	defer cancel()
	r, err := c.api.RepositoryIndex(ctx, &tritonpb.RepositoryIndexRequest{Ready: ready})
	return r.GetModels(), c.explain(ctx, "list models", err)
}

func (c *grpcClient) Load(ctx context.Context, model string, config *tritonpb.ModelConfig) error {
	ctx, cancel := withTimeout(ctx, c.o.Timeout)
	defer cancel()
	r := &tritonpb.RepositoryModelLoadRequest{ModelName: model}
	if config != nil {
		j, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(config)
		if err != nil {
			return fmt.Errorf("load %s: %w", model, err)
		}
		r.Parameters = map[string]*tritonpb.ModelRepositoryParameter{
			"config": {ParameterChoice: &tritonpb.ModelRepositoryParameter_StringParam{StringParam: string(j)}},
		}
	}
	_, err := c.api.RepositoryModelLoad(ctx, r)
	return c.explain(ctx, "load "+model, err)
}

func (c *grpcClient) Unload(ctx context.Context, model string) error {
	ctx, cancel := withTimeout(ctx, c.o.Timeout)
	defer cancel()
	_, err := c.api.RepositoryModelUnload(ctx, &tritonpb.RepositoryModelUnloadRequest{ModelName: model})
	return c.explain(ctx, "unload "+model, err)
}

func (c *grpcClient) Infer(ctx context.Context, r Request) (Response, error) {
	what := "infer " + r.Model
	m, err := EncodeGRPC(r)
	if err != nil {
		return Response{}, failure.New(failure.Triton, "%s: %w", what, err)
	}
	if ctx.Err() != nil { // nothing was sent yet
		return Response{}, unreachable(ctx, what, GRPC, c.o, ctx.Err())
	}
	call, cancel := settled(ctx, c.o.Timeout)
	defer cancel()
	reply, err := c.api.ModelInfer(call, m)
	if ctx.Err() != nil { // whatever came meanwhile: the caller gave it up
		return Response{}, unreachable(ctx, what, GRPC, c.o, ctx.Err())
	}
	if err != nil {
		return Response{}, c.explain(ctx, what, err)
	}
	out, err := DecodeGRPC(reply)
	if err != nil {
		return out, failure.New(failure.Triton, "%s over grpc: read the server's reply: %w", what, err)
	}
	return out, answered(what, r, out)
}

// settling is how long a request that was sent may go on after its caller gave
// it up.
const settling = 5 * time.Second

// settled is the context of an inference request. The end of ctx reaches the
// server only when the reply does not come within settling: a Triton before
// 24.12 that is told to cancel a request while it answers it may end with a
// segmentation fault, or keep the model for ever in the state UNLOADING
// (triton-inference-server/server issue 7368, mended by pull request 7840).
func settled(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	whole, cancel := context.WithCancel(context.WithoutCancel(ctx))
	call, free := withTimeout(whole, timeout)
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-call.Done():
		case <-time.After(settling):
			cancel()
		}
	})
	return call, func() {
		stop()
		free()
		cancel()
	}
}

// EncodeGRPC makes the message of an inference request; tensors travel raw.
func EncodeGRPC(r Request) (*tritonpb.ModelInferRequest, error) {
	m := &tritonpb.ModelInferRequest{ModelName: r.Model, ModelVersion: r.Version, Id: r.ID}
	for _, in := range r.Inputs {
		wire, err := WireType(in.DType)
		if err != nil {
			return nil, fmt.Errorf("input %s: %w", in.Name, err)
		}
		raw, err := Encode(in.Tensor)
		if err != nil {
			return nil, fmt.Errorf("input %s: %w", in.Name, err)
		}
		m.Inputs = append(m.Inputs, &tritonpb.ModelInferRequest_InferInputTensor{Name: in.Name, Datatype: wire, Shape: in.Shape})
		m.RawInputContents = append(m.RawInputContents, raw)
	}
	for _, name := range r.Outputs {
		m.Outputs = append(m.Outputs, &tritonpb.ModelInferRequest_InferRequestedOutputTensor{Name: name})
	}
	m.Parameters = grpcParameters(r)
	return m, nil
}

func grpcParameters(r Request) map[string]*tritonpb.InferParameter {
	out := map[string]*tritonpb.InferParameter{}
	number := func(name string, v uint64) {
		if v != 0 {
			out[name] = &tritonpb.InferParameter{ParameterChoice: &tritonpb.InferParameter_Int64Param{Int64Param: int64(v)}}
		}
	}
	number("timeout", r.QueueTimeout)
	if r.Priority != 0 { // unsigned in the server
		out["priority"] = &tritonpb.InferParameter{ParameterChoice: &tritonpb.InferParameter_Uint64Param{Uint64Param: r.Priority}}
	}
	number("sequence_id", r.SequenceID)
	if r.SequenceID != 0 {
		out["sequence_start"] = &tritonpb.InferParameter{ParameterChoice: &tritonpb.InferParameter_BoolParam{BoolParam: r.SequenceStart}}
		out["sequence_end"] = &tritonpb.InferParameter{ParameterChoice: &tritonpb.InferParameter_BoolParam{BoolParam: r.SequenceEnd}}
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

// DecodeGRPC reads the outputs of a reply, raw or typed.
func DecodeGRPC(m *tritonpb.ModelInferResponse) (Response, error) {
	r := Response{Model: m.GetModelName(), Version: m.GetModelVersion(), ID: m.GetId()}
	raws := m.GetRawOutputContents()
	for i, o := range m.GetOutputs() {
		out := tensor.Named{Name: o.GetName()}
		d, err := FromWire(o.GetDatatype())
		if err != nil {
			return r, fmt.Errorf("output %q: %w", o.GetName(), err)
		}
		switch {
		case i < len(raws):
			out.Tensor, err = Decode(d, o.GetShape(), raws[i])
		case o.GetContents() != nil:
			out.Tensor, err = fromContents(d, o.GetShape(), o.GetContents())
		default:
			err = fmt.Errorf("no contents: %d outputs, %d raw contents", len(m.GetOutputs()), len(raws))
		}
		if err != nil {
			return r, fmt.Errorf("output %q: %w", o.GetName(), err)
		}
		r.Outputs = append(r.Outputs, out)
	}
	if len(raws) > len(m.GetOutputs()) {
		return r, fmt.Errorf("%d outputs, %d raw contents", len(m.GetOutputs()), len(raws))
	}
	return r, nil
}

// fromContents reads the typed form, which other KServe servers use.
func fromContents(d tensor.DType, shape []int64, c *tritonpb.InferTensorContents) (tensor.Tensor, error) {
	var list []any
	add := func(v any) { list = append(list, v) }
	for _, v := range c.GetBoolContents() {
		add(v)
	}
	for _, v := range c.GetIntContents() {
		add(number(fmt.Sprint(v)))
	}
	for _, v := range c.GetInt64Contents() {
		add(number(fmt.Sprint(v)))
	}
	for _, v := range c.GetUintContents() {
		add(number(fmt.Sprint(v)))
	}
	for _, v := range c.GetUint64Contents() {
		add(number(fmt.Sprint(v)))
	}
	for _, v := range c.GetFp32Contents() {
		add(number(fmt.Sprint(v)))
	}
	for _, v := range c.GetFp64Contents() {
		add(number(fmt.Sprint(v)))
	}
	for _, v := range c.GetBytesContents() {
		add(string(v))
	}
	return fromJSON(d, shape, list)
}
