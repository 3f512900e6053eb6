package cli

import (
	"context"

	"github.com/trtship/trtship/stages"
)

// tools are what the stages work with. What is not here stays empty: the
// pipeline asks for every need before the first stage.
func (s *session) tools(ctx context.Context) stages.Tools {
	var t stages.Tools
	_ = ctx
	return t
}
