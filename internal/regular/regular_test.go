package regular_test

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/trtship/trtship/internal/regular"
	"github.com/trtship/trtship/internal/testkit"
)

func TestOnlyWhatEndsIsOpened(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(os.WriteFile(at("file"), []byte("text"), 0o600), syscall.Mkfifo(at("pipe"), 0o600), os.Symlink("file", at("link")), os.Symlink("pipe", at("link-to-pipe"))); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", at("socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // a test
	for path, want := range map[string]string{
		at("file"): "", at("link"): "", at("pipe"): "a named pipe", at("link-to-pipe"): "a named pipe", at("socket"): "a socket", "/dev/zero": "a device", "/dev/null": "a device", dir: "is a folder",
	} {
		b, err := regular.ReadFile(path)
		if want == "" {
			if err != nil || string(b) != "text" || regular.Check(path) != nil {
				t.Errorf("%s: %q, %v, %v", path, b, err, regular.Check(path))
			}
			continue
		}
		var p *fs.PathError
		if !errors.As(err, &p) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", path, err, want)
		}
		if got := regular.Check(path); (got == nil) != (path == dir) {
			t.Errorf("%s: Check says %v", path, got)
		}
	}
	if _, err := regular.Open(at("absent")); !errors.Is(err, fs.ErrNotExist) || regular.Check(at("absent")) != nil {
		t.Errorf("an absent file: %v", err)
	}
}

// opensItself are the files that may call os.Open and os.ReadFile, with the
// reason.
var opensItself = map[string]string{
	"internal/cli/host.go":                 "files of /proc and /etc",
	"internal/gpu/gpu.go":                  "files of /sys",
	"internal/ort/child.go":                "files of /proc",
	"internal/triton/server/state.go":      "files of /proc",
	"internal/store/fs.go":                 "opens folders to sync them; what it reads is compared with its digest and checked to be a file",
	"internal/triton/tritontest/":          "a test's own log",
	"internal/testkit/":                    "files of tests",
	"internal/engine/enginetest/":          "files of tests",
	"internal/calibration/calibrationtest": "files of tests",
	"internal/github/githubtest/":          "files of tests",
}

func TestNobodyOpensWhatMayNeverEnd(t *testing.T) {
	root := testkit.Root(t)
	for _, top := range []string{"internal", "stages"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			name, _ := filepath.Rel(root, path)
			for allowed := range opensItself {
				if strings.HasPrefix(name, allowed) {
					return nil
				}
			}
			set := token.NewFileSet()
			f, err := parser.ParseFile(set, path, nil, 0)
			if err != nil {
				return err
			}
			ast.Inspect(f, func(n ast.Node) bool {
				if s, ok := n.(*ast.SelectorExpr); ok && slices.Contains([]string{"Open", "ReadFile"}, s.Sel.Name) {
					if x, ok := s.X.(*ast.Ident); ok && x.Name == "os" {
						t.Errorf("%s: os.%s waits for ever on a pipe: use internal/regular", set.Position(s.Pos()), s.Sel.Name)
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestALiteralPatternMatchesItsPathAlone(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{`a*b`, `a?b`, `a[b]c`, `a\*b`, "axb", "ab", "{x}"} {
		if err := errors.Join(os.Mkdir(filepath.Join(root, name), 0o700), os.WriteFile(filepath.Join(root, name, "f.json"), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{`a*b`, `a?b`, `a[b]c`, `a\*b`, "{x}"} {
		want := filepath.Join(root, name, "f.json")
		got, err := filepath.Glob(filepath.Join(regular.Literal(filepath.Join(root, name)), "*.json"))
		if err != nil || len(got) != 1 || got[0] != want {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}
