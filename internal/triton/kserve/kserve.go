// Package kserve speaks the KServe v2 inference protocol with Triton's
// extensions, over HTTP (binary tensors or JSON) and over gRPC.
package kserve

import (
	"context"
	"fmt"
	"math"
	"net"
	"slices"
	"time"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/internal/triton/tritonpb"
)

// Protocol is a way to reach a server.
type Protocol string

// The protocols.
const (
	HTTP Protocol = "http"
	GRPC Protocol = "grpc"
)

// Options says how to reach a server.
type Options struct {
	Protocol Protocol
	Address  string        // host:port
	Timeout  time.Duration // of one call; 0 is none
	// JSON sends tensors as JSON over HTTP where their type allows it, and asks
	// for JSON outputs. FP16, BF16 and strings that are not UTF-8 travel as
	// binary all the same: the server refuses them as JSON.
	JSON bool
	// Connections bounds the idle HTTP connections that are kept; default 64.
	Connections int
	// MaxReply bounds the bytes of a reply; default 2 GiB, Triton's own limit
	// over gRPC.
	MaxReply int64
}

// Client is a connection to a server. It is safe for concurrent use.
type Client interface {
	// Infer sends one request and returns the outputs in the server's order.
	Infer(ctx context.Context, r Request) (Response, error)
	// ServerReady reports whether the server, and with strict readiness every
	// model, is ready.
	ServerReady(ctx context.Context) (bool, error)
	// ModelReady reports whether a model, and the version unless it is empty, is ready.
	ModelReady(ctx context.Context, model, version string) (bool, error)
	ServerMetadata(ctx context.Context) (*tritonpb.ServerMetadataResponse, error)
	ModelMetadata(ctx context.Context, model, version string) (*tritonpb.ModelMetadataResponse, error)
	// ModelConfig returns the configuration as loaded, defaults filled in.
	ModelConfig(ctx context.Context, model, version string) (*tritonpb.ModelConfig, error)
	// Statistics of all models if model is empty.
	Statistics(ctx context.Context, model, version string) ([]*tritonpb.ModelStatistics, error)
	// Index lists the models of the repository and their state.
	Index(ctx context.Context, ready bool) ([]*tritonpb.RepositoryIndexResponse_ModelIndex, error)
	// Load loads or reloads a model; config replaces config.pbtxt unless it is nil.
	Load(ctx context.Context, model string, config *tritonpb.ModelConfig) error
	// Unload removes a model; the call may return before its last request ended.
	Unload(ctx context.Context, model string) error
	Close() error
}

// Request is one inference request.
type Request struct {
	Model   string
	Version string // empty: the server's choice
	ID      string
	Inputs  []tensor.Named
	Outputs []string // empty: all
	// Timeout in microseconds that the server's queue policy may use; 0 is none.
	QueueTimeout uint64
	Priority     uint64
	// SequenceID, SequenceStart and SequenceEnd belong to stateful models.
	SequenceID    uint64
	SequenceStart bool
	SequenceEnd   bool
}

// Response is the answer to a Request.
type Response struct {
	Model   string
	Version string
	ID      string
	Outputs []tensor.Named
}

// ServerError is a refusal in the server's own words.
type ServerError struct {
	Protocol Protocol
	Code     string // HTTP status or gRPC code
	Text     string // what the server said
	Call     string // what was asked, e.g. "infer mnist"
}

func (e *ServerError) Error() string {
	return fmt.Sprintf("%s over %s: %s (%s)", e.Call, e.Protocol, e.Text, e.Code)
}

// Open returns a client for o. No connection is made before the first call.
func Open(o Options) (Client, error) {
	if o.MaxReply <= 0 || o.MaxReply > math.MaxInt32 {
		o.MaxReply = math.MaxInt32
	}
	if _, _, err := net.SplitHostPort(o.Address); err != nil {
		return nil, failure.New(failure.Usage, "%q is no address of a server: %w", o.Address, err).WithHint("write host:port, without http://")
	}
	switch o.Protocol {
	case HTTP:
		return openHTTP(o), nil
	case GRPC:
		return openGRPC(o)
	}
	return nil, failure.New(failure.Usage, "unknown protocol %q", o.Protocol).WithHint("use http or grpc")
}

// Model is one model of a server as a candidate of a comparison: it takes
// named tensors and returns named tensors.
type Model struct {
	Client  Client
	Name    string
	Version string
}

// Infer runs one request.
func (m Model) Infer(ctx context.Context, inputs []tensor.Named) ([]tensor.Named, error) {
	r, err := m.Client.Infer(ctx, Request{Model: m.Name, Version: m.Version, Inputs: inputs})
	if err != nil {
		return nil, err
	}
	return r.Outputs, nil
}

// withTimeout bounds ctx by d unless d is zero.
func withTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if d <= 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, d)
}

// named refuses a reply that does not say what it is about: what stands in for a
// server (a proxy, a sign-in page) may well answer with an empty object.
func named(what, name string, err error) error {
	if err == nil && name == "" {
		err = failure.New(failure.Triton, "%s: the reply names nothing, so it is not Triton's", what).
			WithHint("look at the address: something else may answer there")
	}
	return err
}

// counted demands the statistics of the model that was asked for.
func counted(model string, all []*tritonpb.ModelStatistics, err error) ([]*tritonpb.ModelStatistics, error) {
	if err == nil && model != "" && len(all) == 0 {
		err = failure.New(failure.Triton, "ask for statistics: the reply holds none of %s", model)
	}
	return all, err
}

// answered demands an answer to what was asked: outputs, and those by name.
func answered(what string, r Request, out Response) error {
	if len(out.Outputs) == 0 {
		return failure.New(failure.Triton, "%s: the reply holds no outputs", what)
	}
	for _, name := range r.Outputs {
		if !slices.ContainsFunc(out.Outputs, func(o tensor.Named) bool { return o.Name == name }) {
			return failure.New(failure.Triton, "%s: the reply holds no output %q", what, name)
		}
	}
	return nil
}
