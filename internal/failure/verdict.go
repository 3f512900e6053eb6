package failure

import "github.com/trtship/trtship/report"

// stageCodes is the exit code of each stage's checks that fail or are broken.
var stageCodes = map[string]Code{
	"inspect":            Model,
	"export":             Export,
	"validate":           Tolerance,
	"optimize":           Tolerance,
	"validate_optimized": Tolerance,
	"calibrate":          Calibration,
	"quantize":           Tolerance,
	"build":              Build,
	"validate_engine":    Tolerance,
	"benchmark":          Benchmark,
	"package":            Triton,
	"served":             Triton,
}

// StageCode returns the exit code of a stage, Bug for an unknown one.
func StageCode(stage string) Code {
	if c, ok := stageCodes[stage]; ok {
		return c
	}
	return Bug
}

// InRun and InGate say who asks ForCheck.
const (
	InRun  = false
	InGate = true
)

// ForCheck returns the exit code that a check of a stage with verdict v asks
// for: OK where it is good or was not asked for, the stage's code where it
// failed or broke, Missing in a run and Incomplete in the gate where it did
// not run, Incomplete where it is inconclusive.
func ForCheck(stage string, v report.Verdict, inGate bool) Code {
	switch v {
	case report.Pass, report.Skip, report.NotAsked:
		return OK
	case report.Missing:
		if inGate {
			return Incomplete
		}
		return Missing
	case report.Inconclusive:
		return Incomplete
	case report.Fail, report.Broken:
		return StageCode(stage)
	}
	return StageCode(stage)
}
