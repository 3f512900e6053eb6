package kserve_test

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/internal/testkit"
	"github.com/trtship/trtship/internal/triton/kserve"
	"github.com/trtship/trtship/internal/triton/server"
	"github.com/trtship/trtship/internal/triton/tritonpb"
	"github.com/trtship/trtship/internal/triton/tritontest"
)

func data[T any](values ...T) []byte {
	var b []byte
	for _, v := range values {
		b, _ = binary.Append(b, binary.LittleEndian, v)
	}
	return b
}

// echoes has one tensor of every type with values at the edges of what it holds.
var echoes = map[string]tensor.Tensor{
	"BOOL":   {DType: tensor.Bool, Shape: []int64{1, 3}, Data: []byte{1, 0, 1}},
	"UINT8":  {DType: tensor.UInt8, Shape: []int64{1, 2}, Data: []byte{0, 255}},
	"UINT16": {DType: tensor.UInt16, Shape: []int64{1, 2}, Data: data[uint16](0, math.MaxUint16)},
	"UINT32": {DType: tensor.UInt32, Shape: []int64{1, 2}, Data: data[uint32](0, math.MaxUint32)},
	"UINT64": {DType: tensor.UInt64, Shape: []int64{1, 2}, Data: data[uint64](9007199254740993, math.MaxUint64)},
	"INT8":   {DType: tensor.Int8, Shape: []int64{1, 2}, Data: data[int8](-128, 127)},
	"INT16":  {DType: tensor.Int16, Shape: []int64{1, 2}, Data: data[int16](math.MinInt16, math.MaxInt16)},
	"INT32":  {DType: tensor.Int32, Shape: []int64{1, 2}, Data: data[int32](math.MinInt32, math.MaxInt32)},
	"INT64":  {DType: tensor.Int64, Shape: []int64{1, 3}, Data: data[int64](9007199254740993, math.MinInt64, math.MaxInt64)},
	"FP16":   {DType: tensor.Float16, Shape: []int64{1, 3}, Data: data[uint16](0x3c00, 0x7bff, 0x7e00)},
	"BF16":   {DType: tensor.BFloat16, Shape: []int64{1, 2}, Data: data[uint16](0x3f80, 0xff80)},
	"FP32":   {DType: tensor.Float32, Shape: []int64{2, 2}, Data: data(float32(1.5), float32(-0.1), float32(math.MaxFloat32), float32(math.SmallestNonzeroFloat32))},
	"FP64":   {DType: tensor.Float64, Shape: []int64{1, 2}, Data: data(0.1, math.MaxFloat64)},
	"BYTES":  {DType: tensor.String, Shape: []int64{1, 3}, Strings: []string{"ABC", "", "\u00e4\"\\\n\U0001f600"}},
}

// shared is the server of all tests: starting one takes seconds.
var shared struct {
	once       sync.Once
	server     *server.Server
	repository string
}

func TestMain(m *testing.M) {
	testkit.Main(m, func() {
		if shared.server != nil {
			shared.server.Stop()
		}
		_ = os.RemoveAll(shared.repository)
	})
}

// start returns the server with the echo model and a client for each way to
// reach it.
func start(t *testing.T) (*server.Server, map[string]kserve.Client) {
	t.Helper()
	shared.once.Do(func() {
		dir, err := os.MkdirTemp("", "kserve-test-*")
		if err != nil {
			t.Fatal(err)
		}
		shared.repository = dir
		tritontest.WriteEcho(t, dir+"/models", "echo", 0)
		tritontest.WriteEcho(t, dir+"/models", "slow", 3)
		shared.server, err = server.Start(context.Background(), server.Options{
			Installation: tritontest.Installation(t), Repositories: []string{dir + "/models"}, Scratch: dir,
			Control: "explicit", Load: []string{"echo", "slow"}, Wait: []server.Want{{Model: "echo"}, {Model: "slow"}},
		})
		if err != nil {
			t.Fatal(err)
		}
	})
	s := shared.server
	if s == nil {
		t.Fatal("the server did not start")
	}
	clients := map[string]kserve.Client{}
	for name, o := range map[string]kserve.Options{
		"http": {Protocol: kserve.HTTP, Address: s.HTTP}, "json": {Protocol: kserve.HTTP, Address: s.HTTP, JSON: true}, "grpc": {Protocol: kserve.GRPC, Address: s.GRPC},
	} {
		c, err := kserve.Open(o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		clients[name] = c
	}
	return s, clients
}

func TestARealServerGivesBackEveryTypeOverEveryProtocol(t *testing.T) {
	_, clients := start(t)
	for how, c := range clients {
		for _, typ := range tritontest.EchoTypes {
			t.Run(how+"/"+typ, func(t *testing.T) { roundTrip(t, c, typ, echoes[typ]) })
			if typ == "BF16" {
				continue
			}
			t.Run(how+"/"+typ+" without elements", func(t *testing.T) {
				e := tensor.Tensor{DType: echoes[typ].DType, Shape: []int64{0, 4}, Data: []byte{}}
				if typ == "BYTES" {
					e.Data, e.Strings = nil, []string{}
				}
				roundTrip(t, c, typ, e)
			})
		}
		t.Run(how+"/all at once", func(t *testing.T) { allAtOnce(t, c) })
		t.Run(how+"/bytes that are no text", func(t *testing.T) {
			roundTrip(t, c, "BYTES", tensor.Tensor{DType: tensor.String, Shape: []int64{1, 1}, Strings: []string{"\xff\xfe\x00"}})
		})
		t.Run(how+"/NaN and infinities", func(t *testing.T) {
			e := tensor.Tensor{DType: tensor.Float32, Shape: []int64{1, 3}, Data: data(float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1)))}
			if how != "json" {
				roundTrip(t, c, "FP32", e)
				return
			}
			out, err := c.Infer(t.Context(), kserve.Request{Model: "echo", Inputs: []tensor.Named{{Name: "IN_FP32", Tensor: e}}})
			if err != nil { // a server that cannot write NaN says so; it must not look like a broken reply
				if _, ok := errors.AsType[*kserve.ServerError](err); !ok {
					t.Fatal(err)
				}
				return
			}
			if d := cmp.Diff(e.Data, out.Outputs[0].Data); d != "" {
				t.Error(d)
			}
		})
	}
	t.Run("more than 4 MB", func(t *testing.T) {
		big := tensor.Tensor{DType: tensor.UInt8, Shape: []int64{1, 20 << 20}, Data: make([]byte, 20<<20)}
		big.Data[len(big.Data)-1] = 7
		for _, how := range []string{"http", "grpc"} {
			roundTrip(t, clients[how], "UINT8", big)
		}
	})
}

func roundTrip(t *testing.T, c kserve.Client, typ string, e tensor.Tensor) {
	t.Helper()
	out, err := c.Infer(t.Context(), kserve.Request{Model: "echo", ID: "id 1", Inputs: []tensor.Named{{Name: "IN_" + typ, Tensor: e}}, Outputs: []string{"OUT_" + typ}})
	if err != nil {
		t.Fatal(err)
	}
	if out.Model != "echo" || out.Version != "1" || out.ID != "id 1" {
		t.Errorf("got model %q version %q id %q", out.Model, out.Version, out.ID)
	}
	if len(out.Outputs) != 1 || out.Outputs[0].Name != "OUT_"+typ {
		t.Fatalf("got %d outputs", len(out.Outputs))
	}
	if len(e.Data) > 1<<20 {
		if !cmp.Equal(e, out.Outputs[0].Tensor) {
			t.Error("it differs")
		}
		return
	}
	got := out.Outputs[0].Tensor
	if len(got.Data) == 0 && len(e.Data) == 0 {
		got.Data = e.Data
	}
	if d := cmp.Diff(e, got); d != "" {
		t.Errorf("-sent +got\n%s", d)
	}
}

func allAtOnce(t *testing.T, c kserve.Client) {
	t.Helper()
	var in []tensor.Named
	for _, typ := range tritontest.EchoTypes {
		in = append(in, tensor.Named{Name: "IN_" + typ, Tensor: echoes[typ]})
	}
	out, err := kserve.Model{Client: c, Name: "echo", Version: "1"}.Infer(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	if len(out) != len(in) {
		t.Errorf("%d outputs of %d", len(out), len(in))
	}
	for _, o := range out {
		if d := cmp.Diff(echoes[strings.TrimPrefix(o.Name, "OUT_")], o.Tensor); d != "" {
			t.Errorf("%s: %s", o.Name, d)
		}
	}
}

func TestWhatARealServerSaysAboutItself(t *testing.T) {
	s, clients := start(t)
	for how, c := range clients {
		t.Run(how, func(t *testing.T) {
			ctx := t.Context()
			if ok, err := c.ServerReady(ctx); !ok || err != nil {
				t.Errorf("ready: %v %v", ok, err)
			}
			if ok, err := c.ModelReady(ctx, "nobody", ""); ok || err != nil {
				t.Errorf("a model that is not there: %v %v", ok, err)
			}
			meta, err := c.ServerMetadata(ctx)
			if err != nil || !strings.HasPrefix(meta.GetName(), "trtship_") || meta.GetVersion() != s.Version() {
				t.Errorf("metadata: %v %v", meta, err)
			}
			model, err := c.ModelMetadata(ctx, "echo", "1")
			if err != nil || len(model.GetInputs()) != len(tritontest.EchoTypes) {
				t.Errorf("model metadata: %v %v", model, err)
			}
			config, err := c.ModelConfig(ctx, "echo", "")
			if err != nil || config.GetInstanceGroup()[0].GetKind() != tritonpb.ModelInstanceGroup_KIND_CPU {
				t.Errorf("config: %v %v", config, err)
			}
			roundTrip(t, c, "INT8", echoes["INT8"])
			waitFor(t, func() bool { // the server counts after it has answered
				stats, err := c.Statistics(ctx, "echo", "1")
				if err != nil || len(stats) != 1 {
					t.Fatalf("statistics: %v %v", stats, err)
				}
				return stats[0].GetInferenceStats().GetSuccess().GetCount() > 0
			})
			if all, err := c.Statistics(ctx, "", ""); err != nil || len(all) != 2 {
				t.Errorf("all statistics: %v %v", all, err)
			}
			index, err := c.Index(ctx, false)
			if err != nil || len(index) != 2 || index[0].GetState() != "READY" {
				t.Errorf("index: %v %v", index, err)
			}
		})
	}
}

func TestModelsAreLoadedAndUnloaded(t *testing.T) {
	_, clients := start(t)
	for how, c := range clients {
		t.Run(how, func(t *testing.T) {
			ctx := t.Context()
			if err := c.Unload(ctx, "echo"); err != nil {
				t.Fatal(err)
			}
			waitFor(t, func() bool { ok, err := c.ModelReady(ctx, "echo", ""); return err == nil && !ok })
			config, err := c.ModelConfig(ctx, "slow", "")
			if err != nil {
				t.Fatal(err)
			}
			config.Name = "echo"
			config.InstanceGroup[0].Count, config.InstanceGroup[0].Name = 2, "two"
			if err := c.Load(ctx, "echo", config); err != nil {
				t.Fatal(err)
			}
			got, err := c.ModelConfig(ctx, "echo", "")
			if err != nil || got.GetInstanceGroup()[0].GetCount() != 2 {
				t.Errorf("a given configuration replaces the file's: %v %v", got.GetInstanceGroup(), err)
			}
			if err := c.Load(ctx, "echo", nil); err != nil {
				t.Fatal(err)
			}
			err = c.Load(ctx, "nobody", nil)
			if e, ok := errors.AsType[*kserve.ServerError](err); !ok || !strings.Contains(e.Text, "nobody") {
				t.Errorf("a model that is not there: %v", err)
			}
		})
	}
}

func waitFor(t *testing.T, ready func() bool) {
	t.Helper()
	for !ready() {
		select {
		case <-t.Context().Done():
			t.Fatal("test ended")
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func TestRefusalsKeepTheServersWords(t *testing.T) {
	_, clients := start(t)
	for how, c := range clients {
		for name, r := range map[string]struct {
			r    kserve.Request
			want string
		}{
			"unknown model":   {kserve.Request{Model: "nobody", Inputs: []tensor.Named{{Name: "IN_INT8", Tensor: echoes["INT8"]}}}, "nobody"},
			"unknown input":   {kserve.Request{Model: "echo", Inputs: []tensor.Named{{Name: "other", Tensor: echoes["INT8"]}}}, "unexpected inference input 'other'"},
			"unknown version": {kserve.Request{Model: "echo", Version: "9", Inputs: []tensor.Named{{Name: "IN_INT8", Tensor: echoes["INT8"]}}}, "version 9"},
			"another type":    {kserve.Request{Model: "echo", Inputs: []tensor.Named{{Name: "IN_INT8", Tensor: echoes["FP32"]}}}, "data-type"},
		} {
			t.Run(how+"/"+name, func(t *testing.T) {
				_, err := c.Infer(t.Context(), r.r)
				e, ok := errors.AsType[*kserve.ServerError](err)
				if !ok || !strings.Contains(e.Text, r.want) {
					t.Errorf("got %v", err)
				}
			})
		}
		t.Run(how+"/a deadline", func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			_, err := c.Infer(ctx, kserve.Request{Model: "slow", Inputs: []tensor.Named{{Name: "IN_INT8", Tensor: echoes["INT8"]}}})
			if failure.CodeOf(err) != failure.Triton || !strings.Contains(err.Error(), "no answer in time") {
				t.Errorf("got %v", err)
			}
		})
		t.Run(how+"/a tensor that does not fit its shape", func(t *testing.T) {
			_, err := c.Infer(t.Context(), kserve.Request{Model: "echo", Inputs: []tensor.Named{{Name: "x", Tensor: tensor.Tensor{DType: tensor.Float32, Shape: []int64{2}, Data: []byte{1}}}}})
			if err == nil || !strings.Contains(err.Error(), "takes 8 bytes, 1 are there") {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestAServerThatIsNotThereIsSaid(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	_ = l.Close()
	for _, p := range []kserve.Protocol{kserve.HTTP, kserve.GRPC} {
		c, err := kserve.Open(kserve.Options{Protocol: p, Address: address, Timeout: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close() //nolint:errcheck // it never had a connection
		_, err = c.Infer(t.Context(), kserve.Request{Model: "m"})
		if failure.CodeOf(err) != failure.Triton || !strings.Contains(err.Error(), "does not answer") || !strings.Contains(err.Error(), address) {
			t.Errorf("%s: %v", p, err)
		}
	}
	if _, err := kserve.Open(kserve.Options{Protocol: "ftp"}); failure.CodeOf(err) != failure.Usage {
		t.Errorf("got %v", err)
	}
}

// s06: what a request must look like and what a reply may look like.
func TestJSONAndBinaryForms(t *testing.T) {
	testkit.HoldsCase(t, "s06-json-datatypes")
	raw, err := kserve.Encode(tensor.Tensor{DType: tensor.String, Shape: []int64{2}, Strings: []string{"ABC", ""}})
	if err != nil || hex.EncodeToString(raw) != "0300000041424300000000" {
		t.Errorf("BYTES: %x %v", raw, err)
	}
	for name, c := range map[string]struct {
		in   tensor.Tensor
		want string // what the head holds
		raw  int    // binary tensors
	}{
		"booleans":                 {tensor.Tensor{DType: tensor.Bool, Shape: []int64{2}, Data: []byte{1, 0}}, `"data":[true,false]`, 0},
		"64-bit integers":          {tensor.Tensor{DType: tensor.Int64, Shape: []int64{1}, Data: data[int64](9007199254740993)}, `"data":[9007199254740993]`, 0},
		"unsigned 64 bits":         {tensor.Tensor{DType: tensor.UInt64, Shape: []int64{1}, Data: data[uint64](math.MaxUint64)}, `"data":[18446744073709551615]`, 0},
		"half precision":           {echoes["FP16"], `"binary_data_size":6`, 1},
		"bfloat16":                 {echoes["BF16"], `"binary_data_size":4`, 1},
		"strings":                  {tensor.Tensor{DType: tensor.String, Shape: []int64{1}, Strings: []string{"a\"b"}}, `"data":["a\"b"]`, 0},
		"bytes that are no text":   {tensor.Tensor{DType: tensor.String, Shape: []int64{1}, Strings: []string{"\xff\xfe"}}, `"binary_data_size":6`, 1},
		"NaN":                      {tensor.Tensor{DType: tensor.Float32, Shape: []int64{1}, Data: data(float32(math.NaN()))}, `"binary_data_size":4`, 1},
		"a double that is no JSON": {tensor.Tensor{DType: tensor.Float64, Shape: []int64{1}, Data: data(math.Inf(1))}, `"binary_data_size":8`, 1},
		"nothing":                  {tensor.Tensor{DType: tensor.Float32, Shape: []int64{0, 4}}, `"data":[]`, 0},
	} {
		t.Run(name, func(t *testing.T) {
			head, raws, err := kserve.EncodeHTTP(kserve.Request{Model: "m", Inputs: []tensor.Named{{Name: "x", Tensor: c.in}}}, kserve.Form{Text: true})
			if err != nil {
				t.Fatal(err)
			}
			if !json.Valid(head) || !strings.Contains(string(head), c.want) || len(raws) != c.raw {
				t.Errorf("%s and %d binary tensors, want %s and %d", head, len(raws), c.want, c.raw)
			}
		})
	}
	head, raws, err := kserve.EncodeHTTP(kserve.Request{
		Model: "m", ID: "a", Priority: 2, QueueTimeout: 5, SequenceID: 7, SequenceEnd: true,
		Inputs: []tensor.Named{{Name: "x", Tensor: tensor.Tensor{DType: tensor.Float32, Shape: []int64{0, 4}}}}, Outputs: []string{"y", "z"},
	}, kserve.Form{})
	want := `{"id":"a","parameters":{"binary_data_output":true,"timeout":5,"priority":2,"sequence_id":7,"sequence_start":false,"sequence_end":true},"inputs":[{"name":"x","datatype":"FP32","shape":[0,4],"parameters":{"binary_data_size":0}}],"outputs":[{"name":"y","parameters":{"binary_data":true}},{"name":"z","parameters":{"binary_data":true}}]}`
	if err != nil || string(head) != want || len(raws) != 1 {
		t.Errorf("%v\n%s", err, cmp.Diff(want, string(head)))
	}
}

func TestRepliesAreUnderstood(t *testing.T) {
	testkit.HoldsCase(t, "s06-json-datatypes")
	for name, c := range map[string]struct {
		body, length string
		want         tensor.Tensor
		err          string
	}{
		"NaN and infinities as Triton writes them": {
			body: `{"outputs":[{"name":"y","datatype":"FP32","shape":[3],"data":[NaN, Infinity, -Infinity]}]}`,
			want: tensor.Tensor{DType: tensor.Float32, Shape: []int64{3}, Data: data(float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1)))},
		},
		"nested and flat are the same": {
			body: `{"outputs":[{"name":"y","datatype":"FP32","shape":[2,2],"data":[[1,2],[3,4]]}]}`,
			want: tensor.Tensor{DType: tensor.Float32, Shape: []int64{2, 2}, Data: data[float32](1, 2, 3, 4)},
		},
		"all digits of 64 bits": {
			body: `{"outputs":[{"name":"y","datatype":"INT64","shape":[1],"data":[9007199254740993]}]}`,
			want: tensor.Tensor{DType: tensor.Int64, Shape: []int64{1}, Data: data[int64](9007199254740993)},
		},
		"strings with escapes": {
			body: `{"outputs":[{"name":"y","datatype":"BYTES","shape":[1],"data":["a\u00e4\ud83d\ude00\n\\\/\b\f\r\t"]}]}`,
			want: tensor.Tensor{DType: tensor.String, Shape: []int64{1}, Strings: []string{"a\u00e4\U0001f600\n\\/\b\f\r\t"}},
		},
		"an output beside binary ones": {
			body: `{"outputs":[{"name":"j","datatype":"UINT8","shape":[1],"data":[9]},{"name":"y","datatype":"UINT8","shape":[2],"parameters":{"binary_data_size":2}}]}` + "\x05\x06", length: "json",
			want: tensor.Tensor{DType: tensor.UInt8, Shape: []int64{1}, Data: []byte{9}},
		},
		"a scalar":                   {body: `{"outputs":[{"name":"y","datatype":"BOOL","shape":[],"data":[true]}]}`, want: tensor.Tensor{DType: tensor.Bool, Shape: []int64{}, Data: []byte{1}}},
		"too few elements":           {body: `{"outputs":[{"name":"y","datatype":"FP32","shape":[3],"data":[1]}]}`, err: "shape [3] has 3 elements, the server sent 1"},
		"a number that does not fit": {body: `{"outputs":[{"name":"y","datatype":"INT8","shape":[1],"data":[300]}]}`, err: "out of range"},
		"a fraction for an integer":  {body: `{"outputs":[{"name":"y","datatype":"INT8","shape":[1],"data":[1.5]}]}`, err: `element "1.5"`},
		"a string for a number":      {body: `{"outputs":[{"name":"y","datatype":"INT8","shape":[1],"data":["a"]}]}`, err: "a is no element of type int8"},
		"a number for a string":      {body: `{"outputs":[{"name":"y","datatype":"BYTES","shape":[1],"data":[1]}]}`, err: "the number 1 is no element"},
		"binary beyond the body":     {body: `{"outputs":[{"name":"y","datatype":"UINT8","shape":[2],"parameters":{"binary_data_size":9}}]}` + "xx", length: "json", err: "binary_data_size 9, 2 bytes are left"},
		"binary of another size":     {body: `{"outputs":[{"name":"y","datatype":"FP32","shape":[2],"parameters":{"binary_data_size":2}}]}` + "xx", length: "json", err: "takes 8 bytes, the server sent 2"},
		"bytes nobody asked for":     {body: `{"outputs":[]}xx`, length: "14", err: "2 bytes follow the last output"},
		"a length beyond the body":   {body: `{}`, length: "99", err: "header length"},
		"a length that is none":      {body: `{}`, length: "x", err: "header length"},
		"an unknown type":            {body: `{"outputs":[{"name":"y","datatype":"FP8","shape":[1],"data":[1]}]}`, err: `unknown data type "FP8"`},
		"a negative size":            {body: `{"outputs":[{"name":"y","datatype":"INT8","shape":[-1],"data":[1]}]}`, err: "negative size"},
		"a size beyond all memory":   {body: `{"outputs":[{"name":"y","datatype":"INT8","shape":[9223372036854775807,9223372036854775807],"data":[1]}]}`, err: "too large"},
		"no shape":                   {body: `{"outputs":[{"name":"y","datatype":"INT8","data":[1]}]}`, err: "shape is missing"},
		"no data":                    {body: `{"outputs":[{"name":"y","datatype":"INT8","shape":[1]}]}`, err: "neither data nor binary_data_size"},
		"no object":                  {body: `[1]`, err: "not an object"},
		"no JSON":                    {body: `<html>`, err: "reply is not JSON: byte 0"},
		"half a reply":               {body: `{"outputs":[{"name":"y"`, err: "reply is not JSON"},
		"a string that never ends":   {body: `{"a":"b`, err: "within a string"},
		"strings that are cut off":   {body: `{"outputs":[{"name":"y","datatype":"BYTES","shape":[2],"parameters":{"binary_data_size":9}}]}` + "\x01\x00\x00\x00a\xff\x00\x00\x00", length: "json", err: "string 1 of 2 is 255 bytes long, 0 are left"},
		"strings without a length":   {body: `{"outputs":[{"name":"y","datatype":"BYTES","shape":[2],"parameters":{"binary_data_size":8}}]}` + "\x02\x00\x00\x00abcd", length: "json", err: "has no length"},
		"bytes behind strings":       {body: `{"outputs":[{"name":"y","datatype":"BYTES","shape":[1],"parameters":{"binary_data_size":6}}]}` + "\x01\x00\x00\x00ab", length: "json", err: "1 bytes are left after 1 strings"},
		"nested without end":         {body: strings.Repeat("[", 5000), err: "deep"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.length == "json" {
				c.length = strconv.Itoa(strings.LastIndex(c.body, "]}") + 2)
			}
			r, err := kserve.DecodeHTTP([]byte(c.body), c.length)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("got %v, want %s", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(c.want, r.Outputs[0].Tensor); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestReplyOfBrokenServers(t *testing.T) {
	for name, c := range map[string]struct {
		status int
		body   string
		want   string
	}{
		"an error in words":   {400, `{"error":"no such thing"}`, "no such thing"},
		"an error in HTML":    {502, "<h1>Bad Gateway</h1>", "Bad Gateway"},
		"an error of nothing": {503, "", "503"},
		"not JSON":            {200, "hello", "read the server's reply"},
	} {
		t.Run(name, func(t *testing.T) {
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(c.status)
				_, _ = w.Write([]byte(c.body))
			}))
			defer s.Close()
			client, err := kserve.Open(kserve.Options{Protocol: kserve.HTTP, Address: strings.TrimPrefix(s.URL, "http://")})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = client.Close() }()
			_, err = client.Infer(t.Context(), kserve.Request{Model: "m"})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v", err)
			}
			if _, err := client.ServerMetadata(t.Context()); err == nil {
				t.Error("metadata came out of nothing")
			}
		})
	}
}

func TestTypedContentsOfOtherServers(t *testing.T) {
	m := &tritonpb.ModelInferResponse{ModelName: "m", Outputs: []*tritonpb.ModelInferResponse_InferOutputTensor{
		{Name: "a", Datatype: "INT64", Shape: []int64{1}, Contents: &tritonpb.InferTensorContents{Int64Contents: []int64{9007199254740993}}},
		{Name: "b", Datatype: "BOOL", Shape: []int64{1}, Contents: &tritonpb.InferTensorContents{BoolContents: []bool{true}}},
		{Name: "c", Datatype: "FP32", Shape: []int64{1}, Contents: &tritonpb.InferTensorContents{Fp32Contents: []float32{0.1}}},
		{Name: "d", Datatype: "BYTES", Shape: []int64{1}, Contents: &tritonpb.InferTensorContents{BytesContents: [][]byte{{0xff}}}},
		{Name: "e", Datatype: "UINT64", Shape: []int64{1}, Contents: &tritonpb.InferTensorContents{Uint64Contents: []uint64{math.MaxUint64}}},
		{Name: "f", Datatype: "INT8", Shape: []int64{1}, Contents: &tritonpb.InferTensorContents{IntContents: []int32{-3}}},
		{Name: "g", Datatype: "UINT8", Shape: []int64{1}, Contents: &tritonpb.InferTensorContents{UintContents: []uint32{3}}},
		{Name: "h", Datatype: "FP64", Shape: []int64{1}, Contents: &tritonpb.InferTensorContents{Fp64Contents: []float64{0.1}}},
	}}
	r, err := kserve.DecodeGRPC(m)
	if err != nil {
		t.Fatal(err)
	}
	var got [][]byte
	for _, o := range r.Outputs {
		got = append(got, append(o.Data, strings.Join(o.Strings, "")...))
	}
	want := [][]byte{data[int64](9007199254740993), {1}, data[float32](0.1), {0xff}, data[uint64](math.MaxUint64), {0xfd}, {3}, data(0.1)}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	m.Outputs[0].Contents = nil
	if _, err := kserve.DecodeGRPC(m); err == nil {
		t.Error("an output without contents is understood")
	}
	m.RawOutputContents = make([][]byte, 20)
	if _, err := kserve.DecodeGRPC(m); err == nil {
		t.Error("contents without outputs are understood")
	}
}

func FuzzReply(f *testing.F) {
	f.Add([]byte(`{"model_name":"m","outputs":[{"name":"y","datatype":"FP32","shape":[1,2],"data":[[1,NaN]]}]}`), "")
	for n := range 4 { // strings, each after its length
		header := fmt.Sprintf(`{"outputs":[{"name":"y","datatype":"BYTES","shape":[%d],"parameters":{"binary_data_size":%d}}]}`, 1+4*n, 5+20*n)
		body := header + strings.Repeat("\x01\x00\x00\x00a", 1+4*n)
		if _, err := kserve.DecodeHTTP([]byte(body), strconv.Itoa(len(header))); err != nil {
			f.Fatalf("a seed is refused: %v", err)
		}
		f.Add([]byte(body), strconv.Itoa(len(header)))
	}
	f.Add([]byte(`{"outputs":[{"name":"y","datatype":"INT64","shape":[9223372036854775807,2],"data":[]}]}`), "")
	f.Fuzz(func(t *testing.T, body []byte, length string) {
		r, err := kserve.DecodeHTTP(body, length)
		if err != nil {
			return
		}
		for _, o := range r.Outputs { // what was understood holds together
			if _, err := kserve.Encode(o.Tensor); err != nil {
				t.Errorf("%s: %v", o.Name, err)
			}
		}
	})
}

// A request of 200 MB either comes back whole or is refused in words; it never
// hangs and never looks like a broken reply.
func TestARequestOf200MB(t *testing.T) {
	_, clients := start(t)
	big := tensor.Tensor{DType: tensor.UInt8, Shape: []int64{1, 200 << 20}, Data: make([]byte, 200<<20)}
	big.Data[len(big.Data)-1] = 9
	for _, how := range []string{"http", "grpc"} {
		t.Run(how, func(t *testing.T) {
			out, err := clients[how].Infer(t.Context(), kserve.Request{Model: "echo", Inputs: []tensor.Named{{Name: "IN_UINT8", Tensor: big}}})
			if err == nil {
				if got := out.Outputs[0].Data; len(got) != len(big.Data) || got[len(got)-1] != 9 {
					t.Errorf("%d bytes came back", len(got))
				}
				return
			}
			if e, ok := errors.AsType[*kserve.ServerError](err); !ok || e.Text == "" {
				t.Errorf("got %v", err)
			}
			roundTrip(t, clients[how], "INT8", echoes["INT8"]) // and the server goes on
		})
	}
}
