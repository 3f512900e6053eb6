package report

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
)

// Verdict is the outcome of a check, a stage or a run.
type Verdict string

// The verdicts. Only Pass is good; Skip alone is neutral.
const (
	Pass         Verdict = "pass"
	Fail         Verdict = "fail"         // measured, does not hold
	Missing      Verdict = "missing"      // asked for, could not run here
	Broken       Verdict = "broken"       // crashed, timed out, corrupt
	Inconclusive Verdict = "inconclusive" // measured, too noisy to say
	Skip         Verdict = "skip"         // turned off in the configuration
	NotAsked     Verdict = "not-asked"    // cut off by --until, --from or --only
)

// Verdicts lists all verdicts, best first.
var Verdicts = []Verdict{Pass, Skip, NotAsked, Inconclusive, Missing, Fail, Broken}

// Good reports whether v lets a change through by itself.
func (v Verdict) Good() bool { return v == Pass || v == Skip }

// Worst returns the worst of two verdicts.
func Worst(a, b Verdict) Verdict {
	if rank(b) > rank(a) {
		return b
	}
	return a
}

func rank(v Verdict) int {
	for i, o := range Verdicts {
		if o == v {
			return i
		}
	}
	return len(Verdicts) // unknown verdicts are never good
}

// Of returns the worst verdict of checks. A check that was turned off is neutral
// beside one that passed; no check at all is Broken, for no evidence is never a
// pass.
func Of(checks []Check) Verdict {
	if len(checks) == 0 {
		return Broken
	}
	worst, passed := checks[0].Verdict, false
	for _, c := range checks {
		worst = Worst(worst, c.Verdict)
		passed = passed || c.Verdict == Pass
	}
	if worst == Skip && passed {
		return Pass
	}
	return worst
}

// Number is a float64 that survives JSON when it is not finite.
type Number float64

// MarshalJSON writes a JSON number, or "NaN", "+Inf" or "-Inf" in quotes.
func (n Number) MarshalJSON() ([]byte, error) {
	f := float64(n)
	switch {
	case math.IsNaN(f):
		return []byte(`"NaN"`), nil
	case math.IsInf(f, 1):
		return []byte(`"+Inf"`), nil
	case math.IsInf(f, -1):
		return []byte(`"-Inf"`), nil
	}
	return json.Marshal(f)
}

// UnmarshalJSON reads what MarshalJSON writes.
func (n *Number) UnmarshalJSON(b []byte) error {
	// The decoder has checked the syntax: what does not begin with a quote, a
	// letter or a bracket is a number.
	if len(b) > 0 && (b[0] == '-' || b[0] >= '0' && b[0] <= '9') {
		f, err := strconv.ParseFloat(string(b), 64)
		if err != nil {
			return fmt.Errorf("number %s: %w", b, err)
		}
		*n = Number(f)
		return nil
	}
	if string(b) == "null" {
		return nil // as encoding/json treats it
	}
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return fmt.Errorf("number %s: want a JSON number or \"NaN\", \"+Inf\", \"-Inf\"", b)
	}
	switch s {
	case "NaN", "+Inf", "-Inf":
		f, _ := strconv.ParseFloat(s, 64)
		*n = Number(f)
		return nil
	}
	return fmt.Errorf("number %q: want a JSON number or \"NaN\", \"+Inf\", \"-Inf\"", s)
}
