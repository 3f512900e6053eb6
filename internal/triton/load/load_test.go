package load_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/internal/triton/kserve"
	"github.com/trtship/trtship/internal/triton/load"
	"github.com/trtship/trtship/internal/triton/pbtxt"
	"github.com/trtship/trtship/internal/triton/server"
	"github.com/trtship/trtship/internal/triton/tritonpb"
	"github.com/trtship/trtship/internal/triton/tritontest"
)

// responder answers every request of both protocols from memory.
type responder struct {
	tritonpb.UnimplementedGRPCInferenceServiceServer
	requests atomic.Int64
	fail     func(n int64) string
	delay    time.Duration
	bytes    atomic.Int64
}

func (r *responder) answer(size int) string {
	r.bytes.Add(int64(size))
	n := r.requests.Add(1)
	if r.delay > 0 {
		time.Sleep(r.delay)
	}
	if r.fail != nil {
		return r.fail(n)
	}
	return ""
}

func (r *responder) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	n, _ := io.Copy(io.Discard, q.Body)
	if text := r.answer(int(n)); text != "" {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = w.Write([]byte(`{"error":"` + text + `"}`))
		return
	}
	_, _ = w.Write([]byte(`{"model_name":"m"}`))
}

func (r *responder) ModelInfer(_ context.Context, m *tritonpb.ModelInferRequest) (*tritonpb.ModelInferResponse, error) {
	size := 0
	for _, b := range m.GetRawInputContents() {
		size += len(b)
	}
	if text := r.answer(size); text != "" {
		return nil, status.Error(codes.InvalidArgument, text)
	}
	return &tritonpb.ModelInferResponse{ModelName: m.GetModelName(), RawOutputContents: [][]byte{make([]byte, size)}}, nil
}

// start serves r over a protocol.
func start(t *testing.T, p kserve.Protocol, r *responder) string {
	t.Helper()
	if p == kserve.HTTP {
		s := httptest.NewServer(r)
		t.Cleanup(s.Close)
		return strings.TrimPrefix(s.URL, "http://")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.MaxRecvMsgSize(1<<30), grpc.MaxSendMsgSize(1<<30))
	tritonpb.RegisterGRPCInferenceServiceServer(s, r)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return l.Addr().String()
}

func request(n int64) []kserve.Request {
	return []kserve.Request{{Model: "m", Inputs: []tensor.Named{{Name: "x", Tensor: tensor.Tensor{DType: tensor.UInt8, Shape: []int64{1, n}, Data: make([]byte, n)}}}}}
}

func options(p kserve.Protocol, address string) load.Options {
	return load.Options{Protocol: p, Address: address, Requests: request(16), Concurrency: 4, Window: 200 * time.Millisecond, MaxWindows: 4, Tolerance: 5}
}

var protocols = []kserve.Protocol{kserve.HTTP, kserve.GRPC}

func TestAClosedLoopCountsWhatTheServerAnswered(t *testing.T) {
	for _, p := range protocols {
		t.Run(string(p), func(t *testing.T) {
			r := &responder{}
			o := options(p, start(t, p, r))
			o.Batch = 2
			res, err := load.Run(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			if res.Requests == 0 || int64(res.Requests) > r.requests.Load() || res.Errors != 0 || len(res.Samples) != res.Requests || res.Latency.Count != res.Requests {
				t.Errorf("%d requests of %d, %d errors, %d samples", res.Requests, r.requests.Load(), res.Errors, len(res.Samples))
			}
			if res.Throughput != 2*res.Rate || len(res.Windows) < 3 || !res.Stable || res.CPU <= 0 {
				t.Errorf("%+v", res.Windows)
			}
			if len(res.Samples) > 0 && float64(res.Latency.Max) < res.Samples[0] {
				t.Errorf("%v", res.Latency)
			}
		})
	}
}

func TestLargeRequestsPassFlowControl(t *testing.T) {
	for _, p := range protocols {
		t.Run(string(p), func(t *testing.T) {
			r := &responder{}
			o := options(p, start(t, p, r))
			o.Requests = request(3 << 20)
			o.Concurrency = 2
			res, err := load.Run(t.Context(), o)
			if err != nil || res.Errors > 0 {
				t.Fatalf("%v %v", err, res.ErrorTexts)
			}
			if p == kserve.GRPC && r.bytes.Load() != r.requests.Load()*(3<<20) {
				t.Errorf("%d bytes in %d requests", r.bytes.Load(), r.requests.Load())
			}
		})
	}
}

func TestErrorsAreCountedApartWithTheirTexts(t *testing.T) {
	for _, p := range protocols {
		t.Run(string(p), func(t *testing.T) {
			r := &responder{fail: func(n int64) string {
				if n%3 == 0 {
					return "no more"
				}
				return ""
			}}
			res, err := load.Run(t.Context(), options(p, start(t, p, r)))
			if err != nil {
				t.Fatal(err)
			}
			if res.Errors == 0 || res.Requests <= res.Errors || len(res.ErrorTexts) != 1 || !strings.Contains(res.Notes[len(res.Notes)-1], "failed") {
				t.Errorf("%d errors, %v, %v", res.Errors, res.ErrorTexts, res.Notes)
			}
			for text := range res.ErrorTexts {
				if !strings.Contains(text, "no more") {
					t.Errorf("%q", text)
				}
			}
			never := &responder{fail: func(int64) string { return "never" }}
			_, err = load.Run(t.Context(), options(p, start(t, p, never)))
			if failure.CodeOf(err) != failure.Triton || !strings.Contains(err.Error(), "every request fails") || !strings.Contains(err.Error(), "never") {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestAnOpenLoopKeepsItsRateAndCountsTheWait(t *testing.T) {
	for _, d := range []load.Distribution{load.Constant, load.Poisson} {
		t.Run(string(d), func(t *testing.T) {
			r := &responder{}
			o := options(kserve.HTTP, start(t, kserve.HTTP, r))
			o.Rate, o.Distribution, o.Concurrency = 200, d, 0
			res, err := load.Run(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			if res.Rate < 120 || res.Rate > 280 {
				t.Errorf("%g requests/s of 200", res.Rate)
			}
		})
	}
	t.Run("a server that is too slow", func(t *testing.T) {
		r := &responder{delay: 20 * time.Millisecond}
		o := options(kserve.HTTP, start(t, kserve.HTTP, r))
		o.Rate, o.Concurrency = 400, 2 // it can answer 100
		res, err := load.Run(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		// Measured from when it was due, the last request waited far longer than
		// the 20 ms that it took.
		if res.Latency.Max < 100 || res.Late == 0 || !strings.Contains(strings.Join(res.Notes, "\n"), "beyond its limit") {
			t.Errorf("max %g ms, %d late, %v", res.Latency.Max, res.Late, res.Notes)
		}
	})
}

func TestWindowsThatDoNotAgreeAreSaid(t *testing.T) {
	r := &responder{}
	began := time.Now()
	r.fail = func(int64) string {
		if time.Since(began) > 250*time.Millisecond {
			time.Sleep(time.Since(began) / 20) // slower and slower
		}
		return ""
	}
	o := options(kserve.HTTP, start(t, kserve.HTTP, r))
	o.Tolerance = 0.01
	res, err := load.Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if res.Stable || len(res.Windows) != 4 || !strings.Contains(res.Notes[0], "not stable") {
		t.Errorf("%v %v", res.Stable, res.Notes)
	}
}

func TestAServerThatGoesAwayIsCountedAndAsked(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	defer func() { _ = l.Close() }()
	_, err = load.Run(t.Context(), options(kserve.HTTP, l.Addr().String()))
	if failure.CodeOf(err) != failure.Triton {
		t.Errorf("got %v", err)
	}
	_ = l.Close()
	_, err = load.Run(t.Context(), options(kserve.HTTP, l.Addr().String()))
	if failure.CodeOf(err) != failure.Triton || !strings.Contains(err.Error(), "connect to") {
		t.Errorf("got %v", err)
	}
}

func TestWhatCannotBeRun(t *testing.T) {
	for name, change := range map[string]func(*load.Options){
		"nothing to send":       func(o *load.Options) { o.Requests = nil },
		"no concurrency":        func(o *load.Options) { o.Concurrency = 0 },
		"a negative rate":       func(o *load.Options) { o.Rate = -1 },
		"an unknown rhythm":     func(o *load.Options) { o.Distribution = "uniform" },
		"an unknown protocol":   func(o *load.Options) { o.Protocol = "smtp" },
		"a tensor with no form": func(o *load.Options) { o.Requests[0].Inputs[0].DType = tensor.Float8E4 },
	} {
		o := options(kserve.HTTP, "127.0.0.1:1")
		change(&o)
		if _, err := load.Run(t.Context(), o); err == nil {
			t.Errorf("%s: it ran", name)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := load.Run(ctx, options(kserve.HTTP, start(t, kserve.HTTP, &responder{}))); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

// The real server: its own counts bear out ours, over both protocols.
func TestARealServersCountsAgree(t *testing.T) {
	repository := t.TempDir()
	tritontest.CopyTree(t, filepath.Join("..", "..", "..", "testdata", "tutorial", "corrected", "mnist"), filepath.Join(repository, "mnist"))
	s := tritontest.Start(t, server.Options{Repositories: []string{repository}, Wait: []server.Want{{Model: "mnist"}}})
	control, err := s.Client(kserve.HTTP)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := control.ModelConfig(t.Context(), "mnist", "")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range protocols {
		address := s.HTTP
		if p == kserve.GRPC {
			address = s.GRPC
		}
		b, err := load.Sweep(t.Context(), load.Options{Protocol: p, Address: address, Metrics: s.Metrics, Control: control, Window: 300 * time.Millisecond, Tolerance: 2, MaxWindows: 5}, cfg, "fp32", []int{1, 4}, []int{4}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(b.Rows) != 2 || len(b.Skipped) != 0 {
			t.Fatalf("%+v", b.Skipped)
		}
		for _, m := range b.Rows {
			queue, ok := m.Phases["server_queue"]
			if !ok || m.Errors != 0 || m.Backend != "triton" || !strings.Contains(m.Mode, "instances=1") {
				t.Errorf("%s: %v %v", p, m.Mode, m.Phases)
			}
			// The server counts after it has answered; a window's edge may cut a few.
			if d := queue.Count - m.Requests; d < -m.Requests/2 || d > m.Requests/2 {
				t.Errorf("%s: the server counts %d, we %d", p, queue.Count, m.Requests)
			}
		}
	}
	requests, err := load.Generated(cfg, 1, 1, nil, 1)
	if err != nil {
		t.Fatal(err)
	}
	res, err := load.Run(t.Context(), load.Options{Protocol: kserve.HTTP, Address: s.HTTP, Metrics: s.Metrics, Control: control, Requests: requests, Concurrency: 8, Window: 300 * time.Millisecond, Tolerance: 2, MaxWindows: 5})
	if err != nil {
		t.Fatal(err)
	}
	if res.Metrics["nv_inference_request_success"] == 0 || res.Server == nil || res.Server.Executions >= res.Server.Requests || *res.Overhead <= 0 {
		t.Errorf("metrics %v, server %+v, overhead %v", res.Metrics["nv_inference_request_success"], res.Server, res.Overhead)
	}
}

func TestPerfAnalyzersInputData(t *testing.T) {
	cfg := pbtxt.Parse(`name: "m" max_batch_size: 8 input [ { name: "x" data_type: TYPE_FP32 dims: [ 2 ] }, { name: "s" data_type: TYPE_STRING dims: [ -1 ] optional: true } ]`).Config
	for name, c := range map[string]struct {
		json, err string
		batch     int
		want      int // requests
		bytes     int
	}{
		"flat values":              {`{"data":[{"x":[1,2]},{"x":[3,4]}]}`, "", 1, 2, 8},
		"content and shape":        {`{"data":[{"x":{"content":[1,2,3],"shape":[3]}}]}`, "", 1, 1, 12},
		"base64":                   {`{"data":[{"x":{"b64":"AACAPwAAAEA="}}]}`, "", 1, 1, 8},
		"base64 as content":        {`{"data":[{"x":{"content":{"b64":"AACAPwAAAEA="},"shape":[2]}}]}`, "", 1, 1, 8},
		"streams":                  {`{"data":[[{"x":[1,2]},{"x":[3,4]}]]}`, "", 1, 2, 8},
		"a batch":                  {`{"data":[{"x":[1,2]},{"x":[3,4]}]}`, "", 2, 1, 16},
		"rows are used again":      {`{"data":[{"x":[1,2]}]}`, "", 4, 1, 32},
		"strings":                  {`{"data":[{"x":[1,2],"s":{"content":["a","b"],"shape":[2]}}]}`, "", 1, 1, 8},
		"the tutorial's list":      {`[{"x":[1,2]}]`, `an object with the key "data"`, 1, 0, 0},
		"no data":                  {`{}`, "missing or empty", 1, 0, 0},
		"a missing input":          {`{"data":[{"y":[1]}]}`, "the input x is missing", 1, 0, 0},
		"an unknown input":         {`{"data":[{"x":[1,2],"y":[1]}]}`, "no input y", 1, 0, 0},
		"too few values":           {`{"data":[{"x":[1]}]}`, "takes 8 bytes, 4 are there", 1, 0, 0},
		"a string for a number":    {`{"data":[{"x":["a","b"]}]}`, `"a" for float32`, 1, 0, 0},
		"an open shape":            {`{"data":[{"x":[1,2],"s":["a"]}]}`, "not fixed", 1, 0, 0},
		"shapes that do not stack": {`{"data":[{"x":[1,2]},{"x":{"content":[1],"shape":[1]}}]}`, "other shapes", 2, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "data.json")
			if err := os.WriteFile(path, []byte(c.json), 0o644); err != nil {
				t.Fatal(err)
			}
			got, err := load.ReadInputData(path, cfg, c.batch)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("got %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if len(got) != c.want || len(got[0].Inputs[0].Data) != c.bytes || got[0].Inputs[0].Shape[0] != int64(c.batch) {
				t.Errorf("%d requests: %v", len(got), got)
			}
		})
	}
	if _, err := load.ReadInputData(filepath.Join(t.TempDir(), "none"), cfg, 1); failure.CodeOf(err) != failure.Artifact {
		t.Errorf("got %v", err)
	}
	every := pbtxt.Parse(`input [ { name: "a" data_type: TYPE_FP16 dims: [ 1 ] }, { name: "b" data_type: TYPE_BF16 dims: [ 1 ] }, { name: "c" data_type: TYPE_INT64 dims: [ 1 ] }, { name: "d" data_type: TYPE_UINT8 dims: [ 1 ] }, { name: "e" data_type: TYPE_BOOL dims: [ 2 ] }, { name: "f" data_type: TYPE_FP64 dims: [ 1 ] } ]`).Config
	path := filepath.Join(t.TempDir(), "data.json")
	if err := os.WriteFile(path, []byte(`{"data":[{"a":[1],"b":[1],"c":[9007199254740993],"d":[255],"e":[true,0],"f":[0.5]}]}`), 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := load.ReadInputData(path, every, 1)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"\x00\x3c", "\x80\x3f", "\x01\x00\x00\x00\x00\x00\x20\x00", "\xff", "\x01\x00", "\x00\x00\x00\x00\x00\x00\xe0\x3f"} {
		if string(got[0].Inputs[i].Data) != want {
			t.Errorf("%s: %x", got[0].Inputs[i].Name, got[0].Inputs[i].Data)
		}
	}
	if _, err := load.ReadInputData(path, every, 2); err == nil || !strings.Contains(err.Error(), "takes no batches") {
		t.Errorf("got %v", err)
	}
}

func TestGeneratedRequests(t *testing.T) {
	cfg := pbtxt.Parse(`name: "m" max_batch_size: 8 input [ { name: "x" data_type: TYPE_FP32 dims: [ -1, 2 ] } ]`).Config
	if _, err := load.Generated(cfg, 2, 1, nil, 1); failure.CodeOf(err) != failure.Usage || !strings.Contains(err.Error(), "give its sizes") {
		t.Errorf("got %v", err)
	}
	got, err := load.Generated(cfg, 2, 3, map[string]load.Values{"x": {Shape: []int64{5, 2}}}, 1)
	if err != nil || len(got) != 3 || len(got[0].Inputs[0].Shape) != 3 || got[0].Inputs[0].Shape[0] != 2 || string(got[0].Inputs[0].Data) == string(got[1].Inputs[0].Data) {
		t.Errorf("%v %v", got, err)
	}
}

func TestGeneratedValuesKeepToTheirRange(t *testing.T) {
	cfg := pbtxt.Parse(`name: "m" max_batch_size: 8 input [ { name: "ids" data_type: TYPE_INT64 dims: [ 64 ] }, { name: "x" data_type: TYPE_FP32 dims: [ 64 ] } ]`).Config
	got, err := load.Generated(cfg, 2, 2, map[string]load.Values{"ids": {Range: tensor.Range{Low: "100", High: "103"}}, "x": {Range: tensor.Range{Low: "0.5", High: "0.75"}}}, 1)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[int64]bool{}
	for _, r := range got {
		for i := range 2 * 64 {
			id := int64(binary.LittleEndian.Uint64(r.Inputs[0].Data[8*i:]))
			seen[id] = true
			if x := math.Float32frombits(binary.LittleEndian.Uint32(r.Inputs[1].Data[4*i:])); id < 100 || id > 103 || x < 0.5 || x > 0.75 {
				t.Fatalf("ids %d, x %v", id, x)
			}
		}
	}
	if len(seen) != 4 {
		t.Errorf("of 100 to 103 only %v came", seen)
	}
	if _, err := load.Generated(cfg, 1, 1, map[string]load.Values{"ids": {Range: tensor.Range{Low: "3", High: "1"}}}, 1); failure.CodeOf(err) != failure.Usage {
		t.Errorf("an upside-down range: %v", err)
	}
}

// A server that takes requests and answers none.
func silent(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(io.Discard, c) }()
		}
	}()
	return l.Addr().String()
}

func TestASilentServerIsTimedOutAndNeverHoldsTheEndUp(t *testing.T) {
	cfg := pbtxt.Parse(`name: "m" max_batch_size: 0 input [ { name: "x" data_type: TYPE_FP32 dims: [ 2 ] } ]`).Config
	requests, err := load.Generated(cfg, 1, 1, nil, 1)
	if err != nil {
		t.Fatal(err)
	}
	address := silent(t)
	for _, p := range []kserve.Protocol{kserve.HTTP, kserve.GRPC} {
		for name, o := range map[string]load.Options{"a thread for each connection": {Concurrency: 3}, "the poller": {Concurrency: 200}, "a rate": {Rate: 50, Concurrency: 3}} {
			t.Run(string(p)+", "+name, func(t *testing.T) {
				o.Protocol, o.Address, o.Requests, o.Window = p, address, requests, 100*time.Millisecond
				o.Timeout, o.MaxWindows = 50*time.Millisecond, 4
				if _, err := load.Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "timeout") {
					t.Errorf("a timeout: %v", err)
				}
				o.Timeout, o.MaxWindows = time.Hour, 1000
				ctx, cancel := context.WithTimeout(t.Context(), 150*time.Millisecond)
				defer cancel()
				if _, err := load.Run(ctx, o); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("the end of the context: %v", err)
				}
			})
		}
	}
}
