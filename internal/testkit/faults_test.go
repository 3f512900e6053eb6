package testkit_test

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/trtship/trtship/internal/testkit"
)

// TestEveryCaseHasATest reads which cases the tests of the module say they
// hold; make faults records how those tests ended.
func TestEveryCaseHasATest(t *testing.T) {
	root := testkit.Root(t)
	have, err := testkit.Cases(root)
	if err != nil || len(have) < 33 {
		t.Fatalf("%d cases, %v", len(have), err)
	}
	held := map[string]bool{}
	err = filepath.WalkDir(root, func(path string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() && path != root && (strings.HasPrefix(e.Name(), ".") || e.Name() == "testdata" || e.Name() == "coverage") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err == nil {
			casesOf(t, path, file, held)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range have {
		if !held[name] {
			t.Errorf("no test says that it holds %s: call testkit.HoldsCase in the one that checks its right value", name)
		}
	}
	for name := range held {
		if !slices.Contains(have, name) {
			t.Errorf("%s is no case", name)
		}
	}
}

func casesOf(t *testing.T, path string, file *ast.File, held map[string]bool) {
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		if s, ok := call.Fun.(*ast.SelectorExpr); !ok || s.Sel.Name != "HoldsCase" {
			return true
		}
		for _, arg := range call.Args[1:] {
			lit, ok := arg.(*ast.BasicLit)
			if !ok {
				t.Errorf("%s: HoldsCase needs names that are written out", path)
				continue
			}
			name, err := strconv.Unquote(lit.Value)
			if err != nil {
				t.Error(err)
			}
			held[name] = true
		}
		return true
	})
}

func TestRowsAreReplacedAndKept(t *testing.T) {
	root := t.TempDir()
	for path, text := range map[string]string{
		"a/a_test.go":               "package a\n\nfunc TestOne(t *testing.T) {}\n\nfunc FuzzX(f *testing.F) {}\n",
		"testdata/cases/c01/x.onnx": "", "testdata/cases/c02/x.onnx": "",
	} {
		full := filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(full, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range []testkit.FaultRow{
		{Kind: "kill", Package: "a", Test: "TestOne", Tried: 3, Failures: 1},
		{Kind: "kill", Package: "a", Test: "TestOne", Tried: 5},
		{Kind: "kill", Package: "a", Test: "TestGone", Tried: 90},
		{Kind: "slow", Package: "a", Test: "TestOne/sub", Tried: 7, Failures: 2},
		{Kind: testkit.KindCase, Package: "a", Test: "TestOne", About: "c01", Tried: 1},
		{Kind: testkit.KindCase, Package: "a", Test: "TestOne", About: "c02", Tried: 1, Failures: 1},
		{Kind: testkit.KindCase, Package: "a", Test: "FuzzX", About: "c02", Tried: 1},
		{Kind: testkit.KindFuzz, Package: "a", Test: "FuzzX", Tried: 1000, New: 4},
		{Kind: testkit.KindPlanted, Package: "a", Test: "FuzzX", About: "forgets a sign", Tried: 10},
		{Kind: testkit.KindPlanted, Package: "a", Test: "FuzzX", About: "forgets a bound", Tried: 10, Failures: 1},
	} {
		if err := testkit.MergeFaults(root, r); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(filepath.Join(root, "docs", "verification", "faults.json"))
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Summary testkit.FaultSummary
		Totals  map[string]int64
		Rows    []testkit.FaultRow
	}
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	want := testkit.FaultSummary{Faults: 12, FaultFailures: 2, Cases: "1 of 2", PlantedBugs: "1 of 2", FuzzTargets: 1, FuzzExecutions: 1000}
	if d := cmp.Diff(want, got.Summary); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(map[string]int64{"kill": 5, "slow": 7}, got.Totals); d != "" {
		t.Error(d)
	}
	if len(got.Rows) != 8 {
		t.Errorf("%d rows, want 8: the one of a test that is gone goes", len(got.Rows))
	}
	old, found, err := testkit.RecordedFault(root, testkit.FaultRow{Kind: testkit.KindFuzz, Package: "a", Test: "FuzzX"})
	if err != nil || !found || old.Tried != 1000 {
		t.Errorf("the row that would be replaced is %+v, %v, %v; want 1000 executions", old, found, err)
	}
	if old, found, err := testkit.RecordedFault(root, testkit.FaultRow{Kind: testkit.KindPlanted, Package: "a", Test: "FuzzX"}); err != nil || found {
		t.Errorf("%+v, %v would be replaced, want nothing: its subject is another", old, err)
	}
}
