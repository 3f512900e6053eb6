// Package cli is the command line: commands, flags, streams and exit codes. It
// reads arguments, calls the packages that do the work, and prints what they
// found; data goes to stdout, everything else to stderr.
package cli

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/failpoint"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/worker"
)

// IO is how the program meets the world.
type IO struct {
	Stdin   io.Reader
	Stdout  io.Writer
	Stderr  io.Writer
	Getenv  func(string) string
	Environ func() []string
}

// app is one invocation.
type app struct {
	io      IO
	log     *slog.Logger
	args    []string
	version string

	// Flags that every command has.
	json     bool
	logLevel string
	python   string
	store    string
	dir      string
	set      []string

	// unknown is the error of help for a command that does not exist; the
	// library's own help says nothing of it.
	unknown error

	// unheld is what did not hold in a command that ran to its end and printed
	// what it found. It is set by doesNotHold.
	unheld *failure.Error
}

// patience is how long a command may go on after a signal, to end its children
// and to clean up.
const patience = 30 * time.Second

// Main runs one command and returns the exit code of the process.
func Main(ctx context.Context, args []string, streams IO) (code int) {
	a := &app{io: streams, args: args, version: version()}
	return a.await(ctx, patience, func() int {
		root := a.root()
		a.json = wantsJSON(args) // so that errors in the arguments are JSON, too
		root.SetArgs(args)
		err := root.ExecuteContext(ctx)
		if err == nil {
			err = a.unknown
		}
		return a.exit(ctx, err)
	})
}

// await returns what run returns. After the end of ctx it waits no longer than
// patience: whatever run is stuck in, such as a file of a server that is away,
// a signal ends the program.
func (a *app) await(ctx context.Context, patience time.Duration, run func() int) int {
	done := make(chan int, 1)
	go func() {
		defer func() {
			if r := recover(); r != nil {
				done <- a.bug(fmt.Sprint(r), debug.Stack())
			}
		}()
		done <- run()
	}()
	select {
	case code := <-done:
		return code
	case <-ctx.Done():
	}
	select {
	case code := <-done:
		return code
	case <-time.After(patience):
		return a.exit(ctx, fmt.Errorf("ended while it still worked: %w", context.Cause(ctx)))
	}
}

// root builds the tree of commands.
func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "trtship",
		Short: "Ship models: PyTorch or ONNX in, a checked Triton model repository out",
		Long: `trtship takes a PyTorch model or an ONNX file through export, numerical validation,
graph clean-up, calibration, TensorRT engines and benchmarks to a Triton model
repository. Every step is checked, recorded and resumable.

Exit codes: docs/exit-codes.md, or ` + "`trtship help exit-codes`" + `.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       a.version,
		Args:          anyCommand,
		RunE:          a.showHelp,
		PersistentPreRunE: func(c *cobra.Command, _ []string) error {
			if err := emptyFlag(c); err != nil {
				return err
			}
			if err := flagOutside(c); err != nil {
				return err
			}
			return a.prepare()
		},
	}
	root.SetIn(a.io.Stdin)
	root.SetOut(a.io.Stdout)
	root.SetErr(a.io.Stderr)
	root.SetVersionTemplate("trtship {{.Version}}\n")
	args := a.args
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		if c.HasSubCommands() { // a flag of a command that does not exist
			if _, rest, ferr := c.Root().Find(args); ferr == nil {
				for _, word := range rest {
					if !strings.HasPrefix(word, "-") {
						return anyCommand(c, []string{word})
					}
				}
			}
		}
		return failure.New(failure.Usage, "%w", err).WithHint("`%s --help` lists the flags", c.CommandPath())
	})
	p := root.PersistentFlags()
	p.BoolVar(&a.json, "json", false, "write data as JSON to stdout, and an error as one JSON line to stderr")
	p.StringVar(&a.logLevel, "log-level", "warn", "least `level` that is logged to stderr: debug, info, warn, error")
	p.StringVar(&a.python, "python", "", "Python `interpreter` with torch (else TRTSHIP_PYTHON, else the locked environment)")
	p.StringVar(&a.store, "store", "", "artifact store `folder` (else TRTSHIP_STORE, else .trtship/store)")
	p.StringVarP(&a.dir, "directory", "C", "", "change to this `folder` first")
	p.StringArrayVar(&a.set, "set", nil, "set a `key=value` of the configuration; may be repeated")
	root.AddGroup(
		&cobra.Group{ID: "pipeline", Title: "Pipeline:"}, &cobra.Group{ID: "steps", Title: "Single steps:"},
		&cobra.Group{ID: "serving", Title: "Serving:"}, &cobra.Group{ID: "measure", Title: "Measuring:"},
		&cobra.Group{ID: "ci", Title: "Continuous integration:"}, &cobra.Group{ID: "setup", Title: "Setup and files:"},
	)
	for _, make := range commands {
		root.AddCommand(make(a))
	}
	for _, m := range modelSteps {
		root.AddCommand(newModelStepCmd(m)(a))
	}
	root.AddCommand(exitCodesTopic())
	root.SetHelpCommand(a.helpCmd())
	help := root.HelpFunc()
	root.SetHelpFunc(func(c *cobra.Command, args []string) {
		if words := c.Flags().Args(); c.HasSubCommands() && len(words) > 0 {
			a.unknown = anyCommand(c, words)
			return
		}
		help(c, args)
	})
	root.SetCompletionCommandGroupID("setup")
	return root
}

// commands makes every command, one file each.
var commands = []func(*app) *cobra.Command{
	newPackageCmd, newServeCmd, newStatusCmd, newStopCmd, newLintCmd, newInferCmd, newModelsCmd, newSwapCmd, newTuneCmd, newPublishCmd, newPullCmd,
	newRunCmd, newReportCmd, newVerifyCmd, newInspectCmd, newValidateCmd, newRecheckCmd, newBenchmarkCmd, newLocateCmd, newCalibrateCmd, newSensitivityCmd, newGateCmd, newActionCmd, newCommentCmd,
	newArtifactsCmd, newVersionCmd, newSBOMCmd, newDoctorCmd, newInitCmd, newConfigCmd, newEnvCmd, newManCmd,
}

// commandStarted is where tests make every command meet an unexpected error.
var commandStarted = failpoint.New("cli.command.started")

// emptyFlag refuses a flag that is given without a value, as a script with an
// unset variable gives it: a gate without its baseline would pass.
func emptyFlag(c *cobra.Command) error {
	var err error
	c.Flags().Visit(func(f *pflag.Flag) {
		if err == nil && f.Value.Type() == "string" && f.Value.String() == "" {
			err = failure.New(failure.Usage, "--%s is empty", f.Name).WithHint("leave it out, or give it a value; `%s --help` lists the flags", c.CommandPath())
		}
	})
	return err
}

// prepare applies the flags that every command has.
func (a *app) prepare() error {
	var level slog.Level
	if err := level.UnmarshalText([]byte(a.logLevel)); err != nil {
		return failure.New(failure.Usage, "--log-level %q is not debug, info, warn or error", a.logLevel)
	}
	if err := failpoint.Arm(a.io.Getenv("TRTSHIP_FAILPOINT")); err != nil {
		return failure.New(failure.Usage, "TRTSHIP_FAILPOINT: %w", err)
	}
	if err := commandStarted.Hit(); err != nil {
		return err
	}
	a.log = slog.New(slog.NewTextHandler(a.io.Stderr, &slog.HandlerOptions{Level: level}))
	if a.dir == "" {
		return nil
	}
	if err := os.Chdir(a.dir); err != nil {
		return failure.New(failure.Usage, "change to folder %s: %w", a.dir, err)
	}
	return nil
}

// wantsJSON looks for --json without knowing the other flags.
func wantsJSON(args []string) bool {
	wants := false
	for _, arg := range args {
		value, ok := strings.CutPrefix(arg, "--json")
		switch on, err := strconv.ParseBool(strings.TrimPrefix(value, "=")); {
		case arg == "--":
			return wants
		case ok && value == "":
			wants = true
		case ok && value[0] == '=' && err == nil:
			wants = on
		}
	}
	return wants
}

// helpCmd is `trtship help`.
func (a *app) helpCmd() *cobra.Command {
	find := func(c *cobra.Command, words []string) (*cobra.Command, error) {
		found, rest, err := c.Root().Find(words)
		if found == nil {
			found = c.Root()
		}
		if err == nil && len(rest) == 0 {
			return found, nil
		}
		if len(rest) == 0 {
			rest = words
		}
		return found, anyCommand(found, rest)
	}
	return &cobra.Command{
		Use: "help [COMMAND]...", Short: "Help about any command", GroupID: "setup",
		ValidArgsFunction: func(c *cobra.Command, words []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
			var names []cobra.Completion
			if found, err := find(c, words); err == nil {
				for _, sub := range found.Commands() {
					if sub.IsAvailableCommand() || sub.IsAdditionalHelpTopicCommand() {
						names = append(names, cobra.CompletionWithDesc(sub.Name(), sub.Short))
					}
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(c *cobra.Command, words []string) error {
			found, err := find(c, words)
			if err != nil {
				return err
			}
			found.InitDefaultHelpFlag()
			return found.Help()
		},
	}
}

// showHelp is what a command without a subcommand does. A program that asks for
// JSON is no reader of help.
func (a *app) showHelp(c *cobra.Command, _ []string) error {
	if a.json {
		return failure.New(failure.Usage, "%s needs a command", c.CommandPath()).WithHint("`%s --help` lists the commands", c.CommandPath())
	}
	return c.Help()
}

// anyCommand refuses words that are no subcommand, with the nearest one.
func anyCommand(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	e := failure.New(failure.Usage, "unknown command %q for %q", args[0], c.CommandPath())
	c.SuggestionsMinimumDistance = 2
	if near := c.SuggestionsFor(args[0]); len(near) > 0 {
		return e.WithHint("did you mean %s?", strings.Join(near, " or "))
	}
	return e.WithHint("`%s --help` lists the commands", c.CommandPath())
}

// group makes a command that only holds others.
func (a *app) group(use, short, id string) *cobra.Command {
	return &cobra.Command{Use: use, Short: short, GroupID: id, Args: anyCommand, RunE: a.showHelp}
}

// positional checks the number of arguments and names what is expected.
func positional(lo, hi int) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if at := slices.Index(args, ""); at >= 0 { // an empty variable of a shell must not stand for the latest run
			return failure.New(failure.Usage, "argument %d of %s is empty", at+1, c.CommandPath()).WithHint("usage: %s", c.UseLine())
		}
		if len(args) >= lo && (hi < 0 || len(args) <= hi) {
			return nil
		}
		want := strconv.Itoa(lo)
		switch {
		case hi < 0:
			want = "at least " + want
		case hi == 0:
			want = "no"
		case hi != lo:
			want += " to " + strconv.Itoa(hi)
		}
		thing := " arguments"
		if max(lo, hi) == 1 {
			thing = " argument"
		}
		return failure.New(failure.Usage, "%s takes %s, got %d", c.CommandPath(), want+thing, len(args)).WithHint("usage: %s", c.UseLine())
	}
}

// loadConfig reads the configuration at path with the environment and --set.
func (a *app) loadConfig(path string) (*config.Config, error) {
	return config.Load(path, config.Options{Set: a.set, Env: a.io.Environ()})
}

// storeDir returns the folder of the store: --store, TRTSHIP_STORE, or
// .trtship/store in the working directory.
func (a *app) storeDir() string {
	switch {
	case a.store != "":
		return a.store
	case a.io.Getenv("TRTSHIP_STORE") != "":
		return a.io.Getenv("TRTSHIP_STORE")
	}
	return filepath.Join(".trtship", "store")
}

// runsDir returns the folder of the runs, beside the store.
func (a *app) runsDir() string {
	return filepath.Join(filepath.Dir(filepath.Clean(a.storeDir())), "runs")
}

// cacheHome returns the folder of what is installed for the user.
func (a *app) cacheHome() (string, error) { return worker.CacheHome(a.io.Getenv) }

// color reports whether w is a terminal that wants colours.
func (a *app) color(w io.Writer) bool {
	return a.terminal(w) && a.io.Getenv("NO_COLOR") == "" && a.io.Getenv("TERM") != "dumb"
}

// terminal reports whether w is a terminal.
func (a *app) terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// width returns the columns of the terminal w, 0 where there is none.
func (a *app) width(w io.Writer) int {
	f, ok := w.(*os.File)
	if !ok {
		return 0
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return width
}

// say writes one line about progress to stderr, escaped.
func (a *app) say(format string, args ...any) {
	_, _ = io.WriteString(a.io.Stderr, escape(fmt.Sprintf(format, args...))+"\n")
}

// print writes data to stdout, escaped.
func (a *app) print(format string, args ...any) {
	_ = a.put(escape(fmt.Sprintf(format, args...)))
}

// put writes what is escaped already, and may have our colours in it, to stdout.
func (a *app) put(text string) error {
	_, err := io.WriteString(a.io.Stdout, text)
	return err
}
