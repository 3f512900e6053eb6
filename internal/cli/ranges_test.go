package cli

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// TestEveryNumberOfAFlagHasBounds walks all commands: a flag with a number that
// nobody bounded is a search that runs for nothing.
func TestEveryNumberOfAFlagHasBounds(t *testing.T) {
	seen := map[string]bool{}
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		c.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
			switch f.Value.Type() {
			case "int", "int64", "float64", "duration", "intSlice", "int64Slice":
				key := strings.TrimPrefix(c.CommandPath(), "trtship ") + " " + f.Name
				seen[key] = true
				if _, ok := spans[key]; !ok {
					t.Errorf("%s has no bounds", key)
				}
			}
		})
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(Commands())
	for key := range spans {
		if !seen[key] {
			t.Errorf("%s is no flag with a number", key)
		}
	}
}

func TestNumbersThatAFlagCannotTake(t *testing.T) {
	for _, args := range []string{
		"tune c.yaml --p99 -1", "tune c.yaml --p99 nan", "tune c.yaml --window -1s", "tune c.yaml --window 0s", "tune c.yaml --loads 1,0",
		"tune c.yaml --instances 0", "tune c.yaml --delays 0,-5", "tune c.yaml --batches 0", "benchmark compare a b --margin -1",
		"benchmark compare a b --confidence 1", "benchmark ab c a b --rounds 0", "benchmark triton c --rate -3", "infer m --timeout -1s",
		"artifacts gc --keep-younger -1h", "swap c --version -1", "gate --confidence 0", "locate c --max-nodes 0", "sensitivity c --rows -1",
	} {
		code, _, stderr := invoke(t, map[string]string{}, strings.Fields(args)...)
		if code != 2 || !strings.Contains(stderr, " is not ") {
			t.Errorf("%s: exit %d, %s", args, code, stderr)
		}
	}
}
