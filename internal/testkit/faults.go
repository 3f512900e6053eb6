package testkit

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"testing"

	"github.com/gofrs/flock"
)

// FaultRow is one line of docs/verification/faults.json.
type FaultRow struct {
	Kind     string `json:"kind"` // e.g. "kill at a failpoint", "file operation fails", "case", "fuzz"
	Test     string `json:"test"`
	Tried    int64  `json:"tried"`
	Failures int64  `json:"failures"`
	Detail   string `json:"detail,omitempty"`
}

// faultsFile is the whole document.
type faultsFile struct {
	Note   string           `json:"note"`
	Totals map[string]int64 `json:"totals"`
	Rows   []FaultRow       `json:"rows"`
}

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
	path := filepath.Join(Root(t), "docs", "verification", "faults.json")
	if err := mergeFaults(path, row); err != nil {
		t.Errorf("record faults: %v", err)
	}
}

// mergeFaults replaces the row of one test and kind; test binaries of several
// packages write at once.
func mergeFaults(path string, row FaultRow) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	l := flock.New(filepath.Join(os.TempDir(), "trtship-faults.lock"))
	if err := l.Lock(); err != nil {
		return err
	}
	defer l.Close() //nolint:errcheck // a lock
	var doc faultsFile
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &doc)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	rows := []FaultRow{row}
	for _, r := range doc.Rows {
		if r.Test != row.Test || r.Kind != row.Kind {
			rows = append(rows, r)
		}
	}
	sort.Slice(rows, func(i, j int) bool {
		if rows[i].Kind != rows[j].Kind {
			return rows[i].Kind < rows[j].Kind
		}
		return rows[i].Test < rows[j].Test
	})
	doc.Note = "Written by the tests that try them (make faults). A failure is a fault after which the next run did not complete, or something half-written was visible."
	doc.Rows, doc.Totals = rows, map[string]int64{}
	for _, r := range rows {
		doc.Totals[r.Kind] += r.Tried
		doc.Totals["failures"] += r.Failures
	}
	out, err := json.MarshalIndent(doc, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(out, '\n'), 0o644)
}
