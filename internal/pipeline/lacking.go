package pipeline

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/stage"
	"github.com/trtship/trtship/report"
)

// inputs returns the records that a stage reads, in the order of its Spec, then
// of the run, then of labels; or why one is lacking.
//
// An optional input that a stage of this configuration makes, and that the store
// does not have, is lacking too: without it the stage would make something else
// than a whole run does, and not say so. Only where missing things are allowed
// it goes on without, as long as it has anything to read.
func (r *runner) inputs(s *step) (records []artifact.Artifact, lack string) {
	for _, in := range s.spec.In {
		found := r.ofKind(in.Kind, s)
		if len(found) == 0 && !in.Optional || !r.o.AllowMissing && r.losing(in.Kind) != nil {
			return nil, r.whyLacking(in.Kind)
		}
		records = append(records, found...)
	}
	if len(records) == 0 && len(s.spec.In) > 0 {
		return nil, r.whyLacking(s.spec.In[0].Kind)
	}
	return records, ""
}

func (r *runner) ofKind(kind artifact.Kind, reader *step) []artifact.Artifact {
	if given := r.given[kind]; len(given) > 0 {
		return given
	}
	var out []artifact.Artifact
	for _, s := range r.steps {
		if s == reader {
			break
		}
		if res := r.results[s.spec.Name]; res != nil {
			for _, a := range res.artifacts {
				if a.Kind == kind {
					out = append(out, a)
				}
			}
		}
	}
	slices.SortStableFunc(out, func(a, b artifact.Artifact) int { return strings.Compare(a.Label, b.Label) })
	return out
}

// lost reports whether the artifacts of a stage should have come from the store
// and did not.
func (r *runner) lost(s *step) bool {
	res := r.results[s.spec.Name]
	return s.state == provider && res != nil && res.why != ""
}

func (r *runner) whyLacking(kind artifact.Kind) string {
	var why []string
	for _, s := range r.steps {
		if !slices.Contains(s.spec.Out, kind) {
			continue
		}
		res := r.results[s.spec.Name]
		switch {
		case s.state == off || s.state == cut && s.Off != "":
			why = append(why, fmt.Sprintf("%s is turned off (%s)", s.spec.Name, s.Off))
		case res == nil:
			why = append(why, s.spec.Name+" did not run")
		case res.why != "":
			why = append(why, fmt.Sprintf("%s is not asked for (%s) and %s", s.spec.Name, s.reason, res.why))
		case s.state == provider:
			why = append(why, s.spec.Name+" made none")
		case s.state == cut:
			why = append(why, fmt.Sprintf("%s is not asked for (%s)", s.spec.Name, s.reason))
		default:
			why = append(why, s.spec.Name+" "+cmp.Or(map[report.Verdict]string{report.Fail: "failed", report.Broken: "broke"}[res.Verdict], "is "+string(res.Verdict)))
		}
	}
	if len(why) == 0 {
		return fmt.Sprintf("no stage makes %s", kind)
	}
	return fmt.Sprintf("there is no %s: %s", kind, strings.Join(why, ", "))
}

// recallFirst takes from the store what it must give whatever this run does: the
// artifacts of stages that are not asked for and read nothing that the run makes
// anew.
func (r *runner) recallFirst(ctx context.Context) {
	anew := map[artifact.Kind]bool{}
	for _, s := range r.steps {
		waits := slices.ContainsFunc(s.spec.In, func(in stage.In) bool { return anew[in.Kind] && len(r.given[in.Kind]) == 0 })
		switch {
		case s.state == asked || s.state == provider && waits:
			for _, k := range s.spec.Out {
				anew[k] = true
			}
		case s.state == provider:
			r.results[s.spec.Name] = r.step(ctx, s)
		}
	}
}

// notInStore returns the error of a run that reads what the store does not have,
// naming what is missing, who makes it and the flag that makes it; nil where
// nothing is missing.
func (r *runner) notInStore() *failure.Error {
	reader, kind, maker := r.firstLoss()
	if maker == nil {
		return nil
	}
	e := failure.New(failure.Missing, "run %s: it reads %s of %s, which is not in the store", reader.spec.Name, kind, maker.spec.Name)
	for _, s := range r.steps {
		if !r.lost(s) {
			continue
		}
		why := r.results[s.spec.Name].why
		if r.results[s.spec.Name].derived {
			why = "its own inputs are not in the store"
		}
		e.With(s.spec.Name, "%s: %s", s.reason, why)
	}
	return e.WithHint("%s", r.askEarlier())
}

// firstLoss returns the first stage that is asked for and reads what the store
// should have given and did not, the kind, and the stage that makes it.
func (r *runner) firstLoss() (reader *step, kind artifact.Kind, maker *step) {
	for _, s := range r.steps {
		if s.state != asked {
			continue
		}
		for _, in := range s.spec.In {
			if maker := r.losing(in.Kind); maker != nil {
				return s, in.Kind, maker
			}
		}
	}
	return nil, "", nil
}

// noteLacking says without which optional inputs a stage goes on, where missing
// things are allowed.
func (r *runner) noteLacking(s *step) {
	for _, in := range s.spec.In {
		if maker := r.losing(in.Kind); maker != nil {
			r.note(fmt.Sprintf("%s runs without %s of %s, which is not in the store", s.spec.Name, in.Kind, maker.spec.Name))
		}
	}
}

// losing returns the first stage that should have given a kind and did not.
func (r *runner) losing(kind artifact.Kind) *step {
	if len(r.given[kind]) > 0 {
		return nil
	}
	i := slices.IndexFunc(r.steps, func(s *step) bool { return slices.Contains(s.spec.Out, kind) && r.lost(s) })
	if i < 0 {
		return nil
	}
	return r.steps[i]
}

// askEarlier says with which flags the run makes what the store does not have;
// empty where the store lacks nothing.
func (r *runner) askEarlier() string {
	first, all := "", []string(nil)
	for _, s := range r.steps {
		if r.lost(s) {
			first = cmp.Or(first, s.spec.Name)
		} else if s.state != asked {
			continue
		}
		all = append(all, s.spec.Name)
	}
	switch {
	case first == "":
		return ""
	case r.o.From != "" && len(r.o.Only) > 0:
		return "Run without --from and --only."
	case r.o.From != "":
		return fmt.Sprintf("Run without --from, or with `--from %s`.", first)
	}
	return fmt.Sprintf("Run without --only, or with `--only %s`.", strings.Join(all, ","))
}
