package pipeline

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/failpoint"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/stage"
	"github.com/trtship/trtship/internal/store"
	"github.com/trtship/trtship/report"
)

// The checks that the pipeline itself reports, behind "<stage>/". A stage that
// ran to its end reports its own checks only.
const (
	checkCompletes = "completes" // missing: could not run here; broken: crashed or timed out
	checkInputs    = "inputs"    // missing: a stage before it did not make what this one reads
	checkArtifacts = failure.ArtifactsCheck
)

// Checks documents the checks that the pipeline reports for every stage.
func Checks(name string) []stage.CheckDoc {
	return []stage.CheckDoc{
		{ID: name + "/" + checkCompletes, Title: "The stage runs to its end.", Remedy: "Read the reason and the stage's log in the run's folder; `trtship doctor` shows what this machine has."},
		{ID: name + "/" + checkInputs, Title: "Everything that the stage reads was made.", Remedy: "Mend the stage that is named first in the report; with --from or --only, run the stages before it once."},
		{ID: name + "/" + checkArtifacts, Title: "The stage's artifacts can be read and written, and are whole.", Remedy: "Run `trtship artifacts verify`; make room on the disk."},
	}
}

// remakes bounds how often damaged inputs are made again for one stage.
const remakes = 3

// execute runs one stage that is asked for, or takes what the store has.
func (r *runner) execute(ctx context.Context, s *step, base report.Stage) *result {
	base.Reason = ""
	log, name, err := r.dir.log(s.spec.Name)
	if err != nil {
		return brokenResult(base, err)
	}
	defer log.Close() //nolint:errcheck // a log
	base.Log = name
	if need, err := lacks(s, r.lacking); err != nil {
		return missingNeed(base, need, err)
	}
	for range remakes {
		records, lack := r.inputs(s)
		if lack != "" {
			return missing(base, checkInputs, lack, r.askEarlier())
		}
		r.noteLacking(s)
		a := &attempt{runner: r, step: s, stage: base, records: records, log: log}
		res, again := a.run(ctx)
		if !again {
			return res
		}
	}
	return brokenResult(base, failure.New(failure.Artifact, "run %s: its inputs were damaged %d times in a row", s.spec.Name, remakes).
		WithHint("Something changes files in the store, or the disk is failing."))
}

// attempt is one try of a stage with given inputs.
type attempt struct {
	*runner
	step    *step
	stage   report.Stage
	records []artifact.Artifact
	log     store.File
	key     *artifact.Key
	digest  artifact.Digest
	deps    []store.Dep
}

// run does the stage's work or finds it done. again asks for another attempt,
// after damaged inputs were made again.
func (a *attempt) run(ctx context.Context) (res *result, again bool) {
	key, err := a.keyOf(ctx, a.step, a.records)
	if err != nil {
		return a.broken(ctx, err), false
	}
	a.key, a.digest = key, key.Digest()
	a.stage.Key = string(a.digest)
	last := a.o.Store.LastParts(a.o.Project, a.step.spec.Name)
	if last != nil {
		a.stage.Changed = artifact.Changed(last, key.Parts())
	}
	if !a.step.spec.Cacheable {
		return a.work(ctx)
	}
	unlock, err := a.o.Store.Lock(ctx, lockName(a.step.spec.Name, a.digest), func() {
		a.o.Observer.StageProgress(a.step.spec.Name, 0, 0, "waiting for another run that does the same")
	})
	if err != nil {
		return a.broken(ctx, err), false
	}
	defer unlock()
	if !a.o.Fresh {
		hit, why, err := a.reuse(ctx, a.step, a.digest)
		if err != nil {
			return a.broken(ctx, err), false
		}
		if hit != nil {
			return a.reused(hit), false
		}
		if why != "" {
			a.stage.Changed = append(a.stage.Changed, why)
			a.note(fmt.Sprintf("%s runs again: %s", a.step.spec.Name, why))
		}
	}
	return a.work(ctx)
}

func lockName(stage string, key artifact.Digest) string {
	return "key-" + stage + "-" + strings.TrimPrefix(string(key), "sha256:")
}

// found is what the store has for a key.
type found struct {
	entry     *store.Entry
	artifacts []artifact.Artifact
}

// reuse looks for a finished run of a stage whose artifacts are whole and whose
// dependencies are unchanged.
func (r *runner) reuse(ctx context.Context, s *step, key artifact.Digest) (*found, string, error) {
	entry, arts, why, err := r.o.Store.Lookup(ctx, s.spec.Name, key)
	if entry == nil || err != nil {
		return nil, why, err
	}
	changed, err := r.changedDeps(ctx, s.spec.Name, entry.Deps)
	if err != nil || len(changed) > 0 {
		return nil, strings.Join(changed, ", "), err
	}
	return &found{entry, arts}, "", nil
}

func (r *runner) changedDeps(ctx context.Context, name string, deps []store.Dep) ([]string, error) {
	paths := make([]string, 0, len(deps))
	for _, d := range deps {
		paths = append(paths, r.absolute(d.Path))
	}
	digests, err := r.o.Store.HashFiles(ctx, r.o.Project+"\x00"+name, paths)
	if err != nil {
		return nil, err
	}
	var changed []string
	for i, d := range deps {
		if digests[i] != d.Digest {
			changed = append(changed, fmt.Sprintf("file %s: %s", d.Path, changeOf(d.Digest, digests[i])))
		}
	}
	return changed, nil
}

func changeOf(before, after artifact.Digest) string {
	if after == "" {
		return before.Short() + " -> (none)"
	}
	if before == "" {
		return "(none) -> " + after.Short()
	}
	return before.Short() + " -> " + after.Short()
}

func (a *attempt) reused(hit *found) *result {
	a.stage.Cached = true
	a.stage.Checks = hit.entry.Checks
	a.stage.Verdict = report.Of(hit.entry.Checks)
	fmt.Fprintf(a.log, "reused from the store, key %s\n", a.digest)
	a.remember()
	a.deps = hit.entry.Deps
	return a.result(hit.artifacts)
}

func (a *attempt) result(arts []artifact.Artifact) *result {
	a.stage.Artifacts = nil
	for _, art := range arts {
		a.stage.Artifacts = append(a.stage.Artifacts, art.ID())
	}
	return &result{Stage: a.stage, artifacts: arts, parts: a.key.Parts(), deps: a.deps}
}

// remember keeps the key for the next run's explanation.
func (a *attempt) remember() {
	if err := a.o.Store.SetLastParts(a.o.Project, a.step.spec.Name, a.key.Parts()); err != nil {
		a.note("what changed will not be explained next time: " + err.Error())
	}
}

var (
	stageRun      = failpoint.New("pipeline.stage.run")
	stageDone     = failpoint.New("pipeline.stage.done")
	stageRecorded = failpoint.New("pipeline.stage.recorded")
)

// work verifies the inputs and runs the stage.
func (a *attempt) work(ctx context.Context) (res *result, again bool) {
	in, err := a.open(ctx)
	if err != nil {
		return a.remake(ctx, err)
	}
	if err := stageRun.Hit(); err != nil {
		return a.broken(ctx, err), false
	}
	out := newOutputs(ctx, a, in)
	checks, err := a.call(ctx, in, out)
	out.close()
	if err == nil {
		err = stageDone.Hit()
	}
	a.stage.Checks = a.declared(checks)
	if err == nil && len(checks) == 0 {
		err = failure.New(failure.Bug, "run %s: it reported no check", a.step.spec.Name)
	}
	if err != nil {
		res := a.broken(ctx, err)
		res.artifacts = out.artifacts()
		res.Artifacts = a.result(res.artifacts).Artifacts
		return res, false
	}
	a.stage.Verdict = report.Of(a.stage.Checks)
	if err := a.keep(ctx, out); err != nil {
		broken(&a.stage, err)
	}
	return a.result(out.artifacts()), false
}

// open verifies the inputs.
func (a *attempt) open(ctx context.Context) (*inputs, error) {
	in := &inputs{}
	for _, rec := range a.records {
		art, err := a.o.Store.Open(ctx, rec.Record)
		if err != nil {
			return nil, err
		}
		in.artifacts = append(in.artifacts, art)
	}
	return in, nil
}

// remake runs the stage again that made a damaged input.
func (a *attempt) remake(ctx context.Context, cause error) (*result, bool) {
	d, ok := errors.AsType[*store.Damage](cause)
	if !ok {
		return a.broken(ctx, cause), false
	}
	for _, s := range a.steps {
		res := a.results[s.spec.Name]
		if res == nil || s.state != asked || !slices.ContainsFunc(res.artifacts, func(x artifact.Artifact) bool { return x.ID() == d.ID }) {
			continue
		}
		a.note(fmt.Sprintf("%s runs again: %s", s.spec.Name, d.Error()))
		again := a.execute(ctx, s, report.Stage{Name: s.spec.Name, Hardware: s.spec.Hardware})
		again.Seconds += res.Seconds
		a.results[s.spec.Name] = again
		return nil, true
	}
	return a.broken(ctx, cause), false
}

// call runs the stage; a panic is an error with its trace in the log.
func (a *attempt) call(ctx context.Context, in *inputs, out *outputs) (checks []report.Check, err error) {
	defer func() {
		if p := recover(); p != nil {
			fmt.Fprintf(a.log, "panic: %v\n%s", p, debug.Stack())
			err = failure.New(failure.Bug, "run %s: panic: %v", a.step.spec.Name, p).WithHint("This is a bug in trtship; the stage's log has the trace.")
		}
	}()
	return a.step.Run(ctx, in, out)
}

// declared marks checks that the stage's Spec does not have: their ids would be
// in no documentation.
func (a *attempt) declared(checks []report.Check) []report.Check {
	for i := range checks {
		c := &checks[i]
		known := slices.ContainsFunc(a.step.spec.Checks, func(d stage.CheckDoc) bool { return d.ID == c.ID })
		if !known {
			c.Verdict = report.Worst(c.Verdict, report.Broken)
			c.Detail = strings.TrimSpace("this check is not one that the stage declares. " + c.Detail)
		}
	}
	return checks
}

// keep records what the stage made, if it may be reused.
func (a *attempt) keep(ctx context.Context, out *outputs) error {
	a.remember()
	if !a.step.spec.Cacheable || a.stage.Verdict != report.Pass && a.stage.Verdict != report.Skip {
		return nil // a failed stage is measured again
	}
	deps, err := a.hashDeps(ctx, out.deps)
	if err != nil {
		return err
	}
	a.deps = deps
	e := store.Entry{Stage: a.step.spec.Name, Key: a.digest, Parts: a.key.Parts(), Deps: deps, Checks: a.stage.Checks}
	for _, art := range out.artifacts() {
		e.Artifacts = append(e.Artifacts, art.Record)
	}
	if err := a.o.Store.Record(e); err != nil {
		return err
	}
	return stageRecorded.Hit()
}

func (a *attempt) hashDeps(ctx context.Context, paths []string) ([]store.Dep, error) {
	slices.Sort(paths)
	paths = slices.Compact(paths)
	digests, err := a.o.Store.HashFiles(ctx, a.o.Project+"\x00"+a.step.spec.Name, paths)
	if err != nil {
		return nil, err
	}
	deps := make([]store.Dep, 0, len(paths))
	for i, p := range paths {
		deps = append(deps, store.Dep{Path: a.relative(p), Digest: digests[i]})
	}
	return deps, nil
}

// relative names a file by its path from the project's folder if it is in it.
func (r *runner) relative(path string) string {
	if rel, err := filepath.Rel(r.o.BaseDir, path); r.o.BaseDir != "" && err == nil && filepath.IsLocal(rel) {
		return filepath.ToSlash(rel)
	}
	return path
}

func (r *runner) absolute(path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(r.o.BaseDir, filepath.FromSlash(path))
}

// recall takes the artifacts of a stage that is not asked for from the store.
func (r *runner) recall(ctx context.Context, s *step, base report.Stage) *result {
	base.Verdict = report.NotAsked
	res := &result{Stage: base}
	records, lack := r.inputs(s)
	if lack != "" {
		res.why, res.derived = "its own inputs are not in the store: "+lack, true
		return res
	}
	key, err := r.keyOf(ctx, s, records)
	if err != nil {
		res.why = "its key cannot be made: " + err.Error()
		return res
	}
	res.Key = string(key.Digest())
	hit, why, err := r.reuse(ctx, s, key.Digest())
	switch {
	case err != nil:
		res.why = err.Error()
	case hit != nil:
		res.artifacts, res.parts, res.deps = hit.artifacts, key.Parts(), hit.entry.Deps
		res.Cached = true
		for _, a := range hit.artifacts {
			res.Artifacts = append(res.Artifacts, a.ID())
		}
	case why != "":
		res.why = "its artifacts in the store cannot be used: " + why
	default:
		res.why = "the store has none under its present key"
		if last := r.o.Store.LastParts(r.o.Project, s.spec.Name); last != nil {
			if changed := artifact.Changed(last, key.Parts()); len(changed) > 0 {
				res.why += " (" + strings.Join(changed, ", ") + ")"
			}
		}
	}
	return res
}

// broken turns an error into a stage's verdict, and its check. What is not
// available here is missing instead.
func (a *attempt) broken(ctx context.Context, err error) *result {
	if ctx.Err() != nil {
		err = failure.New(failure.Interrupted, "interrupted: %w", err)
	}
	fmt.Fprintf(a.log, "%v\n", err)
	broken(&a.stage, err)
	return &result{Stage: a.stage}
}

func brokenResult(st report.Stage, err error) *result {
	broken(&st, err)
	return &result{Stage: st}
}

func broken(st *report.Stage, err error) {
	c := report.Check{ID: st.Name + "/" + checkCompletes, Verdict: report.Broken, Detail: err.Error(), Hardware: st.Hardware}
	if f, ok := errors.AsType[*failure.Error](err); ok {
		c.Hint = f.Hint
		for _, d := range f.Details {
			c.Detail += "\n" + d.Label + ": " + d.Value
		}
		switch f.Code {
		case failure.Missing:
			c.Verdict = report.Missing
		case failure.Artifact:
			c.ID = st.Name + "/" + checkArtifacts
		}
	}
	st.Checks = append(st.Checks, c)
	st.Verdict = c.Verdict
	st.Reason = err.Error()
}
