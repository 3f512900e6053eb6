package validation

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/ort"
	"github.com/trtship/trtship/internal/stage"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/report"
)

const (
	checkLoads   = "loads"
	checkRuntime = "default-optimisation"
)

// GraphDocs describes the checks of a stage that calls JudgeGraph.
func GraphDocs(stageName string) []stage.CheckDoc {
	return append([]stage.CheckDoc{
		{
			ID: stageName + "/" + checkLoads, Title: "ONNX Runtime loads the graph, with graph optimisation off.",
			Remedy: "Read ONNX Runtime's words in the check; another opset (export.opset) or exporter (export.dynamo) may help.",
		},
		{
			ID: stageName + "/" + checkRuntime, Title: "ONNX Runtime's own optimizer does not change the answers.",
			Remedy: "The graph is right, the runtime's optimizer is not: deploy with a lower optimization level, or another version of ONNX Runtime.",
		},
	}, Docs(stageName, false)...)
}

// SessionOptions are those of every validation session: graph optimisation off,
// threads fixed.
func SessionOptions(v config.Validation, log io.Writer) ort.Options {
	return ort.Options{
		Threads: max(v.Threads, 1), GraphOptimization: ort.OptimizeOff, MemoryMB: v.MemoryMB,
		Timeout: time.Duration(v.TimeoutS) * time.Second, Log: log,
	}
}

// Fed restricts a session's feeds to the inputs that its graph has: a reference
// may have inputs that the export dropped.
type Fed struct{ *ort.Session }

// Infer leaves out what the graph does not read.
func (f Fed) Infer(ctx context.Context, inputs []tensor.Named) ([]tensor.Named, error) {
	known := map[string]bool{}
	for _, in := range f.Inputs() {
		known[in.Name] = true
	}
	for _, in := range f.Overridable() {
		known[in.Name] = true
	}
	var feed []tensor.Named
	for _, in := range inputs {
		if known[in.Name] {
			feed = append(feed, in)
		}
	}
	return f.Session.Infer(ctx, feed)
}

// JudgeGraph judges an ONNX file in ONNX Runtime. It fills in what runs, and the
// random operators. A graph that does not load is a check, not an error.
func JudgeGraph(ctx context.Context, lib ort.Library, model string, ref *Reference, so ort.Options, o Options) (report.Validation, []report.Check, error) {
	m, err := onnx.Open(model)
	if err != nil {
		return report.Validation{}, nil, err
	}
	o.RandomNodes = RandomNodes(m)
	if err := m.Close(); err != nil {
		return report.Validation{}, nil, err
	}
	j := &judgement{o: o}
	c := j.check(checkLoads, report.Subject{})
	c.Want = "the graph loads"
	session, err := ort.Open(ctx, lib, model, so)
	if err != nil {
		if c.Verdict, err = loadVerdict(ctx, err, &c); err != nil {
			return report.Validation{}, nil, err
		}
		v := report.Validation{
			Stage: o.Stage, Candidate: "ONNX Runtime " + lib.Version, Reference: ref.Source, Precision: o.Precision,
			Seed: ref.Seed, Points: []report.Point{}, Rows: []report.Comparison{}, Notes: []string{c.Detail},
		}
		return v, []report.Check{c}, nil
	}
	defer session.Close()
	c.Verdict, c.Got, c.Seconds = report.Pass, "loaded", session.LoadMs()/1000
	o.Candidate = session.Describe()
	v, checks, err := Judge(ctx, Fed{session}, ref, o)
	if err != nil {
		return v, nil, err
	}
	checks = append([]report.Check{c}, checks...)
	if optimized, ok := judgeOptimizer(ctx, lib, model, ref, so, o); ok {
		if optimized.Verdict != report.Pass {
			v.Notes = append(v.Notes, optimized.Detail)
		}
		if o.DeploysONNX {
			checks = append(checks, optimized)
		}
	}
	return v, checks, nil
}

// loadVerdict says whether a graph that did not load is the graph's fault.
func loadVerdict(ctx context.Context, err error, c *report.Check) (report.Verdict, error) {
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	f, ok := errors.AsType[*failure.Error](err)
	if ok && f.Code != failure.Model {
		return "", err
	}
	c.Detail = describe(f, err)
	if ok {
		c.Hint = f.Hint
	}
	if _, crashed := errors.AsType[*ort.CrashError](err); crashed || !ok {
		return report.Broken, nil
	}
	return report.Fail, nil
}

// judgeOptimizer runs one sample with ONNX Runtime's default optimisation, as
// Triton's onnxruntime backend does, and compares with the run without. ok is
// false where there is nothing to compare.
func judgeOptimizer(ctx context.Context, lib ort.Library, model string, ref *Reference, so ort.Options, o Options) (report.Check, bool) {
	j := &judgement{o: o}
	c := j.check(checkRuntime, report.Subject{})
	c.Want, c.Verdict = "the same answers at ONNX Runtime's default level", report.Pass
	done, err := openRuns(o.Dir)
	if err != nil || len(done.Different) > 0 {
		return c, false
	}
	point := -1
	for i, p := range ref.Points {
		if len(p.Samples) > 0 && done.failed(p.Name) == nil && done.skipped(p.Name) == "" {
			point = i
			break
		}
	}
	if point < 0 {
		return c, false
	}
	sample := ref.Points[point].Samples[0]
	so.GraphOptimization = ort.OptimizeAll
	bad := func(format string, args ...any) (report.Check, bool) {
		c.Verdict = report.Fail
		c.Detail = fmt.Sprintf("a problem of ONNX Runtime %s with graph optimisation all, not of the graph: %s", lib.Version, fmt.Sprintf(format, args...))
		c.Hint = "Triton's onnxruntime backend optimises by default: set a lower graph optimization level there, or use another version"
		return c, true
	}
	session, err := ort.Open(ctx, lib, model, so)
	if err != nil {
		return bad("it does not load: %v", err)
	}
	defer session.Close()
	feed, err := ref.In(sample)
	if err != nil {
		return c, false
	}
	got, err := Fed{session}.Infer(ctx, feed)
	if err != nil {
		return bad("it does not run: %v", err)
	}
	want, err := done.out(sample)
	if err != nil {
		return c, false
	}
	for _, w := range want {
		g, ok := tensor.Find(got, w.Name)
		if !ok {
			return bad("output %s is gone", w.Name)
		}
		t := o.Tolerance(w.Name)
		cmp, err := tensor.Compare(tensor.Pair(w.Tensor, g), ruleOf(t))
		if err != nil {
			return bad("output %s: %v", w.Name, err)
		}
		if v, text := verdictOf(cmp, t); v == report.Fail && cmp.Elements > 0 {
			return bad("output %s: %s", w.Name, text)
		}
	}
	c.Got = "the same within the tolerance"
	return c, true
}
