package pipeline_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/pipeline"
	"github.com/trtship/trtship/internal/stage"
	"github.com/trtship/trtship/internal/store"
	"github.com/trtship/trtship/internal/testkit"
	"github.com/trtship/trtship/report"
)

func TestASecondRunReusesEverything(t *testing.T) {
	p := newProject(t)
	first := p.mustRun(p.options(newChain(p).list()...))
	c := newChain(p)
	second := p.mustRun(p.options(c.list()...))
	if c.runs() != "00000" {
		t.Errorf("runs %s", c.runs())
	}
	want := []string{"inspect pass*", "export pass*", "validate pass*", "optimize pass*", "package pass*"}
	if d := cmp.Diff(want, verdicts(second)); d != "" {
		t.Errorf("stages (-want +got):\n%s", d)
	}
	if d := cmp.Diff(first.Artifacts, second.Artifacts); d != "" {
		t.Errorf("artifacts (-first +second):\n%s", d)
	}
	for _, s := range second.Stages {
		if len(s.Changed) > 0 {
			t.Errorf("%s says that something changed: %v", s.Name, s.Changed)
		}
	}
}

func TestWhatChangedIsSaidAndOnlyThatRuns(t *testing.T) {
	tests := map[string]struct {
		change  func(p *project, c *chain, o *pipeline.Options)
		stage   string
		changed []string // patterns
		runs    string
	}{
		"a setting": {
			change: func(_ *project, c *chain, _ *pipeline.Options) {
				c.optimize.Setting = map[string]any{"fold": 32, "passes": []string{"a"}}
			},
			stage: "optimize", changed: []string{`^settings\.fold: \(none\) -> 32$`}, runs: "00010",
		},
		"a source, by its path from the project": {
			change: func(p *project, _ *chain, _ *pipeline.Options) { p.write("model.py", "weights = 2") },
			stage:  "export", changed: []string{`^source model\.py: [0-9a-f]{12} -> [0-9a-f]{12}$`}, runs: "01111",
		},
		"an input": {
			change: func(p *project, _ *chain, _ *pipeline.Options) { p.write("model.py", "weights = 2") },
			stage:  "validate", changed: []string{`^input onnx: [0-9a-f]{12} -> [0-9a-f]{12}$`}, runs: "01111",
		},
		"a tool": {
			change: func(_ *project, c *chain, _ *pipeline.Options) { c.export.Tool = map[string]string{"torch": "2.12"} },
			stage:  "export", changed: []string{`^tool torch: 2\.11 -> 2\.12$`}, runs: "01000",
		},
		"the stage's own version": {
			change: func(_ *project, c *chain, _ *pipeline.Options) { c.validate.Describe.Version = 2 },
			stage:  "validate", changed: []string{`^stage version: 1 -> 2$`}, runs: "00100",
		},
		"the driver, of a stage on a GPU": {
			change: func(_ *project, _ *chain, o *pipeline.Options) { o.Machine = machine("560") },
			stage:  "package", changed: []string{`^machine driver: 550 -> 560$`}, runs: "00001",
		},
		"the GPU": {
			change: func(_ *project, _ *chain, o *pipeline.Options) { o.Machine = machine("550", "gpu", "H100") },
			stage:  "package", changed: []string{`^machine gpu: H200 -> H100$`}, runs: "00001",
		},
		"the release of TensorRT": {
			change: func(_ *project, _ *chain, o *pipeline.Options) { o.Machine = machine("550", "tensorrt", "10.16.0") },
			stage:  "package", changed: []string{`^machine tensorrt: 10\.6\.0 -> 10\.16\.0$`}, runs: "00001",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := newProject(t)
			setup := func() (*chain, pipeline.Options) {
				c := newChain(p)
				c.optimize.Setting = map[string]any{"passes": []string{"a"}}
				c.export.Tool = map[string]string{"torch": "2.11"}
				c.pack.Describe.Hardware = true
				o := p.options(c.list()...)
				o.Machine = machine("550")
				return c, o
			}
			_, o := setup()
			p.mustRun(o)
			c, o := setup()
			tt.change(p, c, &o)
			rep := p.mustRun(o)
			if c.runs() != tt.runs {
				t.Errorf("runs %s, want %s", c.runs(), tt.runs)
			}
			got := stageOf(t, rep, tt.stage).Changed
			if len(got) != len(tt.changed) {
				t.Fatalf("changed %q", got)
			}
			for i, pattern := range tt.changed {
				if !regexp.MustCompile(pattern).MatchString(got[i]) {
					t.Errorf("changed %q, want %q", got[i], pattern)
				}
			}
		})
	}
}

// machine is a GPU with a driver; other is a fact and the value that it has instead.
func machine(driver string, other ...string) func(context.Context) (map[string]string, error) {
	return func(context.Context) (map[string]string, error) {
		facts := map[string]string{"gpu": "H200", "driver": driver, "tensorrt": "10.6.0"}
		if len(other) == 2 {
			facts[other[0]] = other[1]
		}
		return facts, nil
	}
}

func TestAStageThatMakesTheSameBytesEndsTheChange(t *testing.T) {
	p := newProject(t)
	p.mustRun(p.options(newChain(p).list()...))
	c := newChain(p)
	c.export.Setting = "another comment"
	p.mustRun(p.options(c.list()...))
	if c.runs() != "01000" {
		t.Errorf("runs %s, want export alone", c.runs())
	}
}

func TestAnotherCheckoutHasTheSameKeys(t *testing.T) {
	p, q := newProject(t), newProject(t)
	p.mustRun(p.options(newChain(p).list()...))
	c := newChain(q)
	o := q.options(c.list()...)
	st := p.open() // the store of the first checkout
	o.Store = st
	if _, err := pipeline.Run(context.Background(), o); err != nil {
		t.Fatal(err)
	}
	if c.runs() != "00000" {
		t.Errorf("runs %s", c.runs())
	}
}

func TestStagesThatGoWrong(t *testing.T) {
	type work = func(context.Context, stage.Inputs, stage.Outputs) ([]report.Check, error)
	withText := func(f *testkit.Fake, checks []report.Check, err error) work {
		return func(_ context.Context, in stage.Inputs, out stage.Outputs) ([]report.Check, error) {
			if perr := f.PublishText(in, out); perr != nil {
				return nil, perr
			}
			return checks, err
		}
	}
	tests := map[string]struct {
		work  func(f *testkit.Fake) work // of export
		want  []string
		check string // id and verdict of the last check of export
		code  int
	}{
		"a failed check is a value, and the artifacts go on": {
			work: func(f *testkit.Fake) work {
				return withText(f, []report.Check{{ID: "export/ok", Verdict: report.Fail}}, nil)
			},
			want:  []string{"inspect pass", "export fail", "validate pass", "optimize pass", "package pass"},
			check: "export/ok fail", code: 5,
		},
		"an error before anything was made": {
			work: func(*testkit.Fake) work {
				return func(context.Context, stage.Inputs, stage.Outputs) ([]report.Check, error) {
					return nil, errors.New("the exporter crashed")
				}
			},
			want:  []string{"inspect pass", "export broken", "validate missing", "optimize missing", "package missing"},
			check: "export/completes broken", code: 5,
		},
		"an error after artifacts were made": {
			work:  func(f *testkit.Fake) work { return withText(f, testkit.Pass("export/ok"), errors.New("late")) },
			want:  []string{"inspect pass", "export broken", "validate pass", "optimize pass", "package pass"},
			check: "export/completes broken", code: 5,
		},
		"a capability that turns out to be missing": {
			work: func(*testkit.Fake) work {
				return func(context.Context, stage.Inputs, stage.Outputs) ([]report.Check, error) {
					return nil, failure.New(failure.Missing, "no torch")
				}
			},
			want:  []string{"inspect pass", "export missing", "validate missing", "optimize missing", "package missing"},
			check: "export/completes missing", code: 3,
		},
		"an artifact that cannot be written": {
			work: func(*testkit.Fake) work {
				return func(_ context.Context, _ stage.Inputs, out stage.Outputs) ([]report.Check, error) {
					dir, err := out.Scratch("x")
					if err == nil {
						_, err = out.Publish(artifact.ONNX, "", dir, nil) // holds no file
					}
					return nil, err
				}
			},
			want:  []string{"inspect pass", "export broken", "validate missing", "optimize missing", "package missing"},
			check: "export/artifacts broken", code: 11,
		},
		"a panic": {
			work: func(*testkit.Fake) work {
				return func(context.Context, stage.Inputs, stage.Outputs) ([]report.Check, error) {
					panic("index out of range")
				}
			},
			want:  []string{"inspect pass", "export broken", "validate missing", "optimize missing", "package missing"},
			check: "export/completes broken", code: 5,
		},
		"no check at all is no evidence": {
			work:  func(f *testkit.Fake) work { return withText(f, nil, nil) },
			want:  []string{"inspect pass", "export broken", "validate pass", "optimize pass", "package pass"},
			check: "export/completes broken", code: 5,
		},
		"a check that the stage does not declare": {
			work:  func(f *testkit.Fake) work { return withText(f, testkit.Pass("export/other"), nil) },
			want:  []string{"inspect pass", "export broken", "validate pass", "optimize pass", "package pass"},
			check: "export/other broken", code: 5,
		},
		"an inconclusive measurement": {
			work: func(f *testkit.Fake) work {
				return withText(f, []report.Check{{ID: "export/ok", Verdict: report.Inconclusive}}, nil)
			},
			want:  []string{"inspect pass", "export inconclusive", "validate pass", "optimize pass", "package pass"},
			check: "export/ok inconclusive", code: 13,
		},
		"a kind that the stage does not make": {
			work: func(*testkit.Fake) work {
				return func(_ context.Context, _ stage.Inputs, out stage.Outputs) ([]report.Check, error) {
					_, err := out.Publish(artifact.Engine, "", "", nil)
					return nil, err
				}
			},
			want:  []string{"inspect pass", "export broken", "validate missing", "optimize missing", "package missing"},
			check: "export/completes broken", code: 5,
		},
		"two artifacts of one kind and label": {
			work: func(f *testkit.Fake) work {
				return func(_ context.Context, in stage.Inputs, out stage.Outputs) ([]report.Check, error) {
					return nil, errors.Join(f.PublishText(in, out), f.PublishText(in, out))
				}
			},
			want:  []string{"inspect pass", "export broken", "validate pass", "optimize pass", "package pass"},
			check: "export/completes broken", code: 5,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := newProject(t)
			c := newChain(p)
			c.export.Work = tt.work(c.export)
			rep := p.mustRun(p.options(c.list()...))
			if d := cmp.Diff(tt.want, verdicts(rep)); d != "" {
				t.Errorf("stages (-want +got):\n%s", d)
			}
			if rep.ExitCode != tt.code {
				t.Errorf("exit code %d, want %d", rep.ExitCode, tt.code)
			}
			checks := stageOf(t, rep, "export").Checks
			last := checks[len(checks)-1]
			if got := last.ID + " " + string(last.Verdict); got != tt.check {
				t.Errorf("last check %q, want %q", got, tt.check)
			}
			// What did not hold is measured again.
			again := newChain(p)
			p.mustRun(p.options(again.list()...))
			if again.export.Runs.Load() != 1 {
				t.Error("export was not run again")
			}
		})
	}
}

func TestATraceOfAPanicIsInTheLog(t *testing.T) {
	p := newProject(t)
	c := newChain(p)
	c.export.Work = func(context.Context, stage.Inputs, stage.Outputs) ([]report.Check, error) { panic("boom") }
	rep := p.mustRun(p.options(c.list()...))
	log, err := os.ReadFile(p.path("runs/" + rep.Run.ID + "/logs/export.log"))
	if err != nil || !bytes.Contains(log, []byte("run_test.go")) {
		t.Errorf("log %q, error %v", log, err)
	}
}

func TestAMeasurementIsNeverReused(t *testing.T) {
	p := newProject(t)
	c := newChain(p)
	c.inspect.Describe.Cacheable = false
	p.mustRun(p.options(c.list()...))
	p.mustRun(p.options(c.list()...))
	if c.runs() != "21111" {
		t.Errorf("runs %s", c.runs())
	}
}

func TestAFileFoundWhileRunningBelongsToTheEntry(t *testing.T) {
	p := newProject(t)
	p.write("helper.py", "a = 1")
	build := func() *chain {
		c := newChain(p)
		c.export.Work = func(_ context.Context, in stage.Inputs, out stage.Outputs) ([]report.Check, error) {
			out.DependOn(p.path("helper.py"))
			out.DependOn(p.path("optional.py")) // is not there yet
			return testkit.Pass("export/ok"), c.export.PublishText(in, out)
		}
		return c
	}
	p.mustRun(p.options(build().list()...))
	c := build()
	p.mustRun(p.options(c.list()...))
	if c.runs() != "00000" {
		t.Fatalf("runs %s without a change", c.runs())
	}
	for _, name := range []string{"helper.py", "optional.py"} {
		p.write(name, "a = 2")
		c = build()
		rep := p.mustRun(p.options(c.list()...))
		changed := stageOf(t, rep, "export").Changed
		if c.runs() != "01000" || len(changed) != 1 || !strings.HasPrefix(changed[0], "file "+name+": ") {
			t.Errorf("runs %s, changed %q after a change of %s", c.runs(), changed, name)
		}
	}
}

func TestDocumentsOfReportKinds(t *testing.T) {
	p := newProject(t)
	doc := func(name string, kind artifact.Kind, v any) *testkit.Fake {
		f := testkit.Text(name, nil, kind)
		f.Work = func(_ context.Context, _ stage.Inputs, out stage.Outputs) ([]report.Check, error) {
			_, err := out.PublishDocument(kind, v)
			return testkit.Pass(name + "/ok"), err
		}
		return f
	}
	stages := []stage.Planned{
		{Stage: doc("inspect", artifact.InspectReport, report.Inspection{Parameters: 7})},
		{Stage: doc("validate", artifact.ValidateReport, report.Validation{Stage: "validate", Rows: []report.Comparison{{Output: "y"}}})},
		{Stage: doc("optimize", artifact.OptimizeReport, report.Optimization{NodesBefore: 9})},
		{Stage: doc("quantize", artifact.PrecisionReport, []report.Validation{{Precision: "fp16"}, {Precision: "int8"}})},
		{Stage: doc("benchmark", artifact.BenchmarkReport, report.Benchmark{Rows: []report.Measurement{{Backend: "onnxruntime"}}})},
	}
	for range 2 { // made, then reused
		rep := p.mustRun(p.options(stages...))
		if rep.Inspection == nil || rep.Inspection.Parameters != 7 || rep.Optimize == nil || rep.Optimize.NodesBefore != 9 {
			t.Errorf("inspection %+v, optimization %+v", rep.Inspection, rep.Optimize)
		}
		if len(rep.Validations) != 3 || rep.Validations[0].Rows[0].Output != "y" || rep.Validations[2].Precision != "int8" {
			t.Errorf("validations %+v", rep.Validations)
		}
		if rep.Benchmark == nil || len(rep.Benchmark.Rows) != 1 {
			t.Errorf("benchmark %+v", rep.Benchmark)
		}
	}
	bad := doc("inspect", artifact.InspectReport, map[string]int{"parametres": 7})
	bad.Setting = "bad"
	rep := p.mustRun(p.options(stage.Planned{Stage: bad}))
	if s := stageOf(t, rep, "inspect"); s.Verdict != report.Broken || rep.ExitCode != 11 {
		t.Errorf("a document with an unknown field is %s, exit code %d", s.Verdict, rep.ExitCode)
	}
}

func TestCancel(t *testing.T) {
	p := newProject(t)
	c := newChain(p)
	ctx, cancel := context.WithCancelCause(context.Background())
	c.validate.Work = func(ctx context.Context, _ stage.Inputs, _ stage.Outputs) ([]report.Check, error) {
		cancel(failure.New(failure.Terminated, "stopped by SIGTERM"))
		<-ctx.Done()
		return nil, ctx.Err()
	}
	o := p.options(c.list()...)
	o.Store = p.open()
	rep, err := pipeline.Run(ctx, o)
	if failure.CodeOf(err) != failure.Terminated || rep.ExitCode != 143 {
		t.Errorf("error %v, exit code %d", err, rep.ExitCode)
	}
	want := []string{"inspect pass", "export pass", "validate broken", "optimize missing", "package missing"}
	if d := cmp.Diff(want, verdicts(rep)); d != "" {
		t.Errorf("stages (-want +got):\n%s", d)
	}
	if last, err := pipeline.Latest(p.path("runs")); err != nil || last.State != "finished" {
		t.Errorf("latest %+v, error %v", last, err)
	}
	c = newChain(p)
	if rep := p.mustRun(p.options(c.list()...)); rep.ExitCode != 0 || c.runs() != "00111" {
		t.Errorf("the next run: exit code %d, runs %s", rep.ExitCode, c.runs())
	}
}

func TestTheRunFolder(t *testing.T) {
	p := newProject(t)
	c := newChain(p)
	o := p.options(c.list()...)
	o.Report = report.Report{
		Tool: report.Tool{Name: "trtship", Version: "1"}, Run: report.Run{Config: "trtship.yaml", ConfigHash: "sha256:" + strings.Repeat("0", 64)},
		Environment: report.Environment{OS: "linux", Tools: map[string]string{"torch": "2.11"}},
	}
	o.Render = func(r *report.Report, dir string) error {
		return os.WriteFile(filepath.Join(dir, "summary.md"), []byte(r.Run.ID), 0o644)
	}
	rep := p.mustRun(o)
	dir := p.path("runs/" + rep.Run.ID)
	var onDisk report.Report
	readJSON(t, filepath.Join(dir, "report.json"), &onDisk)
	if d := cmp.Diff(*rep, onDisk); d != "" {
		t.Errorf("report.json (-returned +written):\n%s", d)
	}
	var m pipeline.Manifest
	readJSON(t, filepath.Join(dir, "manifest.json"), &m)
	if m.State != "finished" || len(m.Stages) != 5 || m.Stages[1].Artifacts[0].Files[0].Path != "text" {
		t.Errorf("manifest %+v", m)
	}
	var env report.Environment
	readJSON(t, filepath.Join(dir, "environment.json"), &env)
	if env.Tools["torch"] != "2.11" {
		t.Errorf("environment %+v", env)
	}
	for name, want := range map[string]string{
		"config.yaml": "model: {}\n", "reports/summary.md": rep.Run.ID,
	} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != want {
			t.Errorf("%s is %q, error %v", name, got, err)
		}
	}
	for _, name := range []string{"onnx", "reference", "onnx-optimized", "model_repository"} {
		link := filepath.Join(dir, "artifacts", name)
		target, err := os.Readlink(link)
		if err != nil || filepath.IsAbs(target) {
			t.Errorf("link %s to %q, error %v", name, target, err)
		}
		if _, err := os.Stat(filepath.Join(link, "text")); err != nil {
			t.Error(err)
		}
	}
	for _, s := range rep.Stages {
		if _, err := os.Stat(filepath.Join(dir, s.Log)); err != nil || s.Log != "logs/"+s.Name+".log" {
			t.Errorf("log %q: %v", s.Log, err)
		}
	}
}

func TestReportsOfEqualRunsDifferInTimesOnly(t *testing.T) {
	var texts []string
	for range 2 {
		p := newProject(t)
		rep := p.mustRun(p.options(newChain(p).list()...))
		rep.Run.ID, rep.Run.Seconds = "", 0
		rep.Run.Started = rep.Run.Started.Truncate(1 << 62)
		for i := range rep.Stages {
			rep.Stages[i].Seconds = 0
		}
		text, err := json.Marshal(rep)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, string(text))
	}
	if texts[0] != texts[1] {
		t.Errorf("(-first +second):\n%s", cmp.Diff(texts[0], texts[1]))
	}
}

func TestRunOne(t *testing.T) {
	ctx := context.Background()
	t.Run("makes what the stage reads, and nothing else", func(t *testing.T) {
		p := newProject(t)
		c := newChain(p)
		o := p.options(c.list()...)
		o.Store, o.RunsDir = p.open(), ""
		rep, arts, err := pipeline.RunOne(ctx, o, "optimize", nil)
		if err != nil {
			t.Fatal(err)
		}
		if c.runs() != "01010" || len(arts) != 1 || arts[0].Kind != artifact.OptimizedONNX || rep.ExitCode != 0 {
			t.Errorf("runs %s, artifacts %v, exit code %d", c.runs(), arts, rep.ExitCode)
		}
		if entries, err := os.ReadDir(p.dir); err != nil || len(entries) != 2 { // model.py and the store
			t.Errorf("something else was written: %v %v", entries, err)
		}
	})
	t.Run("takes a file that is given", func(t *testing.T) {
		p := newProject(t)
		p.write("my model.onnx", "given")
		c := newChain(p)
		o := p.options(c.list()...)
		o.Store, o.RunsDir = p.open(), ""
		a, err := pipeline.Adopt(ctx, o.Store, artifact.ONNX, "", store.Source{Path: p.path("my model.onnx"), As: "model.onnx"})
		if err != nil {
			t.Fatal(err)
		}
		_, arts, err := pipeline.RunOne(ctx, o, "optimize", pipeline.Given{artifact.ONNX: {a}})
		if err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(filepath.Join(arts[0].Dir, "text"))
		if err != nil || string(text) != "optimize\nmodel.onnx: given" || c.runs() != "00010" {
			t.Errorf("made %q, runs %s, error %v", text, c.runs(), err)
		}
	})
	t.Run("runs a stage that the configuration turns off, when named", func(t *testing.T) {
		p := newProject(t)
		c := newChain(p)
		o := p.options(c.list()...)
		o.Store, o.RunsDir = p.open(), ""
		o.Stages[3].Off = "optimize.enabled is false"
		if _, arts, err := pipeline.RunOne(ctx, o, "optimize", nil); err != nil || len(arts) != 1 {
			t.Errorf("artifacts %v, error %v", arts, err)
		}
	})
	t.Run("an unknown stage is a wrong usage", func(t *testing.T) {
		p := newProject(t)
		o := p.options(newChain(p).list()...)
		o.Store = p.open()
		if _, _, err := pipeline.RunOne(ctx, o, "x", nil); failure.CodeOf(err) != failure.Usage {
			t.Errorf("error %v", err)
		}
	})
	t.Run("a given artifact that is damaged is exit 11", func(t *testing.T) {
		p := newProject(t)
		c := newChain(p)
		o := p.options(c.list()...)
		o.Store, o.RunsDir = p.open(), ""
		a, err := pipeline.Adopt(ctx, o.Store, artifact.ONNX, "", store.Source{Path: p.path("model.py")})
		if err != nil {
			t.Fatal(err)
		}
		flip(t, filepath.Join(a.Dir, "model.py"), 3)
		rep, _, err := pipeline.RunOne(ctx, o, "optimize", pipeline.Given{artifact.ONNX: {a}})
		if err != nil || rep.ExitCode != 11 || c.runs() != "00000" {
			t.Errorf("exit code %d, runs %s, error %v", rep.ExitCode, c.runs(), err)
		}
	})
}

func TestTheLatestRun(t *testing.T) {
	p := newProject(t)
	if _, err := pipeline.Latest(p.path("runs")); failure.CodeOf(err) != failure.Artifact {
		t.Errorf("without a folder: %v", err)
	}
	var last string
	for range 3 {
		last = p.mustRun(p.options(newChain(p).list()...)).Run.ID
	}
	// A run that was killed has no report, and is not the latest.
	if err := os.MkdirAll(p.path("runs/2999-01-01_aaaaaa"), 0o755); err != nil {
		t.Fatal(err)
	}
	got, err := pipeline.Latest(p.path("runs"))
	if err != nil || got.ID != last {
		t.Errorf("latest %s, want %s, error %v", got.ID, last, err)
	}
	runs, err := pipeline.Runs(p.path("runs"))
	if err != nil || len(runs) != 4 {
		t.Errorf("runs %v, error %v", runs, err)
	}
}

// spy keeps what an observer is told.
type spy struct {
	pipeline.Silent
	lines []string
}

func (s *spy) StageStarted(i pipeline.StageInfo) { s.lines = append(s.lines, "start "+i.Name) }
func (s *spy) StageFinished(r report.Stage) {
	s.lines = append(s.lines, "end "+r.Name+" "+string(r.Verdict))
}

func (s *spy) StageProgress(name string, done, total int64, label string) {
	s.lines = append(s.lines, "progress "+name+" "+label)
}

func TestTheObserverIsTold(t *testing.T) {
	p := newProject(t)
	c := newChain(p)
	c.export.Work = func(_ context.Context, in stage.Inputs, out stage.Outputs) ([]report.Check, error) {
		out.Progress(1, 2, "tracing")
		return testkit.Pass("export/ok"), c.export.PublishText(in, out)
	}
	s := &spy{}
	o := p.options(c.list()...)
	o.Observer, o.Until = s, "export"
	p.mustRun(o)
	want := []string{
		"start inspect", "end inspect pass", "start export", "progress export tracing", "end export pass",
		"end validate not-asked", "end optimize not-asked", "end package not-asked",
	}
	if d := cmp.Diff(want, s.lines); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
