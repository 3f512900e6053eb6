package kserve

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/internal/triton/tritonpb"
)

// headerLength is the header that says where the JSON of a binary body ends.
const headerLength = "Inference-Header-Content-Length"

type httpClient struct {
	o      Options
	base   string
	client *http.Client
	// outputs has, for each model asked in JSON, which outputs are half-precision.
	outputs sync.Map
}

func openHTTP(o Options) *httpClient {
	n := o.Connections
	if n == 0 {
		n = 64
	}
	dialer := &net.Dialer{Timeout: 10 * time.Second}
	return &httpClient{
		o: o, base: "http://" + o.Address,
		client: &http.Client{Transport: &http.Transport{
			DialContext:         dialer.DialContext,
			MaxIdleConns:        n,
			MaxIdleConnsPerHost: n,
			DisableCompression:  true,
		}},
	}
}

// Close drops the idle connections.
func (c *httpClient) Close() error { c.client.CloseIdleConnections(); return nil }

// call sends one request and returns the body and the reply's header. Any
// status but 200 is a *ServerError, a broken connection a failure.
func (c *httpClient) call(ctx context.Context, what, method, path string, header http.Header, body io.Reader) ([]byte, http.Header, error) {
	ctx, cancel := withTimeout(ctx, c.o.Timeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return nil, nil, failure.New(failure.Usage, "%s: %w", what, err)
	}
	for k, v := range header {
		r.Header[k] = v
	}
	reply, err := c.client.Do(r)
	if err != nil {
		return nil, nil, unreachable(ctx, what, HTTP, c.o, err)
	}
	defer func() { _ = reply.Body.Close() }()
	b, err := c.read(ctx, what, reply, min(c.o.MaxReply, maxMessage))
	if err != nil {
		return nil, nil, err
	}
	if reply.StatusCode != http.StatusOK {
		return nil, nil, &ServerError{Protocol: HTTP, Code: strconv.Itoa(reply.StatusCode), Text: errorText(b, reply.Status), Call: what}
	}
	return b, reply.Header, nil
}

// maxMessage bounds replies that hold no tensors: metadata, statistics, words.
const maxMessage = 64 << 20

// read takes a reply of at most so many bytes; what it announces is believed
// only as far as memory goes easily.
func (c *httpClient) read(ctx context.Context, what string, reply *http.Response, limit int64) ([]byte, error) {
	var buf bytes.Buffer
	if n := min(reply.ContentLength, limit, 64<<20); n > 0 {
		buf.Grow(int(n) + bytes.MinRead)
	}
	if _, err := buf.ReadFrom(io.LimitReader(reply.Body, limit+1)); err != nil {
		return nil, unreachable(ctx, what, HTTP, c.o, err)
	}
	if int64(buf.Len()) > limit {
		return nil, failure.New(failure.Triton, "%s over http: the reply of the server at %s has more than %d bytes", what, c.o.Address, limit)
	}
	return buf.Bytes(), nil
}

// unreachable describes a call that got no answer.
func unreachable(ctx context.Context, what string, p Protocol, o Options, err error) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return failure.New(failure.Triton, "%s over %s at %s: no answer in time: %w", what, p, o.Address, ctx.Err())
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%s over %s: %w", what, p, ctx.Err())
	}
	// url.Error repeats the address in its text.
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	return failure.New(failure.Triton, "%s over %s: server at %s does not answer: %w", what, p, o.Address, err).
		WithHint("`trtship status` shows whether it runs; its log says why it ended")
}

// errorText returns the server's words of a refusal.
func errorText(body []byte, status string) string {
	if v, err := parseJSON(body); err == nil {
		if m, ok := v.(map[string]any); ok {
			if s, ok := m["error"].(string); ok && s != "" {
				return s
			}
		}
	}
	if t := bytes.TrimSpace(body); len(t) > 0 {
		if len(t) > 2000 {
			t = t[:2000]
		}
		return string(t)
	}
	return status
}

func modelPath(model, version string) string {
	p := "/v2/models/" + url.PathEscape(model)
	if version != "" {
		p += "/versions/" + url.PathEscape(version)
	}
	return p
}

func (c *httpClient) ready(ctx context.Context, what, path string) (bool, error) {
	_, _, err := c.call(ctx, what, http.MethodGet, path, nil, nil)
	if _, ok := errors.AsType[*ServerError](err); ok {
		return false, nil
	}
	return err == nil, err
}

func (c *httpClient) ServerReady(ctx context.Context) (bool, error) {
	return c.ready(ctx, "ask for readiness", "/v2/health/ready")
}

func (c *httpClient) ModelReady(ctx context.Context, model, version string) (bool, error) {
	return c.ready(ctx, "ask for readiness of "+model, modelPath(model, version)+"/ready")
}

// message fetches a reply that is the JSON form of a message.
func (c *httpClient) message(ctx context.Context, what, method, path string, body []byte, m proto.Message) error {
	header := http.Header{}
	if body != nil {
		header.Set("Content-Type", "application/json")
	}
	b, _, err := c.call(ctx, what, method, path, header, bytes.NewReader(body))
	if err != nil {
		return err
	}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(b, m); err != nil {
		return failure.New(failure.Triton, "%s: read the server's reply: %w", what, err)
	}
	return nil
}

func (c *httpClient) ServerMetadata(ctx context.Context) (*tritonpb.ServerMetadataResponse, error) {
	m, what := &tritonpb.ServerMetadataResponse{}, "ask for the server's metadata"
	err := c.message(ctx, what, http.MethodGet, "/v2", nil, m)
	return m, named(what, m.GetName(), err)
}

func (c *httpClient) ModelMetadata(ctx context.Context, model, version string) (*tritonpb.ModelMetadataResponse, error) {
	m, what := &tritonpb.ModelMetadataResponse{}, "ask for metadata of "+model
	err := c.message(ctx, what, http.MethodGet, modelPath(model, version), nil, m)
	return m, named(what, m.GetName(), err)
}

func (c *httpClient) ModelConfig(ctx context.Context, model, version string) (*tritonpb.ModelConfig, error) {
	m, what := &tritonpb.ModelConfig{}, "ask for the configuration of "+model
	err := c.message(ctx, what, http.MethodGet, modelPath(model, version)+"/config", nil, m)
	return m, named(what, m.GetName(), err)
}

func (c *httpClient) Statistics(ctx context.Context, model, version string) ([]*tritonpb.ModelStatistics, error) {
	path := "/v2/models/stats"
	if model != "" {
		path = modelPath(model, version) + "/stats"
	}
	m := &tritonpb.ModelStatisticsResponse{}
	err := c.message(ctx, "ask for statistics", http.MethodGet, path, nil, m)
	return counted(model, m.GetModelStats(), err)
}

func (c *httpClient) Index(ctx context.Context, ready bool) ([]*tritonpb.RepositoryIndexResponse_ModelIndex, error) {
	body, _, err := c.call(ctx, "list models", http.MethodPost, "/v2/repository/index", http.Header{"Content-Type": {"application/json"}},
		bytes.NewReader(fmt.Appendf(nil, `{"ready":%t}`, ready)))
	if err != nil {
		return nil, err
	}
	m := &tritonpb.RepositoryIndexResponse{}
	wrapped := append(append([]byte(`{"models":`), body...), '}')
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(wrapped, m); err != nil {
		return nil, failure.New(failure.Triton, "list models: read the server's reply: %w", err)
	}
	return m.GetModels(), nil
}

func (c *httpClient) Load(ctx context.Context, model string, config *tritonpb.ModelConfig) error {
	body := []byte("{}")
	if config != nil {
		j, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(config)
		if err != nil {
			return fmt.Errorf("load %s: %w", model, err)
		}
		body = fmt.Appendf(nil, `{"parameters":{"config":%s}}`, quote(string(j)))
	}
	return c.control(ctx, "load "+model, "/v2/repository/models/"+url.PathEscape(model)+"/load", body)
}

func (c *httpClient) Unload(ctx context.Context, model string) error {
	return c.control(ctx, "unload "+model, "/v2/repository/models/"+url.PathEscape(model)+"/unload", []byte("{}"))
}

func (c *httpClient) control(ctx context.Context, what, path string, body []byte) error {
	_, _, err := c.call(ctx, what, http.MethodPost, path, http.Header{"Content-Type": {"application/json"}}, bytes.NewReader(body))
	return err
}

func (c *httpClient) Infer(ctx context.Context, r Request) (Response, error) {
	what, asked := "infer "+r.Model, r
	form := Form{Text: c.o.JSON}
	if form.Text {
		var err error
		if form.BinaryOutputs, err = c.binaryOutputs(ctx, &r); err != nil {
			return Response{}, err
		}
	}
	head, raws, err := EncodeHTTP(r, form)
	if err != nil {
		return Response{}, failure.New(failure.Triton, "%s: %w", what, err)
	}
	header := http.Header{"Content-Type": {"application/json"}}
	if len(raws) > 0 {
		header.Set("Content-Type", "application/octet-stream")
		header.Set(headerLength, strconv.Itoa(len(head)))
	}
	reply, h, err := c.inferCall(ctx, what, modelPath(r.Model, r.Version)+"/infer", header, append([][]byte{head}, raws...))
	if err != nil {
		return Response{}, err
	}
	out, err := DecodeHTTP(reply, h.Get(headerLength))
	if err != nil {
		return Response{}, failure.New(failure.Triton, "%s over http: read the server's reply: %w", what, err)
	}
	return out, answered(what, asked, out)
}

// binaryOutputs asks once for a model's outputs and returns those that the
// server does not write as JSON. The request then names its outputs, for which
// of them is binary can only be said by name.
func (c *httpClient) binaryOutputs(ctx context.Context, r *Request) (map[string]bool, error) {
	key := r.Model + "/" + r.Version
	known, ok := c.outputs.Load(key)
	if !ok {
		m, err := c.ModelMetadata(ctx, r.Model, r.Version)
		if err != nil {
			return nil, err
		}
		half := map[string]bool{}
		for _, o := range m.GetOutputs() {
			half[o.GetName()] = o.GetDatatype() == "FP16" || o.GetDatatype() == "BF16"
		}
		known, _ = c.outputs.LoadOrStore(key, half)
	}
	half := known.(map[string]bool)
	needed := false
	for _, is := range half {
		needed = needed || is
	}
	if !needed {
		return nil, nil
	}
	if len(r.Outputs) == 0 {
		for name := range half {
			r.Outputs = append(r.Outputs, name)
		}
		slices.Sort(r.Outputs)
	}
	return half, nil
}

// inferCall is call with a body in parts and its length known: a chunked body
// would make the server refuse the request.
func (c *httpClient) inferCall(ctx context.Context, what, path string, header http.Header, parts [][]byte) ([]byte, http.Header, error) {
	ctx, cancel := withTimeout(ctx, c.o.Timeout)
	defer cancel()
	body := func() (io.ReadCloser, error) {
		readers := make([]io.Reader, len(parts))
		for i, p := range parts {
			readers[i] = bytes.NewReader(p)
		}
		return io.NopCloser(io.MultiReader(readers...)), nil
	}
	first, _ := body()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+path, first)
	if err != nil {
		return nil, nil, failure.New(failure.Usage, "%s: %w", what, err)
	}
	r.Header = header
	r.GetBody = body // lets the transport repeat it where a kept connection was already closed
	for _, p := range parts {
		r.ContentLength += int64(len(p))
	}
	reply, err := c.client.Do(r)
	if err != nil {
		return nil, nil, unreachable(ctx, what, HTTP, c.o, err)
	}
	defer func() { _ = reply.Body.Close() }()
	b, err := c.read(ctx, what, reply, c.o.MaxReply)
	if err != nil {
		return nil, nil, err
	}
	if reply.StatusCode != http.StatusOK {
		return nil, nil, &ServerError{Protocol: HTTP, Code: strconv.Itoa(reply.StatusCode), Text: errorText(b, reply.Status), Call: what}
	}
	return b, reply.Header, nil
}

// Form says how tensors travel over HTTP.
type Form struct {
	Text          bool            // as JSON where the server takes it, else binary
	BinaryOutputs map[string]bool // outputs that are asked for as binary all the same
}

// EncodeHTTP writes the JSON head of an inference request and lists the binary
// tensors that follow it, in order.
func EncodeHTTP(r Request, form Form) (head []byte, raws [][]byte, err error) {
	b := make([]byte, 0, 512)
	b = append(b, '{')
	if r.ID != "" {
		b = append(append(append(b, `"id":`...), quote(r.ID)...), ',')
	}
	b = append(b, `"parameters":{`...)
	b = appendParameters(b, r, form.Text)
	b = append(b, `},"inputs":[`...)
	for i, in := range r.Inputs {
		if i > 0 {
			b = append(b, ',')
		}
		wire, err := WireType(in.DType)
		if err != nil {
			return nil, nil, fmt.Errorf("input %s: %w", in.Name, err)
		}
		b = append(append(b, `{"name":`...), quote(in.Name)...)
		b = append(append(append(b, `,"datatype":"`...), wire...), `","shape":`...)
		b = appendShape(b, in.Shape)
		raw, err := Encode(in.Tensor)
		if err != nil {
			return nil, nil, fmt.Errorf("input %s: %w", in.Name, err)
		}
		if form.Text && asJSON(in.Tensor) {
			b = append(b, `,"data":`...)
			b = append(appendData(b, in.Tensor), '}')
			continue
		}
		b = append(b, `,"parameters":{"binary_data_size":`...)
		b = append(strconv.AppendInt(b, int64(len(raw)), 10), `}}`...)
		raws = append(raws, raw)
	}
	b = append(b, ']')
	b = appendOutputs(b, r.Outputs, form)
	return append(b, '}'), raws, nil
}

func appendParameters(b []byte, r Request, asText bool) []byte {
	b = append(b, `"binary_data_output":`...)
	b = strconv.AppendBool(b, !asText)
	for _, p := range []struct {
		name  string
		value uint64
	}{{"timeout", r.QueueTimeout}, {"priority", r.Priority}, {"sequence_id", r.SequenceID}} {
		if p.value != 0 {
			b = append(append(append(b, `,"`...), p.name...), `":`...)
			b = strconv.AppendUint(b, p.value, 10)
		}
	}
	if r.SequenceID != 0 {
		b = append(b, `,"sequence_start":`...)
		b = strconv.AppendBool(b, r.SequenceStart)
		b = append(b, `,"sequence_end":`...)
		b = strconv.AppendBool(b, r.SequenceEnd)
	}
	return b
}

func appendShape(b []byte, shape []int64) []byte {
	b = append(b, '[')
	for i, d := range shape {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, d, 10)
	}
	return append(b, ']')
}

func appendOutputs(b []byte, names []string, form Form) []byte {
	if len(names) == 0 {
		return b
	}
	b = append(b, `,"outputs":[`...)
	for i, n := range names {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(b, `{"name":`...), quote(n)...)
		b = append(b, `,"parameters":{"binary_data":`...)
		b = append(strconv.AppendBool(b, !form.Text || form.BinaryOutputs[n]), `}}`...)
	}
	return append(b, ']')
}

// DecodeHTTP reads the body of a successful inference reply. length is the
// value of the header that says where its JSON ends; empty means all of it.
func DecodeHTTP(body []byte, length string) (Response, error) {
	end := len(body)
	if length != "" {
		n, err := strconv.Atoi(length)
		if err != nil || n < 0 || n > len(body) {
			return Response{}, fmt.Errorf("header length %q of a body of %d bytes", length, len(body))
		}
		end = n
	}
	v, err := parseJSON(body[:end])
	if err != nil {
		return Response{}, err
	}
	m, ok := v.(map[string]any)
	if !ok {
		return Response{}, fmt.Errorf("%w: not an object", errJSON)
	}
	r := Response{Model: text(m["model_name"]), Version: text(m["model_version"]), ID: text(m["id"])}
	outputs, _ := m["outputs"].([]any)
	rest := body[end:]
	for i, o := range outputs {
		var t tensor.Named
		if t, rest, err = decodeOutput(o, rest); err != nil {
			return r, fmt.Errorf("output %d %q: %w", i, t.Name, err)
		}
		r.Outputs = append(r.Outputs, t)
	}
	if len(rest) != 0 {
		return r, fmt.Errorf("%d bytes follow the last output", len(rest))
	}
	return r, nil
}

func text(v any) string { s, _ := v.(string); return s }

func decodeOutput(v any, rest []byte) (tensor.Named, []byte, error) {
	m, ok := v.(map[string]any)
	if !ok {
		return tensor.Named{}, rest, fmt.Errorf("%w: an output is not an object", errJSON)
	}
	out := tensor.Named{Name: text(m["name"])}
	d, err := FromWire(text(m["datatype"]))
	if err != nil {
		return out, rest, err
	}
	shape, err := decodeShape(m["shape"])
	if err != nil {
		return out, rest, err
	}
	params, _ := m["parameters"].(map[string]any)
	if size, ok := params["binary_data_size"].(number); ok {
		n, err := strconv.Atoi(string(size))
		if err != nil || n < 0 || n > len(rest) {
			return out, rest, fmt.Errorf("binary_data_size %s, %d bytes are left", size, len(rest))
		}
		out.Tensor, err = Decode(d, shape, rest[:n:n])
		return out, rest[n:], err
	}
	if data, ok := m["data"]; ok {
		out.Tensor, err = fromJSON(d, shape, data)
		return out, rest, err
	}
	return out, rest, errors.New("neither data nor binary_data_size is there")
}

func decodeShape(v any) ([]int64, error) {
	list, ok := v.([]any)
	if !ok {
		return nil, errors.New("shape is missing")
	}
	shape := make([]int64, len(list))
	for i, e := range list {
		n, ok := e.(number)
		if !ok {
			return nil, fmt.Errorf("shape has the size %v", e)
		}
		d, err := strconv.ParseInt(string(n), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("shape has the size %s", n)
		}
		shape[i] = d
	}
	return shape, nil
}
