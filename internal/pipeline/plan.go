package pipeline

import (
	"fmt"
	"slices"
	"strings"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/stage"
)

// state is what happens to a stage in this run.
type state int

const (
	asked    state = iota // runs, or is reused
	off                   // turned off in the configuration
	cut                   // not asked for
	provider              // not asked for, but its artifacts are taken from the store
)

// step is one stage in the order of the run.
type step struct {
	stage.Planned
	spec   stage.Spec
	state  state
	reason string // why it is not asked
}

// Order returns the names of the stages in the order in which they run.
func Order(stages []stage.Planned) ([]string, error) {
	steps, err := order(stages)
	names := make([]string, 0, len(steps))
	for _, s := range steps {
		names = append(names, s.spec.Name)
	}
	return names, err
}

// order sorts by kinds: a stage comes after every other stage that makes
// something that it reads. Where that leaves a choice, the list's order stays.
func order(stages []stage.Planned) ([]*step, error) {
	rest := make([]*step, 0, len(stages))
	seen := map[string]bool{}
	for _, p := range stages {
		s := &step{Planned: p, spec: p.Spec()}
		if seen[s.spec.Name] {
			return nil, failure.New(failure.Bug, "plan: two stages are named %s", s.spec.Name)
		}
		seen[s.spec.Name] = true
		rest = append(rest, s)
	}
	var out []*step
	for len(rest) > 0 {
		i := slices.IndexFunc(rest, func(s *step) bool { return !awaits(s, rest) })
		if i < 0 {
			return nil, failure.New(failure.Bug, "plan: the stages %s wait for each other", strings.Join(stepNames(rest), ", "))
		}
		out = append(out, rest[i])
		rest = slices.Delete(rest, i, i+1)
	}
	return out, nil
}

// awaits reports whether another of the remaining stages makes what s reads.
func awaits(s *step, rest []*step) bool {
	for _, o := range rest {
		if o != s && slices.ContainsFunc(s.spec.In, func(in stage.In) bool { return slices.Contains(o.spec.Out, in.Kind) }) {
			return true
		}
	}
	return false
}

func stepNames(steps []*step) []string {
	names := make([]string, 0, len(steps))
	for _, s := range steps {
		names = append(names, s.spec.Name)
	}
	return names
}

// plan orders the stages and says what happens to each. With target set, only
// that stage and those that make its inputs are asked for, unless given.
func plan(o Options, target string, given Given) ([]*step, error) {
	steps, err := order(o.Stages)
	if err != nil {
		return nil, err
	}
	if err := checkNames(o, target, steps); err != nil {
		return nil, err
	}
	for i, s := range steps {
		s.state, s.reason = asked, ""
		if why := notAsked(o, steps, i); why != "" {
			s.state, s.reason = cut, why
		} else if s.Off != "" {
			s.state, s.reason = off, s.Off
		}
	}
	if target != "" {
		aim(steps, target, given)
	}
	markProviders(steps, given)
	if !slices.ContainsFunc(steps, func(s *step) bool { return s.state == asked }) {
		return nil, nothingAsked(steps)
	}
	return steps, nil
}

func nothingAsked(steps []*step) error {
	e := failure.New(failure.Usage, "run: no stage is left to run")
	for _, s := range steps {
		e.With(s.spec.Name, "%s", s.reason)
	}
	return e.WithHint("Ask for a stage that is turned on.")
}

func checkNames(o Options, target string, steps []*step) error {
	for _, given := range []struct {
		flag  string
		names []string
	}{{"--from", []string{o.From}}, {"--until", []string{o.Until}}, {"--only", o.Only}, {"stage", []string{target}}} {
		for _, n := range given.names {
			if n != "" && index(steps, n) < 0 {
				return failure.New(failure.Usage, "%s: there is no stage %q", given.flag, n).
					WithHint("The stages are %s.", strings.Join(stepNames(steps), ", "))
			}
		}
	}
	if o.From != "" && o.Until != "" && index(steps, o.From) > index(steps, o.Until) {
		return failure.New(failure.Usage, "--from %s: it comes after --until %s", o.From, o.Until)
	}
	return nil
}

func index(steps []*step, name string) int {
	return slices.IndexFunc(steps, func(s *step) bool { return s.spec.Name == name })
}

// notAsked says why a stage is cut off; empty if it is not.
func notAsked(o Options, steps []*step, i int) string {
	switch {
	case o.Until != "" && i > index(steps, o.Until):
		return "after --until " + o.Until
	case o.From != "" && i < index(steps, o.From):
		return "before --from " + o.From
	case len(o.Only) > 0 && !slices.Contains(o.Only, steps[i].spec.Name):
		return "not in --only " + strings.Join(o.Only, ",")
	}
	return ""
}

// aim cuts off what the target does not need.
func aim(steps []*step, target string, given Given) {
	need := map[artifact.Kind]bool{}
	t := index(steps, target)
	for i := len(steps) - 1; i >= 0; i-- {
		s := steps[i]
		wanted := i == t || i < t && makesAny(s, need)
		if !wanted {
			if s.state == asked {
				s.state, s.reason = cut, fmt.Sprintf("%s does not need it", target)
			}
			continue
		}
		if i == t {
			s.state, s.reason = asked, "" // named by hand: that it is turned off does not count
		}
		if s.state == asked {
			addNeeds(s, need, given)
		}
	}
}

func makesAny(s *step, need map[artifact.Kind]bool) bool {
	return slices.ContainsFunc(s.spec.Out, func(k artifact.Kind) bool { return need[k] })
}

func addNeeds(s *step, need map[artifact.Kind]bool, given Given) {
	for _, in := range s.spec.In {
		if len(given[in.Kind]) == 0 {
			need[in.Kind] = true
		}
	}
}

// markProviders finds the stages that were cut off but whose artifacts a stage
// that is asked for reads, directly or because its key is made of them.
func markProviders(steps []*step, given Given) {
	need := map[artifact.Kind]bool{}
	for i := len(steps) - 1; i >= 0; i-- {
		s := steps[i]
		if s.state == cut && s.Off == "" && makesAny(s, need) {
			s.state = provider
		}
		if s.state == asked || s.state == provider {
			addNeeds(s, need, given)
		}
	}
}
