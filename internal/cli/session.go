package cli

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/pipeline"
	"github.com/trtship/trtship/internal/proc"
	"github.com/trtship/trtship/internal/provenance"
	"github.com/trtship/trtship/internal/stage"
	"github.com/trtship/trtship/internal/store"
	"github.com/trtship/trtship/internal/worker"
	"github.com/trtship/trtship/report"
	"github.com/trtship/trtship/stages"
)

// session is a configuration, the machine and the store, ready to run stages.
type session struct {
	a        *app
	cfg      *config.Config
	machine  *machine
	store    *store.Store
	baseline *baseline // nil without one; it is wanted when the benchmark starts
}

// open reads the configuration, fills in what an ONNX file declares, and opens
// the store. Close must be called.
func (a *app) open(ctx context.Context, path string) (*session, error) {
	cfg, err := a.loadConfig(path)
	if err != nil {
		return nil, err
	}
	if cfg, err = adoptInputs(cfg); err != nil {
		return nil, err
	}
	st, err := store.Open(ctx, a.storeDir())
	if err != nil {
		return nil, err
	}
	return &session{a: a, cfg: cfg, machine: a.machine(), store: st}, nil
}

// Close lets go of the store.
func (s *session) Close() {
	if err := s.store.Close(); err != nil {
		s.a.log.Warn("close store", "error", err)
	}
}

// adoptInputs fills in model.inputs of kind onnx from the file, where they are
// left out.
func adoptInputs(cfg *config.Config) (*config.Config, error) {
	if cfg.Model.Kind != "onnx" || len(cfg.Model.Inputs) > 0 {
		return cfg, nil
	}
	m, err := onnx.Open(cfg.Model.Path)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	var inputs []config.Input
	for _, v := range m.Inputs() {
		in := config.Input{Name: v.Name, DType: string(v.DType)}
		if !v.HasShape {
			return nil, failure.New(failure.Usage, "input %s of %s has no rank; declare model.inputs", v.Name, filepath.Base(cfg.Model.Path)).At(cfg.Where("model"))
		}
		for i, d := range v.Dims {
			dim := config.Dim{Size: d.Size, Symbol: d.Symbol}
			if !d.Fixed() && d.Symbol == "" {
				dim.Symbol = v.Name + "_" + strconv.Itoa(i)
			}
			in.Shape = append(in.Shape, dim)
		}
		inputs = append(inputs, in)
	}
	return cfg.WithInputs(inputs)
}

// options are what every run of this session has in common.
func (s *session) options(ctx context.Context) (pipeline.Options, error) {
	snapshot, err := s.cfg.Snapshot(s.cfg.Dir)
	if err != nil {
		return pipeline.Options{}, err
	}
	project, err := filepath.Abs(s.cfg.Path)
	if err != nil {
		return pipeline.Options{}, failure.New(failure.Artifact, "find configuration: %w", err)
	}
	o := pipeline.Options{
		Stages: stages.All(s.cfg, s.tools(ctx)), Store: s.store, Project: project, BaseDir: s.cfg.Dir, Config: snapshot,
		Report: s.report(ctx, snapshot), Probes: map[stage.Need]func(context.Context) error{}, Machine: s.hardware, Render: render,
		CheckSources: s.checkSources,
	}
	if o.Materials, err = lockMaterials(); err != nil {
		return pipeline.Options{}, err
	}
	for need := range needNames {
		o.Probes[need] = func(ctx context.Context) error { return s.machine.Has(ctx, s.cfg, need) }
	}
	return o, nil
}

// checkSources looks whether the files that stages read, as the configuration
// names them, are there.
func (s *session) checkSources(stages, sources []string) error {
	loads := s.cfg.Model.Factory != "" && (slices.Contains(stages, "inspect") || slices.Contains(stages, "export"))
	return s.cfg.CheckFiles(func(key, path string) bool {
		return slices.Contains(sources, path) || loads && strings.HasPrefix(key, "model.python_path.")
	})
}

// lockMaterials are the lock files of the Python environments that stages run in.
func lockMaterials() ([]provenance.Material, error) {
	var out []provenance.Material
	for _, g := range []worker.Group{worker.GroupBase, worker.GroupTriton} {
		digest, err := worker.LockDigest(g)
		if err != nil {
			return nil, err
		}
		out = append(out, provenance.Material{Name: "python lock " + string(g), Digest: digest})
	}
	return out, nil
}

// report is what is known before the run: everything that decides a verdict is
// fixed here and nowhere else.
func (s *session) report(ctx context.Context, snapshot []byte) report.Report {
	c, sum := s.cfg, sha256.Sum256(snapshot)
	rep := report.Report{
		Tool:  report.Tool{Name: "trtship", Version: s.a.version, Commit: commit()},
		Run:   report.Run{Config: filepath.Base(c.Path), ConfigHash: "sha256:" + hex.EncodeToString(sum[:])},
		Model: report.Model{Name: c.Model.Name, Kind: c.Model.Kind},
		Settings: report.Settings{
			Hardware: s.hardwareSetting(), Tolerances: c.Tolerances(), Precisions: c.TensorRT.Precisions, Target: c.Target,
			Margin: report.Number(c.Benchmark.Margin),
		},
		Environment: s.machine.environment(ctx),
	}
	if !filepath.IsAbs(c.Path) {
		rep.Run.Config = filepath.ToSlash(filepath.Clean(c.Path))
	}
	for _, in := range c.Model.Inputs {
		t := report.Tensor{Name: in.Name, DType: in.DType, Dims: []string{}}
		for _, d := range in.Shape {
			t.Dims = append(t.Dims, d.String())
		}
		rep.Model.Inputs = append(rep.Model.Inputs, t)
	}
	for i, b := range c.Gate.Budgets {
		rep.Settings.Budgets = append(rep.Settings.Budgets, report.Budget{
			Metric: b.Metric, Where: b.Where, Max: num(b.Max), Min: num(b.Min), MaxRise: num(b.MaxRise), MaxDrop: num(b.MaxDrop),
			Line: c.Lines[fmt.Sprintf("gate.budgets.%d", i)],
		})
	}
	rep.Environment.Git = s.git(ctx)
	return rep
}

func num(f *float64) *report.Number {
	if f == nil {
		return nil
	}
	n := report.Number(*f)
	return &n
}

// hardwareSetting resolves gate.hardware: auto is required in CI.
func (s *session) hardwareSetting() string {
	switch {
	case s.cfg.Gate.Hardware != "auto":
		return s.cfg.Gate.Hardware
	case strings.EqualFold(s.a.io.Getenv("CI"), "true") || s.a.io.Getenv("CI") == "1":
		return "required"
	}
	return "optional"
}

// gitTimeout bounds the question for the commit: a working tree on a file system
// that hangs must not hang a run.
const gitTimeout = 20 * time.Second

// git returns the commit that the configuration lies in, nil outside of a
// repository or without git.
func (s *session) git(ctx context.Context) *report.Git {
	git, err := proc.Look("git", s.a.io.Getenv("PATH"))
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, gitTimeout)
	defer cancel()
	run := func(args ...string) (string, error) {
		return proc.Output(ctx, proc.Command{
			// In a container the checkout belongs to another user, and git then
			// refuses to read it. No hook and no program of its configuration is
			// started by what is asked here.
			Path: git, Args: append([]string{"--no-optional-locks", "-c", "safe.directory=*", "-c", "core.fsmonitor=false", "-C", s.cfg.Dir}, args...),
			Env: []string{"PATH=" + s.a.io.Getenv("PATH"), "HOME=" + s.a.io.Getenv("HOME"), "LC_ALL=C"},
		})
	}
	head, err := run("rev-parse", "HEAD")
	if err != nil {
		return nil
	}
	status, err := run("status", "--porcelain", "--untracked-files=no")
	if err != nil {
		return nil
	}
	return &report.Git{Commit: strings.TrimSpace(head), Dirty: strings.TrimSpace(status) != ""}
}

// render writes the renderings of a report into a run's reports folder.
func render(r *report.Report, dir string) error {
	v := report.View{Report: r}
	junit, err := report.JUnit(v)
	if err != nil {
		return err
	}
	for name, b := range map[string][]byte{
		"report.md": []byte(report.Markdown(v, report.MarkdownOptions{})), "report.html": report.HTML(v), "junit.xml": junit,
	} {
		if err := report.WriteFile(filepath.Join(dir, name), b); err != nil {
			return err
		}
	}
	return nil
}

// rel returns a path relative to the working directory where that is shorter.
func (a *app) rel(path string) string {
	wd, err := os.Getwd()
	if err != nil {
		return path
	}
	r, err := filepath.Rel(wd, path)
	if err != nil || len(r) >= len(path) {
		return path
	}
	return r
}

// failed turns the outcome of a run into the exit code, keeping the error that
// stopped it.
func (a *app) failed(rep *report.Report, err error) error {
	if err != nil {
		return err
	}
	if rep != nil {
		a.concludes(rep)
	}
	return nil
}
