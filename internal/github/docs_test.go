package github_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/trtship/trtship/internal/github"
	"github.com/trtship/trtship/internal/testkit"
)

func TestTheActionsDocumentIsCurrent(t *testing.T) {
	path := filepath.Join(testkit.Root(t), "docs", "action.md")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), "<!-- inputs -->\n")
	_, after, ok2 := strings.Cut(rest, "<!-- /inputs -->")
	if !ok || !ok2 {
		t.Fatal("docs/action.md has no place for the inputs")
	}
	var b bytes.Buffer
	if err := github.WriteInputTable(&b); err != nil {
		t.Fatal(err)
	}
	testkit.Golden(t, path, []byte(before+"<!-- inputs -->\n"+b.String()+"<!-- /inputs -->"+after))
}
