package gate_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/trtship/trtship/internal/gate"
	"github.com/trtship/trtship/report"
	"github.com/trtship/trtship/report/reporttest"
)

// lognormal makes n samples around m, each depending on the one before by rho.
func lognormal(seed uint64, n int, m, sigma, rho float64) []float64 {
	rng := rand.New(rand.NewPCG(seed, 1))
	out := make([]float64, n)
	z := rng.NormFloat64()
	for i := range out {
		z = rho*z + math.Sqrt(1-rho*rho)*rng.NormFloat64()
		out[i] = m * math.Exp(sigma*z)
	}
	return out
}

func TestAChangeIsCertainOnlyBeyondTheMargin(t *testing.T) {
	base := lognormal(1, 400, 1, 0.02, 0)
	for name, c := range map[string]struct {
		head   []float64
		margin float64
		want   report.Change
	}{
		"ten percent slower":         {lognormal(2, 400, 1.10, 0.02, 0), 0.03, report.Regressed},
		"ten percent faster":         {lognormal(3, 400, 0.90, 0.02, 0), 0.03, report.Improved},
		"the same":                   {lognormal(4, 400, 1.00, 0.02, 0), 0.03, report.Same},
		"slower by about the margin": {lognormal(5, 400, 1.03, 0.02, 0), 0.03, report.Unclear},
		"slower, and allowed":        {lognormal(6, 400, 1.10, 0.02, 0), 0.20, report.Same},
		"too noisy":                  {lognormal(7, 60, 1.00, 0.5, 0), 0.03, report.Unclear},
		"too few":                    {lognormal(8, 8, 1.5, 0.01, 0), 0.03, report.Unclear},
		"certainly no slower, faster or the same": {lognormal(9, 400, 0.97, 0.02, 0), 0.03, report.Same},
		"none":                      {nil, 0.03, report.Unclear},
		"a NaN among them":          {append([]float64{math.NaN()}, base...), 0.03, report.Unclear},
		"a time of zero among them": {append([]float64{0}, base...), 0.03, report.Unclear},
		"constant samples":          {constant(400, 1), 0.03, report.Same},
	} {
		t.Run(name, func(t *testing.T) {
			d := gate.Compare(base, c.head, c.margin, 0.95)
			if d.Change != c.want {
				t.Errorf("%s (ratio %s, %s to %s, %s), want %s", d.Change, num(d.Ratio), num(d.Low), num(d.High), d.Detail, c.want)
			}
			if d.Low != nil && !(*d.Low <= *d.Ratio && *d.Ratio <= *d.High) {
				t.Errorf("the ratio %s is outside of its interval %s to %s", num(d.Ratio), num(d.Low), num(d.High))
			}
		})
	}
}

func constant(n int, v float64) []float64 {
	out := make([]float64, n)
	for i := range out {
		out[i] = v
	}
	return out
}

func num(n *report.Number) string {
	if n == nil {
		return "none"
	}
	b, _ := n.MarshalJSON()
	return string(b)
}

// The interval must hold the true ratio about as often as it says, also where
// samples depend on each other: that is what thinning is for.
func TestTheIntervalCoversTheTrueRatio(t *testing.T) {
	for name, rho := range map[string]float64{"independent samples": 0, "dependent samples": 0.8} {
		t.Run(name, func(t *testing.T) {
			const runs = 400
			held, judged := 0, 0
			for i := range uint64(runs) {
				d := gate.Compare(lognormal(2*i+1000, 400, 1, 0.05, rho), lognormal(2*i+1001, 400, 1.07, 0.05, rho), 0.01, 0.95)
				if d.Low == nil {
					continue
				}
				judged++
				if *d.Low <= 1.07 && 1.07 <= *d.High {
					held++
				}
			}
			if judged < runs*9/10 || float64(held) < 0.95*float64(judged) {
				t.Errorf("the interval holds the true ratio in %d of %d runs, want 95 %%", held, judged)
			}
		})
	}
}

func TestInputsOfCompareStayInOrder(t *testing.T) {
	base, head := []float64{3, 1, 2}, []float64{6, 5, 4}
	gate.Compare(base, head, 0.1, 0.95)
	if base[0] != 3 || head[0] != 6 {
		t.Error("Compare reordered its arguments")
	}
}

func TestABudgetForTheMedianIsItsMargin(t *testing.T) {
	head, base := reporttest.Full(), reporttest.Full()
	for k := range head.Benchmark.Rows[1].Samples {
		head.Benchmark.Rows[1].Samples[k] *= 1.10
	}
	if g := gate.Judge(head, base, gate.Options{}); g.ExitCode != 12 {
		t.Fatalf("exit %d without the budget, want 12", g.ExitCode)
	}
	head.Settings.Budgets = append(head.Settings.Budgets, report.Budget{Metric: "latency_p50_ms", Where: map[string]string{"precision": "fp16"}, MaxRise: reporttest.Number(0.2)})
	if g := gate.Judge(head, base, gate.Options{}); g.ExitCode != 0 {
		t.Errorf("exit %d with a budget of 20 %%, want 0: %+v", g.ExitCode, g.Reasons)
	}
}

func TestTheVerdictDoesNotDependOnTheOrderOfMaps(t *testing.T) {
	var first []byte
	for range 20 {
		b, err := report.Encode(gate.Judge(reporttest.Full(), reporttest.Cases()[2].Baseline, gate.Options{}))
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = b
		}
		if string(b) != string(first) {
			t.Fatal("two judgements of the same files differ")
		}
	}
}

func TestAProcessorIsJudgedWhereABudgetAsksForIt(t *testing.T) {
	head, base := reporttest.Full(), reporttest.Full()
	for k := range head.Benchmark.Rows[2].Samples {
		head.Benchmark.Rows[2].Samples[k] *= 1.5
	}
	g := gate.Judge(head, base, gate.Options{})
	if g.ExitCode != 0 || g.Deltas[0].Change != report.Regressed {
		t.Errorf("exit %d, worst %s; want 0, and the regression shown", g.ExitCode, g.Deltas[0].Change)
	}
	head.Settings.Budgets = append(head.Settings.Budgets, report.Budget{Metric: "latency_p50_ms", Where: map[string]string{"backend": "onnxruntime"}, MaxRise: reporttest.Number(0.2)})
	if g := gate.Judge(head, base, gate.Options{}); g.ExitCode != 12 {
		t.Errorf("exit %d, want 12", g.ExitCode)
	}
}
