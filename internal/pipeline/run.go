package pipeline

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/stage"
	"github.com/trtship/trtship/internal/store"
	"github.com/trtship/trtship/report"
)

// Run runs the stages that are asked for and returns the report, which is also
// in the run's folder. What the stages found, good or bad, is in the report and
// its exit code. An error means that the run could not be made (wrong stage
// names, preflight, an unusable store) or was interrupted; the report then says
// how far it came, and is nil if nothing was started.
func Run(ctx context.Context, o Options) (*report.Report, error) {
	rep, _, err := run(ctx, o, "", nil)
	return rep, err
}

// RunOne runs one stage, and those that make its inputs where these are not
// given. It returns the artifacts of that stage, by kind and label.
func RunOne(ctx context.Context, o Options, name string, given Given) (*report.Report, []artifact.Artifact, error) {
	return run(ctx, o, name, given)
}

func run(ctx context.Context, o Options, target string, given Given) (*report.Report, []artifact.Artifact, error) {
	o = o.withDefaults()
	steps, err := plan(o, target, given)
	if err != nil {
		return nil, nil, err
	}
	if o.DiskBytes > 0 {
		if err := o.Store.RequireFree(o.DiskBytes); err != nil {
			return nil, nil, err
		}
	}
	r := &runner{o: o, steps: steps, given: given, results: map[string]*result{}, started: o.Now()}
	if err := r.openDir(); err != nil {
		return nil, nil, err
	}
	o.Observer.RunStarted(r.id, r.dir.path)
	r.lacking = probe(ctx, o, steps)
	stop, why := checkSources(o, steps), "a file that is to be read is not there"
	if stop == nil && !o.AllowMissing {
		stop, why = preflight(steps, r.lacking, target), "other stages that were asked for cannot run here"
	}
	if stop == nil {
		r.recallFirst(ctx)
		if f := r.notInStore(); f != nil && !o.AllowMissing && ctx.Err() == nil {
			stop, why = f, "the store does not have what other stages that were asked for read"
		}
	}
	if stop != nil {
		r.refuse(why)
	} else {
		stop = r.all(ctx)
	}
	rep := r.report()
	if f, ok := errors.AsType[*failure.Error](stop); ok {
		rep.ExitCode = int(f.Code)
	}
	if err := r.finish(rep); err != nil {
		return rep, nil, errors.Join(err, stop)
	}
	return rep, r.made(target), stop
}

func (o Options) withDefaults() Options {
	if o.Observer == nil {
		o.Observer = Silent{}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

// result is what became of a stage.
type result struct {
	report.Stage
	artifacts []artifact.Artifact
	parts     []artifact.Part // of the key: what the artifacts were made from
	deps      []store.Dep     // what was found to matter while the stage ran
	why       string          // why a provider's artifacts could not be had
	derived   bool            // because another provider's could not
}

// runner is one run. Its methods are called by one goroutine.
type runner struct {
	o       Options
	id      string
	dir     runDir
	steps   []*step
	given   Given
	lacking map[stage.Need]error
	results map[string]*result // by stage
	notes   []string
	started time.Time
}

// all goes through the stages. It returns why the run was interrupted.
func (r *runner) all(ctx context.Context) error {
	total, at := 0, 0
	for _, s := range r.steps {
		if s.state == asked {
			total++
		}
	}
	for _, s := range r.steps {
		if s.state == asked && ctx.Err() == nil {
			r.o.Observer.StageStarted(StageInfo{Name: s.spec.Name, Title: s.spec.Title, Index: at, Total: total})
			at++
		}
		if r.results[s.spec.Name] == nil {
			r.results[s.spec.Name] = r.step(ctx, s)
		}
		r.o.Observer.StageFinished(r.results[s.spec.Name].Stage)
		if s.state == asked {
			if err := r.checkpoint(); err != nil {
				r.note("the run's folder could not be kept up to date: " + err.Error())
			}
		}
	}
	if ctx.Err() != nil {
		return interrupted(ctx)
	}
	return nil
}

// interrupted returns the failure that ended ctx: its cause if that has an exit
// code, else an interrupt.
func interrupted(ctx context.Context) error {
	cause := context.Cause(ctx)
	if f, ok := errors.AsType[*failure.Error](cause); ok {
		return f
	}
	return failure.New(failure.Interrupted, "run: %w", cause).WithHint("Run again; finished stages are reused.")
}

func (r *runner) step(ctx context.Context, s *step) *result {
	base := report.Stage{Name: s.spec.Name, Hardware: s.spec.Hardware, Reason: s.reason}
	switch s.state {
	case off:
		base.Verdict = report.Skip
		return &result{Stage: base}
	case cut:
		base.Verdict = report.NotAsked
		return &result{Stage: base}
	case provider:
		return r.recall(ctx, s, base)
	case asked:
	}
	if ctx.Err() != nil {
		return missing(base, "completes", "the run was interrupted before it", "Run again; finished stages are reused.")
	}
	start := r.o.Now()
	res := r.execute(ctx, s, base)
	res.Seconds = max(0, r.o.Now().Sub(start).Seconds()) // a clock may jump back
	return res
}

// refuse reports every stage of a run that is stopped before its first stage.
// why is the reason of those that alone could have run.
func (r *runner) refuse(why string) {
	for _, s := range r.steps {
		res := r.results[s.spec.Name] // of a stage that was recalled
		if res == nil {
			res = &result{Stage: report.Stage{Name: s.spec.Name, Hardware: s.spec.Hardware, Reason: s.reason, Verdict: report.NotAsked}}
		}
		switch s.state {
		case off:
			res.Verdict = report.Skip
		case asked:
			res = r.refused(s, res.Stage, why)
		case cut, provider:
		}
		r.results[s.spec.Name] = res
		r.o.Observer.StageFinished(res.Stage)
	}
}

func (r *runner) refused(s *step, st report.Stage, why string) *result {
	st.Reason = ""
	if need, err := lacks(s, r.lacking); err != nil {
		return missingNeed(st, need, err)
	}
	for _, in := range s.spec.In {
		if r.losing(in.Kind) != nil {
			return missing(st, checkInputs, r.whyLacking(in.Kind), r.askEarlier())
		}
	}
	return missing(st, checkCompletes, "not started: "+why, "")
}

func missing(st report.Stage, check, reason, hint string) *result {
	st.Verdict, st.Reason = report.Missing, reason
	st.Checks = append(st.Checks, report.Check{ID: st.Name + "/" + check, Verdict: report.Missing, Detail: reason, Hint: hint, Hardware: st.Hardware})
	return &result{Stage: st}
}

func missingNeed(st report.Stage, need stage.Need, err error) *result {
	hint := "`trtship doctor` shows what is here."
	if f, ok := errors.AsType[*failure.Error](err); ok && f.Hint != "" {
		hint = f.Hint
	}
	return missing(st, "completes", fmt.Sprintf("%s is not available here: %v", need, err), hint)
}

func (r *runner) note(text string) {
	if !slices.Contains(r.notes, text) {
		r.notes = append(r.notes, text)
		r.o.Observer.Note(text)
	}
}

// made returns the artifacts of a stage.
func (r *runner) made(name string) []artifact.Artifact {
	if res := r.results[name]; name != "" && res != nil {
		return res.artifacts
	}
	return nil
}

// report puts together the document.
func (r *runner) report() *report.Report {
	rep := r.o.Report
	rep.Format = report.Format
	rep.Run.ID, rep.Run.Started = r.id, r.started.UTC()
	rep.Run.Seconds = max(0, r.o.Now().Sub(r.started).Seconds())
	rep.Run.Until, rep.Run.From, rep.Run.Only = r.o.Until, r.o.From, r.o.Only
	rep.Stages, rep.Artifacts = []report.Stage{}, []report.ArtifactSummary{}
	rep.Validations = nil
	rep.Notes = slices.Clone(rep.Notes)
	rep.Verdict = report.NotAsked
	for _, s := range r.steps {
		res, ok := r.results[s.spec.Name]
		if !ok {
			continue
		}
		if s.state == asked {
			if err := r.documents(&rep, res); err != nil {
				broken(&res.Stage, err)
			}
			rep.Artifacts = append(rep.Artifacts, summaries(res)...)
		}
		rep.Stages = append(rep.Stages, res.Stage)
		if v := res.Verdict; v != report.NotAsked && v != report.Skip {
			if rep.Verdict == report.NotAsked {
				rep.Verdict = v
			}
			rep.Verdict = report.Worst(rep.Verdict, v)
		}
	}
	rep.Notes = append(rep.Notes, r.notes...)
	rep.ExitCode = int(failure.OfStages(rep.Stages, failure.InRun))
	return &rep
}

func summaries(res *result) []report.ArtifactSummary {
	out := make([]report.ArtifactSummary, 0, len(res.artifacts))
	for _, a := range res.artifacts {
		out = append(out, report.ArtifactSummary{
			ID: a.ID(), Kind: string(a.Kind), Label: a.Label, Digest: string(a.Digest), Size: a.Size, Files: len(a.Files), Stage: res.Name,
		})
	}
	return out
}

// refs lists all that the run refers to so far, for the store's garbage collector.
func (r *runner) refs() []store.Ref {
	set := map[store.Ref]bool{}
	for _, res := range r.results {
		for _, a := range res.artifacts {
			set[store.Ref{Kind: a.Kind, Digest: a.Digest}] = true
		}
	}
	for _, arts := range r.given {
		for _, a := range arts {
			set[store.Ref{Kind: a.Kind, Digest: a.Digest}] = true
		}
	}
	return slices.SortedFunc(maps.Keys(set), func(a, b store.Ref) int {
		if a.String() < b.String() {
			return -1
		}
		return 1
	})
}
