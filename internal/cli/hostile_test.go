package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/trtship/trtship/report/reporttest"
)

// goNames are what a message for people must not hold.
var goNames = regexp.MustCompile(`report\.[A-Z]|\[\]report|Go (value|struct)|: json: |github\.payload|runtime error`)

func TestGateAndCommentNameTheFileAndWhatToDo(t *testing.T) {
	dir := t.TempDir()
	good := filepath.Join(dir, "good.json")
	if err := reporttest.Full().Write(good); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe.json"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "folder.json"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"empty.json": "", "blank.json": " \n", "half.json": text[:len(text)/2], "null.json": "null", "array.json": "[]", "string.json": `"x"`, "object.json": "{}",
		"older.json": strings.Replace(text, "trtship-report/1", "trtship-report/0", 1), "newer.json": strings.Replace(text, "trtship-report/1", "trtship-report/2", 1),
		"exit.json":   regexp.MustCompile(`"exit_code": \d+`).ReplaceAllString(text, `"exit_code": 99999999999999999999`),
		"number.json": regexp.MustCompile(`"seconds": [0-9.]+`).ReplaceAllString(text, `"seconds": 1e999`),
		"stages.json": regexp.MustCompile(`"stages": \[`).ReplaceAllString(text, `"stages": "", "x": [`),
		"deep.json":   strings.Repeat("[", 100000), "twice.json": text + text, "bytes.json": "\x00\xff\xfe", "pipe.json": "", "folder.json": "", "absent.json": "",
	} {
		path := filepath.Join(dir, name)
		if name != "pipe.json" && name != "folder.json" && name != "absent.json" {
			put(t, path, text)
		}
		for _, args := range [][]string{{"gate", path}, {"gate", good, "--baseline", path}, {"comment", "--print", "--from", path}, {"comment", "--print", "--from", good, "--baseline", path}} {
			code, _, stderr := invoke(t, nil, args...)
			if code != 11 || !strings.Contains(stderr, name) || !strings.Contains(stderr, "hint: ") || strings.Count(stderr, "read report") > 1 || goNames.MatchString(stderr) {
				t.Errorf("%s: exit %d, %q; want 11, the file, a hint, and no words of Go", strings.Join(args, " "), code, stderr)
			}
		}
	}
}

func TestGateRefusesOptionsThatCouldNeverHold(t *testing.T) {
	good := filepath.Join(t.TempDir(), "good.json")
	if err := reporttest.Full().Write(good); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"--confidence", "NaN"},
		{"--confidence", "0"},
		{"--confidence", "1"},
		{"--confidence", "Inf"},
		{"--until", "nosuch"},
		{"--allow-vanished", "a["},
		{"--allow-skipped", "a["},
		{"--junit", "a["},
	} {
		if code, _, stderr := invoke(t, nil, append([]string{"gate", good}, args...)...); code != 2 {
			t.Errorf("%v: exit %d, %q; want 2", args, code, stderr)
		}
	}
}

func TestABaselineOfAnotherModelIsNotCompared(t *testing.T) {
	dir := t.TempDir()
	head, base := reporttest.Full(), reporttest.Full()
	base.Model.Name = "other"
	for name, r := range map[string]interface{ Write(path string) error }{"head.json": head, "base.json": base} {
		if err := r.Write(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	code, stdout, stderr := invoke(t, nil, "gate", filepath.Join(dir, "head.json"), "--baseline", filepath.Join(dir, "base.json"))
	if code != 13 || !strings.Contains(stdout, "model: other then, digits now") || strings.Contains(stdout, "gate/vanished") {
		t.Errorf("exit %d, %s\n%s; want 13 and both names", code, stdout, stderr)
	}
}
