package lint_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/trtship/trtship/internal/triton/lint"
	"github.com/trtship/trtship/internal/triton/pbtxt"
)

var two = []lint.Finding{
	{Rule: "text/unknown-field", Severity: lint.Error, Decider: lint.Core, Model: "m", File: "m/config.pbtxt", Pos: pbtxt.Pos{Line: 7, Column: 1}, Text: "no field \"a,b\"\n100%", Hint: "did you mean c"},
	{Rule: "layout/no-config", Severity: lint.Warning, Decider: lint.Ours, Model: "n", File: "n", Text: "there is none"},
}

func TestText(t *testing.T) {
	want := "m/config.pbtxt:7:1: error: no field \"a,b\"\n100% (did you mean c) [text/unknown-field]\nn: warning: there is none [layout/no-config]\n1 errors, 1 warnings\n"
	if got := lint.Text(two); got != want {
		t.Errorf("%q", got)
	}
}

func TestAnnotationsAreEscaped(t *testing.T) {
	want := "::error file=models/m/config.pbtxt,line=7,col=1,title=text/unknown-field::no field \"a,b\"%0A100%25 (did you mean c)\n::warning file=models/n,title=layout/no-config::there is none\n"
	if got := lint.Annotations(two, "models/"); got != want {
		t.Errorf("%s", got)
	}
	if got := lint.Annotations(two[1:], ""); !strings.Contains(got, "file=n,") {
		t.Errorf("%s", got)
	}
}

func TestJSON(t *testing.T) {
	b, err := lint.JSON(two)
	if err != nil {
		t.Fatal(err)
	}
	var d lint.Document
	if err := json.Unmarshal(b, &d); err != nil || d.Format != lint.DocumentFormat || d.Errors != 1 || d.Warnings != 1 || d.Findings[0].Pos.Line != 7 {
		t.Errorf("%s %v", b, err)
	}
	if strings.Count(string(b), `"position"`) != 1 {
		t.Errorf("a finding without a line has a position: %s", b)
	}
	if b, _ := lint.JSON(nil); !strings.Contains(string(b), `"findings": []`) {
		t.Errorf("%s", b)
	}
}

func TestSARIF(t *testing.T) {
	b, err := lint.SARIF(two, "1.2.3", "models")
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Version string
		Runs    []struct {
			Tool struct {
				Driver struct {
					Rules []struct{ ID string }
				}
			}
			Results []struct {
				RuleID, Level string
				Locations     []struct {
					PhysicalLocation struct {
						ArtifactLocation struct{ URI string }
						Region           *struct{ StartLine int }
					}
				}
			}
		}
	}
	if err := json.Unmarshal(b, &d); err != nil {
		t.Fatal(err)
	}
	r := d.Runs[0].Results
	if d.Version != "2.1.0" || len(d.Runs[0].Tool.Driver.Rules) != len(lint.Rules) || r[0].Locations[0].PhysicalLocation.ArtifactLocation.URI != "models/m/config.pbtxt" ||
		r[0].Locations[0].PhysicalLocation.Region.StartLine != 7 || r[1].Locations[0].PhysicalLocation.Region != nil || r[1].Level != "warning" {
		t.Errorf("%s", b)
	}
}

func TestAMistakeThatIsMadeAMillionTimesIsShownFiftyTimes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.pbtxt")
	text := "backend: \"onnxruntime\"\nmax_batch_size: 4\n" + strings.Repeat("nonsense: 1\n", 100_000)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	found, err := lint.File(path, lint.Options{})
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for _, f := range found {
		if f.Rule != "text/unknown-field" {
			continue
		}
		if count++; count == 50 && !strings.Contains(f.Text, "and 99950 more of this kind") {
			t.Errorf("the last one says %q", f.Text)
		}
	}
	if count != 50 {
		t.Errorf("%d are shown, want 50; the first is %+v", count, found[0])
	}
}
