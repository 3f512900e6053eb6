package cli

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/trtship/trtship/internal/worker"
	"github.com/trtship/trtship/report"
)

func newEnvCmd(a *app) *cobra.Command {
	c := a.group("env", "Install and list the locked Python environments", "setup")
	var groups []string
	for _, g := range worker.Groups {
		groups = append(groups, string(g))
	}
	var base string
	install := &cobra.Command{
		Use:   "install [ENVIRONMENT]...",
		Short: "Install locked Python environments (" + strings.Join(groups, ", ") + "; base and triton by default)",
		Long: `install makes a virtual environment for each named set of packages, pinned by version and
hash, in the user's cache folder. Everything that will be installed is listed first. What
is there already costs nothing.`,
		Args: positional(0, -1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.envInstall(cmd, args, base) },
	}
	install.Flags().StringVar(&base, "base-python", "", "Python 3.11 or 3.12 `interpreter` to build on (else the first in PATH)")
	c.AddCommand(install,
		&cobra.Command{
			Use:   "path [ENVIRONMENT]",
			Short: "Print the interpreter of an installed environment (base by default)",
			Args:  positional(0, 1),
			RunE:  func(_ *cobra.Command, args []string) error { return a.envPath(args) },
		},
		&cobra.Command{
			Use:   "list",
			Short: "List the environments, their packages and whether they are installed",
			Args:  positional(0, 0),
			RunE:  func(*cobra.Command, []string) error { return a.envList() },
		},
	)
	return c
}

func (a *app) envInstall(cmd *cobra.Command, args []string, base string) error {
	if len(args) == 0 {
		args = []string{string(worker.GroupBase), string(worker.GroupTriton)}
	}
	home, err := a.cacheHome()
	if err != nil {
		return err
	}
	out := []worker.Env{}
	for _, name := range args {
		env, err := worker.EnsureEnv(cmd.Context(), worker.Group(name), worker.InstallOptions{
			CacheHome: home, Python: base, Path: a.io.Getenv("PATH"), Env: worker.PipEnv(a.io.Environ()), Log: a.io.Stderr,
			Announce: a.announce,
		})
		if err != nil {
			return err
		}
		if !a.json {
			a.print("%s: %s\n", name, env.Python)
		}
		out = append(out, env)
	}
	if a.json {
		return a.printJSON(out)
	}
	return nil
}

// announce lists what is about to be installed.
func (a *app) announce(group worker.Group, dir string, packages []worker.Package) {
	var total int64
	for _, p := range packages {
		total += p.Bytes
	}
	a.say("installing the %s environment (%d packages, %s to download) into %s:", group, len(packages), report.FormatBytes(total), dir)
	for _, p := range packages {
		a.say("  %s %s", p.Name, p.Version)
	}
}

func (a *app) envPath(args []string) error {
	name := worker.GroupBase
	if len(args) == 1 {
		name = worker.Group(args[0])
	}
	home, err := a.cacheHome()
	if err != nil {
		return err
	}
	env, err := worker.LockedEnv(home, name)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(env)
	}
	a.print("%s\n", env.Python)
	return nil
}

// listedEnv is one environment of `env list`.
type listedEnv struct {
	Name      worker.Group     `json:"name"`
	Installed bool             `json:"installed"`
	Python    string           `json:"python,omitempty"`
	Packages  []worker.Package `json:"packages"`
}

func (a *app) envList() error {
	home, err := a.cacheHome()
	if err != nil {
		return err
	}
	out := []listedEnv{}
	for _, g := range worker.Groups {
		packages, err := worker.Packages(g)
		if err != nil {
			return err
		}
		e := listedEnv{Name: g, Packages: packages}
		if env, err := worker.LockedEnv(home, g); err == nil {
			e.Installed, e.Python = true, env.Python
		}
		out = append(out, e)
	}
	if a.json {
		return a.printJSON(out)
	}
	t := a.table("environment", "packages", "interpreter")
	for _, e := range out {
		where := "not installed"
		if e.Installed {
			where = e.Python
		}
		t.AppendRow([]any{e.Name, len(e.Packages), where})
	}
	a.printTable(t)
	return nil
}
