package gate_test

import (
	"testing"

	"github.com/trtship/trtship/internal/gate"
	"github.com/trtship/trtship/report/reporttest"
)

func TestEverySituationGetsItsVerdictAndExitCode(t *testing.T) {
	for _, c := range reporttest.Cases() {
		t.Run(c.Name, func(t *testing.T) {
			g := gate.Judge(c.Report, c.Baseline, gate.Options{Source: c.Source})
			if g.Verdict != c.Verdict || g.ExitCode != c.ExitCode {
				t.Errorf("verdict %s, exit %d; want %s, %d", g.Verdict, g.ExitCode, c.Verdict, c.ExitCode)
				for _, r := range g.Reasons {
					t.Logf("%+v", r)
				}
			}
			for _, d := range g.Deltas {
				t.Logf("%s: %s %v %v %v %s", d.Row, d.Change, *d.Ratio, d.Low, d.High, d.Detail)
			}
		})
	}
}
