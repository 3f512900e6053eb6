package compare

import (
	"errors"
	"testing"

	"github.com/trtship/trtship/report"
)

func TestBatchesThatWereNotMergedFail(t *testing.T) {
	if c := mergedCheck(statistics{}, statistics{requests: 10, executions: 10}, nil); c.Verdict != report.Fail {
		t.Errorf("%+v", c)
	}
	if c := mergedCheck(statistics{}, statistics{requests: 10, executions: 5}, errors.New("lost")); c.Verdict != report.Broken {
		t.Errorf("%+v", c)
	}
}
