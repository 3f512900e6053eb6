package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/gpu"
	"github.com/trtship/trtship/internal/ort"
	"github.com/trtship/trtship/internal/testkit"
)

func TestMain(m *testing.M) {
	ort.RunChildIfAsked()
	gpu.RunChildIfAsked()
	testkit.Main(m)
}

// TestDocumentsAreCurrent compares every generated document with the tables it
// is made from; -update writes them.
func TestDocumentsAreCurrent(t *testing.T) {
	schema, err := config.Schema()
	if err != nil {
		t.Fatal(err)
	}
	docs := filepath.Join(testkit.Root(t), "docs")
	for name, b := range map[string][]byte{
		"configuration.md": config.WriteReference(), "exit-codes.md": WriteExitCodes(), "cli.md": WriteReference(),
		"checks.md": WriteChecks(), config.SchemaFile: schema,
	} {
		t.Run(name, func(t *testing.T) { testkit.Golden(t, filepath.Join(docs, name), b) })
	}
}

// TestEveryCommandIsDescribed demands a line, a place and working arguments of
// each command.
func TestEveryCommandIsDescribed(t *testing.T) {
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Short == "" {
			t.Errorf("%s has no description", c.CommandPath())
		}
		if c.Parent() == c.Root() && c.GroupID == "" && c.Name() != "exit-codes" {
			t.Errorf("%s is in no group", c.CommandPath())
		}
		if c.Args == nil && c.RunE != nil && c.Parent().Name() != "completion" && c.Name() != "help" {
			t.Errorf("%s does not check its arguments", c.CommandPath())
		}
		if !c.HasSubCommands() && c.RunE == nil && c.Run == nil && c.Name() != "exit-codes" {
			t.Errorf("%s does nothing", c.CommandPath())
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	for _, c := range Commands().Commands() {
		walk(c)
	}
}

// documents returns every Markdown file for readers.
func documents(t *testing.T) map[string]string {
	t.Helper()
	root := testkit.Root(t)
	out := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "examples/*.md", "examples/*/*.md", "bench/*.md"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			rel, err := filepath.Rel(root, f)
			if err != nil {
				t.Fatal(err)
			}
			out[rel] = string(b)
		}
	}
	return out
}

var (
	codeSpan     = regexp.MustCompile("(?s)```(?:sh|console|bash|yaml)?\n(.*?)```|`([^`\n]+)`")
	shellComment = regexp.MustCompile(`\s#\s.*$`)
)

// TestCommandsInDocumentsExist finds every `trtship ...` in code of a document
// and demands that the command and its flags exist.
func TestCommandsInDocumentsExist(t *testing.T) {
	found := 0
	for file, text := range documents(t) {
		for _, m := range codeSpan.FindAllStringSubmatch(text, -1) {
			for line := range strings.Lines(m[1] + m[2]) {
				line = strings.TrimSpace(shellComment.ReplaceAllString(strings.TrimSpace(line), ""))
				line = strings.TrimPrefix(strings.TrimPrefix(line, "$ "), "bin/")
				if line != "trtship" && !strings.HasPrefix(line, "trtship ") {
					continue
				}
				found++
				if err := knownCommand(strings.Fields(line)[1:]); err != nil {
					t.Errorf("%s: `%s`: %v", file, line, err)
				}
			}
		}
	}
	if found < 20 {
		t.Errorf("only %d commands were found; is the pattern broken?", found)
	}
}

// knownCommand checks command and flags without running anything.
func knownCommand(args []string) error {
	root := Commands()
	c, rest, err := root.Find(args)
	if err != nil {
		return err
	}
	if c == root && len(rest) > 0 && !strings.HasPrefix(rest[0], "-") && rest[0] != "help" && !placeholder(rest[0]) {
		return failure.New(failure.Usage, "no command %s", rest[0])
	}
	if c.HasSubCommands() && len(rest) > 0 && !strings.HasPrefix(rest[0], "-") && !placeholder(rest[0]) && c != root {
		return failure.New(failure.Usage, "no command %s %s", c.Name(), rest[0])
	}
	for _, r := range rest {
		name, _, _ := strings.Cut(strings.Trim(r, "[]"), "=")
		switch {
		case strings.HasPrefix(name, "--"):
			if n := name[2:]; n != "help" && c.Flag(n) == nil && c.InheritedFlags().Lookup(n) == nil && n != "" {
				return failure.New(failure.Usage, "no flag %s", name)
			}
		case len(name) == 2 && name[0] == '-':
			if c.Flags().ShorthandLookup(name[1:]) == nil && c.InheritedFlags().ShorthandLookup(name[1:]) == nil && name != "-h" {
				return failure.New(failure.Usage, "no flag %s", name)
			}
		}
	}
	return nil
}

// placeholder reports whether a word stands for others: "...", "COMMAND", "<id>".
func placeholder(s string) bool {
	return strings.HasPrefix(s, "...") || strings.HasPrefix(s, "…") || strings.HasPrefix(s, "<") || strings.ToUpper(s) == s
}

var keyInDoc = regexp.MustCompile("`([a-z_]+(?:\\.[a-z_0-9\\[\\]<>]+)+)`")

// TestConfigurationKeysInDocumentsExist finds dotted names in code spans that
// start with a section, and demands that the key exists.
func TestConfigurationKeysInDocumentsExist(t *testing.T) {
	var keys, sections []string
	for _, f := range config.Table() {
		keys = append(keys, f.Path)
		if f.Depth == 0 && f.Section {
			sections = append(sections, f.Path)
		}
	}
	for file, text := range documents(t) {
		for _, m := range keyInDoc.FindAllStringSubmatch(text, -1) {
			section, rest, _ := strings.Cut(m[1], ".")
			if !slices.Contains(sections, section) || slices.Contains([]string{"onnx", "json", "yaml", "md", "pt", "plan", "py", "cache", "npz", "npy"}, rest) {
				continue
			}
			if !knownKey(keys, m[1]) {
				t.Errorf("%s: there is no key %s", file, m[1])
			}
		}
	}
}

// knownKey matches a path of the table; a part that is a name or an index
// stands for any element.
func knownKey(keys []string, path string) bool {
	parts := strings.Split(path, ".")
	return slices.ContainsFunc(keys, func(key string) bool {
		want := strings.Split(key, ".")
		if len(want) < len(parts) {
			return false
		}
		for i, p := range parts {
			if want[i] != p && want[i] != "[]" && want[i] != "<name>" {
				// "profiles.inputs" for "profiles.[].inputs" is said in prose.
				return false
			}
		}
		return true
	})
}

var linkInDoc = regexp.MustCompile(`\]\(([^)#\s]+)(#[^)\s]*)?\)`)

// TestRelativeLinksExist demands that every relative link leads somewhere.
func TestRelativeLinksExist(t *testing.T) {
	root := testkit.Root(t)
	for file, text := range documents(t) {
		for _, m := range linkInDoc.FindAllStringSubmatch(text, -1) {
			if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
				continue
			}
			if _, err := os.Stat(filepath.Join(root, filepath.Dir(file), filepath.FromSlash(m[1]))); err != nil {
				t.Errorf("%s: link to %s: %v", file, m[1], err)
			}
		}
	}
}

// TestEveryExitCodeHasAScript demands a script that sees each exit code.
func TestEveryExitCodeHasAScript(t *testing.T) {
	scripts, err := filepath.Glob(filepath.Join(testkit.Root(t), "cmd", "trtship", "testdata", "script", "*.txtar"))
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, s := range scripts {
		b, err := os.ReadFile(s)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(b)
	}
	for _, c := range failure.Codes {
		if !regexp.MustCompile(`(?m)^exits ` + strconv.Itoa(int(c.Code)) + ` `).MatchString(all.String()) {
			t.Errorf("no script exits with %d (%s)", c.Code, c.Name)
		}
	}
}
