package validation

import (
	"fmt"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/report"
)

// Lookup returns the folder of a stored artifact by its id, verified.
type Lookup func(id string) (dir string, err error)

// Override changes the tolerance of an output at a precision; it returns was
// where nothing is to change.
type Override func(precision, output string, was report.Tolerance) report.Tolerance

// Recheck judges a validation of a report again from the artifacts that it
// names, with other tolerances. Nothing is run. It fails with code Artifact
// where an artifact is gone.
func Recheck(v report.Validation, lookup Lookup, override Override) (report.Validation, []report.Check, error) {
	dirs := map[string]string{}
	for what, id := range map[string]string{"reference": v.Stored.Reference, "outputs": v.Stored.Candidate} {
		if id == "" {
			return v, nil, failure.New(failure.Artifact, "recheck %s: the report names no stored %s", v.Stage, what).
				WithHint("run the stage again; it keeps what it compared")
		}
		dir, err := lookup(id)
		if err != nil {
			return v, nil, failure.New(failure.Artifact, "recheck %s: stored %s %s is not usable: %w", v.Stage, what, id, err).
				WithHint("run the stage again; `trtship artifacts gc` may have removed it")
		}
		dirs[what] = dir
	}
	ref, err := OpenReference(dirs["reference"])
	if err != nil {
		return v, nil, err
	}
	done, err := openRuns(dirs["outputs"])
	if err != nil {
		return v, nil, err
	}
	was := map[string]report.Tolerance{}
	for _, r := range v.Rows {
		was[r.Output] = r.Tolerance
	}
	out, checks, err := judge(ref, done, Options{
		Stage: v.Stage, Candidate: v.Candidate, Precision: v.Precision, Preview: v.Preview,
		Tolerance: func(output string) report.Tolerance {
			if override == nil {
				return was[output]
			}
			return override(v.Precision, output, was[output])
		},
		LooseRepeat: done.Loose, AllowRandom: done.AllowRandom, Hardware: done.Hardware, Protocol: done.Protocol,
	})
	if err != nil {
		return v, nil, err
	}
	out.Stored = v.Stored
	out.Notes = append(out.Notes, fmt.Sprintf("judged again from %s and %s", v.Stored.Reference, v.Stored.Candidate))
	return out, checks, nil
}
