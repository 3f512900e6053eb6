package validateengine

import (
	"testing"

	"github.com/trtship/trtship/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }
