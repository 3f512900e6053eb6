package github_test

import (
	"archive/zip"
	"bytes"
	"context"
	"path/filepath"
	"testing"

	"github.com/trtship/trtship/internal/github"
	"github.com/trtship/trtship/internal/provenance"
	"github.com/trtship/trtship/report/reporttest"
)

func TestTheStatementOfProvenanceIsUploadedWithTheReport(t *testing.T) {
	s := newStep(t, reporttest.Full())
	plain := s.pipeline
	s.pipeline = func(ctx context.Context, req github.Request) (github.Outcome, error) {
		out, err := plain(ctx, req)
		write(t, filepath.Join(out.Dir, provenance.FileName), "{}\n")
		return out, err
	}
	if code, err := s.run(t); err != nil || code != 0 {
		t.Fatalf("code %d, %v\n%s", code, err, s.out.String())
	}
	b := s.results.Stored["trtship-digits-gate-report"]
	z, err := zip.NewReader(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, f := range z.File {
		found = found || f.Name == provenance.FileName
	}
	if !found {
		t.Errorf("it is not among the %d files", len(z.File))
	}
}
