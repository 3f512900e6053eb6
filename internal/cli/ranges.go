package cli

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/trtship/trtship/internal/failure"
)

// span is what a flag's numbers may be; times are in seconds.
type span struct {
	low, high float64
	open      bool // the bounds themselves are outside
}

var (
	positive    = span{1, math.Inf(1), false}
	notNegative = span{0, math.Inf(1), false}
	someTime    = span{0, math.Inf(1), true}
	fraction    = span{0, 1, true}
)

// spans are the bounds of the flags with numbers, by command and flag.
var spans = map[string]span{
	"artifacts gc keep-younger": notNegative,
	"benchmark ab batch":        notNegative, "benchmark ab block": positive, "benchmark ab confidence": fraction, "benchmark ab loads": positive,
	"benchmark ab rounds":          positive,
	"benchmark compare confidence": fraction, "benchmark compare margin": {0, 1, false},
	"benchmark triton rate": notNegative, "benchmark triton window": someTime,
	"gate confidence": fraction,
	"infer timeout":   someTime, "models load timeout": someTime, "models ls timeout": someTime, "models stats timeout": someTime, "models unload timeout": someTime,
	"lint gpus":        {-1, math.Inf(1), false},
	"locate max-nodes": positive, "sensitivity max-nodes": positive, "sensitivity rows": notNegative,
	"swap version": notNegative,
	"tune batches": positive, "tune delays": {-1, math.Inf(1), false}, "tune instances": positive, "tune loads": positive, "tune p99": notNegative, "tune window": someTime,
}

// flagOutside refuses a number that a flag cannot take, before anything is
// started. NaN is outside of every span.
func flagOutside(c *cobra.Command) error {
	var err error
	c.Flags().Visit(func(f *pflag.Flag) {
		s, ok := spans[strings.TrimPrefix(c.CommandPath(), "trtship ")+" "+f.Name]
		if !ok || err != nil {
			return
		}
		for _, text := range strings.Split(strings.Trim(f.Value.String(), "[]"), ",") {
			if x, ok := number(text); ok && !s.holds(x) {
				err = failure.New(failure.Usage, "--%s %s is not %s", f.Name, text, s)
			}
		}
	})
	return err
}

// number reads a number or a time.
func number(text string) (float64, bool) {
	if x, err := strconv.ParseFloat(text, 64); err == nil {
		return x, true
	}
	d, err := time.ParseDuration(text)
	return d.Seconds(), err == nil
}

func (s span) holds(x float64) bool {
	if s.open {
		return x > s.low && x < s.high
	}
	return x >= s.low && x <= s.high
}

// String says e.g. "at least 1".
func (s span) String() string {
	switch {
	case s.open && math.IsInf(s.high, 1):
		return fmt.Sprintf("above %g", s.low)
	case math.IsInf(s.high, 1):
		return fmt.Sprintf("at least %g", s.low)
	case s.open:
		return fmt.Sprintf("between %g and %g", s.low, s.high)
	}
	return fmt.Sprintf("within %g to %g", s.low, s.high)
}
