package failure

import (
	"strings"

	"github.com/trtship/trtship/report"
)

// StageCode is the row of a stage in the table of exit codes: what `run` and
// `gate` exit with when the stage's check is the first bad one.
type StageCode struct {
	Stage  string
	Fail   Code // measured, does not hold
	Broken Code // could not be found out
}

// StageCodes is the table, in the order of the stages.
var StageCodes = []StageCode{
	{"inspect", Model, Model},
	{"export", Export, Export},
	{"validate", Tolerance, Tolerance},
	{"optimize", Tolerance, Export},
	{"validate_optimized", Tolerance, Tolerance},
	{"calibrate", Calibration, Calibration},
	{"quantize", Tolerance, Build},
	{"build", Build, Build},
	{"validate_engine", Tolerance, Tolerance},
	{"benchmark", Benchmark, Benchmark},
	{"package", Triton, Triton},
	{"served", Tolerance, Triton},
}

// ArtifactsCheck is the name, behind "<stage>/", of the check that the pipeline
// reports when an artifact of a stage cannot be read or written.
const ArtifactsCheck = "artifacts"

// OfCheck returns the exit code of one check of a stage: OK if the check is
// neutral or good. The code of a missing check is given, for it is 3 in run and
// 13 in gate.
func OfCheck(stage, id string, verdict report.Verdict, missing Code) Code {
	switch verdict {
	case report.Pass, report.Skip, report.NotAsked:
		return OK
	case report.Missing:
		return missing
	case report.Inconclusive:
		return Incomplete
	case report.Fail, report.Broken:
	}
	if strings.HasSuffix(id, "/"+ArtifactsCheck) {
		return Artifact
	}
	for _, row := range StageCodes {
		if row.Stage == stage && verdict == report.Fail {
			return row.Fail
		}
		if row.Stage == stage {
			return row.Broken
		}
	}
	return Bug // a stage without a row, or a verdict that is none
}

// OfStages returns the exit code of a run: that of the first bad check in the
// order of the stages. missing is the code of what did not run: Missing in run,
// Incomplete in gate.
func OfStages(stages []report.Stage, missing Code) Code {
	for _, st := range stages {
		for _, c := range st.Checks {
			if code := OfCheck(st.Name, c.ID, c.Verdict, missing); code != OK {
				return code
			}
		}
		if len(st.Checks) == 0 { // a stage that did not run has no checks
			if code := OfCheck(st.Name, "", st.Verdict, missing); code != OK {
				return code
			}
		}
	}
	return OK
}
