package cli

import (
	"fmt"
	"testing"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/triton/kserve"
)

func TestTheVersionThatIsServedIsMeant(t *testing.T) {
	entry := func(name, version, state string) string {
		return fmt.Sprintf(`{"name":%q,"version":%q,"state":%q}`, name, version, state)
	}
	one, two := entry("m", "1", "READY"), entry("m", "2", "READY")
	tests := map[string]struct {
		ready  string
		onDisk []int64
		want   string
		code   failure.Code
		say    string // a note, or the error
	}{
		"the only one":                            {one, []int64{1}, "1", failure.OK, ""},
		"the newest of two":                       {two + "," + one, []int64{1, 2}, "2", failure.OK, ""},
		"by number, not by letter":                {entry("m", "9", "READY") + "," + entry("m", "10", "READY"), []int64{9, 10}, "10", failure.OK, ""},
		"the loaded one where a newer is on disk": {one, []int64{1, 2}, "1", failure.OK, "version 2 of m is in the repository, but not loaded: version 1 is meant"},
		"any where no repository is known":        {one + "," + two, nil, "2", failure.OK, ""},
		"one of the repository":                   {one + "," + two, []int64{1}, "1", failure.OK, ""},
		"none of the repository":                  {two, []int64{1}, "", failure.Triton, "the server has version 2 of m, the repository has not"},
		"another model":                           {entry("other", "1", "READY"), []int64{1}, "", failure.Triton, "m is not ready on the server"},
		"one that is on its way out":              {entry("m", "1", "UNLOADING"), []int64{1}, "", failure.Triton, "m is not ready on the server"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			address, _ := tritonWith(t, "[]", "["+tt.ready+"]")
			o := served{name: "m", http: address, onDisk: tt.onDisk}
			c, err := o.dial(kserve.HTTP)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = c.Close() }()
			said := ""
			got, err := o.ready(t.Context(), c, func(format string, args ...any) { said = fmt.Sprintf(format, args...) })
			if err != nil {
				said = err.Error()
			}
			if got != tt.want || failure.CodeOf(err) != tt.code || said != tt.say {
				t.Errorf("version %q, %v, said %q", got, err, said)
			}
		})
	}
}
