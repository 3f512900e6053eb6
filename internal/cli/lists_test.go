package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/store"
	"github.com/trtship/trtship/report"
)

func TestListsInJSONAreNeverNull(t *testing.T) {
	type inner struct {
		Names []string `json:"names"`
	}
	type whole struct {
		inner
		List    []inner          `json:"list"`
		Map     map[string]inner `json:"map"`
		Any     any              `json:"any"`
		None    any              `json:"none"`
		To      *inner           `json:"to"`
		Nil     *inner           `json:"nil"`
		Pair    [1][]int         `json:"pair"`
		Omitted []string         `json:"omitted,omitempty"`
		Number  report.Number    `json:"number"`
		At      time.Time        `json:"at"`
		hidden  []string
	}
	in := whole{List: []inner{{}}, Any: map[string]any{"deep": []inner{{}}}, To: &inner{}, hidden: nil}
	b, err := json.Marshal(report.WithLists(in))
	if err != nil {
		t.Fatal(err)
	}
	want := `{"names":[],"list":[{"names":[]}],"map":{},"any":{"deep":[{"names":[]}]},"none":null,"to":{"names":[]},"nil":null,"pair":[[]],"number":0,"at":"0001-01-01T00:00:00Z"}`
	if diff := cmp.Diff(want, string(b)); diff != "" {
		t.Error(diff)
	}
	if in.List[0].Names != nil || in.To.Names != nil {
		t.Error("what was given was changed")
	}
	for _, v := range []any{
		nil, []string(nil),
		store.Collected{},
		store.Verified{},
		store.Item{},
		artifact.Record{},
		listedEnv{},
		[]listed(nil),
		listed{},
		diagnosis{},
		report.Report{},
		report.Gate{},
		report.Validation{},
		report.Benchmark{},
		report.Optimization{},
		report.Inspection{},
		report.Tensor{},
	} {
		b, err := json.Marshal(report.WithLists(v))
		if err != nil {
			t.Fatal(err)
		}
		if v != nil && strings.Contains(strings.ReplaceAll(string(b), `"Err":null`, ""), "null") {
			t.Errorf("%T is written as %s", v, b)
		}
	}
}

// TestEveryCommandPrintsJSONInOneWay holds that no command goes around the
// function that fills lists.
func TestEveryCommandPrintsJSONInOneWay(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	calls := 0
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if sel.Sel.Name == "printJSON" {
				calls++
			}
			x, ok := sel.X.(*ast.Ident)
			if ok && x.Name == "json" && strings.HasPrefix(sel.Sel.Name, "NewEncoder") && file != "exit.go" {
				t.Errorf("%s writes JSON with json.%s; use printJSON", file, sel.Sel.Name)
			}
			return true
		})
	}
	if calls < 20 {
		t.Errorf("only %d calls of printJSON were found", calls)
	}
}

func TestCommandsWithNothingToSayPrintEmptyLists(t *testing.T) {
	dir := t.TempDir()
	for args, want := range map[string]string{
		"artifacts gc --json":     `"artifacts": []`,
		"artifacts ls --json":     "[]\n",
		"artifacts verify --json": `"problems": []`,
	} {
		var out, errs bytes.Buffer
		code := Main(context.Background(), append(strings.Fields(args), "--store", filepath.Join(dir, "store")), IO{
			Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs, Getenv: func(string) string { return "" }, Environ: os.Environ,
		})
		if code != 0 || !strings.Contains(out.String(), want) || strings.Contains(out.String(), "null") {
			t.Errorf("%s: exit %d, %s%s", args, code, out.String(), errs.String())
		}
	}
}
