package load

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/url"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// inferPath is the method that is called.
const inferPath = "/inference.GRPCInferenceService/ModelInfer"

// window is what we let the server send before we must say that we read it.
const window = 1 << 30

// grpcConn speaks gRPC over one HTTP/2 connection, one stream after the other,
// with frames of its own: the headers are encoded once, replies are not parsed
// beyond their status.
type grpcConn struct {
	c       stream
	framer  *http2.Framer
	out     *bytes.Buffer // frames that go out in one call
	headers []byte
	decoder *hpack.Decoder
	stream  uint32
	frame   int   // largest frame that the server takes
	initial int64 // window of a new stream
	conn    int64 // what the server still takes on the connection
	open    int64 // and on the stream
	got     int64 // bytes since our last window update
	status  string
	message string
}

func newGRPCConn(c stream, o Options) (conn, error) {
	g := &grpcConn{c: c, out: &bytes.Buffer{}, frame: 16384, initial: 65535, conn: 65535, stream: 1}
	g.framer = http2.NewFramer(g.out, &buffered{r: c, b: make([]byte, 64<<10)})
	g.framer.SetMaxReadFrameSize(1<<24 - 1)
	g.framer.AllowIllegalWrites = false
	g.framer.SetReuseFrames()
	var h bytes.Buffer
	e := hpack.NewEncoder(&h)
	e.SetMaxDynamicTableSize(0) // the block must not depend on what went before
	for _, f := range [][2]string{
		{":method", "POST"},
		{":scheme", "http"},
		{":path", inferPath},
		{":authority", o.Address},
		{"content-type", "application/grpc"},
		{"te", "trailers"},
		{"user-agent", "trtship"},
	} {
		if err := e.WriteField(hpack.HeaderField{Name: f[0], Value: f[1], Sensitive: true}); err != nil {
			return nil, err
		}
	}
	g.headers = bytes.Clone(h.Bytes())
	g.decoder = hpack.NewDecoder(4096, g.field)
	g.out.WriteString(http2.ClientPreface)
	err := g.framer.WriteSettings(
		http2.Setting{ID: http2.SettingInitialWindowSize, Val: window}, http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1<<24 - 1},
		http2.Setting{ID: http2.SettingEnablePush, Val: 0},
	)
	if err == nil {
		err = g.framer.WriteWindowUpdate(0, window-65535)
	}
	if err == nil {
		err = g.flush()
	}
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	return g, nil
}

// buffered reads in large pieces.
type buffered struct {
	r    io.Reader
	b    []byte
	i, n int
}

func (b *buffered) Read(p []byte) (int, error) {
	if b.i == b.n {
		if len(p) >= len(b.b) {
			return b.r.Read(p)
		}
		n, err := b.r.Read(b.b)
		if n == 0 {
			return 0, err
		}
		b.i, b.n = 0, n
	}
	n := copy(p, b.b[b.i:b.n])
	b.i += n
	return n, nil
}

func (g *grpcConn) close() { _ = g.c.Close() }

func (g *grpcConn) flush() error {
	_, err := g.c.Write(g.out.Bytes())
	g.out.Reset()
	return err
}

func (g *grpcConn) field(f hpack.HeaderField) {
	switch f.Name {
	case "grpc-status":
		g.status = f.Value
	case "grpc-message":
		g.message = f.Value
	case ":status":
		if f.Value != "200" {
			g.status, g.message = "http "+f.Value, "not a gRPC server"
		}
	}
}

var errStreams = errors.New("the connection has used up its streams")

func (g *grpcConn) roundTrip(t target, timeout time.Duration) error {
	if err := g.c.begin(timeout); err != nil {
		return err
	}
	if g.stream > 1<<31-3 {
		return errStreams
	}
	id := g.stream
	g.stream += 2
	g.open, g.status, g.message = g.initial, "", ""
	if err := g.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: g.headers, EndHeaders: true}); err != nil {
		return err
	}
	if err := g.send(id, t.body[0]); err != nil {
		return err
	}
	for {
		done, err := g.receive(id)
		if err != nil {
			return err
		}
		if done {
			break
		}
	}
	if g.status != "0" {
		text, err := url.PathUnescape(g.message)
		if err != nil {
			text = g.message
		}
		return &refused{text: fmt.Sprintf("gRPC status %s: %s", g.status, text)}
	}
	return nil
}

// send writes the message in frames, as far as the server's windows allow, and
// reads while it waits for more.
func (g *grpcConn) send(id uint32, body []byte) error {
	for len(body) > 0 {
		n := min(int64(len(body)), int64(g.frame), g.open, g.conn)
		if n <= 0 {
			if err := g.flush(); err != nil {
				return err
			}
			if done, err := g.receive(id); err != nil {
				return err
			} else if done {
				return nil // refused before it was read; receive has the status
			}
			continue
		}
		if err := g.framer.WriteData(id, int64(len(body)) == n, body[:n]); err != nil {
			return err
		}
		g.open -= n
		g.conn -= n
		body = body[n:]
		if g.out.Len() > 256<<10 {
			if err := g.flush(); err != nil {
				return err
			}
		}
	}
	return g.flush()
}

// receive reads one frame; done is true at the end of the stream.
func (g *grpcConn) receive(id uint32) (done bool, err error) {
	f, err := g.framer.ReadFrame()
	if err != nil {
		return false, err
	}
	switch f := f.(type) {
	case *http2.DataFrame:
		return f.StreamID == id && f.StreamEnded(), g.read(int64(len(f.Data())))
	case *http2.HeadersFrame:
		if _, err := g.decoder.Write(f.HeaderBlockFragment()); err != nil {
			return false, err
		}
		return f.StreamID == id && f.StreamEnded(), nil
	case *http2.ContinuationFrame:
		_, err := g.decoder.Write(f.HeaderBlockFragment())
		return false, err
	case *http2.WindowUpdateFrame:
		if f.StreamID == 0 {
			g.conn += int64(f.Increment)
		} else if f.StreamID == id {
			g.open += int64(f.Increment)
		}
	case *http2.SettingsFrame:
		return false, g.settings(f)
	case *http2.PingFrame:
		if !f.IsAck() {
			if err := g.framer.WritePing(true, f.Data); err != nil {
				return false, err
			}
			return false, g.flush()
		}
	case *http2.RSTStreamFrame:
		if f.StreamID == id {
			if g.status == "" {
				g.status, g.message = "reset", f.ErrCode.String()
			}
			return true, nil
		}
	case *http2.GoAwayFrame:
		return false, fmt.Errorf("the server goes away: %s %s", f.ErrCode, f.DebugData())
	}
	return false, nil
}

func (g *grpcConn) settings(f *http2.SettingsFrame) error {
	if f.IsAck() {
		return nil
	}
	_ = f.ForeachSetting(func(s http2.Setting) error {
		switch s.ID {
		case http2.SettingInitialWindowSize:
			g.open += int64(s.Val) - g.initial
			g.initial = int64(s.Val)
		case http2.SettingMaxFrameSize:
			g.frame = int(s.Val)
		}
		return nil
	})
	if err := g.framer.WriteSettingsAck(); err != nil {
		return err
	}
	return g.flush()
}

// read gives back to the server's window what was read.
func (g *grpcConn) read(n int64) error {
	g.got += n
	if g.got < window/2 {
		return nil
	}
	if err := g.framer.WriteWindowUpdate(0, uint32(g.got)); err != nil {
		return err
	}
	g.got = 0
	return g.flush()
}
