package server

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/proc"
	"github.com/trtship/trtship/internal/triton/kserve"
)

// Want is a model, and a version unless it is empty, that must be ready.
type Want struct {
	Model   string
	Version string
}

func (w Want) String() string {
	if w.Version == "" {
		return w.Model
	}
	return w.Model + " version " + w.Version
}

// Options says how to start a server.
type Options struct {
	Installation Installation
	Repositories []string // model repositories, absolute
	Wait         []Want   // ready before Start returns; none: the server itself
	Control      string   // model control mode: "" is none; explicit, poll
	Load         []string // models to load at the start in explicit mode
	Address      string   // to listen on; empty is 127.0.0.1
	HTTPPort     int      // 0 takes a free one, also below
	GRPCPort     int
	MetricsPort  int
	Scratch      string // an empty folder for what the server needs while it runs
	Log          string // file for the server's log; empty: in Scratch
	Verbose      bool
	KeepGoing    bool // stay up although a model does not load
	Strict       bool // no auto-completed configuration
	ReadyTimeout time.Duration
	// CallTimeout bounds each call of the server's clients; 0 is no limit. A model
	// that hangs would otherwise hang its caller.
	CallTimeout time.Duration
	// MemoryMB limits the address space of each of the server's processes; 0 is
	// no limit.
	MemoryMB   int
	Grace      time.Duration // between SIGTERM and SIGKILL
	CacheBytes int64         // size of the response cache; 0 is none
	Env        []string      // added to the environment, NAME=value
	Args       []string      // further arguments of tritonserver
}

// Server is a running tritonserver.
type Server struct {
	HTTP    string // host:port
	GRPC    string
	Metrics string
	Log     string
	process *proc.Process
	call    time.Duration // limit of one call of its clients
	prefix  string        // of its files in /dev/shm
	alias   string        // folder of plain names for its folders
	stop    sync.Once
	cancel  context.CancelFunc
}

// attempts bounds the retries after a port was taken by somebody else.
const attempts = 5

// Start starts a server and returns when what o.Wait names is ready. The first
// load error, the end of the process or the timeout ends the whole group and is
// returned with the server's words. The server is ended when ctx is.
func Start(ctx context.Context, o Options) (*Server, error) {
	return start(ctx, o, false)
}

func start(ctx context.Context, o Options, detached bool) (*Server, error) {
	if o.Address == "" {
		o.Address = "127.0.0.1"
	}
	if o.ReadyTimeout == 0 {
		o.ReadyTimeout = 2 * time.Minute
	}
	if o.Log == "" {
		o.Log = filepath.Join(o.Scratch, "tritonserver.log")
	}
	var err error
	for range attempts {
		var s *Server
		if s, err = launch(ctx, o, detached); err == nil {
			return s, nil
		}
		var taken *portTaken
		if !errors.As(err, &taken) || o.fixed(taken.port) {
			break
		}
	}
	return nil, err
}

// portTaken is a port that another process listens on.
type portTaken struct{ address, port string }

func (e *portTaken) Error() string { return "port " + e.port + " is in use" }

func (o Options) fixed(port string) bool {
	for _, p := range []int{o.HTTPPort, o.GRPCPort, o.MetricsPort} {
		if strconv.Itoa(p) == port {
			return true
		}
	}
	return false
}

func portError(address string) error {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		port = address
	}
	e := failure.New(failure.Triton, "start tritonserver: %w", &portTaken{address: address, port: port})
	return e.WithHint("stop what listens on %s, or choose another port (0 takes a free one)", address)
}

// ports checks the fixed ports and chooses the free ones.
func (o *Options) ports() (http, grpc, metrics int, err error) {
	out := []int{o.HTTPPort, o.GRPCPort, o.MetricsPort}
	var open []net.Listener
	defer func() {
		for _, l := range open {
			_ = l.Close()
		}
	}()
	for i, p := range out {
		address := net.JoinHostPort(o.Address, strconv.Itoa(p))
		l, err := net.Listen("tcp", address)
		if err != nil {
			if p != 0 {
				return 0, 0, 0, portError(address)
			}
			return 0, 0, 0, failure.New(failure.Triton, "find a free port on %s: %w", o.Address, err)
		}
		open = append(open, l)
		out[i] = l.Addr().(*net.TCPAddr).Port
	}
	return out[0], out[1], out[2], nil
}

// launch makes one attempt.
func launch(ctx context.Context, o Options, detached bool) (*Server, error) {
	http, grpc, metrics, err := o.ports()
	if err != nil {
		return nil, err
	}
	id := make([]byte, 4)
	_, _ = rand.Read(id)
	prefix := "trtship_" + hex.EncodeToString(id)
	folder, err := o.alias(hex.EncodeToString(id))
	if err != nil {
		return nil, failure.New(failure.Triton, "start tritonserver: %w", err)
	}
	started := false
	defer func() {
		if !started {
			removeAlias(folder)
		}
	}()
	command, err := o.command(http, grpc, metrics, prefix)
	if err != nil {
		return nil, err
	}
	log, err := os.OpenFile(o.Log, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644)
	if err != nil {
		return nil, failure.New(failure.Triton, "open the server's log: %w", err)
	}
	defer func() { _ = log.Close() }()
	command.Output = log
	command.Outlives = detached
	life, cancel := context.WithCancel(ctx)
	if detached {
		life, cancel = context.WithCancel(context.WithoutCancel(ctx))
	}
	p, err := proc.Start(life, command)
	if err != nil {
		cancel()
		return nil, failure.New(failure.Missing, "%w", err)
	}
	host := o.Address
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	s := &Server{
		HTTP:    net.JoinHostPort(host, strconv.Itoa(http)),
		GRPC:    net.JoinHostPort(host, strconv.Itoa(grpc)),
		Metrics: net.JoinHostPort(host, strconv.Itoa(metrics)),
		Log:     o.Log, alias: folder, process: p, call: o.CallTimeout, prefix: prefix, cancel: cancel,
	}
	started = true
	if err := s.await(ctx, o); err != nil {
		s.Stop()
		return nil, err
	}
	return s, nil
}

// command builds the command line.
func (o Options) command(http, grpc, metrics int, prefix string) (proc.Command, error) {
	in := o.Installation
	args := []string{
		"--http-address=" + o.Address, "--grpc-address=" + o.Address, "--metrics-address=" + o.Address,
		fmt.Sprintf("--http-port=%d", http), fmt.Sprintf("--grpc-port=%d", grpc), fmt.Sprintf("--metrics-port=%d", metrics),
		"--id=" + prefix, "--exit-timeout-secs=5", "--allow-metrics=true",
		"--backend-config=python,shm-region-prefix-name=" + prefix,
	}
	for _, r := range o.Repositories {
		args = append(args, "--model-repository="+r)
	}
	if o.Control != "" {
		args = append(args, "--model-control-mode="+o.Control)
	}
	for _, m := range o.Load {
		args = append(args, "--load-model="+m)
	}
	if o.KeepGoing {
		args = append(args, "--exit-on-error=false", "--strict-readiness=false")
	}
	if o.Strict {
		args = append(args, "--disable-auto-complete-config")
	}
	if o.Verbose {
		args = append(args, "--log-verbose=1")
	}
	env := []string{"HOME=" + o.Scratch, "TMPDIR=" + o.Scratch, "PATH=/usr/bin:/bin"}
	if !in.Native {
		dir, err := assemble(in, o.Scratch)
		if err != nil {
			return proc.Command{}, failure.New(failure.Triton, "start tritonserver: %w", err)
		}
		bin, err := interpreter(in, o.Scratch)
		if err != nil {
			return proc.Command{}, failure.New(failure.Triton, "start tritonserver: %w", err)
		}
		args = append(args, "--backend-directory="+dir)
		env[2] = "PATH=" + bin + ":/usr/bin:/bin"
		env = append(env, "PYTHONNOUSERSITE=1", "PYTHONUTF8=1", "OMP_NUM_THREADS=1")
	}
	if len(in.libs) > 0 {
		env = append(env, "LD_LIBRARY_PATH="+strings.Join(in.libs, ":"))
	}
	if o.CacheBytes > 0 {
		args = append(args, fmt.Sprintf("--cache-config=local,size=%d", o.CacheBytes))
		if !in.Native {
			args = append(args, "--cache-directory="+filepath.Join(in.wheel, "caches"))
		}
	}
	return proc.Command{
		Path: in.Binary, Args: append(args, o.Args...), Env: slices.Concat(env, in.env, o.Env), Dir: o.Scratch, Grace: o.Grace,
		MemoryBytes: uint64(max(o.MemoryMB, 0)) << 20,
	}, nil
}

// await polls until the server and the models are ready.
func (s *Server) await(ctx context.Context, o Options) error {
	client, err := s.Client(kserve.HTTP)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	deadline := time.Now().Add(o.ReadyTimeout)
	tick := time.NewTicker(30 * time.Millisecond)
	defer tick.Stop()
	for {
		report := readLog(s.Log)
		if report.inUse != "" {
			return portError(report.inUse)
		}
		if len(report.errors) > 0 && !o.KeepGoing {
			return s.loadFailure(ctx)
		}
		missing, err := "the server", error(nil)
		if s.itself(ctx, client, o.Args) {
			missing, err = notReady(ctx, client, o.Wait)
		}
		if err == nil && missing == "" {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for tritonserver: %w", context.Cause(ctx))
		case <-s.process.Done():
			return s.ended(missing)
		case <-tick.C:
		}
		if time.Now().After(deadline) {
			if missing == "" {
				missing = "the server"
			}
			return failure.New(failure.Triton, "%s is not ready after %s", missing, o.ReadyTimeout).At(s.Log).
				With("last lines", "%s", tailOf(s.Log, 1500)).
				WithHint("raise triton.ready_timeout_s, or read the log")
		}
	}
}

// itself reports whether it is this server that answers: another process may
// have taken the port before this one listens on it, and be a server, too.
func (s *Server) itself(ctx context.Context, client kserve.Client, args []string) bool {
	if slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, "--id") }) {
		return true // the caller's name, which is not known here
	}
	m, err := client.ServerMetadata(ctx)
	return err == nil && m.GetName() == s.prefix
}

// notReady returns the first thing that is not ready, or an empty text.
func notReady(ctx context.Context, client kserve.Client, wait []Want) (string, error) {
	if len(wait) == 0 {
		ok, err := client.ServerReady(ctx)
		if !ok {
			return "the server", err
		}
		return "", err
	}
	for _, w := range wait {
		ok, err := client.ModelReady(ctx, w.Model, w.Version)
		if !ok || err != nil {
			return w.String(), err
		}
	}
	return "", nil
}

// loadFailure makes an error of the first load error.
func (s *Server) loadFailure(ctx context.Context) error {
	// The rest of this burst of log lines arrives within the tick.
	select {
	case <-ctx.Done():
	case <-time.After(50 * time.Millisecond):
	}
	report := readLog(s.Log)
	first := report.errors[0]
	e := failure.New(failure.Triton, "%w", first).At(s.Log)
	for _, p := range first.Parser {
		e = e.With("config.pbtxt", "%s", p)
	}
	for _, o := range report.errors[1:] {
		e = e.With("also", "%s", o.Error())
	}
	return e.WithHint("`trtship lint` on the repository names the line")
}

// ended describes a server that ended by itself.
func (s *Server) ended(missing string) error {
	report := readLog(s.Log)
	switch {
	case report.inUse != "":
		return portError(report.inUse)
	case len(report.errors) > 0:
		return s.loadFailure(context.Background())
	}
	what := "tritonserver ended"
	if missing != "" {
		what += " before " + missing + " was ready"
	}
	e := failure.New(failure.Triton, "%s: %w", what, s.process.Wait()).At(s.Log)
	if len(report.others) > 0 {
		return e.With("server", "%s", report.others[len(report.others)-1])
	}
	return e.With("last lines", "%s", tailOf(s.Log, 1500))
}

// Client returns a client of the server.
func (s *Server) Client(p kserve.Protocol) (kserve.Client, error) {
	address := s.HTTP
	if p == kserve.GRPC {
		address = s.GRPC
	}
	return kserve.Open(kserve.Options{Protocol: p, Address: address, Timeout: s.call})
}

// PID is the process id of the server and of its group.
func (s *Server) PID() int { return s.process.PID() }

// Done is closed when the server has ended.
func (s *Server) Done() <-chan struct{} { return s.process.Done() }

// Err describes the end of a server that ended by itself; nil while it runs.
func (s *Server) Err() error {
	select {
	case <-s.process.Done():
		return s.ended("")
	default:
		return nil
	}
}

// LoadErrors lists what the log says about models that did not load.
func (s *Server) LoadErrors() []LoadError { return readLog(s.Log).errors }

// Version is the server's own version from its log; empty if it is not there.
func (s *Server) Version() string { return readLog(s.Log).version }

// Stop ends the server and its whole group, and removes what the python
// backend left in shared memory.
func (s *Server) Stop() {
	s.stop.Do(func() {
		s.process.Stop()
		s.cancel()
		sweep(s.prefix)
		removeAlias(s.alias)
	})
}

// sweep removes the shared memory of a group that has ended.
func sweep(prefix string) {
	if prefix == "" {
		return
	}
	left, _ := filepath.Glob(filepath.Join("/dev/shm", prefix+"*"))
	for _, f := range left {
		_ = os.Remove(f)
	}
}

// StopAndCount is Stop, and reports whether a process of the server's group is
// still there afterwards.
func (s *Server) StopAndCount() (left bool) {
	pid := s.PID()
	s.Stop()
	return syscall.Kill(-pid, 0) == nil
}
