// Package packaging is the stage that writes the Triton model repository: a
// configuration from the model's real tensors, the model and its data in a
// version folder, and a manifest. What was written is read back and judged by
// our own linter.
package packaging

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/engine"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/stage"
	"github.com/trtship/trtship/internal/triton"
	"github.com/trtship/trtship/internal/triton/lint"
	"github.com/trtship/trtship/internal/triton/pbtxt"
	"github.com/trtship/trtship/internal/validation"
	"github.com/trtship/trtship/report"
)

// The checks of this stage.
const (
	checkTensors  = "package/tensors"
	checkReadBack = "package/reads-back"
	checkLint     = "package/lint"
)

// Stage writes the repository.
type Stage struct {
	config *config.Config
}

// New returns the stage.
func New(c *config.Config) *Stage { return &Stage{config: c} }

// Spec describes the stage.
func (s *Stage) Spec() stage.Spec {
	var in []stage.In
	if s.config.Triton.Warmup { // a warm-up sends a sample of the reference
		in = append(in, stage.In{Kind: artifact.Reference, Optional: true})
	}
	if s.config.Target == "onnxruntime" {
		in = append(in, stage.In{Kind: artifact.OptimizedONNX}, stage.In{Kind: artifact.PrecisionONNX, Optional: true})
	} else {
		in = append(in, stage.In{Kind: artifact.Engine})
	}
	return stage.Spec{
		Name: "package", Version: 1, Title: "Write the Triton model repository",
		In: in, Out: []artifact.Kind{artifact.Repository},
		Checks: []stage.CheckDoc{
			{ID: checkTensors, Title: "config.pbtxt declares the model's real inputs and outputs.", Remedy: "Read which tensor Triton cannot take; export it with a shape and a type that Triton has."},
			{ID: checkReadBack, Title: "config.pbtxt reads back to what was meant, with triton.config_append in it.", Remedy: "Mend triton.config_append at the line that the detail names."},
			{ID: checkLint, Title: "The linter finds no mistake in the repository.", Remedy: "Mend the settings of the section triton that the findings name."},
		},
		Cacheable: true,
	}
}

// settings is what decides the bytes of a repository.
type settings struct {
	Name      string
	Target    string
	Precision string
	MaxBatch  int64
	Triton    config.Triton
}

// Settings is the part of the section triton that is written, without the
// server's own.
func (s *Stage) Settings() any {
	t := s.config.Triton
	t.Image, t.Server, t.BindAddress, t.GPUs, t.Protocols = "", "", "", "", nil
	t.HTTPPort, t.GRPCPort, t.MetricsPort, t.SharedMemoryMB, t.MemoryMB, t.ReadyTimeoutS, t.Verbose = 0, 0, 0, 0, 0, 0, false
	t.Labels = nil // by content, as sources
	labels := map[string]string{}
	for output, file := range s.config.Triton.Labels {
		labels[output] = filepath.Base(file)
	}
	t.Labels = labels
	return settings{Name: s.name(), Target: s.config.Target, Precision: s.precision(), MaxBatch: s.config.MaxBatch(), Triton: t}
}

// Sources are the label files.
func (s *Stage) Sources() []string {
	var out []string
	for _, f := range s.config.Triton.Labels {
		out = append(out, f)
	}
	return out
}

// Tools is empty: nothing else decides what is written.
func (*Stage) Tools(context.Context) (map[string]string, error) { return nil, nil }

func (s *Stage) name() string {
	if s.config.Triton.ModelName != "" {
		return s.config.Triton.ModelName
	}
	return s.config.Model.Name
}

// precision returns the precision that is packaged. For target onnxruntime the
// optimized graph is shipped unless the configuration names a precision.
func (s *Stage) precision() string {
	p := s.config.Triton.Precision
	if p == "" && s.config.Target != "onnxruntime" && len(s.config.TensorRT.Precisions) > 0 {
		p = s.config.TensorRT.Precisions[len(s.config.TensorRT.Precisions)-1]
	}
	return p
}

// source is the model that is packaged.
type source struct {
	art   artifact.Artifact
	sig   triton.Signature
	files map[string]string // name in the version folder: file
	note  string            // what could not be checked of it
}

// Run writes the repository, reads it back and lints it.
func (s *Stage) Run(ctx context.Context, in stage.Inputs, out stage.Outputs) ([]report.Check, error) {
	src, err := s.source(in)
	if err != nil {
		return nil, err
	}
	content, notes, err := s.content(src)
	if err != nil {
		return nil, err
	}
	if s.config.Triton.Warmup {
		if err := s.warmUp(&content, in); err != nil {
			return nil, err
		}
	}
	dir, err := out.Scratch("repository")
	if err != nil {
		return nil, err
	}
	version, err := triton.Add(dir, content)
	if err != nil {
		return nil, err
	}
	if src.note != "" {
		notes = append(notes, src.note)
	}
	precision := s.precision()
	checks := []report.Check{s.tensors(src, notes)}
	back, err := readBack(content)
	if err != nil {
		return checks, err
	}
	checks = append(checks, back)
	judged, err := judge(ctx, dir, precision)
	if err != nil {
		return checks, err
	}
	checks = append(checks, judged)
	meta := map[string]string{"model": s.name(), "version": fmt.Sprint(version), "platform": content.Config.GetPlatform()}
	_, err = out.Publish(artifact.Repository, "", dir, meta)
	return checks, err
}

// tensors is the check of what is declared. A plan, which may have been given by
// hand, must be one of the configuration's model.
func (s *Stage) tensors(src source, notes []string) report.Check {
	c := report.Check{
		ID: checkTensors, Subject: report.Subject{Precision: s.precision()}, Verdict: report.Pass,
		Got: signatureText(src.sig), Want: "the model's own inputs and outputs",
	}
	if src.sig.Format == triton.Plan {
		for _, side := range []struct {
			what    string
			strange []string
		}{
			{"inputs", undeclared(src.sig.Inputs, names(s.config.Model.Inputs))},
			{"outputs", undeclared(src.sig.Outputs, s.config.Model.OutputNames)},
		} {
			if len(side.strange) > 0 {
				c.Verdict = report.Fail
				c.Hint = "give a plan of this model, or package this one with its own configuration"
				notes = append(notes, fmt.Sprintf("the configuration's model has no %s %s", side.what, strings.Join(side.strange, ", ")))
			}
		}
	}
	c.Detail = strings.Join(notes, "\n")
	return c
}

func names(inputs []config.Input) []string {
	out := make([]string, len(inputs))
	for i, in := range inputs {
		out[i] = in.Name
	}
	return out
}

// undeclared lists the tensors that a configuration does not have, if it has any.
func undeclared(tensors []triton.Tensor, declared []string) (out []string) {
	for _, t := range tensors {
		if len(declared) > 0 && !slices.Contains(declared, t.Name) {
			out = append(out, t.Name)
		}
	}
	return out
}

func (s *Stage) source(in stage.Inputs) (source, error) {
	if s.config.Target != "onnxruntime" {
		return s.engine(in)
	}
	p := s.precision()
	for _, a := range in.All(artifact.PrecisionONNX) {
		if a.Label == p {
			return graph(a)
		}
	}
	if p != "" && p != "fp32" {
		return source{}, failure.New(failure.Usage, "triton.precision is %s, and there is no %s graph", p, p).At(s.config.Where("triton.precision")).
			WithHint("add %s to tensorrt.precisions", p)
	}
	a, err := in.One(artifact.OptimizedONNX)
	if err != nil {
		return source{}, err
	}
	return graph(a)
}

// graph packages an ONNX file with its external data.
func graph(a artifact.Artifact) (source, error) {
	path := filepath.Join(a.Dir, "model.onnx")
	m, err := onnx.Open(path)
	if err != nil {
		return source{}, err
	}
	defer func() { _ = m.Close() }()
	src := source{art: a, sig: triton.FromONNX(m), files: map[string]string{"model.onnx": path}}
	for _, f := range m.DataFiles() {
		src.files[f] = filepath.Join(a.Dir, filepath.FromSlash(f))
	}
	return src, nil
}

func (s *Stage) engine(in stage.Inputs) (source, error) {
	p := s.precision()
	for _, a := range in.All(artifact.Engine) {
		if a.Label != p {
			continue
		}
		d, err := engine.DescriptionOf(a)
		if err != nil {
			return source{}, err
		}
		sig, err := triton.FromEngine(d)
		return source{art: a, sig: sig, files: map[string]string{"model.plan": filepath.Join(a.Dir, engine.PlanFile)}, note: d.Unchecked()}, err
	}
	return source{}, s.noEngine(p, in.All(artifact.Engine))
}

// noEngine says which engines there are in place of the one that is asked for.
func (s *Stage) noEngine(precision string, have []artifact.Artifact) error {
	if len(have) == 0 {
		return failure.New(failure.Artifact, "there is no engine to package: build made none").WithHint("build the %s engine first, or give a plan: trtship package CONFIG ENGINE.plan", precision)
	}
	labels := make([]string, len(have))
	for i, a := range have {
		labels[i] = a.Label
	}
	e := failure.New(failure.Artifact, "there is no %s engine to package; there is %s", precision, strings.Join(labels, ", "))
	if s.config.Triton.Precision != "" {
		e = e.At(s.config.Where("triton.precision"))
	}
	if slices.Contains(s.config.TensorRT.Precisions, precision) {
		return e.WithHint("build made no %s engine: read why in its checks, or set triton.precision to %s", precision, strings.Join(labels, " or "))
	}
	return e.WithHint("add %s to tensorrt.precisions, or set triton.precision to %s", precision, strings.Join(labels, " or "))
}

func (s *Stage) content(src source) (triton.Content, []string, error) {
	c, notes, err := triton.Configure(src.sig, triton.Settings{
		Name: s.name(), MaxBatch: s.config.MaxBatch(), Triton: s.config.Triton, Where: s.config.Where,
	})
	if err != nil {
		return triton.Content{}, nil, err
	}
	content := triton.Content{
		Config: c, Append: s.config.Triton.Extra, Version: s.config.Triton.Version, Files: src.files,
		Beside: map[string]string{},
		Record: triton.Version{Format: src.sig.Format, Precision: s.precision(), From: []string{src.art.ID()}, TensorRT: src.sig.TensorRT, GPU: src.sig.GPU},
	}
	for _, o := range c.GetOutput() {
		if o.GetLabelFilename() != "" {
			content.Beside[o.GetLabelFilename()] = s.config.Triton.Labels[o.GetName()]
		}
	}
	return content, notes, nil
}

// warmUp adds the first sample of the reference's opt point, or of its first.
func (s *Stage) warmUp(content *triton.Content, in stage.Inputs) error {
	a, err := in.One(artifact.Reference)
	if err != nil {
		return fmt.Errorf("triton.warmup needs a real sample: %w", err)
	}
	ref, err := validation.OpenReference(a.Dir)
	if err != nil {
		return err
	}
	var point *validation.Point
	for i := range ref.Points {
		p := &ref.Points[i]
		if len(p.Samples) > 0 && (point == nil || strings.HasSuffix(p.Name, "opt")) {
			point = p
		}
	}
	if point == nil {
		return failure.New(failure.Artifact, "triton.warmup is set, but the reference has no sample")
	}
	feed, err := ref.In(point.Samples[0])
	if err != nil {
		return err
	}
	batch := min(point.Batch, int64(content.Config.GetMaxBatchSize()))
	content.Data, err = triton.WarmUp(content.Config, feed, int(batch))
	return err
}

// readBack parses what was written, triton.config_append included.
func readBack(content triton.Content) (report.Check, error) {
	c := report.Check{ID: checkReadBack, Want: "the same configuration", Got: "the same configuration", Verdict: report.Pass}
	d := pbtxt.Parse(content.Text())
	if d.Fatal() {
		var lines []string
		for _, p := range d.Problems {
			lines = append(lines, fmt.Sprintf("%s: %s", p.Pos, p.Text))
		}
		c.Verdict, c.Got, c.Detail = report.Fail, "text that Triton does not read", strings.Join(lines, "\n")
		return c, nil
	}
	if strings.TrimSpace(content.Append) == "" && !proto.Equal(d.Config, content.Config) {
		return c, failure.New(failure.Bug, "config.pbtxt does not read back to what was written")
	}
	return c, nil
}

func judge(ctx context.Context, dir, precision string) (report.Check, error) {
	c := report.Check{ID: checkLint, Subject: report.Subject{Precision: precision}, Want: "no mistakes", Verdict: report.Pass}
	found, err := lint.Dir(ctx, dir, lint.Options{})
	if err != nil {
		return c, err
	}
	errorsFound, warnings := 0, 0
	var lines []string
	for _, f := range found {
		switch f.Severity {
		case lint.Error:
			errorsFound++
		case lint.Warning:
			warnings++
		case lint.Note:
		}
		lines = append(lines, f.String())
	}
	c.Got = fmt.Sprintf("%d mistakes, %d warnings", errorsFound, warnings)
	c.Detail = strings.Join(lines, "\n")
	if errorsFound > 0 {
		c.Verdict = report.Fail
	}
	return c, nil
}

func signatureText(s triton.Signature) string {
	var parts []string
	for _, t := range s.Inputs {
		parts = append(parts, t.String())
	}
	text := strings.Join(parts, ", ") + " -> "
	parts = nil
	for _, t := range s.Outputs {
		parts = append(parts, t.String())
	}
	return text + strings.Join(parts, ", ")
}
