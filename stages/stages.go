// Package stages is the one list of the pipeline's stages.
package stages

import (
	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/stage"
)

// Tools are what stages work with, found once on this machine. Fields of what is
// not there are empty; a stage that needs them does not start.
type Tools struct{}

// All returns every stage in the order of people. The pipeline orders by the
// kinds of artifacts.
func All(c *config.Config, t Tools) []stage.Planned {
	return nil
}
