package testkit

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strings"
	"testing"

	"github.com/gofrs/flock"
)

// Kinds of rows that docs/verification/faults.json sums up on their own: all
// others are faults that were injected.
const (
	KindCase    = "case"
	KindFuzz    = "fuzz: executions"
	KindPlanted = "fuzz: planted bug"
)

// FaultRow is one line of docs/verification/faults.json.
type FaultRow struct {
	Kind     string `json:"kind"` // e.g. "kill at a failpoint", "file operation fails"
	Package  string `json:"package"`
	Test     string `json:"test"`
	About    string `json:"about,omitempty"` // which case, which planted bug; part of the row's identity
	Tried    int64  `json:"tried"`
	Failures int64  `json:"failures"`
	// New is how many inputs reached code that no seed and no kept input
	// reached; fuzzing only.
	New int64 `json:"new_interesting,omitempty"`
	// Seconds is how long the fuzzer ran; fuzzing only.
	Seconds float64 `json:"seconds,omitempty"`
	Detail  string  `json:"detail,omitempty"`
}

// faultsFile is the whole document.
type faultsFile struct {
	Note    string           `json:"note"`
	Summary FaultSummary     `json:"summary"`
	Totals  map[string]int64 `json:"totals"`
	Rows    []FaultRow       `json:"rows"`
}

// FaultSummary is what the document says on the whole.
type FaultSummary struct {
	Faults         int64  `json:"faults"`
	FaultFailures  int64  `json:"fault_failures"`
	Cases          string `json:"cases"`        // "33 of 33": folders of testdata/cases with a test of the right value that passed
	PlantedBugs    string `json:"planted_bugs"` // "20 of 20"
	FuzzTargets    int64  `json:"fuzz_targets"`
	FuzzExecutions int64  `json:"fuzz_executions"`
	FuzzFailures   int64  `json:"fuzz_failures"`
}

// packageDir is where go test started this binary, below the module's folder.
var packageDir, _ = os.Getwd()

// RecordFaults keeps how many faults of a kind a test tried. The count goes to
// docs/verification/faults.json when TRTSHIP_RECORD_FAULTS is set, as make
// faults does; a plain test run changes no file.
func RecordFaults(t testing.TB, row FaultRow) {
	t.Helper()
	row.Test = t.Name()
	if t.Failed() {
		row.Failures = max(row.Failures, 1) // found by a subtest
	}
	t.Logf("%s: %d tried, %d failures %s", row.Kind, row.Tried, row.Failures, row.Detail)
	if os.Getenv("TRTSHIP_RECORD_FAULTS") == "" {
		return
	}
	dir, err := filepath.Rel(Root(t), packageDir)
	if err == nil {
		row.Package = filepath.ToSlash(dir)
		err = MergeFaults(Root(t), row)
	}
	if err != nil {
		t.Errorf("record faults: %v", err)
	}
}

// HoldsCase says that the test holds the right value of field failures: folders
// of testdata/cases. What becomes of the test is recorded when it ends. The
// names are written out where it is called: TestEveryCaseHasATest reads them.
func HoldsCase(t testing.TB, names ...string) {
	t.Helper()
	for _, name := range names {
		if info, err := os.Stat(filepath.Join(Root(t), "testdata", "cases", name)); err != nil || !info.IsDir() {
			t.Errorf("no case %s: %v", name, err)
		}
	}
	t.Cleanup(func() {
		if t.Skipped() {
			return
		}
		for _, name := range names {
			RecordFaults(t, FaultRow{Kind: KindCase, About: name, Tried: 1})
		}
	})
}

// MergeFaults puts rows into docs/verification/faults.json of the module in
// root. Each replaces the row of the same kind, test and subject; rows of tests
// that no longer exist go. Test binaries of several packages write at once.
func MergeFaults(root string, rows ...FaultRow) error {
	return changeFaults(root, func(FaultRow) bool { return true }, rows)
}

// KeepFaults removes the rows that keep does not want: of bugs that are planted
// no more, for example.
func KeepFaults(root string, keep func(FaultRow) bool) error {
	return changeFaults(root, keep, nil)
}

// RecordedFault is the row that merging row would replace, if there is one.
func RecordedFault(root string, row FaultRow) (FaultRow, bool, error) {
	doc, err := readFaults(root)
	if err != nil {
		return FaultRow{}, false, err
	}
	for _, old := range doc.Rows {
		if replaced(old, []FaultRow{row}) {
			return old, true, nil
		}
	}
	return FaultRow{}, false, nil
}

// readFaults reads the file, which may be absent.
func readFaults(root string) (doc faultsFile, err error) {
	text, err := os.ReadFile(faultsPath(root))
	if errors.Is(err, fs.ErrNotExist) {
		return doc, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &doc)
	}
	return doc, err
}

func faultsPath(root string) string {
	return filepath.Join(root, "docs", "verification", "faults.json")
}

func changeFaults(root string, keep func(FaultRow) bool, rows []FaultRow) error {
	path := faultsPath(root)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	l := flock.New(filepath.Join(os.TempDir(), "trtship-faults.lock"))
	if err := l.Lock(); err != nil {
		return err
	}
	defer l.Close() //nolint:errcheck // a lock
	doc, err := readFaults(root)
	if err != nil {
		return err
	}
	doc.Rows = slices.DeleteFunc(doc.Rows, func(r FaultRow) bool { return !keep(r) })
	if err := doc.merge(root, rows); err != nil {
		return err
	}
	out, err := json.MarshalIndent(doc, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(out, '\n'), 0o644)
}

func (doc *faultsFile) merge(root string, rows []FaultRow) error {
	for _, old := range doc.Rows {
		if old.Package == "" || !hasTest(root, old.Package, old.Test) || replaced(old, rows) {
			continue
		}
		rows = append(rows, old)
	}
	key := func(r FaultRow) string { return strings.Join([]string{r.Kind, r.About, r.Package, r.Test}, "\x00") }
	sort.Slice(rows, func(i, j int) bool { return key(rows[i]) < key(rows[j]) })
	cases, err := Cases(root)
	if err != nil {
		return err
	}
	doc.Note = "Written by the tests that try them (make faults) and by the fuzzer (make fuzz). A failure of a fault: the next run did not complete, something half-written was visible, or an answer was taken that was none."
	doc.Rows, doc.Totals, doc.Summary = rows, map[string]int64{}, FaultSummary{}
	held, planted, found := map[string]bool{}, int64(0), int64(0)
	for _, r := range rows {
		switch r.Kind {
		case KindCase:
			was, seen := held[r.About]
			held[r.About] = r.Failures == 0 && (was || !seen)
		case KindFuzz:
			doc.Summary.FuzzTargets++
			doc.Summary.FuzzExecutions += r.Tried
			doc.Summary.FuzzFailures += r.Failures
		case KindPlanted:
			planted++
			if r.Failures == 0 {
				found++
			}
		default:
			doc.Totals[r.Kind] += r.Tried
			doc.Summary.Faults += r.Tried
			doc.Summary.FaultFailures += r.Failures
		}
	}
	right := 0
	for _, c := range cases {
		if held[c] {
			right++
		}
	}
	doc.Summary.Cases = fmt.Sprintf("%d of %d", right, len(cases))
	doc.Summary.PlantedBugs = fmt.Sprintf("%d of %d", found, planted)
	return nil
}

func replaced(old FaultRow, rows []FaultRow) bool {
	for _, r := range rows {
		if r.Kind == old.Kind && r.Package == old.Package && r.Test == old.Test && r.About == old.About {
			return true
		}
	}
	return false
}

// hasTest reports whether a package still declares a test.
func hasTest(root, dir, test string) bool {
	test, _, _ = strings.Cut(test, "/")
	files, _ := filepath.Glob(filepath.Join(root, filepath.FromSlash(dir), "*_test.go"))
	declared := regexp.MustCompile(`(?m)^func ` + regexp.QuoteMeta(test) + `\(`)
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && declared.Match(b) {
			return true
		}
	}
	return false
}

// Cases are the names of the field failures of the module in root.
func Cases(root string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(root, "testdata", "cases"))
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() && e.Name() != "__pycache__" {
			names = append(names, e.Name())
		}
	}
	return names, nil
}
