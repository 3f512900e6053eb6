package load

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/triton/kserve"
)

// target is a request in the bytes that travel.
type target struct {
	head []byte   // of HTTP: request line and headers; of gRPC: nothing
	body [][]byte // of HTTP: the parts; of gRPC: one message with its prefix
}

// conn is one connection that sends one request at a time. It is written for
// load: requests were encoded before, and replies are only looked at as far as
// their status, so that the client is not what is measured. It breaks when the
// context of dial ends.
type conn interface {
	roundTrip(t target, timeout time.Duration) error
	close()
}

// refused is an answer that is an error; the connection is still good.
type refused struct{ text string }

func (e *refused) Error() string { return e.text }

func dial(ctx context.Context, o Options) (conn, error) {
	c, err := open(ctx, o)
	if err != nil {
		return nil, err
	}
	if o.Protocol == kserve.GRPC {
		return newGRPCConn(c, o)
	}
	return &httpConn{c: c, r: bufio.NewReaderSize(c, 64<<10)}, nil
}

// encode makes the bytes of all requests.
func encode(o Options) ([]target, error) {
	var out []target
	for _, r := range o.Requests {
		var t target
		var err error
		switch o.Protocol {
		case kserve.HTTP:
			t, err = encodeHTTP(o.Address, r)
		case kserve.GRPC:
			t, err = encodeGRPC(r)
		default:
			err = fmt.Errorf("unknown protocol %q", o.Protocol)
		}
		if err != nil {
			return nil, failure.New(failure.Usage, "encode request: %w", err)
		}
		out = append(out, t)
	}
	return out, nil
}

func encodeHTTP(host string, r kserve.Request) (target, error) {
	head, raws, err := kserve.EncodeHTTP(r, kserve.Form{})
	if err != nil {
		return target{}, err
	}
	size := len(head)
	for _, b := range raws {
		size += len(b)
	}
	path := "/v2/models/" + url.PathEscape(r.Model)
	if r.Version != "" {
		path += "/versions/" + url.PathEscape(r.Version)
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "POST %s/infer HTTP/1.1\r\nHost: %s\r\nContent-Type: application/octet-stream\r\nInference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n", path, host, len(head), size)
	b.Write(head)
	if size < 32<<10 { // one segment, one call
		for _, raw := range raws {
			b.Write(raw)
		}
		raws = nil
	}
	return target{head: b.Bytes(), body: raws}, nil
}

func encodeGRPC(r kserve.Request) (target, error) {
	m, err := kserve.EncodeGRPC(r)
	if err != nil {
		return target{}, err
	}
	size := proto.Size(m)
	if int64(size) > 1<<31-1 {
		return target{}, fmt.Errorf("a message of %d bytes is beyond gRPC's limit", size)
	}
	b := []byte{0, byte(size >> 24), byte(size >> 16), byte(size >> 8), byte(size)}
	b, err = proto.MarshalOptions{}.MarshalAppend(b, m)
	return target{body: [][]byte{b}}, err
}

// httpConn speaks as much HTTP/1.1 as a KServe server answers.
type httpConn struct {
	c stream
	r *bufio.Reader
}

func (h *httpConn) close() { _ = h.c.Close() }

func (h *httpConn) roundTrip(t target, timeout time.Duration) error {
	if err := h.c.begin(timeout); err != nil {
		return err
	}
	if _, err := h.c.Write(t.head); err != nil {
		return err
	}
	for _, part := range t.body { // large, so that a call for each costs nothing
		if _, err := h.c.Write(part); err != nil {
			return err
		}
	}
	return h.reply()
}

// reply reads a reply and throws its body away unless it is an error's.
func (h *httpConn) reply() error {
	line, err := h.line()
	if err != nil {
		return err
	}
	if len(line) < 12 || !bytes.HasPrefix(line, []byte("HTTP/1.")) {
		return fmt.Errorf("the reply starts with %q", line[:min(len(line), 40)])
	}
	status := string(line[9:12])
	length, chunked, closing := -1, false, false
	for {
		if line, err = h.line(); err != nil {
			return err
		}
		if len(line) == 0 {
			break
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimSpace(value)
		switch {
		case equalFold(name, "content-length"):
			if length, err = strconv.Atoi(string(value)); err != nil || length < 0 {
				return fmt.Errorf("content-length %q", value)
			}
		case equalFold(name, "transfer-encoding"):
			chunked = true
		case equalFold(name, "connection"):
			closing = equalFold(value, "close")
		}
	}
	if chunked || length < 0 && status != "204" {
		return errors.New("a reply without a length is not understood")
	}
	if status == "200" && !closing {
		_, err = h.r.Discard(max(length, 0))
		return err
	}
	body := make([]byte, min(length, 4096))
	if _, err := io.ReadFull(h.r, body); err != nil {
		return err
	}
	if _, err := h.r.Discard(max(length, 0) - len(body)); err != nil {
		return err
	}
	if closing {
		return errEnded
	}
	return &refused{text: fmt.Sprintf("%s: %s", status, errorText(body))}
}

// errEnded is the end of a connection by the server.
var errEnded = errors.New("the server closes the connection")

func errorText(body []byte) string {
	s := strings.TrimSpace(string(body))
	s = strings.TrimSuffix(strings.TrimPrefix(s, `{"error":"`), `"}`)
	return s
}

func (h *httpConn) line() ([]byte, error) {
	b, err := h.r.ReadSlice('\n')
	if err != nil {
		return nil, err
	}
	return bytes.TrimRight(b, "\r\n"), nil
}

func equalFold(b []byte, s string) bool { return len(b) == len(s) && strings.EqualFold(string(b), s) }
