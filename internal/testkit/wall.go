package testkit

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
)

const modulePath = "github.com/trtship/trtship"

// onlyIn names what may be imported in a few folders only.
var onlyIn = map[string][]string{
	"os/exec":                         {"internal/proc"},
	"github.com/yalue/onnxruntime_go": {"internal/ort"},
	"github.com/NVIDIA/go-nvml":       {"internal/gpu"},
}

// layers are the packages of ours from the top down. A package may import those
// of later layers, and of its own unless the layer is marked alone.
var layers = []layer{
	{name: "cmd", dirs: []string{"cmd"}, alone: true},
	{name: "cli", dirs: []string{"internal/cli"}},
	{name: "stages.All", dirs: []string{"stages"}, exact: true},
	{name: "one stage", dirs: []string{"stages"}, alone: true},
	{name: "pipeline, gate, github and the tools", dirs: []string{"internal"}},
	{name: "stage and store", dirs: []string{"internal/stage", "internal/store", "internal/config"}},
	{name: "report, artifact, tensor, proc", dirs: []string{"report", "internal/artifact", "internal/tensor", "internal/proc", "internal/failure", "internal/failpoint", "internal/regular"}},
}

// forTests reports whether a package is only for tests: this one, those named
// as httptest is, and what lies below them.
func forTests(dir string) bool {
	for _, part := range strings.Split(dir, "/") {
		if part == "testkit" || strings.HasSuffix(part, "test") {
			return true
		}
	}
	return false
}

type layer struct {
	name  string
	dirs  []string
	exact bool // the folder itself, not those below it
	alone bool // packages of this layer do not import each other
}

// source is one parsed file: its folder, imports, and calls of os functions.
type source struct {
	file    string
	dir     string
	test    bool
	imports []string
	calls   map[string]bool // e.g. "os.Getenv"
}

// CheckWall parses every Go file of the module and returns what breaks the
// rules of imports, one line each. It parses by itself: the output of a tool
// would be cached by go test as if nothing had changed.
func CheckWall(fsys fs.FS) ([]string, error) {
	files, err := parseAll(fsys)
	if err != nil {
		return nil, err
	}
	var bad []string
	for _, f := range files {
		if f.test || f.dir == "." { // the root holds no part of the program
			continue
		}
		for _, imp := range f.imports {
			if why := forbidden(f.dir, imp); why != "" {
				bad = append(bad, fmt.Sprintf("%s imports %s: %s", f.file, imp, why))
			}
		}
		bad = append(bad, forbiddenCalls(f)...)
	}
	sort.Strings(bad)
	return bad, nil
}

func parseAll(fsys fs.FS) ([]source, error) {
	var out []source
	err := fs.WalkDir(fsys, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); p != "." && (strings.HasPrefix(name, ".") || name == "testdata") {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(p, ".go") {
			return nil
		}
		s, err := parseOne(fsys, p)
		if err == nil {
			out = append(out, s)
		}
		return err
	})
	return out, err
}

func parseOne(fsys fs.FS, p string) (source, error) {
	text, err := fs.ReadFile(fsys, p)
	if err != nil {
		return source{}, err
	}
	f, err := parser.ParseFile(token.NewFileSet(), p, text, parser.SkipObjectResolution)
	if err != nil {
		return source{}, err
	}
	s := source{file: p, dir: path.Dir(p), test: strings.HasSuffix(p, "_test.go"), calls: map[string]bool{}}
	for _, imp := range f.Imports {
		name, err := strconv.Unquote(imp.Path.Value)
		if err != nil {
			return s, err
		}
		s.imports = append(s.imports, name)
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := sel.X.(*ast.Ident); ok {
				s.calls[x.Name+"."+sel.Sel.Name] = true
			}
		}
		return true
	})
	return s, nil
}

// forbidden says why a package may not import another; empty if it may.
func forbidden(dir, imp string) string {
	for name, where := range onlyIn {
		if imp == name || strings.HasPrefix(imp, name+"/") {
			for _, w := range where {
				if dir == w || strings.HasPrefix(dir, w+"/") {
					return ""
				}
			}
			return "only " + strings.Join(where, ", ") + " may"
		}
	}
	to, ours := strings.CutPrefix(imp, modulePath+"/")
	if !ours || forTests(dir) {
		return ""
	}
	if dir == "report" {
		return "report imports nothing of ours"
	}
	if forTests(to) {
		return "it is for tests"
	}
	return layerRule(dir, to)
}

func layerRule(dir, to string) string {
	a, b := layerOf(dir), layerOf(to)
	switch {
	case a < 0 || b < 0: // examples, bench and other programs stand outside
		return ""
	case a > b:
		return fmt.Sprintf("imports point down, and %q lies below %q", layers[a].name, layers[b].name)
	case a == b && layers[a].alone && top(dir) != top(to):
		return fmt.Sprintf("packages of %q do not import each other", layers[a].name)
	}
	return ""
}

// top is the package of a stage with those below it: stages/export/x belongs to
// stages/export.
func top(dir string) string {
	parts := strings.SplitN(dir, "/", 3)
	return strings.Join(parts[:min(2, len(parts))], "/")
}

// layerOf returns the layer whose folder names dir most exactly; -1 if none.
func layerOf(dir string) int {
	best, length := -1, -1
	for i, l := range layers {
		for _, d := range l.dirs {
			in := dir == d
			if !l.exact {
				in = in || strings.HasPrefix(dir, d+"/")
				if l.name == "one stage" {
					in = strings.HasPrefix(dir, d+"/")
				}
			}
			if in && len(d) > length {
				best, length = i, len(d)
			}
		}
	}
	return best
}

// forbiddenCalls holds the rules about the process: who reads the environment,
// writes to stdout and ends the program.
func forbiddenCalls(f source) []string {
	var bad []string
	outside := strings.HasPrefix(f.dir, "bench") || strings.HasPrefix(f.dir, "examples") || forTests(f.dir)
	main := strings.HasPrefix(f.dir, "cmd/")
	for call := range f.calls {
		switch call {
		case "os.Getenv", "os.LookupEnv", "os.Environ":
			if !main && f.dir != "internal/cli" && !outside {
				bad = append(bad, fmt.Sprintf("%s calls %s: only cmd and internal/cli read the environment", f.file, call))
			}
		case "fmt.Print", "fmt.Printf", "fmt.Println":
			if !outside {
				bad = append(bad, fmt.Sprintf("%s calls %s: streams are passed down", f.file, call))
			}
		case "os.Exit":
			if !main && !outside && !exits[f.file] {
				bad = append(bad, fmt.Sprintf("%s calls os.Exit: only cmd does", f.file))
			}
		}
	}
	return bad
}

// exits are the entries of re-executed children, which are programs of their own.
var exits = map[string]bool{
	filepath.ToSlash("internal/ort/child.go"): true,
	filepath.ToSlash("internal/gpu/child.go"): true,
}
