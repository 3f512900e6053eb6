package cli

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/triton"
	"github.com/trtship/trtship/internal/triton/server"
)

// The ports of serve where the configuration names none: Triton's own.
const (
	defaultHTTPPort    = 8000
	defaultGRPCPort    = 8001
	defaultMetricsPort = 8002
)

func newServeCmd(a *app) *cobra.Command {
	var repository string
	var explicit bool
	c := &cobra.Command{
		Use:   "serve CONFIG",
		Short: "Start a Triton server on a model repository, and leave it running",
		Long: `serve starts a tritonserver (triton.server, PATH or the locked environment; with triton.image, a
container through Docker's own client), waits until server and model are ready, and returns. The
first load error ends it, with the server's words. Ports are published on triton.bind_address,
127.0.0.1 by default: Triton has no authentication.`,
		GroupID: "serving",
		Args:    positional(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.serve(cmd.Context(), args[0], repository, explicit)
		},
	}
	c.Flags().StringVarP(&repository, "repository", "r", "", "model repository (`folder`; that of the latest run by default)")
	c.Flags().BoolVar(&explicit, "explicit", false, "load and unload models by request only (model control mode explicit)")
	return c
}

// serversDir returns the folder of the records of running servers, beside the store.
func (a *app) serversDir() string {
	return filepath.Join(filepath.Dir(filepath.Clean(a.storeDir())), "servers")
}

// findRepository returns the absolute folder of a repository, that of the
// latest run if none is named.
func (a *app) findRepository(named string) (string, error) {
	if named == "" {
		run, err := a.findRun("")
		if err != nil {
			return "", err
		}
		named = filepath.Join(run, "artifacts", "model_repository")
	}
	abs, err := filepath.Abs(named)
	if err == nil {
		abs, err = filepath.EvalSymlinks(abs)
	}
	if err != nil {
		return "", failure.New(failure.Artifact, "find model repository: %w", err).WithHint("`trtship package CONFIG -o model_repository` writes one")
	}
	if info, err := os.Stat(abs); err != nil || !info.IsDir() {
		return "", failure.New(failure.Artifact, "%s is no folder", named)
	}
	return abs, nil
}

// servedName is the name of the model in the repository.
func servedName(cfg *config.Config) string {
	if cfg.Triton.ModelName != "" {
		return cfg.Triton.ModelName
	}
	return cfg.Model.Name
}

// wanted returns the newest version of the configuration's model in a repository.
func wanted(cfg *config.Config, repository string) (triton.Model, error) {
	models, err := triton.Models(repository)
	if err != nil {
		return triton.Model{}, err
	}
	var names []string
	for _, m := range models {
		if m.Name == servedName(cfg) {
			return m, nil
		}
		names = append(names, m.Name)
	}
	return triton.Model{}, failure.New(failure.Triton, "there is no model %s in %s", servedName(cfg), repository).
		With("models there", "%s", strings.Join(names, ", ")).WithHint("set triton.model_name, or name another repository with -r")
}

func (a *app) serve(ctx context.Context, path, repository string, explicit bool) error {
	cfg, err := a.loadConfig(path)
	if err != nil {
		return err
	}
	if repository, err = a.findRepository(repository); err != nil {
		return err
	}
	model, err := wanted(cfg, repository)
	if err != nil {
		return err
	}
	dir, err := filepath.Abs(a.serversDir())
	if err != nil {
		return failure.New(failure.Artifact, "find servers: %w", err)
	}
	var st server.State
	if cfg.Triton.Image != "" {
		st, err = a.serveContainer(ctx, cfg, dir, repository, model, explicit)
	} else {
		st, err = a.serveHere(ctx, cfg, dir, repository, model, explicit)
	}
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(st)
	}
	a.print("%s version %s is ready\n  http     %s\n  grpc     %s\n  metrics  %s\n", model.Name, model.Newest(), st.HTTP, st.GRPC, st.Metrics)
	if st.Log != "" {
		a.print("  log      %s\n", a.rel(st.Log))
	}
	a.say("`trtship status %s` shows it, `trtship stop %s` ends it", path, path)
	return nil
}

func (a *app) serveHere(ctx context.Context, cfg *config.Config, dir, repository string, model triton.Model, explicit bool) (server.State, error) {
	t := cfg.Triton
	warn := func(text string) { a.say("%s", text) }
	if err := server.CheckAddress(t.BindAddress, warn); err != nil {
		return server.State{}, err
	}
	install, err := a.machine().Triton(ctx, cfg)
	if err != nil {
		return server.State{}, err
	}
	o := server.Options{
		Installation: install, Repositories: []string{repository}, Address: t.BindAddress, Verbose: t.Verbose,
		HTTPPort: or(t.HTTPPort, defaultHTTPPort), GRPCPort: or(t.GRPCPort, defaultGRPCPort), MetricsPort: or(t.MetricsPort, defaultMetricsPort),
		ReadyTimeout: time.Duration(t.ReadyTimeoutS) * time.Second, MemoryMB: t.MemoryMB, CacheBytes: cacheBytes(t),
		Wait: []server.Want{{Model: model.Name, Version: model.Newest()}},
	}
	if explicit {
		o.Control, o.Load = "explicit", []string{model.Name}
	}
	return server.Serve(ctx, dir, model.Name, o)
}

func (a *app) serveContainer(ctx context.Context, cfg *config.Config, dir, repository string, model triton.Model, explicit bool) (server.State, error) {
	t := cfg.Triton
	docker, err := server.ConnectDocker(ctx, a.io.Getenv)
	if err != nil {
		return server.State{}, err
	}
	o := server.ContainerOptions{
		Image: t.Image, Repository: repository, Address: t.BindAddress, GPUs: t.GPUs, SharedMB: t.SharedMemoryMB, MemoryMB: t.MemoryMB, Verbose: t.Verbose,
		HTTPPort: or(t.HTTPPort, defaultHTTPPort), GRPCPort: or(t.GRPCPort, defaultGRPCPort), MetricsPort: or(t.MetricsPort, defaultMetricsPort),
		ReadyTimeout: time.Duration(t.ReadyTimeoutS) * time.Second, CacheBytes: cacheBytes(t),
		Wait: []server.Want{{Model: model.Name, Version: model.Newest()}}, Warn: func(text string) { a.say("%s", text) },
	}
	if explicit {
		o.Control, o.Load = "explicit", []string{model.Name}
	}
	return server.ServeContainer(ctx, docker, dir, model.Name, o)
}

// cacheBytes is the size of the server's response cache, if one is asked for.
func cacheBytes(t config.Triton) int64 {
	if t.ResponseCache {
		return 64 << 20
	}
	return 0
}

func or(value, fallback int) int {
	if value != 0 {
		return value
	}
	return fallback
}

func newStatusCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "status [CONFIG]",
		Short: "Show the servers that serve started: running, ready, models",
		Long: `status asks the server of a configuration, or every server that serve started here. A server that
is not ready is exit 10.`,
		GroupID: "serving",
		Args:    positional(0, 1),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.status(cmd.Context(), args) },
	}
}

// servedStatus is one server for --json.
type servedStatus struct {
	server.State
	Running bool     `json:"running"`
	Ready   bool     `json:"ready"`
	Version string   `json:"server_version,omitempty"`
	Models  []string `json:"models"`
	Why     string   `json:"why,omitempty"`
}

// recorded returns the record of a configuration's server, or all of them.
func (a *app) recorded(args []string) ([]server.State, error) {
	dir := a.serversDir()
	if len(args) == 0 {
		return server.Recorded(dir)
	}
	cfg, err := a.loadConfig(args[0])
	if err != nil {
		return nil, err
	}
	st, err := server.Lookup(dir, servedName(cfg))
	return []server.State{st}, err
}

func (a *app) status(ctx context.Context, args []string) error {
	states, err := a.recorded(args)
	if err != nil {
		return err
	}
	out := []servedStatus{}
	for _, st := range states {
		docker, err := a.dockerOf(ctx, st)
		if err != nil {
			return err
		}
		s, err := server.Inspect(ctx, st, docker)
		if err != nil {
			return err
		}
		one := servedStatus{State: st, Running: s.Running, Ready: s.Ready, Version: s.Version, Why: s.Why, Models: []string{}}
		for _, m := range s.Models {
			one.Models = append(one.Models, strings.TrimSpace(m.GetName()+" "+m.GetVersion()+" "+m.GetState()+" "+m.GetReason()))
		}
		out = append(out, one)
	}
	a.notReady(out)
	if a.json {
		return a.printJSON(out)
	}
	if len(out) == 0 {
		a.say("no server was started here")
		return nil
	}
	t := a.table("server", "running", "ready", "http", "grpc", "models", "")
	for _, s := range out {
		t.AppendRow([]any{s.Name, yes(s.Running), yes(s.Ready), s.HTTP, s.GRPC, strings.Join(s.Models, "\n"), s.Why})
	}
	a.printTable(t)
	return nil
}

// notReady says which servers are not.
func (a *app) notReady(all []servedStatus) {
	var e *failure.Error
	for _, s := range all {
		if s.Ready {
			continue
		}
		if e == nil {
			e = a.doesNotHold(failure.Triton, "the server of %s is not ready", s.Name)
			if s.Log != "" {
				e.WithHint("read its log %s; `trtship stop` and `trtship serve` start it anew", a.rel(s.Log))
			}
		}
		e.With(s.Name, "%s", cmp.Or(s.Why, "not ready"))
	}
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// dockerOf connects to Docker if a record is that of a container.
func (a *app) dockerOf(ctx context.Context, st server.State) (server.Docker, error) {
	if st.Container == "" {
		return nil, nil //nolint:nilnil // a local process needs none
	}
	return server.ConnectDocker(ctx, a.io.Getenv)
}

func newStopCmd(a *app) *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use:     "stop [CONFIG]",
		Short:   "End a server that serve started, with all its processes",
		GroupID: "serving",
		Args:    positional(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 && !all {
				return failure.New(failure.Usage, "name a configuration, or say --all")
			}
			return a.stop(cmd.Context(), args)
		},
	}
	c.Flags().BoolVar(&all, "all", false, "end every server that was started here")
	return c
}

func (a *app) stop(ctx context.Context, args []string) error {
	states, err := a.recorded(args)
	if err != nil {
		return err
	}
	names := []string{}
	for _, st := range states {
		docker, err := a.dockerOf(ctx, st)
		if err != nil {
			return err
		}
		if err := server.Stop(ctx, a.serversDir(), st.Name, docker); err != nil {
			return err
		}
		names = append(names, st.Name)
		if !a.json {
			a.print("stopped %s\n", st.Name)
		}
	}
	if a.json {
		return a.printJSON(names)
	}
	return nil
}
