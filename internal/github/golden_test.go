package github_test

import (
	"crypto/sha256"
	"encoding/hex"
	"path/filepath"
	"testing"

	"github.com/trtship/trtship/internal/gate"
	"github.com/trtship/trtship/internal/github"
	"github.com/trtship/trtship/internal/testkit"
	"github.com/trtship/trtship/report"
	"github.com/trtship/trtship/report/reporttest"
)

// bigGolden is above which a golden file is kept as its digest.
const bigGolden = 128 << 10

func TestGoldenOfWhatPeopleSeeInEverySituation(t *testing.T) {
	for _, c := range reporttest.Cases() {
		t.Run(c.Name, func(t *testing.T) {
			v := report.View{Report: c.Report, Baseline: c.Baseline, Gate: gate.Judge(c.Report, c.Baseline, gate.Options{Source: c.Source}), Links: report.Links{
				Run: "https://github.com/owner/model/actions/runs/99", Report: "https://github.com/owner/model/actions/runs/99#artifacts", Commit: "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
			}}
			files, err := github.Renderings(v)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files,
				github.Rendering{Name: "comment.md", Data: []byte(report.Markdown(v, report.MarkdownOptions{Marker: github.Marker(c.Report.Model.Name), Limit: 60000}))},
				github.Rendering{Name: "summary.md", Data: []byte(report.Markdown(v, report.MarkdownOptions{Limit: 1<<20 - 1024}))},
				github.Rendering{Name: "terminal.txt", Data: []byte(report.Text(v, report.TextOptions{Width: 160}))})
			for _, f := range files {
				if f.Name == "report.md" {
					continue // the summary without a limit
				}
				path := filepath.Join(testkit.Root(t), "testdata", "report", c.Name, f.Name)
				if len(f.Data) > bigGolden {
					sum := sha256.Sum256(f.Data)
					f.Data = []byte(hex.EncodeToString(sum[:]) + "\n")
					path += ".sha256"
				}
				testkit.Golden(t, path, f.Data)
			}
		})
	}
}
