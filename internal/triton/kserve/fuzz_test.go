package kserve

import (
	"bytes"
	"context"
	"io"
	"math"
	"net/http"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/internal/triton/tritonpb"
)

// sameReply answers every request alike.
type sameReply struct {
	status int
	length string
	body   []byte
}

func (s sameReply) RoundTrip(r *http.Request) (*http.Response, error) {
	h := http.Header{}
	if s.length != "" {
		h.Set(headerLength, s.length)
	}
	return &http.Response{
		StatusCode: s.status, Status: http.StatusText(s.status), Header: h, Request: r,
		ContentLength: int64(len(s.body)), Body: io.NopCloser(bytes.NewReader(s.body)),
	}, nil
}

// FuzzServerReplies lets a server answer every call with anything: nothing may
// panic, what is refused is no answer, and what is taken holds together.
func FuzzServerReplies(f *testing.F) {
	for _, s := range []string{
		`{"name":"m","versions":["1"],"platform":"onnxruntime_onnx","inputs":[{"name":"x","datatype":"FP16","shape":[-1,4]}],"outputs":[{"name":"y","datatype":"FP16","shape":[-1,4]}]}`,
		`{"model_stats":[{"name":"m","version":"1","inference_count":"9","inference_stats":{"success":{"count":"9","ns":"100"}}}]}`,
		`[{"name":"m","version":"1","state":"READY"},{"name":"n","reason":"no"}]`,
		`{"name":"m","max_batch_size":8,"input":[{"name":"x","data_type":"TYPE_FP32","dims":["4"]}],"instance_group":[{"kind":"KIND_GPU","gpus":[0]}]}`,
		`{"model_name":"m","outputs":[{"name":"y","datatype":"FP32","shape":[1],"data":[1]}]}`,
	} {
		f.Add(uint16(200), []byte(s), "")
	}
	f.Add(uint16(400), []byte(`{"error":"no such model"}`), "")
	f.Add(uint16(200), []byte(`{"outputs":[{"name":"y","datatype":"UINT8","shape":[2],"parameters":{"binary_data_size":2}}]}ab`), "90")
	f.Fuzz(func(t *testing.T, code uint16, body []byte, length string) {
		if code < 200 || code > 599 || len(body) > 1<<16 {
			return
		}
		for _, json := range []bool{false, true} {
			opened, err := Open(Options{Protocol: HTTP, Address: "s:1", JSON: json})
			if err != nil {
				t.Fatal(err)
			}
			c := opened.(*httpClient)
			c.client.Transport = sameReply{int(code), length, body}
			ask(t, c, code == http.StatusOK)
		}
	})
}

func ask(t *testing.T, c *httpClient, answered bool) {
	ctx := context.Background()
	taken := func(what string, err error) {
		if err == nil && !answered {
			t.Errorf("%s: a refusal was taken for an answer", what)
		}
	}
	ready, err := c.ServerReady(ctx)
	if ready != answered || err != nil {
		t.Errorf("ready %v, %v", ready, err)
	}
	_, err = c.ServerMetadata(ctx)
	taken("metadata", err)
	_, err = c.ModelMetadata(ctx, "m", "1")
	taken("metadata of a model", err)
	_, err = c.ModelConfig(ctx, "m", "")
	taken("configuration", err)
	_, err = c.Statistics(ctx, "", "")
	taken("statistics", err)
	_, err = c.Index(ctx, true)
	taken("index", err)
	taken("unload", c.Unload(ctx, "m"))
	r, err := c.Infer(ctx, Request{Model: "m", Inputs: []tensor.Named{{Name: "x", Tensor: tensor.FromFloat32s([]int64{1}, []float32{1})}}})
	taken("infer", err)
	if err == nil {
		whole(t, r)
	}
}

// whole demands that the outputs of a reply hold together and survive being sent.
func whole(t *testing.T, r Response) {
	for _, o := range r.Outputs {
		if err := o.Check(); err != nil {
			t.Errorf("output %q: %v", o.Name, err)
			continue
		}
		raw, err := Encode(o.Tensor)
		if err != nil {
			t.Errorf("output %q: %v", o.Name, err)
			continue
		}
		if again, err := Decode(o.DType, o.Shape, raw); err != nil || !again.Equal(o.Tensor) {
			t.Errorf("output %q does not survive: %v", o.Name, err)
		}
	}
}

// FuzzGRPCReply decodes whatever a server may send as the answer to an
// inference over gRPC.
func FuzzGRPCReply(f *testing.F) {
	for _, m := range []*tritonpb.ModelInferResponse{
		{ModelName: "m", Outputs: []*tritonpb.ModelInferResponse_InferOutputTensor{{Name: "y", Datatype: "FP32", Shape: []int64{1}}}, RawOutputContents: [][]byte{{0, 0, 128, 63}}},
		{Outputs: []*tritonpb.ModelInferResponse_InferOutputTensor{{Name: "s", Datatype: "BYTES", Shape: []int64{1}}}, RawOutputContents: [][]byte{{1, 0, 0, 0, 'a'}}},
		{Outputs: []*tritonpb.ModelInferResponse_InferOutputTensor{{Name: "i", Datatype: "INT64", Shape: []int64{2}, Contents: &tritonpb.InferTensorContents{Int64Contents: []int64{math.MaxInt64, 2}}}}},
		{Outputs: []*tritonpb.ModelInferResponse_InferOutputTensor{{Name: "f", Datatype: "FP64", Shape: []int64{1}, Contents: &tritonpb.InferTensorContents{Fp64Contents: []float64{1.5}}}}},
		{Outputs: []*tritonpb.ModelInferResponse_InferOutputTensor{{Name: "b", Datatype: "BOOL", Shape: []int64{1}, Contents: &tritonpb.InferTensorContents{BoolContents: []bool{true}}}}},
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m := &tritonpb.ModelInferResponse{}
		if proto.Unmarshal(b, m) != nil {
			return
		}
		r, err := DecodeGRPC(m)
		if err != nil {
			return
		}
		if len(r.Outputs) != len(m.GetOutputs()) {
			t.Errorf("%d outputs of %d", len(r.Outputs), len(m.GetOutputs()))
		}
		if raws := len(m.GetRawOutputContents()); raws > len(r.Outputs) {
			t.Errorf("%d contents were taken for %d outputs", raws, len(r.Outputs))
		}
		whole(t, r)
	})
}
