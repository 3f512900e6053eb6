package kserve_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/internal/testkit"
	"github.com/trtship/trtship/internal/triton/kserve"
	"github.com/trtship/trtship/internal/triton/tritonpb"
)

// stub answers as Triton does for one model.
func stub() http.Handler {
	replies := map[string]string{
		"GET /v2/health/ready":         "",
		"GET /v2/models/m/ready":       "",
		"GET /v2":                      `{"name":"triton","version":"2.60.0","extensions":["binary_tensor_data"]}`,
		"GET /v2/models/m":             `{"name":"m","versions":["1"],"platform":"onnxruntime_onnx","inputs":[{"name":"x","datatype":"FP32","shape":[-1,1]}],"outputs":[{"name":"y","datatype":"FP16","shape":[-1,1]}]}`,
		"GET /v2/models/m/config":      `{"name":"m","max_batch_size":8}`,
		"GET /v2/models/m/stats":       `{"model_stats":[{"name":"m","version":"1","inference_count":"9"}]}`,
		"POST /v2/repository/index":    `[{"name":"m","version":"1","state":"READY"}]`,
		"POST /v2/models/m/infer":      `{"model_name":"m","outputs":[{"name":"y","datatype":"FP32","shape":[1,1],"data":[2]}]}`,
		"POST /v2/repository/models/m": "",
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, ok := replies[strings.TrimSuffix(r.Method+" "+r.URL.Path, "/load")]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
		}
		_, _ = w.Write([]byte(text))
	})
}

// talk asks a server for everything that is asked of one, and returns what it
// took for the answers.
func talk(ctx context.Context, c kserve.Client) (string, error) {
	ready, err := c.ServerReady(ctx)
	if err == nil && !ready {
		err = failure.New(failure.Triton, "the server is not ready")
	}
	if err != nil {
		return "", err
	}
	if ready, err = c.ModelReady(ctx, "m", ""); err == nil && !ready {
		err = failure.New(failure.Triton, "the model is not ready")
	}
	if err != nil {
		return "", err
	}
	server, err := c.ServerMetadata(ctx)
	if err != nil {
		return "", err
	}
	model, err := c.ModelMetadata(ctx, "m", "")
	if err != nil {
		return "", err
	}
	config, err := c.ModelConfig(ctx, "m", "")
	if err != nil {
		return "", err
	}
	stats, err := c.Statistics(ctx, "m", "")
	if err != nil {
		return "", err
	}
	index, err := c.Index(ctx, true)
	if err == nil && len(index) == 0 {
		err = failure.New(failure.Triton, "the server has no model")
	}
	if err != nil {
		return "", err
	}
	if err := c.Load(ctx, "m", nil); err != nil {
		return "", err
	}
	out, err := c.Infer(ctx, kserve.Request{Model: "m", Inputs: []tensor.Named{{Name: "x", Tensor: tensor.FromFloat32s([]int64{1, 1}, []float32{1})}}})
	if err != nil {
		return "", err
	}
	return fmt.Sprint(server.GetVersion(), model.GetPlatform(), config.GetMaxBatchSize(), stats[0].GetInferenceCount(), index[0].GetState(), out.Outputs), nil
}

// whatTriton says what is wrong with an error of a client.
func whatTriton(err error) string {
	if e, ok := errors.AsType[*kserve.ServerError](err); ok {
		if e.Text == "" || e.Code == "" {
			return "a refusal without words"
		}
		return ""
	}
	if failure.CodeOf(err) != failure.Triton {
		return fmt.Sprintf("code %d", failure.CodeOf(err))
	}
	return ""
}

func TestBrokenRepliesOverHTTP(t *testing.T) {
	testkit.BreakReplies(t, "broken reply of Triton over HTTP", stub, func(ctx context.Context, address string) (string, error) {
		c, err := kserve.Open(kserve.Options{Protocol: kserve.HTTP, Address: address, Timeout: 300 * time.Millisecond, MaxReply: 1 << 20})
		if err != nil {
			return "", err
		}
		defer func() { _ = c.Close() }()
		return talk(ctx, c)
	}, whatTriton)
}

// stubGRPC answers as Triton does for one model.
type stubGRPC struct {
	tritonpb.UnimplementedGRPCInferenceServiceServer
}

func (stubGRPC) ServerReady(context.Context, *tritonpb.ServerReadyRequest) (*tritonpb.ServerReadyResponse, error) {
	return &tritonpb.ServerReadyResponse{Ready: true}, nil
}

func (stubGRPC) ModelReady(context.Context, *tritonpb.ModelReadyRequest) (*tritonpb.ModelReadyResponse, error) {
	return &tritonpb.ModelReadyResponse{Ready: true}, nil
}

func (stubGRPC) ServerMetadata(context.Context, *tritonpb.ServerMetadataRequest) (*tritonpb.ServerMetadataResponse, error) {
	return &tritonpb.ServerMetadataResponse{Name: "triton", Version: "2.60.0"}, nil
}

func (stubGRPC) ModelMetadata(context.Context, *tritonpb.ModelMetadataRequest) (*tritonpb.ModelMetadataResponse, error) {
	return &tritonpb.ModelMetadataResponse{Name: "m", Platform: "onnxruntime_onnx"}, nil
}

func (stubGRPC) ModelConfig(context.Context, *tritonpb.ModelConfigRequest) (*tritonpb.ModelConfigResponse, error) {
	return &tritonpb.ModelConfigResponse{Config: &tritonpb.ModelConfig{Name: "m", MaxBatchSize: 8}}, nil
}

func (stubGRPC) ModelStatistics(context.Context, *tritonpb.ModelStatisticsRequest) (*tritonpb.ModelStatisticsResponse, error) {
	return &tritonpb.ModelStatisticsResponse{ModelStats: []*tritonpb.ModelStatistics{{Name: "m", InferenceCount: 9}}}, nil
}

func (stubGRPC) RepositoryIndex(context.Context, *tritonpb.RepositoryIndexRequest) (*tritonpb.RepositoryIndexResponse, error) {
	return &tritonpb.RepositoryIndexResponse{Models: []*tritonpb.RepositoryIndexResponse_ModelIndex{{Name: "m", State: "READY"}}}, nil
}

func (stubGRPC) RepositoryModelLoad(context.Context, *tritonpb.RepositoryModelLoadRequest) (*tritonpb.RepositoryModelLoadResponse, error) {
	return &tritonpb.RepositoryModelLoadResponse{}, nil
}

func (stubGRPC) ModelInfer(context.Context, *tritonpb.ModelInferRequest) (*tritonpb.ModelInferResponse, error) {
	return &tritonpb.ModelInferResponse{
		ModelName: "m", Outputs: []*tritonpb.ModelInferResponse_InferOutputTensor{{Name: "y", Datatype: "FP32", Shape: []int64{1, 1}}},
		RawOutputContents: [][]byte{{0, 0, 0, 64}},
	}, nil
}

// serveGRPC starts the stub. Call at, from 0, is answered by bad if it is not nil.
func serveGRPC(t *testing.T, at int64, bad func(ctx context.Context, right any) (any, error)) (string, *atomic.Int64) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var calls atomic.Int64
	s := grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, q any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		right, err := handler(ctx, q)
		if calls.Add(1)-1 == at && bad != nil {
			return bad(ctx, right)
		}
		return right, err
	}))
	tritonpb.RegisterGRPCInferenceServiceServer(s, stubGRPC{})
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return l.Addr().String(), &calls
}

func TestBrokenRepliesOverGRPC(t *testing.T) {
	plain := &testkit.Wire{After: -1}
	address, calls := serveGRPC(t, -1, nil)
	f := testkit.NewFaults(t, plain.Start(t, address), func(ctx context.Context, address string) (string, error) {
		c, err := kserve.Open(kserve.Options{Protocol: kserve.GRPC, Address: address, Timeout: 300 * time.Millisecond, MaxReply: 1 << 20})
		if err != nil {
			return "", err
		}
		defer func() { _ = c.Close() }()
		return talk(ctx, c)
	}, whatTriton)
	wrong := map[string]func(ctx context.Context, right any) (any, error){
		"silence": func(ctx context.Context, _ any) (any, error) { <-ctx.Done(); return nil, ctx.Err() },
		"nothing in it": func(_ context.Context, right any) (any, error) {
			return right.(proto.Message).ProtoReflect().New().Interface(), nil
		},
		"huge": func(_ context.Context, right any) (any, error) {
			m := proto.Clone(right.(proto.Message))
			m.ProtoReflect().SetUnknown(protowire.AppendBytes(protowire.AppendTag(nil, 5000, protowire.BytesType), make([]byte, 2<<20)))
			return m, nil
		},
	}
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		wrong[code.String()] = func(context.Context, any) (any, error) { return nil, status.Error(code, "no") }
	}
	requests, ways := calls.Load(), int64(0)
	for at := range requests {
		for name, bad := range wrong {
			// A load is answered with an empty message by Triton too.
			address, _ := serveGRPC(t, at, bad)
			f.Try(fmt.Sprintf("call %d, %s", at, name), address)
			ways++
		}
	}
	f.BreakWires(plain.Passed(), func() string { address, _ := serveGRPC(t, -1, nil); return address })
	f.Record("broken reply of Triton over gRPC", "%d calls of a conversation, answered in %d wrong ways; connections cut, reset, silent and garbled at bytes of %d", requests, ways, plain.Passed())
}
