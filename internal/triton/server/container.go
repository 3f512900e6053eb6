package server

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/httpbound"
	"github.com/trtship/trtship/internal/triton/kserve"
)

// Docker is what is needed of a container engine.
type Docker interface {
	// Create makes and starts a container and returns its id.
	Create(ctx context.Context, c Container) (id string, err error)
	// Running reports whether a container runs; why says how it ended.
	Running(ctx context.Context, id string) (running bool, why string, err error)
	// Logs returns the end of a container's log.
	Logs(ctx context.Context, id string) (string, error)
	// Remove stops and removes a container; one that is gone is no error.
	Remove(ctx context.Context, id string) error
	// Self returns the mounts of the container that we run in ourselves; none if
	// we do not.
	Self(ctx context.Context) (inContainer bool, mounts []Mount, err error)
}

// Mount is a folder of the host inside a container.
type Mount struct{ Host, Container string }

// Container says what to start.
type Container struct {
	Image      string
	Name       string
	Command    []string
	Repository string      // folder of the host, mounted read-only at /models
	Ports      map[int]int // inside: outside
	Address    string      // of the host, that ports are published on
	GPUs       []string    // "all", or indexes and UUIDs; none: no GPU
	SharedMB   int
	MemoryMB   int // 0 is no limit
}

// ContainerOptions says how to serve from a container.
type ContainerOptions struct {
	Image        string
	Repository   string
	Wait         []Want
	Control      string
	Load         []string
	Address      string // 127.0.0.1 if empty
	HTTPPort     int
	GRPCPort     int
	MetricsPort  int
	GPUs         string // all, or indexes and UUIDs with commas
	SharedMB     int
	MemoryMB     int // of the container; 0 is no limit
	Verbose      bool
	CacheBytes   int64
	ReadyTimeout time.Duration
	// Warn hears what a reader should know, such as a port that is open to others.
	Warn func(string)
}

// modelsFolder is where the repository lies in the container.
const modelsFolder = "/models"

// CheckImage refuses what is no image reference: text that starts with a dash
// would be an option to other tools, and "latest" by omission is no pin.
func CheckImage(image string) error {
	if image == "" {
		return failure.New(failure.Usage, "triton.image is not set: there is no default image").
			WithHint("a plan loads only in the TensorRT release that built it; name the image of that release")
	}
	if strings.HasPrefix(image, "-") {
		return failure.New(failure.Usage, "triton.image %q starts with a dash: it is no image reference", image)
	}
	if _, err := reference.ParseNormalizedNamed(image); err != nil {
		return failure.New(failure.Usage, "triton.image %q is no image reference: %w", image, err)
	}
	return nil
}

// CheckMount refuses paths that a container engine cannot mount as they are.
func CheckMount(path string) error {
	if strings.HasPrefix(filepath.Base(path), "-") && !filepath.IsAbs(path) || strings.HasPrefix(path, "-") {
		return failure.New(failure.Usage, "repository %q starts with a dash", path).WithHint("write ./%s", path)
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return failure.New(failure.Usage, "repository %q: %w", path, err)
	}
	if strings.Contains(abs, ":") {
		return failure.New(failure.Usage, "repository %q has ':' in its path, which separates the parts of a mount", abs).WithHint("rename the folder, or link to it")
	}
	if strings.ContainsAny(abs, ",\n\x00") {
		return failure.New(failure.Usage, "repository %q has a comma or a control character in its path", abs)
	}
	return nil
}

// CheckAddress refuses an address that is none, and says loudly if it is one
// that others can reach.
func CheckAddress(address string, warn func(string)) error {
	if address == "" {
		return nil
	}
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return failure.New(failure.Usage, "triton.bind_address %q is no IP address", address).WithHint("127.0.0.1, or 0.0.0.0 to expose the server")
	}
	if !ip.IsLoopback() && warn != nil {
		warn(fmt.Sprintf("WARNING: the server listens on %s. Triton has no authentication: whoever reaches this address can run, load and unload models.", address))
	}
	return nil
}

// GPUList splits the setting triton.gpus.
func GPUList(text string) ([]string, error) {
	if text == "" {
		return nil, nil
	}
	var out []string
	for _, g := range strings.Split(text, ",") {
		g = strings.TrimSpace(g)
		_, err := strconv.ParseUint(g, 10, 16)
		if g != "all" && err != nil && !strings.HasPrefix(g, "GPU-") && !strings.HasPrefix(g, "MIG-") {
			return nil, failure.New(failure.Usage, "triton.gpus: %q is no index, no UUID and not all", g)
		}
		out = append(out, g)
	}
	if len(out) > 1 {
		for _, g := range out {
			if g == "all" {
				return nil, failure.New(failure.Usage, "triton.gpus has all and more")
			}
		}
	}
	return out, nil
}

// ServeContainer starts a server in a container, waits until it is ready and
// records it in dir under name.
func ServeContainer(ctx context.Context, docker Docker, dir, name string, o ContainerOptions) (State, error) {
	c, err := o.container(name)
	if err != nil {
		return State{}, err
	}
	if err := checkFree(ctx, dir, name); err != nil {
		return State{}, err
	}
	if c.Repository, err = hostPath(ctx, docker, c.Repository); err != nil {
		return State{}, err
	}
	id, err := docker.Create(ctx, c)
	if err != nil {
		return State{}, err
	}
	host := o.Address
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	at := func(inside int) string { return net.JoinHostPort(host, strconv.Itoa(c.Ports[inside])) }
	st := State{
		Format: StateFormat, Name: name, Container: id, Image: o.Image, HTTP: at(8000), GRPC: at(8001), Metrics: at(8002),
		Repository: o.Repository, Control: o.Control, Started: time.Now().UTC().Truncate(time.Second),
	}
	err = awaitContainer(ctx, docker, st, o)
	if err == nil {
		err = st.save(dir)
	}
	if err != nil {
		_ = docker.Remove(context.WithoutCancel(ctx), id)
		return State{}, err
	}
	return st, nil
}

func (o ContainerOptions) container(name string) (Container, error) {
	if err := CheckImage(o.Image); err != nil {
		return Container{}, err
	}
	if err := CheckMount(o.Repository); err != nil {
		return Container{}, err
	}
	if err := CheckAddress(o.Address, o.Warn); err != nil {
		return Container{}, err
	}
	gpus, err := GPUList(o.GPUs)
	if err != nil {
		return Container{}, err
	}
	abs, err := filepath.Abs(o.Repository)
	if err != nil {
		return Container{}, failure.New(failure.Usage, "repository: %w", err)
	}
	c := Container{Image: o.Image, Name: "trtship-" + name, Repository: abs, Address: o.Address, GPUs: gpus, SharedMB: o.SharedMB, MemoryMB: o.MemoryMB, Ports: map[int]int{}}
	if c.Address == "" {
		c.Address = "127.0.0.1"
	}
	ports := Options{Address: c.Address, HTTPPort: o.HTTPPort, GRPCPort: o.GRPCPort, MetricsPort: o.MetricsPort}
	if c.Ports[8000], c.Ports[8001], c.Ports[8002], err = ports.ports(); err != nil {
		return Container{}, err
	}
	c.Command = []string{"tritonserver", "--model-repository=" + modelsFolder}
	if o.Control != "" {
		c.Command = append(c.Command, "--model-control-mode="+o.Control)
	}
	for _, m := range o.Load {
		c.Command = append(c.Command, "--load-model="+m)
	}
	if o.Verbose {
		c.Command = append(c.Command, "--log-verbose=1")
	}
	if o.CacheBytes > 0 {
		c.Command = append(c.Command, fmt.Sprintf("--cache-config=local,size=%d", o.CacheBytes))
	}
	return c, nil
}

// hostPath translates a path for the case that we run in a container ourselves
// and talk to the host's engine: a mount names a path of the host, and a path
// of ours would mount an empty folder there, with which the server is ready and
// has no model.
func hostPath(ctx context.Context, docker Docker, path string) (string, error) {
	inside, mounts, err := docker.Self(ctx)
	if err != nil || !inside {
		return path, err
	}
	best := Mount{}
	for _, m := range mounts {
		rel, err := filepath.Rel(m.Container, path)
		if err == nil && filepath.IsLocal(rel) && len(m.Container) > len(best.Container) {
			best = m
		}
	}
	if best.Container == "" {
		return "", failure.New(failure.Triton, "this is a container with the host's Docker socket, and %s is no folder of the host: the server would see an empty one", path).
			WithHint("put the repository under a mounted folder, such as the workspace of the job")
	}
	rel, err := filepath.Rel(best.Container, path)
	if err != nil {
		return "", err
	}
	return filepath.Join(best.Host, rel), nil
}

// awaitContainer polls until everything is ready, the container ends, its log
// shows a load error, or the time is up.
func awaitContainer(ctx context.Context, docker Docker, st State, o ContainerOptions) error {
	timeout := o.ReadyTimeout
	if timeout == 0 {
		timeout = 2 * time.Minute
	}
	c, err := kserve.Open(kserve.Options{Protocol: kserve.HTTP, Address: st.HTTP, Timeout: 5 * time.Second})
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	deadline := time.Now().Add(timeout)
	for {
		missing, err := notReady(ctx, c, o.Wait)
		if err == nil && missing == "" {
			return nil
		}
		log, _ := docker.Logs(ctx, st.Container)
		report := parseLog(log)
		if len(report.errors) > 0 {
			e := failure.New(failure.Triton, "%w", report.errors[0])
			for _, p := range report.errors[0].Parser {
				e = e.With("config.pbtxt", "%s", p)
			}
			return e.WithHint("`trtship lint` on the repository names the line")
		}
		running, why, err := docker.Running(ctx, st.Container)
		if err != nil {
			return err
		}
		if !running {
			return failure.New(failure.Triton, "the container ended before the server was ready: %s", why).With("last lines", "%s", lastBytes(log, 1500))
		}
		if time.Now().After(deadline) {
			if missing == "" {
				missing = "the server"
			}
			return failure.New(failure.Triton, "%s is not ready after %s", missing, timeout).With("last lines", "%s", lastBytes(log, 1500))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func lastBytes(s string, n int) string {
	s = strings.TrimSpace(s)
	if len(s) > n {
		s = s[len(s)-n:]
	}
	return s
}

// engine is Docker through its own client.
type engine struct{ api *client.Client }

// ConnectDocker connects to the engine that getenv names (DOCKER_HOST and its
// kin), else to the local socket. An engine that does not answer is
// failure.Missing.
func ConnectDocker(ctx context.Context, getenv func(string) string) (Docker, error) {
	host := getenv("DOCKER_HOST")
	if host == "" {
		host = client.DefaultDockerHost
	}
	api, err := openEngine(host, engineSilence)
	if err != nil {
		return nil, failure.New(failure.Missing, "connect to Docker at %s: %w", host, err)
	}
	if _, err := api.Ping(ctx, client.PingOptions{}); err != nil {
		return nil, failure.New(failure.Missing, "Docker does not answer at %s: %w", host, err).
			WithHint("start the engine, or serve with a tritonserver of this machine (leave triton.image out)")
	}
	return &engine{api: api}, nil
}

// Bounds of an engine's replies: one that is stuck, or is none, must not hold us.
const engineReply = 32 << 20

var engineSilence = time.Minute

// openEngine makes the engine's own client, with bounds.
func openEngine(host string, silence time.Duration) (*client.Client, error) {
	u, err := client.ParseHostURL(host)
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{MaxIdleConns: 4, IdleConnTimeout: 30 * time.Second, DisableCompression: true}
	if u.Scheme == "unix" {
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{Timeout: 10 * time.Second}).DialContext(ctx, u.Scheme, u.Host)
		}
	}
	return client.New(client.WithHost(host), client.WithHTTPClient(&http.Client{
		Transport: httpbound.Transport(transport, engineReply, silence), CheckRedirect: client.CheckRedirect,
	}))
}

func (e *engine) Create(ctx context.Context, c Container) (string, error) {
	exposed, published := network.PortSet{}, network.PortMap{}
	address, err := netip.ParseAddr(c.Address)
	if err != nil {
		return "", failure.New(failure.Usage, "address %q: %w", c.Address, err)
	}
	for inside, outside := range c.Ports {
		p := network.MustParsePort(fmt.Sprintf("%d/tcp", inside))
		exposed[p] = struct{}{}
		published[p] = []network.PortBinding{{HostIP: address, HostPort: strconv.Itoa(outside)}}
	}
	hc := &container.HostConfig{
		PortBindings: published,
		ShmSize:      int64(c.SharedMB) << 20,
		Mounts:       []mount.Mount{{Type: mount.TypeBind, Source: c.Repository, Target: modelsFolder, ReadOnly: true}},
		SecurityOpt:  []string{"no-new-privileges"},
	}
	// Swap would only hide that the limit is reached.
	hc.Memory, hc.MemorySwap = int64(c.MemoryMB)<<20, int64(c.MemoryMB)<<20
	if len(c.GPUs) > 0 {
		r := container.DeviceRequest{Driver: "nvidia", Capabilities: [][]string{{"gpu"}}}
		if c.GPUs[0] == "all" {
			r.Count = -1
		} else {
			r.DeviceIDs = c.GPUs
		}
		hc.DeviceRequests = []container.DeviceRequest{r}
	}
	made, err := e.api.ContainerCreate(ctx, client.ContainerCreateOptions{
		Config:     &container.Config{Image: c.Image, Cmd: c.Command, ExposedPorts: exposed, Labels: map[string]string{"trtship": c.Name}},
		HostConfig: hc, Name: c.Name,
	})
	if err != nil {
		return "", failure.New(failure.Triton, "create a container of %s: %w", c.Image, err).WithHint("pull the image first: nothing is pulled by itself")
	}
	if made.ID == "" {
		return "", failure.New(failure.Triton, "create a container of %s: the engine's reply holds no id", c.Image)
	}
	if _, err := e.api.ContainerStart(ctx, made.ID, client.ContainerStartOptions{}); err != nil {
		_ = e.Remove(context.WithoutCancel(ctx), made.ID)
		return "", failure.New(failure.Triton, "start the container: %w", err)
	}
	return made.ID, nil
}

func (e *engine) Running(ctx context.Context, id string) (bool, string, error) {
	r, err := e.api.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
	if err != nil {
		if errdefs.IsNotFound(err) {
			return false, "the container is gone", nil
		}
		return false, "", failure.New(failure.Triton, "ask for the container: %w", err)
	}
	s := r.Container.State
	if s == nil {
		return false, "", failure.New(failure.Triton, "ask for the container: the engine's reply holds no state")
	}
	if s.Running {
		return true, "", nil
	}
	return false, fmt.Sprintf("exit status %d %s", s.ExitCode, s.Error), nil
}

func (e *engine) Logs(ctx context.Context, id string) (string, error) {
	r, err := e.api.ContainerLogs(ctx, id, client.ContainerLogsOptions{ShowStdout: true, ShowStderr: true, Tail: "2000"})
	if err != nil {
		return "", failure.New(failure.Triton, "read the container's log: %w", err)
	}
	defer func() { _ = r.Close() }()
	log, err := readFrames(r)
	if err != nil {
		return log, failure.New(failure.Triton, "read the container's log: %w", err)
	}
	return log, nil
}

func (e *engine) Remove(ctx context.Context, id string) error {
	grace := int(stopGrace.Seconds())
	_, err := e.api.ContainerStop(ctx, id, client.ContainerStopOptions{Timeout: &grace})
	if err == nil || errdefs.IsNotFound(err) {
		_, err = e.api.ContainerRemove(ctx, id, client.ContainerRemoveOptions{Force: true})
	}
	if err != nil && !errdefs.IsNotFound(err) {
		return failure.New(failure.Triton, "remove the container %.12s: %w", id, err)
	}
	return nil
}

func (e *engine) Self(ctx context.Context) (bool, []Mount, error) {
	if _, err := os.Stat("/.dockerenv"); err != nil {
		return false, nil, nil //nolint:nilerr // we are in no container
	}
	name, err := os.Hostname() // the container's id, unless it was given another
	if err != nil {
		return false, nil, failure.New(failure.Triton, "ask for our own name: %w", err)
	}
	r, err := e.api.ContainerInspect(ctx, name, client.ContainerInspectOptions{})
	if errdefs.IsNotFound(err) {
		return false, nil, nil // an engine of its own: its paths are ours
	}
	if err != nil {
		return false, nil, failure.New(failure.Triton, "ask for our own container: %w", err)
	}
	var out []Mount
	for _, m := range r.Container.Mounts {
		out = append(out, Mount{Host: m.Source, Container: m.Destination})
	}
	return true, out, nil
}
