// Package optimize is the stage that cleans up the exported graph. Passes are
// not trusted: the result must answer every feed of the reference as the
// exported graph does, in ONNX Runtime with graph optimisation off, and keep
// names, order, types and declared shapes of inputs and outputs. If it does
// not, each pass is proven by itself, and those that do not hold are dropped
// and named.
package optimize

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/onnx/passes"
	"github.com/trtship/trtship/internal/ort"
	"github.com/trtship/trtship/internal/stage"
	"github.com/trtship/trtship/internal/validation"
	"github.com/trtship/trtship/report"
)

// The checks of this stage.
const (
	checkOutputs   = "optimize/outputs-unchanged"
	checkSignature = "optimize/signature-unchanged"
	checkPasses    = "optimize/passes-held"
)

// ModelFile is the graph within an ONNX artifact. Data files lie beside it.
const ModelFile = "model.onnx"

// Stage optimizes the exported graph.
type Stage struct {
	cfg *config.Config
	lib ort.Library
	// passes are those to run; a test puts a wrong one among them.
	passes func(passes.Options) ([]passes.Pass, error)
}

// New returns the stage. lib is the ONNX Runtime that proves the passes.
func New(cfg *config.Config, lib ort.Library) *Stage {
	return &Stage{cfg: cfg, lib: lib, passes: passes.All}
}

// Spec describes the stage.
func (s *Stage) Spec() stage.Spec {
	return stage.Spec{
		Name: "optimize", Version: 1, Title: "Clean up the graph",
		In:    []stage.In{{Kind: artifact.ONNX}, {Kind: artifact.Reference}},
		Out:   []artifact.Kind{artifact.OptimizedONNX, artifact.OptimizeReport},
		Needs: []stage.Need{stage.NeedORT},
		Checks: []stage.CheckDoc{
			{ID: checkOutputs, Title: "The optimized graph answers every feed as the exported graph does.", Remedy: "Read which output differs; `optimize.skip_passes` leaves passes out, `optimize.enabled: false` all of them."},
			{ID: checkSignature, Title: "Names, order, types and declared shapes of inputs and outputs are those of the exported graph.", Remedy: "This is a bug of a pass: leave it out with `optimize.skip_passes` and report it."},
			{ID: checkPasses, Title: "Every pass that was kept was proven; what did not hold was dropped and is named.", Remedy: "Nothing has to be done; leave a pass that is dropped every time out with `optimize.skip_passes` to save time."},
		},
		Cacheable: true,
	}
}

// settings is what decides the graph.
type settings struct {
	Optimize  config.Optimize
	Threads   int
	Tolerance float64
}

// Settings is the part of the configuration that decides the graph.
func (s *Stage) Settings() any {
	return settings{Optimize: s.cfg.Optimize, Threads: s.cfg.Validation.Threads, Tolerance: Tolerance}
}

// Sources is empty: all inputs are artifacts.
func (s *Stage) Sources() []string { return nil }

// Tools is ONNX Runtime, since its answers decide what is dropped.
func (s *Stage) Tools(context.Context) (map[string]string, error) {
	return map[string]string{"onnxruntime": s.lib.Version}, nil
}

// Run optimizes, proves and publishes the graph.
func (s *Stage) Run(ctx context.Context, in stage.Inputs, out stage.Outputs) ([]report.Check, error) {
	started := time.Now()
	exported, err := in.One(artifact.ONNX)
	if err != nil {
		return nil, err
	}
	given, err := in.One(artifact.Reference)
	if err != nil {
		return nil, err
	}
	ref, err := validation.OpenReference(given.Dir)
	if err != nil {
		return nil, err
	}
	m, err := onnx.Open(filepath.Join(exported.Dir, ModelFile))
	if err != nil {
		return nil, err
	}
	defer m.Close()
	w := &work{stage: s, out: out, source: m, ref: ref}
	dir, err := w.optimize(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := out.Publish(artifact.OptimizedONNX, "", dir, map[string]string{"nodes": fmt.Sprint(w.sum.NodesAfter)}); err != nil {
		return nil, err
	}
	if _, err := out.PublishDocument(artifact.OptimizeReport, w.sum); err != nil {
		return nil, err
	}
	return w.checks(time.Since(started).Seconds()), nil
}

// work is one run of the stage.
type work struct {
	stage  *Stage
	out    stage.Outputs
	source *onnx.Model
	ref    *validation.Reference

	prover *prover
	sum    report.Optimization
	proof  proof
	change string // of the signature
}

// optimize returns the folder with the optimized model.
func (w *work) optimize(ctx context.Context) (string, error) {
	o := w.stage.cfg.Optimize
	var list []passes.Pass
	if o.Enabled {
		var err error
		if list, err = w.stage.passes(passes.Options{Skip: o.Skip, FoldLimit: int64(o.FoldMB) << 20}); err != nil {
			return "", err
		}
	}
	w.out.Progress(0, 3, "passes")
	result, sum, err := passes.Run(ctx, w.source, list, nil)
	if err != nil {
		return "", err
	}
	dir, err := w.save(result, "optimized")
	if err != nil {
		return "", err
	}
	w.out.Progress(1, 3, "proof")
	if w.prover, err = w.newProver(ctx); err != nil {
		return "", err
	}
	defer w.prover.close()
	w.change = passes.SignatureChange(w.source, result)
	if w.proof, err = w.prover.judge(ctx, filepath.Join(dir, ModelFile)); err != nil {
		return "", err
	}
	w.sum = sum
	if !w.proof.holds() || w.change != "" {
		w.out.Progress(1, 3, "proof of each pass")
		if dir, err = w.passByPass(ctx, list); err != nil {
			return "", err
		}
	}
	w.sum.Notes = append(slices.Clone(w.source.Notes), w.sum.Notes...)
	w.sum.Notes = append(w.sum.Notes, w.prover.notes...)
	w.out.Progress(2, 3, "default level of ONNX Runtime")
	w.sum.Notes = append(w.sum.Notes, w.prover.defaultLevel(ctx, filepath.Join(dir, ModelFile))...)
	w.out.Progress(3, 3, "done")
	return dir, ctx.Err()
}

// passByPass runs the passes again and drops those that do not hold.
func (w *work) passByPass(ctx context.Context, list []passes.Pass) (string, error) {
	fmt.Fprintf(w.out.Log(), "all passes together: %s%s; each pass is proven by itself\n", w.proof.breach, w.change)
	verify := func(ctx context.Context, pass string, _, after *onnx.Model) (string, error) {
		dir, err := w.save(after, "try")
		if err != nil {
			return "", err
		}
		defer os.RemoveAll(dir)
		p, err := w.prover.judge(ctx, filepath.Join(dir, ModelFile))
		if err == nil && !p.holds() {
			fmt.Fprintf(w.out.Log(), "pass %s is dropped: %s\n", pass, p.breach)
		}
		return p.breach, err
	}
	result, sum, err := passes.Run(ctx, w.source, list, verify)
	if err != nil {
		return "", err
	}
	dir, err := w.save(result, "proven")
	if err != nil {
		return "", err
	}
	w.sum = sum
	w.change = passes.SignatureChange(w.source, result)
	w.proof, err = w.prover.judge(ctx, filepath.Join(dir, ModelFile))
	return dir, err
}

// save writes a model into a fresh folder.
func (w *work) save(m *onnx.Model, name string) (string, error) {
	dir, err := w.out.Scratch(name)
	if err != nil {
		return "", err
	}
	return dir, m.Save(filepath.Join(dir, ModelFile), onnx.SaveOptions{IR: int64(w.stage.cfg.Optimize.IR)})
}

func (w *work) checks(seconds float64) []report.Check {
	outputs := report.Check{
		ID: checkOutputs, Verdict: report.Pass, Want: fmt.Sprintf("|difference| <= %g of the larger of 1 and the output's largest value", Tolerance),
		Got: w.proof.text(), Seconds: seconds, Metrics: map[string]report.Number{"max_difference": report.Number(w.proof.worst)},
	}
	if !w.proof.holds() {
		outputs.Verdict, outputs.Detail = report.Fail, w.proof.breach
	}
	if w.proof.feeds == 0 || w.proof.elements == 0 {
		outputs.Verdict, outputs.Detail = report.Broken, "no element was compared: no evidence"
	}
	signature := report.Check{ID: checkSignature, Verdict: report.Pass, Want: signatureText(w.source), Got: "the same"}
	if w.change != "" {
		signature.Verdict, signature.Got = report.Fail, w.change
	}
	held := report.Check{ID: checkPasses, Verdict: report.Pass, Want: "every kept pass proven"}
	var dropped []string
	for _, p := range w.sum.Passes {
		if p.Dropped != "" {
			dropped = append(dropped, p.Name+": "+p.Dropped)
		}
	}
	held.Got = fmt.Sprintf("%d passes held, %d dropped; %d nodes became %d", len(w.sum.Passes)-len(dropped), len(dropped), w.sum.NodesBefore, w.sum.NodesAfter)
	held.Detail = strings.Join(dropped, "\n")
	return []report.Check{outputs, signature, held}
}

func signatureText(m *onnx.Model) string {
	var in, out []string
	for _, v := range m.Inputs() {
		in = append(in, v.String())
	}
	for _, v := range m.Outputs() {
		out = append(out, v.String())
	}
	return strings.Join(in, ", ") + " -> " + strings.Join(out, ", ")
}

// newProver opens the exported graph. A file that ONNX Runtime refuses only for
// its order or its node names is proven as it is after those are mended.
func (w *work) newProver(ctx context.Context) (*prover, error) {
	so := validation.SessionOptions(w.stage.cfg.Validation, w.out.Log())
	p := &prover{lib: w.stage.lib, options: so, ref: w.ref}
	err := p.open(ctx, w.source.Path)
	if err == nil || failure.CodeOf(err) != failure.Model {
		return p, err
	}
	mended, _, mendErr := passes.Run(ctx, w.source, []passes.Pass{passes.UniqueNames{}}, nil)
	if mendErr != nil {
		return nil, err
	}
	dir, mendErr := w.save(mended, "mended")
	if mendErr != nil {
		return nil, mendErr
	}
	if mendErr := p.open(ctx, filepath.Join(dir, ModelFile)); mendErr != nil {
		if newer := w.source.Accepts(onnx.ONNXRuntime(w.stage.lib.Version)); newer != nil {
			return nil, newer
		}
		return nil, err
	}
	p.notes = append(p.notes, fmt.Sprintf("ONNX Runtime refuses the exported file as it is (%v); it was compared after nodes were sorted and named apart", err))
	return p, nil
}
