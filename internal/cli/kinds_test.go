package cli

import (
	"slices"
	"testing"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/stages"
)

// TestEveryKindThatAStageMakesIsListed holds the kinds that artifacts ls takes
// to the stages.
func TestEveryKindThatAStageMakesIsListed(t *testing.T) {
	for _, p := range stages.All(config.Defaults(), stages.Tools{}) {
		s := p.Spec()
		for _, kind := range s.Out {
			if !slices.Contains(artifact.Kinds, kind) {
				t.Errorf("%s makes %s, which is not among artifact.Kinds", s.Name, kind)
			}
		}
	}
}
