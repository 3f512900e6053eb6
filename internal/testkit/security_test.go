package testkit

import (
	"bufio"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// testFunctions lists every test and fuzz target of the module.
func testFunctions(t *testing.T) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	pattern := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(\w+ \*testing\.[TF]\)`)
	eachGoFile(t, func(name string, text []byte) {
		if strings.HasSuffix(name, "_test.go") {
			for _, m := range pattern.FindAllSubmatch(text, -1) {
				found[string(m[1])] = true
			}
		}
	})
	return found
}

func eachGoFile(t *testing.T, f func(name string, text []byte)) {
	t.Helper()
	fsys := os.DirFS(Root(t))
	err := fs.WalkDir(fsys, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && p != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata") {
			return fs.SkipDir
		}
		if strings.HasSuffix(p, ".go") {
			text, err := fs.ReadFile(fsys, p)
			if err != nil {
				return err
			}
			f(p, text)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

var namedTest = regexp.MustCompile("`((?:Test|Fuzz)[A-Z]\\w*)(?:/(\\w+))?`")

// guards returns the bullets and the rows of tables below "What is guarded".
func guards(text string) []string {
	_, text, _ = strings.Cut(text, "## What is guarded\n")
	text, _, _ = strings.Cut(text, "\n## ")
	var out []string
	for _, line := range strings.Split(text, "\n") {
		switch {
		case strings.HasPrefix(line, "- "), strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, "| child") && !strings.HasPrefix(line, "| ---"):
			out = append(out, line)
		case strings.HasPrefix(line, "  ") && len(out) > 0:
			out[len(out)-1] += line
		}
	}
	return out
}

func TestEveryGuardNamesATestThatExists(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(Root(t), "docs", "security.md"))
	if err != nil {
		t.Fatal(err)
	}
	exist := testFunctions(t)
	list := guards(string(text))
	if len(list) < 30 {
		t.Errorf("only %d guards were found; is the pattern broken?", len(list))
	}
	for _, g := range list {
		names := namedTest.FindAllStringSubmatch(g, -1)
		if len(names) == 0 {
			t.Errorf("no test is named for the guard: %s", g)
		}
	}
	for _, m := range namedTest.FindAllStringSubmatch(string(text), -1) {
		if !exist[m[1]] {
			t.Errorf("docs/security.md names %s, which does not exist", m[1])
		}
		if m[1] == "TestScripts" {
			if _, err := os.Stat(filepath.Join(Root(t), "cmd/trtship/testdata/script", m[2]+".txtar")); err != nil {
				t.Errorf("docs/security.md names %s: %v", m[0], err)
			}
		}
	}
	for text, want := range map[string]int{
		"## What is guarded\n- a\n  b\n- c\n\n## What is not guarded\n- d\n": 2,
		"## What is guarded\n| child | t |\n| --- | --- |\n| x | y |\n":      1,
	} {
		if got := guards(text); len(got) != want {
			t.Errorf("%q has the guards %q", text, got)
		}
	}
}

func TestEveryRuleThatGosecIsLetOffHasAReason(t *testing.T) {
	f, err := os.Open(filepath.Join(Root(t), ".github", "gosec.rules"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // read only
	rules := 0
	for scan := bufio.NewScanner(f); scan.Scan(); {
		line := scan.Text()
		if line == "" || line[0] == '#' {
			continue
		}
		rules++
		fields := strings.Fields(line)
		if len(fields) < 6 || !regexp.MustCompile(`^G\d{3}$`).MatchString(fields[0]) {
			t.Errorf("%q is no rule, path and reason", line)
			continue
		}
		if _, err := regexp.Compile(fields[1]); fields[1] != "*" && err != nil {
			t.Errorf("%q: %v", line, err)
		}
	}
	if rules == 0 {
		t.Error("there are no rules")
	}
}

// leaky are what a package imports whose tests can leave something.
var leaky = []string{
	modulePath + "/internal/proc", modulePath + "/internal/ort", modulePath + "/internal/worker", modulePath + "/internal/triton/server",
	"net/http/httptest", "google.golang.org/grpc", "os/exec",
}

// TestPackagesWithGoroutinesOrProcessesLookForLeaks demands Main of every
// package with tests that starts goroutines, or imports what starts processes.
func TestPackagesWithGoroutinesOrProcessesLookForLeaks(t *testing.T) {
	tests, looks, why := map[string]bool{}, map[string]bool{}, map[string]string{}
	eachGoFile(t, func(name string, text []byte) {
		dir := path.Dir(name)
		f, err := parser.ParseFile(token.NewFileSet(), name, text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		test := strings.HasSuffix(name, "_test.go")
		tests[dir] = tests[dir] || test
		for _, imp := range f.Imports {
			if p := strings.Trim(imp.Path.Value, `"`); slices.Contains(leaky, p) {
				why[dir] = "imports " + p
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if _, ok := n.(*ast.GoStmt); ok {
				why[dir] = "starts goroutines"
			}
			if sel, ok := n.(*ast.SelectorExpr); ok && test && (sel.Sel.Name == "Main" || sel.Sel.Name == "Checked") {
				if x, ok := sel.X.(*ast.Ident); ok && x.Name == "testkit" {
					looks[dir] = true
				}
			}
			return true
		})
	})
	checked := 0
	for dir, reason := range why {
		if !tests[dir] || dir == "internal/testkit" || strings.HasPrefix(dir, "bench/") && dir != "bench/loadgen" {
			continue
		}
		checked++
		if !looks[dir] {
			t.Errorf("%s %s: its TestMain must call testkit.Main", dir, reason)
		}
	}
	if checked < 25 {
		t.Errorf("only %d packages were found", checked)
	}
}

func TestMain(m *testing.M) { Main(m) }

// limited is what a composite literal of options for a child must set.
var limited = map[string][]string{
	"ort.Options":    {"MemoryMB"},
	"worker.Options": {"Timeout"},
	"server.Options": {"ReadyTimeout"},
}

// TestOptionsOfChildrenSetTheirLimits demands the limits wherever the program
// writes down the options of a child.
func TestOptionsOfChildrenSetTheirLimits(t *testing.T) {
	found := map[string]int{}
	eachGoFile(t, func(name string, text []byte) {
		dir := path.Dir(name)
		if strings.HasSuffix(name, "_test.go") || forTests(dir) || strings.HasPrefix(dir, "bench") {
			return
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, name, text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			lit, ok := n.(*ast.CompositeLit)
			if !ok || len(lit.Elts) == 0 {
				return true
			}
			sel, ok := lit.Type.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			x, ok := sel.X.(*ast.Ident)
			if !ok {
				return true
			}
			kind := x.Name + "." + sel.Sel.Name
			for _, field := range limited[kind] {
				found[kind]++
				if !sets(lit, field) {
					t.Errorf("%s: %s without %s", fset.Position(lit.Pos()), kind, field)
				}
			}
			return true
		})
	})
	for kind := range limited {
		if found[kind] == 0 {
			t.Errorf("nobody writes down %s; is the pattern broken?", kind)
		}
	}
}

// sets reports whether a literal names a field.
func sets(lit *ast.CompositeLit, field string) bool {
	for _, e := range lit.Elts {
		if kv, ok := e.(*ast.KeyValueExpr); ok {
			if id, ok := kv.Key.(*ast.Ident); ok && id.Name == field {
				return true
			}
		}
	}
	return false
}
