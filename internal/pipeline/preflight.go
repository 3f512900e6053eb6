package pipeline

import (
	"context"
	"errors"
	"strings"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/stage"
)

// probe asks for every need of the stages that are to run, each once.
func probe(ctx context.Context, o Options, steps []*step) map[stage.Need]error {
	lacking := map[stage.Need]error{}
	known := map[stage.Need]bool{}
	for _, s := range steps {
		if s.state != asked {
			continue
		}
		for _, need := range s.spec.Needs {
			if known[need] {
				continue
			}
			known[need] = true
			ask := o.Probes[need]
			err := errors.New("nothing here knows how to look for it")
			if ask != nil {
				err = ask(ctx)
			}
			if err != nil {
				lacking[need] = err
			}
		}
	}
	return lacking
}

// lacks returns the first need of a stage that the machine does not have.
func lacks(s *step, lacking map[stage.Need]error) (stage.Need, error) {
	for _, need := range s.spec.Needs {
		if err := lacking[need]; err != nil {
			return need, err
		}
	}
	return "", nil
}

// preflight returns the error of a run that cannot be done here, naming the
// --until that can; a single step, whose target is given, has no such flag.
func preflight(steps []*step, lacking map[stage.Need]error, target string) error {
	first, last := "", ""
	var e *failure.Error
	for _, s := range steps {
		if s.state != asked {
			continue
		}
		need, err := lacks(s, lacking)
		if err == nil {
			if first == "" {
				last = s.spec.Name
			}
			continue
		}
		if first == "" {
			first = s.spec.Name
			e = failure.New(failure.Missing, "run %s: %s is not available here: %w", first, need, err)
			if f, ok := errors.AsType[*failure.Error](err); ok {
				e.Details = append(e.Details, f.Details...)
				if f.Hint != "" {
					e.With("to have "+string(need), "%s", f.Hint)
				}
			}
		}
		e.With(s.spec.Name, "needs %s", joinNeeds(s.spec.Needs, lacking))
	}
	if e == nil {
		return nil
	}
	switch {
	case target != "":
		return e.WithHint("Run it on a machine that has it. `trtship doctor` shows what is here.")
	case last == "":
		return e.WithHint("No stage that is asked for can run without it. `trtship doctor` shows what is here.")
	}
	return e.WithHint("Run with `--until %s`, or on a machine that has it. `trtship doctor` shows what is here.", last)
}

func joinNeeds(needs []stage.Need, lacking map[stage.Need]error) string {
	var names []string
	for _, n := range needs {
		if lacking[n] != nil {
			names = append(names, string(n))
		}
	}
	return strings.Join(names, ", ")
}

// checkSources asks whether the sources of what is to run can be read: that they
// cannot is a mistake that no stage in front of theirs need run for.
func checkSources(o Options, steps []*step) error {
	if o.CheckSources == nil {
		return nil
	}
	var stages, sources []string
	for _, s := range steps {
		if s.state != asked {
			continue
		}
		stages = append(stages, s.spec.Name)
		for _, source := range s.Sources() {
			path, _ := stage.CutCode(source)
			sources = append(sources, path)
		}
	}
	return o.CheckSources(stages, sources)
}
