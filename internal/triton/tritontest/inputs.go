package tritontest

import (
	"fmt"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/stage"
)

// Inputs gives a stage artifacts that lie in folders of the test.
type Inputs []artifact.Artifact

var _ stage.Inputs = Inputs(nil)

// Artifact makes an artifact of a folder.
func Artifact(kind artifact.Kind, label, dir string) artifact.Artifact {
	return artifact.Artifact{Record: artifact.Record{Kind: kind, Label: label, Digest: artifact.Digest("sha256:0123456789ab" + fmt.Sprintf("%052d", 0))}, Dir: dir}
}

// One returns the only artifact of a kind.
func (in Inputs) One(kind artifact.Kind) (artifact.Artifact, error) {
	all := in.All(kind)
	if len(all) != 1 {
		return artifact.Artifact{}, fmt.Errorf("%d artifacts of kind %s", len(all), kind)
	}
	return all[0], nil
}

// All returns the artifacts of a kind.
func (in Inputs) All(kind artifact.Kind) []artifact.Artifact {
	var out []artifact.Artifact
	for _, a := range in {
		if a.Kind == kind {
			out = append(out, a)
		}
	}
	return out
}
