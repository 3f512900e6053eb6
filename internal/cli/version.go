package cli

import (
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// Release is the version that a release build sets with -ldflags -X.
var Release string

// version returns the release, or the module's version and commit.
func version() string {
	if Release != "" {
		return Release
	}
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "(devel)"
	}
	return info.Main.Version
}

// commit returns the commit that the program was built from, if it is known.
func commit() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				return s.Value
			}
		}
	}
	return ""
}

func newVersionCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		GroupID: "setup",
		Args:    positional(0, 0),
		RunE: func(*cobra.Command, []string) error {
			if a.json {
				return a.printJSON(map[string]string{
					"version": a.version, "commit": commit(), "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH,
				})
			}
			a.print("trtship %s\n", a.version)
			return nil
		},
	}
}
