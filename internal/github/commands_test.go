package github_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"github.com/trtship/trtship/internal/github"
	"github.com/trtship/trtship/internal/testkit"
)

func TestTextNeverBecomesAnotherCommand(t *testing.T) {
	var b bytes.Buffer
	c := github.NewConsole(&b)
	const evil = "x\n::set-output name=a::b\r\n::add-mask::c%0A,y:z"
	c.Annotate([]github.Annotation{{Level: "error", File: evil, Line: 3, Title: evil, Text: evil}})
	c.Warning("%s", evil)
	c.Notice("%s", evil)
	c.Error("%s", evil)
	c.Print("%s\n##[error]d\nplain", evil)
	end := c.Group(evil)
	end()
	for _, l := range strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n") {
		if strings.HasPrefix(l, "::set-output") || strings.HasPrefix(l, "::add-mask") || strings.HasPrefix(strings.TrimSpace(l), "##[") || strings.Contains(l, "\r") {
			t.Errorf("line %q is a command", l)
		}
	}
	if !strings.Contains(b.String(), "::error file=x%0A%3A%3Aset-output name=a%3A%3Bb") && !strings.Contains(b.String(), "::error file=x%0A%3A%3Aset-output name=a%3A%3Ab") {
		t.Errorf("annotation is %q", b.String())
	}
}

func TestAnnotationsStayWithinTheLimitAndSayWhatIsLeftOut(t *testing.T) {
	var list []github.Annotation
	for i := range 25 {
		list = append(list, github.Annotation{Level: "error", Text: fmt.Sprint("e", i)}, github.Annotation{Level: "notice", Text: strings.Repeat("n", 9000)})
	}
	var b bytes.Buffer
	github.NewConsole(&b).Annotate(list)
	if n := strings.Count(b.String(), "::error"); n != 10 {
		t.Errorf("%d errors, want 10", n)
	}
	if !strings.Contains(b.String(), "::error::e8\n") || strings.Contains(b.String(), "e9\n") || !strings.Contains(b.String(), "::error::and 16 more, all in the report\n") {
		t.Errorf("%s", b.String())
	}
	for _, l := range strings.Split(b.String(), "\n") {
		if len(l) > 4096 {
			t.Errorf("a line has %d bytes", len(l))
		}
	}
	b.Reset()
	github.NewConsole(&b).Annotate(list[:20])
	if strings.Contains(b.String(), "more") {
		t.Error("ten of a level are all shown, nothing is left out")
	}
}

func TestCommandsOfTheModelsCodeAreIgnored(t *testing.T) {
	var b bytes.Buffer
	resume, err := github.NewConsole(&b).Quiet()
	if err != nil {
		t.Fatal(err)
	}
	b.WriteString("::set-output name=x::y")
	resume()
	m := regexp.MustCompile(`(?m)^::stop-commands::(trtship_[0-9a-f]{32})\n::set-output name=x::y\n::(.*)::$`).FindStringSubmatch(b.String())
	if m == nil || m[1] != m[2] {
		t.Errorf("%q", b.String())
	}
}

func TestOutputsCannotInjectOthers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "output")
	evil := "a\n_GitHubActionsFileCommandDelimeter_\nverdict<<X\npass\nX\nb"
	if err := github.WriteOutputs(path, map[string]string{"report": evil, "verdict": "fail", "unknown": "x"}); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	got := parseOutputs(t, string(b))
	if len(got) != 2 || got["verdict"] != "fail" || got["report"] != evil {
		t.Errorf("%q", got)
	}
	if err := github.WriteOutputs(path, map[string]string{"report": strings.Repeat("x", 2<<20)}); err == nil {
		t.Error("more than a job may have was written")
	}
	if err := github.WriteOutputs("", map[string]string{"verdict": "x"}); err != nil {
		t.Errorf("outside of a workflow: %v", err)
	}
}

// parseOutputs reads the file as the runner does.
func parseOutputs(t *testing.T, text string) map[string]string {
	t.Helper()
	out := map[string]string{}
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines)-1; i++ {
		name, end, ok := strings.Cut(lines[i], "<<")
		if !ok {
			t.Fatalf("line %d %q is malformed", i, lines[i])
		}
		var value []string
		for i++; lines[i] != end; i++ {
			value = append(value, lines[i])
		}
		out[name] = strings.Join(value, "\n")
	}
	return out
}

func TestTheSummaryStaysBelowItsLimit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "summary")
	if err := os.WriteFile(path, bytes.Repeat([]byte("x"), 900<<10), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := github.WriteSummary(path, func(limit int) string { return strings.Repeat("y", limit) }); err != nil {
		t.Fatal(err)
	}
	if info, _ := os.Stat(path); info.Size() >= 1<<20 {
		t.Errorf("%d bytes, the runner drops a summary of more than 1 MiB as a whole", info.Size())
	}
	if err := github.WriteSummary(path, func(int) string { return "more" }); err == nil {
		t.Error("there was no room left")
	}
	if err := github.WriteSummary(filepath.Join(t.TempDir(), "s"), func(limit int) string { return strings.Repeat("y", limit+1) }); err == nil {
		t.Error("a text beyond its limit was written")
	}
	if err := github.WriteSummary("", nil); err != nil {
		t.Errorf("outside of a workflow: %v", err)
	}
}

func TestActionYMLIsCurrent(t *testing.T) {
	var b bytes.Buffer
	if err := github.WriteActionYML(&b, github.Image); err != nil {
		t.Fatal(err)
	}
	testkit.Golden(t, filepath.Join(testkit.Root(t), "action.yml"), b.Bytes())
	var doc struct {
		Inputs map[string]struct {
			Description string
			Default     *string
		}
		Outputs map[string]struct{ Description string }
		Runs    struct {
			Using, Image string
			Args         []string
		}
	}
	if err := yaml.Unmarshal(b.Bytes(), &doc); err != nil {
		t.Fatal(err)
	}
	if len(doc.Inputs) != len(github.Inputs) || len(doc.Outputs) != len(github.Outputs) || doc.Runs.Using != "docker" || len(doc.Runs.Args) != 1 {
		t.Errorf("%+v", doc)
	}
	for _, in := range github.Inputs {
		if got := doc.Inputs[in.Name]; got.Description == "" || got.Default == nil || *got.Default != in.Default {
			t.Errorf("input %s: %+v", in.Name, got)
		}
	}
}

func TestInputs(t *testing.T) {
	env := map[string]string{"INPUT_UNTIL": " optimize ", "INPUT_REQUIRE-BASELINE": "true", "INPUT_SET": "a=b\n\n c=d \n", "INPUT_RETENTION-DAYS": "5"}
	v, err := github.ReadInputs(func(k string) string { return env[k] })
	if err != nil {
		t.Fatal(err)
	}
	if v["until"] != "optimize" || !v.Bool("require-baseline") || v.Int("retention-days") != 5 || strings.Join(v.Lines("set"), "|") != "a=b|c=d" {
		t.Errorf("%v", v)
	}
	if v["config"] != "trtship.yaml" || v["token"] != "" || !v.Bool("comment") {
		t.Errorf("defaults: %v", v)
	}
	env = map[string]string{"INPUT_COMMENT": "yes", "INPUT_RETENTION-DAYS": "-1", "INPUT_HARDWARE": "maybe", "INPUT_UPLOAD": "report\nsecrets"}
	_, err = github.ReadInputs(func(k string) string { return env[k] })
	for _, want := range []string{"comment", "retention-days", "hardware", "secrets"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not name %s: every mistake is reported at once", err, want)
		}
	}
}

func TestTheTableOfInputsIsDocumented(t *testing.T) {
	var b bytes.Buffer
	if err := github.WriteInputTable(&b); err != nil {
		t.Fatal(err)
	}
	for _, in := range github.Inputs {
		if !strings.Contains(b.String(), "| `"+in.Name+"` |") {
			t.Errorf("%s is not in the table", in.Name)
		}
	}
	for _, out := range github.Outputs {
		if !strings.Contains(b.String(), "| `"+out.Name+"` |") {
			t.Errorf("%s is not in the table", out.Name)
		}
	}
	for _, l := range strings.Split(strings.TrimSpace(b.String()), "\n") {
		if l != "" && !strings.HasPrefix(l, "|") {
			t.Errorf("line %q", l)
		}
	}
}
