package failure

import (
	"strings"

	"github.com/trtship/trtship/report"
)

// ArtifactsCheck is the name, behind "<stage>/", of the check that the pipeline
// reports when an artifact of a stage cannot be read or written. Its code is
// Artifact, whatever the stage.
const ArtifactsCheck = "artifacts"

// OfCheck returns the exit code of one check: that of ForCheck, but for the
// artifacts of any stage, and for a tolerance that does not hold on a server,
// which is a matter of numbers and not of Triton.
func OfCheck(stage, id string, v report.Verdict, inGate bool) Code {
	switch {
	case v != report.Fail && v != report.Broken:
	case strings.HasSuffix(id, "/"+ArtifactsCheck):
		return Artifact
	case stage == "served" && v == report.Fail:
		return Tolerance
	}
	return ForCheck(stage, v, inGate)
}

// OfStages returns the exit code of a run: that of the first bad check in the
// order of the stages. A stage without checks did not run; its verdict counts.
func OfStages(stages []report.Stage, inGate bool) Code {
	for _, st := range stages {
		for _, c := range st.Checks {
			if code := OfCheck(st.Name, c.ID, c.Verdict, inGate); code != OK {
				return code
			}
		}
		if len(st.Checks) == 0 {
			if code := OfCheck(st.Name, "", st.Verdict, inGate); code != OK {
				return code
			}
		}
	}
	return OK
}
