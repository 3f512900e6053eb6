package enginetest

import (
	"fmt"

	"github.com/trtship/trtship/internal/artifact"
)

// Inputs are the artifacts of a stage under test.
type Inputs map[artifact.Kind][]artifact.Artifact

// One returns the only artifact of a kind.
func (i Inputs) One(kind artifact.Kind) (artifact.Artifact, error) {
	if len(i[kind]) != 1 {
		return artifact.Artifact{}, fmt.Errorf("%d artifacts of kind %s", len(i[kind]), kind)
	}
	return i[kind][0], nil
}

// All returns the artifacts of a kind.
func (i Inputs) All(kind artifact.Kind) []artifact.Artifact { return i[kind] }

// Add adds an artifact with a folder.
func (i Inputs) Add(kind artifact.Kind, label, dir string) {
	i[kind] = append(i[kind], artifact.Artifact{Record: artifact.Record{Kind: kind, Label: label}, Dir: dir})
}
